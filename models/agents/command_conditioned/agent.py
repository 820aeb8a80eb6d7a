"""Upside-Down RL, RCP-R and RCP-A: one agent, three settings.

Read top to bottom: what is remembered (`observe`), how the policy is fitted to what happened (`learn`). What is
commanded is in commands.py. Deviations from the papers and the public code are listed in
docs/command_conditioned.md.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from models.agents.command_conditioned.commands import REACH, Commands
from models.agents.command_conditioned.config import Config
from models.agents.command_conditioned.networks import POLICIES
from models.agents.command_conditioned.policy import Bounds, CommandedPolicy
from models.contract import EpisodeAgent
from models.layers import ConvolutionalTrunk
from models.losses import cross_entropy, exponential_weights, max_entropy, squared_error
from models.memory import EpisodeMemory, NewEpisode
from models.mlp import ValueNetwork
from models.optim import Adam, clip_gradients
from models.returns import discounted_returns, lambda_returns
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams
from models.trajectory import Trajectory

_VALUE_CHUNK = 4096
_UNIFORM_WITHIN = 0.005  # nats


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
        self.streams = Streams.named(seeds, "learning")
        init = Streams.named(seeds, "initial weights")
        self.trunk = ConvolutionalTrunk(spaces, config.conv_channels, init) if spaces.is_image else None
        inputs = self.trunk.features if self.trunk else spaces.obs_shape[0]
        outputs = spaces.actions.n if isinstance(spaces.actions, Discrete) else spaces.actions.size
        self.policy = POLICIES[config.network](inputs, len(self.commands.names), outputs, config.hidden_sizes, init)
        self.value = ValueNetwork(inputs, config.value_hidden_sizes, init) if config.desire_advantage else None
        self.memory = EpisodeMemory(self.members, config.buffer_size, config.buffer_unit, config.buffer_order)
        policy_params = [self.policy.flat, *([self.trunk.flat] if self.trunk else [])]
        self.optimizers = [Adam(policy_params, config.lr)]
        if self.value:
            self.optimizers.append(Adam([self.value.flat], config.value_lr or config.lr))
        self.bounds = Bounds(spaces.actions) if isinstance(spaces.actions, Continuous) else None

    def has_collapsed(self, metrics: Mapping[str, Tensor]) -> tuple[Tensor, str]:
        """Which members ``[M]`` bool have a policy that is uniform whatever it sees, going by what `learn` gave, and
        what that means. Of continuous actions no loss tells."""
        loss = metrics["policy_loss"]
        if not isinstance(self.spaces.actions, Discrete):
            return torch.zeros_like(loss, dtype=torch.bool), ""
        uniform = max_entropy(self.spaces.actions.n)
        text = f"the policy loss has sat at ln({self.spaces.actions.n}) = {uniform:.3f}: the policy is uniform and not"
        advice = "look at the command scales (reward_scale, horizon_scale) and lr"
        return (loss - uniform).abs() < _UNIFORM_WITHIN, f"{text} learning; {advice}"

    # -- acting ------------------------------------------------------------------------------------------------

    def begin(
        self,
        envs: int,
        streams: Streams,
        *,
        sample: bool,
        evaluate: bool = False,
        command: Mapping[str, float] | None = None,
    ) -> CommandedPolicy:
        """Start E episodes a member. ``sample`` draws actions (else greedy); ``evaluate`` takes the evaluation
        command; ``command`` overrides parts of it, e.g. ``{"return": 250.0}``."""
        exact = evaluate and self.config.eval_command == "lower_bound"
        return CommandedPolicy(
            self, self.commands, self.spaces.actions, envs, streams, sample=sample, exact=exact, given=command or {}
        )

    def forward(self, obs: Tensor, command: Tensor) -> Tensor:
        """Logits or action means ``[M, B, outputs]`` of ``obs [M, B, *O]`` under ``command [M, B, C]`` (unscaled)."""
        features = self.trunk(obs) if self.trunk else obs
        return self.policy(features, command * self.commands.scale.unsqueeze(1))

    # -- remembering -------------------------------------------------------------------------------------------

    def observe(self, trajectory: Trajectory, validate: bool = False) -> dict[str, Tensor]:
        """Remember whole episodes and make the next exploration commands from them.

        ``validate`` first measures the loss on these steps, which nothing has been learned from yet: ``{"val_loss":
        [M]}``, or nothing where it is switched off or the steps have no command yet (RCP-A).
        """
        discounted = discounted_returns(trajectory.reward, trajectory.valid, self.config.discount)
        episodes = [self._episodes(trajectory, discounted, m) for m in range(self.members)]
        metrics = {}
        if validate and self.config.num_val_batches > 0 and not self.config.desire_advantage:
            metrics["val_loss"] = self._validation_loss(episodes)
        for m in range(self.members):
            self.memory.add(m, episodes[m])
        self.commands.widen(discounted, trajectory.returns, trajectory.lengths)
        self.commands.follow_returns(self.memory, discounted[0], trajectory.lengths)
        return metrics

    def _episodes(self, trajectory: Trajectory, discounted: Tensor, m: int) -> list[NewEpisode]:
        """The episodes of member m in the form that memory takes."""
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
                ended = trajectory.terminated[length - 1, m, e]
                extras = {"final_obs": trajectory.final_obs[m, e].clone(), "terminated": ended.clone()}
            episodes.append(NewEpisode(steps, total, extras))
        return episodes

    # -- learning ----------------------------------------------------------------------------------------------

    def learn(self) -> dict[str, Tensor]:
        """One epoch's gradient steps. Returns means over them, ``{"policy_loss": [M], ...}``."""
        config = self.config
        metrics = {}
        if self.value:
            self._refresh_advantages()
            metrics["value_loss"] = self._fit_value()
            self._refresh_advantages()
        losses = []
        for slots in self.memory.sample(self.streams, config.num_grad_steps, config.batch_size, config.sample_by):
            loss, plain = self._policy_loss(slots)
            self._descend(self.optimizers[0], loss)
            losses.append(plain)
        return metrics | {"policy_loss": torch.stack(losses).mean(0)}

    def _descend(self, optimizer: Adam, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.sum().backward()
        clip_gradients(optimizer.param_groups[0]["params"], self.config.grad_clip_val)
        optimizer.step()

    def _policy_loss(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted loss (to descend) and plain loss (to watch) of the steps in ``slots [M, B]``, both ``[M]``."""
        config = self.config
        weighted_by = ["advantage" if config.desire_advantage else "cum_rew"] if config.expo_weighting else []
        obs, action, *rest = self.memory.gather(slots, ["obs", "action", *self.commands.names, *weighted_by])
        loss = self._fit_loss(obs, action, rest[: len(self.commands.names)])
        plain = loss.detach().mean(1)
        if weighted_by:
            loss = loss * exponential_weights(rest[-1], config.beta, config.max_weight)
        return loss.mean(1), plain

    def _fit_loss(self, obs: Tensor, action: Tensor, command: list[Tensor]) -> Tensor:
        """Cross-entropy of the action taken, or squared error to it in half-widths of the range; ``[M, B]``."""
        outputs = self(obs, torch.stack(command, dim=-1))
        if self.bounds is None:
            return cross_entropy(outputs, action)
        return squared_error(outputs, self.bounds.normalise(action))

    @torch.no_grad()
    def _validation_loss(self, episodes: list[list[NewEpisode]]) -> Tensor:
        """Loss ``[M]`` on steps drawn from fresh episodes."""
        config = self.config
        names, batches = ["obs", "action", *self.commands.names], []
        for fresh, generator in zip(episodes, self.streams.fork().generators, strict=True):
            values = [torch.cat([episode.steps[name] for episode in fresh]) for name in names]
            drawn = torch.randint(len(values[0]), (config.num_val_batches * config.batch_size,), generator=generator)
            batches.append([value[drawn] for value in values])
        obs, action, *command = [torch.stack(rows) for rows in zip(*batches, strict=True)]
        return self._fit_loss(obs, action, command).mean(1)

    # -- advantages (RCP-A) ------------------------------------------------------------------------------------

    @torch.no_grad()
    def _refresh_advantages(self) -> None:
        """V, value targets and advantages of every step in memory under the present value network, and their
        command."""
        config, memory = self.config, self.memory
        scale = self._value_scale()
        values = self._values([memory.fields["obs"][m][memory.index(m)] for m in range(self.members)])
        last = self._values(
            [torch.stack([e.extras["final_obs"] for e in memory.episodes[m]]) for m in range(self.members)]
        )
        for m in range(self.members):
            ended = torch.stack([episode.extras["terminated"] for episode in memory.episodes[m]])
            last[m] = last[m] * scale[m] * ~ended * float(config.bootstrap_truncation)
            # Where an episode is cut off the network may only extrapolate (a lander can climb for ever), and
            # bootstrapping from that feeds on itself; no value lies outside the returns seen.
            seen = memory.fields["rtg"][m][memory.index(m)]
            values[m] = (values[m] * scale[m]).clamp(seen.min(), seen.max())
            last[m] = last[m].clamp(seen.min().clamp(max=0), seen.max().clamp(min=0))
            memory.fields["value"][m][memory.index(m)] = values[m]
        slots, real = memory.padded()
        reward, value = memory.take("reward", slots), memory.take("value", slots)
        final = torch.zeros_like(real)
        final[real.sum(0) - 1, torch.arange(real.shape[1])] = True
        next_value = torch.where(final, torch.cat(last), value.roll(-1, 0))
        traces = {"value_target": config.td_lambda if config.use_lambda_td else 1.0,
                  "advantage": config.td_lambda if config.advantage_target == "lambda" else 1.0}  # fmt: skip
        targets = {t: lambda_returns(reward, next_value, real, config.discount, t) for t in set(traces.values())}
        memory.put("value_target", slots[real], targets[traces["value_target"]][real])
        advantage = targets[traces["advantage"]] - value
        if config.clamp_adv_to_max:
            advantage = advantage.clamp(max=config.max_adv_clamp_val)
        memory.put("advantage", slots[real], advantage[real])
        self.commands.follow_advantages([memory.fields["advantage"][m][memory.index(m)] for m in range(self.members)])

    def _value_scale(self) -> Tensor:
        """Units of reward in one unit of the value network's output, ``[M]``."""
        return self.commands.return_reach / REACH

    def _values(self, obs: list[Tensor]) -> list[Tensor]:
        """Value network over each member's rows ``[n_m, *O]``, in chunks of one fixed shape: ``[n_m]`` each.

        A fixed shape, because a matrix product may round a row differently in a batch of another length.
        """
        assert self.value
        chunks = -(-max(map(len, obs)) // _VALUE_CHUNK)
        rows = torch.stack([pad_rows(values, chunks * _VALUE_CHUNK) for values in obs])
        out = torch.cat([self._value(part) for part in rows.split(_VALUE_CHUNK, dim=1)], dim=1)
        return [out[m, : len(values)] for m, values in enumerate(obs)]

    def _value(self, obs: Tensor) -> Tensor:
        """Values ``[M, B]`` in the network's own units; the trunk of an image agent is the policy's, held fixed."""
        assert self.value
        return self.value(self.trunk(obs).detach() if self.trunk else obs)

    def _fit_value(self) -> Tensor:
        """Gradient steps of the value network on its targets; mean squared error ``[M]`` in units of reward squared."""
        config = self.config
        updates = max(1, config.num_grad_steps // config.val_func_update_interval)
        scale = self._value_scale().unsqueeze(1)
        losses = []
        for slots in self.memory.sample(self.streams, updates, config.batch_size, config.sample_by):
            obs, target = self.memory.gather(slots, ["obs", "value_target"])
            loss = (self._value(obs) - target / scale).square().mean(1)
            self._descend(self.optimizers[1], loss)
            losses.append(loss.detach())
        return torch.stack(losses).mean(0) * scale.squeeze(1).square()

    def commands_now(self) -> dict[str, Tensor]:
        return self.commands.now()

    # -- resuming ----------------------------------------------------------------------------------------------

    def training_state(self) -> dict[str, Any]:
        """What `state_dict` does not hold and a resumed run needs: memory and random streams."""
        return {"memory": self.memory.state_dict(), "streams": self.streams.get_state()}

    def load_training_state(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state["memory"])
        self.streams.set_state(state["streams"])


def pad_rows(values: Tensor, rows: int) -> Tensor:
    """Zero rows appended to ``values [n, ...]`` up to ``[rows, ...]``."""
    return torch.cat([values, values.new_zeros(rows - len(values), *values.shape[1:])])
