"""Acting under a command: draw it, follow it, count it down."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from models.contract import Policy
from models.spaces import Continuous
from models.streams import Noise, Streams

if TYPE_CHECKING:
    from models.agents.command_conditioned.agent import Agent

_CONTINUOUS_NOISE = 0.3  # deviation of exploration in half-widths of the action range (public code)


class Bounds:
    """The affine map between actions within their bounds and the cube [-1, 1]^A that networks work in."""

    def __init__(self, actions: Continuous):
        low, high = torch.tensor(actions.low), torch.tensor(actions.high)
        self.centre, self.half = (high + low) / 2, (high - low) / 2

    def normalise(self, action: Tensor) -> Tensor:
        return (action - self.centre) / self.half

    def denormalise(self, action: Tensor) -> Tensor:
        return self.centre + self.half * action.clamp(-1.0, 1.0)


class Acting(Policy):
    """E episodes of every member under way: their commands ``[M, E, C]`` in raw units, and their noise."""

    def __init__(
        self, agent: "Agent", envs: int, streams: Streams, sample: bool, evaluate: bool, override: Mapping[str, float]
    ):
        self.agent, self.sample, self.members = agent, sample, agent.members
        self.exact = evaluate and agent.config.eval_command == "lower_bound"
        self.override = {
            _column: override[key] for key, columns in _OVERRIDES.items() if key in override for _column in columns
        }
        self.column = {name: i for i, name in enumerate(agent.commands)}
        self.command = self._initial(envs, streams)
        self.commanded_returns = self._returns(self.command)
        actions = agent.spaces.actions
        if isinstance(actions, Continuous):
            self.noise = Noise(streams.normal, envs, actions.size)
        else:
            self.noise = Noise(streams.gumbel, envs, actions.n)
        self.command_noise = Noise(streams.normal, envs)

    def _initial(self, envs: int, streams: Streams) -> Tensor:
        """UDRL: return U(M, M + S) and at most the environment's, horizon H (paper, section 2.2). RCP: N(mean,
        spread)."""
        agent = self.agent
        mean, spread = agent.command_mean.unsqueeze(1), agent.command_spread.unsqueeze(1)
        best = agent.config.command_source == "best"
        draw = streams.uniform(envs) if best else streams.normal(envs)
        drawn = mean + spread * (torch.zeros_like(draw) if self.exact else draw)
        if best and agent.spaces.max_return is not None:
            drawn = drawn.clamp(max=agent.spaces.max_return)
        values = {"rtg": drawn, "cum_rew": drawn, "advantage": drawn,
                  "horizon": agent.command_horizon.unsqueeze(1).expand(-1, envs)}  # fmt: skip
        for name, value in self.override.items():
            values[name] = torch.full_like(drawn, value)
        return torch.stack([values[name] for name in agent.commands], dim=-1)

    def _returns(self, command: Tensor) -> Tensor | None:
        """The return each episode is asked for, ``[M, E]``; None where none is commanded."""
        column = self.column.get("rtg", self.column.get("cum_rew"))
        return None if column is None else command[..., column].clone()

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Actions ``[M, E(, A)]`` for ``obs [M, E, *O]``: drawn from the policy, or its greatest."""
        self._redraw_advantage()
        outputs, bounds = self.agent(obs, self.command), self.agent.bounds
        strength = self.agent.config.action_noise
        if bounds is None:
            return (outputs * strength + self.noise() if self.sample else outputs).argmax(-1)
        return bounds.denormalise(outputs + _CONTINUOUS_NOISE * strength * self.noise() if self.sample else outputs)

    def _redraw_advantage(self) -> None:
        """RCP-A commands a fresh draw at every step (public code)."""
        column = self.column.get("advantage")
        if column is None or self.exact or "advantage" in self.override:
            return
        mean, spread = self.agent.command_mean.unsqueeze(1), self.agent.command_spread.unsqueeze(1)
        self.command[..., column] = mean + spread * self.command_noise()

    def advance(self, reward: Tensor) -> None:
        """Count down: the return still wanted less ``reward [M, E]`` (never above the most possible), the horizon by
        1, never below 1."""
        agent = self.agent
        if agent.config.command_source == "best" and "rtg" in self.column:
            rtg = self.command[..., self.column["rtg"]]
            rtg.sub_(reward)
            if agent.spaces.max_return is not None:
                rtg.clamp_(max=agent.spaces.max_return)
        if "horizon" in self.column:
            self.command[..., self.column["horizon"]].sub_(1).clamp_(min=1)


_OVERRIDES = {"return": ("rtg", "cum_rew"), "horizon": ("horizon",), "advantage": ("advantage",)}
