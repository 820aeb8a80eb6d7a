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
from models.agents.ppo.networks import LIMIT, ActorCritic, Play
from models.contract import InnerAgent
from models.curiosity import build_curiosity
from models.layers import exp
from models.losses import clipped_surrogate, clipped_value_error
from models.moments import Moments
from models.optim import LockstepAdam, clip_norm
from models.replay import ReplayBuffer
from models.replaying import rates
from models.spaces import Continuous, Discrete, Spaces
from models.state import check_like
from models.streams import Streams
from models.trajectory import gae
from models.varied import groups, sample_member_configs

_PRIOR = 1e-4  # initial count of moments, as in the wrappers of Gymnasium and stable-baselines3
MEASURED = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance")


class Agent(InnerAgent):
    """PPO or A2C. E is ``config.num_envs``.

    Steps are collected until the rollout is full. `learn` then makes all passes over it; at other steps it returns the
    last loss. Each member has separate random streams. With ``vary_hp`` it also has separate hyperparameters, sampled
    from its seed; all members must then be from one group of `groups`. ``flat_parameters`` includes the critic, because
    one optimiser trains both networks."""

    action_kinds = (Discrete, Continuous)
    main_loss = "total_loss"
    groups = staticmethod(groups)

    def __init__(self, config: Config, spaces: Spaces, seeds: Sequence[int]):
        super().__init__()
        self.config, self.spaces, self.seeds = config, spaces, list(seeds)
        self.member_configs = sample_member_configs(config, seeds)
        members, self.envs = len(seeds), config.num_envs
        self.network = ActorCritic(config, self.member_configs[0], spaces)
        self.flat_parameters = nn.Parameter(
            self.network.initial(Streams.from_name(seeds, "weights")), requires_grad=False
        )
        rates, per_member = [member_config.lr for member_config in self.member_configs], config.target_kl is not None
        self.optimizer = LockstepAdam(self.flat_parameters, rates, eps=config.adam_eps, per_member=per_member)
        self.rollout_steps = config.rollout_steps
        self.rows = self.rollout_steps * self.envs
        self.rollout = ReplayBuffer(columns_of(config, spaces), self.rows, members)
        self.curiosity = build_curiosity(config, spaces, seeds)
        self.noise = noise_of(self.network.actions, Streams.from_name(seeds, "actions"), self.envs)
        self.shuffling = Streams.from_name(seeds, "minibatches")
        self.obs_moments = Moments(members, spaces.obs_shape, _PRIOR) if config.normalize_obs else None
        self.return_moments = Moments(members, (), _PRIOR) if config.normalize_reward else None
        self.discounted_sum = torch.zeros(members, self.envs)  # discounted sums of rewards, for `return_moments`
        self.logged = {name: torch.full((members,), torch.nan) for name in MEASURED}
        if config.max_grad_norm is not None:
            self.logged["grad_norm"] = torch.full((members,), torch.nan)
        self._norms: list[Tensor] = []  # [M] per minibatch of the current pass
        self._spared = torch.zeros(members, dtype=torch.int64)  # updates skipped since the last `updates`
        self.loss = torch.full((members,), torch.nan)
        self.episodes = torch.zeros(members, dtype=torch.int64)
        self.steps = 0
        self._fixed = torch.zeros(members, self.flat_parameters.shape[1] - self.network.trained)  # zero gradients
        self._raw_action = torch.empty(0)  # actions of the current step, before clipping
        self._view()

    def _view(self) -> None:
        self.parts = self.network.parts(self.flat_parameters)
        self._policy = Play(self.network, self.flat_parameters)

    # -- acting --------------------------------------------------------------------------------------------------------

    def begin(self, envs: int, streams: Streams, **_: Any) -> Play:
        return Play(self.network, self.flat_parameters, streams) if self.config.test_noise else self._policy

    def with_weights(self, flat_parameters: Tensor) -> Play:
        return Play(self.network, flat_parameters, Streams([0]) if self.config.test_noise else None)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        self.steps += 1
        if self.obs_moments is not None:
            self.obs_moments.add(obs)
            self.parts.mean.copy_(self.obs_moments.mean)
            self.parts.scale.copy_(self.obs_moments.scale())
        outputs = self.network.actor.forward(self.parts.actor, self._normalized_columns(obs))[-1]
        actions = self.network.actions
        self._raw_action = actions.sample(outputs, self.parts.scales, self.noise.next()["action"])
        return actions.clip(self._raw_action)

    def _normalized_columns(self, obs: Tensor) -> Tensor:
        """Normalise observations if the config says so: ``[M, E, O] -> [M, O, E]``."""
        return self.parts.normalised(obs).transpose(1, 2)

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        if self.return_moments is not None:
            self.discounted_sum = self.discounted_sum * self.config.discount + reward
            self.return_moments.add(self.discounted_sum)
            reward = (reward * self.return_moments.scale().unsqueeze(1)).clamp(-LIMIT, LIMIT)
            self.discounted_sum = self.discounted_sum.masked_fill(done, 0.0)
        normalized, next_normalized = self.parts.normalised(obs), self.parts.normalised(next_obs)
        raw_action = self._raw_action.float().view(*reward.shape, -1)
        self.rollout.add(
            obs=normalized,
            next_obs=next_normalized,
            action=raw_action,
            reward=reward,
            discount=discount,
            done=done.float(),
        )
        self.episodes += done.sum(1)

    # -- learning ------------------------------------------------------------------------------------------------------

    @property
    def first_update(self) -> int:
        return self.rows

    def learning(self) -> Tensor:
        return torch.full((self.members,), self.steps >= self.rollout_steps)

    def _owed(self, steps: int) -> int:
        """Return the number of minibatches in all passes over the rollouts that ended in the latest ``steps`` steps."""
        full = self.steps // self.rollout_steps - (self.steps - steps) // self.rollout_steps
        return full * self.config.ppo_epochs * -(-self.rows // self._batch())

    def updates(self, steps: int, learned: Tensor) -> Tensor:
        update_count = torch.full_like(learned, self._owed(steps)) - self._spared
        self._spared = torch.zeros_like(self._spared)
        return update_count

    def _batch(self) -> int:
        """Return the number of steps in a minibatch."""
        return min(self.rows, self.member_configs[0].batch_size)

    @torch.no_grad()
    def learn(self) -> Tensor:
        if self.steps % self.rollout_steps:
            return self.loss
        batch = self._rollout_batch()
        if self.config.target_kl is not None:
            self._pass_while_near(batch)
        else:
            for epoch in range(self.config.ppo_epochs):
                self._norms.clear()
                loss_terms = [self.update_minibatch(minibatch) for minibatch in self._minibatches(batch)]
                if epoch == self.config.ppo_epochs - 1:
                    statistics = torch.stack([self.measure(*terms) for terms in loss_terms], 2).mean(2)
                    self.logged |= dict(zip(MEASURED, statistics.unbind(1), strict=False))
            if self._norms:
                self.logged["grad_norm"] = torch.stack(self._norms, 1).mean(1)
        policy, value, entropy = (self.logged[name] for name in MEASURED[:3])
        self.loss = policy + self.config.vf_coef * value - self.config.ent_coef * entropy
        return self.loss

    def _pass_while_near(self, batch: Tensor) -> None:
        """Make the passes over ``batch``. A member's updates end before the first minibatch with a KL divergence above
        1.5 ``target_kl``. Permutations are sampled for all passes, so that a member's random numbers do not depend on
        the others."""
        active = torch.ones(self.members, dtype=torch.bool)
        for _ in range(self.config.ppo_epochs):
            epoch_members, statistics, looks = active.clone(), [], []
            self._norms.clear()
            for minibatch in self._minibatches(batch):
                self._spared += ~active
                if active.any():
                    looks.append(active.clone())
                    statistics.append(self.measure(*self.update_minibatch(minibatch, active)))
                    self._spared += looks[-1] & ~active
            if not statistics:
                continue
            logged = dict(zip(MEASURED, torch.stack(statistics).unbind(2), strict=False))
            if self._norms:
                logged["grad_norm"] = torch.stack(self._norms)
            looked = torch.stack(looks)
            for name, values in logged.items():  # [K, M], for K minibatches; only a member's active ones count
                mean = values.T.masked_fill(~looked.T, 0.0).cumsum(1)[:, -1] / looked.sum(0)
                self.logged[name] = torch.where(epoch_members, mean, self.logged[name])

    @property
    def lr_factor(self) -> float:
        """Factor on the learning rates in the latest updates; 1 before the first."""
        return self.lr_factor_at(max(0, self.steps // self.rollout_steps - 1) * self.rollout_steps)

    def lr_factor_at(self, steps: int) -> float:
        """Return the factor on the learning rates for the rollout that begins after ``steps`` steps per environment."""
        return max(0.0, 1 - steps * self.envs / self.budget) if self.config.anneal_lr else 1.0

    def _rollout_batch(self) -> Tensor:
        """Return the rollout as one table ``[M, W, N]``, N = ``rows``. The W rows are observation, action,
        log-probability, advantage, value target and value, according to the weights before the updates."""
        config, rows = self.config, self.rollout.rows()
        obs, next_obs, action = (rows[name].permute(1, 2, 0).contiguous() for name in ("obs", "next_obs", "action"))
        reward, ahead, done = (
            rows[name].unflatten(0, (self.rollout_steps, self.envs)) for name in ("reward", "discount", "done")
        )
        if self.curiosity is not None:
            reward = reward + self._novelty(obs, action, next_obs).T.view_as(reward)
        value, ahead, done = self._value(obs), config.discount * ahead, done > 0
        now, next_value = (
            values.T.unflatten(0, (self.rollout_steps, self.envs)) for values in (value, self._value(next_obs))
        )
        advantages = gae(reward, now, next_value, ahead, done, config.gae_lambda)
        advantage = advantages.flatten(0, 1).T.contiguous()
        returns = advantage + value
        outputs = self.network.actor.forward(self.parts.actor, obs)[-1]
        log_prob = self.network.actions.evaluate(outputs, self.parts.scales, action).log_prob
        unexplained_variance = (returns - value).var(1, correction=0) / returns.var(1, correction=0)
        self.logged["explained_variance"] = 1 - unexplained_variance
        return torch.cat([obs, action, torch.stack((log_prob, advantage, returns, value), 1)], 1)

    def _novelty(self, *columns: Tensor) -> Tensor:
        """Return intrinsic rewards ``[M, N]``. ``columns`` are a rollout's observations, actions and next observations,
        ``[M, ., N]`` each. They are processed in minibatches, without shuffling."""
        assert self.curiosity is not None
        bonuses = []
        for minibatch in zip(*(column.transpose(1, 2).split(self._batch(), 1) for column in columns), strict=True):
            obs, action, next_obs = minibatch
            done = action[..., 0] if isinstance(self.spaces.actions, Discrete) else action
            bonuses.append(self.curiosity.rewards(obs, done, next_obs))
        return torch.cat(bonuses, 1)

    def _value(self, obs: Tensor) -> Tensor:
        """Return the critic's values of normalised observations, ``[M, O, N] -> [M, N]``."""
        return self.network.critic.forward(self.parts.critic, obs)[-1].squeeze(1)

    def _minibatches(self, batch: Tensor) -> Iterator[Tensor]:
        """Yield the minibatches ``[M, W, B]`` of one pass over the rollout, shuffled for each member separately."""
        if self._batch() == self.rows:
            yield batch
            return
        order = self.shuffling.permutations(self.rows).unsqueeze(1).expand_as(batch)
        yield from batch.gather(2, order).split(self._batch(), 2)

    def update_minibatch(self, minibatch: Tensor, active: Tensor | None = None) -> tuple[Tensor, ...]:
        """Make a gradient step on a minibatch ``[M, W, B]`` of the table. Return the arguments of `measure`.

        If ``active [M]`` bool is passed, members above the limit of ``target_kl`` are first removed from it, in place.
        Only the remaining members make the step.
        """
        config, network, parts = self.config, self.network, self.parts
        obs, action, rest = minibatch.split([network.actor.sizes[0], network.actions.width, 4], 1)
        old_log_prob, advantage, returns, old_value = rest.unbind(1)
        share = 1 / minibatch.shape[2]
        if config.normalize_advantage and minibatch.shape[2] > 1:
            centred = advantage - advantage.mean(1, keepdim=True)
            advantage = centred / (centred.std(-1) + 1e-8).unsqueeze(1)
        activations = network.actor.forward(parts.actor, obs)
        judged = network.actions.evaluate(activations[-1], parts.scales, action)
        log_ratio = judged.log_prob - old_log_prob
        ratio = exp(log_ratio)
        surrogate, of_log_prob = clipped_surrogate(ratio, advantage, config.clip_range)
        output_gradient, of_scales = network.actions.gradient(judged, of_log_prob * share, -config.ent_coef * share)
        of_actor, _ = network.actor.backward(parts.actor, obs, activations, output_gradient)
        activations = network.critic.forward(parts.critic, obs)
        error, of_value = clipped_value_error(activations[-1].squeeze(1), returns, old_value, config.clip_range_vf)
        of_value = (of_value * (config.vf_coef * share)).unsqueeze(1)
        of_critic, _ = network.critic.backward(parts.critic, obs, activations, of_value)
        gradient = torch.cat([of_actor, of_critic, of_scales, self._fixed], 1)
        if config.max_grad_norm is not None:
            self._norms.append(clip_norm([gradient], config.max_grad_norm))
        if active is not None:
            assert config.target_kl is not None
            active &= approximate_kl(ratio, log_ratio).mean(1) <= 1.5 * config.target_kl
        self.optimizer.update(gradient, self.lr_factor, active)
        return surrogate, error, judged.entropy, log_ratio, ratio

    def measure(self, surrogate: Tensor, error: Tensor, entropy: Tensor, log_ratio: Tensor, ratio: Tensor) -> Tensor:
        """Return means of the first five quantities in `MEASURED` over a minibatch, ``[M, 5]``."""
        clipped = (ratio - 1).abs() > self.config.clip_range
        terms = (surrogate, error, entropy, approximate_kl(ratio, log_ratio), clipped.float())
        return torch.stack([logged.mean(1) for logged in terms], 1)

    def metrics(self) -> dict[str, Tensor]:
        """Return statistics of the latest rollout: ``{tag: [M]}``. NaN before the first. The explained variance is also
        NaN if all targets are equal."""
        return {f"train/{name}": values for name, values in self.logged.items()}

    def status(self) -> dict[str, Tensor]:
        return {"train/learning_rate": self.lr_factor * rates(self.member_configs)}

    def values(self, obs: Tensor) -> Tensor:
        """Return values of the policy in units of reward, ``obs [M, B, O] -> [M, B, 1]``."""
        state_value = self._value(self._normalized_columns(obs))
        return (
            state_value if self.return_moments is None else state_value / self.return_moments.scale().unsqueeze(1)
        ).unsqueeze(2)

    def count_steps(self, steps: int) -> None:
        """Count ``steps`` steps in each environment, and their updates, after compiled code has made them."""
        self.steps += steps
        self.rollout.added(steps * self.envs)
        self.optimizer.count += self._owed(steps)

    # -- members and state ---------------------------------------------------------------------------------------------

    def select(self, members: Tensor) -> None:
        member_indices = members.tolist()
        self.seeds, self.member_configs = (
            [self.seeds[m] for m in member_indices],
            [self.member_configs[m] for m in member_indices],
        )
        self.flat_parameters = nn.Parameter(self.flat_parameters[members], requires_grad=False)
        self.optimizer.select(self.flat_parameters, members)
        for name in ("_fixed", "discounted_sum", "loss", "episodes", "_spared"):
            setattr(self, name, getattr(self, name)[members])
        self.logged = {name: values[members] for name, values in self.logged.items()}
        for part in (self.rollout, self.noise, self.obs_moments, self.return_moments, self.curiosity):
            if part is not None:
                part.select(members)
        self.shuffling.select(member_indices)
        self._view()

    def _saved_attributes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("discounted_sum", "logged", "loss", "episodes", "steps")}

    def _stateful(self) -> dict[str, Any]:
        parts = {"optimizer": self.optimizer, "rollout": self.rollout, "noise": self.noise}
        optional_parts = {"seen": self.obs_moments, "gained": self.return_moments, "curiosity": self.curiosity}
        return parts | {name: part for name, part in optional_parts.items() if part is not None}

    def training_state(self) -> dict[str, Any]:
        parts = {name: part.state_dict() for name, part in self._stateful().items()}
        return self._saved_attributes() | parts | {"shuffling": self.shuffling.get_state()}

    def load_training_state(self, state: dict[str, Any]) -> None:
        for name, part in self._stateful().items():
            part.load_state_dict(state[name])
        self.shuffling.set_state(state["shuffling"])
        logged = self.logged | state["logged"]  # older files lack some
        for name, current_value in self._saved_attributes().items():
            setattr(self, name, check_like(current_value, logged if name == "logged" else state[name], name))


def approximate_kl(ratio: Tensor, log_ratio: Tensor) -> Tensor:
    """Return ``r - 1 - log r``, elementwise. Its mean estimates the KL divergence between the rollout's policy and the
    current one (Schulman 2020, "Approximating KL divergence")."""
    return ratio - 1 - log_ratio


def columns_of(config: Config, spaces: Spaces) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return name -> shape and dtype of the rollout's columns."""
    width = 1 if isinstance(spaces.actions, Discrete) else spaces.actions.size
    shapes: dict[str, tuple[int, ...]] = {"obs": spaces.obs_shape, "next_obs": spaces.obs_shape, "action": (width,)}
    shapes |= {"reward": (), "discount": (), "done": ()}
    return {name: (shape, torch.float32) for name, shape in shapes.items()}
