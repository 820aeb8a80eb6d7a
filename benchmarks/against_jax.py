"""Everyday training against JAX: rejax, SBX and stable-baselines3, by the step and by the whole command.

    python benchmarks/against_jax.py [--peers_python PYTHON] [--cases NAME ...] [--out FILE] [--json] [--quick]
    python benchmarks/against_jax.py --first_result [--games CartPole-v1 LunarLander-v3] [--out FILE]
    python benchmarks/against_jax.py --tables FILE

Every library, a side of the comparison, trains in a separate process, with one thread on one core, and the processes
take turns. A number is the CPU time per step of a member with the updates of that step. Compilation and evaluations do
not count. (A member is one of the agents that a library trains side by side in one program.) ``--first_result``
measures whole commands instead: PPO to a greedy return of 475 on CartPole or 200 on LunarLander, with imports,
compilation and evaluations. The other libraries are in the extra `jax`, which may be installed in another environment.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import common  # first: one thread, and the project on the path
from common import ROOT, Result, interleave, ratio_interval, verdict
from peers.training import FIRST, GOALS, Case

SCRIPTS = ROOT / "benchmarks" / "peers"
NAMES = {"ours": "this project", "rejax": "rejax", "sbx": "SBX", "sb3": "stable-baselines3"}
CACHED = "rejax_cached"  # in whole commands
FIRST_NAMES = NAMES | {CACHED: "rejax, compiled before"}
MODULES = {"rejax": ("rejax", "gymnax"), "sbx": ("sbx",), "sb3": ("stable_baselines3",)}
GYMNAX_GAMES = ("CartPole-v1",)  # whose game is Gymnasium's in gymnax too; its LunarLander is another
MANY = 16
TIMING = "1 thread on one core for each process; seconds are CPU time"

# Name of a case -> its description, and fields of `Case`.
_ROLLOUT = {"agent": "PPO", "game": "CartPole-v1", "envs": 8}
_DDQN = {"agent": "DDQN", "game": "CartPole-v1", "hidden": (64, 64), "batch": 32, "unit": 1000, "buffer": 10_000}
_REPLAY = {"game": "Pendulum-v1", "buffer": 10_000}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo_64": (
        "PPO, CartPole, 64-64, 8 x 128 steps, 4 passes",
        _ROLLOUT | {"hidden": (64, 64), "batch": 256, "rollout": 128, "passes": 4, "unit": 10_240},
    ),
    "a2c_64": (
        "A2C, CartPole, 64-64, 8 x 5 steps",
        _ROLLOUT | {"agent": "A2C", "hidden": (64, 64), "batch": 40, "rollout": 5, "unit": 10_240},
    ),
    "ddqn_64": ("DDQN, CartPole, 64-64, batch 32", _DDQN),
    "ddqn_64_small_buffer": ("the same, a replay buffer of 1,000", _DDQN | {"buffer": 1000}),
    "ddqn_4": ("DDQN, CartPole, 4-64-2, batch 32", _DDQN | {"hidden": (64,)}),
    "td3_64": ("TD3, Pendulum, 64-64, batch 64", _REPLAY | {"agent": "TD3", "hidden": (64, 64), "batch": 64}),
    "td3_256": ("TD3, Pendulum, 256-256, batch 256", _REPLAY | {"agent": "TD3", "hidden": (256, 256), "batch": 256}),
    "sac_64": ("SAC, Pendulum, 64-64, batch 64", _REPLAY | {"agent": "SAC", "hidden": (64, 64), "batch": 64}),
    "sac_256": ("SAC, Pendulum, 256-256, batch 256", _REPLAY | {"agent": "SAC", "hidden": (256, 256), "batch": 256}),
}


@dataclasses.dataclass(frozen=True)
class Size:
    """Amount of work: CPU seconds of a block and rounds, share of each `Case.unit`, seeds of whole commands."""

    seconds: float = 1.5
    rounds: int = 6
    warmup_units: int = 3  # rejax compiles twice, because the types of the first state are weaker
    quick: bool = False
    seeds: int = 5


QUICK = Size(seconds=0.01, rounds=1, warmup_units=1, quick=True, seeds=1)


def case_of(name: str, members: int, size: Size) -> Case:
    """Return the case with this name in `CASES`, with a number of members and the number of steps to time."""
    values = dict(CASES[name][1])
    if size.quick:
        # One rollout; without rollouts two steps, because two steps of TD3 have one update of the actor.
        values["unit"] = values.get("envs", 1) * values.get("rollout", 0) or 2
    elif "unit" not in values and values["batch"] < 256:
        values["unit"] = 500
    elif "unit" not in values:
        values["unit"] = 100 if members == 1 else 20
    return Case(members=members, **values)


def sides_of(name: str, members: int) -> tuple[str, ...]:
    """Return the libraries that have the case: SBX and stable-baselines3 train one agent in a process."""
    if members > 1:
        return ("ours", "rejax")
    if CASES[name][1]["agent"] == "A2C":
        return ("ours", "rejax", "sb3")
    return ("ours", "rejax", "sbx", "sb3")


def script_command(side: str, peers_python: str, *arguments: str) -> list[str]:
    """Return the command that runs the script of a library (`peers/training.py`), the other libraries with
    ``peers_python``."""
    script = {"ours": "our", "rejax": "rejax", "sbx": "sb3", "sb3": "sb3"}[side]
    command = [sys.executable if side == "ours" else peers_python, str(SCRIPTS / f"{script}_training.py"), *arguments]
    return [*command, "SBX"] if side == "sbx" else command


def environment() -> dict[str, str]:
    """Return the variables of all processes: one thread for torch, NumPy and XLA, and Python's usual files."""
    variables = dict(os.environ)
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH"):
        variables.pop(name, None)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC"):
        variables[name] = "1"
    variables["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    return variables | {"JAX_PLATFORMS": "cpu"}


class Side:
    """A library's process that trains one case."""

    def __init__(self, side: str, case: Case, peers_python: str):
        self.command = script_command(side, peers_python, "steps", json.dumps(dataclasses.asdict(case)))
        pipe, self.errors = subprocess.PIPE, tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            self.command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True, env=environment()
        )
        self.versions = self._answer()
        self.units = 1

    def _answer(self) -> dict[str, Any]:
        """Return the next line of JSON that the process prints. Other lines are messages of a library."""
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        self.errors.seek(0)
        raise SystemExit(f"{shlex.join(self.command)}\n{self.errors.read()}")

    def train(self, units: int) -> dict[str, Any]:
        """Train for ``units`` times `Case.unit` steps. Return the ``steps`` of all members and the CPU ``seconds``."""
        assert self.process.stdin
        self.process.stdin.write(f"{units}\n")
        self.process.stdin.flush()
        return self._answer()

    def calibrate(self, size: Size) -> None:
        """Compile, and choose the number of units of a block."""
        for _ in range(size.warmup_units):
            self.train(1)
        self.units = max(1, round(size.seconds / max(self.train(1)["seconds"], 1e-6)))

    def cost(self) -> float:
        """Return the CPU microseconds per step of a member, over one block."""
        answer = self.train(self.units)
        return 1e6 * answer["seconds"] / answer["steps"]

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def measure(name: str, members: int, sides: Sequence[str], size: Size, peers_python: str) -> dict[str, Any]:
    """Return a row of the file: CPU microseconds per step of a member in all rounds by library, machine and
    versions."""
    case = case_of(name, members, size)
    with contextlib.ExitStack() as stack:
        processes = {}
        for side in sides:
            processes[side] = Side(side, case, peers_python)
            stack.callback(processes[side].close)
            processes[side].calibrate(size)
        costs = interleave({side: process.cost for side, process in processes.items()}, size.rounds)
    versions: dict[str, str] = {}
    for process in processes.values():
        versions |= process.versions
    rounded = {side: [round(value, 4) for value in values] for side, values in costs.items()}
    return {"microseconds": rounded, "machine": common.machine(TIMING), "versions": versions}


