"""Speed and memory of model-based generalisation on ProcMaze: training, updates, matrix products, a plain loop.

    python benchmarks/model_generalisation.py [--json] [--quick] [--agents ER ...] [--seeds 1 30] [--threads 1 2]

Rates are by wall-clock time, like the original's rates, so nothing else should run on the machine. A second rate is by
CPU time of all threads: if the two differ at one thread, other jobs took time. Contenders take turns. Names end with
the number of threads, then `medium` if matrix products may use bfloat16.
"""

import contextlib
import dataclasses
import math
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

os.environ["MKL_CBWR"] = "AUTO"  # as trainer.py sets it

import common  # first: one thread, and the project on the path
import torch
from common import Block, Result, TorchSetup, bf16_units, interleave, median_ratio, products
from plain.model_generalisation import ORIGINAL, ORIGINAL_CURVE, ORIGINAL_MEMORY, plain_agents, update_gflop

from control.cli.settings import RunConfig, Settings, from_dict
from control.loops.build import build_loop
from control.loops.process import configure_process
from control.loops.steps import StepGroups
from models.agents.model_generalisation.config import IMPLEMENTATIONS
from models.agents.model_generalisation.values import compile_function
from models.settings import SettingError

CURVE = 24_000  # steps of the learning curve whose time is extrapolated from `FIXTURE`, a small run
FIXTURE: dict[str, Any] = {
    "implementation": "PerfectModel",
    "gamename": "procmaze,grid_size=3",
    "seed": 0,
    "num_seeds": 10,
    "hidden_sizes": (64, 64),
    "batch_size": 8,
    "rollout_length": 10,
    "buffer_size": 20_000,
    "target_update_frequency": 50,
    "lr": 1e-3,
    "softmax_temp": 0.4,
}
COMPILED = ("ER", "PerfectModel")  # measured with the setting `compile` too, at the first number of threads


@dataclass(frozen=True)
class Size:
    """Amount of work. `common.interleave` repeats rounds."""

    block: float = 0.4  # about how many seconds a contender runs in a round
    rounds: int = 5
    seeds: tuple[int, ...] = (1, 30)
    threads: tuple[int, ...] = (1, 2)
    rows: int = 20_000  # transitions in the full replay buffer
    wait: int = 500  # steps before the first update; they are copied until the replay buffer is full
    square: int = 1024  # side of the matrices that measure the machine
    fixture: int = 1000  # steps of the small fixture between two evaluations
    fixture_rounds: int = 3
    compiled: bool = True  # also with the setting `compile`, which is slow to start
    changes: dict[str, Any] = field(default_factory=dict)  # to shipped settings
    latent: dict[str, Any] = field(default_factory=dict)  # to settings of latent models


QUICK = Size(
    block=0.002,
    rounds=1,
    seeds=(1, 3),
    threads=(1,),
    rows=20,
    wait=10,
    square=32,
    fixture=20,
    fixture_rounds=1,
    compiled=False,
    changes={"hidden_sizes": (8,), "batch_size": 4},
    latent={"num_features": 4, "feature_width": 4},
)


# -- agents at work ---------------------------------------------------------------------------------------------------


def loop_of(settings: Settings) -> StepGroups:
    """Return the training loop of these ``settings``, with its narrower type."""
    loop = build_loop(settings)
    assert isinstance(loop, StepGroups)
    return loop


def group_of(name: str, seeds: int, size: Size, **changes: Any) -> Any:
    """Return the training loop of ``seeds`` seeds of an agent on mazes of 4 x 4, past the first steps. The replay
    buffers are full of copies of a few transitions. ``changes`` are further settings."""
    latent = size.latent if IMPLEMENTATIONS[name].get("model") == "latent" else {}
    buffer_settings = {"buffer_size": size.rows, "training_start_time": size.wait, "steps_per_epoch": size.wait}
    values = {"implementation": name, "gamename": "procmaze", "seed": 0, "num_seeds": seeds}
    group = loop_of(from_dict(values | buffer_settings | size.changes | latent | changes)).groups[0]
    group.epoch(size.wait)
    replay_buffer: Any = group.agent.replay_buffer
    index = torch.arange(size.rows) % replay_buffer.size
    copies = {name: column[index] for name, column in replay_buffer.rows().items()}
    replay_buffer.load_state_dict({"rows": copies, "position": 0})
    return group


@torch.no_grad()
def updates(agent: Any, count: int) -> None:
    """Make ``count`` updates of all members, without an environment."""
    for _ in range(count):
        agent.numbers = agent.noise.next()
        agent.update(agent.random_numbers_of_update(0))


