"""Tabular Q-learning and SARSA for M members (independent agents, one per seed) in lockstep.

E is the number of environments of each member, S of cells (the states), A of actions. ``flat_parameters [M, S * A]``
has the table of action values of a member in one row.

A step is a dozen operations on a few hundred numbers. An operation takes a microsecond in NumPy and three microseconds
in torch, so the code uses NumPy, on arrays that share memory with torch's tensors.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.agents.tabular.config import Config
from models.contract import Command, GreedyNetwork, InnerAgent, Policy
from models.curiosity import build_curiosity
from models.epsilon import Epsilon
from models.replaying import rates
from models.spaces import Discrete, Spaces
from models.state import require
from models.streams import NoiseBlocks, Streams, integers_below, lockstep_streams
from models.varied import with_varied_values

Array = np.ndarray[Any, Any]

_BLOCK = 512  # steps per block of random numbers, because a call takes as long as a hundred numbers


def sample_config(config: Config, seed: int) -> Config:
    """Return the settings of one agent. With ``vary_hp``, the settings in ``vary`` are uniform in [0.1, 1].

    Source: Ferreira et al. 2022, appendix on varied hyperparameters, for their grid world.
    """
    return with_varied_values(config, seed, lambda u: {"lr": 0.1 + 0.9 * u[0], "discount": 0.1 + 0.9 * u[1]})


class RowLookup:
    """A callable that finds the row of each observation in one table ``[M * S, A]``, the stacked tables of action
    values of all M members."""

    def __init__(self, members: int, num_states: int):
        self.num_states, self.cell_indices = num_states, np.arange(num_states, dtype=np.float32)
        self.first_rows = np.arange(members) * num_states  # [M], the row of each member's cell 0
        # [M * E], repeated for each environment, and kept until the number of environments changes.
        self._repeated_first_rows = self.first_rows

    def __call__(self, obs: Tensor) -> Array:
        """Return the rows ``[M * E]`` int64 of one-hot observations ``obs [M, E, S]``."""
        # The product with 0, 1, 2, ... is several times faster than argmax, and exact: all its terms are integers.
        cells = obs.numpy().reshape(-1, self.num_states) @ self.cell_indices
        if len(self._repeated_first_rows) != len(cells):
            self._repeated_first_rows = self.first_rows.repeat(obs.shape[1])
        rows: Array = cells.astype(np.int64)
        rows += self._repeated_first_rows
        return rows


class NumpyNoiseBlocks(NoiseBlocks):
    """`NoiseBlocks` that returns NumPy arrays ``[M, ...]``."""

    def _split(self) -> dict[str, list[Array]]:
        """Split the current block ``{name: [M, T, ...]}`` by steps, into ``{name: list of T arrays [M, ...]}``."""
        arrays = {name: block.transpose(0, 1).contiguous().numpy() for name, block in self.block.items()}
        return {name: list(array) for name, array in arrays.items()}


def best_actions(values: Array, tie_breakers: Array | None = None) -> Array:
    """Return the best actions ``[N]`` according to ``values [N, A]``. If several are equally good, choose the first one
    or, with ``tie_breakers [N, A]`` (uniform numbers), the one with the largest tie breaker."""
    if tie_breakers is None:
        return values.argmax(1)
    is_best = values == values.max(1, keepdims=True)
    return np.where(is_best, tie_breakers, -1.0).argmax(1)


def _explore_sampler(epsilon: float | None) -> Callable[[Streams, int, int], Tensor]:
    """Return a function for `NoiseBlocks` that samples whether steps explore, bool, with probability ``epsilon``. If
    epsilon changes during training (None), it samples uniform numbers instead. `Agent._explore_in_place` compares them
    with the current epsilon."""
    # Not a method: the agent would refer to itself through `noise`, and remain in memory until garbage collection.
    if epsilon is None:
        return Streams.uniform
    return lambda streams, steps, count: streams.uniform(steps, count) < epsilon


class CurrentStep:
    """State of the current step. It is separate from the agent, because setting attributes of a Module is slow."""

    count = 0  # number of steps so far
    random_numbers: dict[str, Array]
    obs: Tensor | None = None  # the latest argument of `act`
    rows: Array  # rows of `obs` in the table, [M * E]
    # [M * E] each: flat indices in the table of the values to update, rows of next observations, rewards, discounts.
    transitions: tuple[Array, ...]
    done: Array  # [M, E]


class Agent(InnerAgent):
    """Tabular Q-learning or SARSA. E is ``config.num_envs``.

    Every step updates one value: ``Q(s, a) += lr * (r + discount * next - Q(s, a))``. ``next`` is the best value of the
    next cell (Q-learning), or the value of an epsilon-greedy action there (SARSA). It is 0 after termination and, with
    ``truncation_ends``, after truncation. ``intrinsic`` adds a novelty bonus to the reward (`models.curiosity`). The
    steps of several environments are learned one after another. Initial values are 0.

    SARSA has two forms (``backup``). With ``redrawn``, as in the public code of Ferreira et al., the next action is
    sampled only for the update, and the agent samples another one to act. With ``executed``, as in the textbook, the
    agent also executes the action of the update, unless the episode has ended. It is chosen before the update.
    """

    action_kinds = (Discrete,)
    takes_cells_only = True
    per_member = ("seeds", "member_configs", "flat_parameters", "visits", "planned", "episodes", "curiosity", "noise")
    saved = ("visits", "planned", "episodes", "steps", "curiosity", "noise")

    def __init__(self, config: Config, spaces: Spaces, seeds: Sequence[int]):
        super().__init__()
        assert isinstance(spaces.actions, Discrete)
        self.config, self.spaces, self.seeds = config, spaces, list(seeds)
        configs_by_seed = {seed: sample_config(config, seed) for seed in set(seeds)}
        self.member_configs = [configs_by_seed[seed] for seed in seeds]
        self.num_states, self.num_actions = spaces.obs_shape[0], spaces.actions.n
        self.envs = self.updates_per_step = config.num_envs
        shape = (len(seeds), self.num_states * self.num_actions)
        self.flat_parameters = nn.Parameter(torch.zeros(shape), requires_grad=False)
        self.visits = torch.zeros(shape, dtype=torch.int64) if config.count_bonus else None
        self.curiosity = build_curiosity(config, spaces, seeds)
        # Next actions [M, E] that the latest update has chosen; A, the number of actions, if none is chosen.
        self.planned = torch.full((len(seeds), self.envs), self.num_actions) if config.backup == "executed" else None
        self._epsilon = Epsilon(config)
        # SARSA also needs random numbers for the next action.
        prefixes = ("", "next ") if config.backup != "max" else ("",)
        draws: list[Any] = [
            (_explore_sampler(self._epsilon.constant), {f"{prefix}explore": (self.envs,) for prefix in prefixes}),
            (integers_below(self.num_actions), {f"{prefix}action": (self.envs,) for prefix in prefixes}),
        ]
        if config.random_ties:
            draws.append((Streams.uniform, {f"{prefix}ties": (self.envs, self.num_actions) for prefix in prefixes}))
        self.noise = NumpyNoiseBlocks(lockstep_streams(seeds, "exploration"), draws, steps=_BLOCK)
        self.episodes = torch.zeros(len(seeds), dtype=torch.int64)  # number of finished episodes
        self._current = CurrentStep()
        self._prepare()

    def _prepare(self) -> None:
        """Set up the arrays that depend on the members, whenever these change. Forget the latest observation."""
        self._table = self.flat_parameters.numpy().reshape(-1, self.num_actions)  # [M * S, A]
        self._flat_table = self._table.reshape(-1)
        self._row_lookup = RowLookup(self.members, self.num_states)
        self._row_starts = np.arange(self.members) * self.num_actions  # flat indices of the rows of an array [M, A]
        self._lr = np.array([member_config.lr for member_config in self.member_configs], np.float32)
        self._discounts = self.discounts().numpy()
        self._current.obs = None

    @property
    def steps(self) -> int:
        """Number of steps so far in each environment."""
        return self._current.count

    @steps.setter
    def steps(self, steps: int) -> None:
        self._current.count = steps

    def discounts(self) -> Tensor:
        return torch.tensor([member_config.discount for member_config in self.member_configs])

    def greedy_network(self, member: int, command: Command) -> GreedyNetwork:
        """Return the table of a member as a linear network without bias, for an exported file."""
        table = self.flat_parameters[member].detach().view(self.spaces.obs_shape[0], -1)  # [S, A]
        return GreedyNetwork([(table.T, torch.zeros(table.shape[1]))], [], "argmax")

    def begin(self, envs: int, streams: Streams, **_: Any) -> "Greedy":
        """Return the greedy policy. No argument of `Agent.begin` has an effect."""
        return self.with_weights(self.flat_parameters)

    def epsilon(self) -> Tensor:
        """Return the probability of a random action in the current step, ``[M]``."""
        previous_steps = self.steps - 1  # `act` has already counted the current one
        return self._epsilon.current(self.episodes, previous_steps * self.envs, self.budget)

    def _explore_in_place(self, action: Array, prefix: str = "", env: Any = slice(None)) -> None:
        """Replace greedy actions by random ones, in place, in steps that explore. ``action`` is ``[M, E]``, or ``[M]``
        if ``env`` is the index of one environment. ``prefix`` is "" for the action of this step and "next " for the
        next action: the names of the random numbers begin with it."""
        random_numbers = self._current.random_numbers
        explore = random_numbers[prefix + "explore"]  # bool or, if epsilon changes, uniform numbers
        if self._epsilon.constant is None:
            explore = explore < self.epsilon().unsqueeze(1).numpy()
        np.copyto(action, random_numbers[prefix + "action"][:, env], where=explore[:, env])

    def act(self, obs: Tensor) -> Tensor:
        """Begin a step: count it and sample its random numbers. Return actions ``[M, E]`` for ``obs [M, E, S]``. They
        are epsilon-greedy, unless the latest update has ``planned`` an action."""
        current = self._current
        current.count += 1
        current.random_numbers = self.noise.next()  # type: ignore[assignment]  # arrays
        current.obs, current.rows = obs, self._row_lookup(obs)
        ties = current.random_numbers["ties"].reshape(-1, self.num_actions) if self.config.random_ties else None
        greedy_action = best_actions(self._table.take(current.rows, 0), ties)  # [M * E]
        action = greedy_action.reshape(-1, self.envs)
        self._explore_in_place(action)
        if self.planned is not None:
            planned_action = self.planned.numpy()
            is_planned = planned_action < self.num_actions
            np.copyto(action, planned_action, where=is_planned)
        return torch.from_numpy(action)

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        """Store the step for `learn`, with novelty bonuses added to the rewards. Count visits and finished episodes."""
        current = self._current
        rows = current.rows if current.obs is obs else self._row_lookup(obs)  # `act` has looked up its ``obs``
        entries = rows * self.num_actions  # flat indices of Q(s, a)
        entries += action.numpy().reshape(-1)
        rewards, discounts = reward.numpy().reshape(-1), discount.numpy().reshape(-1)
        current.done = done.numpy()
        if self.config.truncation_ends:
            discounts = np.where(current.done.reshape(-1), np.float32(0), discounts)
        if self.visits is not None:
            visits = self.visits.numpy().reshape(-1)  # a view, as ``episodes`` below
            np.add.at(visits, entries, 1)
            # The public code also adds 1e-9.
            rewards = rewards + (self.config.count_bonus / (np.sqrt(visits.take(entries)) + 1e-9)).astype(np.float32)
        if self.curiosity is not None:
            learners = self.learning() if self.config.init_episodes else None
            rewards = rewards + self.curiosity.rewards(obs, action, next_obs, learners).numpy().reshape(-1)
        episodes = self.episodes.numpy()
        for env_done in current.done.T:
            episodes += env_done
        current.transitions = entries, self._row_lookup(next_obs), rewards, discounts

    def learning(self) -> Tensor:
        """Return whether members have played ``init_episodes`` episodes, ``[M]`` bool."""
        return self.episodes >= self.config.init_episodes

    def learn(self) -> Tensor:
        """Update one value for each environment, one after another. Return the loss ``[M]`` in the last environment."""
        transitions = self._current.transitions
        if self.envs == 1:
            return self._update(0, *transitions)
        for env in range(self.envs):
            loss = self._update(env, *(values[env :: self.envs] for values in transitions))  # [M * E] -> [M]
        return loss

    def _update(self, env: int, entries: Array, next_rows: Array, reward: Array, discount: Array) -> Tensor:
        """Update one value of each member, at the flat indices ``entries`` of the table, after a step of environment
        ``env``. Return squared TD errors before the update, NaN until a member learns. All arrays are ``[M]``."""
        next_values = self._table.take(next_rows, 0)  # [M, A]
        next_action = best_actions(next_values) if self.config.backup == "max" else self._next_action(env, next_values)
        next_q = next_values.reshape(-1).take(next_action + self._row_starts)  # the values of ``next_action``, [M]
        old_q = self._flat_table.take(entries)
        td_error = discount * self._discounts * next_q + reward - old_q
        loss = torch.from_numpy(td_error * td_error)
        if self.config.init_episodes:
            learners = self.learning()
            loss.masked_fill_(~learners, torch.nan)
            td_error[~learners.numpy()] = 0
        self._flat_table[entries] = td_error * self._lr + old_q
        return loss

    def _next_action(self, env: int, next_values: Array) -> Array:
        """Return epsilon-greedy next actions ``[M]`` in environment ``env``, according to ``next_values [M, A]``. If
        ``backup`` is "executed", store them in ``planned`` for `act`; if the episode has ended, none is planned."""
        ties = self._current.random_numbers["next ties"][:, env] if self.config.random_ties else None
        action = best_actions(next_values, ties)
        self._explore_in_place(action, "next ", env)
        if self.planned is not None:
            none_planned = self.num_actions
            self.planned.numpy()[:, env] = np.where(self._current.done[:, env], none_planned, action)
        return action

    def count_steps(self, steps: int) -> None:
        """Count ``steps`` steps in each environment, after compiled code has made them."""
        self._current.count += steps
        self._current.obs = None

    def select(self, members: Tensor) -> None:
        super().select(members)
        self._prepare()

    def metrics(self) -> dict[str, Tensor]:
        return {"train/epsilon": self.epsilon(), "train/q_mean": self.flat_parameters.detach().mean(1)}

    def status(self) -> dict[str, Tensor]:
        return {"train/learning_rate": rates(self.member_configs)}

    def values(self, obs: Tensor) -> Tensor:
        """Return the values of all actions, ``obs [M, B, S] -> [M, B, A]``."""
        action_values = self._table[self._row_lookup(obs)]  # [M * B, A]
        return torch.from_numpy(action_values).view(*obs.shape[:2], self.num_actions)

    def with_weights(self, flat_parameters: Tensor) -> "Greedy":
        return Greedy(flat_parameters, self.num_states)

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore the state. Raises StateError if it does not fit, or if an action in ``planned`` does not exist."""
        super().load_training_state(state)
        if self.planned is not None:
            max_action, none_planned = int(self.planned.max()), self.num_actions
            require(max_action <= none_planned, "planned", f"has action {max_action}", f"up to {none_planned}")


class Greedy(Policy):
    """Greedy policy of M tables of action values, ``flat_parameters [M, S * A]``."""

    def __init__(self, flat_parameters: Tensor, num_states: int):
        self.members = len(flat_parameters)
        self.row_lookup = RowLookup(self.members, num_states)
        self.rows = flat_parameters.numpy().reshape(self.members * num_states, -1)  # [M * S, A]

    def moves(self) -> Tensor:
        """Return the best action in each of S cells, ``[M, S]`` int64; the first one if several are equally good."""
        return torch.from_numpy(best_actions(self.rows)).view(self.members, -1)

    def act(self, obs: Tensor) -> Tensor:
        """Return the best actions ``[M, E]`` int64 for ``obs [M, E, S]``; the first one if several are equally good."""
        values = self.rows.take(self.row_lookup(obs), 0)  # [M * E, A]
        return torch.from_numpy(best_actions(values)).view(obs.shape[:2])
