"""Q-learning and SARSA on tables of values, for M members in lock-step."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.agents.tabular.config import Config
from models.contract import InnerAgent, Policy
from models.epsilon import Epsilon
from models.spaces import Discrete, Spaces
from models.state import demand, like
from models.streams import NoiseBlocks, Streams, derive_seed

_BLOCK = 512  # steps whose random numbers are drawn at once; a draw costs as much as a hundred numbers


def draw(config: Config, seed: int) -> Config:
    """The hyperparameters of one agent: what ``vary`` names uniform in [0.1, 1]; ``config`` itself unless ``vary_hp``.

    Source: Ferreira et al. 2022, appendix on varied hyperparameters, of their grid.
    """
    if not config.vary_hp:
        return config
    generator = torch.Generator().manual_seed(derive_seed(seed, "hyperparameters"))
    u = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    drawn = {"lr": 0.1 + 0.9 * u[0], "discount": 0.1 + 0.9 * u[1]}
    return dataclasses.replace(config, **{name: drawn[name] for name in config.vary})  # type: ignore[arg-type]


class Cells:
    """Where the table ``[M * S, A]`` has the row of a one-hot observation: ``obs [M, E, S]`` to ``[M * E]`` int64.

    A product with 0, 1, 2, ... finds the 1 six times faster than the search for a maximum. It is a sum of whole numbers
    and so exact in any order, as long as they are exact in single precision.
    """

    def __init__(self, members: int, states: int):
        self.states, self.exact = states, members * states < 2**24
        self.numbers = torch.arange(states, dtype=torch.float32)
        self.first = torch.arange(members) * states  # the row of each member's cell 0
        self._first = self.first.float()  # [M * E], as last needed

    def __call__(self, obs: Tensor) -> Tensor:
        members, envs, _ = obs.shape
        if not self.exact:
            return (obs.argmax(2) + self.first.unsqueeze(1)).view(-1)
        if len(self._first) != members * envs:
            self._first = self.first.float().repeat_interleave(envs)
        return torch.addmv(self._first, obs.reshape(-1, self.states), self.numbers).long()


def best(values: Tensor, ties: Tensor | None = None) -> Tensor:
    """The best actions ``[N]`` by ``values [N, A]``: of equal ones the first, or the one with the largest of ``ties``
    ``[N, A]``."""
    if ties is None:
        return values.argmax(1)
    return torch.where(values == values.amax(1, keepdim=True), ties, -1.0).argmax(1)


class Agent(InnerAgent):
    """``act / observe / learn``, one step of all members after another. E is ``config.num_envs``.

    Every step moves one value: ``Q(s, a) += lr * (r + discount * next - Q(s, a))``. ``next`` is the best value of the
    next cell (Q-learning), or that of an epsilon-greedy action there (SARSA); it is 0 after termination, and after a
    time limit with ``truncation_ends``. With several environments their steps are taken in one after another. Values
    are 0 at the start.

    The public code of Ferreira et al. draws SARSA's next action for the update alone (``redrawn``); the agent then
    draws another one to act with. ``executed`` is the textbook's: the action of the update is the one taken next,
    unless the episode ended. It is chosen before the update, as there.
    """

    action_kinds = (Discrete,)
    takes_cells_only = True

    def __init__(self, config: Config, spaces: Spaces, seeds: Sequence[int]):
        super().__init__()
        assert isinstance(spaces.actions, Discrete)
        self.config, self.spaces, self.seeds = config, spaces, list(seeds)
        self.own = [draw(config, seed) for seed in seeds]
        self.states, self.actions = spaces.obs_shape[0], spaces.actions.n
        self.envs = self.updates_per_step = config.num_envs
        shape = (len(seeds), self.states * self.actions)
        self.online = nn.Parameter(torch.zeros(shape), requires_grad=False)
        self.visits = torch.zeros(shape, dtype=torch.int64) if config.count_bonus else None
        # [M, E], the action that is taken next; their number where none is chosen yet.
        self.planned = torch.full((len(seeds), self.envs), self.actions) if config.backup == "executed" else None
        self._epsilon = Epsilon(config)
        forms = ("", "next ") if config.backup != "max" else ("",)
        draws: list[Any] = [
            (self._explores, {f"{form}explore": (self.envs,) for form in forms}),
            (self._random_actions, {f"{form}action": (self.envs,) for form in forms}),
        ]
        if config.random_ties:
            draws.append((Streams.uniform, {f"{form}ties": (self.envs, self.actions) for form in forms}))
        self.noise = NoiseBlocks(Streams.named(seeds, "exploration"), draws, steps=_BLOCK)
        self.numbers: dict[str, Tensor] = {}  # of the step under way
        self.episodes = torch.zeros(len(seeds), dtype=torch.int64)  # finished
        self.steps = 0
        self._prepare()

    def _prepare(self) -> None:
        """What follows from the members: views of the table, and their hyperparameters as tensors."""
        self._rows, self._values = self.online.view(-1, self.actions), self.online.view(-1)
        self._cells = Cells(self.members, self.states)
        lr = torch.tensor([own.lr for own in self.own])
        self._lr = None if bool((lr == 1).all()) else lr  # a product with 1 changes nothing
        self._discounts = self.discounts()
        self._acted: tuple[Tensor | None, Tensor | None] = None, None  # the last observations, and their rows

    @staticmethod
    def memory_bytes(config: Config, spaces: Spaces, members: int, steps: int | None, dynamics: Any = None) -> int:
        assert isinstance(spaces.actions, Discrete)
        table = 4 * spaces.obs_shape[0] * spaces.actions.n
        drawn = _BLOCK * config.num_envs * (12 + 8 * spaces.actions.n * config.random_ties)
        return members * (table * (2 + 2 * bool(config.count_bonus)) + drawn)

    def discounts(self) -> Tensor:
        return torch.tensor([own.discount for own in self.own])

    def begin(self, envs: int, streams: Streams, **_: Any) -> "Greedy":
        """Greedy play, which draws nothing."""
        return self.with_weights(self.online)

    def _explores(self, streams: Streams, steps: int, count: int) -> Tensor:
        """Whether steps explore, where epsilon never moves; else the numbers that say so once it is known."""
        uniform, constant = streams.uniform(steps, count), self._epsilon.constant
        return uniform if constant is None else uniform < constant

    def _random_actions(self, streams: Streams, steps: int, count: int) -> Tensor:
        return (streams.uniform(steps, count) * self.actions).to(torch.int64).clamp_(max=self.actions - 1)

    def epsilon(self) -> Tensor:
        """Probability of a random action now, ``[M]``."""
        return self._epsilon.now(self.episodes, (self.steps - 1) * self.envs, self.budget)

    def _explored(self, greedy: Tensor, explore: Tensor, random: Tensor) -> Tensor:
        """``greedy [M, E]``, or ``random`` actions where ``explore`` says so."""
        return torch.where(
            explore if self._epsilon.constant is not None else explore < self.epsilon().unsqueeze(1), random, greedy
        )

    def act(self, obs: Tensor) -> Tensor:
        numbers = self.numbers = self.noise.next()
        self.steps += 1
        rows = self._cells(obs)
        self._acted = obs, rows
        ties = numbers["ties"].flatten(0, 1) if self.config.random_ties else None
        greedy = best(self._rows.index_select(0, rows), ties).view(-1, self.envs)
        action = self._explored(greedy, numbers["explore"], numbers["action"])
        return action if self.planned is None else torch.where(self.planned < self.actions, self.planned, action)

    def observe(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor, done: Tensor
    ) -> None:
        seen, rows = self._acted
        if seen is not obs or rows is None:
            rows = self._cells(obs)
        taken = torch.add(action.reshape(-1), rows, alpha=self.actions)
        if self.config.truncation_ends:
            discount = torch.where(done, 0.0, discount)
        if self.visits is not None:
            visits = self.visits.view(-1)
            visits.index_add_(0, taken, torch.ones_like(taken))
            # The small number is the public code's.
            reward = reward + self.config.count_bonus / (visits.take(taken).sqrt() + 1e-9).view_as(reward)
        self.episodes += done.sum(1)
        self._step = taken, self._cells(next_obs), reward.reshape(-1), discount.reshape(-1)
        self._done = done

    def learning(self) -> Tensor:
        return self.episodes >= self.config.init_episodes

    def learn(self) -> Tensor:
        if self.envs == 1:
            return self._update(0, *self._step)
        for env, step in enumerate(zip(*(part.view(-1, self.envs).unbind(1) for part in self._step), strict=True)):
            loss = self._update(env, *step)
        return loss

    def _update(self, env: int, taken: Tensor, after: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Take in the step of one environment ``[M]``: values at ``taken`` move, rows ``after`` come next."""
        values = self._rows.index_select(0, after)
        later = values.amax(1) if self.config.backup == "max" else self._next_value(env, values)
        error = torch.addcmul(reward, discount * self._discounts, later).sub_(self._values.take(taken))
        loss = error.square()
        if self.config.init_episodes:
            able = self.learning()
            error, loss = torch.where(able, error, 0.0), loss.masked_fill(~able, torch.nan)
        self._values.index_add_(0, taken, error if self._lr is None else error * self._lr)
        return loss

    def _next_value(self, env: int, values: Tensor) -> Tensor:
        """The value ``[M]`` among ``values [M, A]`` of the action that an environment is taken to choose next."""
        at = slice(env, env + 1)
        ties = self.numbers["next ties"][:, env] if self.config.random_ties else None
        explore, random = self.numbers["next explore"][:, at], self.numbers["next action"][:, at]
        action = self._explored(best(values, ties).unsqueeze(1), explore, random)
        if self.planned is not None:
            self.planned[:, at] = torch.where(self._done[:, at], self.actions, action)
        return values.gather(1, action).squeeze(1)

    def select(self, members: Tensor) -> None:
        chosen = members.tolist()
        self.seeds, self.own = [self.seeds[m] for m in chosen], [self.own[m] for m in chosen]
        self.online = nn.Parameter(self.online[members], requires_grad=False)
        self.visits = None if self.visits is None else self.visits[members]
        self.planned = None if self.planned is None else self.planned[members]
        self.episodes = self.episodes[members]
        self.noise.select(members)
        self._prepare()

    def measured(self) -> dict[str, Tensor]:
        return {"train/epsilon": self.epsilon()}

    def values(self, obs: Tensor) -> Tensor:
        """``obs [M, B, S] -> [M, B, A]``."""
        return self._rows[self._cells(obs)].view(*obs.shape[:2], self.actions)

    def with_weights(self, online: Tensor) -> "Greedy":
        return Greedy(online, Cells(len(online), self.states))

    def training_state(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("visits", "planned", "episodes", "steps")}
        return own | {"noise": self.noise.state_dict()}

    def load_training_state(self, state: dict[str, Any]) -> None:
        self.noise.load_state_dict(state["noise"])
        for name in ("visits", "planned", "episodes", "steps"):
            setattr(self, name, like(getattr(self, name), state[name], name))
        if self.planned is not None:
            most = int(self.planned.max())
            demand(most <= self.actions, "planned", f"has action {most}", f"up to {self.actions}")


class Greedy(Policy):
    """Greedy play by tables of values ``[M, S * A]``, without memory."""

    def __init__(self, online: Tensor, cells: Cells):
        self.cells, self.members = cells, len(online)
        self.rows = online.view(self.members * cells.states, -1)

    def moves(self) -> Tensor:
        return best(self.rows).view(self.members, -1)

    def act(self, obs: Tensor) -> Tensor:
        """``obs [M, E, S]`` -> the best actions ``[M, E]`` int64; of equal values the first."""
        return best(self.rows.index_select(0, self.cells(obs))).view(obs.shape[:2])
