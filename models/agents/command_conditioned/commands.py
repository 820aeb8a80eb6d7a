"""The distribution of exploration commands, and their scale as inputs of the network.

The *reach* of returns, horizons or advantages is the largest magnitude that they are expected to have.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from models.agents.command_conditioned.config import Config
from models.replay import EpisodeMemory
from models.streams import Streams

# Return-to-go, return of the whole episode, number of remaining steps, advantage, rank of the return-to-go.
COMMANDS = ("rtg", "cum_rew", "horizon", "advantage", "rank")
SCALED_LIMIT = 5.0  # automatic scales map commands to about [-5, 5], as the authors' scales do on LunarLander
_HORIZON_GROUPS = 16  # number of groups of episodes in `Commands.group_returns`
# Names of commands for users, in `models.contract.Command` and in files of policies.
USER_NAMES = {"rtg": "return", "cum_rew": "return", "horizon": "horizon", "advantage": "advantage", "rank": "rank"}


def rank(returns: Tensor, quantiles: Tensor, levels: Tensor) -> Tensor:
    """Return the ranks ``[M, B]`` of ``returns [M, B]`` among ``quantiles [M, B, Q]`` of ascending ``levels [Q]``. The
    rank of a return that equals a quantile is the level of the quantile; between quantiles, ranks are interpolated.
    Below all quantiles, it is half the lowest level, from the highest quantile on the mean of its level and 1."""
    quantiles = quantiles.sort(-1).values  # the outputs of a network need not be ascending
    count = (returns.unsqueeze(-1) >= quantiles).sum(-1)  # number of quantiles that are not above the return
    upper = count.clamp(1, len(levels) - 1)  # index of the quantile above the return
    low = quantiles.gather(-1, (upper - 1).unsqueeze(-1)).squeeze(-1)
    high = quantiles.gather(-1, upper.unsqueeze(-1)).squeeze(-1)
    fraction = (returns - low) / (high - low)
    ranks = levels[upper - 1] + fraction * (levels[upper] - levels[upper - 1])
    ranks = torch.where(count == 0, 0.5 * levels[0], ranks)
    return torch.where(count == len(levels), 0.5 * (1 + levels[-1]), ranks)


def level_weights(levels: Tensor) -> Tensor:
    """Return the weights ``[Q]`` of quantiles of ascending ``levels [Q]`` in an estimate of the mean: the lengths of
    the parts of [0, 1] that are nearest to each level."""
    middles = 0.5 * (levels[1:] + levels[:-1])
    return torch.cat([torch.zeros(1), middles, torch.ones(1)]).diff()


class Commands(nn.Module):
    """The distribution of each member's next commands. A command is C numbers in raw units; ``names`` are their names,
    from `COMMANDS`, and ``column`` maps a name to its index. ``max_return`` is the largest possible return, if known.
    """

    def __init__(self, config: Config, members: int, max_return: float | None):
        super().__init__()
        self.config, self.max_return = config, max_return
        self.names = [name for name in COMMANDS if getattr(config, f"desire_{name}")]
        self.column = {name: i for i, name in enumerate(self.names)}
        # [C], a command's value that the network receives as 0: the middle of the ranks.
        self.center = torch.tensor([0.5 if name == "rank" else 0.0 for name in self.names])
        # A step lowers a command by ``fall_per_step`` and by ``fall_per_reward`` times the reward, but keeps it between
        # ``smallest`` and ``largest``. All are [C].
        count, limit = len(self.names), torch.finfo(torch.float32).max
        self.fall_per_step, self.fall_per_reward = torch.zeros(count), torch.zeros(count)
        self.smallest, self.largest = torch.full((count,), -limit), torch.full((count,), limit)
        if config.desire_horizon:
            self.fall_per_step[self.column["horizon"]] = 1.0
            self.smallest[self.column["horizon"]] = 1.0
        if config.desire_rtg and config.command_source == "best":
            self.fall_per_reward[self.column["rtg"]] = 1.0
            self.largest[self.column["rtg"]] = limit if max_return is None else max_return
        self.mean = nn.Buffer(torch.zeros(members))  # mean of the commanded return or advantage
        self.spread = nn.Buffer(torch.zeros(members))  # spread of the commanded return or advantage
        self.horizon = nn.Buffer(torch.zeros(members))  # commanded number of steps
        self.return_reach = nn.Buffer(torch.zeros(members))  # the reaches determine automatic scales
        self.horizon_reach = nn.Buffer(torch.zeros(members))
        self.advantage_reach = nn.Buffer(torch.zeros(members))
        self.scale = nn.Buffer(torch.ones(members, len(self.names)))  # factors on commands as inputs of the network
        # Mean returns and mean lengths of groups of episodes in memory, which are sorted by their return.
        self.group_returns = nn.Buffer(torch.zeros(members, _HORIZON_GROUPS))
        self.group_lengths = nn.Buffer(torch.zeros(members, _HORIZON_GROUPS))
        self.update_scale()

    def sample(self, envs: int, streams: Streams, at_mean: bool, overrides: Mapping[str, float]) -> Tensor:
        """Sample the commands ``[M, E, C]`` at the start of E = ``envs`` episodes.

        UDRL: the return is U(mean, mean + spread), at most ``max_return`` (paper, section 2.2). RCP: the return or
        advantage is N(mean, spread). The horizon is ``horizon``. Ranks are U(0, rank_min) with probability
        ``rank_low_share``, otherwise U(rank_min, rank_max).

        If ``at_mean``, returns and advantages are the mean itself, and ranks are ``eval_rank``. ``overrides`` replaces
        commands, by their names for users: ``{"return": 250.0}``. If it has a return, the horizon is the usual length
        of episodes with about this return (`matching_horizon`).
        """
        is_udrl = self.config.command_source == "best"
        noise = streams.uniform(envs) if is_udrl else streams.normal(envs)
        if at_mean:
            noise = torch.zeros_like(noise)
        samples = self.sample_value(noise)  # returns or advantages
        if is_udrl and self.max_return is not None:
            samples = samples.clamp(max=self.max_return)
        horizon = self.matching_horizon(overrides["return"]) if "return" in overrides else self.horizon
        values = dict.fromkeys(COMMANDS, samples)  # horizon and rank are replaced
        values["horizon"] = horizon.unsqueeze(1).expand(-1, envs)
        if "rank" in self.column:
            ranks = self._sample_ranks(envs, streams)
            values["rank"] = torch.full_like(ranks, self.config.eval_rank) if at_mean else ranks
        for name in self.names:
            user_name = USER_NAMES[name]
            if user_name in overrides:
                values[name] = torch.full_like(samples, overrides[user_name])
        return torch.stack([values[name] for name in self.names], dim=-1)

    def _sample_ranks(self, envs: int, streams: Streams) -> Tensor:
        """Sample commanded ranks ``[M, envs]``: U(0, rank_min) with probability ``rank_low_share``, otherwise
        U(rank_min, rank_max). One uniform number chooses both whether a rank is low and the rank."""
        rank_min, rank_max, low_share = self.config.rank_min, self.config.rank_max, self.config.rank_low_share
        uniform = streams.uniform(envs)
        # Numbers from ``low_share`` to 1 are stretched to [0, 1), and so are the numbers below it.
        usual_ranks = rank_min + (rank_max - rank_min) * (uniform - low_share) / (1 - low_share)
        low_ranks = rank_min * uniform / max(low_share, 1e-6)  # 1e-6 avoids a division by 0
        return torch.where(uniform < low_share, low_ranks, usual_ranks)

    def member_commands(self, member: int, overrides: Mapping[str, float]) -> dict[str, Tensor]:
        """Return the parameters ``{name for users: [7]}`` of one member's commands, for an exported file: the mean of
        a command at the start of an episode, then the parameters by which it is counted down and scaled, in the order
        of `understudy.policy.COMMAND_ROWS`. ``overrides``, such as ``{"return": 250.0}``, replace means."""
        streams = Streams([0] * len(self.mean))  # any seeds, because the mean uses no random numbers
        start = self.sample(1, streams, at_mean=True, overrides=overrides)[member, 0]  # [C]
        count_down = [self.fall_per_step, self.fall_per_reward, self.smallest, self.largest]
        columns = torch.stack([start, *count_down, self.center, self.scale[member]], 1)  # [C, 7]
        return {USER_NAMES[name]: parameters for name, parameters in zip(self.names, columns, strict=True)}

    def sample_value(self, noise: Tensor) -> Tensor:
        """Return commanded returns or advantages ``mean + spread * noise``, ``[M, E] -> [M, E]``."""
        return self.mean.unsqueeze(1) + self.spread.unsqueeze(1) * noise

    def count_down(self, command: Tensor, reward: Tensor) -> None:
        """Lower ``command [M, E, C]`` in place after a step: a horizon by 1, a return-to-go by ``reward [M, E]``."""
        command.sub_(self.fall_per_step + self.fall_per_reward * reward.unsqueeze(-1))
        command.clamp_(self.smallest, self.largest)

    def means(self) -> dict[str, Tensor]:
        """Return the mean of the current exploration commands, ``{name for users: [M]}``; for ranks, ``eval_rank``."""
        eval_rank = torch.full_like(self.mean, self.config.eval_rank)
        means = dict.fromkeys(COMMANDS, self.mean) | {"horizon": self.horizon, "rank": eval_rank}
        return {USER_NAMES[name]: means[name].clone() for name in self.names}

    def network_inputs(self, command: Tensor) -> Tensor:
        """Center and scale ``command [M, B, C]``, so that it can be an input of the network."""
        return (command - self.center) * self.scale.unsqueeze(1)

    def update_from_returns(self, memory: EpisodeMemory, new_returns: Tensor, lengths: Tensor) -> None:
        """Update mean, spread and horizon of the next commands after new episodes, which are in ``memory`` already.
        ``new_returns [M, E]`` are the discounted returns of the new episodes, ``lengths [M, E]`` their numbers of
        steps.

        UDRL: mean and spread are the mean and the standard deviation of the returns of the ``last_few`` best episodes
        in memory, and the horizon is the mean length of these episodes (paper, section 2.2). RCP-R: mean and spread are
        the maximum and the standard deviation of ``new_returns``, and the horizon is the mean length of the 5 best new
        episodes. With recorded episodes alone, all of them count as new. RCP-A: the horizon is as for RCP-R,
        but `update_from_advantages` sets mean and spread.
        """
        config = self.config
        for m, episodes in enumerate(memory.episodes):
            if config.command_source == "best":  # UDRL
                best = sorted(episodes, key=lambda episode: -episode.score)[: config.last_few]
                returns = torch.tensor([episode.score for episode in best])
                mean = returns.mean()
                horizon = sum(map(len, best)) / len(best)
            else:  # RCP
                returns, episode_lengths = new_returns[m], lengths[m]
                if config.is_offline:  # a recording is read in parts
                    returns = torch.stack([episode.extras["return"] for episode in episodes])
                    episode_lengths = torch.tensor([len(episode) for episode in episodes])
                mean = returns.max()
                best_episodes = returns.topk(min(5, len(returns))).indices
                horizon = float(episode_lengths[best_episodes].float().mean())
            spread = returns.std(correction=0)
            if config.desire_mu_minus_std:
                mean = mean - spread
            self.horizon[m] = float(round(horizon))
            if not config.desire_advantage:
                self.mean[m], self.spread[m] = mean, spread

    def update_groups(self, member: int, returns: Tensor, lengths: Tensor) -> None:
        """Update the table of usual episode lengths by return, for `matching_horizon`: sort the N episodes in memory of
        a ``member`` into groups of similar ``returns [N]``, and take means of returns and ``lengths [N]`` per group."""
        order = returns.argsort()
        # A pass also fills the later groups, which later passes overwrite. So with fewer episodes than groups, the
        # remaining groups repeat the last group.
        for group, episodes in enumerate(order.tensor_split(min(_HORIZON_GROUPS, len(order)))):
            self.group_returns[member, group:] = returns[episodes].mean()
            self.group_lengths[member, group:] = lengths[episodes].mean()

    def matching_horizon(self, commanded_return: float) -> Tensor:
        """Return the mean length ``[M]`` of episodes in memory whose return is about ``commanded_return``. It is
        interpolated between groups of episodes with similar returns (`update_groups`)."""
        horizons = []
        for group_returns, group_lengths in zip(self.group_returns.numpy(), self.group_lengths.numpy(), strict=True):
            # Merge groups of equal returns, because `numpy.interp` needs increasing returns.
            returns, groups = np.unique(group_returns, return_inverse=True)
            mean_lengths = np.bincount(groups, group_lengths) / np.bincount(groups)
            horizons.append(max(1, round(np.interp(commanded_return, returns, mean_lengths))))
        return torch.tensor(horizons, dtype=torch.float32)

    def update_from_advantages(self, advantages: Sequence[Tensor]) -> None:
        """Update mean, spread and scale of the advantage command from the ``advantages [n]`` of each member's n steps
        in memory. The mean is the largest of them (Kumar et al. 2019) or a quantile."""
        config = self.config
        for m, advantage in enumerate(advantages):
            std = advantage.std(correction=0)
            if config.advantage_command == "max":
                self.mean[m] = advantage.max()
            else:
                position = max(1, round(config.advantage_quantile * len(advantage)))  # 1: the smallest advantage
                self.mean[m] = advantage.kthvalue(position).values
            self.spread[m] = config.advantage_spread * std
            # With this reach, the automatic scale, SCALED_LIMIT / reach, is 2 / std.
            self.advantage_reach[m] = 0.5 * SCALED_LIMIT * std.clamp_min(1e-3)
        self.update_scale()

    def widen_scales(self, returns_to_go: Tensor, returns: Tensor, lengths: Tensor) -> None:
        """Increase the reaches, the largest expected magnitudes of returns and horizons, if needed to include new
        ``returns_to_go [T, M, E]``, ``returns [M, E]`` and ``lengths [M, E]``. Update the scale of commands."""
        max_return = torch.maximum(returns_to_go.abs().amax((0, 2)), returns.abs().amax(1))
        max_length = lengths.amax(1).float()
        # Reaches are powers of two, so that the scales seldom change.
        for reach, maximum in ((self.return_reach, max_return), (self.horizon_reach, max_length)):
            next_power_of_two = torch.exp2(maximum.clamp_min(1e-3).log2().ceil())
            reach.copy_(torch.maximum(reach, next_power_of_two))
        self.update_scale()

    def update_scale(self) -> None:
        """Set ``scale [M, C]``, the factors on commands as inputs of the network: ``horizon_scale`` or
        ``reward_scale``, if set, otherwise `SCALED_LIMIT` / reach (the largest expected magnitude, 1 for ranks)."""
        reaches = {"horizon": self.horizon_reach, "advantage": self.advantage_reach}
        for column, name in enumerate(self.names):
            fixed_scale = self.config.horizon_scale if name == "horizon" else self.config.reward_scale
            if name == "rank":
                self.scale[:, column] = SCALED_LIMIT
            elif fixed_scale is not None:
                self.scale[:, column] = fixed_scale
            else:
                reach = reaches.get(name, self.return_reach)
                self.scale[:, column] = SCALED_LIMIT / reach.clamp_min(1e-3)
