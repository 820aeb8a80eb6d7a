"""Proximal policy optimisation (PPO) for M members in lockstep.

The algorithm is as in CleanRL and stable-baselines3, with three deviations:

1. At time limits the value of the final observation is bootstrapped, as in stable-baselines3 but not in CleanRL.
2. `Agent.metrics` returns statistics of the last pass over a rollout, not means over all passes.
3. In a minibatch of one step the advantage is not normalised; in CleanRL it becomes NaN.

Tests are greedy, unless ``test_noise`` samples actions. In a search, all members then use the same random numbers.

``intrinsic`` adds novelty bonuses to the rewards of a rollout (`models.curiosity`). The networks behind the bonus are
trained on each minibatch when its bonus is computed; in the code of Ferreira et al. 2022, they are trained after it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.agents.ppo.actions import noise_of
from models.agents.ppo.config import Config
from models.agents.ppo.networks import CLIP_LIMIT, ActorCritic, Play
from models.contract import InnerAgent
from models.curiosity import build_curiosity
from models.layers import exp
from models.losses import clipped_surrogate, clipped_value_error
from models.moments import Moments
from models.optim import LockstepAdam, clip_norm
from models.replay import ReplayBuffer
from models.replaying import rates
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams
from models.trajectory import gae
from models.varied import groups, sample_member_configs

_PRIOR = 1e-4  # initial count of moments, as in the wrappers of Gymnasium and stable-baselines3
# Statistics of a minibatch, in the order of `Agent.minibatch_statistics`.
STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")

# Attributes with state of the members that is also saved.
_STATE = (
    "optimizer", "rollout", "noise", "shuffling", "curiosity", "obs_moments", "return_moments", "discounted_sum",
    "logged", "loss", "episodes",
)  # fmt: skip


class Agent(InnerAgent):
    """PPO or A2C. E is ``config.num_envs``.

    Steps are collected until the rollout is full. `learn` then makes all passes over it; at other steps it returns the
    last loss. Each member has separate random streams. With ``vary_hp`` it also has separate hyperparameters, sampled
    from its seed; all members must then be from one group of `groups`. ``flat_parameters`` includes the critic, because
    one optimiser trains both networks."""

    action_kinds = (Discrete, Continuous)
    main_loss = "total_loss"
    per_member = ("seeds", "member_configs", *_STATE, "_skipped_updates", "_untrained_gradient")
    saved = (*_STATE, "steps")
    groups = staticmethod(groups)

    def __init__(self, config: Config, spaces: Spaces, seeds: Sequence[int]):
        super().__init__()
        self.config, self.spaces, self.seeds = config, spaces, list(seeds)
        self.member_configs = sample_member_configs(config, seeds)
        members, self.envs = len(seeds), config.num_envs
        self.network = ActorCritic(config, self.member_configs[0], spaces)
        initial_weights = self.network.initial(Streams.from_name(seeds, "weights"))
        self.flat_parameters = nn.Parameter(initial_weights, requires_grad=False)
        lrs = [member_config.lr for member_config in self.member_configs]
        differ = config.target_kl is not None  # whether members can end their passes at different minibatches
        self.optimizer = LockstepAdam(self.flat_parameters, lrs, eps=config.adam_eps, separate_steps=differ)
        self.rollout_steps = config.rollout_steps
        self.rollout_size = self.rollout_steps * self.envs  # steps of a member in a rollout, over all environments
        self.rollout = ReplayBuffer(rollout_columns(spaces), self.rollout_size, members)
        self.curiosity = build_curiosity(config, spaces, seeds)
        self.noise = noise_of(self.network.actions, Streams.from_name(seeds, "actions"), self.envs)
        self.shuffling = Streams.from_name(seeds, "minibatches")
        self.obs_moments = Moments(members, spaces.obs_shape, _PRIOR) if config.normalize_obs else None
        self.return_moments = Moments(members, (), _PRIOR) if config.normalize_reward else None
        self.discounted_sum = torch.zeros(members, self.envs)  # discounted sums of rewards, for `return_moments`
        self.logged = {name: torch.full((members,), torch.nan) for name in (*STATISTICS, "explained_variance")}
        if config.max_grad_norm is not None:
            self.logged["grad_norm"] = torch.full((members,), torch.nan)
        self._norms: list[Tensor] = []  # [M] per minibatch of the current pass
        self._skipped_updates = torch.zeros(members, dtype=torch.int64)  # since the last call of `updates`
        self.loss = torch.full((members,), torch.nan)
        self.episodes = torch.zeros(members, dtype=torch.int64)  # number of finished episodes
        self.steps = 0  # in each environment
        # Zero gradient of the parameters that are not trained.
        self._untrained_gradient = torch.zeros(members, self.flat_parameters.shape[1] - self.network.num_trained)
        self._raw_action = torch.empty(0)  # actions of the current step, before clipping
        self._update_views()

    def _update_views(self) -> None:
        """Set the attributes that are views of ``flat_parameters``."""
        self.parts = self.network.parts(self.flat_parameters)
        self._policy = Play(self.network, self.flat_parameters)

    # -- acting --------------------------------------------------------------------------------------------------------

    def begin(self, envs: int, streams: Streams, **_: Any) -> Play:
        """Return the greedy policy or, with ``test_noise``, one that samples actions by ``streams``. The other
        arguments of `Agent.begin` have no effect."""
        return Play(self.network, self.flat_parameters, streams) if self.config.test_noise else self._policy

    def with_weights(self, flat_parameters: Tensor) -> Play:
        """Return an evaluation policy. With ``test_noise``, all members use the same random numbers, from seed 0."""
        return Play(self.network, flat_parameters, Streams([0]) if self.config.test_noise else None)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Begin a step: count it and update the moments of observations. Return sampled actions, ``[M, E]`` or ``[M, E,
        A]``, clipped to the bounds, for ``obs [M, E, O]``."""
        self.steps += 1
        if self.obs_moments is not None:
            self.obs_moments.add(obs)
            self.parts.mean.copy_(self.obs_moments.mean)
            self.parts.scale.copy_(self.obs_moments.scale())
        outputs = self.network.actor.forward(self.parts.actor, self._normalized_columns(obs))[-1]
        actions = self.network.actions
        self._raw_action = actions.sample(outputs, self.parts.log_std, self.noise.next()["action"])
        return actions.clip(self._raw_action)

    def _normalized_columns(self, obs: Tensor) -> Tensor:
        """Transpose observations for the networks, ``[M, E, O] -> [M, O, E]``. Normalise them if the config says so."""
        return self.parts.normalised(obs).transpose(1, 2)

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        """Store the step in the rollout, with normalised observations and rewards and the action before clipping."""
        if self.return_moments is not None:
            self.discounted_sum = self.discounted_sum * self.config.discount + reward
            self.return_moments.add(self.discounted_sum)
            reward = (reward * self.return_moments.scale().unsqueeze(1)).clamp(-CLIP_LIMIT, CLIP_LIMIT)
            self.discounted_sum = self.discounted_sum.masked_fill(done, 0.0)
        normalized, next_normalized = self.parts.normalised(obs), self.parts.normalised(next_obs)
        raw_action = self._raw_action.float().view(*reward.shape, -1)  # [M, E, 1] or [M, E, A]
        numbers = {"reward": reward, "discount": discount, "done": done.float()}
        self.rollout.add(obs=normalized, next_obs=next_normalized, action=raw_action, **numbers)
        self.episodes += done.sum(1)

    # -- learning ------------------------------------------------------------------------------------------------------

    @property
    def first_update(self) -> int:
        """The step that completes the first rollout, counted over all environments of a member."""
        return self.rollout_size

    def learning(self) -> Tensor:
        """Return whether the first rollout is full, ``[M]`` bool, equal for all members."""
        return torch.full((self.members,), self.steps >= self.rollout_steps)

    def _count_minibatches(self, steps: int) -> int:
        """Return the number of minibatches in all passes over the rollouts that ended in the latest ``steps`` steps."""
        num_rollouts = self.steps // self.rollout_steps - (self.steps - steps) // self.rollout_steps
        minibatches_per_pass = -(-self.rollout_size // self._batch_size())  # rounded up
        return num_rollouts * self.config.ppo_epochs * minibatches_per_pass

    def updates(self, steps: int, learned: Tensor) -> Tensor:
        """Return the number of gradient steps in the latest ``steps`` steps, ``[M]`` int64: all minibatches except
        the ones that ``target_kl`` skipped. Reset the count of skipped updates. Only the shape of ``learned [M]`` is
        used."""
        update_count = torch.full_like(learned, self._count_minibatches(steps)) - self._skipped_updates
        self._skipped_updates = torch.zeros_like(self._skipped_updates)
        return update_count

    def _batch_size(self) -> int:
        """Return the number of steps in a minibatch: ``batch_size``, at most the whole rollout."""
        return min(self.rollout_size, self.member_configs[0].batch_size)  # equal for all members

    @torch.no_grad()
    def learn(self) -> Tensor:
        """Make all passes over the rollout if the current step completed it. Return the loss ``[M]`` of the latest
        rollout, NaN before the first."""
        if self.steps % self.rollout_steps:
            return self.loss
        batch = self._rollout_batch()
        if self.config.target_kl is None:
            self._make_passes(batch)
        else:
            self._make_passes_until_kl_limit(batch)
        policy_loss, value_loss, entropy = (self.logged[name] for name in ("policy_loss", "value_loss", "entropy"))
        self.loss = policy_loss + self.config.vf_coef * value_loss - self.config.ent_coef * entropy
        return self.loss

    def _make_passes(self, batch: Tensor) -> None:
        """Make all passes over ``batch`` (see `_rollout_batch`). Write means of the last pass to ``logged``."""
        last_epoch = self.config.ppo_epochs - 1
        for epoch in range(self.config.ppo_epochs):
            self._norms.clear()
            loss_terms = [self.update_minibatch(minibatch) for minibatch in self._minibatches(batch)]
            if epoch == last_epoch:
                statistics = torch.stack([self.minibatch_statistics(*terms) for terms in loss_terms], 2)  # [M, 5, K]
                self.logged |= dict(zip(STATISTICS, statistics.mean(2).unbind(1), strict=True))
        if self._norms:  # empty without ``max_grad_norm``
            self.logged["grad_norm"] = torch.stack(self._norms, 1).mean(1)

    def _make_passes_until_kl_limit(self, batch: Tensor) -> None:
        """Make the passes over ``batch``. A member's updates end before the first minibatch with a KL divergence above
        1.5 ``target_kl``; this one and the later ones are counted in ``_skipped_updates``. Write means of each member's
        last pass to ``logged``. Permutations are sampled for all passes, so that a member's random numbers do not
        depend on the others."""
        active = torch.ones(self.members, dtype=torch.bool)  # `update_minibatch` removes members in place
        for _ in range(self.config.ppo_epochs):
            statistics, evaluated = [], []  # for each minibatch: [M, 5], and for which members, [M] bool
            self._norms.clear()
            for minibatch in self._minibatches(batch):
                active_before = active.clone()
                if active.any():
                    evaluated.append(active_before)
                    statistics.append(self.minibatch_statistics(*self.update_minibatch(minibatch, active)))
                self._skipped_updates += ~active
            if statistics:
                self._log_means(torch.stack(statistics), torch.stack(evaluated))

    def _log_means(self, statistics: Tensor, evaluated: Tensor) -> None:
        """Write each member's means over the K minibatches of a pass to ``logged``: of ``statistics [K, M, 5]`` and
        ``_norms``, if ``evaluated [K, M]`` bool. Keep the values of members without such a minibatch."""
        by_name = dict(zip(STATISTICS, statistics.unbind(2), strict=True))  # [K, M] each
        if self._norms:  # empty without ``max_grad_norm``
            by_name["grad_norm"] = torch.stack(self._norms)
        counts = evaluated.sum(0)
        for name, values in by_name.items():
            # A running sum adds one by one, so that its rounding does not depend on the other members' minibatches.
            total = values.T.masked_fill(~evaluated.T, 0.0).cumsum(1)[:, -1]
            self.logged[name] = torch.where(counts > 0, total / counts, self.logged[name])

    @property
    def lr_factor(self) -> float:
        """Factor on the learning rates in the updates of the latest rollout; 1 before the first."""
        num_rollouts = self.steps // self.rollout_steps  # including the latest, which is complete
        return self.lr_factor_at(max(0, num_rollouts - 1) * self.rollout_steps)

    def lr_factor_at(self, steps: int) -> float:
        """Return the factor on the learning rates for the rollout that begins after ``steps`` steps per environment."""
        return max(0.0, 1 - steps * self.envs / self.budget) if self.config.anneal_lr else 1.0

    def _rollout_batch(self) -> Tensor:
        """Return the rollout as one table ``[M, W, N]``, N = ``rollout_size``. The W rows are observation, action,
        log-probability, advantage, value target and value, according to the weights before the updates. Also log the
        explained variance."""
        config, columns = self.config, self.rollout.rows()  # [N, M, ...] each
        # Networks take [M, ., N].
        obs, next_obs, action = (columns[name].permute(1, 2, 0).contiguous() for name in ("obs", "next_obs", "action"))
        value, next_value = self._value(obs), self._value(next_obs)  # [M, N]
        # `gae` takes [T, E, M], N = T E.
        step_shape = (self.rollout_steps, self.envs)
        reward, discount, done = (columns[name].unflatten(0, step_shape) for name in ("reward", "discount", "done"))
        if self.curiosity is not None:
            reward = reward + self._novelty(obs, action, next_obs).T.view_as(reward)
        step_value, next_step_value = value.T.unflatten(0, step_shape), next_value.T.unflatten(0, step_shape)
        discounts = config.discount * discount
        step_advantage = gae(reward, step_value, next_step_value, discounts, done > 0, config.gae_lambda)
        advantage = step_advantage.flatten(0, 1).T.contiguous()  # [M, N]
        value_target = advantage + value
        outputs = self.network.actor.forward(self.parts.actor, obs)[-1]
        log_prob = self.network.actions.evaluate(outputs, self.parts.log_std, action).log_prob
        unexplained_share = (value_target - value).var(1, correction=0) / value_target.var(1, correction=0)
        self.logged["explained_variance"] = 1 - unexplained_share
        return torch.cat([obs, action, torch.stack((log_prob, advantage, value_target, value), 1)], 1)

    def _novelty(self, *columns: Tensor) -> Tensor:
        """Return intrinsic rewards ``[M, N]``. ``columns`` are a rollout's observations, actions and next observations,
        ``[M, ., N]`` each. Minibatches of them, not shuffled, also train the networks behind the rewards."""
        assert self.curiosity is not None
        bonuses = []
        minibatches = [column.transpose(1, 2).split(self._batch_size(), 1) for column in columns]
        for obs, action_vector, next_obs in zip(*minibatches, strict=True):  # [M, B, .] each
            action = action_vector[..., 0] if isinstance(self.spaces.actions, Discrete) else action_vector
            bonuses.append(self.curiosity.rewards(obs, action, next_obs))
        return torch.cat(bonuses, 1)

    def _value(self, obs: Tensor) -> Tensor:
        """Return the critic's values of normalised observations, ``[M, O, N] -> [M, N]``."""
        return self.network.critic.forward(self.parts.critic, obs)[-1].squeeze(1)

    def _minibatches(self, batch: Tensor) -> Iterator[Tensor]:
        """Yield the minibatches ``[M, W, B]`` of one pass over the rollout, shuffled for each member separately."""
        if self._batch_size() == self.rollout_size:
            yield batch
            return
        order = self.shuffling.permutations(self.rollout_size).unsqueeze(1).expand_as(batch)  # [M, N] -> [M, W, N]
        yield from batch.gather(2, order).split(self._batch_size(), 2)

    def update_minibatch(self, minibatch: Tensor, active: Tensor | None = None) -> tuple[Tensor, ...]:
        """Make a gradient step on a minibatch ``[M, W, B]`` of the table. Return policy loss, squared error of values,
        entropy, log-ratio and ratio of each row, ``[M, B]`` each: the arguments of `minibatch_statistics`.

        If ``active [M]`` bool is passed, members above the limit of ``target_kl`` are first removed from it, in place.
        Only the remaining members make the step.
        """
        config, network, parts = self.config, self.network, self.parts
        batch_size = minibatch.shape[2]
        obs, action, last_rows = minibatch.split([network.actor.sizes[0], network.actions.width, 4], 1)
        old_log_prob, advantage, value_target, old_value = last_rows.unbind(1)
        mean_weight = 1 / batch_size
        if config.normalize_advantage and batch_size > 1:
            centred = advantage - advantage.mean(1, keepdim=True)
            advantage = centred / (centred.std(-1) + 1e-8).unsqueeze(1)
        actor_activations = network.actor.forward(parts.actor, obs)
        evaluation = network.actions.evaluate(actor_activations[-1], parts.log_std, action)
        log_ratio = evaluation.log_prob - old_log_prob
        ratio = exp(log_ratio)
        policy_loss, log_prob_gradient = clipped_surrogate(ratio, advantage, config.clip_range)
        output_gradient, log_std_gradient = network.actions.gradient(
            evaluation, log_prob_gradient * mean_weight, -config.ent_coef * mean_weight
        )
        actor_gradient, _ = network.actor.backward(parts.actor, obs, actor_activations, output_gradient)
        critic_activations = network.critic.forward(parts.critic, obs)
        value = critic_activations[-1].squeeze(1)
        value_error, error_gradient = clipped_value_error(value, value_target, old_value, config.clip_range_vf)
        value_gradient = (error_gradient * (config.vf_coef * mean_weight)).unsqueeze(1)
        critic_gradient, _ = network.critic.backward(parts.critic, obs, critic_activations, value_gradient)
        gradient = torch.cat([actor_gradient, critic_gradient, log_std_gradient, self._untrained_gradient], 1)
        if config.max_grad_norm is not None:
            self._norms.append(clip_norm([gradient], config.max_grad_norm))  # scales the gradient in place
        if active is not None:
            assert config.target_kl is not None
            active &= approximate_kl(ratio, log_ratio).mean(1) <= 1.5 * config.target_kl
        self.optimizer.update(gradient, self.lr_factor, active)
        return policy_loss, value_error, evaluation.entropy, log_ratio, ratio

    def minibatch_statistics(
        self, policy_loss: Tensor, value_error: Tensor, entropy: Tensor, log_ratio: Tensor, ratio: Tensor
    ) -> Tensor:
        """Return the means over a minibatch that `STATISTICS` names, ``[M, 5]``. Arguments are ``[M, B]`` each."""
        is_clipped = (ratio - 1).abs() > self.config.clip_range
        terms = (policy_loss, value_error, entropy, approximate_kl(ratio, log_ratio), is_clipped.float())
        return torch.stack([term.mean(1) for term in terms], 1)

    def metrics(self) -> dict[str, Tensor]:
        """Return statistics of the latest rollout: ``{tag: [M]}``. NaN before the first. The explained variance is also
        NaN if all targets are equal."""
        return {f"train/{name}": values for name, values in self.logged.items()}

    def status(self) -> dict[str, Tensor]:
        return {"train/learning_rate": self.lr_factor * rates(self.member_configs)}

    def values(self, obs: Tensor) -> Tensor:
        """Return values of the policy in units of reward, ``obs [M, B, O] -> [M, B, 1]``."""
        value = self._value(self._normalized_columns(obs))
        if self.return_moments is not None:
            value = value / self.return_moments.scale().unsqueeze(1)  # `observe` multiplied the rewards by it
        return value.unsqueeze(2)

    def count_steps(self, steps: int) -> None:
        """Count ``steps`` steps in each environment, and their updates, after compiled code has made them."""
        self.steps += steps
        self.rollout.added(steps * self.envs)
        self.optimizer.count += self._count_minibatches(steps)

    # -- members and state ---------------------------------------------------------------------------------------------

    def select(self, members: Tensor) -> None:
        super().select(members)
        self.flat_parameters = nn.Parameter(self.optimizer.param, requires_grad=False)
        self._update_views()


def approximate_kl(ratio: Tensor, log_ratio: Tensor) -> Tensor:
    """Return ``r - 1 - log r``, elementwise. Its mean estimates the KL divergence between the rollout's policy and the
    current one (Schulman 2020, "Approximating KL divergence")."""
    return ratio - 1 - log_ratio


def rollout_columns(spaces: Spaces) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return name -> shape and dtype of the rollout's columns. A discrete action is one float."""
    width = 1 if isinstance(spaces.actions, Discrete) else spaces.actions.size
    shapes: dict[str, tuple[int, ...]] = {"obs": spaces.obs_shape, "next_obs": spaces.obs_shape, "action": (width,)}
    shapes |= {"reward": (), "discount": (), "done": ()}
    return {name: (shape, torch.float32) for name, shape in shapes.items()}
