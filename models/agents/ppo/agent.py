"""Proximal policy optimisation (PPO) for M members (independent agents, one per seed) in lockstep.

E is the number of environments of each member, T of steps of each environment in a rollout, B of steps in a minibatch,
O of numbers in an observation, A in an action, D of weights. ``flat_parameters [M, D]`` has all weights of a member's
actor and critic in one row.

The algorithm is as in CleanRL and stable-baselines3, with three deviations:

1. At time limits the value of the final observation is bootstrapped, as in stable-baselines3 but not in CleanRL.
2. `Agent.metrics` returns statistics of the last pass over a rollout, not means over all passes.
3. In a minibatch of one step the advantage is not normalised. In CleanRL it would become NaN.

Tests are greedy. With ``test_noise`` actions in tests are sampled, in a search with the same random numbers for all
members. With ``intrinsic``, novelty bonuses are added to the rewards of a rollout (`models.curiosity`). The networks
that compute the bonus are trained on a minibatch while its bonuses are computed. In the code of Ferreira et al. 2022,
they are trained afterwards.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.agents.ppo.config import Config
from models.agents.ppo.networks import ActorCritic, PlayPolicy, make_noise
from models.contract import Command, GreedyNetwork, InnerAgent
from models.layers import exp
from models.losses import approximate_kl, clipped_surrogate, clipped_value_loss, explained_variance, standardize
from models.moments import Moments
from models.optim import LockstepAdam, clip_gradients
from models.replay import ReplayBuffer
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams
from models.trajectory import gae
from models.varied import groups
from understudy.policy import CLIP_LIMIT

_INITIAL_COUNT = 1e-4  # initial count of moments, as in Gymnasium and stable-baselines3
# Statistics of a minibatch, in the order of `Agent.logged`.
STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


class Batch(NamedTuple):
    """Steps of each member. All numbers are computed with the weights before the updates."""

    obs: Tensor  # [M, B, O], normalised
    action: Tensor  # [M, B, W], before clipping
    log_prob: Tensor  # [M, B]
    value: Tensor  # [M, B]
    advantage: Tensor  # [M, B]
    returns: Tensor  # [M, B], targets of the values


class Agent(InnerAgent):
    """PPO or A2C. Steps of E = ``config.num_envs`` environments are collected until the rollout is full. Then `learn`
    makes all passes over it. ``flat_parameters`` includes the critic, because one optimiser trains both networks."""

    action_kinds = (Discrete, Continuous)
    takes_images = True
    main_loss = "total_loss"
    learns_from_rollouts = True
    saved = (
        "optimizer", "rollout", "noise", "shuffling", "curiosity", "obs_moments", "return_moments", "discounted_sum",
        "logged", "loss", "episodes", "steps",
    )  # fmt: skip
    groups = staticmethod(groups)

    def __init__(self, config: Config, spaces: Spaces, seeds: Sequence[int]):
        super().__init__(config, spaces, seeds)
        members = len(seeds)
        self.network = ActorCritic(config, self.member_configs[0], spaces)
        initial_weights = self.network.initial(Streams.from_name(seeds, "weights"))
        self.flat_parameters = nn.Parameter(initial_weights, requires_grad=False)
        lrs = [member_config.lr for member_config in self.member_configs]
        # With ``target_kl``, members can end their passes at different minibatches.
        separate_steps = config.target_kl is not None
        self.optimizer = LockstepAdam(self.flat_parameters, lrs, eps=config.adam_eps, separate_steps=separate_steps)
        self.rollout_steps = config.rollout_steps
        self.rollout_size = self.rollout_steps * self.envs  # steps of a member in a rollout, over all environments
        self.batch_size = min(self.rollout_size, self.member_configs[0].batch_size)  # equal for all members
        obs, number = (spaces.obs_shape, spaces.obs_dtype), ((), torch.float32)  # shape and dtype of a column
        columns = {"obs": obs, "next_obs": obs, "action": ((self.network.actions.width,), torch.float32)}
        columns |= {"reward": number, "discount": number, "done": number}
        self.rollout = ReplayBuffer(columns, self.rollout_size, members)
        self.noise = make_noise(self.network.actions, Streams.from_name(seeds, "actions"), self.envs)
        self.shuffling = Streams.from_name(seeds, "minibatches")  # random generators that shuffle the rollout
        self.obs_moments = Moments(members, spaces.obs_shape, _INITIAL_COUNT) if config.normalize_obs else None
        self.return_moments = Moments(members, (), _INITIAL_COUNT) if config.normalize_reward else None
        self.discounted_sum = torch.zeros(members, self.envs)  # discounted sums of rewards, for `return_moments`
        # Statistics of the latest rollout, ``{name: [M]}``.
        self.logged = {name: torch.full((members,), torch.nan) for name in (*STATISTICS, "explained_variance")}
        if config.max_grad_norm is not None:
            self.logged["grad_norm"] = torch.full((members,), torch.nan)
        self._skipped_updates = torch.zeros(members, dtype=torch.int64)  # number since the last call of `updates`
        self.loss = torch.full((members,), torch.nan)
        self._raw_action = torch.empty(0)  # actions of the current step, before clipping

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Update the moments of observations. Return sampled actions for ``obs [M, E, O]``, clipped to the bounds."""
        self.steps += 1
        views = self.network.views(self.flat_parameters)
        if self.obs_moments is not None:
            self.obs_moments.add(obs)
            # This writes the moments into ``flat_parameters``.
            views.mean.copy_(self.obs_moments.mean)
            views.scale.copy_(self.obs_moments.scale())
        noise = self.noise.next()["action"]
        self._raw_action = self.network.sample(self.flat_parameters, views.normalise(obs), noise)
        return self.network.actions.clip(self._raw_action)

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        """Store the step in the rollout, normalised as the settings say, with the action before clipping."""
        if self.return_moments is not None:
            # As in Gymnasium's NormalizeReward, the constant discount is used: ends of episodes reset the sum below.
            self.discounted_sum = self.discounted_sum * self.config.discount + reward
            self.return_moments.add(self.discounted_sum)
            reward = (reward * self.return_moments.scale().unsqueeze(1)).clamp(-CLIP_LIMIT, CLIP_LIMIT)
            self.discounted_sum = self.discounted_sum.masked_fill(done, 0.0)
        views = self.network.views(self.flat_parameters)
        raw_action = self._raw_action.float().view(*reward.shape, -1)  # [M, E, 1] or [M, E, A]
        scalars = {"reward": reward, "discount": discount, "done": done.float()}
        observations = {"obs": views.normalise(obs), "next_obs": views.normalise(next_obs)}
        self.rollout.add(**observations, action=raw_action, **scalars)
        self.episodes += done.sum(1)

    def learn(self) -> Tensor:
        """Make all passes over the rollout if the current step completed it. With ``target_kl``, a member's updates end
        before the first minibatch with a KL divergence above 1.5 ``target_kl``. Return the loss of the latest pass."""
        if self.steps % self.rollout_steps:  # the rollout is not full
            return self.loss
        config, batch = self.config, self.rollout_batch()
        active = torch.ones(self.members, dtype=torch.bool)  # members that still make updates
        for _ in range(config.ppo_epochs):
            statistics: list[dict[str, Tensor]] = []  # {name: [M]} for each minibatch
            evaluated_members: list[Tensor] = []  # [M] bool for each minibatch, the members that its statistics include
            # All passes sample permutations, even if no member needs them. So the random numbers of a member do not
            # depend on the other members.
            for minibatch in self._minibatches(batch):
                if active.any():
                    evaluated_members.append(active.clone())
                    statistics.append(self.update(minibatch, active))
                self._skipped_updates += ~active
            if statistics:
                self._log_means(statistics, torch.stack(evaluated_members, 1))
        value_term = config.vf_coef * self.logged["value_loss"]
        entropy_term = config.ent_coef * self.logged["entropy"]
        self.loss = self.logged["policy_loss"] + value_term - entropy_term
        return self.loss

    @torch.no_grad()
    def rollout_batch(self) -> Batch:
        """Return the rollout with values, log-probabilities, advantages and returns of the current weights."""
        # [N, M, ...] -> [M, N, ...], N = T E for T steps in E environments
        columns = {name: column.transpose(0, 1).contiguous() for name, column in self.rollout.rows().items()}
        obs, next_obs, action, reward = columns["obs"], columns["next_obs"], columns["action"], columns["reward"]
        if self.curiosity is not None:
            reward = reward + self._novelty(obs, action, next_obs)
        value, log_prob, _ = self.network.evaluate_actions(self.flat_parameters, obs, action)
        next_value = self.network.value(self.flat_parameters, next_obs)
        discount, done = self.config.discount * columns["discount"], columns["done"] > 0
        inputs = {"reward": reward, "value": value, "next_value": next_value, "discount": discount, "done": done}
        by_step = {name: values.unflatten(1, (-1, self.envs)) for name, values in inputs.items()}  # [M, T, E]
        advantage = gae(**by_step, gae_lambda=self.config.gae_lambda).flatten(1)
        returns = advantage + value
        self.logged["explained_variance"] = explained_variance(value, returns)
        return Batch(obs, action, log_prob, value, advantage, returns)

    @torch.enable_grad()
    def update(self, minibatch: Batch, active: Tensor) -> dict[str, Tensor]:
        """Make a gradient step on a minibatch, in the members ``active [M]`` bool. Return statistics, ``{name: [M]}``.
        With ``target_kl``, members whose KL divergence is too large make no step, and become False in ``active``."""
        config = self.config
        self.optimizer.zero_grad()
        loss, statistics = self.ppo_loss(minibatch)
        loss.sum().backward()
        if config.max_grad_norm is not None:
            statistics["grad_norm"] = clip_gradients([self.flat_parameters], config.max_grad_norm)
        if config.target_kl is None:
            self.optimizer.step(self.lr_factor)
        else:
            active &= statistics["approx_kl"] <= 1.5 * config.target_kl
            self.optimizer.step(self.lr_factor, active)
        return statistics

    def ppo_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss ``[M]`` of a minibatch, and its terms and other statistics, ``{name: [M]}``."""
        config = self.config
        value, log_prob, entropy = self.network.evaluate_actions(self.flat_parameters, batch.obs, batch.action)
        advantage = standardize(batch.advantage) if config.normalize_advantage else batch.advantage
        log_ratio = log_prob - batch.log_prob
        ratio = exp(log_ratio)
        policy_loss = clipped_surrogate(ratio, advantage, config.clip_range)
        value_loss = clipped_value_loss(value, batch.returns, batch.value, config.clip_range_vf)
        loss = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        is_clipped = (ratio - 1).abs() > config.clip_range
        statistics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": approximate_kl(ratio, log_ratio),
            "clip_fraction": is_clipped.float().mean(1),
        }
        return loss, {name: values.detach() for name, values in statistics.items()}

    def _minibatches(self, batch: Batch) -> Iterator[Batch]:
        """Yield the minibatches of one pass over the rollout, shuffled for each member unless there is only one."""
        if self.batch_size == self.rollout_size:
            yield batch
            return
        members = torch.arange(self.members).unsqueeze(1)
        order = self.shuffling.permutations(self.rollout_size)
        for rows in order.split(self.batch_size, 1):  # [M, B]
            yield Batch(*(tensor[members, rows] for tensor in batch))

    def _log_means(self, statistics: list[dict[str, Tensor]], mask: Tensor) -> None:
        """Write the means of ``statistics`` over K minibatches, ``{name: [M]}`` each, to ``logged``. ``mask [M, K]``
        marks the minibatches that count for a member. If no minibatch does, its logged values do not change."""
        counts = mask.sum(1)
        for name in statistics[0]:
            values = torch.stack([minibatch[name] for minibatch in statistics], 1)
            # A running sum adds one by one, so that its rounding does not depend on the other members' minibatches.
            total = values.masked_fill(~mask, 0.0).cumsum(1)[:, -1]
            self.logged[name] = torch.where(counts > 0, total / counts, self.logged[name])

    def _novelty(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """Return rewards for novelty ``[M, N]`` of the N steps of a rollout, ``[M, N, ...]`` each. `Curiosity.rewards`
        also trains its networks, on one minibatch after another."""
        if isinstance(self.spaces.actions, Discrete):
            action = action[..., 0]
        bonuses = []
        for first in range(0, obs.shape[1], self.batch_size):
            batch = slice(first, first + self.batch_size)
            bonuses.append(self.curiosity.rewards(obs[:, batch], action[:, batch], next_obs[:, batch]))
        return torch.cat(bonuses, 1)

    @property
    def first_update(self) -> int:
        """The step that completes the first rollout, counted over all environments of a member."""
        return self.rollout_size

    def learning_members(self) -> Tensor:
        return torch.full((self.members,), self.steps >= self.rollout_steps)

    def _count_minibatches(self, steps: int) -> int:
        """Return the number of minibatches in all passes over the rollouts that ended in the latest ``steps`` steps."""
        previous_steps = self.steps - steps
        num_rollouts = self.steps // self.rollout_steps - previous_steps // self.rollout_steps
        minibatches_per_pass = -(-self.rollout_size // self.batch_size)  # rounded up
        return num_rollouts * self.config.ppo_epochs * minibatches_per_pass

    def updates(self, steps: int, learning_steps: Tensor) -> Tensor:
        """Return the number of updates of each member in the latest ``steps`` steps, ``[M]``, without skipped ones
        (``target_kl``), whose count is reset. Only shape and dtype of ``learning_steps [M]`` are used."""
        update_count = torch.full_like(learning_steps, self._count_minibatches(steps)) - self._skipped_updates
        self._skipped_updates = torch.zeros_like(self._skipped_updates)
        return update_count

    @property
    def lr_factor(self) -> float:
        """Factor on the learning rates in the updates after the latest rollout; 1 before the first rollout."""
        num_rollouts = self.steps // self.rollout_steps  # including the latest, which is complete
        return self.lr_factor_at(max(0, num_rollouts - 1) * self.rollout_steps)

    def metrics(self) -> dict[str, Tensor]:
        return {f"train/{name}": values for name, values in self.logged.items()}

    def values(self, obs: Tensor) -> Tensor:
        """Return the values of the policy in units of reward, ``obs [M, B, O] -> [M, B, 1]``."""
        normalized_obs = self.network.views(self.flat_parameters).normalise(obs)
        value = self.network.value(self.flat_parameters, normalized_obs)
        if self.return_moments is not None:
            value = value / self.return_moments.scale().unsqueeze(1)  # `observe` multiplied the rewards by it
        return value.unsqueeze(2)

    def greedy_network(self, member: int, command: Command) -> GreedyNetwork:
        views = self.network.views(self.flat_parameters.detach())
        layers, activations = self.network.actor.member_network(views.actor, member)
        head = "argmax"
        if isinstance(self.spaces.actions, Continuous):
            head = "scale" if self.config.scale_actions else "clip"
        moments = (views.mean[member], views.scale[member]) if self.config.normalize_obs else None
        return GreedyNetwork(layers, activations, head, moments)

    def begin(self, envs: int, streams: Streams, **_: Any) -> PlayPolicy:
        """Return the greedy policy or, with ``test_noise``, a policy that samples actions by ``streams``."""
        return PlayPolicy(self, self.flat_parameters, streams if self.config.test_noise else None)

    def with_weights(self, flat_parameters: Tensor) -> PlayPolicy:
        """Return the policy of weights ``flat_parameters [M', D]``, for any number of members M'. It is greedy or, with
        ``test_noise``, samples with the same random numbers for all members."""
        return PlayPolicy(self, flat_parameters, Streams([0]) if self.config.test_noise else None)

    def policy_actions(self, flat_parameters: Tensor, obs: Tensor, streams: Streams | None) -> Tensor:
        """Return the most likely actions for ``obs [M, E, O]``, clipped to the bounds. ``streams`` have no effect."""
        network, views = self.network, self.network.views(flat_parameters)
        outputs = network.actor(views.actor, network.features(views, views.normalise(obs)))
        return network.actions.clip(network.actions.greedy_action(outputs))

    def count_steps(self, steps: int) -> None:
        super().count_steps(steps)
        self.rollout.advance(steps * self.envs)
        self.optimizer.count += self._count_minibatches(steps)
