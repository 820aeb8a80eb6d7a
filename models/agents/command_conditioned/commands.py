"""The distribution of commands during exploration, and the scale of a command as a network input."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from models.agents.command_conditioned.config import Config
from models.memory import EpisodeMemory
from models.streams import Streams

COMMANDS = ("rtg", "cum_rew", "horizon", "advantage")
REACH = 5.0  # automatic scales map the data to about [-5, 5], as the authors' scales do on LunarLander
_CALLED = {"rtg": "return", "cum_rew": "return", "horizon": "horizon", "advantage": "advantage"}  # by users


class Commands(nn.Module):
    """The distribution of each member's next commands, of C numbers called ``names``, in raw units.

    ``mean`` and ``spread [M]`` are the mean and standard deviation of the return or advantage, ``horizon [M]`` is the
    number of steps. The
    reaches ``[M]`` say how large returns, horizons and advantages get; ``scale [M, C]`` is the factor on each command.
    """

    mean: Tensor
    spread: Tensor
    horizon: Tensor
    return_reach: Tensor
    horizon_reach: Tensor
    advantage_reach: Tensor
    scale: Tensor

    def __init__(self, config: Config, members: int, max_return: float | None):
        super().__init__()
        self.config, self.max_return = config, max_return
        self.names = [name for name in COMMANDS if getattr(config, f"desire_{name}")]
        self.column = {name: i for i, name in enumerate(self.names)}
        for name in ("mean", "spread", "horizon", "return_reach", "horizon_reach", "advantage_reach"):
            self.register_buffer(name, torch.zeros(members))
        self.register_buffer("scale", torch.ones(members, len(self.names)))
        self.update_scale()

    def draw(self, envs: int, streams: Streams, exact: bool, overrides: Mapping[str, float]) -> Tensor:
        """Commands ``[M, E, C]`` to begin episodes with. UDRL: return U(M, M + S) and at most the environment's,
        horizon H (paper, section 2.2). RCP: N(mean, spread). ``exact`` takes M, or the mean, itself; ``overrides``
        replaces commands by the names that users know, such as ``{"return": 250.0}``."""
        best = self.config.command_source == "best"
        samples = self.around_mean(streams.uniform(envs) if best else streams.normal(envs), exact)
        if best and self.max_return is not None:
            samples = samples.clamp(max=self.max_return)
        values = dict.fromkeys(COMMANDS, samples) | {"horizon": self.horizon.unsqueeze(1).expand(-1, envs)}
        for name in self.names:
            if _CALLED[name] in overrides:
                values[name] = torch.full_like(samples, overrides[_CALLED[name]])
        return torch.stack([values[name] for name in self.names], dim=-1)

    def around_mean(self, noise: Tensor, exact: bool = False) -> Tensor:
        """Draws of the return or advantage ``[M, E]`` by ``noise [M, E]``."""
        return self.mean.unsqueeze(1) + self.spread.unsqueeze(1) * (torch.zeros_like(noise) if exact else noise)

    def count_down(self, command: Tensor, reward: Tensor) -> None:
        """After a step: the return still wanted less ``reward [M, E]`` (never above the most possible), the horizon
        less 1, never below 1."""
        if self.config.command_source == "best" and "rtg" in self.column:
            rtg = command[..., self.column["rtg"]]
            rtg.sub_(reward)
            if self.max_return is not None:
                rtg.clamp_(max=self.max_return)
        if "horizon" in self.column:
            command[..., self.column["horizon"]].sub_(1).clamp_(min=1)

    def now(self) -> dict[str, Tensor]:
        """Means of the present exploration command by the names that users know, ``[M]`` each."""
        return {_CALLED[name]: (self.horizon if name == "horizon" else self.mean).clone() for name in self.names}

    def by_name(self, command: Tensor) -> dict[str, Tensor]:
        """The parts of ``command [M, E, C]`` by the names that users know, ``[M, E]`` each."""
        return {_CALLED[name]: command[..., column].clone() for name, column in self.column.items()}

    def follow_returns(self, memory: EpisodeMemory, fresh_returns: Tensor, lengths: Tensor) -> None:
        """Mean, spread and horizon of the next commands, from ``fresh_returns`` and ``lengths [M, E]`` of the latest
        episodes and all in memory.

        UDRL: mean, standard deviation and mean length of the `last_few` best episodes in memory (paper, section 2.2).
        RCP-R: maximum and standard deviation of the latest rollouts' discounted returns; length: mean of their 5 best.
        RCP-A's mean and spread come from `follow_advantages`.
        """
        config = self.config
        for m in range(len(lengths)):
            if config.command_source == "best":
                best = sorted(memory.episodes[m], key=lambda episode: -episode.score)[: config.last_few]
                scores = torch.tensor([episode.score for episode in best])
                mean, spread = scores.mean(), scores.std(correction=0)
                horizon = sum(map(len, best)) / len(best)
            else:
                scores = fresh_returns[m]
                mean, spread = scores.max(), scores.std(correction=0)
                horizon = float(lengths[m][scores.topk(min(5, len(scores))).indices].float().mean())
            if config.desire_mu_minus_std:
                mean = mean - spread
            self.horizon[m] = float(round(horizon))
            if not config.desire_advantage:
                self.mean[m], self.spread[m] = mean, spread

    def follow_advantages(self, advantages: Sequence[Tensor]) -> None:
        """Mean and spread of the advantage command from each member's ``advantages [n]`` in memory: the maximum
        (published) or a quantile."""
        config = self.config
        for m, advantage in enumerate(advantages):
            deviation = advantage.std(correction=0)
            if config.advantage_command == "max":
                self.mean[m] = advantage.max()
            else:
                rank = max(1, round(config.advantage_quantile * len(advantage)))
                self.mean[m] = advantage.kthvalue(rank).values
            self.spread[m] = config.advantage_spread * deviation
            self.advantage_reach[m] = 0.5 * REACH * deviation.clamp_min(1e-3)
        self.update_scale()

    def widen(self, discounted: Tensor, returns: Tensor, lengths: Tensor) -> None:
        """Widen the range that automatic scales cover to ``discounted [T, M, E]`` returns-to-go, ``returns`` and
        ``lengths [M, E]``; by powers of two, so that the scales change seldom."""
        largest = torch.maximum(discounted.abs().amax((0, 2)), returns.abs().amax(1))
        for reach, maximum in ((self.return_reach, largest), (self.horizon_reach, lengths.amax(1).float())):
            reach.copy_(torch.maximum(reach, torch.exp2(maximum.clamp_min(1e-3).log2().ceil())))
        self.update_scale()

    def update_scale(self) -> None:
        """Factor on each command: the configured one, or 5 / (reach of the data)."""
        reaches = {"horizon": self.horizon_reach, "advantage": self.advantage_reach}
        for column, name in enumerate(self.names):
            fixed = self.config.horizon_scale if name == "horizon" else self.config.reward_scale
            self.scale[:, column] = fixed or REACH / reaches.get(name, self.return_reach).clamp_min(1e-3)
