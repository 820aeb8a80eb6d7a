"""Upside-Down RL, RCP-R and RCP-A: one agent, three settings.

Read top to bottom: storing episodes (`observe`), then fitting the policy to them (`learn`). commands.py samples the
commands. docs/command_conditioned.md lists the deviations from the papers and the public code.

A command is the goals that the policy receives as inputs, such as a return and a horizon (number of steps). M is the
number of members (independent agents, one per seed), E of episodes of each, T of steps of the longest episode, B of
steps in a minibatch, C of numbers in a command. ``*O`` is the shape of an observation.
"""

import copy
import math
import sys
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from models.agents.command_conditioned.commands import SCALED_LIMIT, USER_NAMES, Commands, level_weights, rank
from models.agents.command_conditioned.config import Config
from models.agents.command_conditioned.networks import POLICIES
from models.contract import Command, EpisodeAgent, GreedyNetwork, Policy
from models.layers import trunk
from models.losses import (
    categorical_entropy,
    cross_entropy,
    explained_variance,
    exponential_weights,
    pinball_loss,
    squared_error,
)
from models.mlp import MlpNetwork
from models.optim import Adam, clip_gradients, polyak_update
from models.replay import Episode, EpisodeMemory
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Draw, NoiseBlocks, Streams
from models.trajectory import Trajectory, discounted_returns, lambda_returns, next_values, stack_padded

_VALUE_CHUNK, _IMAGE_CHUNK = 4096, 256  # number of vectors, and of images, in one call of the value network
_UNIFORM_TOLERANCE = 0.005  # a policy counts as uniform if its loss differs from ln(A) by less than this, in nats
_CONTINUOUS_NOISE = 0.3  # standard deviation of exploration in half-widths of the action range (public code)


