"""The fully connected network in both layouts against torch's own layers and autograd, and each member by itself."""

import copy
import math
from collections.abc import Sequence

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from models.agents.ddqn.config import Config as DdqnConfig
from models.agents.model_generalisation.config import Config as ModelConfig
from models.agents.model_generalisation.values import make_network
from models.layers import BLOCK, Dense, Truncated
from models.mlp import MLP, MlpNetwork
from models.streams import Streams
from rounding import Stack, assert_near

MODULES = {
    "relu": nn.ReLU, "leakyrelu": lambda: nn.LeakyReLU(0.01), "tanh": nn.Tanh, "prelu": nn.PReLU,
    "identity": nn.Identity, "elu": nn.ELU, "silu": nn.SiLU,
}  # fmt: skip
CASES = [("columns", name) for name in DdqnConfig.__dataclass_fields__["activation"].metadata["choices"]]
CASES += [("rows", name) for name in ModelConfig.__dataclass_fields__["activation"].metadata["choices"]]
SHAPES = (
    [4, 33, 2],
    [3, 7, 7, 2],
    [5, 9, 8, 6, 3],
    [1, 5, 1],
    [1, 5, 5, 6],
    [6, 17, 17, 1],
    [2, 1, 1, 2],
    [4, 11, 1],
    [4, 90, 80, 2],
)  # the last is too large for sums of products


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_mlp(sizes: Sequence[int], activation: str, layout: str, members: int = 3) -> tuple[MLP, Tensor]:
    """An architecture and parameters, biases and slopes as learning may make them."""
    layer, block = (Dense, 1) if layout == "columns" else (Truncated, BLOCK)
    mlp = MLP(sizes, activation, layout=layout, layer=layer, block=block)
    flat = mlp.initial(Streams(range(members))) * 1.5 + 0.2 * random_tensor(members, mlp.size, seed=7)
    if activation == "prelu":
        flat[:, slope(mlp)] = torch.tensor([0.25, -0.6, 0.0, 0.1, 0.9][:members])
    return mlp, flat


def slope(mlp: MLP) -> int:
    """Where prelu's stands, before what fills the row up."""
    return mlp.size - mlp.padding - 1


def placed(x: Tensor, layout: str) -> Tensor:
    """``[M, B, features]`` in the layout's order of axes, and back."""
    return x.transpose(1, 2) if layout == "columns" else x


def plain_layers(mlp: MLP, flat: Tensor, layout: str, member: int) -> list[tuple[Tensor, Tensor]]:
    """Weights ``[out, in]`` and biases ``[out]`` of a member, views of ``flat``."""
    layers = [(weight[member], bias[member]) for weight, bias in mlp.layers(flat)[: mlp.depth]]
    return [(w, b[:, 0]) if layout == "columns" else (w.T, b) for w, b in layers]


def torch_stack(mlp: MLP, flat: Tensor, layout: str, member: int) -> nn.Sequential:
    """The member as torch's own modules, one activation module shared by all layers."""
    between, modules = MODULES[mlp.activation](), []
    if mlp.activation == "prelu":
        between.weight.data = flat[member, slope(mlp)].clone().view(1)
    for weight, bias in plain_layers(mlp, flat, layout, member):
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight.data, linear.bias.data = weight.clone(), bias.clone()
        modules += [linear, between]
    return nn.Sequential(*modules[:-1])


def check_member(
    mlp: MLP, flat: Tensor, x: Tensor, upstream: Tensor, layout: str, m: int, stack: nn.Sequential, actual: list[Tensor]
) -> None:
    """Outputs ``[B, out]``, gradients of the parameters and of the inputs ``x [B, in]``: those of torch's ``stack``, by
    as much as rounding may move them."""
    torch_input = x.clone().requires_grad_()
    result = stack(torch_input)
    result.backward(upstream)
    bounds = Stack(plain_layers(mlp, flat, layout, m), copy.deepcopy(stack[1]).double(), x)
    layers, input_bound, shared = bounds.backward(upstream)
    allowed = torch.zeros(1, mlp.size)
    for places, errors in zip(plain_layers(mlp, allowed, layout, 0), layers, strict=True):
        for place, error in zip(places, errors, strict=True):
            place.copy_(error)
    if mlp.activation == "prelu" and len(layers) > 1:
        allowed[0, slope(mlp)] = shared
    assert_near(actual[0], result, bounds.error)
    assert_near(actual[1], torch_gradient(mlp, stack, layout), allowed[0])
    assert_near(actual[2], torch_input.grad, input_bound)


