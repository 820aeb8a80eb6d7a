"""The policies of the family. They map ``obs [M, B, O]`` and a scaled ``command [M, B, C]`` to logits or means of
actions, ``[M, B, outputs]``. Each hidden layer has the ``activation``, which is ReLU in the papers."""

from collections.abc import Sequence
from itertools import chain, pairwise

import torch
from torch import Tensor

from models.layers import RELU_GAIN, Dense, Network, dense, sigmoid
from models.streams import Streams

Layers = list[tuple[Tensor, ...]]  # layers of one member, as in `models.contract.GreedyNetwork`


class _LayersWithGates(Network):
    """Base class of policies whose layers may have gates: ``activation(W x) * sigmoid(K command)`` with a gate K,
    ``activation(W x)`` without. Each item of ``layers`` is a layer, or a layer and its gate. The last layer has no
    activation. If ``embeds``, the first layer has tanh instead."""

    def __init__(self, layers: Sequence[tuple[Dense, ...]], streams: Streams, activation: str, embeds: bool = False):
        self.has_gate = [len(layer_and_gate) == 2 for layer_and_gate in layers]
        self.embeds = embeds
        super().__init__(list(chain(*layers)), streams, activation)

    def forward(self, obs: Tensor, command: Tensor) -> Tensor:
        """Return logits or action means ``[M, B, outputs]`` for ``obs [M, B, O]`` and scaled ``command [M, B, C]``."""
        pairs = iter(self.weights())  # weight and bias of each layer, then of its gate, if it has one
        x, last = obs, len(self.has_gate) - 1
        for i, has_gate in enumerate(self.has_gate):
            weight, bias = next(pairs)
            x = dense(x, weight, bias)
            if i == 0 and self.embeds:
                x = x.tanh()
            elif i < last:
                x = self.activation(x)
            if has_gate:
                gate_weight, gate_bias = next(pairs)
                x = x * sigmoid(dense(command, gate_weight, gate_bias))
        return x

    def member_network(self, member: int) -> tuple[Layers, list[str | float]]:
        """Return layers and activations of one member (`models.contract.GreedyNetwork`), for an exported file. A layer
        is ``(weight, bias)`` or, with a gate, ``(weight, bias, gate weight, gate bias)``. The activation of a hidden
        layer is a name, or the slope below 0 of a form of leaky ReLU."""
        pairs = iter(self.pairs(member))  # weight and bias of each layer, then of its gate, if it has one
        layers: Layers = []
        for has_gate in self.has_gate:
            layer = next(pairs)
            layers.append((*layer, *next(pairs)) if has_gate else layer)
        activations: list[str | float] = [self.slope] * (len(layers) - 1)
        if self.embeds:
            activations[0] = "tanh"
        return layers, activations


class BehaviorNetwork(_LayersWithGates):
    """UDRL's behaviour function: ``tanh(W_s obs) * sigmoid(W_c command)``, hidden layers (ReLU), affine output. The
    order of parameters is the public code's. Weights start orthogonal, with gain 1 for both embeddings and sqrt 2 for
    hidden layers. The output layer has torch's default initialisation."""

    def __init__(
        self, inputs: int, num_commands: int, outputs: int, hidden: tuple[int, ...], streams: Streams, activation: str
    ):
        # Names of layers are the public code's. Their numbers are positions in an `nn.Sequential`, in which activations
        # have the odd positions. Both embeddings have the width ``hidden[0]``, because they are multiplied elementwise.
        state_embedding = Dense("state_fc.0", inputs, hidden[0], gain=1.0)
        command_embedding = Dense("command_fc.0", num_commands, hidden[0], gain=1.0)
        layers: list[tuple[Dense, ...]] = [(state_embedding, command_embedding)]
        for i, (fan_in, fan_out) in enumerate(pairwise(hidden)):
            layers.append((Dense(f"output_fc.{2 * i}", fan_in, fan_out, gain=RELU_GAIN),))
        layers.append((Dense(f"output_fc.{2 * (len(hidden) - 1)}", hidden[-1], outputs),))
        super().__init__(layers, streams, activation, embeds=True)


class GatedNetwork(_LayersWithGates):
    """RCP's policy: hidden layers ``activation(W x) * sigmoid(K command)``, affine output, torch's initialisation."""

    def __init__(
        self, inputs: int, num_commands: int, outputs: int, hidden: tuple[int, ...], streams: Streams, activation: str
    ):
        layers: list[tuple[Dense, ...]] = []
        for i, (fan_in, fan_out) in enumerate(pairwise((inputs, *hidden))):
            layers.append((Dense(f"layer_fc.{i}", fan_in, fan_out), Dense(f"gate_fc.{i}", num_commands, fan_out)))
        super().__init__([*layers, (Dense("output_fc", hidden[-1], outputs),)], streams, activation)


