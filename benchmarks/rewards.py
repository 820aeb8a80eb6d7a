"""Speed of searches for reward networks, one thread: a generation on Cliff as published, and one on CartPole.

    python benchmarks/rewards.py [--json] [--quick]

Seconds are CPU time of this process. Our program and plain loops, which do the same work one agent at a time, take
turns in one run. The plain loops train a sample of the agents; their times are scaled to all.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

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
    """Amount of work."""

    perturbations: int = 16  # on Cliff, with three trainings each
    agents: int = 32  # on CartPole
    steps: int = 1000  # of each of these agents
    sampled: int = 4  # agents that the plain loops train
    rounds: int = 3


QUICK = Size(2, 2, 100, 1, 1)


class Search:
    """A generation of a search with the flags ``argv``, on ``count`` reward networks: a mean and its perturbations."""

    def __init__(self, argv: str, count: int):
        settings = parse.parse(["--implementation", "RN", *argv.split()])
        self.config, self.agent = settings.proxy, settings.agent
        self.loop = InnerLoop(settings.proxy, settings.run.agent, settings.agent, settings.run.gamename)
        mean = self.loop.factory.parameters.initial(Streams([0]))
        noise = Streams([1]).normal(-(-count // 3), mean.shape[1])[0] * settings.proxy.noise_std
        self.proxies = torch.cat([mean.expand_as(noise), mean + noise, mean - noise])[:count]

    def seconds(self) -> float:
        """Train all agents side by side, and return the CPU seconds."""
        return cpu_seconds(lambda: self.loop.run(self.proxies, range(len(self.proxies))))

    def network(self, number: int) -> nn.Sequential:
        """Return the reward network with this number as a plain module."""
        parameters = self.loop.factory.parameters
        assert isinstance(parameters, Networks)
        weights = parameters.named_tensors(self.proxies[number])
        hidden, inputs = weights["reward.0.weight"].shape
        module = nn.Sequential(nn.Linear(inputs, hidden), nn.LeakyReLU(0.25), nn.Linear(hidden, 1))
        first = {"0.weight": weights["reward.0.weight"], "0.bias": weights["reward.0.bias"]}
        second = {"2.weight": weights["reward.1.weight"], "2.bias": weights["reward.1.bias"]}  # after the activation
        module.load_state_dict(first | second)
        return module


def cliff(size: Size) -> dict[str, Result]:
    """Compare a generation on Cliff with agents that train one after another."""
    search = Search("--gamename cliff --agent QLearning --preset paper", 3 * size.perturbations)
    count, config = len(search.proxies), search.config
    sample = range(0, count, max(1, count // size.sampled))
    assert config.train_episodes and config.solved_reward is not None

    def train_sample() -> None:
        for number in sample:
            agent = plain.QLearning(search.network(number), number)
            agent.train(config.train_episodes or 1, config.solved_reward or 0.0, config.early_out_num)

    description = f"{count} trainings of {config.train_episodes} episodes, a test after each"
    return contest("cliff", search, train_sample, len(sample), size, description)


def cartpole(size: Size) -> dict[str, Result]:
    """Compare a generation on CartPole with agents that train one after another."""
    search = Search("--gamename cartpole-200 --mode 1 --no_vary_hp", size.agents)
    tests, test_every = search.config.test_episodes, min(search.config.test_every, size.steps)
    recipe = ddqn.PRESETS["recipe"]
    agent = search.agent
    assert (agent.hidden_sizes[0], agent.batch_size, agent.lr) == (recipe.hidden, recipe.batch, recipe.lr)
    sample = range(0, size.agents, max(1, size.agents // size.sampled))

    def train_sample() -> None:
        for number in sample:
            plain.cartpole_training(search.network(number), number, size.steps, test_every, tests)

    search.loop.config = dataclasses.replace(search.config, inner_steps=size.steps, test_every=test_every)
    description = f"{size.agents} agents of {size.steps} steps, {tests} tests every {test_every}"
    return contest("cartpole", search, train_sample, len(sample), size, description)


def contest(
    name: str, search: Search, train_sample: Callable[[], None], sampled: int, size: Size, description: str
) -> dict[str, Result]:
    """Compare the seconds of a generation with those of ``train_sample``, a plain loop over a few agents, scaled to
    all."""
    scale = len(search.proxies) / sampled
    rounds = interleave({"ours": search.seconds, "plain": lambda: cpu_seconds(train_sample) * scale}, size.rounds)
    against = f"the plain loop, {sampled} agents scaled to all"
    return speedup(name, rounds["plain"], rounds["ours"], "s", against, f"a generation: {description}", 10)


def main() -> None:
    common.run("Searches for reward networks", __doc__, (cliff, cartpole), Size(), QUICK)


if __name__ == "__main__":
    main()
