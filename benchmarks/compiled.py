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

# Name of a row -> flags of a search, description of its agents, and the speedup over torch that is to be reached.
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
PLAIN = {"recipe": 100.0, "paper": 40.0}  # preset of the plain loop -> speedup over it that is to be reached


@dataclass(frozen=True)
class Size:
    """Amount of work."""

    members: int = 48  # agents that train side by side
    warmup_steps: int = 700  # of a member, before measuring
    steps: int = 300  # of a member per round
    agents: int = 3  # plain ones
    plain_steps: int = 100  # of a plain agent per round
    rounds: int = 5
    member_counts: tuple[int, ...] = (1, 16, 64, 256, 1024)  # in the cost per member by number of members
    # Steps per round in the comparison of threads. Threads sample random numbers ahead only within a round.
    thread_steps: int = 1500


QUICK = Size(2, 8, 8, 1, 2, 1, (1, 2), 8)


class Training:
    """Members in the middle of a training on random proxies (learned environments or rewards), which have the settings
    ``argv`` of `CASES`. With ``fast``, they train in machine code with ``threads`` threads, otherwise in torch.
    ``config`` replaces the settings of the agent, and ``seeds`` the seeds 0, 1, ... of the members."""

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
        agent = config or settings.agent
        if config is None and hasattr(agent, "vary_hp"):
            agent = dataclasses.replace(agent, vary_hp=False)
        loop = InnerLoop(settings.proxy, settings.run.agent, agent, settings.run.gamename)
        seeds = seeds or list(range(members))
        self.loop = loop.begin(loop.factory.parameters.initial(Streams(seeds)), seeds)
        self.members = members
        self.loop.machine_code = compiled.CompiledLoop(threads) if fast else None
        self.cost(size.warmup_steps)

    def cost(self, steps: int, seconds_of: Callable[[Callable[[], object]], float] = cpu_seconds) -> float:
        """Train for ``steps`` and return the microseconds per step of a member, by `cpu_seconds` or `clock_seconds`."""
        ticks = -(-steps // self.loop.agent.envs)  # steps of each environment, rounded up
        seconds = seconds_of(lambda: train(self.loop, ticks))
        return 1e6 * seconds / (ticks * self.loop.agent.envs * self.members)


def against_torch(size: Size) -> dict[str, Result]:
    """Compare machine code with torch, for each of `CASES`."""
    results = {}
    for name, (argv, description, target) in CASES.items():
        fast, torch = Training(argv, size.members, size, fast=True), Training(argv, size.members, size, fast=False)
        contenders = {"fast": partial(fast.cost, size.steps), "torch": partial(torch.cost, size.steps)}
        costs = interleave(contenders, size.rounds)
        work = f"a step of one of {size.members}; {description}"
        results[name] = Result(statistics.median(costs["fast"]), "us", work)
        limit = None if target is None else (">=", target)
        ratio = median_ratio(costs["torch"], costs["fast"])
        results[f"{name}_speedup"] = Result(ratio, "times", "the same in torch", limit)
    return results


def varied_loop() -> InnerLoop:
    """Return an inner loop with members that sample batch size, width and depth. Each shape is a separate program."""
    settings = parse.parse(["--implementation", *CASES[FLAT][0].split(), "--vary_hp"])
    agent = dataclasses.replace(settings.agent, vary_hp=True, vary=type(settings.agent)().vary)
    return InnerLoop(settings.proxy, settings.run.agent, agent, settings.run.gamename)


def drawn_shapes(size: Size) -> dict[str, Result]:
    """Compare machine code with torch, for members with different sampled shapes of networks (`varied_loop`)."""
    loop, argv = varied_loop(), CASES[FLAT][0]
    agent = loop.agent_config
    groups = loop.agent_class.groups(agent, list(range(size.members)))  # seeds of the members of each shape
    contenders = {}
    for path in ("fast", "torch"):
        trainings = [Training(argv, len(group), size, path == "fast", config=agent, seeds=group) for group in groups]
        contenders[path] = partial(_mean_cost, trainings, size.steps)
    costs = interleave(contenders, size.rounds)
    description = f"a step of one of {size.members} of {len(groups)} shapes; DDQN, {', '.join(agent.vary)} drawn"
    return {
        "drawn_shapes": Result(statistics.median(costs["fast"]), "us", description),
        "drawn_shapes_speedup": Result(median_ratio(costs["torch"], costs["fast"]), "times", "the same in torch"),
    }


def _mean_cost(trainings: list[Training], steps: int) -> float:
    """Train all ``trainings``, and return the mean microseconds per step of their members."""
    total = sum(training.cost(steps) * training.members for training in trainings)
    return total / sum(training.members for training in trainings)


def against_plain_loops(size: Size) -> dict[str, Result]:
    """Compare machine code with agents that train one after another (`plain.ddqn`), at the same settings."""
    results = {}
    for preset, target in PLAIN.items():
        case = "cartpole_mdp_paper" if preset == "paper" else "cartpole_mdp"
        training = Training(CASES[case][0], size.members, size, fast=True)
        program = evolution.SideBySide(evolution.inner(preset), size.members)
        plain_agents = evolution.PlainAgents(preset, program, size.agents).begin(size.warmup_steps)
        contenders = {
            "ours": partial(training.cost, size.steps),
            "plain": partial(plain_agents.rate, size.plain_steps),
        }
        measured = interleave(contenders, size.rounds)
        ratio = median_ratio([1e6 / rate for rate in measured["plain"]], measured["ours"])
        results[f"{preset}_plain_speedup"] = Result(ratio, "times", "the plain loop, one agent", (">=", target))
    return results


def by_members(size: Size) -> dict[str, Result]:
    """Measure the cost of a step of a member by the number of members."""
    argv, description, _ = CASES[FLAT]
    contenders = {}
    for count in size.member_counts:
        contenders[f"{FLAT}_{count}_members"] = partial(Training(argv, count, size, fast=True).cost, size.steps)
    costs = interleave(contenders, size.rounds)
    work = f"a step of one of them; {description}"
    return {name: Result(statistics.median(values), "us", work) for name, values in costs.items()}


def clock_seconds(work: Callable[[], object]) -> float:
    """Return the seconds of one call by the clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def two_threads(size: Size) -> dict[str, Result]:
    """Measure how much faster machine code is with two threads than with one."""
    loop, contenders = varied_loop(), {}
    for threads in (1, 2):
        contenders[f"drawn_shapes_{threads}"] = partial(_full_training_seconds, loop, threads, size)
    for name in THREADED:
        for threads in (1, 2):
            training = Training(CASES[name][0], size.members, size, fast=True, threads=threads)
            contenders[f"{name}_{threads}"] = partial(training.cost, size.thread_steps, clock_seconds)
    costs = interleave(contenders, 4 * size.rounds)
    load = os.getloadavg()[0]  # to judge the disturbance by other jobs
    results = {}
    for name in (*THREADED, "drawn_shapes"):
        description = CASES[name][1] if name in CASES else "whole trainings of those"
        against = f"by the clock, one; at a load of {load:.1f} on {os.cpu_count()} cores; {description}"
        ratio = median_ratio(costs[f"{name}_1"], costs[f"{name}_2"])
        results[f"{name}_two_threads"] = Result(ratio, "times", against, (">=", 1.7))
    return results


def _full_training_seconds(loop: InnerLoop, threads: int, size: Size) -> float:
    """Return the seconds of a training of new members, from the start to the tests, with this number of threads."""
    loop.threads, seeds = threads, list(range(size.members))
    proxies, steps = loop.factory.parameters.initial(Streams(seeds)), size.warmup_steps + size.steps
    return clock_seconds(lambda: loop.run(proxies, seeds, inner_steps=steps))


def main() -> None:
    parts = (against_torch, drawn_shapes, against_plain_loops, by_members, two_threads)
    common.run("Inner loops in machine code", __doc__, parts, Size(), QUICK)


if __name__ == "__main__":
    main()
