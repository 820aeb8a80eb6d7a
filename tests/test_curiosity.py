"""Intrinsic rewards: ICM against torch modules, RND against a NumPy reference, and both in an agent."""

import dataclasses
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.agents.ddqn.agent import Agent
from models.agents.ddqn.config import Config
from models.curiosity import Curiosity, Icm, build_curiosity
from models.intrinsic import Intrinsic
from models.moments import Moments
from models.spaces import Continuous, Discrete, Spaces

OBS, BATCH = 3, 5
SPACES = {
    "two": Spaces((OBS,), Discrete(2)), "three": Spaces((OBS,), Discrete(3)),
    "continuous": Spaces((OBS,), Continuous((-1.0, -1.0), (1.0, 1.0))),
}  # fmt: skip
SMALL = Intrinsic(
    icm_feature_dim=4, icm_hidden_size=6, icm_lr=0.01, rnd_feature_dim=4, rnd_hidden_size=6, rnd_lr=0.01, rnd_clip=2.0
)
KINDS = {"icm": dataclasses.replace(SMALL, intrinsic="icm"), "rnd": dataclasses.replace(SMALL, intrinsic="rnd")}


def make_curiosity(kind: str, spaces: str = "three", seeds: Any = (0, 1)) -> Any:
    return build_curiosity(KINDS[kind], SPACES[spaces], list(seeds))


def batch(spaces: str, seed: int, members: int = 2, scale: float = 1.0) -> list[Tensor]:
    """Observations, actions and next observations, each member from separate random numbers."""
    parts = []
    for m in range(members):
        g = torch.Generator().manual_seed(100 * seed + m)
        obs_pair = scale * torch.randn(2, BATCH, OBS, generator=g)
        actions = SPACES[spaces].actions
        if isinstance(actions, Discrete):
            action = torch.randint(actions.n, (BATCH,), generator=g).float()
        else:
            action = torch.rand(BATCH, actions.size, generator=g)
        parts.append((obs_pair[0], action, obs_pair[1]))
    return [torch.stack(values) for values in zip(*parts, strict=True)]