def first_command(side: str, game: str, seed: int, folder: str, peers_python: str) -> list[str]:
    """Return the command that trains PPO until it reaches the goal. Ours writes its run into ``folder``."""
    if side != "ours":
        return script_command("rejax" if side == CACHED else side, peers_python, "first", game, str(seed))
    values, name = FIRST[game], {"CartPole-v1": "cartpole", "LunarLander-v3": "lunarlander"}[game]
    epochs = values.most_steps // values.eval_steps
    flags = {
        "implementation": "PPO", "gamename": name, "seed": seed, "logdir": folder, "target_return": GOALS[game],
        "steps_per_epoch": values.eval_steps, "epochs": epochs, "eval_every": 1, "eval_episodes": values.eval_episodes,
        "num_envs": values.envs, "rollout_steps": values.rollout, "batch_size": values.batch, "lr": values.lr,
        "ppo_epochs": values.passes, "discount": values.discount, "gae_lambda": values.gae_lambda,
        "hidden_sizes": ",".join(map(str, values.hidden)),
    }  # fmt: skip
    command = [sys.executable, str(ROOT / "trainer.py")]
    for flag, value in flags.items():
        command += [f"--{flag}", str(value)]
    return [*command, "--no_anneal_lr", "--no_normalize_obs", "--no_normalize_reward"]