def rates(name: str, groups: dict[str, Any], size: Size, setups: list[TorchSetup]) -> dict[str, Result]:
    """Measure training of one agent in each setup and with each number of seeds, and the cost of a seed among many.

    ``groups`` are training loops (`group_of`) by label. Compiled groups train in the first setup only, because every
    setup would need another compilation.
    """
    contenders, num_seeds = {}, {}
    for label, group in groups.items():
        for setup in setups[:1] if group.agent.config.compile else setups:
            key = f"{label}_{setup.name}"
            contenders[key] = setup.contender(group.epoch, group.agent.members, size.block)
            num_seeds[key] = group.agent.members
    blocks = interleave(contenders, size.rounds)
    results: dict[str, Result] = {}
    for key in contenders:
        results |= rate_rows(key, name, num_seeds[key], blocks[key])
    fewest, most = min(size.seeds), max(size.seeds)
    if fewest < most:
        for setup in setups:
            fewest_times = [1 / block.rate for block in blocks[f"{name}_{fewest}_{setup.name}"]]
            most_times = [1 / block.rate for block in blocks[f"{name}_{most}_{setup.name}"]]
            ratio, against = median_ratio(most_times, fewest_times), f"a step of one seed of {fewest}, wall"
            results[f"{name}_{most}_{setup.name}_seed_cost"] = Result(ratio, "times", against, ("<=", 1))
    return results


def rate_rows(key: str, name: str, seeds: int, blocks: list[Block]) -> dict[str, Result]:
    """Return the rows of a contender: the steps per second of all ``seeds`` together, also relative to the public
    code of the paper (`ORIGINAL`) with the nearest number of seeds. ``blocks`` are its times, one per round."""
    rate, original_rates = statistics.median(block.rate for block in blocks), ORIGINAL[name]
    original_seeds = min(original_rates, key=lambda count: abs(count - seeds))
    steps = f"{blocks[0].steps // seeds} step{'s' * (blocks[0].steps > seeds)}"
    description = f"{seeds} seed{'s' * (seeds > 1)}, median of {len(blocks)} blocks of {steps}, wall"
    cpu_rate = sum(block.steps for block in blocks) / sum(block.cpu for block in blocks)
    plural = "s" * (original_seeds > 1)
    original = f"the original's {original_rates[original_seeds]:g} with {original_seeds} seed{plural} on two cores"
    return {
        key: Result(rate, "seed-steps/s", description),
        f"{key}_best": Result(max(block.rate for block in blocks), "seed-steps/s", "the best of these blocks"),
        f"{key}_cpu": Result(cpu_rate, "seed-steps/s", "by CPU time, all threads and blocks"),
        f"{key}_original": Result(rate / original_rates[original_seeds], "times", original),
    }


# -- share of the machine's rate --------------------------------------------------------------------------------------


def shares(name: str, agent: Any, size: Size, machine: dict[str, Result]) -> dict[str, Result]:
    """Measure the share of the machine's rate that one agent's updates reach, without acting and environment.
    ``machine`` are the rows of `products`, the rates of plain matrix products."""
    gflop = update_gflop(agent)
    contenders = {}
    for threads in size.threads:
        contenders[f"{threads}t"] = TorchSetup(threads).contender(partial(updates, agent), agent.members, size.block)
    results = {f"{name}_update_work": Result(gflop, "GFLOP", "products of an update of one seed, from the shapes")}
    for setup_name, blocks in interleave(contenders, size.rounds).items():
        rate = max(block.rate for block in blocks)
        limit, key = machine[f"products_layer_{setup_name}"].value, f"{name}_update_{setup_name}"
        results[key] = Result(rate, "seed-updates/s", f"{agent.members} seeds, best block, wall")
        results[f"{key}_share"] = Result(100 * rate * gflop / limit, "%", f"products_layer_{setup_name}")
    return results


# -- the plain loop, the small fixture, memory ------------------------------------------------------------------------


def against_plain(agent: Any, size: Size) -> dict[str, Result]:
    """Compare our updates of experience replay with a loop over plain agents."""
    agents = plain_agents(agent)

    def loop(count: int) -> None:
        for _ in range(count):
            for plain_agent in agents:
                plain_agent.step()

    contenders = {}
    for threads in size.threads:
        setup = TorchSetup(threads)
        contenders[f"ours_{threads}t"] = setup.contender(partial(updates, agent), agent.members, size.block)
        contenders[f"plain_{threads}t"] = setup.contender(loop, agent.members, size.block)
    blocks = interleave(contenders, size.rounds)
    results: dict[str, Result] = {}
    for threads in size.threads:
        project_rates = [block.rate for block in blocks[f"ours_{threads}t"]]
        plain_rates = [block.rate for block in blocks[f"plain_{threads}t"]]
        description = f"ER, a loop over {len(agents)} networks, nn.Module and torch.optim.AdamW"
        results[f"plain_{threads}t"] = Result(statistics.median(plain_rates), "seed-updates/s", description)
        ratio = median_ratio(project_rates, plain_rates)
        results[f"plain_{threads}t_speedup"] = Result(ratio, "times", "the plain loop, by ours")
    return results


