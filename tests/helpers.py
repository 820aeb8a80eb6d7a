"""Tiny settings, and a training loop without Lightning, for tests of agents."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from control.rollout import Episodes, RandomActor, rollout
from envs.base import Environment
from envs.make import make_environment
from models.agents import agent_class, default_config, implementations
from models.spaces import Spaces
from models.streams import Streams

# What makes a run small, for those fields that a family has. The batch is odd, so that vector tails are exercised.
TINY: dict[str, Any] = {
    "batch_size": 33, "num_grad_steps": 4, "num_rand_action_rollouts": 5, "training_rollouts_per_worker": 3, "last_few": 4,
    "value_hidden_sizes": (12, 8), "conv_channels": (4, 8), "random_action_epochs": 0,
}  # fmt: skip
# Families' other networks and ways, tested beside every implementation: id -> (implementation, settings).
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "UDRL-hypernetwork": ("UDRL", {"network": "hypernetwork"}),
    "UDRL-by-episode": ("UDRL", {"sample_by": "episode", "eval_command": "sampled", "buffer_unit": "episodes", "buffer_size": 7}),
    "RCP-A-lambda": ("RCP-A", {"advantage_target": "lambda", "advantage_command": "quantile", "sample_by": "episode"}),
}  # fmt: skip
CASES = {name: (name, {}) for name in implementations()} | VARIANTS


def config_of(case: str, game: str = "", **changes: Any) -> Any:
    """Settings of a case of `CASES`, changed where its family has such a field."""
    implementation, own = CASES[case]
    config = default_config(implementation, game)
    known = {field.name for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **{name: value for name, value in (changes | own).items() if name in known})


def tiny(case: str, game: str = "", **changes: Any) -> Any:
    """The smallest settings that still learn something."""
    hidden = tuple(12 + 4 * i for i in range(len(default_config(CASES[case][0], game).hidden_sizes)))
    return config_of(case, game, **({"hidden_sizes": hidden} | TINY | changes))


def build(case: str, spaces: Spaces, seeds: list[int], config: Any = None) -> Any:
    return agent_class(CASES[case][0])(config or tiny(case), spaces, seeds)


class Loop:
    """What a run does with an agent, epoch by epoch."""

    def __init__(self, case: str, game: str, seeds: list[int], config: Any = None, envs: int = 4):
        self.environment: Environment = make_environment(game, len(seeds), envs)
        self.agent = build(case, self.environment.spaces, seeds, config)
        self.streams = Streams.named(seeds, "rollout")
        self.envs = envs

    def warm_up(self, rounds: int = 2) -> None:
        for _ in range(rounds):
            actor = RandomActor(self.environment.spaces, self.envs, self.streams.fork())
            self.agent.observe(rollout(actor, self.environment, self.streams.episode_seeds(self.envs)))

    def epoch(self) -> dict[str, Tensor]:
        """Learn, then act; everything that came of it, each ``[M, ...]``."""
        numbers = self.agent.learn()
        actor = self.agent.begin(self.envs, self.streams.fork(), sample=True)
        trajectory = rollout(actor, self.environment, self.streams.episode_seeds(self.envs))
        self.agent.observe(trajectory)
        mine = {f"weights {name}": value.detach().clone() for name, value in self.agent.state_dict().items()}
        return numbers | mine | {"returns": trajectory.returns, "lengths": trajectory.lengths}

    def evaluate(self, sample: bool = False) -> Episodes:
        actor = self.agent.begin(self.envs, self.streams.fork(), sample=sample, evaluate=True)
        return rollout(actor, self.environment, self.streams.episode_seeds(self.envs), keep=False)


def same_numbers(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Equal to the bit, NaN being equal to itself; says which are not."""
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name].nan_to_num(7e7), other[name].nan_to_num(7e7))]
    assert not different
