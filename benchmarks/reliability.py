"""How many of 20 runs that are killed at a random moment resume to the curve and the weights of a run that was not.

    python benchmarks/reliability.py
    python benchmarks/reliability.py --python stable_baselines3=/path/to/its/venv/bin/python

Our trainer and other libraries train on CartPole for some seconds, with checkpoints as their documentation recommends
(benchmarks/peers/). The kill is at a random environment step. The results are counts of resumed runs that finish, that
have the same episodes as the uninterrupted run, and that have bitwise equal weights. A run that was killed before its
first checkpoint starts anew.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from common import Result, parser, report

PEERS = Path(__file__).resolve().parent / "peers"


@dataclass(frozen=True)
class Peer:
    """A library and an algorithm to kill and resume."""

    script: str  # in ``peers/``
    module: str  # that the script needs
    package: str  # of the module on PyPI
    algorithm: str
    steps: int  # environment steps of the training

    @property
    def name(self) -> str:
        """Name such as ``sb3_ppo``."""
        return f"{self.script.rstrip('_')}_{self.algorithm.lower()}"


CONTENDERS = [
    Peer("ours", "torch", "", "DDQN", 1500),
    Peer("ours", "torch", "", "AAC", 4000),
    Peer("sb3", "stable_baselines3", "stable-baselines3", "PPO", 2048),
    Peer("sb3", "stable_baselines3", "stable-baselines3", "DQN", 2000),
    Peer("torchrl_", "torchrl", "torchrl", "DQN", 1000),
    Peer("agilerl_", "agilerl.algorithms", "agilerl", "DQN", 1000),
]


class Contender:
    """A running script of a peer, which starts a process for each training (`peers/recorded.py`)."""

    def __init__(self, peer: Peer, python: str, steps: int):
        self.peer, self.steps = peer, steps
        self.script = subprocess.Popen(
            [python, str(PEERS / f"{peer.script}.py")],
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def start(self, folder: Path) -> int:
        """Start or resume training in ``folder``. Return the process id after training has begun or ended."""
        assert self.script.stdin and self.script.stdout
        self.folder, previous_log = folder, lines_of(folder / "log")
        print(folder, self.peer.algorithm, self.steps, file=self.script.stdin, flush=True)
        pid = int(self.script.stdout.readline())
        while lines_of(folder / "log") == previous_log and Path(f"/proc/{pid}/fd").exists():
            time.sleep(0.01)
        return pid

    def wait_for_step(self, pid: int, step: int) -> None:
        """Wait until training has reached environment step ``step``, or has ended."""
        while Path(f"/proc/{pid}/fd").exists():
            logged_steps = [line.split(",")[0] for line in lines_of(self.folder / "curve.csv")[-1:]]
            for path in self.folder.glob("cartpole/*/*/*/version_*/metrics.csv"):  # ours: epoch,env_steps,...
                logged_steps += [line.split(",")[1] for line in lines_of(path)[-1:]]
            if any(logged_step.isdecimal() and int(logged_step) >= step for logged_step in logged_steps):
                return
            time.sleep(0.02)

    def wait_for_end(self) -> bool:
        """Wait for the end of the process, and return whether its exit status is 0."""
        assert self.script.stdout
        return self.script.stdout.readline().strip() == "0"

    def read_results(self) -> tuple[str, str]:
        """Return the curve, and a digest of the weights, of a training that has ended."""
        return (self.folder / "curve.csv").read_text(), (self.folder / "weights").read_text()


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file. Empty if it does not exist."""
    return path.read_text().splitlines() if path.exists() else []


def kill_and_resume(peer: Peer, python: str, kills: int, steps: int) -> dict[str, Result]:
    """Kill and resume one contender ``kills`` times. Return the counts; ``{}`` if uninterrupted runs differ or fail."""
    counts = dict.fromkeys(("ended", "same_curve", "same_weights", "started_anew", "unreadable"), 0)
    generator, done, contender = random.Random(peer.name), 0, Contender(peer, python, steps)
    with tempfile.TemporaryDirectory(prefix="reliability-") as parent:
        uninterrupted = []  # curve and weights of two runs
        for name in ("first", "second"):
            folder = Path(parent, name)
            folder.mkdir()
            contender.start(folder)
            if not contender.wait_for_end():
                tail = "\n".join(lines_of(folder / "output")[-20:])
                print(f"{peer.name}: does not run\n{tail}", file=sys.stderr)
                return {}
            uninterrupted.append(contender.read_results())
        for first_result, second_result, kind in zip(*uninterrupted, ("curves", "weights"), strict=True):
            if first_result != second_result:
                print(f"{peer.name}: {kind} of two uninterrupted runs of one seed differ", file=sys.stderr)
                return {}
        folder = Path(parent, "killed")
        while done < kills:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            pid = contender.start(folder)
            contender.wait_for_step(pid, generator.randrange(steps))
            time.sleep(generator.uniform(0, 0.1))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            if contender.wait_for_end():  # it finished before the kill
                continue
            done += 1
            contender.start(folder)
            finished = contender.wait_for_end()
            log_lines = lines_of(folder / "log")[1:]
            curve, weights = contender.read_results() if finished else ("", "")
            counts["ended"] += finished
            counts["same_curve"] += curve == uninterrupted[0][0]
            counts["same_weights"] += weights == uninterrupted[0][1]
            counts["started_anew"] += log_lines[-1] == "begun"
            counts["unreadable"] += any("unreadable" in line for line in log_lines)
            print(f"{peer.name}: {done} of {kills}: {log_lines[-1]}  {counts}", file=sys.stderr, flush=True)
    against = f"of {kills} kills, {steps} steps of CartPole"
    return {f"{peer.name}_{name}": Result(float(count), "runs", against) for name, count in counts.items()}


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--kills", type=int, default=20)
    flags.add_argument("--only", nargs="*", default=[], help="names such as sb3_ppo")
    flags.add_argument("--python", nargs="*", default=[], metavar="MODULE=PATH", help="interpreters of other libraries")
    options = flags.parse_args()
    pythons = dict(assignment.split("=", 1) for assignment in options.python)
    results: dict[str, Result] = {}
    for peer in CONTENDERS:
        if options.only and peer.name not in options.only:
            continue
        python = pythons.get(peer.module.split(".")[0], sys.executable)
        package = peer.package or "torch"
        code = f"import {peer.module}; from importlib.metadata import version; print(version('{package}'))"
        # `env` exits with status 127 if there is no such interpreter.
        version_check = subprocess.run(["env", python, "-c", code], capture_output=True, text=True)
        if version_check.returncode:
            print(f"{peer.name} is left out: pip install {peer.package} 'gymnasium[classic-control]'", file=sys.stderr)
            continue
        print(f"{peer.name}: {peer.package or 'with torch'} {version_check.stdout.strip()}", file=sys.stderr)
        kills, steps = (1, peer.steps // 8) if options.quick else (options.kills, peer.steps)
        results |= kill_and_resume(peer, python, kills, steps)
    if results:
        report("Killed and resumed", results, options.json, "1 thread; counts, no times")


if __name__ == "__main__":
    main()