def fixture(size: Size, fused: bool = False) -> dict[str, Result]:
    """Measure a small run with a perfect model, evaluations included; ``fused``: with the setting `compile`. Every
    measured step has an update, so the extrapolated curve counts its first steps too high."""
    pace = {"steps_per_epoch": size.fixture, "training_start_time": size.fixture}
    loop = loop_of(from_dict(FIXTURE | pace | {"compile": fused}))
    loop.epoch()

    def epochs(count: int) -> None:
        for _ in range(count):
            loop.epoch()
            loop.measure()

    counts = size.threads[:1] if fused else size.threads
    prefix = "fixture_compiled_" if fused else "fixture_"
    contenders = {}
    for threads in counts:
        contenders[f"{prefix}{threads}t"] = partial(TorchSetup(threads).time_block, epochs, loop.steps, 1)
    results: dict[str, Result] = {}
    for key, blocks in interleave(contenders, size.fixture_rounds).items():
        cpu = statistics.median(1000 * block.cpu / block.steps for block in blocks)
        wall = statistics.median(1000 * block.wall / block.steps for block in blocks)
        curve = cpu * CURVE / 1000
        description = f"{FIXTURE['num_seeds']} seeds on mazes of 3 x 3, 2 layers of 64"
        original = f"the original's {ORIGINAL_CURVE:g} CPU s for {CURVE:,} steps"
        results |= {
            key: Result(cpu, "CPU s", f"1,000 steps and their evaluation, {description}"),
            f"{key}_wall": Result(wall, "s", "the same, wall"),
            f"{key}_curve": Result(curve, "CPU s", f"{CURVE:,} such steps, extrapolated"),
            f"{key}_original": Result(curve / ORIGINAL_CURVE, "times", original),
        }
    return results


def memory(seeds: int = 30, rows: int = 100_000) -> dict[str, Result]:
    """Return the memory of replay buffers at the default settings, of experience replay (observations of 64 bits) and
    of the perfect model (states): as computed from their columns, and as allocated."""
    results = {}
    for name in ("ER", "PerfectModel"):
        values = {"implementation": name, "gamename": "procmaze", "seed": 0, "num_seeds": seeds, "buffer_size": rows}
        settings = from_dict(values)
        group: Any = loop_of(settings).groups[0]
        replay_buffer = group.agent.replay_buffer
        row_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in replay_buffer.columns.values())
        computed = seeds * rows * row_bytes
        allocated_bytes = sum(table.nbytes for table in replay_buffer._tables.values())
        key, description = f"{name}_memory", f"{seeds} seeds, {rows:,} rows"
        results[key] = Result(computed / 1e9, "GB", f"from element sizes, {description}")
        results[f"{key}_asked"] = Result(allocated_bytes / 1e9, "GB", "bytes of its tables")
        original = f"the growth of the original, {ORIGINAL_MEMORY} GB"
        results[f"{key}_original"] = Result(allocated_bytes / 1e9 / ORIGINAL_MEMORY, "times", original)
    return results


def can_compile() -> bool:
    """Return whether there is a compiler; print a line if not."""
    try:
        compile_function(abs, torch.device("cpu"))
    except SettingError as error:
        print(f"{error}; the rows of compile are left out")
        return False
    return True


def measure_agents(agents: list[str], size: Size) -> dict[str, Result]:
    """Make all measurements of these ``agents``, names of implementations."""
    units = bf16_units()
    units_text = ", ".join(units) if units else "no bf16 units, so nothing is measured at medium"
    results = {"bf16_units": Result(float(len(units)), "kinds", units_text)}
    machine = products(size.square, max(size.seeds), size.threads, size.block / 3, size.rounds)
    results |= machine
    fused = size.compiled and can_compile()
    precisions = ("highest", "medium") if units else ("highest",)
    setups = [TorchSetup(threads, precision) for precision in precisions for threads in size.threads]
    for name in agents:
        print(f"{name} ...", flush=True)
        max_seeds = max(size.seeds)
        groups = {f"{name}_{seeds}": group_of(name, seeds, size) for seeds in size.seeds}
        agent = groups[f"{name}_{max_seeds}"].agent
        if fused and name in COMPILED:
            groups[f"{name}_{max_seeds}_compiled"] = group_of(name, max_seeds, size, compile=True)
        results |= rates(name, groups, size, setups) | shares(name, agent, size, machine)
        if name == "ER":
            results |= against_plain(agent, size)
        if name == "PerfectModel":
            results |= fixture(size) | (fixture(size, fused=True) if fused else {})
    return results | memory()


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    names = list(IMPLEMENTATIONS)
    flags.add_argument("--agents", nargs="+", choices=names, default=names, metavar="AGENT", help=", ".join(names))
    flags.add_argument("--seeds", nargs="+", type=int, help="seeds in one program; 1 30 unless --quick")
    flags.add_argument("--threads", nargs="+", type=int, help="threads of a tensor operation; 1 2 unless --quick")
    options = flags.parse_args()
    size = QUICK if options.quick else Size()
    seeds, threads = tuple(options.seeds or size.seeds), tuple(options.threads or size.threads)
    size = dataclasses.replace(size, seeds=seeds, threads=threads)
    configure_process(RunConfig())
    load, start, cpu = os.getloadavg()[0], time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the results alone
        results = measure_agents(options.agents, size)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    timing = (
        f"load {load:.1f} at the start; {' or '.join(map(str, threads))} threads, as in each name; "
        "wall time unless CPU is said; "
        f"the whole took {wall:.0f} s, {cpu:.0f} s of CPU time"
    )
    common.report("Model-based generalisation on ProcMaze", results, options.json, timing)


if __name__ == "__main__":
    main()
