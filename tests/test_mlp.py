"""Fully connected networks in both layouts: parity with torch, initialization, and independence of members."""

import math
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from models.agents.ddqn.config import Config as DdqnConfig
from models.agents.model_generalisation.config import Config as ModelConfig
from models.layers import BLOCK, Dense, Truncated
from models.mlp import MLP, MlpNetwork
from models.streams import Streams

ACTIVATIONS = {
    "relu": torch.relu, "leakyrelu": F.leaky_relu, "tanh": torch.tanh, "identity": lambda x: x, "elu": F.elu,
    "silu": F.silu,
}  # fmt: skip
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
        flat[:, slope_index(mlp)] = torch.tensor([0.25, -0.6, 0.0, 0.1, 0.9][:members])
    return mlp, flat


def slope_index(mlp: MLP) -> int:
    """prelu's slope is before the padding."""
    return mlp.size - mlp.padding - 1


def in_layout(x: Tensor, layout: str) -> Tensor:
    """Converts ``[M, B, features]`` to the layout's order of axes, and back."""
    return x.transpose(1, 2) if layout == "columns" else x


def torch_forward(mlp: MLP, flat: Tensor, x: Tensor, layout: str) -> Tensor:
    """The network of every member as a formula that autograd differentiates."""
    layers = mlp.layers(flat)
    for i, (weight, bias) in enumerate(layers[: mlp.depth]):
        x = weight @ x + bias if layout == "columns" else x @ weight + bias.unsqueeze(1)
        if i < mlp.depth - 1:
            prelu = mlp.activation == "prelu"
            x = torch.where(x > 0, x, layers[-1][0] * x) if prelu else ACTIVATIONS[mlp.activation](x)
    return x


@pytest.mark.parametrize(("layout", "activation"), CASES)
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_forward_and_backward_equal_torch(sizes: list[int], layout: str, activation: str) -> None:
    """In float64, which needs no allowance for rounding."""
    mlp, flat = make_mlp(sizes, activation, layout)
    flat = flat.double().requires_grad_()
    for batch in (1, 2, 13):
        x = in_layout(random_tensor(3, batch, sizes[0]), layout).double().requires_grad_()
        upstream = in_layout(random_tensor(3, batch, sizes[-1], seed=1), layout).double()
        expected = torch_forward(mlp, flat, x, layout)
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
