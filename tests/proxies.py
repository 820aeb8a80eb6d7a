"""Random learned environments of every kind, and their files."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from envs.make import make_environment
from envs.synthetic import SyntheticDynamics, starts_of
from models.proxies import files
from models.proxies.reward.config import Config as Reward
from models.proxies.synthetic.config import Config
from models.proxies.synthetic.networks import Networks
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams

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
        parameters[:, : networks.num_searched] += Streams([seed + 1]).normal(networks.num_searched)
    if kind in KINDS and not kind.startswith("bandit") and scale == 3.0:
        networks.split(parameters)["done"][0, -1] += 0.5 - _usual_done(networks, parameters)  # the last bias
    values = {"config": config, "spaces": spaces, "game": game, "description": DESCRIPTION} | changes
    files.save(path, parameters[0], **values)
    return parameters[0]


def outputs_of(tensors: dict[str, Tensor], config: Any, name: str, x: Tensor) -> Tensor:
    """Outputs ``[B, out]`` of the network ``name`` of a file for inputs ``x [B, in]``, by plain layers in float64."""
    depth = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in tensors)
    x = x.double()
    for i in range(depth):
        x = F.linear(x, tensors[f"{name}.{i}.weight"].double(), tensors[f"{name}.{i}.bias"].double())
        x = PLAIN[config.proxy_activation_fn](x) if i < depth - 1 else x
    return x


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
    starts = starts_of(make_environment(proxy.game, 1, 1)) if not proxy.networks.latent_size else lambda seeds: seeds
    return SyntheticDynamics(proxy.networks.with_weights(proxy.parameters[None]), proxy.spaces, starts)
