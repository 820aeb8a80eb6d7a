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
from models.mlp import MLP, Layer
from models.off_policy import OffPolicyAgent
from models.optim import MemberAdam, polyak_update
from models.spaces import Discrete, Spaces
from models.streams import NoiseBlocks, Streams, integers_below, lockstep_streams


class DuelingQNetwork:
    """Dueling network: action values ``Q = V + A - mean(A)`` from a state value V and advantages A. A first network,
    whose last layer has no activation, computes features, from which two networks with one hidden layer each compute V
    and A. ``sizes`` are the size of an observation, the hidden widths and the number of actions. The mean is over the
    actions (Wang et al. 2016, eq. 9) or, with ``dueling_mean="batch"``, over the whole batch too (Ferreira et al.)."""

    def __init__(self, config: Config, sizes: list[int]):
        width = config.feature_dim
        self.over_batch = config.dueling_mean == "batch"
        self.features = MLP([*sizes[:-1], width], config.activation)
        self.value = MLP([width, width, 1], config.activation)
        self.advantage = MLP([width, width, sizes[-1]], config.activation)
        self.mlps = (self.features, self.value, self.advantage)
        self.size = sum(mlp.size for mlp in self.mlps)

    def initial(self, streams: Streams) -> Tensor:
        """Sample initial parameters ``[M, size]`` from each member's stream: features, value, advantage."""
        return torch.cat([mlp.initial(streams) for mlp in self.mlps], 1)

    def member_network(self, flat: Tensor, member: int) -> tuple[list[Layer], list[str | float]]:
        """Return layers and activations of one member's greedy policy for an exported file (`MLP.member_network`). They
        compute advantages alone: the best action has the largest advantage, whatever the value of the state."""
        feature_weights, _, advantage_weights = flat.split([mlp.size for mlp in self.mlps], 1)
        features, first_activations = self.features.member_network(feature_weights, member)
        advantages, last_activations = self.advantage.member_network(advantage_weights, member)
        identity = 1.0  # a number is the slope of a ReLU below 0; the layer of features has no activation
        return [*features, *advantages], [*first_activations, identity, *last_activations]

    def __call__(self, flat: Tensor, obs: Tensor) -> Tensor:
        """Return action values, ``obs [M, B, O] -> [M, B, A]``, with parameters ``flat [M, size]``."""
        feature_weights, value_weights, advantage_weights = flat.split([mlp.size for mlp in self.mlps], 1)
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
        self.num_actions = spaces.action_size
        sizes = [self.obs_size, *self.hidden_sizes, self.num_actions]
        self.network: MLP | DuelingQNetwork = MLP(sizes, config.activation)
        if config.head == "dueling":
            self.network = DuelingQNetwork(config, sizes)
        initial_weights = self.network.initial(lockstep_streams(seeds, "weights"))
        self.flat_parameters = nn.Parameter(initial_weights, requires_grad=False)
        self.target_parameters = nn.Parameter(initial_weights.clone(), requires_grad=False)
        self.optimizer = self.critic_optimizer = MemberAdam(self.flat_parameters, self.lrs)
        self.noise = NoiseBlocks(
            lockstep_streams(seeds, "exploration and replay"),
            [  # the random numbers of each step: their sampler, names and shapes
                (Streams.uniform, {"explore": (self.envs,)}),
                (integers_below(self.num_actions), {"action": (self.envs,)}),
                (Streams.uniform, {"replay": (self.updates_per_step, self.batch_size)}),
            ],
        )

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        self.random_numbers = self.noise.next()
        self.steps += 1
        explores = self.random_numbers["explore"] < self.epsilon().unsqueeze(1)
        return torch.where(explores, self.random_numbers["action"], self.values(obs).argmax(2))

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        self.replay_buffer.add(obs=obs, next_obs=next_obs, action=action, reward=reward, discount=discount)
        self.episodes += done.sum(1)

    def next_q(self, next_obs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return the values of next states for double Q-learning, ``next_obs [M, B, O] -> [M, B]``: the target
        network's values of the actions that the online network prefers."""
        next_action = self.network(self.flat_parameters, next_obs).argmax(2)
        return select_q(self.network(self.target_parameters, next_obs), next_action)

    def batch_values(self, batch: dict[str, Tensor]) -> Tensor:
        return select_q(self.values(batch["obs"]), batch["action"].long()).unsqueeze(1)  # one critic

    def finish_update(self, obs: Tensor, random_numbers: dict[str, Tensor], mask: Tensor | None) -> None:
        polyak_update(self.target_parameters, self.flat_parameters, self.config.tau, mask)

    def metrics(self) -> dict[str, Tensor]:
        return {"train/epsilon": self.epsilon()} | super().metrics()

    def values(self, obs: Tensor) -> Tensor:
        """Return the values of all actions, ``obs [M, B, O] -> [M, B, A]``."""
        return self.network(self.flat_parameters, obs)

    def greedy_network(self, member: int, command: Command) -> GreedyNetwork:
        layers, activations = self.network.member_network(self.flat_parameters, member)
        return GreedyNetwork(layers, activations, "argmax")

    def policy_actions(self, flat_parameters: Tensor, obs: Tensor, streams: Streams | None) -> Tensor:
        return self.network(flat_parameters, obs).argmax(2)


def select_q(q: Tensor, action: Tensor) -> Tensor:
    """Return the values ``[M, B]`` of ``action [M, B]`` int64, from the values ``q [M, B, A]`` of all actions."""
    return q.gather(2, action.unsqueeze(2)).squeeze(2)
