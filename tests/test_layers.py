"""Layers of M members against torch's own, one member at a time."""

import pytest
import torch
import torch.nn.functional as F

from models.layers import Dense, Network, convolution, dense, sigmoid
from models.streams import Streams
from rounding import FUNCTION, UNIT, affine, assert_near, gamma


@pytest.mark.parametrize("batch", [1, 2, 33])
@pytest.mark.parametrize("outputs", [1, 4, 33])
@pytest.mark.parametrize("inputs", [1, 2, 8])
def test_dense_is_linear_for_every_member(inputs: int, outputs: int, batch: int) -> None:
    x, weight, bias = torch.randn(3, batch, inputs), torch.randn(3, inputs, outputs), torch.randn(3, outputs)
    out = dense(x, weight, bias)
    for m in range(3):
        assert_near(out[m], F.linear(x[m], weight[m].T, bias[m]), affine(x[m], weight[m].T, bias[m]))


@pytest.mark.parametrize("batch", [1, 2, 31, 768])
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(8, 32), (1, 32), (2, 32), (32, 128), (128, 4), (64, 1), (3, 2), (128, 128)]
)
def test_a_member_alone_is_the_same_to_the_bit(inputs: int, outputs: int, batch: int) -> None:
    def run(x, weight, bias):
        # nothing stands in front of a layer with one input, observation or command, that would take its gradient
        leaves = [x.clone().requires_grad_(inputs > 1), weight.clone().requires_grad_(), bias.clone().requires_grad_()]
        out = sigmoid(dense(*leaves)) + dense(*leaves).relu()
        out.square().mean((1, 2)).sum().backward()
        return [out.detach(), *(leaf.grad for leaf in leaves if leaf.requires_grad)]

    tensors = torch.randn(3, batch, inputs), torch.randn(3, inputs, outputs), torch.randn(3, outputs)
    joint_results = run(*tensors)
    for m in range(3):
        alone = run(*(t[m : m + 1] for t in tensors))
        assert all(torch.equal(a[m], b[0]) for a, b in zip(joint_results, alone, strict=True))


def test_sigmoid_is_the_logistic_function() -> None:
    x = torch.linspace(-200, 200, 4001)
    assert_near(sigmoid(x), torch.sigmoid(x), 4 * UNIT)  # of (1 + tanh(x / 2)) / 2: two roundings of numbers up to 2


@pytest.mark.parametrize(("channels", "out", "size"), [(8, 32, 32), (1, 5, 7), (3, 4, 8), (2, 1, 6)])
def test_convolution_is_conv2d_for_every_member(channels: int, out: int, size: int) -> None:
    x = torch.randn(2, 3, channels, size, size + 2)
    kernel, bias = torch.randn(2, out, channels, 3, 3), torch.randn(2, out)
    outputs = convolution(x, kernel.flatten(2).transpose(1, 2), bias)
    for m in range(2):
        expected = F.conv2d(x[m], kernel[m], bias[m], stride=2, padding=1)
        terms = F.conv2d(x[m].abs(), kernel[m].abs(), bias[m].abs(), stride=2, padding=1)
        assert_near(outputs[m], expected, gamma(9 * channels + 1) * terms)


def test_weights_are_views_in_the_order_of_the_layers() -> None:
    network = Network([Dense("a", 3, 2), Dense("b", 2, 5, gain=1.0)], Streams([1, 2]))
    assert network.flat.shape[1] == 3 * 2 + 2 + 2 * 5 + 5
    with torch.no_grad():
        named_weights, cached = network.named_weights(), network.weights()
        assert {name: tuple(view.shape) for name, view in named_weights.items()} == {
            "a.weight": (2, 3, 2), "a.bias": (2, 2), "b.weight": (2, 2, 5), "b.bias": (2, 5)}  # fmt: skip
        network.flat.copy_(torch.arange(2 * network.flat.shape[1]).view(2, -1))
        assert torch.equal(torch.cat([view.flatten(1) for view in named_weights.values()], 1), network.flat)
        for views in (cached, network.weights()):
            assert all(torch.equal(a, b) for a, b in zip(views, named_weights.values(), strict=True))
        network.flat.data = network.flat.data + 1  # new memory
        assert torch.equal(network.weights()[0], network.named_weights()["a.weight"])


def test_a_scale_shrinks_the_weight_and_not_the_bias() -> None:
    plain, small = (Network([Dense("a", 10, 4, scale=scale)], Streams([5])).named_weights() for scale in (1.0, 0.1))
    torch.testing.assert_close(small["a.weight"], 0.1 * plain["a.weight"])
    assert torch.equal(small["a.bias"], plain["a.bias"])


@pytest.mark.parametrize(("inputs", "outputs"), [(8, 32), (32, 8)])
def test_a_gain_gives_orthogonal_weights(inputs: int, outputs: int) -> None:
    weight = Network([Dense("a", inputs, outputs, gain=1.5)], Streams([3])).named_weights()["a.weight"][0]
    product = weight @ weight.T if inputs < outputs else weight.T @ weight
    # Householder's QR: orthogonal to small multiples of gamma (Higham 2002, theorem 19.4), and the product's sum.
    assert_near(product, 1.5**2 * torch.eye(8), 1.5**2 * gamma(32 + 8 * FUNCTION))
