"""Members give the same numbers to the bit alone and in company, over random shapes of networks and batches."""

import random
from typing import Any

import pytest
import torch

from helpers import ALL, config_of
from models.registry import agent_class
from models.spaces import Continuous, Discrete, Spaces
from test_off_policy import live

AGENTS = ["DDQN", "DuelingDDQN", "PPO", "TD3", "DDPG", "TD3Discrete", "SAC"]
STEPS = 12


def random_case(name: str, seed: int) -> tuple[Any, Spaces, int]:
    """Settings, spaces and the number of members."""
    draw = random.Random(f"{name} {seed}")
    activations = ["relu", "tanh", "leakyrelu", "prelu"]
    changes: dict[str, Any] = {
        "hidden_sizes": tuple(draw.randint(1, 40) for _ in range(draw.randint(1, 2))),
        "batch_size": draw.choice([1, 2, 3, draw.randint(4, 70)]),
        "activation": draw.choice(activations),
        "num_envs": draw.choice([1, 1, 2, draw.randint(3, 9)]),
    }
    if name == "PPO":
        changes |= {"rollout_steps": draw.randint(2, STEPS), "ppo_epochs": 2, "ent_coef": draw.choice([0.0, 0.03])}
        changes |= {"clip_range_vf": draw.choice([None, 0.1]), "target_kl": draw.choice([None, None, 0.01])}
    else:
        changes |= {"init_episodes": 0, "fill": draw.randint(0, 9), "updates_per_step": draw.randint(1, 2)}
    if name == "DuelingDDQN":
        changes |= {"feature_dim": draw.randint(1, 30), "dueling_mean": draw.choice(["row", "batch"])}
    if name == "TD3Discrete":
        changes |= {"gumbel_softmax_hard": draw.random() < 0.5, "gumbel_temperature": draw.choice(["learned", "fixed"])}
    size = draw.randint(1, 6)
    continuous = name in ("TD3", "DDPG", "SAC") or name == "PPO" and draw.random() < 0.5
    actions = Continuous((-1.0,) * size, (2.0,) * size) if continuous else Discrete(size + 1)
    return config_of(name, **changes), Spaces((4,), actions), draw.randint(2, 7)


def train(name: str, config: Any, spaces: Spaces, seeds: list[int]) -> tuple[Any, torch.Tensor]:
    """An agent after a few steps, and all its weights ``[M, D]``."""
    agent = agent_class(ALL[name][0])(config, spaces, seeds)
    agent.budget = 1000
    live(agent, STEPS)
    return agent, torch.cat([weights.detach() for weights in agent.state_dict().values()], 1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", AGENTS)
def test_alone_equals_company_over_random_shapes(name: str, seed: int) -> None:
    config, spaces, members = random_case(name, seed)
    agent, weights = train(name, config, spaces, list(range(members)))
    m = seed % members
    alone, alone_weights = train(name, config, spaces, [m])
    assert weights.unique().numel() > 10
    assert torch.equal(alone_weights[0], weights[m])
    metrics = agent.metrics()
    for tag, values in alone.metrics().items():
        assert torch.equal(values[0].nan_to_num(7e7), metrics[tag][m].nan_to_num(7e7)), tag
