"""Random learned environments of every kind, and their files."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from envs.make import make_environment
from envs.synthetic import SyntheticDynamics, starts_of
from models.proxies import files
from models.proxies.reward.config import Config as Reward
from models.proxies.synthetic.config import Config
from models.proxies.synthetic.networks import Networks
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams
from rounding import FUNCTION, UNIT, gamma, stack

CARTPOLE = Spaces((4,), Discrete(2), max_episode_steps=500, max_return=500.0)
PUSHED = Spaces((2,), Continuous((-1.0,), (1.0,)), max_episode_steps=999)
PULLED = Spaces((2,), Continuous((-1.0, -1.0), (1.0, 1.0)), max_episode_steps=999)
SWUNG = Spaces((6,), Discrete(3), max_episode_steps=500)
SMALL: dict[str, Any] = {"proxy_hidden_size": 9, "max_steps": 7}
KINDS: dict[str, tuple[Config, Spaces, str]] = {
    "mdp": (Config(**SMALL), CARTPOLE, "cartpole"),
    "mdp-wide": (Config(max_steps=7, proxy_activation_fn="prelu", proxy_init="normal"), CARTPOLE, "CartPole-v1"),
    "mdp-deep": (Config(proxy_hidden_layer=3, proxy_activation_fn="tanh", **SMALL), CARTPOLE, "cartpole"),
    "mdp-linear": (Config(proxy_hidden_layer=0, max_steps=7), CARTPOLE, "cartpole"),
    "mdp-learned-reset": (Config(learned_reset=True, latent_size=2, proxy_activation_fn="relu", **SMALL), CARTPOLE,
                          "cartpole-200"),
    "mdp-continuous": (Config(**SMALL), PUSHED, "mountaincar-continuous"),
    "mdp-acrobot": (Config(proxy_activation_fn="identity", **SMALL), SWUNG, "acrobot"),
    "bandit": (Config(proxy="bandit", **SMALL), CARTPOLE, "cartpole"),
    "bandit-table": (Config(proxy="bandit", first_states="table", table_size=30_000, **SMALL), CARTPOLE, "cartpole"),
    "bandit-absolute": (Config(proxy="bandit", reward_form="absolute", first_states="table", table_size=30_000,
                               proxy_activation_fn="tanh", **SMALL), PUSHED, "mountaincar-continuous"),
    "bandit-squared": (Config(proxy="bandit", reward_form="squared", latent_size=3, proxy_hidden_layer=2, **SMALL),
                       PULLED, "mountaincar-continuous"),
    "bandit-linear": (Config(proxy="bandit", reward_form="exponential", first_states="table", table_size=30_000,
                             proxy_hidden_layer=0, max_steps=7), PULLED, "mountaincar-continuous"),
    "bandit-exponential": (Config(proxy="bandit", reward_form="exponential", **SMALL), SWUNG, "acrobot"),
}  # fmt: skip
TOLD = Spaces((3,), Continuous((-1.0,), (1.0,)), max_episode_steps=9, info=("speed", "cost"))
_SCALED: dict[str, Any] = {
    "rn_output_scale": 0.1, "rn_input_center": (0.5, 0.0, -1.0), "rn_input_spread": (2.0, 1.0, 0.3),
}  # fmt: skip
REWARDS: dict[str, tuple[Reward, Spaces, str]] = {
    f"reward-{mode}": (Reward(mode=mode, proxy_hidden_size=5, rn_terminal="zero", **_SCALED), TOLD, "telling")
    for mode in (0, 2, 3, 7, 101)
} | {"reward": (Reward(proxy_hidden_size=5, test_episodes=1), CARTPOLE, "cartpole")}  # fmt: skip
PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu, "leakyrelu": partial(F.leaky_relu, negative_slope=0.01), "tanh": torch.tanh,
    "prelu": partial(F.leaky_relu, negative_slope=0.25), "identity": lambda x: x.clone(),
}  # fmt: skip
DESCRIPTION = {"settings": {"seed": 3, "vary": ["lr"]}, "scores": {"report": {"mean": 497.25}}}


def written(path: Path, kind: str = "mdp", seed: int = 0, scale: float = 1.0, **changes: Any) -> Tensor:
    """Write a random learned environment, its weights times ``scale``; with 3, a tenth of its random steps end an
    episode. Returns its parameters ``[D]``."""
    config, spaces, game = (KINDS | REWARDS)[kind]
    networks = files.networks_of(config, spaces)
    parameters = networks.initial(Streams([seed])) * scale
    if getattr(networks, "has_target", False):  # which says 0 at first
        parameters[:, : networks.searched] += Streams([seed + 1]).normal(networks.searched)
    if kind in KINDS and not kind.startswith("bandit") and scale == 3.0:
        networks.split(parameters)["done"][0, -1] += 0.5 - _usual_done(networks, parameters)  # the last bias
    values = {"config": config, "spaces": spaces, "game": game, "description": DESCRIPTION} | changes
    files.save(path, parameters[0], **values)
    return parameters[0]


def stack_of(
    tensors: dict[str, Tensor], config: Any, name: str, x: Tensor, error: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Outputs of the network ``name`` of a file for inputs ``x [B, in]``, and their error bounds."""
    count = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in tensors)
    layers = [(tensors[f"{name}.{i}.weight"], tensors[f"{name}.{i}.bias"]) for i in range(count)]
    return stack(layers, PLAIN[config.proxy_activation_fn], x, error)


