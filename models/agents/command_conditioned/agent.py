"""Upside-Down RL, RCP-R and RCP-A: one agent, three settings.

Read top to bottom: storing episodes (`observe`), then fitting the policy to them (`learn`). commands.py samples the
commands. docs/command_conditioned.md lists the deviations from the papers and the public code.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from models.agents.command_conditioned.commands import REACH, Commands
from models.agents.command_conditioned.config import Config
from models.agents.command_conditioned.networks import POLICIES
from models.contract import Command, EpisodeAgent, Policy
from models.layers import trunk
from models.losses import cross_entropy, entropy, explained_variance, exponential_weights, squared_error
from models.memory import Episode, EpisodeMemory
from models.mlp import MlpNetwork
from models.optim import Adam, clip_gradients
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Draw, NoiseBlocks, Streams
from models.trajectory import Trajectory, discounted_returns, lambda_returns, stack_padded

_VALUE_CHUNK = 4096
_UNIFORM_WITHIN = 0.005  # nats
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
        init = Streams.from_name(seeds, "initial weights")
        self.trunk, inputs = trunk(spaces, config.conv_channels, init)
        self.outputs = spaces.actions.n if isinstance(spaces.actions, Discrete) else spaces.actions.size
        sizes = inputs, len(self.commands.names), self.outputs, config.hidden_sizes
        self.policy = POLICIES[config.network](*sizes, init, config.activation)
        sizes_of_value = (inputs, *config.value_hidden_sizes, 1)
        self.value = MlpNetwork(sizes_of_value, config.activation, init) if config.desire_advantage else None
        self.memory = EpisodeMemory(self.members, config.buffer_size, config.buffer_unit, config.buffer_order)
        self.optimizers = [Adam([*self.policy.parameters(), *self.trunk.parameters()], config.lr)]
        if self.value:
            self.optimizers.append(Adam([self.value.flat], config.value_lr or config.lr))
        self._latest: dict[str, Any] = {}  # norms of gradients and outputs of the latest updates
        self.discrete = isinstance(spaces.actions, Discrete)
        if isinstance(spaces.actions, Continuous):  # networks work in the cube [-1, 1]^A
            low, high = torch.tensor(spaces.actions.low), torch.tensor(spaces.actions.high)
            self.middle, self.half_width = (high + low) / 2, (high - low) / 2

    def has_collapsed(self, metrics: Mapping[str, Tensor]) -> tuple[Tensor, str]:
        """Return whether each member's policy is uniform for any input, ``[M]`` bool, and advice for the user. Checked
        for discrete actions only, because the loss of continuous actions does not show it."""
        if not isinstance(self.spaces.actions, Discrete):
            return super().has_collapsed(metrics)
        uniform = math.log(self.spaces.actions.n)
        text = f"the policy loss has sat at ln({self.spaces.actions.n}) = {uniform:.3f}: the policy is uniform and not"
        advice = "look at the command scales (reward_scale, horizon_scale) and lr"
        return (metrics["policy_loss"] - uniform).abs() < _UNIFORM_WITHIN, f"{text} learning; {advice}"

    def begin(
        self, envs: int, streams: Streams, *, sample: bool, evaluate: bool = False, command: Command | None = None
    ) -> "CommandedPolicy":
        """See `models.contract.Agent.begin`. If ``evaluate``, ``eval_command`` chooses between the mean command and a
        sampled one; otherwise commands are sampled."""
        exact = evaluate and self.config.eval_command == "lower_bound"
        return CommandedPolicy(self, envs, streams, sample, exact, command or {})

    def forward(self, obs: Tensor, command: Tensor) -> Tensor:
        """Return logits or action means ``[M, B, outputs]`` for ``obs [M, B, *O]`` and unscaled ``command [M, B, C]``.
        Action means are in units of half the action range, relative to its middle."""
        return self.policy(self.trunk(obs), command * self.commands.scale.unsqueeze(1))

    def observe(self, trajectory: Trajectory, validate: bool = False) -> dict[str, Tensor]:
        """Store whole episodes and update the exploration commands.

        With ``validate``, return the loss on these episodes, ``{"validation_loss": [M]}``. Otherwise return an empty
        dict, also if ``num_val_batches`` is 0 or if steps have no command yet (RCP-A computes advantages in `learn`).
        """
        discounted = discounted_returns(trajectory.reward, trajectory.valid, self.config.discount)
        episodes = [self._episodes(trajectory, discounted, m) for m in range(self.members)]
        metrics = {}
        if validate and self.config.num_val_batches > 0 and not self.config.desire_advantage:
            metrics["validation_loss"] = self._validation_loss(episodes)
        for m in range(self.members):
            self.memory.add(m, episodes[m])
        self.commands.widen(discounted, trajectory.returns, trajectory.lengths)
        self.commands.follow_returns(self.memory, discounted[0], trajectory.lengths)
        return metrics

    def _episodes(self, trajectory: Trajectory, discounted: Tensor, m: int) -> list[Episode]:
        """Convert the episodes of member ``m`` to `Episode`, for `EpisodeMemory.add`. ``discounted [T, M, E]`` are
        returns-to-go."""
        episodes = []
        lengths, returns = trajectory.lengths[m].tolist(), trajectory.returns[m].tolist()
        for e, (length, total) in enumerate(zip(lengths, returns, strict=True)):
            steps = {
                "obs": trajectory.obs[:length, m, e],
                "action": trajectory.action[:length, m, e],
                "rtg": discounted[:length, m, e],
                "cum_rew": torch.full((length,), total),
                "horizon": torch.arange(length, 0, -1, dtype=torch.float32),
            }
            extras = {}
            if self.value:
                steps["reward"] = trajectory.reward[:length, m, e]
                steps |= {name: torch.zeros(length) for name in ("value", "value_target", "advantage")}
                terminated = trajectory.terminated[length - 1, m, e]
                extras = {"final_obs": trajectory.final_obs[m, e].clone(), "terminated": terminated.clone()}
            episodes.append(Episode(steps, total, extras))
        return episodes

    def learn(self) -> dict[str, Tensor]:
        config = self.config
        metrics = {}
        if self.value:
            self._refresh_advantages()
            updates = max(1, config.num_grad_steps // config.val_func_update_interval)
            metrics["value_loss"] = self._descend(self.optimizers[1], updates, self._value_loss)
            metrics["value_loss"] *= self._value_scale().square()  # in units of reward squared
            self._refresh_advantages()
            pairs = zip(self.memory.column("value"), self.memory.column("value_target"), strict=True)
            metrics["explained_variance"] = torch.stack([explained_variance(*pair) for pair in pairs])
        metrics["policy_loss"] = self._descend(self.optimizers[0], config.num_grad_steps, self._policy_loss)
        metrics["grad_norm"] = torch.stack(self._latest["norms"], 1).mean(1)
        if self.discrete:
            metrics["entropy"] = entropy(self._latest["outputs"] * config.action_noise)
        return metrics

    def status(self) -> dict[str, Tensor]:
        buffer_sizes = [sum(map(len, episodes)) for episodes in self.memory.episodes]
        return super().status() | {"train/buffer_size": torch.tensor(buffer_sizes)} | self._return_range()

    def _return_range(self) -> dict[str, Tensor]:
        """Return the smallest and largest return ``[M]`` of the episodes in memory, discounted if the command is the
        return-to-go. Empty if no command is a return."""
        names = [name for name in ("rtg", "cum_rew") if name in self.commands.names]
        if not names:
            return {}
        returns = [self.memory.fields[names[0]][m][self.memory.first_slots(m)] for m in range(self.members)]
        ends = {"min": torch.amin, "max": torch.amax}
        return {
            f"command/return_seen_{name}": torch.stack([end(member_returns) for member_returns in returns])
            for name, end in ends.items()
        }

    def _descend(self, optimizer: Adam, updates: int, loss_of: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        """Take ``updates`` gradient steps on minibatches from memory and return the mean reported loss ``[M]``.
        ``loss_of`` maps the ``slots [M, B]`` of a minibatch to the loss to descend and the loss to report, ``[M]``
        each."""
        config, losses, norms = self.config, [], []
        for slots in self.memory.sample(self.streams, updates, config.batch_size, config.sample_by):
            loss, plain = loss_of(slots)
            optimizer.zero_grad()
            loss.sum().backward()
            norms.append(clip_gradients(optimizer.param_groups[0]["params"], config.max_grad_norm))
            optimizer.step()
            losses.append(plain)
        self._latest["norms"] = norms
        return torch.stack(losses).mean(0)

    def _policy_loss(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        weighted_by = ["advantage" if config.desire_advantage else "cum_rew"] if config.expo_weighting else []
        obs, action, *rest = self.memory.gather(slots, ["obs", "action", *self.commands.names, *weighted_by])
        loss = self._fit_loss(obs, action, rest[: len(self.commands.names)])
        plain = loss.detach().mean(1)
        if weighted_by:
            loss = loss * exponential_weights(rest[-1], config.beta, config.max_weight)
        return loss.mean(1), plain

    def _fit_loss(self, obs: Tensor, action: Tensor, command: list[Tensor]) -> Tensor:
        """Return the policy's loss ``[M, B]`` on recorded actions: cross-entropy if discrete, otherwise the squared
        error in units of half the action range. ``command`` is a list of C numbers ``[M, B]``."""
        outputs = self(obs, torch.stack(command, dim=-1))
        self._latest["outputs"] = outputs.detach()
        if self.discrete:
            return cross_entropy(outputs, action)
        return squared_error(outputs, (action - self.middle) / self.half_width)

    @torch.no_grad()
    def _validation_loss(self, episodes: list[list[Episode]]) -> Tensor:
        """Return the policy's mean loss ``[M]`` on steps sampled from each member's new ``episodes``."""
        config = self.config
        names, batches = ["obs", "action", *self.commands.names], []
        for fresh, generator in zip(episodes, self.streams.fork().generators, strict=True):
            values = [torch.cat([episode.steps[name] for episode in fresh]) for name in names]
            indices = torch.randint(len(values[0]), (config.num_val_batches * config.batch_size,), generator=generator)
            batches.append([value[indices] for value in values])
        obs, action, *command = [torch.stack(rows) for rows in zip(*batches, strict=True)]
        return self._fit_loss(obs, action, command).mean(1)

    @torch.no_grad()
    def _refresh_advantages(self) -> None:
        """Recompute value, value target and advantage of every step in memory with the current value network, then
        update the advantage command."""
        config, memory = self.config, self.memory
        scale = self._value_scale()
        values = self._values(memory.column("obs"))
        last = self._values([torch.stack([e.extras["final_obs"] for e in episodes]) for episodes in memory.episodes])
        for m, returns in enumerate(memory.column("rtg")):
            terminated = torch.stack([episode.extras["terminated"] for episode in memory.episodes[m]])
            last[m] = last[m] * scale[m] * ~terminated * float(config.bootstrap_truncation)
            # At a time limit the network may extrapolate (a lander can climb for ever), and bootstrapping from an
            # extrapolated value amplifies its error. So values are clamped to the returns in memory.
            values[m] = (values[m] * scale[m]).clamp(returns.min(), returns.max())
            last[m] = last[m].clamp(returns.min().clamp(max=0), returns.max().clamp(min=0))
        memory.set_column("value", torch.cat(values))
        # Episodes side by side, [T, N], ordered by member.
        lengths = [len(episode) for episodes in memory.episodes for episode in episodes]
        columns = (memory.column("reward"), values)
        reward, value = (pad_sequence(torch.cat(column).split(lengths)) for column in columns)
        remaining_steps = torch.tensor(lengths) - torch.arange(len(reward)).unsqueeze(1)
        real = remaining_steps > 0
        next_value = torch.where(remaining_steps == 1, torch.cat(last), value.roll(-1, 0))
        traces = [config.td_lambda if on else 1.0 for on in (config.use_lambda_td, config.advantage_target == "lambda")]
        targets = {trace: lambda_returns(reward, next_value, real, config.discount, trace) for trace in set(traces)}
        memory.set_column("value_target", targets[traces[0]].T[real.T])
        advantage = targets[traces[1]] - value
        if config.clamp_adv_to_max:
            advantage = advantage.clamp(max=config.max_adv_clamp_val)
        memory.set_column("advantage", advantage.T[real.T])
        self.commands.follow_advantages(memory.column("advantage"))

    def _value_scale(self) -> Tensor:
        """Return the factor ``[M]`` from the value network's output to units of reward."""
        return self.commands.return_reach / REACH

    def _values(self, obs: list[Tensor]) -> list[Tensor]:
        """Return the value network's outputs ``[n_m]`` for each member's observations ``[n_m, *O]``.

        Chunks have one fixed shape, because a matrix product may round a row differently in a batch of another length.
        """
        assert self.value
        chunks = -(-max(map(len, obs)) // _VALUE_CHUNK)
        rows = stack_padded(obs, chunks * _VALUE_CHUNK)
        out = torch.cat([self._value(part) for part in rows.split(_VALUE_CHUNK, dim=1)], dim=1)
        return [out[m, : len(values)] for m, values in enumerate(obs)]

    def _value(self, obs: Tensor) -> Tensor:
        """Return values ``[M, B]`` in units of `_value_scale`. No gradient flows into the trunk, which images share
        with the policy."""
        assert self.value
        return self.value(self.trunk(obs).detach()).squeeze(-1)

    def _value_loss(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean squared error ``[M]`` of values in units of `_value_scale`, with and without gradient."""
        obs, target = self.memory.gather(slots, ["obs", "value_target"])
        loss = (self._value(obs) - target / self._value_scale().unsqueeze(1)).square().mean(1)
        return loss, loss.detach()

    def commands_now(self) -> dict[str, Tensor]:
        return self.commands.now()

    def training_state(self) -> dict[str, Any]:
        return {"memory": self.memory.state_dict(), "streams": self.streams.get_state()}

    def load_training_state(self, state: dict[str, Any]) -> None:
        shape, spaces = (1, 1, 1), self.spaces
        obs = torch.zeros(*shape, *spaces.obs_shape, dtype=spaces.obs_dtype)
        action = torch.zeros(*shape, *spaces.action_shape, dtype=spaces.action_dtype)
        number, flag = torch.zeros(shape), torch.ones(shape, dtype=torch.bool)
        step = Trajectory(obs, action, number, flag, flag, flag, obs[0], number[0])
        self.memory.load_state_dict(state["memory"], self._episodes(step, number, 0)[0])
        self.streams.set_state(state["streams"])


class CommandedPolicy(Policy):
    """Chooses actions in E episodes of every member. It samples their commands ``[M, E, C]`` and counts them down.

    If ``sample``, actions are sampled; otherwise they are the most likely ones. If ``exact``, commands are the mean
    instead of a sample. ``overrides`` replaces some commands (see `Commands.sample`).
    """

    def __init__(self, agent: Agent, envs: int, streams: Streams, sample: bool, exact: bool, overrides: Command):
        self.agent, self.commands, self.sample, self.members = agent, agent.commands, sample, len(streams)
        self.command = self.commands.sample(envs, streams, exact, overrides)
        draws: list[Draw] = []
        # RCP-A samples a new command at every step (public code).
        if "advantage" in self.commands.names and not exact and "advantage" not in overrides:
            draws.append((Streams.normal, {"command": (envs,)}))
        if sample:
            draws.append((Streams.gumbel if agent.discrete else Streams.normal, {"action": (envs, agent.outputs)}))
        self.floor = agent.config.policy_floor if sample and agent.discrete else 0.0
        if self.floor:
            draws.append((Streams.uniform, {"floor": (envs, 2)}))
        self.noise = NoiseBlocks(streams, draws)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        noise = self.noise.next()
        if "command" in noise:
            self.command[..., self.commands.column["advantage"]] = self.commands.sample_value(noise["command"])
        outputs, strength = self.agent(obs, self.command), self.agent.config.action_noise
        if self.agent.discrete:
            actions = (outputs * strength + noise["action"] if self.sample else outputs).argmax(-1)
            if self.floor:
                whether, uniform_action = noise["floor"].unbind(-1)
                actions = torch.where(whether < self.floor, (uniform_action * self.agent.outputs).long(), actions)
            return actions
        if self.sample:
            outputs = outputs + _CONTINUOUS_NOISE * strength * noise["action"]
        # A diverged member must not end the run of all members by an action that is not a number.
        return self.agent.middle + self.agent.half_width * outputs.nan_to_num(0.0).clamp(-1.0, 1.0)

    def current_command(self) -> dict[str, Tensor]:
        return self.commands.by_name(self.command)

    def advance(self, reward: Tensor) -> None:
        self.commands.count_down(self.command, reward)