class Plain(nn.Module):
    """One member's networks in torch's own modules, with their losses."""

    def __init__(self, curiosity: Icm, m: int):
        super().__init__()
        self.linear_layers = nn.ModuleDict()
        weights = {name: value[m].detach() for name, value in curiosity.network.named_weights().items()}
        for layer in curiosity.network.layers:
            linear = nn.Linear(layer.inputs, layer.outputs)
            linear.weight.data = weights[f"{layer.name}.weight"].T.clone()
            linear.bias.data = weights[f"{layer.name}.bias"].clone()
            self.linear_layers[layer.name.replace(".", "_")] = linear

    def stack(self, name: str, x: Tensor, activation: Any) -> Tensor:
        layers = [layer for key, layer in self.linear_layers.items() if key.startswith(f"{name}_")]
        for layer in layers[:-1]:
            x = activation(layer(x))
        return layers[-1](x)

    def forward(self, spaces: str, obs: Tensor, action: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        now, next_features = (self.stack("features", x, F.leaky_relu) for x in (obs, next_obs))
        inverse_output = self.stack("inverse", torch.cat((now, next_features), 1), F.relu)
        if spaces == "two":
            action_input, inverse = action[:, None], F.binary_cross_entropy_with_logits(inverse_output[:, 0], action)
        elif spaces == "three":
            action_input, inverse = F.one_hot(action.long(), 3).float(), F.cross_entropy(inverse_output, action.long())
        else:
            action_input, inverse = action, F.mse_loss(inverse_output, action)
        x = self.stack("before", torch.cat((now, action_input), 1), F.leaky_relu)
        for i in range(4):
            inner = F.leaky_relu(self.linear_layers[f"block_{i}_0"](torch.cat((x, action_input), 1)))
            x = x + self.linear_layers[f"block_{i}_1"](torch.cat((inner, action_input), 1))
        return inverse, (self.stack("after", x, F.leaky_relu) - next_features).square().mean(1)


@pytest.mark.parametrize("spaces", SPACES)
def test_icm_equals_torch(spaces: str) -> None:
    """Losses, Adam steps through the features, and eta times the prediction error after the step."""
    curiosity = make_curiosity("icm", spaces)
    plain = [Plain(curiosity, m) for m in range(2)]
    optimizers = [torch.optim.Adam(network.parameters(), lr=0.01) for network in plain]
    for step in range(2):
        rows = batch(spaces, step)
        rewards = curiosity.rewards(*rows)
        for m in range(2):
            member_rows = [part[m] for part in rows]
            inverse, error = plain[m](spaces, *member_rows)
            optimizers[m].zero_grad()
            (0.8 * inverse + 0.2 * error.mean()).backward()
            optimizers[m].step()
            expected = 0.5 * plain[m](spaces, *member_rows)[1].detach()
            torch.testing.assert_close(rewards[m], expected, rtol=1e-4, atol=1e-6)


def numpy_network(network: Any, m: int, x: np.ndarray) -> np.ndarray:
    """One member's network in NumPy."""
    weights = [value[m].detach().double().numpy() for value in network.named_weights().values()]
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = x @ weight + bias
        x = np.where(x > 0, x, 0.01 * x)
    return x @ weights[-2] + weights[-1]


def test_rnd_equals_reference() -> None:
    """Observations and errors are divided by deviations over all batches of a member; observations are clipped at 2."""
    curiosity = make_curiosity("rnd")
    obs_history: list[Any] = [np.zeros((0, OBS)), np.zeros((0, OBS))]
    errors: list[Any] = [np.zeros(0), np.zeros(0)]
    cut = 0
    for step in range(4):
        _, action, next_obs = rows = batch("three", step, scale=4.0**step)
        next_obs[1] *= 50
        target = curiosity.target_network.flat.clone()
        reference, inputs = [], []
        for m in range(2):
            obs_history[m] = np.concatenate((obs_history[m], next_obs[m].double().numpy()))
            x = (next_obs[m].double().numpy() - obs_history[m].mean(0)) / obs_history[m].std(0)
            cut += (np.abs(x) > 2).sum()
            inputs.append(x := x.clip(-2, 2))
            error = (
                (numpy_network(curiosity.network, m, x) - numpy_network(curiosity.target_network, m, x)) ** 2
            ).mean(1)
            errors[m] = np.concatenate((errors[m], error))
            reference.append(0.5 * error / errors[m].std())
        old_weights = curiosity.network.flat.detach().clone()
        rewards = curiosity.rewards(*rows)
        torch.testing.assert_close(rewards, torch.tensor(np.stack(reference)).float(), rtol=1e-4, atol=1e-5)
        assert torch.equal(curiosity.target_network.flat, target)
        assert ((curiosity.network.flat - old_weights).abs() > 0).float().mean() > 0.5
        for m, x in enumerate(inputs):  # a step down the error
            difference = numpy_network(curiosity.network, m, x) - numpy_network(curiosity.target_network, m, x)
            assert (difference**2).mean() < errors[m][-BATCH:].mean()
    assert cut > 0 and not curiosity.target_network.flat.requires_grad


def test_moments_of_constant() -> None:
    """Rounding of a mean is no deviation."""
    moments = Moments(1, (2,))
    for _ in range(50):
        moments.add(torch.tensor([[[0.1, 0.0]] * 3]))
    assert moments.deviation().tolist() == [[1, 1]]


def weights(curiosity: Curiosity) -> Iterator[Tensor]:
    return chain([curiosity.weights], curiosity.optimizer.state_dict().values())


def agent(**changes: Any) -> Agent:
    config = Config(hidden_sizes=(7,), batch_size=BATCH, init_episodes=0, icm_feature_dim=4, icm_hidden_size=6,
                    rnd_feature_dim=4, rnd_hidden_size=6, **changes)  # fmt: skip
    return Agent(config, SPACES["three"], [0, 1])


def live(learner: Agent, reward: float, discount: float) -> None:
    for step in range(8):
        obs, _, next_obs = (part[:, :1] for part in batch("three", step))
        action = learner.act(obs)
        done = torch.full((2, 1), discount == 0)
        learner.observe(obs, action, next_obs, torch.full((2, 1), reward), torch.full((2, 1), discount), done)
        learner.learn()


def test_bonus_is_added_to_rewards() -> None:
    class Three:
        def rewards(self, *_: Any) -> Tensor:
            return torch.full((2, BATCH), 3.0)

    curious, rich = agent(), agent()
    curious.curiosity = Three()  # type: ignore[assignment]
    live(curious, 1.0, 1.0)
    live(rich, 4.0, 1.0)
    assert torch.equal(curious.flat_parameters, rich.flat_parameters)


@pytest.mark.parametrize("kind", KINDS)
def test_last_step_gets_bonus(kind: str) -> None:
    """The bonus depends on the next observation, whether or not the episode ends there."""
    ending_agent, going_on = agent(intrinsic=kind, eps_decay=1.0), agent(intrinsic=kind, eps_decay=1.0)
    live(ending_agent, 1.0, 0.0)
    live(going_on, 1.0, 1.0)
    assert ending_agent.curiosity is not None and going_on.curiosity is not None
    for ending_weights, other in zip(weights(ending_agent.curiosity), weights(going_on.curiosity), strict=True):
        assert torch.equal(ending_weights, other)
    assert not torch.equal(ending_agent.flat_parameters, going_on.flat_parameters)
    assert not torch.equal(ending_agent.flat_parameters, agent(intrinsic=kind).flat_parameters)
