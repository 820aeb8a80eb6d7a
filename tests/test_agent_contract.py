"""The contract of `models.contract`, for every agent in models/agents/."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from control.reports.tags import explanations
from helpers import (
    ALL,
    CASES,
    CELLS,
    MODELS,
    STEP_CASES,
    STEPPED_CAR,
    STEPPED_PENDULUM,
    VARIANTS,
    build,
    can_play,
    config_of,
    default_game,
    different,
    loop_of,
    numbers,
    on_policy,
    place,
    spoil,
    tiny,
)
from models.registry import agent_class, family
from models.settings import HAS_NUMBA
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams
from probes import PROBES

SPACES = {
    "discrete": Spaces((3,), Discrete(4)),
    "two actions": Spaces((1,), Discrete(2), max_return=1.0),
    "continuous": Spaces((5,), Continuous((-1.0, 0.0), (1.0, 4.0))),
    "images": Spaces((2, 11, 9), Discrete(3), torch.uint8),
}
PENDULUMS = ("pendulum", STEPPED_PENDULUM)
MAZES = ["procmaze,grid_size=3", "buttongrid,grid_size=4", "panflute,num_pipes=3"]
FULL = [case for case in CASES if case not in ("VPG", "EPG", "BPG")]  # these are CPG without its parts


def playable(*games: str, cases: Any = ALL) -> list[tuple[str, str]]:
    """Pairs of case and game, as far as the agent can play the game."""
    return [(case, game) for case in cases for game in games if can_play(case, game)]


def steps_of(case: str) -> int:
    """Steps per epoch: as few as let every agent learn within three epochs."""
    if by_rollouts(case):
        return 40  # two environments with rollouts of 19 steps
    if getattr(tiny(case), "fill", 0):
        return 52  # learning starts after 100
    return 20 if case in MODELS else 30


def takes(case: str, spaces: Spaces) -> bool:
    kind = agent_class(ALL[case][0])
    return isinstance(spaces.actions, kind.action_kinds) and (kind.takes_images or not spaces.is_image)


# A probe with one input and one step, episodes of unequal length, continuous actions, an environment that is not a
# tensor program, and mazes for agents with models.
ALONE = [
    *playable("probe-5", cases=CASES), *playable("cartpole", cases=FULL), ("RCP-A", "pendulum"),
    ("RCP-A", "probe-truncated-continuous"),
    *((case, default_game(case)) for case in STEP_CASES if case not in MODELS),
    ("DDQN", "probe-5"), ("DuelingDDQN", "probe-5"), *((case, "lunarlander") for case in ("AAC", "DDQN")),
    ("PPO", "probe-5"), *((case, "pendulum") for case in ("PPO", "PPO-test-noise", "PPO-normalised")),
    *((case, MAZES[i % 3]) for i, case in enumerate(MODELS)),
]  # fmt: skip


# Agents in machine code, on tensor programs (whole blocks) and on environments that Python steps.
COMPILED = [
    ("PPO", "cartpole"), ("A2C", "pendulum"), ("PPO", "lunarlander"), ("DDQN", "cartpole"), ("DDQN", "lunarlander"),
    ("DuelingDDQN", "probe-5"), ("TD3", "pendulum"), ("DDPG", STEPPED_PENDULUM), ("QLearning", CELLS), ("SARSA", CELLS),
    ("QLearning", "Taxi-v4"), ("SAC", "pendulum"), ("SAC", STEPPED_PENDULUM), ("TD3Discrete", "cartpole"),
]  # fmt: skip


def on_paths(pairs: list[tuple[str, str]], *slow: tuple[str, str]) -> list[Any]:
    """Pairs of case and game with False, for torch, and `COMPILED` with True. Variants and the ``slow`` pairs, whose
    code has another quick pair, are slow. Members of PPO with a target of KL stop separately, so that it is quick."""
    mark = lambda case, is_slow: [pytest.mark.slow] * (is_slow or case in VARIANTS.keys() - {"PPO-target-kl"})  # noqa: E731
    in_torch = [pytest.param(*pair, False, marks=mark(pair[0], pair in slow)) for pair in pairs]
    group = pytest.mark.xdist_group("compiled")  # one process compiles
    skip = pytest.mark.skipif(not HAS_NUMBA, reason="needs Numba")
    others = ("PPO", "lunarlander"), ("SAC", STEPPED_PENDULUM)
    return in_torch + [
        pytest.param(*pair, True, marks=[group, skip, *mark(pair[0], pair in others)]) for pair in COMPILED
    ]


# A2C has the code of PPO, DDPG of TD3, DuelingDDQN of DDQN.
@pytest.mark.parametrize(("case", "game", "compiled"), on_paths(
    ALONE, ("RCP-A", "pendulum"), ("DDPG", default_game("DDPG")), ("A2C", "cartpole"),
    *((case, "probe-5") for case in ("DDQN", "DuelingDDQN", "PPO")),
))  # fmt: skip
def test_member_alone_equals_member_in_company(case: str, game: str, compiled: bool) -> None:
    """Bit equality over three epochs and an evaluation. In the last epoch another member's weights and memory are NaN.
    With varied hyperparameters there are enough members for some to share a program."""
    count, steps = 8 if "own" in case else 3, 110 if game in (*PENDULUMS, "Taxi-v4") else steps_of(case)
    joint_loop = loop_of(case, game, 25, count, steps_per_epoch=steps, compiled=compiled)
    assert getattr(joint_loop, "compiled", False) == compiled
    groups = getattr(joint_loop, "groups", None)
    broken, m = max((group.members.tolist() for group in groups), key=len)[-2:] if groups else (1, 2)
    alone = loop_of(case, game, 25 + m, 1, steps_per_epoch=steps, compiled=compiled)
    history = []
    for epoch in (1, 2, 3):
        if epoch == 3 and game != "pendulum":  # it refuses NaN actions
            spoil(*place(joint_loop, broken))
        row, alone_row = joint_loop.epoch(), alone.epoch()
        history.append(numbers(joint_loop, row, m))
        assert not [*different(numbers(alone, alone_row, 0), history[-1])]
        assert set(alone_row) <= explanations().keys(), "a family logs what docs/tensorboard.md explains"
        assert alone_row.keys() >= {joint_loop.loss_tag, "rollout/return_mean", "rollout/length_mean"}
        assert "train/learning_rate" in alone_row or case in CASES and tiny(case).schedule.gradient_steps == 0
        assert not any(value.requires_grad for value in alone_row.values())
        assert case not in CASES or all(value.isfinite().all() for tag, value in alone_row.items() if "loss" in tag)
        if epoch == 2:
            other = numbers(joint_loop, row, broken)
            for way in joint_loop.evaluation_modes:
                returns = [loop.evaluate(4, way == "sampled").returns for loop in (alone, joint_loop)]
                assert torch.equal(returns[0][0], returns[1][m]), way
    assert row[joint_loop.loss_tag][m].isfinite()
    weights = [name for name in other if name.startswith("weights")]
    for first, second in ((history[0], history[2]), (history[1], other)):  # it learns, and members differ
        assert any(not torch.equal(first[name], second[name]) for name in weights)
    assert game == "pendulum" or any(value.isnan().any() for value in numbers(joint_loop, row, broken).values())


# Within episodes of tensor programs and of another environment.
RESUMED = [
    *playable("probe-truncated", cases=FULL), ("RCP-A", "probe-truncated-continuous"),
    *((case, default_game(case)) for case in STEP_CASES if case not in MODELS),
    ("DDQN", "probe-truncated"), ("DDQN-three-envs", STEPPED_CAR), ("TD3", "pendulum"),
    ("PPO", STEPPED_CAR), ("PPO-test-noise", "probe-truncated-continuous"),
    *((case, MAZES[i % 3]) for i, case in enumerate(MODELS)),
]  # fmt: skip


def parts(loop: Any) -> list[Any]:
    """Everything that a checkpoint contains."""
    return [*loop.agents, *(optimizer for agent in loop.agents for optimizer in agent.optimizers), loop]


@pytest.mark.parametrize(("case", "game", "compiled"), on_paths(
    RESUMED, ("DDQN", "probe-truncated"),
    *((case, default_game(case)) for case in ("DDPG", "A2C", "DuelingDDQN", "TD3", "PPO")),
))  # fmt: skip
def test_resumed_equals_uninterrupted(case: str, game: str, compiled: bool, tmp_path: Path) -> None:
    source_loop, other = (loop_of(case, game, 1, 2, steps_per_epoch=22, compiled=compiled) for _ in range(2))
    for _ in range(2 if case in CASES else 4):
        source_loop.epoch()
    torch.save([part.state_dict() for part in parts(source_loop)], tmp_path / "state")
    for part, state in zip(parts(other), torch.load(tmp_path / "state", weights_only=True), strict=True):
        part.load_state_dict(state)
    for _ in range(2):  # longer than a block of 128 random numbers
        rows = source_loop.epoch(), other.epoch()
        for m in range(2):
            assert not [*different(*(numbers(*pair, m) for pair in zip((source_loop, other), rows, strict=True)))]
    assert torch.equal(source_loop.evaluate(3).returns, other.evaluate(3).returns)


@pytest.mark.parametrize(
    ("case", "kind"), [(case, kind) for case in CASES for kind, spaces in SPACES.items() if takes(case, spaces)]
)
def test_actions_fit_space(case: str, kind: str) -> None:
    spaces = SPACES[kind]
    obs = torch.randint(256, (3, 5, *spaces.obs_shape)).to(spaces.obs_dtype)
    agent = build(case, spaces, [1, 2, 3])
    for sample in (True, False):
        policy = agent.begin(5, Streams([1, 2, 3]), sample=sample)
        assert policy.members == 3
        for _ in range(3):
            action = policy.act(obs)
            assert action.shape == (3, 5, *spaces.action_shape) and action.dtype == spaces.action_dtype
            policy.advance(torch.ones(3, 5))
            low, high = (0, spaces.actions.n - 1) if isinstance(spaces.actions, Discrete) else (
                torch.tensor(spaces.actions.low), torch.tensor(spaces.actions.high))  # fmt: skip
            assert (action >= low).all() and (action <= high).all()


LEARNING: dict[str, Any] = {
    "lr": 5e-3, "batch_size": 64, "num_grad_steps": 30, "last_few": 30, "random_action_epochs": 0, "buffer_size": 600,
    "training_rollouts_per_worker": 30, "num_rand_action_rollouts": 60, "value_hidden_sizes": (16, 16),
    "value_lr": 1e-2, "val_func_update_interval": 1,
}  # fmt: skip
# One gradient step per epoch.
LEARNING_ON_POLICY = {
    "lr": 3e-2, "value_lr": 3e-2, "batch_episodes": 30, "max_episodes": 6000, "value_hidden_sizes": (16, 16),
    "num_grad_steps": 1,
}  # fmt: skip
LEARNING_BY_STEPS = {
    "lr": 5e-3, "batch_size": 32, "feature_dim": 16, "tau": 0.05, "buffer_size": 2000, "model_lr": 5e-3,
    "training_start_time": 0, "target_update_frequency": 20, "rollout_length": 1, "num_features": 2,
}  # fmt: skip
LEARNING_BY_ROLLOUTS = LEARNING_BY_STEPS | {
    "num_envs": 16, "rollout_steps": 16, "batch_size": 64, "ppo_epochs": 4, "action_std": 0.5,
}  # fmt: skip
FAST_ROLLOUTS = LEARNING_BY_ROLLOUTS | {"lr": 1e-2}


def by_rollouts(case: str) -> bool:
    return family(ALL[case][0]).package.endswith(".ppo")


def has_values(case: str) -> bool:
    return ALL[case][0] in ("RCP-A", "AAC") if case in CASES else hasattr(agent_class(ALL[case][0]), "values")


# Probe 5 tests actions, 2 and 3 values that depend on states and on later rewards, and the others truncation. An agent
# without an entry has probe 5. DDPG has the code of TD3, and A2C of PPO.
QUICK_PROBES = {
    "UDRL": ("5", "5-continuous", "truncated"), "RCP-A": ("5-continuous", "3"), "AAC": ("5", "3"),
    "DDQN": ("5", "truncated", "3"), "PPO": ("5", "3", "truncated", "5-continuous"), "TD3": ("truncated-continuous",),
}  # fmt: skip
SLOW_PROBES = {
    "RCP-R": ("5-continuous", "truncated"), "RCP-A": ("5", "truncated", "2"), "RCP-A-lambda": ("5", "3"),
    "AAC": ("truncated", "2"), "AAC-shared": ("5", "3"), "AAC-improved": ("5", "3"), "CPG": ("truncated",),
    "DDQN": ("2",), "DuelingDDQN": ("2",), "ER": ("truncated",), "SimpleModel": ("2",),
    "PPO": ("2", "truncated-continuous"), "PPO-test-noise": ("5", "5-continuous"), "PPO-normalised": ("5", "3"),
    "A2C": ("truncated",), "SAC": ("truncated-continuous",), "TD3": ("5-continuous",), "TD3Discrete": ("truncated",),
}  # fmt: skip


def probes_of(case: str) -> list[Any]:
    """Parameters (case, game) of all probes of an agent. Models predict observations with noise, and latent states are
    random, so only SimpleModel has exact values, of last steps."""
    has_cells, is_curious = default_game(case) == CELLS, getattr(config_of(case), "intrinsic", "none") != "none"
    is_model = case in MODELS and case not in ("ER", "SimpleModel")
    if has_cells or is_curious or is_model:  # probes have no cells, and novelty changes values
        return []
    of_actions = ("5",) if can_play(case, "probe-5") else ("5-continuous",)
    quick = QUICK_PROBES.get(case, () if case in VARIANTS else of_actions)
    slow = SLOW_PROBES.get(case, of_actions if case in VARIANTS else ())
    return [(case, f"probe-{name}") for name in quick] + [
        pytest.param(case, f"probe-{name}", marks=pytest.mark.slow) for name in slow
    ]


def trained(case: str, game: str) -> Any:
    if case in STEP_CASES:
        # A value without an end converges faster with a smaller discount.
        discount, steps = (0.8, 500) if PROBES[game].truncates else (0.99, 600 if PROBES[game].continuous else 350)
        steps = 400 if ALL[case][0] == "SAC" and steps == 600 else steps
        learning = LEARNING_BY_STEPS
        if by_rollouts(case):
            # Normalization of rewards and other variants take longer.
            learning, steps = (LEARNING_BY_ROLLOUTS, 8 * steps) if case in VARIANTS else (FAST_ROLLOUTS, 5 * steps)
        elif has_values(case) and steps == 350:
            learning, steps = learning | {"lr": 1e-2}, 200  # action values converge faster than an actor
        depth = 1 if hasattr(tiny(case), "model") else len(getattr(tiny(case), "hidden_sizes", ()))
        config = config_of(case, game, discount=discount, hidden_sizes=(16,) * depth, steps_per_epoch=steps, **learning)
        loop = loop_of(case, game, 1, 2, config, steps_per_epoch=steps, epochs=3)
        loop.epoch()
        return loop
    hidden = {"hidden_sizes": (16,) * len(getattr(tiny(case), "hidden_sizes", ()))}
    learning, epochs = LEARNING, 5 if has_values(case) else 8
    if on_policy(ALL[case][0]):
        learning, epochs = LEARNING_ON_POLICY, 80 if has_values(case) else 40
    loop = loop_of(case, game, 1, 2, config_of(case, game, **(learning | hidden)), eval_episodes=30)
    for _ in range(epochs):
        loop.epoch()
    return loop


@pytest.mark.parametrize(("case", "game"), [pair for case in ALL for pair in probes_of(case)])
def test_agent_learns_probe(case: str, game: str) -> None:
    """Best actions if actions matter, and true values if the agent has values."""
    loop, probe = trained(case, game), PROBES[game]
    if probe.best_return - probe.random_return > 0.1:
        greedy = loop.evaluate(40).returns
        min_return = probe.best_return - 0.1 * (probe.best_return - probe.random_return)
        if case in STEP_CASES and not probe.continuous:
            assert (greedy == probe.best_return).all()
        assert (greedy.mean(1) > min_return).all(), f"greedy {greedy.mean(1).tolist()}, needed {min_return:.2f}"
    if not (hasattr(loop.agents[0], "values") if case in STEP_CASES else game in ("probe-2", "probe-3")):
        return
    if probe.continuous and by_rollouts(case):  # values of a policy that still explores
        return
    states = {"sign": [-1.0, 1.0], "age": [0.0, 1.0][: probe.length], "zero": [0.0]}[probe.shows]
    for agent in loop.agents:
        obs = torch.tensor(states).view(1, -1, 1).expand(agent.members, -1, -1)
        true = probe.value(obs[..., 0], getattr(agent.config, "discount", 1.0))
        torch.testing.assert_close(best_values(agent, obs), true, rtol=0, atol=0.1 if case in STEP_CASES else 0.05)


@torch.no_grad()
def best_values(agent: Any, obs: Tensor) -> Tensor:
    """Values ``[M, B]`` of ``obs [M, B, O]``, of the best actions or of the policy, in units of reward."""
    if agent.__class__.__module__.endswith("policy_gradients.agent"):
        return agent.network.values(obs) / agent.config.reward_scale
    if hasattr(agent, "_value_scale"):
        return agent._scaled_value(obs) * agent._value_scale().unsqueeze(1)
    return agent.values(obs).amax(2)
