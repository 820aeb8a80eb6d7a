"""Networks, command-conditioned and fully connected, against plain torch and published weights."""

import math
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

from helpers import build, config_of, torch_mlp
from models.agents.command_conditioned.networks import BehaviorNetwork, GatedNetwork
from models.agents.ddqn.config import Config as DdqnConfig
from models.agents.model_generalisation.config import Config as ModelConfig
from models.layers import BLOCK, ConvolutionalTrunk, Dense, Truncated
from models.mlp import MLP, MlpNetwork
from models.spaces import Discrete, Spaces
from models.streams import Streams
from rounding import assert_near

LANDER = Spaces((8,), Discrete(4), max_return=320.0)
HIDDEN = (32, 128, 128, 128)


def plain(network, member: int) -> dict[str, Tensor]:
    """Weights of one member by name in torch's shape ``[out, in]``."""
    return {
        name: (view[member].T if view.dim() == 3 else view[member]).detach()
        for name, view in network.named_weights().items()
    }


class PublishedBehavior(nn.Module):
    """The network of the public code."""

    def __init__(self) -> None:
        super().__init__()
        self.state_fc = nn.Sequential(nn.Linear(8, 32), nn.Tanh())
        self.command_fc = nn.Sequential(nn.Linear(2, 32), nn.Sigmoid())
        hidden = [nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
        self.output_fc = nn.Sequential(*hidden, nn.Linear(128, 4))

    def forward(self, obs: Tensor, command: Tensor) -> Tensor:
        return self.output_fc(self.state_fc(obs) * self.command_fc(command * torch.tensor([0.025, 0.01])))


def published(seed: int = 0) -> tuple[PublishedBehavior, dict[str, Tensor]]:
    torch.manual_seed(seed)
    model = PublishedBehavior().double()
    return model, {f"model.{name}": value for name, value in model.state_dict().items()}


def lander(members: int = 2, **changes):
    agent = build("UDRL", LANDER, list(range(members)), config_of("UDRL", "lunarlander", **changes))
    agent.commands.update_scale()
    return agent


def test_initialization_equals_published() -> None:
    weights = plain(BehaviorNetwork(8, 2, 4, HIDDEN, Streams([3]), "relu"), 0)
    for name, gain in [("state_fc.0", 1), ("command_fc.0", 1), *((f"output_fc.{i}", 2**0.5) for i in (0, 2, 4))]:
        weight = weights[f"{name}.weight"]
        small = min(weight.shape)
        product = weight @ weight.T if weight.shape[0] == small else weight.T @ weight
        assert_near(product, gain**2 * torch.eye(small))
        bias = weights[f"{name}.bias"]
        assert 0 < bias.abs().max() <= weight.shape[1] ** -0.5
    last = weights["output_fc.6.weight"]
    assert 0.95 * 128**-0.5 < last.abs().max() <= 128**-0.5
    assert (last @ last.T - torch.diag((last @ last.T).diag())).abs().max() > 1e-3  # not orthogonal


def test_published_weights_give_the_published_outputs() -> None:
    """The same names, and the published scales of commands."""
    model, state_dict = published()
    agent = lander(members=3)
    agent.policy.double()
    assert list(plain(agent.policy, 0)) == [name.removeprefix("model.") for name in state_dict]
    assert agent.policy.flat.shape[1] == 38_148
    assert GatedNetwork(8, 1, 4, (64, 64), Streams([0]), "relu").flat.shape[1] == 5_252
    with torch.no_grad():
        for name, view in agent.policy.named_weights().items():
            view.copy_(state_dict[f"model.{name}"].T if view.dim() == 3 else state_dict[f"model.{name}"])
    obs, command = torch.randn(3, 50, 8), torch.tensor([600.0, 900.0]) * (torch.rand(3, 50, 2) - torch.tensor([0.5, 0]))
    for grad in (True, False):  # cached views have the new weights too
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(agent(obs.double(), command.double()), model(obs.double(), command.double()))


def test_hypernetwork_initial_outputs_are_small() -> None:
    agent = lander(network="hypernetwork")
    assert agent.policy.flat.shape[1] == 113_580
    command = torch.tensor([[300.0, 900.0], [-300.0, 1.0], [0.0, 200.0], [320.0, 1.0]]).expand(2, -1, -1)
    logits = agent(torch.randn(2, 4, 8), command)
    assert logits.isfinite().all() and logits.abs().max() < 5 and logits.std() > 1e-3
    assert logits.softmax(-1).max() < 0.95 and (logits < 0).any()


def test_convolutional_trunk_equals_torch() -> None:
    spaces = Spaces((8, 32, 32), Discrete(3), torch.uint8)
    trunk = ConvolutionalTrunk(spaces, (32, 48, 96, 128), Streams([0, 1]))
    assert trunk.features == 128 * 2 * 2
    images = torch.randint(256, (2, 3, 8, 32, 32), dtype=torch.uint8)
    for m in range(2):
        x, weights = images[m].float() / 255, plain(trunk, m)
        for layer in trunk.layers:
            kernel = weights[f"{layer.name}.weight"].view(layer.outputs, -1, 3, 3)
            bias = weights[f"{layer.name}.bias"]
            x = F.conv2d(x, kernel, bias, stride=2, padding=1).relu()
        assert_near(trunk(images)[m], x.flatten(1))


CASES = [("columns", name) for name in DdqnConfig.__dataclass_fields__["activation"].metadata["choices"]]
CASES += [("rows", name) for name in ModelConfig.__dataclass_fields__["activation"].metadata["choices"]]
SHAPES = [[4, 33, 2], [3, 7, 7, 2], [5, 9, 8, 6, 3], [1, 5, 5, 6], [6, 17, 17, 1], [2, 1, 1, 2], [4, 11, 1],
          [4, 90, 80, 2]]  # fmt: skip  # the last is too large for sums of products


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_mlp(sizes: Sequence[int], activation: str, layout: str, members: int = 3) -> tuple[MLP, Tensor]:
    """A network with random biases and prelu slopes."""
    layer, block = (Dense, 1) if layout == "columns" else (Truncated, BLOCK)
    mlp = MLP(sizes, activation, layout=layout, layer=layer, block=block)
    flat = mlp.initial(Streams(range(members))) * 1.5 + 0.2 * random_tensor(members, mlp.size, seed=7)
    if activation == "prelu":
        slope = mlp.size - mlp.padding - 1  # its place is before the padding
        flat[:, slope] = torch.tensor([0.25, -0.6, 0.0, 0.1, 0.9][:members])
    return mlp, flat


def in_layout(x: Tensor, layout: str) -> Tensor:
    """Converts ``[M, B, features]`` to the layout's order of axes, and back."""
    return x.transpose(1, 2) if layout == "columns" else x


@pytest.mark.parametrize(("layout", "activation"), CASES)
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_forward_and_backward_equal_torch(sizes: list[int], layout: str, activation: str) -> None:
    """In float64, which needs no allowance for rounding."""
    mlp, flat = make_mlp(sizes, activation, layout)
    flat = flat.double().requires_grad_()
    for batch in (1, 2, 13):
        x = in_layout(random_tensor(3, batch, sizes[0]), layout).double().requires_grad_()
        members = zip(flat, in_layout(x, layout), strict=True)
        expected = in_layout(torch.stack([torch_mlp(mlp, *member) for member in members]), layout)
        upstream = in_layout(random_tensor(3, batch, sizes[-1], seed=1), layout).double()
        gradients = torch.autograd.grad(expected, (flat, x), upstream)
        with torch.no_grad():
            layers = mlp.layers(flat)
            trace = mlp.forward(layers, x)
            parameters, inputs = mlp.backward(layers, x, trace, upstream, need_input_gradient=True)
            assert torch.equal(mlp.backward(layers, x, trace, upstream)[0], parameters)
        torch.testing.assert_close((trace[-1], parameters, inputs), (expected, *gradients))


@pytest.mark.parametrize("sizes", [[4, 83, 1], [9, 40, 30, 2], [2, 6, 5]], ids=str)
def test_initialization_equals_linear(sizes: list[int]) -> None:
    """Weights and biases are uniform within 1/sqrt(inputs)."""
    mlp = MLP(sizes, "prelu")
    layers = mlp.layers(mlp.initial(Streams(range(300))))
    assert torch.equal(layers[-1][0], torch.full((300, 1, 1), 0.25))
    for (weight, bias), inputs in zip(layers[:-1], sizes[:-1], strict=True):
        bound = inputs**-0.5
        for part in (weight, bias):
            values = part.flatten().numpy()
            assert abs(values).max() <= bound
            assert stats.kstest(values, "uniform", (-bound, 2 * bound)).pvalue > 1e-3
        assert not torch.equal(weight[0], weight[1])


@pytest.mark.parametrize(("inputs", "hidden"), [(4, 83), (64, 20)])
def test_initialization_equals_haiku(inputs: int, hidden: int) -> None:
    """Weights are standard normal, truncated at 2 and divided by sqrt(inputs): deviation 0.880; biases are 0."""
    net = MlpNetwork((inputs, hidden, hidden, 5), "elu", Streams(range(100)), Truncated)
    for (weight, bias), fan_in in zip(net.layers(), (inputs, hidden, hidden), strict=True):
        assert not bias.any()
        values = weight.flatten() * math.sqrt(fan_in)
        assert 1.9 < values.abs().max() <= 2.0 + 1e-5
        assert values.std().item() == pytest.approx(0.8796, abs=0.015)
        assert stats.kstest(values[:20_000].numpy(), stats.truncnorm(-2, 2).cdf).pvalue > 1e-3
        assert not torch.equal(weight[0], weight[1])


ALONE = [[4, 33, 2], [1, 18], [1, 5, 5, 6], [6, 83, 1], [4, 128, 128, 2], [9, 17, 1, 2], [6, 249, 6], [69, 11, 11, 64]]


@pytest.mark.parametrize(("layout", "activation"), CASES)
@pytest.mark.parametrize("sizes", ALONE, ids=str)
def test_member_alone_equals_member_in_company(sizes: list[int], layout: str, activation: str) -> None:
    mlp, flat = make_mlp(sizes, activation, layout, members=5)

    def forward_backward(members: list[int], x: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
        layers, placed_x = mlp.layers(flat[members]), in_layout(x[members], layout)
        trace = mlp.forward(layers, placed_x)
        return trace[-1], *mlp.backward(
            layers, placed_x, trace, in_layout(upstream[members], layout), need_input_gradient=True
        )

    for batch in (1, 2, 9, 33, 57):
        arguments = random_tensor(5, batch, sizes[0]), random_tensor(5, batch, sizes[-1], seed=1)
        company = forward_backward([0, 1, 2, 3, 4], *arguments)
        for members in ([0], [4], [1, 2, 4]):
            for actual, all_ in zip(forward_backward(members, *arguments), company, strict=True):
                assert actual is not None and all_ is not None and torch.equal(actual, all_[members])
