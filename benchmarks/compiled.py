"""Speed of inner loops in machine code: against torch and plain loops, by size, by members, by threads.

    python benchmarks/compiled.py [--json] [--quick]

Seconds are CPU time of one thread of this process, in the middle of trainings. The comparison of threads uses
wall-clock time, which other jobs disturb. Contenders take turns in one run. Compilation is not measured.
"""

import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import common  # first: one thread, and the project on the path
import evolution
from common import Result, cpu_seconds, interleave, median_ratio

from control.cli import parse
from control.evolution.inner_loop import InnerLoop, train
from control.loops import compiled
from models.streams import Streams

CASES = {
    "cartpole_reward": ("RN --gamename cartpole-200 --mode 1", "DDQN 4-64-2, batch 32", None),
    "cartpole_mdp": ("SE --gamename cartpole", "DDQN 4-64-2, batch 32", 3.5),
    "cartpole_mdp_paper": ("SE --gamename cartpole --preset paper", "DDQN 4-57-2, batch 199, tanh", 4.0),
    "cartpole_bandit": ("SE --gamename cartpole --proxy bandit", "DDQN 4-64-2, batch 32, 10 environments", None),
    "cliff_reward": ("RN --gamename cliff --agent QLearning --mode 2", "Q-learning, 48 cells", None),
    "car_reward": (
        "RN --gamename mountaincar-continuous --action_repeat 2 --agent TD3 --mode 2",
        "TD3 2-64-1, two updates of batch 128",
        None,
    ),
}
THREADED = ("cartpole_mdp", "cartpole_mdp_paper")
FLAT = "cartpole_mdp"  # for the cost per member by number of members
PLAIN = {"recipe": 100.0, "paper": 40.0}  # the plain loop's presets


@dataclass(frozen=True)
class Size:
    """Amount of work: members, their steps before measuring and per round; plain agents and their steps per round;
    rounds; numbers of members (``company``); steps per round in the comparison of threads (``shared``).

    Threads sample random numbers ahead within a round only, so their rounds are longer.
    """

    members: int = 48
    warmup_steps: int = 700
    steps: int = 300
    agents: int = 3
    plain: int = 100
    rounds: int = 5
    company: tuple[int, ...] = (1, 16, 64, 256, 1024)
    shared: int = 1500


QUICK = Size(2, 8, 8, 1, 2, 1, (1, 2), 8)


