"""Speed of a population's training without a look at the device: steps a second by members, against machine code.

    python benchmarks/gpu.py [--json] [--quick] [--world bandit]

Agents learn on synthetic CartPoles, each on its own. On a GPU where there is one, with 64 to 16,384 members, step by
step and as a captured graph; on the CPU else, with few. Beside it the same members train on this processor in machine
code, where Numba is installed, up to 256 of them: the cost of a member there does not depend on how many there are. Its
random numbers are others. All figures are of wall time, for work on the device takes none of this process.
"""

import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import common  # first: one thread, and the project on the path
import torch
from common import Result, interleave

from control.cli import parse
from control.evolution.inner_loop import InnerLoop
from control.loops.device import LOOK, DeviceLoop
from control.loops.steps import StepLoop
from models.hashed import CPU, streams_on
from models.proxies.search import HAS_NUMBA
from models.streams import Streams

WORLDS = {"mdp": "SE --gamename cartpole", "bandit": "SE --gamename cartpole --proxy bandit"}
ON_CPU = 256  # members at most in machine code


@dataclass(frozen=True)
class Size:
    """Numbers of members; steps of each before a round and in it; rounds."""

    company: tuple[int, ...]
    before: int = 320
    steps: int = 320
    rounds: int = 5


GPU = Size((64, 256, 1024, 4096, 16_384))
HERE, QUICK = Size((16, 64), 64, 64, 3), Size((2,), LOOK, LOOK, 1)


class Training:
    """Members in the middle of a training on random proxies: ``graph``, ``device`` or ``machine code``."""

    def __init__(self, world: str, members: int, way: str, device: torch.device, size: Size):
        settings = parse.parse(["--implementation", *WORLDS[world].split(), "--vary_hp", "false"])
        at = CPU if way == "machine code" else device
        inner = InnerLoop(settings.proxy, settings.run.agent, settings.agent, settings.run.gamename, device=at)
        seeds = list(range(members))
        loop: StepLoop = inner.begin(inner.stages.parameters.initial(Streams(seeds)), seeds)
        if way != "machine code":
            streams = streams_on(device, seeds, "episodes")
            loop = DeviceLoop(loop.agent, loop.environment, streams, way == "graph")  # type: ignore[arg-type]
        self.loop, self.members, self.device = loop, members, at
        self.advance = inner.compiled.Advance() if way == "machine code" and inner.compiled else None
        # The whole training's length, for the replay buffer.
        self.ticks = [-(-steps // loop.agent.envs) for steps in (size.before, size.steps)]
        loop.agent.budget = (self.ticks[0] + (size.rounds + 1) * self.ticks[1]) * loop.agent.envs
        self._make(self.ticks[0])

    def _make(self, ticks: int) -> None:
        running = torch.ones(self.members, dtype=torch.bool)
        list((self.advance or type(self.loop).advance)(self.loop, ticks, running, False))
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def rate(self) -> float:
        """Steps of all members a second."""
        start = time.perf_counter()
        self._make(self.ticks[1])
        return self.members * self.ticks[1] * self.loop.agent.envs / (time.perf_counter() - start)


def measured(world: str, size: Size, device: torch.device) -> dict[str, Result]:
    results = {}
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    for members in size.company:
        ways = ["device"] + ["graph"] * (device.type == "cuda") + ["machine code"] * (HAS_NUMBA and members <= ON_CPU)
        contenders: dict[str, Callable[[], float]] = {
            way: Training(world, members, way, device, size).rate for way in ways
        }
        for way, rates in interleave(contenders, size.rounds).items():
            what = f"{members} members, {where if way != 'machine code' else 'CPU, one thread'}"
            name = f"{world}_{members}_{way.replace(' ', '_')}"
            results[name] = Result(statistics.median(rates), "steps/s", what)
    return results


def main() -> None:
    parser = common.parser(__doc__.splitlines()[0])
    parser.add_argument("--world", choices=list(WORLDS), help="one of them; else all")
    options = parser.parse_args()
    device = torch.device("cuda") if torch.cuda.is_available() else CPU
    size = QUICK if options.quick else GPU if device.type == "cuda" else HERE
    torch.set_num_threads(1)
    results: dict[str, Result] = {}
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the results alone
        for world in [options.world] if options.world else WORLDS:
            results |= measured(world, size, device)
    common.report(f"Populations on {device.type}", results, options.json)


if __name__ == "__main__":
    main()
