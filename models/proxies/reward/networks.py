"""The network phi of a learned reward, for M members (independent agents, each with a separate reward) at once.

``flat [M, size]`` has all parameters of the network of a member in one row. S is the size of an observation, I the
number of values that phi reads from the info of a step, E the number of environments of a member. A mode
(`understudy.kinds.Mode`) determines the inputs of phi, and how a reward is computed from it.
"""

from typing import Any

import torch
from torch import Tensor

from models.contract import Policy
from models.proxies import fitting
from models.proxies.reward.config import Config
from models.settings import SettingError
from models.spaces import Spaces
from models.streams import Streams
from understudy.kinds import MODES, MOST_EXPONENT


class Networks:
    """Architecture of the reward network phi. Its inputs are the S numbers of a state, the I numbers in the info of a
    step, or both, as the setting ``mode`` says. With info alone phi is one linear layer without bias. Mode 0, the
    environment's reward alone, does not use phi.

    Source: Ferreira et al. 2022, section 3 and appendix. As in its public code, the action is not an input. Raises
    SettingError for a mode with info if ``spaces`` has none, and if ``rn_input_center`` or ``rn_input_spread`` has
    another size than S (empty: no scaling).
    """

    def __init__(self, config: Config, spaces: Spaces):
        self.config, self.spaces, self.mode = config, spaces, MODES[config.mode]
        obs_size, info_size = spaces.obs_shape[0], len(spaces.info)
        if self.mode.info and not info_size:
            allowed_modes = ", ".join(str(number) for number, mode in MODES.items() if not mode.info)
            line = f"mode is {config.mode}, which needs numbers in the info of each step, and the environment tells"
            raise SettingError(f"{line} none; allowed here: {allowed_modes}", "mode")
        for name in ("rn_input_center", "rn_input_spread"):
            values = getattr(config, name)
            if values and len(values) != obs_size:
                raise SettingError(f"{name} is {list(values)}; allowed here: {obs_size} numbers, or none", name)
        # Inputs are (observation - center) / spread, both [S]. Empty settings scale nothing.
        self.center = torch.tensor(config.rn_input_center or [0.0] * obs_size, dtype=torch.float32)
        self.spread = torch.tensor(config.rn_input_spread or [1.0] * obs_size, dtype=torch.float32)
        self.linear = self.mode.info and not self.mode.state
        num_inputs = (obs_size if self.mode.state else 0) + (info_size if self.mode.info else 0)
        num_inputs = max(1, num_inputs)  # mode 0 has an unused network
        mlp = fitting.make_mlp(config, num_inputs, 1)
        self.mlps = {"reward": mlp}
        self.network_size = num_inputs if self.linear else mlp.size  # number of parameters without the output scale
        self.size = self.network_size + (1 if config.rn_evolve_scale else 0)

    def initial(self, streams: Streams) -> Tensor:
        """Return initial parameters ``[M, size]``, sampled as in `torch.nn.Linear`."""
        parameters = self.mlps["reward"].initial(streams)
        if self.linear:  # one weight for each number in the info, and no bias
            parameters = parameters[:, : self.network_size]
        log_scale = parameters.new_zeros(len(parameters), self.size - self.network_size)  # [M, 1], or [M, 0] if fixed
        return torch.cat([parameters, log_scale], 1)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        return {"reward": flat[:, : self.network_size]}

    def output_scale(self, flat: Tensor) -> Tensor:
        """Return the factor ``[M]`` on the output of each member's network: ``rn_output_scale`` or, if a search changes
        it, ``rn_output_scale * e^x``. Here x is the last of the member's parameters ``flat [M, size]``."""
        scale = torch.full((len(flat),), self.config.rn_output_scale, device=flat.device)
        if not self.config.rn_evolve_scale:
            return scale
        return scale * flat[:, -1].exp()

    def named_tensors(self, flat: Tensor) -> dict[str, Tensor]:
        if self.linear:
            return {"reward.0.weight": flat[None, : self.network_size]}
        return fitting.named_layers("reward", self.mlps["reward"], flat[None, : self.network_size])

    def target(self, flat: Tensor) -> Policy:
        """Raise SettingError, because a learned reward defines no policy."""
        raise SettingError("scored_by is 'target', but a learned reward has none; allowed: agents", "scored_by")

    def fit(self, flat: Tensor, states: Tensor, targets: Tensor) -> Tensor:
        """Fit the reward networks of M members so that phi (without its output scale) is ``targets [N]`` in ``states
        [N, S]``. Training starts from the parameters ``flat [M, size]``. Return new parameters ``[M, size]``."""
        if self.config.rn_output == "symexp":  # phi is symexp of the network's output, so this is the inverse function
            targets = targets.sign() * targets.abs().log1p()
        inputs = (states - self.center) / self.spread
        network_parameters, scale = flat[:, : self.network_size], flat[:, self.network_size :]
        weights = fitting.fit(self.mlps["reward"], network_parameters, inputs[None], targets[None, :, None])
        return torch.cat([weights, scale], 1)

    def fit_scaled(self, flat: Tensor, states: Tensor, targets: Tensor) -> Tensor:
        """Fit phi as `fit` does, but to states and targets that are scaled to mean 0 and variance 1, which is easier.
        Then the first and the last layer are changed so that phi has its original units."""
        state_std = states.std(0)
        state_scale = fitting.Scale(states.mean(0), state_std.where(state_std > 1e-6, 1.0))
        target_scale = fitting.Scale(targets.mean()[None], targets.std()[None].clamp(min=1e-6))
        flat = self.fit(flat, state_scale.standardise(states), target_scale.standardise(targets))
        layers = self.mlps["reward"].layers(flat[:, : self.network_size])  # views of ``flat``
        fitting.undo_scaling(layers, state_scale, target_scale)  # changes ``flat``
        return flat

    def with_weights(self, flat: Tensor) -> "Phi":
        """Return the reward networks of M members with the parameters ``flat [M, size]``, as a function."""
        return Phi(self, flat)


