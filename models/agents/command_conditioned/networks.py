"""The policies of the family. They map ``obs [M, B, O]`` and a scaled ``command [M, B, C]`` to logits or action means
``[M, B, outputs]``. ``activation`` follows each hidden layer; the papers use ReLU."""

from itertools import pairwise

import torch
from torch import Tensor

from models.layers import RELU_GAIN, Dense, Network, dense, sigmoid
from models.streams import Streams


class BehaviorNetwork(Network):
    """UDRL's behaviour function: ``tanh(W_s obs) * sigmoid(W_c command)``, hidden layers (ReLU), affine output.

    With observations of 8 numbers, 2 commands, hidden (32, 128, 128, 128) and 4 actions it has 38 148 parameters, in
    the order of the public code's `model.state_fc.0`, `model.command_fc.0`, `model.output_fc.{0,2,4,6}`. Weights start
    orthogonal, with gain 1 for both embeddings and sqrt 2 for hidden layers. The output layer has torch's default
    initialisation.
    """

    def __init__(
        self, inputs: int, commands: int, outputs: int, hidden: tuple[int, ...], streams: Streams, activation: str
    ):
        embedded = (("state", inputs), ("command", commands))
        layers = [Dense(f"{name}_fc.0", size, hidden[0], gain=1.0) for name, size in embedded]
        layers += [Dense(f"output_fc.{2 * i}", a, b, gain=RELU_GAIN) for i, (a, b) in enumerate(pairwise(hidden))]
        layers.append(Dense(f"output_fc.{2 * (len(hidden) - 1)}", hidden[-1], outputs))
        super().__init__(layers, streams, activation)

    def forward(self, obs: Tensor, command: Tensor) -> Tensor:
        state_w, state_b, command_w, command_b, *rest = self.weights()
        x = dense(obs, state_w, state_b).tanh() * sigmoid(dense(command, command_w, command_b))
        for weight, bias in zip(rest[:-2:2], rest[1:-2:2], strict=True):
            x = self.activation(dense(x, weight, bias))
        return dense(x, rest[-2], rest[-1])


class HyperNetwork(Network):
    """A policy with weights that are an affine function of the command, generated for each row of a batch.

    It differs from the public code, which does not learn. Here the logits pass through no ReLU, commands are scaled,
    and generated weights start at the size of a default layer's. The public code feeds unscaled returns of +-300 into
    generators with default initialisation.
    """

    def __init__(
        self, inputs: int, commands: int, outputs: int, hidden: tuple[int, ...], streams: Streams, activation: str
    ):
        self.widths = (*hidden, outputs)
        layers = [Dense("state_fc.0", inputs, hidden[0], gain=1.0)]
        for i, (a, b) in enumerate(pairwise(self.widths)):
            # At a command of 0 the generated weight is the generator's bias. Its bound is scaled below, from
            # 1/sqrt(commands) to a default layer's 1/sqrt(a) times the gain of ReLU.
            layers.append(Dense(f"weight_fc.{i}", commands, a * b, scale=0.1 * (commands / a) ** 0.5))
            layers.append(Dense(f"bias_fc.{i}", commands, b, scale=0.1))
        super().__init__(layers, streams, activation)
        with torch.no_grad():
            for name, view in self.named_weights().items():
                if name.startswith("weight_fc") and name.endswith("bias"):
                    fan_in = self.widths[int(name.split(".")[1])]
                    view.mul_((commands / fan_in) ** 0.5 * RELU_GAIN)

    def forward(self, obs: Tensor, command: Tensor) -> Tensor:
        state_w, state_b, *generators = self.weights()
        x = dense(obs, state_w, state_b).tanh()
        members, batch = x.shape[:2]
        for i, (a, b) in enumerate(pairwise(self.widths)):
            w_w, w_b, b_w, b_b = generators[4 * i : 4 * i + 4]
            # One matrix product with the outer products of x and command, so no generated weights are in memory.
            mixed = torch.cat([x, (command.unsqueeze(-1) * x.unsqueeze(-2)).flatten(2)], dim=-1)
            matrix = torch.cat([w_b.view(members, a, b), w_w.view(members, -1, b)], dim=1)
            x = dense(mixed, matrix, torch.zeros_like(b_b)) + dense(command, b_w, b_b)
            if i < len(self.widths) - 2:
                x = self.activation(x)
        return x.view(members, batch, -1)


class GatedNetwork(Network):
    """RCP's policy: hidden layers ``activation(W x) * sigmoid(K command)``, affine output, torch's initialisation."""

    def __init__(
        self, inputs: int, commands: int, outputs: int, hidden: tuple[int, ...], streams: Streams, activation: str
    ):
        layers = []
        for i, (a, b) in enumerate(pairwise((inputs, *hidden))):
            layers += [Dense(f"layer_fc.{i}", a, b), Dense(f"gate_fc.{i}", commands, b)]
        super().__init__([*layers, Dense("output_fc", hidden[-1], outputs)], streams, activation)

    def forward(self, obs: Tensor, command: Tensor) -> Tensor:
        x, weights = obs, self.weights()
        for i in range(0, len(weights) - 2, 4):
            w, b, gate_w, gate_b = weights[i : i + 4]
            x = self.activation(dense(x, w, b)) * sigmoid(dense(command, gate_w, gate_b))
        return dense(x, weights[-2], weights[-1])


POLICIES = {"behavior": BehaviorNetwork, "hypernetwork": HyperNetwork, "gated": GatedNetwork}