class HyperNetwork(Network):
    """A policy whose weights are an affine function of the command. They are generated for each row of a batch.

    It differs from the public code, which does not learn: there, unscaled returns of +-300 are the inputs of generators
    with default initialisation. Here commands are scaled, generated weights initially have the size of the weights of a
    default layer, and no ReLU follows the logits.
    """

    def __init__(
        self, inputs: int, num_commands: int, outputs: int, hidden: tuple[int, ...], streams: Streams, activation: str
    ):
        self.widths = (*hidden, outputs)
        layers = [Dense("state_fc.0", inputs, hidden[0], gain=1.0)]
        # Generators of the weight and the bias of each later layer. They are affine: slope * command + offset.
        for i, (fan_in, fan_out) in enumerate(pairwise(self.widths)):
            # Slopes start with a tenth of a default layer's weights, so that commands change the network little.
            weight_scale = 0.1 * (num_commands / fan_in) ** 0.5
            layers.append(Dense(f"weight_fc.{i}", num_commands, fan_in * fan_out, scale=weight_scale))
            layers.append(Dense(f"bias_fc.{i}", num_commands, fan_out, scale=0.1))
        super().__init__(layers, streams, activation)
        # For a command of 0 the generated weight is the offset, the bias of its generator. The bound of its initial
        # values is scaled from 1/sqrt(num_commands) to 1/sqrt(fan_in), as in a default layer, times the gain of ReLU.
        with torch.no_grad():
            views = self.named_weights()
            for i, fan_in in enumerate(self.widths[:-1]):
                views[f"weight_fc.{i}.bias"].mul_((num_commands / fan_in) ** 0.5 * RELU_GAIN)

    def forward(self, obs: Tensor, command: Tensor) -> Tensor:
        """Return logits or action means ``[M, B, outputs]`` for ``obs [M, B, O]`` and scaled ``command [M, B, C]``."""
        embedding, *generators = self.weights()
        x = dense(obs, *embedding).tanh()
        members, batch = x.shape[:2]
        for i, (fan_in, fan_out) in enumerate(pairwise(self.widths)):
            # The generated layer is (weight_slope * command + weight_offset) x + (bias_slope * command + bias_offset).
            (weight_slope, weight_offset), (bias_slope, bias_offset) = generators[2 * i : 2 * i + 2]
            # Its first term is one matrix product, of [x, outer product of command and x] and [weight_offset,
            # weight_slope]. So no weights are stored, which would differ in each row of the batch.
            outer_products = (command.unsqueeze(-1) * x.unsqueeze(-2)).flatten(2)  # [M, B, C * fan_in]
            joint_inputs = torch.cat([x, outer_products], dim=-1)
            offset_matrix = weight_offset.view(members, fan_in, fan_out)
            slope_matrix = weight_slope.view(members, -1, fan_out)  # [M, C * fan_in, fan_out]
            matrix = torch.cat([offset_matrix, slope_matrix], dim=1)
            no_bias = torch.zeros_like(bias_offset)
            x = dense(joint_inputs, matrix, no_bias) + dense(command, bias_slope, bias_offset)
            is_hidden = i < len(self.widths) - 2
            if is_hidden:
                x = self.activation(x)
        return x.view(members, batch, -1)

    def member_network(self, member: int) -> tuple[Layers, list[str | float]]:
        """Return layers and activations of one member (`models.contract.GreedyNetwork`), for an exported file. The
        inputs of a generated layer are x, the outer product of command and x, and the command (see `forward`)."""
        embedding, *generators = self.pairs(member)
        layers: Layers = [embedding]
        for (slope, offset), (bias_slope, bias) in zip(generators[::2], generators[1::2], strict=True):
            fan_out = len(bias)
            x_weight = offset.view(-1, fan_out)  # [fan_in, fan_out]
            outer_product_weight = slope.T.reshape(-1, fan_out)  # [C * fan_in, fan_out]
            # ``bias_slope.T [C, fan_out]`` are the weights of the command itself.
            layers.append((torch.cat([x_weight, outer_product_weight, bias_slope.T]).T, bias))
        num_hidden = len(layers) - 2  # all layers except embedding and output
        return layers, ["tanh", *[self.slope] * num_hidden]


POLICIES = {"behavior": BehaviorNetwork, "hypernetwork": HyperNetwork, "gated": GatedNetwork}
