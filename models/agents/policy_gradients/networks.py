"""Policies, and values where there are any: observation in, scores of actions and state values out."""

from torch import Tensor, nn

from models.agents.policy_gradients.config import Config
from models.layers import ConvolutionalTrunk
from models.mlp import MlpNetwork, ValueNetwork
from models.spaces import Discrete, Spaces
from models.streams import Streams


class ActorCritic(nn.Module):
    """Scores ``[M, B, A]`` of the actions and, where the baseline is a value, state values ``[M, B]``.

    Two networks, or with ``shared_trunk`` one whose last output is the value. Images go through convolutions first,
    which the policy's loss trains; a value network of its own reads their output without changing them.
    """

    def __init__(self, config: Config, spaces: Spaces, streams: Streams):
        super().__init__()
        assert isinstance(spaces.actions, Discrete)
        self.actions, self.shared = spaces.actions.n, config.shared_trunk
        self.trunk = ConvolutionalTrunk(spaces, config.conv_channels, streams) if spaces.is_image else None
        inputs = self.trunk.features if self.trunk else spaces.obs_shape[0]
        outputs = self.actions + self.shared
        self.policy = MlpNetwork((inputs, *config.hidden_sizes, outputs), config.activation, streams)
        self.critic: ValueNetwork | None = None
        if config.baseline == "value" and not self.shared:
            self.critic = ValueNetwork(inputs, config.value_hidden_sizes, streams, config.activation)

    def scores(self, obs: Tensor) -> Tensor:
        """``obs [M, B, *O] -> [M, B, A]``."""
        return self.policy(self._features(obs))[..., : self.actions]

    def values(self, obs: Tensor) -> Tensor:
        """``obs [M, B, *O] -> [M, B]``."""
        return self._values(self._features(obs))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor | None]:
        features = self._features(obs)
        outputs = self.policy(features)
        if self.shared:
            return outputs[..., :-1], outputs[..., -1]
        return outputs, self._values(features) if self.critic else None

    def _values(self, features: Tensor) -> Tensor:
        if self.shared:
            return self.policy(features)[..., -1]
        assert self.critic
        return self.critic(features.detach())

    def _features(self, obs: Tensor) -> Tensor:
        return self.trunk(obs) if self.trunk else obs

    @property
    def trained_by_policy(self) -> list[Tensor]:
        """Parameters that the policy's loss trains."""
        return [self.policy.flat, *([self.trunk.flat] if self.trunk else [])]