class Agent(EpisodeAgent):
    """M members of one command-conditioned agent."""

    action_kinds = (Discrete, Continuous)
    takes_images = True
    main_loss = "policy_loss"
    advice = "a smaller lr or command scale may help"
    optimizers: list[Adam]

    def __init__(self, config: Config, spaces: Spaces, seeds: list[int]):
        super().__init__()
        self.config, self.spaces, self.seeds = config, spaces, list(seeds)
        self.commands = Commands(config, self.members, spaces.max_return)
        self.streams = Streams.from_name(seeds, "learning")
        init_streams = Streams.from_name(seeds, "initial weights")
        self.trunk, num_features = trunk(spaces, config.conv_channels, init_streams)
        self.num_outputs = spaces.action_size
        num_commands = len(self.commands.names)
        policy_class = POLICIES[config.network]
        self.policy = policy_class(
            num_features, num_commands, self.num_outputs, config.hidden_sizes, init_streams, config.activation
        )
        # Predicts the value of a state or, if ranks are commanded, quantiles of the return-to-go.
        self.state_network: Any = None
        if config.desire_advantage or config.desire_rank:
            num_outputs = len(config.quantile_levels) if config.desire_rank else 1
            sizes = (num_features, *config.value_hidden_sizes, num_outputs)
            self.state_network = MlpNetwork(sizes, config.activation, init_streams)
        self.levels = torch.tensor(config.quantile_levels)
        # Policy and trunk with averaged weights, if actions are chosen by these.
        modules = nn.ModuleList([self.policy, self.trunk])
        self.averaged = copy.deepcopy(modules).requires_grad_(False) if config.average_decay else None
        capacity = sys.maxsize if config.is_offline else config.buffer_size  # a whole dataset is kept
        self.memory = EpisodeMemory(self.members, capacity, config.buffer_unit, config.buffer_order)
        self.optimizers = [Adam([*self.policy.parameters(), *self.trunk.parameters()], config.lr)]
        if self.state_network is not None:
            # Both optimizers train the convolutions, which learn more from returns than from actions.
            params = [self.state_network.flat, *self.trunk.parameters()]
            self.optimizers.append(Adam(params, config.value_lr or config.lr))
        self._outputs = torch.empty(0)  # [M, B, outputs], policy outputs for the latest minibatch
        self.is_discrete = isinstance(spaces.actions, Discrete)
        if isinstance(spaces.actions, Continuous):  # the policy outputs actions in units of half their range
            low, high = torch.tensor(spaces.actions.low), torch.tensor(spaces.actions.high)
            self.middle, self.half_width = (high + low) / 2, (high - low) / 2

    def forward(self, obs: Tensor, command: Tensor) -> Tensor:
        """Return logits or means of actions ``[M, B, outputs]`` for ``obs [M, B, *O]`` and unscaled ``command [M, B,
        C]``. Means are relative to the middle of the range of actions, in units of half this range."""
        return self.policy(self.trunk(obs), self.commands.network_inputs(command))

    def observe(self, trajectory: Trajectory, validate: bool = False) -> dict[str, Tensor]:
        """Store whole episodes and update the distribution of exploration commands. With ``validate``, return the loss
        on these episodes, ``{"validation_loss": [M]}``, but not for RCP-A: `learn` computes its advantages later."""
        returns_to_go = self._returns_to_go(trajectory)
        # [M, E], the returns of whole episodes, which are discounted if commanded returns are.
        episode_returns = discounted_returns(trajectory.reward, trajectory.valid, self.config.return_discount)[0]
        members = range(self.members)
        episodes = [self._to_episodes(trajectory, returns_to_go, episode_returns, member) for member in members]
        metrics = {}
        if validate and self.config.num_val_batches > 0 and not self.config.desire_advantage:
            metrics["validation_loss"] = self._validation_loss(episodes)
        for member in members:
            self.memory.add(member, episodes[member])
        self.commands.widen_scales(returns_to_go, trajectory.returns, trajectory.lengths)
        # The return-to-go of the first step is the episode's discounted return.
        self.commands.update_from_returns(self.memory, returns_to_go[0], trajectory.lengths)
        for member, returns_in_memory in enumerate(self._episode_returns()):
            lengths = torch.tensor([len(episode) for episode in self.memory.episodes[member]]).float()
            self.commands.update_groups(member, returns_in_memory, lengths)
        return metrics

    def learn(self) -> dict[str, Tensor]:
        """Make the gradient steps of one epoch on minibatches from memory: first of the value or quantile network, if
        the agent has one of them, then of the policy. Return metrics ``[M]``, which are means over these steps:

        - ``policy_loss``, ``grad_norm``: of the policy
        - ``entropy``: of discrete actions in the last minibatch
        - ``quantile_loss``, if ranks are commanded, in units of reward
        - ``value_loss``, in units of reward squared, and ``explained_variance``, if advantages are commanded
        """
        config = self.config
        metrics = {}
        policy_optimizer, *value_optimizers = self.optimizers  # the second list has one item, or none
        num_value_updates = max(1, config.num_grad_steps // config.val_func_update_interval)
        if config.desire_rank:
            loss, _ = self._take_gradient_steps(value_optimizers[0], num_value_updates, self._value_loss)
            metrics["quantile_loss"] = loss * self._value_scale()  # converted to units of reward
        if config.desire_advantage:
            self._refresh_advantages()  # computes the targets of the value network
            loss, _ = self._take_gradient_steps(value_optimizers[0], num_value_updates, self._value_loss)
            metrics["value_loss"] = loss * self._value_scale().square()  # converted to units of reward squared
            self._refresh_advantages()  # computes advantages for the policy, with the updated value network
            values, targets = self.memory.column("value"), self.memory.column("value_target")
            by_member = zip(values, targets, strict=True)
            metrics["explained_variance"] = torch.stack([explained_variance(v, target) for v, target in by_member])
        loss, grad_norm = self._take_gradient_steps(policy_optimizer, config.num_grad_steps, self._policy_loss)
        metrics |= {"policy_loss": loss, "grad_norm": grad_norm}
        if self.is_discrete:
            metrics["entropy"] = categorical_entropy(self._outputs * config.action_noise).mean(1)
        return metrics

    def _take_gradient_steps(
        self, optimizer: Adam, num_updates: int, loss_function: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Take ``num_updates`` gradient steps on minibatches from memory. ``loss_function`` maps ``rows [M, B]``, the
        positions of a minibatch's steps in memory, to two losses ``[M]``: one to minimise, and one to report. Return
        the means of the reported loss and of the gradient norm, ``[M]`` each."""
        config = self.config
        params = optimizer.param_groups[0]["params"]
        updates_policy = optimizer is self.optimizers[0]
        reported_losses, grad_norms = [], []
        for rows in self.memory.sample(self.streams, num_updates, config.batch_size, config.sample_by):
            loss, reported_loss = loss_function(rows)
            reported_losses.append(reported_loss)
            optimizer.zero_grad()
            loss.sum().backward()
            grad_norms.append(clip_gradients(params, config.max_grad_norm))
            optimizer.step()
            if self.averaged is not None and updates_policy:
                for average, param in zip(self.averaged.parameters(), params, strict=True):
                    polyak_update(average, param, 1 - config.average_decay)
        return torch.stack(reported_losses).mean(0), torch.stack(grad_norms, 1).mean(1)

    def _policy_loss(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return two mean losses ``[M]`` of the policy on the steps ``rows [M, B]``: one to minimise, with exponential
        weights if they are on, and one to report, without weights or gradient."""
        config = self.config
        loss = self._fit_loss(self.memory, rows)
        unweighted_loss = loss.detach().mean(1)
        if config.expo_weighting:
            score_field = "advantage" if config.desire_advantage else "cum_rew"
            (score,) = self.memory.gather(rows, [score_field])
            loss = loss * exponential_weights(score, config.beta, config.max_weight)
        return loss.mean(1), unweighted_loss

    def _fit_loss(self, memory: EpisodeMemory, rows: Tensor) -> Tensor:
        """Return the loss ``[M, B]`` of the policy on the actions of the steps ``rows [M, B]`` in ``memory``. The
        command of a step is the return and the horizon that followed it. The loss is the cross-entropy of discrete
        actions, or the squared error of continuous actions in units of half their range."""
        # Ranks are not stored, because they change with the quantile network. They follow from the return-to-go.
        fields = ["rtg" if name == "rank" else name for name in self.commands.names]
        obs, action, *command = memory.gather(rows, ["obs", "action", *fields])
        if self.config.desire_rank:
            column = self.commands.column["rank"]
            command[column] = self.rank(obs, command[column])
        outputs = self(obs, torch.stack(command, dim=-1))
        self._outputs = outputs.detach()
        if self.is_discrete:
            return cross_entropy(outputs, action)
        return squared_error(outputs, (action - self.middle) / self.half_width)

    @torch.no_grad()
    def _returns_to_go(self, trajectory: Trajectory) -> Tensor:
        """Return the return-to-go of every step, ``[T, M, E]``: the discounted sum of the rewards from this step on.
        If ranks are commanded and the quantile network has been trained, it is the TD(lambda) return instead."""
        config, reward, valid = self.config, trajectory.reward, trajectory.valid
        # The second optimiser trains the quantile network.
        is_trained = config.desire_rank and self.optimizers[1].param_groups[0]["step_count"] > 0
        if not is_trained:
            return discounted_returns(reward, valid, config.discount)
        values = self._values([obs.flatten(0, 1) for obs in trajectory.obs.unbind(1)])  # [T * E] for each member
        final_values = self._values(list(trajectory.final_obs))  # [E] for each member
        # Clamp values to the range of the returns-to-go in memory and 0 (`_clamped_values` says why).
        for m, returns in enumerate(self.memory.column("rtg")):
            low, high = _range_with_zero(returns)
            values[m] = values[m].clamp(low, high).view(len(reward), -1)  # [T, E]
            final_values[m] = final_values[m].clamp(low, high)
        final_value = torch.zeros_like(trajectory.returns)  # [M, E], value after the last step; 0 after termination
        if config.bootstrap_truncation:
            terminated = (trajectory.terminated & valid).any(0)
            final_value = torch.stack(final_values).masked_fill(terminated, 0.0)
        is_last = trajectory.terminated | trajectory.truncated
        next_value = next_values(torch.stack(values, 1), final_value, is_last)
        return lambda_returns(reward, next_value, valid, config.discount, config.td_lambda)

    def _to_episodes(
        self, trajectory: Trajectory, returns_to_go: Tensor, episode_returns: Tensor, member: int
    ) -> list[Episode]:
        """Return the episodes of one member as `Episode`. The fields of a step include the commands that its action has
        in fact fulfilled, such as the return-to-go. ``returns_to_go`` are ``[T, M, E]``, ``episode_returns [M, E]``."""
        episodes = []
        for e, length in enumerate(trajectory.lengths[member].tolist()):
            undiscounted_return = float(trajectory.returns[member, e])
            steps = {
                "obs": trajectory.obs[:length, member, e],
                "action": trajectory.action[:length, member, e],
                "rtg": returns_to_go[:length, member, e],
                "cum_rew": torch.full((length,), undiscounted_return),
                "horizon": torch.arange(length, 0, -1, dtype=torch.float32),  # steps left
            }
            extras = {"return": episode_returns[member, e].clone()}
            if self.config.desire_advantage:
                steps["reward"] = trajectory.reward[:length, member, e]
                # `_refresh_advantages` fills these in.
                steps |= {name: torch.zeros(length) for name in ("value", "value_target", "advantage")}
                terminated = trajectory.terminated[length - 1, member, e]
                extras |= {"final_obs": trajectory.final_obs[member, e].clone(), "terminated": terminated.clone()}
            episodes.append(Episode(steps, score=undiscounted_return, extras=extras))
        return episodes

    def begin(
        self, envs: int, streams: Streams, *, sample: bool, evaluate: bool = False, command: Command | None = None
    ) -> "CommandedPolicy":
        """Return a policy whose episodes follow commands that are sampled at their start. If ``evaluate`` is on and
        ``eval_command`` is "lower_bound", commands are the mean of the distribution instead."""
        at_mean = evaluate and self.config.eval_command == "lower_bound"
        return CommandedPolicy(self, envs, streams, sample, at_mean, command or {})

    def averaged_forward(self, obs: Tensor, command: Tensor) -> Tensor:
        """Return the result of `forward`, computed with the averaged weights if there are any."""
        if self.averaged is None:
            return self(obs, command)  # type: ignore[no-any-return]
        policy, trunk = self.averaged
        return policy(trunk(obs), self.commands.network_inputs(command))  # type: ignore[no-any-return]

    @torch.no_grad()
    def rank(self, obs: Tensor, returns: Tensor) -> Tensor:
        """Return the ranks ``[M, B]``, in (0, 1), of ``returns [M, B]`` among the returns that are likely from ``obs
        [M, B, *O]`` on, by the quantiles of the return-to-go that the quantile network predicts."""
        return rank(returns / self._value_scale().unsqueeze(1), self._quantiles(obs), self.levels)

    def greedy_network(self, member: int, command: Command) -> GreedyNetwork | None:
        """Return the policy of ``member`` for an exported file, with averaged weights if there are any. Return None if
        it needs two networks: the quantile network converts a commanded return to its rank in each state."""
        if self.config.desire_rank and "return" in command:
            return None
        policy: Any = self.policy if self.averaged is None else self.averaged[0]  # [1] is the trunk
        layers, activations = policy.member_network(member)
        head = "argmax" if self.is_discrete else "scale"
        return GreedyNetwork(layers, activations, head, command=self.commands.member_commands(member, command))

    def has_collapsed(self, metrics: Mapping[str, Tensor]) -> tuple[Tensor, str]:
        """Return which members have a uniform policy, ``[M]`` bool, and a message about it for the user. A uniform
        policy of A discrete actions has the loss ln(A). Policies of continuous actions are not checked."""
        if not self.is_discrete:
            return super().has_collapsed(metrics)
        uniform_loss = math.log(self.num_outputs)
        text = f"the policy loss has sat at ln({self.num_outputs}) = {uniform_loss:.3f}: the policy"
        advice = "look at the command scales (reward_scale, horizon_scale) and lr"
        is_uniform = (metrics["policy_loss"] - uniform_loss).abs() < _UNIFORM_TOLERANCE
        return is_uniform, f"{text} is uniform and not learning; {advice}"

    def status(self) -> dict[str, Tensor]:
        buffer_sizes = [sum(map(len, episodes)) for episodes in self.memory.episodes]
        status = super().status() | {"train/buffer_size": torch.tensor(buffer_sizes)}
        episode_returns = self._episode_returns()
        if episode_returns:
            status["rollout/command_return_seen_min"] = torch.stack([returns.amin() for returns in episode_returns])
            status["rollout/command_return_seen_max"] = torch.stack([returns.amax() for returns in episode_returns])
        return status

    def _episode_returns(self) -> list[Tensor]:
        """Return for each member the (discounted) returns ``[N]`` of N episodes in memory, if a command is a return."""
        if "return" not in self.command_names:
            return []
        return _stack_extras(self.memory, "return")

    @torch.no_grad()
    def _validation_loss(self, episodes: list[list[Episode]]) -> Tensor:
        """Return the mean loss ``[M]`` of the policy on a sample of the steps in the new ``episodes`` of each member,
        by a fork of the random streams, so that validation does not change the training."""
        memory = EpisodeMemory(self.members, sys.maxsize, order="recent")
        for member, member_episodes in enumerate(episodes):
            memory.add(member, member_episodes[::-1])  # the memory reverses them again
        num_samples = self.config.num_val_batches * self.config.batch_size
        (rows,) = memory.sample(self.streams.fork(), 1, num_samples)
        return self._fit_loss(memory, rows).mean(1)

    @torch.no_grad()
    def _refresh_advantages(self) -> None:
        """Recompute value, value target and advantage of every step in memory with the current value network (RCP-A).
        Then update the distribution of advantage commands."""
        config, memory = self.config, self.memory
        values, final_values = self._clamped_values()  # a tensor [steps] and a tensor [episodes] for each member
        memory.set_column("value", torch.cat(values))
        lengths = [len(episode) for episode in chain(*memory.episodes)]
        # [T, N], with the N episodes of all members side by side, padded to the longest.
        reward = pad_sequence(torch.cat(memory.column("reward")).split(lengths))
        value = pad_sequence(torch.cat(values).split(lengths))
        # [T, N], the number of steps left, including the current step
        remaining_steps = torch.tensor(lengths) - torch.arange(len(reward)).unsqueeze(1)
        valid = remaining_steps > 0
        is_last = remaining_steps == 1
        next_value = next_values(value, torch.cat(final_values), is_last)
        # With a lambda of 1, lambda returns are discounted returns.
        target_lambda = config.td_lambda if config.use_lambda_td else 1.0
        advantage_lambda = config.td_lambda if config.advantage_target == "lambda" else 1.0
        value_target = lambda_returns(reward, next_value, valid, config.discount, target_lambda)
        returns = value_target  # the advantage is these returns minus the values
        if advantage_lambda != target_lambda:
            returns = lambda_returns(reward, next_value, valid, config.discount, advantage_lambda)
        advantage = returns - value
        if config.clamp_adv_to_max:
            advantage = advantage.clamp(max=config.max_adv_clamp_val)
        # Transposed, so that a mask selects episode after episode.
        memory.set_column("value_target", value_target.T[valid.T])
        memory.set_column("advantage", advantage.T[valid.T])
        self.commands.update_from_advantages(memory.column("advantage"))

    def _clamped_values(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return for each member the values of all steps in memory, ``[steps]``, and of all final observations,
        ``[episodes]``, in units of reward. Final values are 0 after termination and without ``bootstrap_truncation``.

        Values are clamped to the range of the returns-to-go in memory. For final values, this range also includes 0.
        The network extrapolates to states that were never seen, such as far above the moon in LunarLander, and
        bootstrapping would amplify the errors.
        """
        memory = self.memory
        values = self._values(memory.column("obs"))
        final_values = self._values(_stack_extras(memory, "final_obs"))
        terminated = _stack_extras(memory, "terminated")
        for m, returns in enumerate(memory.column("rtg")):
            values[m] = values[m].clamp(returns.min(), returns.max())
            bootstraps = ~terminated[m] if self.config.bootstrap_truncation else torch.zeros_like(terminated[m])
            low, high = _range_with_zero(returns)
            final_values[m] = (final_values[m] * bootstraps).clamp(low, high)
        return values, final_values

    def _value_scale(self) -> Tensor:
        """Return the factor ``[M]`` that converts outputs of the value network to units of reward."""
        return self.commands.return_reach / SCALED_LIMIT

    def _values(self, obs: list[Tensor]) -> list[Tensor]:
        """Return each member's state values ``[n]`` in units of reward, for ``obs[member] [n, *O]``; n may differ."""
        # Chunks of a fixed shape, because the rounding of a matrix product may depend on the length of the batch, which
        # is the largest n of all members.
        size = _IMAGE_CHUNK if self.spaces.is_image else _VALUE_CHUNK
        num_chunks = -(-max(map(len, obs)) // size)  # rounded up
        padded_obs = stack_padded(obs, num_chunks * size)
        values = torch.cat([self._scaled_value(chunk) for chunk in padded_obs.split(size, dim=1)], dim=1)
        values = values * self._value_scale().unsqueeze(1)
        return [values[m, : len(member_obs)] for m, member_obs in enumerate(obs)]

    def _scaled_value(self, obs: Tensor) -> Tensor:
        """Return state values of ``obs [M, B, *O]``, ``[M, B]`` in units of `_value_scale`. If ranks are commanded,
        they are the means of the predicted quantiles."""
        if self.config.desire_rank:
            return (self._quantiles(obs) * level_weights(self.levels)).sum(-1)
        return self._quantiles(obs).squeeze(-1)

    def _quantiles(self, obs: Tensor) -> Tensor:
        """Return the Q predicted quantiles of the return-to-go from ``obs [M, B, *O]``, ``[M, B, Q]``, in units of
        `_value_scale`. If no ranks are commanded, return its predicted mean instead, ``[M, B, 1]``."""
        return self.state_network(self.trunk(obs))  # type: ignore[no-any-return]

    def _value_loss(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean squared error ``[M]`` of values, or the pinball loss of quantiles, on the steps ``rows [M,
        B]``, in units of `_value_scale`, twice: with gradient (to minimise) and without (to report)."""
        obs, target = self.memory.gather(rows, ["obs", "rtg" if self.config.desire_rank else "value_target"])
        scaled_target = target / self._value_scale().unsqueeze(1)
        if self.config.desire_rank:
            loss = pinball_loss(self._quantiles(obs), scaled_target, self.levels).mean(1)
        else:
            loss = (self._scaled_value(obs) - scaled_target).square().mean(1)
        return loss, loss.detach()

    def mean_commands(self) -> dict[str, Tensor]:
        return self.commands.means()

    @property
    def command_names(self) -> list[str]:
        """Names of commands for users. If ranks are commanded, "return" is one too: it is converted to its rank."""
        names = super().command_names
        return [*names, "return"] if self.config.desire_rank else names

    def training_state(self) -> dict[str, Any]:
        return {"memory": self.memory.state_dict(), "streams": self.streams.get_state()}

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `training_state`. Raises StateError if its episodes do not fit the spaces."""
        spaces = self.spaces
        obs = torch.zeros(1, 1, 1, *spaces.obs_shape, dtype=spaces.obs_dtype)  # [T, M, E, *O]
        action = torch.zeros(1, 1, 1, *spaces.action_shape, dtype=spaces.action_dtype)
        number = torch.zeros(1, 1, 1)
        flag = torch.ones(1, 1, 1, dtype=torch.bool)
        # An example of an episode has one step, in which numbers are 0 and flags True. The saved episodes must have its
        # fields, shapes and dtypes.
        trajectory = Trajectory(obs, action, number, flag, flag, flag, final_obs=obs[0], returns=number[0])
        (example,) = self._to_episodes(trajectory, returns_to_go=number, episode_returns=number[0], member=0)
        self.memory.load_state_dict(state["memory"], example)
        self.streams.set_state(state["streams"])


def _range_with_zero(returns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest of ``returns [n]`` and 0, which is the value after termination."""
    return returns.min().clamp(max=0), returns.max().clamp(min=0)


def _stack_extras(memory: EpisodeMemory, name: str) -> list[Tensor]:
    """Return for each member the field ``name`` of the ``extras`` of its episodes in memory, ``[episodes, ...]``."""
    return [torch.stack([episode.extras[name] for episode in episodes]) for episodes in memory.episodes]


class CommandedPolicy(Policy):
    """Policy for E = ``envs`` episodes of every member. It samples their commands ``[M, E, C]`` and counts them down.
    Actions are sampled if ``sample``, otherwise greedy. `Commands.sample` describes ``at_mean`` and ``overrides``. If
    ranks are commanded, a return in ``overrides`` is counted down, and converted to its rank in each state."""

    def __init__(self, agent: Agent, envs: int, streams: Streams, sample: bool, at_mean: bool, overrides: Command):
        self.agent, self.commands, self.sample, self.members = agent, agent.commands, sample, len(streams)
        self.command = self.commands.sample(envs, streams, at_mean, overrides)
        # Commanded returns-to-go [M, E], from which ranks are computed.
        self.commanded_returns: Tensor | None = None
        if "rank" in self.commands.column and "return" in overrides:
            self.commanded_returns = torch.full((self.members, envs), overrides["return"])
        draws: list[Draw] = []  # random numbers of each step
        # RCP-A samples a new command at every step (public code).
        if "advantage" in self.commands.names and not at_mean and "advantage" not in overrides:
            draws.append((Streams.normal, {"command": (envs,)}))
        if sample:
            sampler = Streams.gumbel if agent.is_discrete else Streams.normal
            draws.append((sampler, {"action": (envs, agent.num_outputs)}))
        self.floor = agent.config.policy_floor if sample and agent.is_discrete else 0.0
        if self.floor:  # one number decides whether the action is uniformly random, the other number chooses it
            draws.append((Streams.uniform, {"floor": (envs, 2)}))
        self.noise = NoiseBlocks(streams, draws)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        noise = self.noise.next()
        if "command" in noise:
            self.command[..., self.commands.column["advantage"]] = self.commands.sample_value(noise["command"])
        if self.commanded_returns is not None:
            self.command[..., self.commands.column["rank"]] = self.agent.rank(obs, self.commanded_returns)
        outputs = self.agent.averaged_forward(obs, self.command)
        noise_scale = self.agent.config.action_noise
        if not self.agent.is_discrete:  # the outputs are means in units of half the range of actions
            if self.sample:
                outputs = outputs + _CONTINUOUS_NOISE * noise_scale * noise["action"]
            # A diverged member must not end the run of all members by an action that is not a number.
            scaled_action = outputs.nan_to_num(0.0).clamp(-1.0, 1.0)
            return self.agent.middle + self.agent.half_width * scaled_action
        if self.sample:  # the argmax of logits plus Gumbel noise is a sample of their softmax
            outputs = outputs * noise_scale + noise["action"]
        action = outputs.argmax(-1)
        if self.floor:  # the probability of a uniformly random action
            floor_uniform, action_uniform = noise["floor"].unbind(-1)
            random_action = (action_uniform * self.agent.num_outputs).long()
            action = torch.where(floor_uniform < self.floor, random_action, action)
        return action

    def current_command(self) -> dict[str, Tensor]:
        columns = zip(self.commands.names, self.command.unbind(-1), strict=True)
        return {USER_NAMES[name]: column.clone() for name, column in columns}

    def advance(self, reward: Tensor) -> None:
        self.commands.count_down(self.command, reward)
        if self.commanded_returns is not None:
            # The return-to-go G follows from G = reward + discount * next G.
            self.commanded_returns = (self.commanded_returns - reward) / self.agent.config.discount
