"""Policy gradients: vanilla, with baseline, with entropy, with both, and advantage actor-critic; one agent, five
settings.

Read top to bottom: the returns and advantages of a batch of episodes (`observe`), one gradient step on it (`learn`),
then acting and the networks. docs/policy_gradients.md lists the deviations from the notebook.

M is the number of members (independent agents, one per seed), E of episodes of each, T of steps of the longest episode,
N of experiences (steps) of a member in its episodes, with padding, B of experiences in a chunk. ``*O`` is the shape of
an observation, A the number of actions.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.agents.policy_gradients.config import Config
from models.contract import Command, EpisodeAgent, GreedyNetwork, Policy
from models.layers import trunk
from models.losses import entropy_loss, explained_variance, policy_gradient, value_loss
from models.mlp import MlpNetwork
from models.optim import Adam, clip_gradients
from models.spaces import Discrete, Spaces
from models.state import check_like
from models.streams import NoiseBlocks, Streams
from models.trajectory import Trajectory, discounted_returns, lambda_returns, next_values, stack_padded

CHUNK = 256  # experiences; large enough for matrix products, small enough to waste little on padding
_COLLAPSE_THRESHOLD = 1e-6  # a policy has collapsed if its entropy is below this fraction of the largest entropy


class Agent(EpisodeAgent):
    """M members of a policy-gradient agent, which learn from batches of whole episodes and keep no old episodes."""

    action_kinds = (Discrete,)
    takes_images = True
    main_loss = "policy_loss"
    optimizers: list[Adam]

    def __init__(self, config: Config, spaces: Spaces, seeds: list[int]):
        super().__init__()
        self.config, self.spaces, self.seeds = config, spaces, list(seeds)
        self.network = ActorCritic(config, spaces, Streams.from_name(seeds, "initial weights"))
        policy_parameters = [*self.network.policy.parameters(), *self.network.trunk.parameters()]
        self.optimizers = [Adam(policy_parameters, config.lr, eps=config.adam_eps)]
        if self.network.critic is not None:
            value_lr = config.value_lr or config.lr
            self.optimizers.append(Adam([self.network.critic.flat], value_lr, eps=config.adam_eps))
        self.batch: Batch | None = None  # stored by `observe` for the next `learn`
        self.member_steps = torch.zeros(len(seeds), dtype=torch.int64)  # number of steps that members learned from

    def greedy_network(self, member: int, command: Command) -> GreedyNetwork:
        policy, num_actions = self.network.policy, self.network.num_actions
        layers, activations = policy.mlp.member_network(policy.flat, member)
        weight, bias = layers[-1]
        layers[-1] = weight[:num_actions], bias[:num_actions]  # a shared network also outputs the value
        return GreedyNetwork(layers, activations, "argmax")

    def begin(self, envs: int, streams: Streams, *, sample: bool, **_: Any) -> "SoftmaxPolicy":
        return SoftmaxPolicy(self, envs, streams, sample)

    @torch.no_grad()
    def observe(self, trajectory: Trajectory, validate: bool = False) -> dict[str, Tensor]:
        """Compute returns and advantages of the episodes of one update, and store them as ``batch`` for `learn`. Return
        statistics ``{name: [M]}``: the mean ``baseline``, if there is one, and ``advantage_mean`` and
        ``explained_variance``, if it is a value network. ``validate`` has no effect."""
        config = self.config
        self.batch = batch = make_batch(trajectory)
        values = None  # [M, N] if there is a value network
        if config.baseline == "value":
            values = torch.cat([self.network.values(chunk.obs) for chunk in batch.chunks()], 1)
        returns = self._returns(trajectory, values)  # [T, M, E]
        batch.returns = join_episodes(returns, trajectory.valid, batch.obs.shape[1])  # [M, N]
        if values is not None:
            baseline = values
        elif config.baseline == "batch_mean":
            baseline = batch.member_means(batch.returns).unsqueeze(1).expand_as(batch.returns)
        else:
            baseline = torch.zeros_like(batch.returns)
        batch.advantages = batch.returns - baseline
        metrics = {}
        if config.baseline != "none":
            metrics["baseline"] = batch.member_means(baseline)
        # Without a value network there is nothing to report: with batch_mean, the mean advantage is always about 0.
        if values is not None:
            metrics["advantage_mean"] = batch.member_means(batch.advantages)
            by_member = zip(batch.without_padding(values), batch.without_padding(batch.returns), strict=True)
            metrics["explained_variance"] = torch.stack([explained_variance(v, target) for v, target in by_member])
        if config.normalize_advantage:
            # To mean 0 and population standard deviation 1; equal advantages become 0.
            differences = [advantage - advantage.mean() for advantage in batch.without_padding(batch.advantages)]
            advantages = [difference / (difference.square().mean().sqrt() + 1e-8) for difference in differences]
            batch.advantages = stack_padded(advantages, batch.obs.shape[1])
        return metrics

    def _returns(self, trajectory: Trajectory, values: Tensor | None) -> Tensor:
        """Return the return-to-go of every step, ``[T, M, E]``: the discounted return or, if ``gae_lambda`` is set, the
        TD(lambda) return. ``values [M, N]``, if there is a value network, are state values (see `join_episodes`)."""
        config = self.config
        reward, valid = trajectory.reward * config.reward_scale, trajectory.valid
        final_value = torch.zeros_like(trajectory.returns)  # [M, E], value after the last step; 0 after termination
        if config.bootstrap_truncation:
            final_value = self.network.values(trajectory.final_obs) * ~trajectory.terminated.any(0)
        if values is None or config.gae_lambda is None:
            return discounted_returns(reward, valid, config.discount, final_value)
        is_last = trajectory.terminated | trajectory.truncated
        next_value = next_values(split_episodes(values, valid), final_value, is_last)
        return lambda_returns(reward, next_value, valid, config.discount, config.gae_lambda)

    def learn(self) -> dict[str, Tensor]:
        """Take one gradient step on the batch, then ``value_steps`` further steps of the value network. Return metrics
        ``{name: [M]}``:

        - ``policy_loss``, ``entropy_loss`` and ``value_loss``, if they are on, and their sum ``total_loss``
        - ``entropy`` of the policy in nats, and ``entropy_share``, its share of the largest possible entropy
        - ``grad_norm`` of the policy
        """
        assert self.batch is not None
        batch, self.batch = self.batch, None
        if self.config.anneal_lr:
            self._anneal()
        self.member_steps = self.member_steps + torch.tensor(batch.counts)
        # Chunks are added one by one, because the rounding of a sum along an axis depends on its length, and the number
        # of chunks depends on other members.
        metrics: dict[str, Tensor] = {}
        for chunk in batch.chunks():
            for name, loss in self._accumulate_gradient(chunk).items():
                metrics[name] = metrics[name] + loss if name in metrics else loss
        grad_norms = [self._step(optimizer) for optimizer in self.optimizers]  # norms of policy and critic
        for _ in range(self.config.value_steps):
            for chunk in batch.chunks():
                values = self.network.values(chunk.obs)
                value_loss(values, chunk.returns, self.config.delta, chunk.mean_weight).sum().backward()
            self._step(self.optimizers[1])  # the critic's optimizer
        metrics["entropy"] = metrics["entropy_share"] * math.log(self.network.num_actions)
        metrics["grad_norm"] = grad_norms[0]
        return metrics

    def _anneal(self) -> None:
        """Set the learning rates of this update, which fall linearly to 0 over the run. The run is limited by epochs,
        by steps of each member (``budget``), or by both. With both, the smaller learning rate applies."""
        remaining_by_epochs = 1.0  # fraction of the run that is left
        if self.config.epochs:
            done_epochs = self.optimizers[0].param_groups[0]["step_count"]  # the policy makes one step per epoch
            remaining_by_epochs = 1 - done_epochs / self.config.epochs
        # [M], factors by which the optimizer multiplies its learning rate; None without a limit on steps. The learning
        # rate already falls with ``remaining_by_epochs``, so that the product falls with ``remaining_by_steps``.
        lr_factor = None
        if self.budget is not None:
            remaining_by_steps = (1 - self.member_steps.double() / self.budget).clamp(0, remaining_by_epochs)
            lr_factor = (remaining_by_steps / remaining_by_epochs).float()
        initial_lrs = (self.config.lr, self.config.value_lr or self.config.lr)
        for optimizer, initial_lr in zip(self.optimizers, initial_lrs, strict=False):  # there may be one optimizer
            optimizer.param_groups[0]["lr"] = remaining_by_epochs * initial_lr
            optimizer.lr_factor = lr_factor

    def training_state(self) -> dict[str, Any]:
        """Return the state of `_anneal`: ``taken [M]``, the steps that members learned from, and ``budget``."""
        return {"taken": self.member_steps, "budget": self.budget} if self.config.anneal_lr else {}

    def load_training_state(self, state: dict[str, Any]) -> None:
        if self.config.anneal_lr:
            self.member_steps = check_like(self.member_steps, state["taken"], "taken")
            self.budget = state["budget"]

    def _accumulate_gradient(self, chunk: "Batch") -> dict[str, Tensor]:
        """Add the gradient of a chunk to the ``grad`` of the parameters. Return losses ``{name: [M]}``, whose sums over
        all chunks are the mean losses of the batch."""
        config = self.config
        logits, values = self.network(chunk.obs)
        # Minus the entropy, as a share of the largest possible entropy.
        negative_entropy = entropy_loss(logits, beta=1.0, mean_weight=chunk.mean_weight)
        losses = {"policy_loss": policy_gradient(logits, chunk.action, chunk.advantages, chunk.mean_weight)}
        if config.beta > 0:
            losses["entropy_loss"] = config.beta * negative_entropy
        if values is not None:
            losses["value_loss"] = value_loss(values, chunk.returns, config.delta, chunk.mean_weight)
        total = torch.stack(list(losses.values())).sum(0)
        total.sum().backward()
        losses |= {"total_loss": total, "entropy_share": -negative_entropy}
        return {name: value.detach() for name, value in losses.items()}

    def _step(self, optimizer: Adam) -> Tensor:
        """Make a step with clipped gradients, and reset these. Return their norm ``[M]`` before clipping."""
        (group,) = optimizer.param_groups
        norm = clip_gradients(group["params"], self.config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        return norm

    def has_collapsed(self, metrics: Mapping[str, Tensor]) -> tuple[Tensor, str]:
        text = "the policy has been sure of every action, so it explores nothing and learns no more"
        return metrics["entropy_share"] < _COLLAPSE_THRESHOLD, f"{text}; a smaller lr or a larger beta may help"


class SoftmaxPolicy(Policy):
    """Policy for ``envs`` episodes of each member: the most likely actions or, if ``sample``, samples (``streams``)."""

    def __init__(self, agent: Agent, envs: int, streams: Streams, sample: bool):
        self.network, self.members = agent.network, agent.members
        shape = (envs, self.network.num_actions)
        self.noise = NoiseBlocks(streams, [(Streams.gumbel, {"action": shape})]) if sample else None

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        logits = self.network.logits(obs)
        if self.noise is not None:
            # The argmax of logits plus Gumbel noise is a sample of their softmax.
            logits = logits + self.noise.next()["action"]
        return logits.argmax(-1)


class ActorCritic(nn.Module):
    """Computes logits ``[M, B, A]`` of the actions and, if the baseline is a value network, state values ``[M, B]``.
    There are two networks, or with ``shared_trunk`` one network, whose last output is the value. Images first pass
    through convolutions (``trunk``), which the loss of a separate value network does not train."""

    def __init__(self, config: Config, spaces: Spaces, streams: Streams):
        super().__init__()
        self.num_actions = spaces.action_size
        self.policy_outputs_value = config.shared_trunk  # whether the critic shares all hidden layers
        self.trunk, num_features = trunk(spaces, config.conv_channels, streams)
        outputs = self.num_actions + (1 if self.policy_outputs_value else 0)
        self.policy = MlpNetwork((num_features, *config.hidden_sizes, outputs), config.activation, streams)
        self.critic: Any = None
        if config.baseline == "value" and not self.policy_outputs_value:
            self.critic = MlpNetwork((num_features, *config.value_hidden_sizes, 1), config.activation, streams)

    def logits(self, obs: Tensor) -> Tensor:
        """Return logits, ``obs [M, B, *O] -> [M, B, A]``."""
        return self.policy(self.trunk(obs))[..., : self.num_actions]

    def values(self, obs: Tensor) -> Tensor:
        """Return state values, ``obs [M, B, *O] -> [M, B]``."""
        features = self.trunk(obs)
        if self.policy_outputs_value:
            return self.policy(features)[..., -1]
        return self.critic(features.detach()).squeeze(-1)  # detached: its loss does not train the trunk

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return logits ``[M, B, A]`` and state values ``[M, B]`` (None without a value network)."""
        features = self.trunk(obs)
        outputs = self.policy(features)
        if self.policy_outputs_value:
            return outputs[..., :-1], outputs[..., -1]
        if self.critic is None:
            return outputs, None
        return outputs, self.critic(features.detach()).squeeze(-1)  # detached as in `values`


