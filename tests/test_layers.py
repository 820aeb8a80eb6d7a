"""Layers: independence of members, weights as views, and scales."""

import pytest
import torch

from models.layers import Dense, Network, dense, sigmoid
from models.streams import Streams


@pytest.mark.parametrize("batch", [1, 2, 31, 768])
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(8, 32), (1, 32), (2, 32), (32, 128), (128, 4), (64, 1), (3, 2), (128, 128)]
)
def test_member_alone_equals_member_in_company(inputs: int, outputs: int, batch: int) -> None:
    def run(x, weight, bias):
        # Inputs of one number are observations or commands, which need no gradient.
        leaves = [x.clone().requires_grad_(inputs > 1), weight.clone().requires_grad_(), bias.clone().requires_grad_()]
        out = sigmoid(dense(*leaves)) + dense(*leaves).relu()
        out.square().mean((1, 2)).sum().backward()
        return [out.detach(), *(leaf.grad for leaf in leaves if leaf.requires_grad)]

    tensors = torch.randn(3, batch, inputs), torch.randn(3, inputs, outputs), torch.randn(3, outputs)
    joint_results = run(*tensors)
    for m in range(3):
        alone = run(*(t[m : m + 1] for t in tensors))
        assert all(torch.equal(a[m], b[0]) for a, b in zip(joint_results, alone, strict=True))


def test_named_weights_are_views() -> None:
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
        network.flat.data = network.flat.data + 1
        assert torch.equal(network.weights()[0], network.named_weights()["a.weight"])


def test_scale_applies_to_weights() -> None:
    plain, small = (Network([Dense("a", 10, 4, scale=scale)], Streams([5])).named_weights() for scale in (1.0, 0.1))
    torch.testing.assert_close(small["a.weight"], 0.1 * plain["a.weight"])
    assert torch.equal(small["a.bias"], plain["a.bias"])
