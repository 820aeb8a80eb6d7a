"""Tabular Q-learning and SARSA for M members (independent agents, one per seed) in lockstep.

E is the number of environments of each member, S of cells (the states), A of actions. ``flat_parameters [M, S * A]``
has the table of action values of a member in one row.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.agents.tabular.config import Config
from models.contract import Command, GreedyNetwork
from models.epsilon import EpsilonGreedy
from models.spaces import Discrete, Spaces
from models.state import require
from models.streams import Draw, NoiseBlocks, Streams, integers_below, lockstep_streams
from models.varied import uniform_numbers

_BLOCK = 512  # steps per block of random numbers, because a call takes as long as a hundred numbers


def sample_config(config: Config, seed: int) -> Config:
    """Return the settings of the agent with this ``seed``: ``config`` or, with ``vary_hp``, a copy in which the
    learning rate and the discount are uniformly random in [0.1, 1], as far as ``vary`` lists them. Source: Ferreira et
    al. 2022, appendix on varied hyperparameters, for their grid world."""
    if not config.vary_hp:
        return config
    lr_number, discount_number, *_ = uniform_numbers(seed)  # in [0, 1)
    if "lr" in config.vary:
        config = replace(config, lr=0.1 + 0.9 * lr_number)
    if "discount" in config.vary:
        config = replace(config, discount=0.1 + 0.9 * discount_number)
    return config


def look_up_values(flat_parameters: Tensor, obs: Tensor) -> Tensor:
    """Look up the values of all actions, ``[M, B, A]``, for one-hot observations ``obs [M, B, S]`` in the Q tables of M
    members. ``flat_parameters [M, S * A]`` has one table ``[S, A]`` in each row."""
    tables = flat_parameters.unflatten(1, (obs.shape[2], -1))  # [M, S, A]
    members, states = torch.arange(len(tables)).unsqueeze(1), obs.argmax(2)  # [M, 1] and [M, B]
    return tables[members, states]


def best_actions(values: Tensor, tie_breakers: Tensor | None = None) -> Tensor:
    """Return the best actions ``[...]`` according to ``values [..., A]``. If several are equally good, choose the first
    action or, with ``tie_breakers [..., A]`` (uniform numbers), the action with the largest tie breaker."""
    if tie_breakers is None:
        return values.argmax(-1)
    is_best = values == values.amax(-1, keepdim=True)
    return torch.where(is_best, tie_breakers, -1.0).argmax(-1)  # -1 is below all tie breakers


class Step(NamedTuple):
    """A step of all members in E environments, from which `Agent.learn` updates the table."""

    entry: Tensor  # [M, E], index of Q(s, a) in a row of ``flat_parameters``
    next_obs: Tensor  # [M, E, S], one-hot
    reward: Tensor  # [M, E], with novelty bonuses
    discount: Tensor  # [M, E], 0 if the value of the next state does not count, else 1
    done: Tensor  # [M, E] bool, whether the episode has ended


class Agent(EpsilonGreedy):
    """Tabular Q-learning or SARSA. E is ``config.num_envs``.

    Every step updates one value: ``Q(s, a) += lr * (r + discount * next - Q(s, a))``. ``next`` is the best value of the
    next cell (Q-learning), or the value of an epsilon-greedy action there (SARSA). It is 0 after termination and, with
    ``truncation_ends``, after truncation. ``intrinsic`` adds a novelty bonus to the reward (`models.curiosity`). The
    steps of several environments are learned one after another. Initial values are 0.

    SARSA has two forms (``backup``). With ``redrawn``, as in the public code of Ferreira et al., the next action is
    sampled only for the update, and the agent samples another action to act. With ``executed``, as in the textbook, the
    agent also executes the action of the update, unless the episode has ended. It is chosen before the update.
    """

    action_kinds = (Discrete,)
    takes_cells_only = True
    saved = ("visits", "planned", "episodes", "steps", "curiosity", "noise")
    sample_config = staticmethod(sample_config)

    def __init__(self, config: Config, spaces: Spaces, seeds: Sequence[int]):
        super().__init__(config, spaces, seeds)
        self.lr = torch.tensor([member_config.lr for member_config in self.member_configs])
        self.discount = torch.tensor([member_config.discount for member_config in self.member_configs])
        self.num_states, self.num_actions = spaces.obs_shape[0], spaces.action_size
        self.updates_per_step = config.num_envs
        shape = (len(seeds), self.num_states * self.num_actions)
        self.flat_parameters = nn.Parameter(torch.zeros(shape), requires_grad=False)
        self.visits = torch.zeros(shape, dtype=torch.int64) if config.count_bonus else None
        # Next actions [M, E] that the latest update has chosen; A, the number of actions, if none is chosen.
        self.planned = torch.full((len(seeds), self.envs), self.num_actions) if config.backup == "executed" else None
        self.noise = NoiseBlocks(lockstep_streams(seeds, "exploration"), self._noise_draws(), steps=_BLOCK)
        self._step: Step  # the current step, which `observe` stores for `learn`

    def _noise_draws(self) -> list[Draw]:
        """Return samplers, names and shapes of the random numbers that the agent needs in each step. Epsilon-greedy
        actions need ``explore [E]``, ``action [E]`` and, with ``random_ties``, ``ties [E, A]``. SARSA also samples the
        next action of each environment, by ``next_explore``, ``next_action`` and ``next_ties``."""
        explore_shapes, action_shapes = {"explore": (self.envs,)}, {"action": (self.envs,)}
        tie_shapes = {"ties": (self.envs, self.num_actions)}
        if self.config.backup != "max":  # SARSA
            explore_shapes["next_explore"] = action_shapes["next_action"] = (self.envs,)
            tie_shapes["next_ties"] = (self.envs, self.num_actions)
        draws: list[Draw] = [(Streams.uniform, explore_shapes), (integers_below(self.num_actions), action_shapes)]
        if self.config.random_ties:
            draws.append((Streams.uniform, tie_shapes))
        return draws

    def act(self, obs: Tensor) -> Tensor:
        self.steps += 1
        self.random_numbers = self.noise.next()
        action = self._epsilon_greedy(self.values(obs), self.random_numbers)
        if self.planned is not None:
            action = torch.where(self.planned < self.num_actions, self.planned, action)
        return action

    def _epsilon_greedy(self, values: Tensor, random_numbers: dict[str, Tensor], prefix: str = "") -> Tensor:
        """Return epsilon-greedy actions ``[M, B]`` according to ``values [M, B, A]``. The names of their random numbers
        begin with ``prefix``: "" for the action of this step, "next_" for the next action."""
        greedy_action = best_actions(values, random_numbers.get(f"{prefix}ties"))
        explores = random_numbers[f"{prefix}explore"] < self.epsilon().unsqueeze(1)
        return torch.where(explores, random_numbers[f"{prefix}action"], greedy_action)

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        entry = obs.argmax(2) * self.num_actions + action
        if self.config.truncation_ends:
            discount = discount.masked_fill(done, 0.0)
        if self.visits is not None:
            self.visits.scatter_add_(1, entry, torch.ones_like(entry))
            visits = self.visits.gather(1, entry).double()
            reward = reward + (self.config.count_bonus / (visits.sqrt() + 1e-9)).float()  # 1e-9 as in the public code
        if self.curiosity is not None:
            reward = reward + self.curiosity.rewards(obs, action, next_obs, self.learning_members())
        self.episodes += done.sum(1)
        self._step = Step(entry, next_obs, reward, discount, done)

    def learning_members(self) -> Tensor:
        return self.episodes >= self.config.init_episodes

    def learn(self) -> Tensor:
        for env in range(self.envs):
            loss = self._update(env)
        return loss

    def _update(self, env: int) -> Tensor:
        """Update ``Q(s, a)`` by the step in environment ``env``. Return squared errors ``[M]``, NaN without update."""
        only_env = slice(env, env + 1)  # keeps the axis of environments, which then has length 1
        entry, next_obs, reward, discount, done = (tensor[:, only_env] for tensor in self._step)
        next_values = self.values(next_obs)  # [M, 1, A]
        if self.config.backup == "max":  # Q-learning
            next_action = best_actions(next_values)
        else:  # SARSA
            random_numbers = {name: values[:, only_env] for name, values in self.random_numbers.items()}
            next_action = self._epsilon_greedy(next_values, random_numbers, "next_")
            if self.planned is not None:
                self.planned[:, only_env] = torch.where(done, self.num_actions, next_action)  # A: none is planned
        next_q = next_values.gather(2, next_action.unsqueeze(2)).squeeze(2)  # [M, 1]
        old_q = self.flat_parameters.gather(1, entry)
        td_error = discount * self.discount.unsqueeze(1) * next_q + reward - old_q
        new_q = td_error * (self.lr.unsqueeze(1) * self.lr_factor) + old_q
        is_learning = self.learning_members().unsqueeze(1)
        self.flat_parameters.scatter_(1, entry, torch.where(is_learning, new_q, old_q))
        return td_error.square().masked_fill(~is_learning, torch.nan).squeeze(1)

    @property
    def lr_factor(self) -> float:
        """The factor on the learning rates (``anneal_lr``) in the latest step or, before any step, in the first."""
        return self.lr_factor_at(max(0, self.steps - 1))

    def values(self, obs: Tensor) -> Tensor:
        """Return the values of all actions, ``obs [M, B, S] -> [M, B, A]``."""
        return look_up_values(self.flat_parameters, obs)

    def discounts(self) -> Tensor:
        return self.discount

    def metrics(self) -> dict[str, Tensor]:
        return {"train/epsilon": self.epsilon(), "train/q_mean": self.flat_parameters.detach().mean(1)}

    def greedy_network(self, member: int, command: Command) -> GreedyNetwork:
        table = self.flat_parameters[member].detach().view(self.num_states, -1)  # [S, A]
        return GreedyNetwork([(table.T, torch.zeros(table.shape[1]))], [], "argmax")  # linear, without bias

    def policy_actions(self, flat_parameters: Tensor, obs: Tensor, streams: Streams | None) -> Tensor:
        return look_up_values(flat_parameters, obs).argmax(2)

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `training_state`. Raises StateError for a planned action that does not exist."""
        super().load_training_state(state)
        if self.planned is not None:
            largest = int(self.planned.max())  # the number of actions means that none is planned
            require(largest <= self.num_actions, "planned", f"has action {largest}", f"up to {self.num_actions}")
