"""Tabular Q-learning and SARSA for M members in lockstep.

A step is a dozen operations on a few hundred numbers. An operation takes a microsecond in NumPy and three in torch, so
the code uses NumPy, on arrays that share memory with torch's tensors.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.agents.tabular.config import Config
from models.contract import InnerAgent, Policy
from models.curiosity import build_curiosity
from models.epsilon import Epsilon
from models.replaying import rates
from models.spaces import Discrete, Spaces
from models.state import check_like, require
from models.streams import NoiseBlocks, Streams, integers_below, lockstep_streams, uniforms
from models.varied import with_varied_values

Array = np.ndarray[Any, Any]

_BLOCK = 512  # steps per block of random numbers; a call to sample costs as much as a hundred numbers


def sample_actions(config: Config, seed: int) -> Config:
    """Return the hyperparameters of one agent. With ``vary_hp``, the settings in ``vary`` are uniform in [0.1, 1].

    Source: Ferreira et al. 2022, appendix on varied hyperparameters, for their grid world.
    """
    return with_varied_values(config, seed, lambda u: {"lr": 0.1 + 0.9 * u[0], "discount": 0.1 + 0.9 * u[1]})


class Cells:
    """A function from one-hot observations ``[M, E, S]`` to their rows ``[M * E]`` in a table ``[M * S, A]``.

    A product with 0, 1, 2, ... is several times faster than argmax. It is a sum of integers, so it is exact in any
    order.
    """

    def __init__(self, members: int, states: int):
        self.states, self.cell_indices = states, np.arange(states, dtype=np.float32)
        self.first = np.arange(members) * states  # [M], the row of each member's cell 0
        self._first = self.first  # the same, repeated to [M * E] at the latest call

    def __call__(self, obs: Tensor) -> Array:
        cells = obs.numpy().reshape(-1, self.states) @ self.cell_indices
        if len(self._first) != len(cells):
            self._first = self.first.repeat(obs.shape[1])
        rows: Array = cells.astype(np.int64)
        rows += self._first
        return rows


class Numbers(NoiseBlocks):
    """`NoiseBlocks` that returns NumPy arrays ``[M, ...]``."""

    def _split(self) -> dict[str, list[Array]]:
        arrays = {name: block.transpose(0, 1).contiguous().numpy() for name, block in self.block.items()}
        return {name: list(array) for name, array in arrays.items()}


def best(values: Array, ties: Array | None = None) -> Array:
    """Return the best actions ``[N]`` according to ``values [N, A]``. If several are equal, choose the first, or the
    one with the largest of ``ties [N, A]``, uniform numbers."""
    if ties is None:
        return values.argmax(1)
    return np.where(values == values.max(1, keepdims=True), ties, -1.0).argmax(1)


def _exploring(epsilon: float | None) -> Callable[[Streams, int, int], Tensor]:
    """Return a function that samples for `NoiseBlocks` whether steps explore, bool, with a constant ``epsilon``. If
    epsilon changes (None), the function samples uniform numbers, to be compared with it later."""
    # Not a method of the agent: by a reference cycle, the agent and its table would remain until garbage collection.
    if epsilon is None:
        return uniforms
    return lambda streams, steps, count: streams.uniform(steps, count) < epsilon


class Now:
    """State of the current step. It is separate from the agent, because setting attributes of a Module is slow."""

    count = 0  # number of steps so far
    random_numbers: dict[str, Array]
    obs: Tensor | None = None  # the latest argument of `act`
    rows: Array  # rows of `obs` in the table, [M * E]
    parts: tuple[Array, ...]  # updated entries, next rows, rewards, discounts: [M * E] each
    done: Array  # [M, E]


class Agent(InnerAgent):
    """Tabular Q-learning or SARSA. E is ``config.num_envs``.

    Every step updates one value: ``Q(s, a) += lr * (r + discount * next - Q(s, a))``. ``next`` is the best value of the
    next cell (Q-learning), or the value of an epsilon-greedy action there (SARSA). It is 0 after termination and, with
    ``truncation_ends``, after truncation. ``intrinsic`` adds a novelty bonus to the reward (`models.curiosity`). The
    steps of several environments are learned one after another. Initial values are 0.

    SARSA has two forms (``backup``). ``redrawn``, as in the public code of Ferreira et al.: the next action is sampled
    for the update alone, and the agent samples another one to act. ``executed``, as in the textbook: the agent also
    executes the action of the update, unless the episode has ended. This action is chosen before the update.
    """

    action_kinds = (Discrete,)
    takes_cells_only = True

    def __init__(self, config: Config, spaces: Spaces, seeds: Sequence[int]):
        super().__init__()
        assert isinstance(spaces.actions, Discrete)
        self.config, self.spaces, self.seeds = config, spaces, list(seeds)
        configs_by_seed = {seed: sample_actions(config, seed) for seed in set(seeds)}
        self.member_configs = [configs_by_seed[seed] for seed in seeds]
        self.states, self.actions = spaces.obs_shape[0], spaces.actions.n
        self.envs = self.updates_per_step = config.num_envs
        shape = (len(seeds), self.states * self.actions)
        self.flat_parameters = nn.Parameter(torch.zeros(shape), requires_grad=False)
        self.visits = torch.zeros(shape, dtype=torch.int64) if config.count_bonus else None
        self.curiosity = build_curiosity(config, spaces, seeds)
        # [M, E], the next action; A if none is chosen yet.
        self.planned = torch.full((len(seeds), self.envs), self.actions) if config.backup == "executed" else None
        self._epsilon = Epsilon(config)
        forms = ("", "next ") if config.backup != "max" else ("",)
        draws: list[Any] = [
            (_exploring(self._epsilon.constant), {f"{form}explore": (self.envs,) for form in forms}),
            (integers_below(self.actions), {f"{form}action": (self.envs,) for form in forms}),
        ]
        if config.random_ties:
            draws.append((Streams.uniform, {f"{form}ties": (self.envs, self.actions) for form in forms}))
        self.noise = Numbers(lockstep_streams(seeds, "exploration"), draws, steps=_BLOCK)
        self.episodes = torch.zeros(len(seeds), dtype=torch.int64)  # number of finished episodes
        self._now = Now()
        self._prepare()

    def _prepare(self) -> None:
        """Set up arrays whose sizes depend on the members."""
        self._rows = self.flat_parameters.numpy().reshape(-1, self.actions)  # [M * S, A]
        self._values = self._rows.reshape(-1)
        self._cells = Cells(self.members, self.states)
        self._among = np.arange(self.members) * self.actions  # first flat index of each row in an array [M, A]
        self._lr = np.array([member_config.lr for member_config in self.member_configs], np.float32)
        self._discounts = self.discounts().numpy()
        self._now.obs = None

    @property
    def steps(self) -> int:
        """Number of steps so far in each environment."""
        return self._now.count

    def discounts(self) -> Tensor:
        return torch.tensor([member_config.discount for member_config in self.member_configs])

    def begin(self, envs: int, streams: Streams, **_: Any) -> "Greedy":
        """Return the greedy policy; ``sample`` has no effect."""
        return self.with_weights(self.flat_parameters)

    def epsilon(self) -> Tensor:
        """Return the current probability of a random action, ``[M]``."""
        return self._epsilon.current(self.episodes, (self.steps - 1) * self.envs, self.budget)

    def _explore(self, greedy: Array, form: str = "", at: Any = slice(None)) -> None:
        """Replace actions in ``greedy [M, E]`` by random ones at steps that explore. If ``at`` is the index of an
        environment, ``greedy`` is ``[M]``. ``form`` is the prefix of the random numbers' names: "" or "next "."""
        random_numbers = self._now.random_numbers
        explore = random_numbers[form + "explore"]
        if self._epsilon.constant is None:
            explore = explore < self.epsilon().unsqueeze(1).numpy()
        np.copyto(greedy, random_numbers[form + "action"][:, at], where=explore[:, at])

    def act(self, obs: Tensor) -> Tensor:
        now = self._now
        now.count += 1
        now.random_numbers = self.noise.next()  # type: ignore[assignment]  # arrays
        now.obs, now.rows = obs, self._cells(obs)
        ties = now.random_numbers["ties"].reshape(-1, self.actions) if self.config.random_ties else None
        action = best(self._rows.take(now.rows, 0), ties).reshape(-1, self.envs)
        self._explore(action)
        if self.planned is not None:
            planned = self.planned.numpy()
            np.copyto(action, planned, where=planned < self.actions)
        return torch.from_numpy(action)

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        now = self._now
        rows = now.rows if now.obs is obs else self._cells(obs)
        entries = rows * self.actions
        entries += action.numpy().reshape(-1)
        rewards, discounts, now.done = reward.numpy().reshape(-1), discount.numpy().reshape(-1), done.numpy()
        if self.config.truncation_ends:
            discounts = np.where(now.done.reshape(-1), np.float32(0), discounts)
        if self.visits is not None:
            visits = self.visits.numpy().reshape(-1)
            np.add.at(visits, entries, 1)
            # The public code also adds 1e-9.
            rewards = rewards + (self.config.count_bonus / (np.sqrt(visits.take(entries)) + 1e-9)).astype(np.float32)
        if self.curiosity is not None:
            learners = self.learning() if self.config.init_episodes else None
            rewards = rewards + self.curiosity.rewards(obs, action, next_obs, learners).numpy().reshape(-1)
        episodes = self.episodes.numpy()
        for env_done in now.done.T:
            episodes += env_done
        now.parts = entries, self._cells(next_obs), rewards, discounts

    def learning(self) -> Tensor:
        return self.episodes >= self.config.init_episodes

    def learn(self) -> Tensor:
        parts = self._now.parts
        if self.envs == 1:
            return self._update(0, *parts)
        for env in range(self.envs):
            loss = self._update(env, *(part[env :: self.envs] for part in parts))
        return loss

    def _update(self, env: int, entries: Array, next_rows: Array, reward: Array, discount: Array) -> Tensor:
        """Update the values at ``entries`` after a step of environment ``env``. Arrays are ``[M]``. Return the loss."""
        values = self._rows.take(next_rows, 0)
        action = best(values) if self.config.backup == "max" else self._next_action(env, values)
        action += self._among
        error = discount * self._discounts
        old = self._values.take(entries)
        error *= values.reshape(-1).take(action)
        error += reward
        error -= old
        loss = torch.from_numpy(error * error)
        if self.config.init_episodes:
            learners = self.learning()
            loss.masked_fill_(~learners, torch.nan)
            error[~learners.numpy()] = 0
        error *= self._lr
        error += old
        self._values[entries] = error
        return loss

    def _next_action(self, env: int, values: Array) -> Array:
        """Return epsilon-greedy next actions ``[M]`` in environment ``env``, according to ``values [M, A]``."""
        ties = self._now.random_numbers["next ties"][:, env] if self.config.random_ties else None
        action = best(values, ties)
        self._explore(action, "next ", env)
        if self.planned is not None:
            self.planned.numpy()[:, env] = np.where(self._now.done[:, env], self.actions, action)
        return action

    def count_steps(self, steps: int) -> None:
        """Count ``steps`` steps in each environment, after compiled code has made them."""
        self._now.count += steps
        self._now.obs = None

    def select(self, members: Tensor) -> None:
        member_indices = members.tolist()
        self.seeds, self.member_configs = (
            [self.seeds[m] for m in member_indices],
            [self.member_configs[m] for m in member_indices],
        )
        self.flat_parameters = nn.Parameter(self.flat_parameters[members], requires_grad=False)
        self.visits = None if self.visits is None else self.visits[members]
        self.planned = None if self.planned is None else self.planned[members]
        self.episodes = self.episodes[members]
        if self.curiosity is not None:
            self.curiosity.select(members)
        self.noise.select(members)
        self._prepare()

    def metrics(self) -> dict[str, Tensor]:
        return {"train/epsilon": self.epsilon(), "train/q_mean": self.flat_parameters.detach().mean(1)}

    def status(self) -> dict[str, Tensor]:
        return {"train/learning_rate": rates(self.member_configs)}

    def values(self, obs: Tensor) -> Tensor:
        """Return action values, ``obs [M, B, S] -> [M, B, A]``."""
        return torch.from_numpy(self._rows[self._cells(obs)]).view(*obs.shape[:2], self.actions)

    def with_weights(self, flat_parameters: Tensor) -> "Greedy":
        return Greedy(flat_parameters, self.states)

    def training_state(self) -> dict[str, Any]:
        saved_attributes = {name: getattr(self, name) for name in ("visits", "planned", "episodes", "steps")}
        curious = None if self.curiosity is None else self.curiosity.state_dict()
        return saved_attributes | {"noise": self.noise.state_dict(), "curiosity": curious}

    def load_training_state(self, state: dict[str, Any]) -> None:
        self.noise.load_state_dict(state["noise"])
        for name in ("visits", "planned", "episodes"):
            setattr(self, name, check_like(getattr(self, name), state[name], name))
        if self.curiosity is not None:
            self.curiosity.load_state_dict(state["curiosity"])
        self._now.count = check_like(self.steps, state["steps"], "steps")
        if self.planned is not None:
            max_action = int(self.planned.max())
            require(max_action <= self.actions, "planned", f"has action {max_action}", f"up to {self.actions}")


class Greedy(Policy):
    """Greedy policy of M tables of action values, ``flat_parameters [M, S * A]``."""

    def __init__(self, flat_parameters: Tensor, states: int):
        self.members, self.cells = len(flat_parameters), Cells(len(flat_parameters), states)
        self.rows = flat_parameters.numpy().reshape(self.members * states, -1)

    def moves(self) -> Tensor:
        return torch.from_numpy(best(self.rows)).view(self.members, -1)

    def act(self, obs: Tensor) -> Tensor:
        """Return the best actions ``[M, E]`` int64 for ``obs [M, E, S]``; the first of several equal ones."""
        return torch.from_numpy(best(self.rows.take(self.cells(obs), 0))).view(obs.shape[:2])
