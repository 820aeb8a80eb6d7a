"""The policy of the family: draw a command, follow it, count it down."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from models.agents.command_conditioned.commands import Commands
from models.contract import Policy
from models.spaces import Continuous, Discrete
from models.streams import Draw, NoiseBlocks, Streams

_CONTINUOUS_NOISE = 0.3  # standard deviation of exploration in half-widths of the action range (public code)


class Bounds:
    """The affine map between actions within their bounds and the cube [-1, 1]^A that networks work in."""

    def __init__(self, actions: Continuous):
        low, high = torch.tensor(actions.low), torch.tensor(actions.high)
        self.middle, self.half = (high + low) / 2, (high - low) / 2

    def normalise(self, action: Tensor) -> Tensor:
        return (action - self.middle) / self.half

    def denormalise(self, action: Tensor) -> Tensor:
        return self.middle + self.half * action.clamp(-1.0, 1.0)


class CommandedPolicy(Policy):
    """Actions in E episodes of every member under commands ``[M, E, C]``, which it draws and counts down.

    ``network`` gives logits, or means in the cube of `Bounds`, for an observation and a command. ``sample`` draws
    actions, else the greatest is taken; ``exact`` takes the mean of the commands, and ``given`` replaces some (see
    `Commands.draw`).
    """

    def __init__(
        self,
        network: Callable[[Tensor, Tensor], Tensor],
        commands: Commands,
        actions: Discrete | Continuous,
        envs: int,
        streams: Streams,
        *,
        sample: bool,
        exact: bool,
        given: Mapping[str, float],
    ):
        self.network, self.commands, self.sample, self.members = network, commands, sample, len(streams)
        self.bounds = Bounds(actions) if isinstance(actions, Continuous) else None
        self.command = commands.draw(envs, streams, exact, given)
        self.commanded_returns = commands.returns(self.command)
        draws: list[Draw] = []
        # RCP-A commands a fresh draw at every step (public code).
        if "advantage" in commands.names and not exact and "advantage" not in given:
            draws.append((Streams.normal, {"command": (envs,)}))
        if sample:
            shape = (envs, actions.n if isinstance(actions, Discrete) else actions.size)
            draws.append((Streams.normal if self.bounds else Streams.gumbel, {"action": shape}))
        self.noise = NoiseBlocks(streams, draws)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Actions ``[M, E(, A)]`` for ``obs [M, E, *O]``."""
        noise = self.noise.next()
        if "command" in noise:
            self.commands.redraw_advantage(self.command, noise["command"])
        outputs, strength = self.network(obs, self.command), self.commands.config.action_noise
        if self.bounds is None:
            return (outputs * strength + noise["action"] if self.sample else outputs).argmax(-1)
        if self.sample:
            outputs = outputs + _CONTINUOUS_NOISE * strength * noise["action"]
        return self.bounds.denormalise(outputs)

    def advance(self, reward: Tensor) -> None:
        self.commands.count_down(self.command, reward)
