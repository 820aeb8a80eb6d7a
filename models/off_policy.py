"""The base class of agents that learn from a replay buffer, and the common part of TD3 and SAC.

M is the number of members (independent agents, one per seed), E of environments of each, U of updates after each step,
B of steps in a minibatch, O of numbers in an observation, A in an action, D of weights of a network. ``flat_parameters
[M, D]`` has all weights of a member's network or actor in one row. Streams are random generators, one per member.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from models.contract import AgentPolicy, Command, GreedyNetwork, InnerAgent
from models.losses import explained_variance, td_loss, td_target
from models.mlp import MLP
from models.optim import MemberAdam, norms
from models.replay import ReplayBuffer
from models.spaces import Continuous, Discrete, Spaces
from models.state import Stateful
from models.streams import Draw, NoiseBlocks, Streams, lockstep_streams
from models.varied import groups


class OffPolicyAgent(InnerAgent):
    """Base class of agents with a replay buffer, which make U updates after each step. Subclasses set the attributes
    below. ``random_numbers["replay"] [M, U, B]`` are uniform numbers that choose the minibatches of a step."""

    saved: ClassVar[tuple[str, ...]] = ("optimizer", "replay_buffer", "episodes", "noise", "curiosity", "steps")
    optimizer: MemberAdam  # trains ``flat_parameters``
    critic_optimizer: MemberAdam  # trains the networks of values
    noise: NoiseBlocks
    random_number_names: tuple[str, ...] = ("replay",)  # names of the random numbers ``[M, U, ...]`` of updates
    metric_names: tuple[str, ...] = ("q_mean", "explained_variance", "grad_norm")  # names in `metrics`
    groups = staticmethod(groups)

    def __init__(self, config: Any, spaces: Spaces, seeds: Sequence[int], action_shape: tuple[int, ...] = ()):
        """``action_shape`` is the shape of an action in the replay buffer."""
        super().__init__(config, spaces, seeds)
        self.updates_per_step = config.updates_per_step
        first_config = self.member_configs[0]  # all members have its hidden_sizes and batch_size
        self.batch_size, self.hidden_sizes = first_config.batch_size, first_config.hidden_sizes
        self.lrs = torch.tensor([member_config.lr for member_config in self.member_configs])
        self.obs_size = spaces.obs_shape[0]
        obs_shape = spaces.obs_shape
        shapes = {"obs": obs_shape, "action": action_shape, "next_obs": obs_shape, "reward": (), "discount": ()}
        columns = {name: (shape, torch.float32) for name, shape in shapes.items()}
        self.replay_buffer = ReplayBuffer(columns, config.buffer_size, len(seeds), grows=True)

    def random_numbers_of_update(self, i: int) -> dict[str, Tensor]:
        """Return the random numbers of update ``i`` of this step, by the names in ``random_number_names``."""
        return {name: self.random_numbers[name][:, i] for name in self.random_number_names}

    @torch.enable_grad()
    def update(self, random_numbers: dict[str, Tensor], mask: Tensor | None = None) -> Tensor:
        """Update critics, actor and target networks of the members ``mask [M]`` bool (None: all) with the
        ``random_numbers`` from `random_numbers_of_update`. Return the critics' loss ``[M]`` before the update."""
        batch = self.minibatch(random_numbers["replay"], mask)
        self.critic_optimizer.zero_grad()
        loss, _, _ = self.critic_loss(batch, random_numbers)
        loss.sum().backward()
        self.critic_optimizer.step(mask)
        self.finish_update(batch["obs"], random_numbers, mask)
        return loss.detach()

    def critic_loss(self, batch: dict[str, Tensor], random_numbers: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return three tensors for the minibatch ``batch`` (`minibatch`): the loss of K critics (1 or 2), ``[M]``,
        summed over critics; their values ``[M, K, B]``; TD targets ``[M, B]``. `next_q` uses ``random_numbers``."""
        with torch.no_grad():
            # The column "discount" is 0 after a termination, otherwise 1.
            next_q = self.next_q(batch["next_obs"], random_numbers)
            target = td_target(batch["reward"], self.config.discount * batch["discount"], next_q)
        q = self.batch_values(batch)
        return td_loss(q, target.unsqueeze(1)).sum(1), q, target

    def next_q(self, next_obs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return the target networks' values ``[M, B]`` of the actions that the agent would take after ``next_obs [M,
        B, O]``, with noise from ``random_numbers``."""
        raise NotImplementedError

    def batch_values(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the values ``[M, K, B]`` of the actions in the minibatch ``batch`` (`minibatch`), by K critics."""
        raise NotImplementedError

    def finish_update(self, obs: Tensor, random_numbers: dict[str, Tensor], mask: Tensor | None) -> None:
        """After an update of the critics, update the actor, if any, on ``obs [M, B, O]``, and the target networks, in
        the members ``mask [M]`` bool (None: all)."""
        raise NotImplementedError

    def actor_metrics(self, obs: Tensor, random_numbers: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return statistics of the actor on ``obs [M, B, O]``, ``{name: [M]}``; empty without an actor."""
        return {}

    def learn(self) -> Tensor:
        is_learning = self.learning_members()
        if not is_learning.any():
            return torch.full((self.members,), torch.nan)
        updated_members = None if is_learning.all() else is_learning  # None: all members
        for i in range(self.updates_per_step):
            loss = self.update(self.random_numbers_of_update(i), updated_members)
        return loss.masked_fill(~is_learning, torch.nan)

    def minibatch(self, uniform: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """Sample a minibatch by random numbers ``uniform [M, B]`` in [0, 1): ``obs``, ``action``, ``next_obs``,
        ``reward`` and ``discount``, ``[M, B, ...]`` each. If the agent has ``curiosity``, add its rewards for novelty,
        and train its networks in the members ``mask [M]`` bool (None: all)."""
        batch = self.replay_buffer.sample(uniform)
        if self.curiosity is not None:
            action = batch["action"]
            if isinstance(self.spaces.actions, Discrete) and action.dim() == 3:  # stored as vectors [M, B, A]
                action = action.argmax(2)
            novelty = self.curiosity.rewards(batch["obs"], action, batch["next_obs"], mask)
            batch["reward"] = batch["reward"] + novelty
        return batch

    @torch.enable_grad()
    def metrics(self) -> dict[str, Tensor]:
        """Return statistics of the current weights, ``{tag: [M]}``, on the minibatch of the latest update, which is
        sampled again. They are NaN for members that do not learn yet."""
        is_learning = self.learning_members()
        statistics = dict.fromkeys(self.metric_names, torch.full((self.members,), torch.nan))
        if self.random_numbers and is_learning.any():
            random_numbers = self.random_numbers_of_update(-1)  # the numbers of the latest update
            no_member = torch.zeros(self.members, dtype=torch.bool)  # so that no network of ``curiosity`` is trained
            batch = self.minibatch(random_numbers["replay"], mask=no_member)
            self.critic_optimizer.zero_grad()
            loss, values, target = self.critic_loss(batch, random_numbers)
            loss.sum().backward()
            q = values.detach()
            with torch.no_grad():
                statistics = self.actor_metrics(batch["obs"], random_numbers) | {
                    "q_mean": q.flatten(1).mean(1),
                    "explained_variance": explained_variance(q[:, 0], target),  # values of the first critic
                    "grad_norm": norms([self.critic_optimizer.take_gradient()]),
                }
        return {f"train/{name}": statistics[name].masked_fill(~is_learning, torch.nan) for name in self.metric_names}

    @property
    def first_update(self) -> int:
        """The earliest step at which an update is possible. It may come later, after ``init_episodes`` episodes."""
        return max(1, self.config.fill)

    def learning_members(self) -> Tensor:
        return (self.episodes >= self.config.init_episodes) & (self.replay_buffer.size >= self.first_update)

    def count_steps(self, steps: int) -> None:
        super().count_steps(steps)
        self.replay_buffer.advance(steps * self.envs)


class OrnsteinUhlenbeck(Stateful):
    """Ornstein-Uhlenbeck noise on actions, which is correlated in time: ``level [M, E, A]``, x below. A step is ``x +=
    -THETA x DT + sqrt(DT) n`` with standard normal n.

    x is 0 at the start of an episode. Its standard deviation is about 0.1 after one step, 0.9 after a hundred, 1.8 in
    the limit. The value of THETA is from Lillicrap et al. 2016, arXiv 1509.02971, the value of DT from
    stable-baselines3, whose noise is x times its parameter sigma.
    """

    THETA, DT = 0.15, 0.01
    saved = ("level",)

    def __init__(self, *shape: int):
        self.level = torch.zeros(shape)

    def next(self, normal: Tensor) -> Tensor:
        """Advance one step and return the noise ``[M, E, A]``. ``normal`` are standard normal numbers of this shape."""
        # Products and sum are separate, because fused operations could round the last elements of an array differently.
        level = self.level.mul(1 - self.THETA * self.DT)
        self.level = level.add_(normal.mul(sqrt(self.DT)))
        return self.level

    def reset_finished(self, done: Tensor) -> None:
        """Reset the noise to 0 in the environments marked by ``done [M, E]`` bool."""
        self.level = self.level.masked_fill(done.unsqueeze(2), 0.0)


class TwinCritics(nn.Module, Stateful):
    """Two critics Q(s, a) for each of M members (independent agents). ``sizes`` are the number of inputs O + A
    (observation and action), the widths of the hidden layers, and 1. ``lr [M]`` are learning rates.

    D is the number of weights of a critic. A row of ``flat_parameters [M, 2 D]`` holds the weights of the first critic,
    then of the second critic, so that all can be viewed as 2 M networks ``[2 M, D]``. Without ``twins`` the second
    critic exists, but is neither used nor trained.

    Source: Fujimoto, van Hoof & Meger 2018, "Addressing Function Approximation Error in Actor-Critic Methods", arXiv
    1802.09477, section 4.
    """

    def __init__(self, sizes: Sequence[int], activation: str, streams: Streams, lr: Tensor, twins: bool = True):
        super().__init__()
        self.twins = twins
        self.network = MLP(sizes, activation)
        initial_weights = torch.cat([self.network.initial(streams), self.network.initial(streams)], 1)
        self.flat_parameters = nn.Parameter(initial_weights, requires_grad=False)
        self.target_parameters = nn.Parameter(initial_weights.clone(), requires_grad=False)
        self.optimizer = MemberAdam(self.flat_parameters, lr)

    def forward(
        self, obs: Tensor, action: Tensor, count: int | None = None, parameters: Tensor | None = None
    ) -> Tensor:
        """Return the values of the first ``count`` critics (None: all used critics), ``[M, count, B]``, for ``obs
        [M, B, O]`` and ``action [M, B, A]``, with ``parameters [M, 2 D]`` (None: `flat_parameters`)."""
        flat = self.flat_parameters if parameters is None else parameters
        if count is None:
            count = 2 if self.twins else 1
        # The network has M * count members: first and second critic of member 0, then of member 1, and so on.
        inputs = torch.cat([obs, action], 2).repeat_interleave(count, 0)  # [M * count, B, O + A]
        weights = flat[:, : count * self.network.size].reshape(-1, self.network.size)  # [M * count, D]
        return self.network(weights, inputs).view(len(flat), count, -1)

    def target_values(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the smaller value of both target critics, ``[M, B]``, for ``obs [M, B, O]`` and ``action [M, B, A]``.
        Without ``twins``, it is the value of the first."""
        return self(obs, action, parameters=self.target_parameters).amin(1)  # type: ignore[no-any-return]


class TwinCriticAgent(OffPolicyAgent):
    """Base class of TD3 and SAC: an actor and twin critics that learn from a replay buffer.

    The networks use action vectors of A numbers in [-1, 1], which `clip` scales to the bounds of the environment. So
    noise is in units of half the range. A member acts at random until it learns. Values are bootstrapped at time
    limits.

    A subclass implements the methods that raise NotImplementedError. It may sample more noise (`_noise_draws`)."""

    action_kinds: ClassVar[tuple[type[Discrete] | type[Continuous], ...]] = (Continuous,)
    saved = (*OffPolicyAgent.saved, "critic_optimizer", "action_noise")
    random_number_names: tuple[str, ...] = (*OffPolicyAgent.random_number_names, "next")
    metric_names: tuple[str, ...] = (*OffPolicyAgent.metric_names, "policy_loss")
    outputs_per_action: ClassVar[int] = 1  # outputs of the actor's network for each number of an action vector
    log_setting: ClassVar[str] = ""  # setting whose logarithm is the last weight of the actor, if any
    has_target_actor: ClassVar[bool] = False
    normal_names: ClassVar[tuple[str, ...]] = ("next",)  # names of normal noise ``[M, U, A, B]`` in updates

    def __init__(self, config: Any, spaces: Spaces, seeds: Sequence[int]):
        super().__init__(config, spaces, seeds, action_shape=(spaces.action_size,))
        self.action_size, hidden = spaces.action_size, self.hidden_sizes
        streams = lockstep_streams(seeds, "weights")
        self.network = MLP([self.obs_size, *hidden, self.outputs_per_action * self.action_size], config.activation)
        initial_weights = self.network.initial(streams)
        if self.log_setting:
            logarithm = torch.tensor(getattr(config, self.log_setting)).log()
            initial_weights = torch.cat([initial_weights, logarithm.expand(len(seeds), 1)], 1)
        if self.has_target_actor:
            self.target_parameters = nn.Parameter(initial_weights.clone(), requires_grad=False)
        self.flat_parameters = nn.Parameter(initial_weights, requires_grad=False)
        self.optimizer = MemberAdam(self.flat_parameters, self.lrs)
        twins = getattr(config, "twin_critics", True)  # SAC has no such setting: it always uses both
        critic_sizes = [self.obs_size + self.action_size, *hidden, 1]
        self.critics = TwinCritics(critic_sizes, config.activation, streams, self.lrs, twins)
        self.critic_optimizer = self.critics.optimizer  # an attribute, because ``saved`` has names of attributes
        self.noise = NoiseBlocks(lockstep_streams(seeds, "exploration and replay"), self._noise_draws())
        is_correlated = config.noise_type == "ornstein-uhlenbeck"
        self.action_noise = OrnsteinUhlenbeck(len(seeds), self.envs, self.action_size) if is_correlated else None
        self.action_vectors = torch.empty(0)  # [M, E, A], action vectors of the current step
        if isinstance(spaces.actions, Continuous):
            self.low, self.high = torch.tensor(spaces.actions.low), torch.tensor(spaces.actions.high)
            self.centre = (self.low + self.high) / 2
            self.half_range = (self.high - self.low) / 2

    def _noise_draws(self) -> list[Draw]:
        """Return names and shapes of the random numbers that a step needs, for `NoiseBlocks`. A member acts by the
        uniform numbers "random" until it learns, then with the normal noise "explore". In each update, "replay" chooses
        the minibatch, and "next" is the noise on actions in the next states."""
        action_shape, updates = (self.envs, self.action_size), self.updates_per_step
        update_shapes = dict.fromkeys(self.normal_names, (updates, self.action_size, self.batch_size))
        return [
            (Streams.uniform, {"random": action_shape, "replay": (updates, self.batch_size)}),
            (Streams.normal, {"explore": action_shape, **update_shapes}),
        ]

    def actor(self, weights: Tensor, obs: Tensor) -> Tensor:
        """Return the outputs of the actor's network with ``weights [M, D]``: ``obs [M, B, O] -> [M, B, outputs]``."""
        return self.network(weights[:, : self.network.size], obs)

    def batch_values(self, batch: dict[str, Tensor]) -> Tensor:
        return self.critics(batch["obs"], batch["action"])  # type: ignore[no-any-return]

    def _explore(self, outputs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return action vectors with exploration noise, ``[M, E, A]``, for ``outputs [M, E, outputs]`` of the actor's
        network. ``random_numbers`` are the numbers of this step (`_noise_draws`)."""
        raise NotImplementedError

    def evaluation_vectors(self, outputs: Tensor, streams: Streams | None) -> Tensor:
        """Return action vectors ``[M, E, A]`` for ``outputs [M, E, outputs]`` of the actor's network: samples by the
        random generators ``streams`` or, if it is None, greedy vectors."""
        raise NotImplementedError

    def act(self, obs: Tensor) -> Tensor:
        with torch.no_grad():
            self.random_numbers = self.noise.next()
            if self.action_noise is not None:
                self.random_numbers["explore"] = self.action_noise.next(self.random_numbers["explore"])
            self.steps += 1
            outputs = self.actor(self.flat_parameters, obs)
            vectors = self._explore(outputs, self.random_numbers)
            is_learning = self.learning_members()
            if not is_learning.all():
                vectors = torch.where(is_learning.view(-1, 1, 1), vectors, self._random_vectors())
            self.action_vectors = vectors.nan_to_num(0.0)  # a diverged member continues to play
            return self.clip(self.action_vectors)

    def _random_vectors(self) -> Tensor:
        """Return uniformly random action vectors ``[M, E, A]`` in [-1, 1)."""
        return 2 * self.random_numbers["random"] - 1

    def clip(self, vectors: Tensor) -> Tensor:
        """Scale action ``vectors [M, E, A]`` from [-1, 1] to the environment's bounds, and clip them."""
        scaled_vectors = torch.addcmul(self.centre, vectors, self.half_range)
        return scaled_vectors.maximum(self.low).minimum(self.high)

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        """Store the step with the ``action_vectors`` that `act` chose, not with the environment's ``action``."""
        self.replay_buffer.add(obs=obs, action=self.action_vectors, next_obs=next_obs, reward=reward, discount=discount)
        self.episodes += done.sum(1)
        if self.action_noise is not None:
            self.action_noise.reset_finished(done)

    def greedy_network(self, member: int, command: Command) -> GreedyNetwork:
        layers, activations = self.network.member_network(self.flat_parameters[:, : self.network.size], member)
        weight, bias = layers[-1]
        layers[-1] = weight[: self.action_size], bias[: self.action_size]  # SAC's network also outputs log_std
        head = "argmax" if isinstance(self.spaces.actions, Discrete) else "tanh"
        return GreedyNetwork(layers, activations, head)

    def begin(self, envs: int, streams: Streams, **_: Any) -> AgentPolicy:
        """Return the greedy policy or, with ``test_noise``, a policy that samples. ``sample`` has no effect."""
        return AgentPolicy(self, self.flat_parameters, streams if self.config.test_noise else None)

    def policy_actions(self, flat_parameters: Tensor, obs: Tensor, streams: Streams | None) -> Tensor:
        vectors = self.evaluation_vectors(self.actor(flat_parameters, obs), streams)
        return self.clip(vectors.nan_to_num(0.0))  # a diverged member continues to play
