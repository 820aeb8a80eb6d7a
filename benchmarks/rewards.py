"""Speed of searches for reward networks, one thread: a generation on Cliff as published, and one on CartPole.

    python benchmarks/rewards.py [--json] [--quick]

Seconds are CPU time of this process. Our program and plain loops, which do the same work one agent at a time, take
turns in one run. The plain loops train a sample of the agents; their times are scaled to all.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import common  # first: one thread, and the project on the path
import torch
from common import Result, cpu_seconds, interleave, speedup
from plain import ddqn
from plain import rewards as plain
from torch import nn

from control.cli import parse
from control.evolution.inner_loop import InnerLoop
from models.proxies.reward.networks import Networks
from models.streams import Streams


@dataclass(frozen=True)
class Size:
    """Amount of work: perturbations on Cliff (three trainings each); agents on CartPole and their steps; agents that
    the plain loops train (``sampled``); rounds."""

    perturbations: int = 16
    agents: int = 32
    steps: int = 1000
    sampled: int = 4
    rounds: int = 3


QUICK = Size(2, 2, 100, 1, 1)


class Search:
    """Agents on a random mean and on both directions of its perturbations, with settings from a command line."""

    def __init__(self, argv: str, rows: int):
        settings = parse.parse(["--implementation", "RN", *argv.split()])
        self.config, self.agent = settings.proxy, settings.agent
        self.loop = InnerLoop(settings.proxy, settings.run.agent, settings.agent, settings.run.gamename)
        mean = self.loop.factory.parameters.initial(Streams([0]))
        noise = Streams([1]).normal(-(-rows // 3), mean.shape[1])[0] * settings.proxy.noise_std
        self.proxies = torch.cat([mean.expand_as(noise), mean + noise, mean - noise])[:rows]

    def run(self, **changes: Any) -> float:
        return cpu_seconds(lambda: self.loop.run(self.proxies, range(len(self.proxies)), **changes))

    def network(self, row: int) -> nn.Sequential:
        """Return reward network ``row`` as a plain module."""
        parameters = self.loop.factory.parameters
        assert isinstance(parameters, Networks)
        weights = parameters.named_tensors(self.proxies[row])
        outs, ins = weights["reward.0.weight"].shape
        module = nn.Sequential(nn.Linear(ins, outs), nn.LeakyReLU(0.25), nn.Linear(outs, 1))
        module.load_state_dict({f"{2 * int(name[7])}.{name[9:]}": value for name, value in weights.items()})
        return module


def cliff(size: Size) -> dict[str, Result]:
    search = Search("--gamename cliff --agent QLearning --preset paper", 3 * size.perturbations)
    rows, config = len(search.proxies), search.config
    picked = range(0, rows, max(1, rows // size.sampled))
    assert config.train_episodes and config.solved_reward is not None

    def plain_seconds() -> float:
        def work() -> None:
            for row in picked:
                agent = plain.QLearning(search.network(row), row)
                agent.train(config.train_episodes or 1, config.solved_reward or 0.0, config.early_out_num)

        return cpu_seconds(work) * rows / len(picked)

    description = f"{rows} trainings of {config.train_episodes} episodes, a test after each"
    return contest("cliff", {"ours": search.run, "plain": plain_seconds}, size, description, len(picked))


def cartpole(size: Size) -> dict[str, Result]:
    search = Search("--gamename cartpole-200 --mode 1 --no_vary_hp", size.agents)
    tests, test_every = search.config.test_episodes, min(search.config.test_every, size.steps)
    recipe = ddqn.PRESETS["recipe"]
    assert (search.agent.hidden_sizes[0], search.agent.batch_size, search.agent.lr) == (
        recipe.hidden,
        recipe.batch,
        recipe.lr,
    )
    picked = range(0, size.agents, max(1, size.agents // size.sampled))

    def plain_seconds() -> float:
        def work() -> None:
            for row in picked:
                plain.cartpole_training(search.network(row), row, size.steps, test_every, tests)

        return cpu_seconds(work) * size.agents / len(picked)

    search.loop.config = dataclasses.replace(search.config, inner_steps=size.steps, test_every=test_every)
    description = f"{size.agents} agents of {size.steps} steps, {tests} tests every {test_every}"
    return contest("cartpole", {"ours": search.run, "plain": plain_seconds}, size, description, len(picked))


def contest(name: str, sides: dict, size: Size, description: str, sampled: int) -> dict[str, Result]:
    rounds = interleave(sides, size.rounds)
    against = f"the plain loop, {sampled} agents scaled to all"
    return speedup(name, rounds["plain"], rounds["ours"], "s", against, f"a generation: {description}", 10)


def main() -> None:
    common.run("Searches for reward networks", __doc__, (cliff, cartpole), Size(), QUICK)


if __name__ == "__main__":
    main()