class Training:
    """Members in the middle of a training on random proxies."""

    def __init__(
        self,
        argv: str,
        members: int,
        size: Size,
        fast: bool,
        threads: int = 1,
        config: Any = None,
        seeds: list[int] | None = None,
    ):
        settings = parse.parse(["--implementation", *argv.split()])
        agent = config or dataclasses.replace(
            settings.agent, **({"vary_hp": False} if hasattr(settings.agent, "vary_hp") else {})
        )
        loop = InnerLoop(settings.proxy, settings.run.agent, agent, settings.run.gamename)
        seeds = seeds or list(range(members))
        self.loop = loop.begin(loop.factory.parameters.initial(Streams(seeds)), seeds)
        self.members = members
        self.loop.machine_code = compiled.CompiledLoop(threads) if fast else None
        self.cost(size.warmup_steps)

    def cost(self, steps: int, seconds_of: Callable[[Callable[[], object]], float] = cpu_seconds) -> float:
        """Train for ``steps`` and return the microseconds per step of a member, as measured by ``seconds_of``."""
        ticks = -(-steps // self.loop.agent.envs)
        seconds = seconds_of(lambda: train(self.loop, ticks))
        return 1e6 * seconds / (ticks * self.loop.agent.envs * self.members)


def against_torch(size: Size) -> dict[str, Result]:
    results = {}
    for name, (argv, description, target) in CASES.items():
        ways = {way: Training(argv, size.members, size, way == "fast") for way in ("fast", "torch")}
        costs = interleave({way: partial(training.cost, size.steps) for way, training in ways.items()}, size.rounds)
        times = median_ratio(costs["torch"], costs["fast"])
        results[name] = Result(
            statistics.median(costs["fast"]), "us", f"a step of one of {size.members}; {description}"
        )
        limit = None if target is None else (">=", target)
        results[f"{name}_speedup"] = Result(times, "times", "the same in torch", limit)
    return results


def drawing() -> InnerLoop:
    """Return an inner loop with members that sample batch size, width and depth. Each shape is a separate program."""
    settings = parse.parse(["--implementation", *CASES[FLAT][0].split(), "--vary_hp"])
    agent = dataclasses.replace(settings.agent, vary_hp=True, vary=type(settings.agent)().vary)
    return InnerLoop(settings.proxy, settings.run.agent, agent, settings.run.gamename)


def drawn_shapes(size: Size) -> dict[str, Result]:
    loop, ways, argv = drawing(), {}, CASES[FLAT][0]
    agent = loop.agent_config
    groups = loop.agent_class.groups(agent, list(range(size.members)))
    for way in ("fast", "torch"):
        trainings = [Training(argv, len(group), size, way == "fast", config=agent, seeds=group) for group in groups]
        ways[way] = partial(_all_of, trainings, size.steps)
    costs = interleave(ways, size.rounds)
    description = f"a step of one of {size.members} of {len(groups)} shapes; DDQN, {', '.join(agent.vary)} drawn"
    return {
        "drawn_shapes": Result(statistics.median(costs["fast"]), "us", description),
        "drawn_shapes_speedup": Result(median_ratio(costs["torch"], costs["fast"]), "times", "the same in torch"),
    }


def _all_of(trainings: list[Training], steps: int) -> float:
    return sum(training.cost(steps) * training.members for training in trainings) / sum(
        training.members for training in trainings
    )


def against_plain_loops(size: Size) -> dict[str, Result]:
    results = {}
    for preset, target in PLAIN.items():
        training = Training(CASES["cartpole_mdp" + "_paper" * (preset == "paper")][0], size.members, size, True)
        program = evolution.Ours(evolution.inner(preset), size.members)
        plain_side = evolution.Theirs(preset, program, size.agents).begin(size.warmup_steps)
        contenders = {"ours": partial(training.cost, size.steps), "plain": partial(plain_side.rate, size.plain)}
        costs = interleave(contenders, size.rounds)
        times = median_ratio([1e6 / rate for rate in costs["plain"]], costs["ours"])
        results[f"{preset}_plain_speedup"] = Result(times, "times", "the plain loop, one agent", (">=", target))
    return results


def by_members(size: Size) -> dict[str, Result]:
    argv, description, _ = CASES[FLAT]
    trainings = {f"{count}": Training(argv, count, size, True) for count in size.company}
    costs = interleave({name: partial(training.cost, size.steps) for name, training in trainings.items()}, size.rounds)
    return {
        f"{FLAT}_{name}_members": Result(statistics.median(values), "us", f"a step of one of them; {description}")
        for name, values in costs.items()
    }


def clock_seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def two_threads(size: Size) -> dict[str, Result]:
    varied_loop, counts = drawing(), (1, 2)
    ways = {
        f"drawn_shapes_{count}": partial(clock_seconds, partial(_full_training, varied_loop, count, size))
        for count in counts
    }
    for name in THREADED:
        for count in counts:
            training = Training(CASES[name][0], size.members, size, True, count)
            ways[f"{name}_{count}"] = partial(training.cost, size.shared, clock_seconds)
    costs, load = interleave(ways, 4 * size.rounds), os.getloadavg()[0]  # to judge the disturbance by other jobs
    results = {}
    for name in (*THREADED, "drawn_shapes"):
        description = CASES[name][1] if name in CASES else "whole trainings of those"
        against = f"by the clock, one; at a load of {load:.1f} on {os.cpu_count()} cores; {description}"
        times = median_ratio(costs[f"{name}_1"], costs[f"{name}_2"])
        results[f"{name}_two_threads"] = Result(times, "times", against, (">=", 1.7))
    return results


def _full_training(loop: InnerLoop, threads: int, size: Size) -> None:
    loop.threads, seeds = threads, list(range(size.members))
    loop.run(loop.factory.parameters.initial(Streams(seeds)), seeds, inner_steps=size.warmup_steps + size.steps)


def main() -> None:
    parts = (against_torch, drawn_shapes, against_plain_loops, by_members, two_threads)
    common.run("Inner loops in machine code", __doc__, parts, Size(), QUICK)


if __name__ == "__main__":
    main()