def first_result(side: str, game: str, seed: int, peers_python: str, cache: str) -> tuple[float, int]:
    """Return the CPU seconds of a whole command and its environment steps. ``cache`` has rejax's compiled programs."""
    variables = environment()
    if side == CACHED:
        variables |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "errors", "w+") as errors:
        command = first_command(side, game, seed, folder, peers_python)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables)
        assert process.stdout
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        errors.seek(0)
        if process.returncode:
            raise SystemExit(f"{shlex.join(command)}\n{output}{errors.read()}")
        steps = _steps_of_run(folder, game) if side == "ours" else int(output.split()[-1])
    return usage.ru_utime + usage.ru_stime, steps


def _steps_of_run(folder: str, game: str) -> int:
    """Return the steps of the only run in ``folder``, which must have reached the goal."""
    import trainer

    (run,) = Path(folder).glob("*/*/*/*/version_*")
    metrics = trainer.load(run).metrics
    if metrics["eval/return_greedy"][-1] < GOALS[game]:
        raise SystemExit(f"{GOALS[game]:g} was not reached on {game}")
    return int(metrics["env_steps"][-1])


def measure_first(game: str, sides: Sequence[str], size: Size, peers_python: str) -> Iterator[dict[str, Any]]:
    """Measure whole commands. After each seed, yield the CPU seconds and steps of all seeds so far, by library."""
    results: dict[str, dict[str, list[float]]] = {side: {"seconds": [], "steps": []} for side in sides}
    with tempfile.TemporaryDirectory() as cache:
        for side in sides:
            if side in ("ours", CACHED):  # a run that is not measured, but compiles the programs that remain on disk
                first_result(side, game, 0, peers_python, cache)
        for seed in range(size.seeds):
            for side in sides:
                seconds, steps = first_result(side, game, seed, peers_python, cache)
                print(f"{game} {side} seed {seed}: {seconds:.2f} s, {steps} steps", file=sys.stderr)
                results[side]["seconds"].append(round(seconds, 3))
                results[side]["steps"].append(steps)
            yield {"sides": results, "machine": common.machine(TIMING)}


def results_of(stored: dict[str, Any]) -> dict[str, Result]:
    """Return the numbers of a stored file as rows to print."""
    results = {}
    for key, row in stored.get("steps", {}).items():
        name, _, members = key.rpartition("/")  # such as ppo_64/16
        costs = row["microseconds"]
        for side, values in costs.items():
            label, title = f"{name}_{members}_{side}", f"{NAMES[side]}, {CASES[name][0]}"
            interval = f"{min(values):.3g} to {max(values):.3g}"
            results[label] = Result(statistics.median(values), "us", f"{title}; a step of one of {members}, {interval}")
            if side != "ours" and "ours" in costs:
                median, smallest, largest = ratio_interval(values, costs["ours"])
                against = f"{smallest:.3g} to {largest:.3g}: {verdict(smallest, largest)}"
                results[f"{label}_ratio"] = Result(median, "times", f"{NAMES[side]} to this project, {against}")
    for game, contest in stored.get("first_result", {}).items():
        for side, numbers in contest["sides"].items():
            seconds, steps = numbers["seconds"], statistics.median(numbers["steps"])
            interval = f"{min(seconds):.3g} to {max(seconds):.3g}, {steps:,.0f} steps"
            description = f"{FIRST_NAMES[side]}, PPO to {GOALS[game]:g} on {game}; {len(seconds)} seeds, {interval}"
            results[f"first_{game}_{side}"] = Result(statistics.median(seconds), "s", description)
    return results


def tables(stored: dict[str, Any]) -> str:
    """Return the tables of docs/benchmarks.md in Markdown."""
    by_members: dict[str, dict[str, Any]] = {}
    for key, row in stored.get("steps", {}).items():
        name, _, members = key.rpartition("/")
        by_members.setdefault(members, {})[name] = row["microseconds"]
    lines = []
    for members, costs in by_members.items():
        lines += [*_step_table(members, costs), ""]
    if first := stored.get("first_result"):
        lines += [*_first_table(first), ""]
    return "\n".join(lines[:-1])


def _step_table(members: str, costs_by_case: dict[str, dict[str, list[float]]]) -> Iterator[str]:
    """Yield the lines of the table of steps. The costs of a case are by library, one per round."""
    sides = [side for side in NAMES if any(side in costs for costs in costs_by_case.values())]
    agents = "one agent" if members == "1" else f"one of {members} agents"
    yield f"| a step of {agents}, CPU µs | {' | '.join(NAMES[side] for side in sides)} | rejax / this project | |"
    yield f"|---{'|---:' * (len(sides) + 1)}|---|"
    for name, costs in costs_by_case.items():
        cells = [_digits(statistics.median(costs[side])) if side in costs else "" for side in sides]
        median, smallest, largest = ratio_interval(costs["rejax"], costs["ours"])
        ratio = f"{median:.2f} ({smallest:.2f} to {largest:.2f}) | {verdict(smallest, largest)}"
        yield f"| {CASES[name][0]} | {' | '.join(cells)} | {ratio} |"


