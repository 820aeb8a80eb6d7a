"""Feature-major networks against torch's own layers and autograd, and each member by itself."""

import itertools

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from models.agents.ddqn.config import Config
from models.mlp import Mlp
from models.streams import Streams

MODULES = {
    "relu": nn.ReLU, "leakyrelu": lambda: nn.LeakyReLU(0.01), "tanh": nn.Tanh, "prelu": nn.PReLU,
    "identity": nn.Identity,
}  # fmt: skip
ACTIVATIONS = Config.__dataclass_fields__["activation_fn"].metadata["choices"]  # what a setting may name
SHAPES = ([4, 33, 2], [3, 7, 5, 2], [5, 9, 8, 6, 3], [1, 5, 1], [6, 17, 17, 1], [2, 1, 1, 2])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def torch_stack(mlp: Mlp, flat: Tensor, member: int) -> nn.Sequential:
    """The member as torch's own modules, one activation module shared by all layers."""
    layers = mlp.layers(flat)
    between, modules = MODULES[mlp.activation](), []
    if mlp.activation == "prelu":
        between.weight.data = layers[-1][0][member, 0].clone()
    for i, (inputs, outputs) in enumerate(itertools.pairwise(mlp.sizes)):
        linear = nn.Linear(inputs, outputs)
        linear.weight.data, linear.bias.data = layers[i][0][member].clone(), layers[i][1][member, :, 0].clone()
        modules += [linear, between]
    return nn.Sequential(*modules[:-1])


def torch_gradient(mlp: Mlp, stack: nn.Sequential) -> Tensor:
    """The gradients of `torch_stack`, in the places of `Mlp.layers`."""
    found = torch.full((1, mlp.size), torch.nan)
    places = mlp.layers(found)
    for place, linear in zip(places, [m for m in stack if isinstance(m, nn.Linear)], strict=False):
        place[0][0].copy_(linear.weight.grad)
        place[1][0, :, 0].copy_(linear.bias.grad)
    if mlp.activation == "prelu":
        places[-1][0].copy_(stack[1].weight.grad)
    return found[0]


@pytest.mark.parametrize("batch", [1, 2, 13])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_forward_and_backward_equal_torch(sizes: list[int], activation: str, batch: int) -> None:
    mlp = Mlp(sizes, activation)
    flat = mlp.initial(Streams(range(3))) * 1.5
    if activation == "prelu":
        flat[:, -1] = torch.tensor([0.25, -0.6, 0.0])  # what learning may make of the slope
    x, wanted = drawn(3, sizes[0], batch), drawn(3, sizes[-1], batch, seed=1)
    outputs = mlp.forward(mlp.layers(flat), x)
    parameters, down = mlp.backward(mlp.layers(flat), x, outputs, wanted, inputs=True)
    assert down is not None
    assert torch.equal(mlp.backward(mlp.layers(flat), x, outputs, wanted)[0], parameters)
    for m in range(3):
        stack, theirs = torch_stack(mlp, flat, m), x[m].T.clone().requires_grad_()
        result = stack(theirs)
        torch.testing.assert_close(outputs[-1][m].T, result, rtol=1e-6, atol=1e-6)
        result.backward(wanted[m].T)
        torch.testing.assert_close(parameters[m], torch_gradient(mlp, stack), rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(down[m].T, theirs.grad, rtol=1e-5, atol=2e-6)


def test_a_layer_too_large_for_sums_of_products() -> None:
    mlp = Mlp([4, 90, 80, 2], "tanh")
    flat, x = mlp.initial(Streams(range(2))), drawn(2, 4, 1)
    outputs = mlp.forward(mlp.layers(flat), x)
    for m in range(2):
        torch.testing.assert_close(outputs[-1][m].T, torch_stack(mlp, flat, m)(x[m].T), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("leak", [0.25, 0.01])
def test_leakyrelu_of_another_slope(leak: float) -> None:
    mlp = Mlp([3, 8, 2], "leakyrelu", leak)
    flat, x = mlp.initial(Streams([0])), drawn(1, 3, 6)
    outputs = mlp.forward(mlp.layers(flat), x)
    stack = torch_stack(mlp, flat, 0)
    stack[1] = nn.LeakyReLU(leak)
    torch.testing.assert_close(outputs[-1][0].T, stack(x[0].T), rtol=1e-6, atol=1e-6)
    stack(x[0].T).sum().backward()
    gradient, _ = mlp.backward(mlp.layers(flat), x, outputs, torch.ones(1, 2, 6))
    torch.testing.assert_close(gradient[0], torch_gradient(mlp, stack), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("sizes", [[4, 83, 1], [9, 40, 30, 2], [2, 6, 5]], ids=str)
def test_initial_parameters_are_drawn_as_those_of_linear(sizes: list[int]) -> None:
    """Every weight and bias uniform within 1/sqrt(inputs), as `torch.nn.Linear` says."""
    mlp = Mlp(sizes, "prelu")
    layers = mlp.layers(mlp.initial(Streams(range(300))))
    assert torch.equal(layers[-1][0], torch.full((300, 1, 1), 0.25))
    for (weight, bias), inputs in zip(layers[:-1], sizes[:-1], strict=True):
        bound = inputs**-0.5
        for part in (weight, bias):
            ours = part.flatten().numpy()
            assert abs(ours).max() <= bound
            assert stats.kstest(ours, "uniform", (-bound, 2 * bound)).pvalue > 1e-3
        theirs = torch.cat([nn.Linear(inputs, 50).weight.detach().flatten() for _ in range(40)]).numpy()
        assert stats.ks_2samp(weight.flatten().numpy(), theirs).pvalue > 1e-3
        assert not torch.equal(weight[0], weight[1])


@pytest.mark.parametrize("batch", [1, 2, 33])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("sizes", [[4, 33, 2], [6, 83, 1], [4, 128, 128, 2], [9, 17, 1, 2], [6, 249, 6]], ids=str)
def test_a_member_alone_is_itself_in_company_to_the_bit(sizes: list[int], activation: str, batch: int) -> None:
    mlp = Mlp(sizes, activation)
    flat = mlp.initial(Streams(range(5)))
    x, wanted = drawn(5, sizes[0], batch), drawn(5, sizes[-1], batch, seed=1)

    def everything(members: list[int]) -> tuple[Tensor | None, ...]:
        layers = mlp.layers(flat[members])
        outputs = mlp.forward(layers, x[members])
        return outputs[-1], *mlp.backward(layers, x[members], outputs, wanted[members], inputs=True)

    company = everything([0, 1, 2, 3, 4])
    for members in ([0], [3], [4], [1, 2, 4]):
        for one, all_ in zip(everything(members), company, strict=True):
            assert one is not None and all_ is not None and torch.equal(one, all_[members])
