"""The networks of a synthetic environment, for M members at once; parameters are flat, ``[M, size]``."""

from dataclasses import dataclass

import torch
from torch import Tensor

from models.mlp import LEAK, PRELU_SLOPE, Layer, Mlp
from models.proxies.synthetic.config import Config
from models.spaces import Discrete, Spaces
from models.streams import Streams


@dataclass
class Outcome:
    """What a step gives: ``next_state [M, E, S]``, ``reward [M, E]`` and the raw ``done [M, E]``, real-valued."""

    next_state: Tensor
    reward: Tensor
    done: Tensor


class Networks:
    """Architecture of one kind of synthetic environment. S is the size of an observation, A the number of actions
    (or the size of one).

    As an MDP: next state, reward and done are three networks of ``[action, state]``, the action one-hot where
    discrete; the next state is absolute, nothing is clipped. As a bandit: a reward network alone. Where resets are
    learned, an initial-state network of normal noise. Source: Ferreira et al. 2022, section 3, and its public code;
    Liesen et al. 2024 for the bandit.
    """

    def __init__(self, config: Config, spaces: Spaces):
        self.config, self.spaces, self.state_size = config, spaces, spaces.obs_shape[0]
        self.actions = spaces.actions
        self.action_size = spaces.actions.n if isinstance(spaces.actions, Discrete) else spaces.actions.size
        self.latent = (config.latent_size or self.state_size) if config.learned_reset or config.proxy == "bandit" else 0
        inputs = self.action_size + self.state_size
        outputs = {"state": self.state_size, "reward": 1, "done": 1} if config.proxy == "mdp" else {"reward": 1}
        self.parts = {name: self._mlp(inputs, count) for name, count in outputs.items()}
        if self.latent:
            self.parts["initial"] = self._mlp(self.latent, self.state_size)
        self.size = sum(part.size for part in self.parts.values())

    def _mlp(self, inputs: int, outputs: int) -> Mlp:
        config = self.config
        frozen = config.proxy_activation_fn == "prelu"
        sizes = [inputs, *[config.proxy_hidden_size] * config.proxy_hidden_layer, outputs]
        return Mlp(sizes, "leakyrelu" if frozen else config.proxy_activation_fn, PRELU_SLOPE if frozen else LEAK)

    def initial(self, streams: Streams) -> Tensor:
        """First parameters, ``[M, size]``, drawn as ``proxy_init`` says."""
        parts = [part.initial(streams) for part in self.parts.values()]
        if self.config.proxy_init == "normal":
            parts = []
            for layer in [layer for part in self.parts.values() for layer in part.dense]:
                parts.append(streams.normal(layer.outputs * layer.inputs) / layer.inputs**0.5)
                parts.append(torch.zeros(len(streams), layer.outputs))
        flat = torch.cat(parts, 1)
        if "done" in self.parts:
            _, bias = self.parts["done"].layers(self.split(flat)["done"])[-1]
            bias += self.config.done_bias
        return flat

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Each network's own parameters, views of ``flat [M, size]``."""
        sizes = [part.size for part in self.parts.values()]
        return dict(zip(self.parts, flat.split(sizes, 1), strict=True))

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of ``flat [D]`` as a file names them: weights ``[out, in]`` and biases ``[out]``."""
        found = {}
        for part, own in self.split(flat[None]).items():
            for i, (weight, bias) in enumerate(self.parts[part].layers(own)):
                found[f"{part}.{i}.weight"], found[f"{part}.{i}.bias"] = weight[0], bias[0, :, 0]
        return found

    def program(self, flat: Tensor) -> "Program":
        """Ready to be stepped, with parameters ``flat [M, size]``."""
        return Program(self, flat)


class Program:
    """Networks with their parameters. The first layers of all step networks are one product, and so are their last
    ones where there is one hidden layer: a step is two products whatever the number of networks."""

    def __init__(self, networks: Networks, flat: Tensor):
        self.networks, self.flat = networks, flat
        self._each = torch.arange(networks.action_size, device=flat.device)
        own = networks.split(flat)
        self.names = [name for name in networks.parts if name != "initial"]
        self.layers = {name: part.layers(own[name]) for name, part in networks.parts.items()}
        self.folded = networks.config.proxy_hidden_layer == 1
        if self.folded:
            self._fold([self.layers[name] for name in self.names])

    def _fold(self, nets: list[list[Layer]]) -> None:
        first_weight = torch.cat([net[0][0].transpose(1, 2) for net in nets], 2).transpose(1, 2)
        first_bias = torch.cat([net[0][1] for net in nets], 1)
        width, outputs = nets[0][0][0].shape[1], [net[1][0].shape[1] for net in nets]
        last_weight = self.flat.new_zeros(len(self.flat), sum(outputs), width * len(nets))
        row = 0
        for i, net in enumerate(nets):
            last_weight[:, row : row + outputs[i], width * i : width * (i + 1)] = net[1][0]
            row += outputs[i]
        last_bias = torch.cat([net[1][1] for net in nets], 1)
        self._both: list[Layer] = [(first_weight, first_bias), (last_weight, last_bias)]
        sizes = [first_weight.shape[2], first_weight.shape[1], row]
        part = self.networks.parts[self.names[0]]
        self._one = Mlp(sizes, part.activation, part.leak)

    @torch.no_grad()
    def step(self, state: Tensor, action: Tensor) -> Outcome:
        """``state [M, E, S]``, ``action [M, E]`` int64 or ``[M, E, A]`` -> `Outcome`. A bandit's state stays as it is
        and its done is 1."""
        if isinstance(self.networks.actions, Discrete):
            action = (action.unsqueeze(-1) == self._each).float()
        x = torch.cat([action, state], 2).transpose(1, 2)
        if self.folded:
            out = self._one.forward(self._both, x)[-1]
        else:
            out = torch.cat([self.networks.parts[name].forward(self.layers[name], x)[-1] for name in self.names], 1)
        if self.networks.config.proxy == "bandit":
            return Outcome(state, out[:, 0], torch.ones_like(out[:, 0]))
        size = self.networks.state_size
        return Outcome(out[:, :size].transpose(1, 2), out[:, size], out[:, size + 1])

    @torch.no_grad()
    def first_states(self, noise: Tensor) -> Tensor:
        """``noise [M, N, latent]`` -> learned first states ``[M, N, S]``."""
        out = self.networks.parts["initial"].forward(self.layers["initial"], noise.transpose(1, 2))[-1]
        return out.transpose(1, 2)

    def select(self, members: Tensor) -> "Program":
        """The same for ``members`` (indices ``[M']``) only."""
        return Program(self.networks, self.flat[members])

    def to(self, device: torch.device) -> "Program":
        return Program(self.networks, self.flat.to(device))