def torch_gradient(mlp: MLP, stack: nn.Sequential, layout: str) -> Tensor:
    """The gradients of `torch_stack`, in the places of `MLP.layers`; what fills a row up has none."""
    gradient = torch.zeros(1, mlp.size)
    linear = [module for module in stack if isinstance(module, nn.Linear)]
    for (weight, bias), torch_layer in zip(plain_layers(mlp, gradient, layout, 0), linear, strict=True):
        weight.copy_(torch_layer.weight.grad)
        bias.copy_(torch_layer.bias.grad)
    if mlp.activation == "prelu" and len(linear) > 1:
        gradient[0, slope(mlp)] = stack[1].weight.grad
    return gradient[0]


@pytest.mark.parametrize(("layout", "activation"), CASES)
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_forward_and_backward_equal_torch(sizes: list[int], layout: str, activation: str) -> None:
    for batch in (1, 2, 13):
        check_against_torch(*make_mlp(sizes, activation, layout), layout, batch)


def check_against_torch(mlp: MLP, flat: Tensor, layout: str, batch: int) -> None:
    x, upstream = random_tensor(3, batch, mlp.sizes[0]), random_tensor(3, batch, mlp.sizes[-1], seed=1)
    placed_x, goal, layers = placed(x, layout), placed(upstream, layout), mlp.layers(flat)
    trace = mlp.forward(layers, placed_x)
    parameters, input_gradient = mlp.backward(layers, placed_x, trace, goal, inputs=True)
    assert input_gradient is not None and torch.equal(mlp.backward(layers, placed_x, trace, goal)[0], parameters)
    for m in range(3):
        actual = [placed(trace[-1], layout)[m], parameters[m], placed(input_gradient, layout)[m]]
        check_member(mlp, flat, x[m], upstream[m], layout, m, torch_stack(mlp, flat, layout, m), actual)


@pytest.mark.parametrize("activation", ModelConfig.__dataclass_fields__["activation"].metadata["choices"])
@pytest.mark.parametrize("sizes", [[4, 9, 9, 3], [5, 7, 1]], ids=str)
def test_autograd_goes_through_the_backward_pass_by_hand(sizes: list[int], activation: str) -> None:
    net = MlpNetwork(sizes, activation, Streams(range(3)), Truncated, BLOCK)
    x, upstream = random_tensor(3, 6, sizes[0]).requires_grad_(), random_tensor(3, 6, sizes[-1], seed=1)
    outputs = net(x)
    parameters, input_gradient = torch.autograd.grad(outputs, (net.flat, x), upstream)
    with torch.no_grad():
        by_hand = net.gradient(x, net.activations(x), upstream, inputs=True)
        assert torch.equal(net(x), outputs) and torch.equal(net.activations(x, net.flat.clone())[-1], outputs)
        assert (
            torch.equal(by_hand[0], parameters) and by_hand[1] is not None and torch.equal(by_hand[1], input_gradient)
        )
        net.flat.data = net.flat.data * 2  # other memory: the views of the old are no longer used
        assert torch.equal(net.activations(x)[-1], net.activations(x, net.flat)[-1])