class Phi:
    """The reward networks phi of M members with their parameters ``flat [M, size]``: a function from observations, the
    info of a step, or both to one number for each environment."""

    def __init__(self, networks: Networks, flat: Tensor):
        self.networks, self.flat = networks, flat
        config = networks.config
        self._mlp, self.uses_symexp = networks.mlps["reward"], config.rn_output == "symexp"
        self._layers = None if networks.linear else self._mlp.layers(flat[:, : networks.network_size])
        self._scale = networks.output_scale(flat).unsqueeze(1)  # [M, 1]
        self._center, self._spread = networks.center.to(flat.device), networks.spread.to(flat.device)
        self.table: Tensor | None = None  # [M, S], phi of every cell if the only input is a one-hot observation
        if networks.spaces.one_hot and networks.mode.state and not networks.mode.info:
            cells = torch.eye(networks.spaces.obs_shape[0], device=flat.device).expand(len(flat), -1, -1)
            self.table = self._evaluate(cells)

    @torch.no_grad()
    def __call__(self, obs: Tensor, info: Tensor | None = None) -> Tensor:
        """Return phi ``[M, E]`` for ``obs [M, E, S]`` and the info of a step, ``info [M, E, I]`` (None if unused)."""
        if self.table is not None:
            return (obs * self.table.unsqueeze(1)).sum(2)  # exact, because only the term of one cell is not 0
        return self._evaluate(obs, info)

    @torch.no_grad()
    def _evaluate(self, obs: Tensor, info: Any = None) -> Tensor:
        """Return phi as a call does, but computed by the network, not read from the table."""
        mode = self.networks.mode
        if not (mode.state or mode.info):  # mode 0, in which phi has no inputs
            return obs.new_zeros(obs.shape[:2])
        if self._layers is None:  # one weight per number in info
            return self._to_phi((info * self.flat[:, None, : self.networks.network_size]).sum(2))
        inputs = (obs - self._center) / self._spread
        if mode.info:
            inputs = torch.cat([inputs, info], 2)
        outputs = self._mlp.forward(self._layers, inputs.transpose(1, 2))[-1]  # [M, 1, E]
        return self._to_phi(outputs[:, 0])

    def _to_phi(self, outputs: Tensor) -> Tensor:
        """Return phi from the ``outputs [M, E]`` of the network: the outputs times the output scale or, with the
        setting ``rn_output`` "symexp", the function symexp of this product."""
        phi = outputs * self._scale
        if not self.uses_symexp:
            return phi
        return phi.abs().clamp(max=MOST_EXPONENT).expm1() * phi.sign()
