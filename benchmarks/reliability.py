"""How many of 20 runs that are killed at a random moment resume to the curve and the weights of a run that was not.

    python benchmarks/reliability.py
    python benchmarks/reliability.py --python stable_baselines3=/path/to/its/venv/bin/python

Ours and other libraries train on CartPole for some seconds, each as its documentation says checkpoints are written and
resumed from (benchmarks/peers/). A kill falls anywhere between the start of training and its end. What counts: the
resumed run came to its end; its episodes are those of the uninterrupted run, step by step; so are its weights, to the
bit. A run that was killed before its first checkpoint starts anew, which gives the same numbers in all libraries here.
"""

import os
import random
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
    """A script of ``peers/``, the module it needs, what pip calls that, the algorithm and its environment steps."""

    script: str
    module: str
    package: str
    algorithm: str
    steps: int

    @property
    def name(self) -> str:
        return f"{self.script.rstrip('_')}_{self.algorithm.lower()}"


CONTENDERS = [
    Peer("ours", "torch", "", "DDQN", 3000),
    Peer("ours", "torch", "", "AAC", 8000),
    Peer("sb3", "stable_baselines3", "stable-baselines3", "PPO", 4096),
    Peer("sb3", "stable_baselines3", "stable-baselines3", "DQN", 4000),
    Peer("torchrl_", "torchrl", "torchrl", "DQN", 2000),
    Peer("agilerl_", "agilerl.algorithms", "agilerl", "DQN", 2000),
]


class Run:
    """One process of a contender in ``folder``."""

    def __init__(self, peer: Peer, python: str, folder: Path, steps: int):
        self.folder = folder
        before = self.lines()
        with open(folder / "output", "a") as output:
            self.process = subprocess.Popen(
                [python, str(PEERS / f"{peer.script}.py"), str(folder), peer.algorithm, str(steps)],
                stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        while self.lines() == before and self.process.poll() is None:
            time.sleep(0.01)
        self.begun = time.monotonic()

    def lines(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    def end(self) -> tuple[float, bool]:
        """Seconds of training, and whether it came to its end."""
        try:
            status = self.process.wait(600)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        return time.monotonic() - self.begun, status == 0

    def found(self) -> tuple[str, str]:
        return (self.folder / "curve.csv").read_text(), (self.folder / "weights").read_text()


def tried(peer: Peer, python: str, kills: int, steps: int) -> dict[str, Result]:
    """Kills of one contender; nothing where two uninterrupted runs of it differ, or it does not run."""
    counts = dict.fromkeys(("ended", "same_curve", "same_weights", "started_anew", "unreadable"), 0)
    draws, done = random.Random(peer.name), 0
    with tempfile.TemporaryDirectory(prefix="reliability-") as place:
        wholes = []
        for name in ("first", "second"):
            (folder := Path(place, name)).mkdir()
            seconds, ended = (run := Run(peer, python, folder, steps)).end()
            if not ended:
                print(f"{peer.name}: does not run\n{(folder / 'output').read_text()[-2000:]}", file=sys.stderr)
                return {}
            wholes.append(run.found())
        if wholes[0] != wholes[1]:
            print(f"{peer.name}: two uninterrupted runs of one seed differ", file=sys.stderr)
            return {}
        while done < kills:
            (folder := Path(place, f"kill_{done}")).mkdir(exist_ok=True)
            run = Run(peer, python, folder, steps)
            time.sleep(draws.uniform(0, seconds))
            run.process.send_signal(signal.SIGKILL)
            if run.end()[1]:  # it was faster
                folder.rename(folder.with_name(f"late_{time.monotonic_ns()}"))
                continue
            done, run = done + 1, Run(peer, python, folder, steps)
            said = run.lines()
            ended = run.end()[1]
            counts["ended"] += ended
            counts["started_anew"] += said[-1] == "begun"
            counts["unreadable"] += any("unreadable" in line for line in said)
            curve, weights = run.found() if ended else ("", "")
            counts["same_curve"] += curve == wholes[0][0]
            counts["same_weights"] += weights == wholes[0][1]
            print(f"{peer.name}: {done} of {kills}: {said[-1]}  {counts}", file=sys.stderr, flush=True)
    against = f"of {kills} kills, {steps} steps of CartPole"
    return {f"{peer.name}_{name}": Result(float(count), "runs", against) for name, count in counts.items()}


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--kills", type=int, default=20)
    flags.add_argument("--only", nargs="*", default=[], help="names such as sb3_ppo")
    flags.add_argument("--python", nargs="*", default=[], metavar="MODULE=PATH", help="interpreters of other libraries")
    asked = flags.parse_args()
    pythons = dict(each.split("=", 1) for each in asked.python)
    results: dict[str, Result] = {}
    for peer in CONTENDERS:
        if asked.only and peer.name not in asked.only:
            continue
        python = pythons.get(peer.module.split(".")[0], sys.executable)
        code = (
            f"import {peer.module}; from importlib.metadata import version; print(version('{peer.package or 'torch'}'))"
        )
        here = subprocess.run([python, "-c", code], capture_output=True, text=True)
        if here.returncode:
            print(f"{peer.name} is left out: pip install {peer.package} 'gymnasium[classic-control]'", file=sys.stderr)
            continue
        print(f"{peer.name}: {peer.package or 'with torch'} {here.stdout.strip()}", file=sys.stderr)
        results |= tried(
            peer, python, 1 if asked.quick else asked.kills, peer.steps // 8 if asked.quick else peer.steps
        )
    report("Killed and resumed", results, asked.json, "counts, no times")


if __name__ == "__main__":
    main()