def test_leakyrelu_of_another_slope() -> None:
    mlp = MLP([3, 8, 2], "leakyrelu", leak=0.25)
    flat, x = mlp.initial(Streams([0])), random_tensor(1, 3, 6)
    trace = mlp.forward(mlp.layers(flat), x)
    stack = torch_stack(mlp, flat, "columns", 0)
    stack[1] = nn.LeakyReLU(0.25)
    upstream = torch.ones(1, 2, 6)
    gradient, input_gradient = mlp.backward(mlp.layers(flat), x, trace, upstream, inputs=True)
    assert input_gradient is not None
    check_member(
        mlp, flat, x[0].T, upstream[0].T, "columns", 0, stack, [trace[-1][0].T, gradient[0], input_gradient[0].T]
    )


@pytest.mark.parametrize("sizes", [[4, 83, 1], [9, 40, 30, 2], [2, 6, 5]], ids=str)
def test_initial_parameters_are_drawn_as_those_of_linear(sizes: list[int]) -> None:
    """Every weight and bias uniform within 1/sqrt(inputs), as `torch.nn.Linear` says."""
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
def test_networks_start_as_those_of_haiku(inputs: int, hidden: int) -> None:
    """Weights of a standard normal cut off at 2, over the root of the inputs: deviation 0.880 of it; biases 0."""
    net = MlpNetwork((inputs, hidden, hidden, 5), "elu", Streams(range(100)), Truncated)
    for (weight, bias), fan_in in zip(net.layers(), (inputs, hidden, hidden), strict=True):
        assert not bias.any()
        values = weight.flatten() * math.sqrt(fan_in)
        assert 1.9 < values.abs().max() <= 2.0 + 1e-5
        assert values.std().item() == pytest.approx(0.8796, abs=0.015)
        assert stats.kstest(values[:20_000].numpy(), stats.truncnorm(-2, 2).cdf).pvalue > 1e-3
        assert not torch.equal(weight[0], weight[1])


def test_networks_have_as_many_parameters_as_the_original_s() -> None:
    """Of ProcMaze on four by four cells: 64 numbers, 5 actions, 32 latent variables."""
    counts = {
        (64, 5): 94_405, (69, 1): 94_601, (69, 64): 107_264,  # values; reward and termination; next observation
        (64, 64): 106_264, (37, 64): 100_864, (37, 1): 88_201, (32, 64): 99_864, (32, 5): 88_005,  # Gaussian latents
        (64, 1024): 299_224, (1029, 1024): 492_224, (1029, 1): 286_601, (1024, 64): 298_264, (1024, 5): 286_405,
    }  # fmt: skip
    for (inputs, outputs), count in counts.items():
        net = make_network(ModelConfig(), inputs, outputs, Streams([0]), torch.device("cpu"))
        assert sum(part.numel() for layer in net.layers() for part in layer) == count


ALONE = [[4, 33, 2], [1, 5, 5, 6], [3, 7, 7, 2], [6, 83, 1], [4, 128, 128, 2], [9, 17, 1, 2], [6, 249, 6], [9, 40, 30],
         [69, 11, 11, 64]]  # fmt: skip


@pytest.mark.parametrize(("layout", "activation"), CASES)
@pytest.mark.parametrize("sizes", ALONE, ids=str)
def test_a_member_alone_is_itself_in_company_to_the_bit(sizes: list[int], layout: str, activation: str) -> None:
    mlp, flat = make_mlp(sizes, activation, layout, members=5)

    def forward_backward(members: list[int], x: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
        layers, placed_x = mlp.layers(flat[members]), placed(x[members], layout)
        trace = mlp.forward(layers, placed_x)
        return trace[-1], *mlp.backward(layers, placed_x, trace, placed(upstream[members], layout), inputs=True)

    for batch in (1, 2, 9, 33):
        arguments = random_tensor(5, batch, sizes[0]), random_tensor(5, batch, sizes[-1], seed=1)
        company = forward_backward([0, 1, 2, 3, 4], *arguments)
        for members in ([0], [4], [1, 2, 4]):
            for actual, all_ in zip(forward_backward(members, *arguments), company, strict=True):
                assert actual is not None and all_ is not None and torch.equal(actual, all_[members])