@dataclass
class Batch:
    """N experiences (steps) of each member: one episode after another, then zeros up to a whole number of chunks.
    Members play different numbers of steps, and the rounding of a product or a sum depends on its number of rows. With
    chunks of one shape, a member's results do not depend on the other members' numbers of steps."""

    obs: Tensor  # [M, N, *O]
    action: Tensor  # [M, N]
    returns: Tensor  # [M, N], targets of the values
    advantages: Tensor  # [M, N], factors on the log-probabilities of actions
    mean_weight: Tensor  # [M, N], 1 / the member's number of experiences, 0 for padding
    counts: list[int]  # the members' numbers of experiences

    def chunks(self) -> Iterator["Batch"]:
        """Yield parts of `CHUNK` experiences per member, with ``counts`` and ``mean_weight`` of the whole batch."""
        fields = (self.obs, self.action, self.returns, self.advantages, self.mean_weight)
        split_fields = [field.split(CHUNK, dim=1) for field in fields]
        for obs, action, returns, advantages, mean_weight in zip(*split_fields, strict=True):
            yield Batch(obs, action, returns, advantages, mean_weight, self.counts)

    def without_padding(self, values: Tensor) -> list[Tensor]:
        """Return for each member the first n of its numbers in ``values [M, N]``, ``[n]``, which are no padding."""
        return [row[:count] for row, count in zip(values, self.counts, strict=True)]

    def member_means(self, values: Tensor) -> Tensor:
        """Return the mean of each member's numbers in ``values [M, N]``, ``[M]``, without the padding."""
        return torch.stack([row.mean() for row in self.without_padding(values)])


