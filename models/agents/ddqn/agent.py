"""Double deep Q-learning, plain or dueling, for M members in lockstep."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.agents.ddqn.config import Config
from models.agents.ddqn.networks import DuelingQNetwork
from models.contract import Policy
from models.curiosity import build_curiosity
from models.epsilon import Epsilon
from models.losses import explained_variance
from models.mlp import MLP
from models.optim import MemberAdam, norms
from models.replay import ReplayBuffer
from models.replaying import OffPolicyAgent
from models.spaces import Discrete, Spaces
from models.streams import NoiseBlocks, Streams, integers_below, lockstep_streams, uniforms
from models.varied import groups, sample_member_configs


class Agent(OffPolicyAgent):
    """Double DQN with a plain or a dueling network. E is ``config.num_envs``.

    The TD target is ``r + discount * Q_target(s', argmax_a Q(s', a))``, or r after termination. Values are bootstrapped
    at time limits. ``intrinsic`` adds a novelty bonus to the rewards of a minibatch (`models.curiosity`). The loss is
    the mean squared error. A soft target update follows every gradient step of Adam. Each member has separate random
    streams. With ``vary_hp`` it also has separate hyperparameters, sampled from its seed; all members must then be from
    one group of `groups`.
    """

    action_kinds = (Discrete,)
    per_member = (*OffPolicyAgent.per_member, "target_parameters")
    groups = staticmethod(groups)

    def __init__(self, config: Config, spaces: Spaces, seeds: Sequence[int]):
        super().__init__()
        assert isinstance(spaces.actions, Discrete)
        self.config, self.spaces, self.seeds = config, spaces, list(seeds)
        self.member_configs = sample_member_configs(config, seeds)
        first_config = self.member_configs[0]  # all members have its hidden_sizes and batch_size
        self.obs_size, self.num_actions = spaces.obs_shape[0], spaces.actions.n
        sizes = [self.obs_size, *first_config.hidden_sizes, self.num_actions]
        self.network: MLP | DuelingQNetwork = MLP(sizes, config.activation)
        if config.head == "dueling":
            self.network = DuelingQNetwork(config, sizes)
        initial_weights = self.network.initial(lockstep_streams(seeds, "weights"))
        self.flat_parameters = nn.Parameter(initial_weights, requires_grad=False)
        self.target_parameters = nn.Parameter(initial_weights.clone(), requires_grad=False)
        lrs = torch.tensor([member_config.lr for member_config in self.member_configs])
        self.optimizer = MemberAdam(self.flat_parameters, lrs)
        vector, number = ((self.obs_size,), torch.float32), ((), torch.float32)  # shape and dtype of a column
        columns = {"obs": vector, "next_obs": vector, "action": number, "reward": number, "discount": number}
        self.replay_buffer = ReplayBuffer(columns, config.buffer_size, len(seeds), grows=True)
        self.curiosity = build_curiosity(config, spaces, seeds)
        self.envs, self.updates_per_step = config.num_envs, config.updates_per_step
        self.noise = NoiseBlocks(
            lockstep_streams(seeds, "exploration and replay"),
            [
                (uniforms, {"explore": (self.envs,)}),
                (integers_below(self.num_actions), {"action": (self.envs,)}),
                (uniforms, {"replay": (config.updates_per_step, first_config.batch_size)}),
            ],
        )
        self.random_numbers: dict[str, Tensor] = {}  # random numbers of the current step
        self.episodes = torch.zeros(len(seeds), dtype=torch.int64)  # number of finished episodes
        self.steps = 0
        # From the latest update, for `metrics`: chosen_q and td_target [M, B], gradient [M, D].
        self._latest: dict[str, Tensor] = {}
        self._action_indices = torch.arange(self.num_actions).view(1, -1, 1)
        self._epsilon = Epsilon(config)
        self._update_views()

    def _update_views(self) -> None:
        """Set the attributes that are views of ``flat_parameters`` and ``target_parameters``."""
        self._policy = self.with_weights(self.flat_parameters)
        self._online: Any = self._policy.layers
        self._target: Any = self.network.layers(self.target_parameters)

    def begin(self, envs: int, streams: Streams, **_: Any) -> "Greedy":
        """Return the greedy policy. No argument of `Agent.begin` has an effect."""
        return self._policy

    def act(self, obs: Tensor) -> Tensor:
        """Count the step and sample its random numbers. Return epsilon-greedy actions ``[M, E]`` for ``obs``."""
        self.random_numbers = self.noise.next()
        self.steps += 1
        explore = self.random_numbers["explore"] < self.epsilon().unsqueeze(1)
        return torch.where(explore, self.random_numbers["action"], self._policy.act(obs))

    def epsilon(self) -> Tensor:
        """Return the probability of a random action in the current step, ``[M]``."""
        previous_steps = self.steps - 1  # `act` has already counted the current one
        return self._epsilon.current(self.episodes, previous_steps * self.envs, self.budget)

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        """Store the step in the replay buffer, and count finished episodes."""
        self.replay_buffer.add(obs=obs, next_obs=next_obs, action=action, reward=reward, discount=discount)
        self.episodes += done.sum(1)

    @torch.no_grad()
    def learn(self) -> Tensor:
        """Make the updates of this step. Return the last one's loss ``[M]``, NaN for members that do not learn yet."""
        is_learning = self.learning()
        if not is_learning.any():
            return torch.full((self.members,), torch.nan)
        active = None if is_learning.all() else is_learning  # None: all members
        for uniform in self.random_numbers["replay"].unbind(1):
            loss = self.update(uniform, active)
        return loss if active is None else loss.masked_fill(~is_learning, torch.nan)

    def update(self, uniform: Tensor, learning: Tensor | None = None) -> Tensor:
        """Make a gradient step and a soft target update of the members ``learning [M]`` bool (None: all). Return the
        loss ``[M]`` before the step.

        Uniform numbers ``uniform [M, B]`` choose the minibatch (`ReplayBuffer.sample`).
        """
        batch = self.replay_buffer.sample(uniform)
        reward = batch["reward"]
        if self.curiosity is not None:
            reward = reward + self.curiosity.rewards(batch["obs"], batch["action"], batch["next_obs"], learning)
        obs, next_obs = batch["obs"].transpose(1, 2), batch["next_obs"].transpose(1, 2)  # [M, O, B]
        best_action = self.network.forward(self._online, next_obs)[-1].max(1, keepdim=True).indices
        next_q = self.network.forward(self._target, next_obs)[-1].gather(1, best_action).squeeze(1)
        td_target = torch.addcmul(reward, batch["discount"], next_q, value=self.config.discount)
        activations = self.network.forward(self._online, obs)
        action_mask = (batch["action"].unsqueeze(1) == self._action_indices).float()  # [M, A, B], one-hot
        chosen_q = (activations[-1] * action_mask).sum(1)
        error = chosen_q - td_target
        weighted_error = error * (1 / uniform.shape[1])  # the loss is the mean over the minibatch
        q_gradient = action_mask * (2 * weighted_error).unsqueeze(1)
        gradient, _ = self.network.backward(self._online, obs, activations, q_gradient)
        self._latest |= {"chosen_q": chosen_q, "td_target": td_target, "gradient": gradient}
        self.optimizer.update(gradient, learning)
        if learning is None:
            self.target_parameters.lerp_(self.flat_parameters, self.config.tau)
        else:
            new_target = self.target_parameters.lerp(self.flat_parameters, self.config.tau)
            self.target_parameters.copy_(torch.where(learning.unsqueeze(1), new_target, self.target_parameters))
        return (weighted_error * error).sum(1)

    def select(self, members: Tensor) -> None:
        """Keep only ``members`` (indices ``[M']``). Forget the statistics of the latest minibatch."""
        self._latest.clear()
        super().select(members)

    def metrics(self) -> dict[str, Tensor]:
        """Return epsilon, and statistics of the latest minibatch: ``{tag: [M]}``. Statistics are NaN if there was no
        update since the last call."""
        names = ("train/q_mean", "train/explained_variance", "train/grad_norm")
        batch_metrics = dict.fromkeys(names, torch.full((self.members,), torch.nan))
        if self._latest:
            chosen_q, td_target = self._latest["chosen_q"], self._latest["td_target"]
            statistics = chosen_q.mean(1), explained_variance(chosen_q, td_target), norms([self._latest["gradient"]])
            batch_metrics = dict(zip(names, statistics, strict=True))
            self._latest.clear()
        return {"train/epsilon": self.epsilon()} | self.mask_non_learners(batch_metrics)

    def values(self, obs: Tensor) -> Tensor:
        """Return the values of all actions, ``obs [M, B, O] -> [M, B, A]``."""
        return self.network.forward(self._online, obs.transpose(1, 2))[-1].transpose(1, 2)

    def with_weights(self, flat_parameters: Tensor) -> "Greedy":
        return Greedy(self.network, flat_parameters)


class Greedy(Policy):
    """Greedy policy of M Q-networks with weights ``flat_parameters [M, D]``."""

    def __init__(self, network: MLP | DuelingQNetwork, flat_parameters: Tensor):
        self.network, self.flat_parameters, self.members = network, flat_parameters, len(flat_parameters)
        self.layers: Any = network.layers(flat_parameters)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Return the best actions ``[M, E]`` int64 for ``obs [M, E, O]``; the first of several equal ones."""
        return self.network.forward(self.layers, obs.transpose(1, 2))[-1].max(1).indices
