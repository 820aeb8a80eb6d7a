"""Networks of PPO with the parameters of M members in one flat tensor ``[M, D]``, and the policy for evaluations."""

from typing import NamedTuple

import torch
from torch import Tensor

from models.agents.ppo.config import Config
from models.contract import AgentPolicy
from models.layers import BLOCK, RELU_GAIN, Dense, Orthogonal, exp, trunk
from models.losses import HALF_LOG_TWO_PI, categorical_entropy, gaussian_nll
from models.mlp import MLP
from models.settings import SettingError
from models.spaces import Continuous, Discrete, Spaces
from models.streams import NoiseBlocks, Streams
from understudy.policy import CLIP_LIMIT


class Categorical:
    """Distribution of A discrete actions: the softmax of their logits. The argument ``log_std`` of its methods, which
    `Gaussian` needs, is empty and not used."""

    width = 1  # length of an action in the rollout
    initial_log_std = torch.empty(0)
    sample_noise = staticmethod(Streams.gumbel)  # samples the random numbers of actions

    def __init__(self, actions: Discrete):
        self.num_outputs = actions.n  # outputs of the policy network

    def sample(self, logits: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
        """Sample actions from the softmax, ``[M, E, A] -> [M, E]``: the argmax of logits plus Gumbel ``noise``."""
        return (logits + noise).argmax(2)

    def greedy_action(self, logits: Tensor) -> Tensor:
        """Return the most likely actions, ``logits [M, E, A] -> [M, E]``."""
        return logits.argmax(2)

    def clip(self, action: Tensor) -> Tensor:
        """Return ``action`` itself: discrete actions have no bounds."""
        return action

    def log_prob(self, logits: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
        """Return log-probabilities ``[M, B]`` of ``action [M, B, 1]`` (as floats), for ``logits [M, B, A]``."""
        return logits.log_softmax(2).gather(2, action.long()).squeeze(2)

    def entropy(self, logits: Tensor, log_std: Tensor) -> Tensor:
        """Return the mean entropy in nats, ``logits [M, B, A] -> [M]``."""
        return categorical_entropy(logits).mean(1)


class Gaussian:
    """Distribution of vectors of A independent normal numbers. Means depend on the state, but ``log_std [M, A]``, the
    logarithms of standard deviations, do not; ``std`` is their initial value. Actions are stored before `clip`. If
    ``scaled``, they are relative to the middle of the environment's bounds, in units of half their distance."""

    sample_noise = staticmethod(Streams.normal)  # samples the random numbers of actions

    def __init__(self, actions: Continuous, std: float, scaled: bool = False):
        self.num_outputs = self.width = actions.size
        self.low, self.high = torch.tensor(actions.low), torch.tensor(actions.high)
        self.initial_log_std, self.scaled = torch.full((actions.size,), std).log(), scaled

    def sample(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
        """Sample vectors ``[M, E, A]`` from ``mean [M, E, A]`` and standard normal ``noise [M, E, A]``."""
        return mean + exp(log_std).unsqueeze(1) * noise

    def greedy_action(self, mean: Tensor) -> Tensor:
        """Return the means ``[M, E, A]`` as actions."""
        return mean

    def clip(self, action: Tensor) -> Tensor:
        """Return ``action [M, E, A]`` in the environment's units, clipped to its bounds. NaN becomes 0."""
        if self.scaled:
            middle, half_range = (self.low + self.high) / 2, (self.high - self.low) / 2
            action = middle + half_range * action
        # Environments accept no NaN, but a diverged member continues to act.
        return action.nan_to_num(0.0).clamp(self.low, self.high)

    def log_prob(self, mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
        """Return log-probabilities ``[M, B]`` of ``action [M, B, A]``, for ``mean [M, B, A]``."""
        z = (action - mean) / exp(log_std).unsqueeze(1)  # distance from the mean in standard deviations
        return -(gaussian_nll(z, torch.zeros_like(z)) + log_std.unsqueeze(1)).sum(2)

    def entropy(self, mean: Tensor, log_std: Tensor) -> Tensor:
        """Return the entropy ``sum((1 + log(2 pi)) / 2 + log_std)`` in nats, ``[M]``. It does not depend on means."""
        return (0.5 + HALF_LOG_TWO_PI + log_std).sum(1)


def make_noise(actions: Categorical | Gaussian, streams: Streams, envs: int) -> NoiseBlocks:
    """Return the random numbers by which ``actions`` are sampled: ``{"action": [M, envs, A]}`` for each step."""
    return NoiseBlocks(streams, [(type(actions).sample_noise, {"action": (envs, actions.num_outputs)})])


POLICY_GAIN, VALUE_GAIN = 0.01, 1.0  # gains of the initial weights of the last layers (Huang et al. 2022, detail 2)


class Views(NamedTuple):
    """The parts of the parameters ``[M, D]`` of M members, as views that share their memory. ``mean`` and ``scale`` (1
    / standard deviation) of observations are ``[M, O]``, or ``[M, 0]`` if observations are not normalised."""

    actor: Tensor  # weights of the policy network
    critic: Tensor  # weights of the value network
    log_std: Tensor  # logarithms of standard deviations of continuous actions
    trunk: Tensor  # weights of the convolutions that policy and values share, [M, 0] without images
    mean: Tensor
    scale: Tensor

    def normalise(self, obs: Tensor) -> Tensor:
        """Return ``obs [M, B, O]``, normalised and clipped if the parameters include ``mean`` and ``scale``."""
        if self.mean.shape[1] == 0:
            return obs
        return ((obs - self.mean.unsqueeze(1)) * self.scale.unsqueeze(1)).clamp(-CLIP_LIMIT, CLIP_LIMIT)


class ActorCritic:
    """Architecture of the policy and the value network of a member. Its D parameters, a row of a tensor ``[M, D]``, are
    in this order: policy network, value network, ``log_std`` of actions, convolutions, mean and scale of observations,
    and zeros, so that D is a multiple of `BLOCK`. ``member_config`` (``config`` with samples) has ``hidden_sizes``."""

    def __init__(self, config: Config, member_config: Config, spaces: Spaces):
        self.spaces, self.conv_channels = spaces, config.conv_channels
        self.actions: Categorical | Gaussian
        if isinstance(spaces.actions, Discrete):
            self.actions = Categorical(spaces.actions)
        else:
            self.actions = Gaussian(spaces.actions, config.action_std, config.scale_actions)
        if spaces.is_image and (config.normalize_obs or config.intrinsic != "none"):
            # In lower case, as in YAML: "true", not "True".
            settings = f"normalize_obs is {config.normalize_obs} and intrinsic {config.intrinsic}".lower()
            raise SettingError(f"{settings}, but the environment shows images; allowed: false and none")
        hidden = member_config.hidden_sizes
        # Any seed will do, because weights are arguments of all methods.
        self.trunk, inputs = trunk(spaces, config.conv_channels, Streams([0]))
        num_trunk = sum(param.shape[1] for param in self.trunk.parameters())
        self.orthogonal = config.orthogonal
        layer = Orthogonal if config.orthogonal else Dense
        self.actor = MLP([inputs, *hidden, self.actions.num_outputs], config.activation, layer=layer)
        self.critic = MLP([inputs, *hidden, 1], config.activation, layer=layer)
        num_moments = inputs if config.normalize_obs else 0
        num_log_std = len(self.actions.initial_log_std)
        # Sizes of the fields of `Views`, which are a row without the zeros. The last two are not trained.
        self.view_sizes = [self.actor.size, self.critic.size, num_log_std, num_trunk, num_moments, num_moments]
        self.padding = -sum(self.view_sizes) % BLOCK
        # Position of the means of observations in a row, which their scales follow; -1 without them.
        self.moments_at = sum(self.view_sizes[:-2]) if num_moments else -1

    def initial(self, streams: Streams) -> Tensor:
        """Sample initial parameters ``[M, D]`` by ``streams``, the random generators of M members."""
        actor = self._initial_network(self.actor, POLICY_GAIN, streams)
        critic = self._initial_network(self.critic, VALUE_GAIN, streams)
        initial_trunk, _ = trunk(self.spaces, self.conv_channels, streams)
        trunk_weights = [param.detach() for param in initial_trunk.parameters()]
        members = len(streams)
        log_std = self.actions.initial_log_std.expand(members, -1)
        *_, num_means, num_scales = self.view_sizes
        means, scales = torch.zeros(members, num_means), torch.ones(members, num_scales)
        padding = torch.zeros(members, self.padding)
        return torch.cat([actor, critic, log_std, *trunk_weights, means, scales, padding], 1)

    def _initial_network(self, network: MLP, gain: float, streams: Streams) -> Tensor:
        """Sample initial weights ``[M, size]`` of a network. If ``orthogonal``, its last layer has this ``gain``."""
        flat = network.initial(streams)
        if self.orthogonal:
            output_weight, _ = network.layers(flat)[network.depth - 1]  # a view, so ``flat`` changes with it
            output_weight.mul_(gain / RELU_GAIN)  # `Orthogonal` has the gain RELU_GAIN
        return flat

    def views(self, flat: Tensor) -> Views:
        """Split parameters ``flat [M, D]`` into the weights of the networks and all other parts, as views."""
        *views, _padding = flat.split([*self.view_sizes, self.padding], 1)
        return Views(*views)

    def features(self, views: Views, obs: Tensor) -> Tensor:
        """Return the inputs ``[M, B, F]`` of both networks: normalised ``obs [M, B, *O]`` or, for images, the features
        that the convolutions compute with the weights in ``views``."""
        is_image = views.trunk.shape[1] > 0
        return self.trunk(obs, views.trunk) if is_image else obs  # type: ignore[no-any-return]

    def sample(self, flat: Tensor, obs: Tensor, noise: Tensor) -> Tensor:
        """Sample actions, not clipped yet, for normalised ``obs [M, E, *O]`` by ``noise [M, E, A]``, with parameters
        ``flat [M, D]``. They are ``[M, E]`` (discrete) or ``[M, E, A]``."""
        views = self.views(flat)
        outputs = self.actor(views.actor, self.features(views, obs))
        return self.actions.sample(outputs, views.log_std, noise)

    def value(self, flat: Tensor, obs: Tensor) -> Tensor:
        """Return the critic's values of normalised ``obs [M, B, *O] -> [M, B]``, with parameters ``flat [M, D]``."""
        views = self.views(flat)
        return self.critic(views.critic, self.features(views, obs)).squeeze(2)

    def evaluate_actions(self, flat: Tensor, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and log-probabilities, ``[M, B]`` each, and the mean entropy of the policy ``[M]``, for
        normalised ``obs [M, B, *O]`` and ``action [M, B, W]`` before clipping, with parameters ``flat [M, D]``. W is 1
        for discrete actions, else A."""
        views = self.views(flat)
        features = self.features(views, obs)
        outputs = self.actor(views.actor, features)
        log_prob = self.actions.log_prob(outputs, views.log_std, action)
        value = self.critic(views.critic, features).squeeze(2)
        return value, log_prob, self.actions.entropy(outputs, views.log_std)


class PlayPolicy(AgentPolicy):
    """PPO's policy in evaluations: sampled with random ``streams`` (one per member, or one for all), else greedy."""

    noise: NoiseBlocks | None = None  # set at the first `act`, if there are ``streams``

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        if self.streams is None:
            return super().act(obs)
        network: ActorCritic = self.agent.network
        if self.noise is None:
            self.noise = make_noise(network.actions, self.streams, obs.shape[1])
        normalised_obs = network.views(self.flat_parameters).normalise(obs)
        return network.actions.clip(network.sample(self.flat_parameters, normalised_obs, self.noise.next()["action"]))