def make_batch(trajectory: Trajectory) -> Batch:
    """Return the valid steps of a trajectory as a batch. The caller must set returns and advantages, which are 0."""
    counts = trajectory.valid.sum((0, 2)).tolist()  # [T, M, E] -> [M]
    length = -(-max(counts) // CHUNK) * CHUNK  # rounded up to whole chunks
    obs = join_episodes(trajectory.obs, trajectory.valid, length)
    action = join_episodes(trajectory.action, trajectory.valid, length)
    mean_weight = stack_padded([torch.full((count,), 1 / count) for count in counts], length)
    zeros = torch.zeros_like(mean_weight)
    return Batch(obs, action, zeros, zeros, mean_weight, counts)


def join_episodes(values: Tensor, valid: Tensor, length: int) -> Tensor:
    """Join the E episodes of each member, which are side by side in ``values [T, M, E, ...]``, to one sequence ``[M,
    length, ...]``: the ``valid [T, M, E]`` steps of one episode after another, then zeros."""
    counts = valid.sum((0, 2)).tolist()  # [M]
    # As [M, E, T, ...], so that the mask selects one episode after another.
    experiences = values.movedim(0, 2)[valid.movedim(0, 2)]  # experiences of all members, [sum of counts, ...]
    return stack_padded(experiences.split(counts), length)


def split_episodes(values: Tensor, valid: Tensor) -> Tensor:
    """Undo `join_episodes`: ``values [M, N] -> [T, M, E]``, with zeros at steps that are not ``valid [T, M, E]``."""
    counts = valid.sum((0, 2)).tolist()  # [M]
    without_padding = torch.cat([row[:count] for row, count in zip(values, counts, strict=True)])
    valid_by_episode = valid.movedim(0, 2)  # [M, E, T], so that the mask selects one episode after another
    values_by_episode = values.new_zeros(valid_by_episode.shape)
    values_by_episode[valid_by_episode] = without_padding
    return values_by_episode.movedim(2, 0)
