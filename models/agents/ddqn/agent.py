"""Double deep Q-learning, plain or dueling, for M members (independent agents, one per seed) in lockstep.

E is the number of environments of each member, B of steps in a minibatch, O of numbers in an observation, A of actions,
D of weights of a network. ``flat_parameters [M, D]`` has all weights of a member in one row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.agents.ddqn.config import Config
from models.contract import Command, GreedyNetwork
from models.epsilon import EpsilonGreedy
from models.losses import td_loss, td_target
from models.mlp import MLP, Layer
from models.off_policy import OffPolicyAgent
from models.optim import MemberAdam, polyak_update
from models.replay import ReplayBuffer
from models.spaces import Discrete, Spaces
from models.streams import NoiseBlocks, Streams, integers_below, lockstep_streams


class DuelingQNetwork:
    """Dueling network, ``Q = V + A - mean(A)``. A network without activation after its last layer computes features,
    from which two networks with one hidden layer each compute V and A. ``sizes`` are the size of an observation, the
    hidden widths and the number of actions. Source: Wang et al. 2016, eq. 9, with the mean over the actions of each
    state. With ``dueling_mean="batch"``, the mean is over the whole batch too, as in the public code of Ferreira et
    al."""

    def __init__(self, config: Config, sizes: list[int]):
        width = config.feature_dim
        self.over_batch = config.dueling_mean == "batch"
        self.features = MLP([*sizes[:-1], width], config.activation)
        self.value = MLP([width, width, 1], config.activation)
        self.advantage = MLP([width, width, sizes[-1]], config.activation)
        self.parts = (self.features, self.value, self.advantage)
        self.size = sum(part.size for part in self.parts)

    def initial(self, streams: Streams) -> Tensor:
        """Sample initial parameters ``[M, size]`` from each member's stream: features, value, advantage."""
        return torch.cat([part.initial(streams) for part in self.parts], 1)

    def of_member(self, flat: Tensor, member: int) -> tuple[list[Layer], list[str | float]]:
        """Return the network that computes the advantages of one member (`MLP.of_member`). The best action has the
        largest advantage, so a greedy policy needs no value."""
        feature_weights, _, advantage_weights = flat.split([part.size for part in self.parts], 1)
        features, first_activations = self.features.of_member(feature_weights, member)
        advantages, last_activations = self.advantage.of_member(advantage_weights, member)
        identity = 1.0  # slope of a ReLU below 0; the layer of features has no activation
        return [*features, *advantages], [*first_activations, identity, *last_activations]

    def __call__(self, flat: Tensor, obs: Tensor) -> Tensor:
        """Return action values, ``obs [M, B, O] -> [M, B, A]``, with parameters ``flat [M, size]``."""
        feature_weights, value_weights, advantage_weights = flat.split([part.size for part in self.parts], 1)
        features = self.features(feature_weights, obs)
        value = self.value(value_weights, features)  # [M, B, 1]
        advantage = self.advantage(advantage_weights, features)
        mean = advantage.mean(2, keepdim=True)
        if self.over_batch:
            mean = mean.mean(1, keepdim=True)
        return value + advantage - mean


class Agent(EpsilonGreedy, OffPolicyAgent):
    """Double DQN with a plain or a dueling network. The TD target is ``r + discount * Q_target(s', argmax_a Q(s',
    a))``, or r after termination. Values are bootstrapped at time limits. The loss is the mean squared error. A soft
    target update follows every gradient step of Adam."""

    action_kinds = (Discrete,)

    def __init__(self, config: Config, spaces: Spaces, seeds: Sequence[int]):
        super().__init__(config, spaces, seeds)
        assert isinstance(spaces.actions, Discrete)
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
        vector = ((self.obs_size,), torch.float32)  # shape and dtype of a column
        number = ((), torch.float32)
        columns = {"obs": vector, "next_obs": vector, "action": number, "reward": number, "discount": number}
        self.replay_buffer = ReplayBuffer(columns, config.buffer_size, len(seeds), grows=True)
        self.noise = NoiseBlocks(
            lockstep_streams(seeds, "exploration and replay"),
            [  # the random numbers of each step: their sampler, names and shapes
                (Streams.uniform, {"explore": (self.envs,)}),
                (integers_below(self.num_actions), {"action": (self.envs,)}),
                (Streams.uniform, {"replay": (config.updates_per_step, first_config.batch_size)}),
            ],
        )

    def act(self, obs: Tensor) -> Tensor:
        """Begin a step. Return epsilon-greedy actions ``[M, E]`` for ``obs [M, E, O]``."""
        self.random_numbers = self.noise.next()
        self.steps += 1
        explore = self.random_numbers["explore"] < self.epsilon().unsqueeze(1)
        greedy_policy = self.with_weights(self.flat_parameters)
        return torch.where(explore, self.random_numbers["action"], greedy_policy.act(obs))

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        self.replay_buffer.add(obs=obs, next_obs=next_obs, action=action, reward=reward, discount=discount)
        self.episodes += done.sum(1)

    @torch.enable_grad()
    def update(self, random_numbers: dict[str, Tensor], learning: Tensor | None = None) -> Tensor:
        """Make a gradient step and a soft target update (`OffPolicyAgent.update`)."""
        batch = self.minibatch(random_numbers["replay"], learning)
        self.optimizer.zero_grad()
        loss, _, _ = self.q_loss(batch)
        loss.sum().backward()
        self.optimizer.step(learning)
        polyak_update(self.target_parameters, self.flat_parameters, self.config.tau, learning)
        return loss.detach()

    def q_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss ``[M]`` of double DQN on a minibatch, the values ``[M, B]`` of its actions, and their TD
        targets ``[M, B]``."""
        with torch.no_grad():
            next_action = self.network(self.flat_parameters, batch["next_obs"]).argmax(2)
            target_values = self.network(self.target_parameters, batch["next_obs"])  # [M, B, A]
            next_q = q_of(target_values, next_action)
            target = td_target(batch["reward"], self.config.discount * batch["discount"], next_q)
        q = q_of(self.values(batch["obs"]), batch["action"].long())
        return td_loss(q, target), q, target

    def metrics(self) -> dict[str, Tensor]:
        return {"train/epsilon": self.epsilon()} | super().metrics()

    def statistics(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        self.optimizer.zero_grad()
        loss, q, target = self.q_loss(batch)
        return self.value_statistics(self.optimizer, loss, q.unsqueeze(1), target)

    def values(self, obs: Tensor) -> Tensor:
        """Return the values of all actions, ``obs [M, B, O] -> [M, B, A]``."""
        return self.network(self.flat_parameters, obs)

    def greedy_network(self, member: int, command: Command) -> GreedyNetwork:
        layers, activations = self.network.of_member(self.flat_parameters, member)
        return GreedyNetwork(layers, activations, "argmax")

    def policy_actions(self, flat_parameters: Tensor, obs: Tensor, streams: Streams | None) -> Tensor:
        """Return the best actions ``[M, E]`` int64 for ``obs [M, E, O]``; the first one if several are equally good."""
        return self.network(flat_parameters, obs).argmax(2)


def q_of(q: Tensor, action: Tensor) -> Tensor:
    """Return the values ``[M, B]`` of ``action [M, B]`` int64, from the values ``q [M, B, A]`` of all actions."""
    return q.gather(2, action.unsqueeze(2)).squeeze(2)
