"""Networks of M members (independent agents) with all parameters in one flat tensor ``[M, D]``.

Some functions of torch round the last few elements of an array differently. So a member's numbers would depend on its
position among other members. To prevent that, arrays are padded to whole *blocks* of `BLOCK` numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil, prod, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.spaces import Spaces
from models.streams import Streams

RELU_GAIN = sqrt(2.0)
LEAK = 0.01  # slope of leakyrelu below zero
BLOCK = 64  # numbers in a block, a multiple of two vector registers


@dataclass(frozen=True)
class Dense:
    """An affine layer with weight ``[inputs, outputs]`` and bias ``[outputs]``. The initialisation is torch's default,
    uniform in [-1/sqrt(inputs), 1/sqrt(inputs)]."""

    name: str
    inputs: int
    outputs: int
    gain: float | None = None  # if set, the initial weight is orthogonal with this gain instead
    scale: float = 1.0  # further factor on the initial weight

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (self.inputs, self.outputs), (self.outputs,)

    def initial(self, generator: torch.Generator) -> list[Tensor]:
        """Sample weight ``[inputs, outputs]`` and bias ``[outputs]`` for one member from its generator."""
        weight = torch.empty(self.outputs, self.inputs)  # torch's layout; transposed below
        bound = 1 / sqrt(self.inputs)
        if self.gain is None:
            weight.uniform_(-bound, bound, generator=generator)
        else:
            nn.init.orthogonal_(weight, self.gain, generator=generator)
        bias = torch.empty(self.outputs).uniform_(-bound, bound, generator=generator)
        return [(self.scale * weight).T, bias]


@dataclass(frozen=True)
class Truncated(Dense):
    """A layer with the initialisation of `hk.Linear` (haiku 0.0.17): weights from a standard normal truncated at 2
    standard deviations, divided by sqrt(inputs); bias 0."""

    def initial(self, generator: torch.Generator) -> list[Tensor]:
        weight = torch.empty(self.inputs, self.outputs)
        nn.init.trunc_normal_(weight, a=-2.0, b=2.0, generator=generator)
        return [weight / sqrt(self.inputs), torch.zeros(self.outputs)]


@dataclass(frozen=True)
class Orthogonal(Dense):
    """A layer whose initial weight is orthogonal with gain sqrt(2), and whose initial bias is 0 (Huang et al. 2022,
    "The 37 Implementation Details of PPO")."""

    def initial(self, generator: torch.Generator) -> list[Tensor]:
        weight = nn.init.orthogonal_(torch.empty(self.outputs, self.inputs), RELU_GAIN, generator=generator)
        return [weight.T, torch.zeros(self.outputs)]


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "leakyrelu": partial(F.leaky_relu, negative_slope=LEAK),
    "tanh": torch.tanh,
    "identity": torch.positive,
}


def activation_in_file(activation: str, leak: float = LEAK) -> str | float:
    """Return an activation as `understudy.policy` files store it: relu, leakyrelu and identity as their slope below 0
    (0, ``leak`` and 1), any other activation by its name."""
    slopes = {"relu": 0.0, "leakyrelu": leak, "identity": 1.0}
    return slopes.get(activation, activation)


class Network(nn.Module):
    """Base class of the networks of M members: the parameters of a list of ``layers``, sampled from a random generator
    per member. Subclasses define the forward pass, with ``activation`` relu, leakyrelu, tanh or identity."""

    def __init__(self, layers: Sequence[Dense], streams: Streams, activation: str = "relu"):
        super().__init__()
        self.activation = _ACTIVATIONS[activation]
        self.slope = activation_in_file(activation)
        self.layers = tuple(layers)
        self._shapes = [shape for layer in self.layers for shape in layer.shapes]  # weight and bias of each layer
        self._sizes = [prod(shape) for shape in self._shapes]
        self.flat = nn.Parameter(streams.map_generators(self._sample_member))  # [M, D]

    def _sample_member(self, generator: torch.Generator) -> Tensor:
        """Sample the parameters of a member, ``[D]``."""
        tensors: list[Tensor] = []  # weight and bias of each layer in turn
        for layer in self.layers:
            tensors += layer.initial(generator)
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    def weights(self, flat: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
        """Return weight ``[M, in, out]`` and bias ``[M, out]`` of each layer, views of ``flat [M, D]`` or `flat`."""
        if flat is None:
            flat = self.flat
        # The gradient of `Tensor.split` is one concatenation. Slices would be slower: their gradient is a sum of one
        # tensor [M, D] for each layer.
        pieces = flat.split(self._sizes, dim=1)
        views = [piece.unflatten(1, shape) for piece, shape in zip(pieces, self._shapes, strict=True)]
        return list(zip(views[::2], views[1::2], strict=True))  # weights and biases alternate

    def pairs(self, member: int) -> list[tuple[Tensor, Tensor]]:
        """Return weight ``[out, in]`` and bias ``[out]`` of each layer of one member, without autograd."""
        return [(weight[member].T, bias[member]) for weight, bias in self.weights(self.flat.detach())]

    def named_weights(self) -> dict[str, Tensor]:
        """Return views of `flat` by name: ``<layer>.weight`` ``[M, in, out]`` and ``<layer>.bias`` ``[M, out]``."""
        views: dict[str, Tensor] = {}
        for layer, (weight, bias) in zip(self.layers, self.weights(), strict=True):
            views |= {f"{layer.name}.weight": weight, f"{layer.name}.bias": bias}
        return views


def allocate_blocks(shape: tuple[int, ...], reference: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate a tensor of ``shape`` with padding, so that elementwise functions round all its elements alike. Return
    the flat memory, to which such functions must be applied as a whole, and the tensor, a view of its first numbers.
    Both are uninitialised, with the dtype and device of ``reference``."""
    count = prod(shape)
    memory = torch.empty(ceil(count / BLOCK) * BLOCK, dtype=reference.dtype, device=reference.device)
    return memory, memory[:count].view(shape)


