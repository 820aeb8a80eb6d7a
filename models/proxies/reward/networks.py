"""The network of a learned reward for M members at once. Their parameters are one tensor ``[M, size]``."""

import torch
from torch import Tensor

from models.contract import Policy
from models.mlp import LEAK, MLP, PRELU_SLOPE
from models.proxies import fitting
from models.proxies.reward.config import Config
from models.settings import SettingError
from models.spaces import Spaces
from models.streams import Streams
from understudy.kinds import MODES, MOST_EXPONENT


class Networks:
    """Architecture of the reward network phi. Its inputs are the S numbers of a state, the I numbers of a step's info,
    or both, as ``mode`` says.

    With info alone it is one linear layer without bias. Mode 0 does not use it. Source: Ferreira et al. 2022, section 3
    and appendix. As in its public code, the action is not an input. Raises SettingError for a mode with info if
    ``spaces`` has none, and if the number of input scales is neither 0 nor S.
    """

    def __init__(self, config: Config, spaces: Spaces):
        self.config, self.spaces, self.mode = config, spaces, MODES[config.mode]
        size, info_size = spaces.obs_shape[0], len(spaces.info)
        if self.mode.info and not info_size:
            allowed_modes = ", ".join(str(number) for number, mode in MODES.items() if not mode.info)
            line = (
                f"mode is {config.mode}, which needs numbers in the info of each step, and the environment tells none"
            )
            raise SettingError(f"{line}; allowed here: {allowed_modes}", "mode")
        for name in ("rn_input_center", "rn_input_spread"):
            if len(input_scale := getattr(config, name)) not in (0, size):
                raise SettingError(f"{name} is {list(input_scale)}; allowed here: {size} numbers, or none", name)
        self.linear = self.mode.info and not self.mode.state
        inputs = max(1, size * self.mode.state + info_size * self.mode.info)
        frozen = config.proxy_activation_fn == "prelu"
        sizes = [inputs, *[config.proxy_hidden_size] * config.proxy_hidden_layer, 1]
        mlp = MLP(sizes, "leakyrelu" if frozen else config.proxy_activation_fn, PRELU_SLOPE if frozen else LEAK)
        self.parts = {"reward": mlp}
        self.inner = inputs if self.linear else mlp.size  # parameters of the network, without the scale
        self.size = self.inner + config.rn_evolve_scale

    def initial(self, streams: Streams) -> Tensor:
        """Return initial parameters ``[M, size]``, sampled as in `torch.nn.Linear`; the scale starts unchanged."""
        parameters = self.parts["reward"].initial(streams)
        if self.linear:
            parameters = parameters[:, : self.inner]
        return torch.cat([parameters, parameters.new_zeros(len(parameters), self.size - self.inner)], 1)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        return {"reward": flat[:, : self.inner]}

    def scaled(self, flat: Tensor) -> Tensor:
        """Return the factor ``[M]`` on the network's output."""
        factor = torch.full((len(flat),), self.config.rn_output_scale, device=flat.device)
        return factor * flat[:, -1].exp() if self.config.rn_evolve_scale else factor

    def named_tensors(self, flat: Tensor) -> dict[str, Tensor]:
        if self.linear:
            return {"reward.0.weight": flat[None, : self.inner]}
        tensors = {}
        for i, (weight, bias) in enumerate(self.parts["reward"].layers(flat[None, : self.inner])):
            tensors[f"reward.{i}.weight"], tensors[f"reward.{i}.bias"] = weight[0], bias[0, :, 0]
        return tensors

    def target(self, flat: Tensor) -> Policy:
        raise SettingError("scored_by is 'target', but a learned reward has none; allowed: agents", "scored_by")

    def fit(self, flat: Tensor, states: Tensor, targets: Tensor) -> Tensor:
        """Fit phi, without its output scale, to ``targets [N]`` on ``states [N, S]`` (`models.proxies.fitting.fit`).
        Starts from ``flat [M, size]`` and returns new parameters ``[M, size]``, from which a search may start."""
        if self.config.rn_output == "symexp":
            targets = targets.sign() * targets.abs().log1p()
        if self.config.rn_input_center:
            states = states - torch.tensor(self.config.rn_input_center)
        if self.config.rn_input_spread:
            states = states / torch.tensor(self.config.rn_input_spread)
        network_parameters = fitting.fit(
            self.parts["reward"], flat[:, : self.inner], states[None], targets[None, :, None]
        )
        return torch.cat([network_parameters, flat[:, self.inner :]], 1)

    def program(self, flat: Tensor) -> "Phi":
        """Combine the network with parameters ``flat [M, size]``, ready to evaluate."""
        return Phi(self, flat)


class Phi:
    """The reward network phi of M members with their parameters."""

    def __init__(self, networks: Networks, flat: Tensor):
        self.networks, self.flat = networks, flat
        config = networks.config
        self._mlp, self.uses_symexp = networks.parts["reward"], config.rn_output == "symexp"
        self._layers = None if networks.linear else self._mlp.layers(flat[:, : networks.inner])
        self._scale = networks.scaled(flat).unsqueeze(1)
        self._center, self._spread = (
            torch.tensor(values, device=flat.device) for values in (config.rn_input_center, config.rn_input_spread)
        )
        self.table: Tensor | None = None  # [M, S], phi of every cell if observations are one-hot
        if networks.spaces.one_hot and networks.mode.state and not networks.mode.info:
            cells = torch.eye(networks.spaces.obs_shape[0], device=flat.device).expand(len(flat), -1, -1)
            self.table = self._of(cells)

    @torch.no_grad()
    def __call__(self, obs: Tensor, info: Tensor | None = None) -> Tensor:
        """Evaluate phi: ``obs [M, E, S]`` and ``info [M, E, I]`` -> ``[M, E]``."""
        if self.table is not None:
            return (obs * self.table.unsqueeze(1)).sum(2)  # exact: one term is not 0
        return self._of(obs, info)

    @torch.no_grad()
    def _of(self, obs: Tensor, info: Tensor | None = None) -> Tensor:
        mode = self.networks.mode
        if not (mode.state or mode.info):
            return obs.new_zeros(obs.shape[:2])
        if self._layers is None:
            assert info is not None
            return self._bent((info * self.flat[:, None, : self.networks.inner]).sum(2))
        if len(self._center):
            obs = obs - self._center
        if len(self._spread):
            obs = obs / self._spread
        if mode.info:
            assert info is not None
            obs = torch.cat([obs, info], 2)
        return self._bent(self._mlp.forward(self._layers, obs.transpose(1, 2))[-1][:, 0])

    def _bent(self, outputs: Tensor) -> Tensor:
        """Scale the network's outputs ``[M, E]`` and, with ``rn_output`` symexp, apply symexp to them."""
        scaled = outputs * self._scale
        return scaled.abs().clamp(max=MOST_EXPONENT).expm1() * scaled.sign() if self.uses_symexp else scaled

    def select(self, members: Tensor) -> "Phi":
        """Return phi of ``members`` (indices ``[M']``) only."""
        return Phi(self.networks, self.flat[members])