def _first_table(games: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table of whole commands."""
    yield "| whole command, CPU seconds; environment steps | " + " | ".join(FIRST_NAMES.values()) + " |"
    yield "|---" + "|---:" * len(FIRST_NAMES) + "|"
    for game, contest in games.items():
        cells = []
        for side in FIRST_NAMES:
            cell = ""
            if side in contest["sides"]:
                seconds, steps = contest["sides"][side]["seconds"], contest["sides"][side]["steps"]
                median, smallest, largest = statistics.median(seconds), min(seconds), max(seconds)
                cell = f"{_digits(median)} ({_digits(smallest)} to {_digits(largest)}); {statistics.median(steps):,.0f}"
            cells.append(cell)
        yield f"| PPO to {GOALS[game]:g} on {game} | {' | '.join(cells)} |"


def _digits(value: float) -> str:
    """Return a number with about three digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def check_peers(sides: Sequence[str], python: str) -> str | None:
    """Return the error as one line if ``python`` lacks a library, else None."""
    modules = [module for side in sides for module in MODULES.get(side, ())]
    if not modules:
        return None
    code = f"import importlib.util as u; print(*[m for m in {modules} if u.find_spec(m) is None])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=SCRIPTS)
    except OSError as error:
        return f"--peers_python is {python!r}, which does not run: {error.strerror}"
    missing = done.stdout.split() if done.returncode == 0 else modules
    if not missing:
        return None
    advice = "install the extra jax, name its interpreter by --peers_python, or measure --sides ours"
    return f"{', '.join(missing)} not found by {python!r}; {advice}"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--peers_python", default=sys.executable, help="interpreter that has the extra jax")
    flags.add_argument("--sides", nargs="+", choices=NAMES, default=list(NAMES), help="libraries to measure")
    flags.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="rows of the table")
    flags.add_argument("--members", nargs="+", type=int, default=[1, MANY], help="members of one program")
    flags.add_argument("--first_result", action="store_true", help="whole commands to a return, instead of steps")
    flags.add_argument("--games", nargs="+", choices=GOALS, default=["CartPole-v1"], help="of --first_result")
    flags.add_argument("--core", type=int, help="number of the core; the last one by default")
    flags.add_argument("--out", type=Path, help="JSON file whose measured rows are replaced or added")
    flags.add_argument(
        "--tables", type=Path, metavar="FILE", help="print the tables of such a file and measure nothing"
    )
    return flags.parse_args(argv)


def _work(options: argparse.Namespace, size: Size) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Measure what the flags ask for. Yield section ("steps" or "first_result"), key and content of each entry."""
    if options.first_result:
        for game in options.games:
            sides = [side for side in options.sides if side in ("ours", "sb3") or game in GYMNAX_GAMES]
            if "rejax" in sides:
                sides.insert(sides.index("rejax") + 1, CACHED)
            for part in measure_first(game, sides, size, options.peers_python):
                yield "first_result", game, part
        return
    for name in options.cases:
        for members in options.members:
            sides = [side for side in sides_of(name, members) if side in options.sides]
            yield "steps", f"{name}/{members}", measure(name, members, sides, size, options.peers_python)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    if options.tables:
        print(tables(json.loads(options.tables.read_text())))
        return 0
    if error := check_peers(options.sides, options.peers_python):
        print(f"against_jax.py: {error}", file=sys.stderr)
        return 2
    size = QUICK if options.quick else Size()
    if hasattr(os, "sched_setaffinity"):  # keep this process and those it starts on one core
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0)) if options.core is None else options.core})
    stored = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    measured: dict[str, Any] = {}
    for section, key, entry in _work(options, size):
        measured.setdefault(section, {})[key] = entry
        stored.setdefault(section, {})[key] = entry
        if options.out:  # after every row or seed, so that an interruption loses only the last
            stored["command"] = "python benchmarks/against_jax.py --out FILE; the same with --first_result"
            options.out.write_text(json.dumps(stored, indent=1) + "\n")
        new_results = results_of({section: {key: entry}})
        print("; ".join(f"{name} {result.value:.4g}" for name, result in new_results.items()), file=sys.stderr)
    common.report("Everyday training against JAX", results_of(measured), options.json, TIMING)
    return 0


if __name__ == "__main__":
    sys.exit(main())