def encoded(spaces: Spaces, actions: Any) -> Tensor:
    """Actions as inputs of networks, float32 ``[N, A]``: one-hot if discrete."""
    numbers = torch.as_tensor(actions)
    if isinstance(spaces.actions, Discrete):
        return F.one_hot(numbers.reshape(-1), spaces.actions.n).float()
    return numbers.reshape(-1, spaces.actions.size)


def plain_step(path: Path | str, kind: str, state: Tensor, action: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """One step from ``state [B, S]`` by encoded actions ``[B, A]``: reward ``[B]`` and, of an MDP, next state
    ``[B, S]`` and done ``[B]``, each with the error bound of a float32 result."""
    (config, spaces, _), tensors = KINDS[kind], load_file(path)
    if config.reward_form != "free":
        return {"reward": _target_reward(tensors, config, spaces, state, action)}
    x = torch.cat([action, state], 1)
    (reward, error), (done, done_error) = (
        stack_of(tensors, config, name, x) for name in ("reward", "reward" if config.proxy == "bandit" else "done")
    )
    rewards = {"reward": (reward[:, 0], error[:, 0])}
    if config.proxy == "bandit":
        return rewards
    return rewards | {"done": (done[:, 0], done_error[:, 0]), "state": stack_of(tensors, config, "state", x)}


def _target_reward(
    tensors: dict[str, Tensor], config: Any, spaces: Spaces, state: Tensor, action: Tensor
) -> tuple[Tensor, Tensor]:
    """Rewards ``[B]`` by a target and their error bounds."""
    scaled_state = (state - tensors["target.center"]) / tensors["target.spread"]
    aim, error = stack_of(tensors, config, "target", scaled_state, 2 * UNIT * scaled_state.abs())
    if isinstance(spaces.actions, Discrete):  # by whether actions are equal
        clear = aim.topk(2, 1).values
        assert (clear[:, 0] - clear[:, 1] > 4 * error.amax(1)).all(), "rounding decides the best action"
        off, error = (action - F.one_hot(aim.argmax(1), spaces.actions.n)).abs().double(), 0 * error
    else:
        low, high = torch.tensor(spaces.actions.low), torch.tensor(spaces.actions.high)
        off = ((2 * (action - low) / (high - low) - 1).clamp(-1, 1) - aim.clamp(-1, 1)).abs()
        error = error + 4 * UNIT + UNIT * off
    if config.reward_form == "absolute":
        return -off.mean(1), (error + gamma(off.shape[1] + 1) * off).mean(1)
    reward, error = -off.square().mean(1), (2 * off * error + gamma(off.shape[1] + 2) * off.square()).mean(1)
    if config.reward_form == "squared":
        return reward, error
    return (4 * reward).exp(), 4 * error + FUNCTION * UNIT  # exp(-4 x) has a slope of at most 4


def _usual_done(networks: Networks, parameters: Tensor) -> float:
    """What the done network says less than in nine of ten steps under random actions."""
    program, generator = networks.with_weights(parameters), torch.Generator().manual_seed(0)
    state, done_outputs = torch.zeros(1, 50, networks.state_size), []
    for _ in range(7):
        action = torch.randint(2, (1, 50), generator=generator)
        out = program.step(state, action if isinstance(networks.actions, Discrete) else action[..., None] * 2.0 - 1)
        state = out.next_state
        done_outputs.append(out.done)
    return torch.stack(done_outputs).quantile(0.9).item()


def dynamics_of(proxy: files.Proxy) -> SyntheticDynamics:
    """The same learned environment as the tensor program that agents of the trainer step."""
    starts = starts_of(make_environment(proxy.game, 1, 1)) if not proxy.networks.latent else lambda seeds: seeds
    return SyntheticDynamics(proxy.networks.with_weights(proxy.parameters[None]), proxy.spaces, starts)