def apply_in_blocks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply an elementwise ``function`` to ``x``, padded to whole blocks, so that all elements of the result and of the
    gradient are rounded alike."""
    padded_x = F.pad(x.reshape(-1), (0, -x.numel() % BLOCK))
    return function(padded_x)[: x.numel()].view(x.shape)


def exp(x: Tensor) -> Tensor:
    """Return e^x, with all elements rounded alike."""
    return apply_in_blocks(torch.exp, x)


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + e^x), with all elements rounded alike."""
    return apply_in_blocks(F.softplus, x)


def dense(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor | None = None) -> Tensor:
    """Apply the affine layer of each member: ``x [M, B, in]``, ``weight [M, in, out]``, ``bias [M, out] -> [M, B,
    out]``. The result is written to ``out`` if passed; B must then be at least 2.

    A matrix-vector product would round depending on the number of members. So a layer of one input is computed as an
    elementwise product, a layer of one output as a product and a sum, and one row (B = 1) as two equal rows.
    """
    if weight.shape[1] == 1:
        return torch.addcmul(bias.unsqueeze(1), x, weight, out=out)
    if weight.shape[2] == 1:
        return torch.add((x * weight.transpose(1, 2)).sum(-1, keepdim=True), bias.unsqueeze(1), out=out)
    if x.shape[1] == 1:  # ``out`` is not used
        return torch.baddbmm(bias.unsqueeze(1), x.expand(-1, 2, -1), weight)[:, :1]
    return torch.baddbmm(bias.unsqueeze(1), x, weight, out=out)


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + e^-x), by tanh, which rounds all elements of an array alike, unlike `torch.sigmoid`."""
    return (0.5 * x).tanh() * 0.5 + 0.5


def convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply each member's 3x3 convolution, stride 2, padding 1, to ``x [M, B, C, H, W]``: ``[M, B, out, H', W']``, with
    H' = H / 2 rounded up. ``weight`` is ``[M, 9 C, out]``, ``bias [M, out]``. Members are computed one by one, because
    the rounding of a grouped convolution would depend on their number."""
    kernels = weight.transpose(1, 2).unflatten(2, (-1, 3, 3))  # [M, out, C, 3, 3]
    outputs = []
    for images, kernel, member_bias in zip(x, kernels, bias, strict=True):
        images = images.contiguous(memory_format=torch.channels_last)
        outputs.append(F.conv2d(images, kernel, member_bias, stride=2, padding=1))
    if len(outputs) == 1:
        return outputs[0].unsqueeze(0)  # `stack` would copy it
    return torch.stack(outputs)


def trunk(spaces: Spaces, channels: tuple[int, ...], streams: Streams) -> tuple[nn.Module, int]:
    """Return the layers that compute features of observations, and the number of features: convolutions with
    ``channels`` if observations are images, otherwise the identity. Several networks may share them."""
    if not spaces.is_image:
        return nn.Identity(), spaces.obs_shape[0]
    network = ConvolutionalTrunk(spaces, channels, streams)
    return network, network.features


class ConvolutionalTrunk(Network):
    """3x3 convolutions with stride 2 and ReLU, from uint8 images ``[M, B, C, H, W]`` to features ``[M, B, F]``
    (Srivastava et al. 2019, section 3)."""

    def __init__(self, spaces: Spaces, channels: tuple[int, ...], streams: Streams):
        _, height, width = spaces.obs_shape
        for _ in channels:  # the stride of 2 halves both, rounded up
            height, width = (height + 1) // 2, (width + 1) // 2
        self.features = channels[-1] * height * width
        layers = []
        for i, (inputs, outputs) in enumerate(pairwise((spaces.obs_shape[0], *channels))):
            # An output is computed from 9 numbers (3x3) of each input channel.
            layers.append(Dense(f"conv.{i}", 9 * inputs, outputs, gain=RELU_GAIN))
        super().__init__(layers, streams)

    def forward(self, images: Tensor, flat: Tensor | None = None) -> Tensor:
        """Return features ``[M, B, F]`` of uint8 ``images [M, B, C, H, W]``, with weights ``flat [M, D]`` if passed."""
        x = images.float() / 255.0
        for weight, bias in self.weights(flat):
            x = convolution(x, weight, bias).relu()
        return x.flatten(2)
