"""Episode memory: whole episodes of each member, the best or the latest, sampled step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.streams import Streams

_FIRST_SLOTS = 4096


@dataclass
class Episode:
    """Where an episode's steps lie (``slots [L]`` int64), what it scored, and what belongs to it as a whole."""

    slots: Tensor
    score: float
    extras: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.slots)


class NewEpisode(NamedTuple):
    """An episode to remember: ``steps {name: [L, ...]}``, the score it is kept by, and what belongs to it as a
    whole."""

    steps: Mapping[str, Tensor]
    score: float
    extras: dict[str, Tensor]


class EpisodeMemory:
    """Steps of all members in slots ``[M, N, ...]``; an episode is a list of slots, so nothing is moved when one
    leaves.

    ``order`` "sorted" keeps the episodes of highest score, best first; "recent" keeps the latest, latest first.
    ``capacity`` counts steps or episodes (``unit``). Whole episodes leave; one episode always stays, however long.
    Storage starts small and doubles.
    """

    def __init__(self, members: int, capacity: int, unit: str = "steps", order: str = "sorted"):
        self.members, self.capacity, self.unit, self.order = members, capacity, unit, order
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.fields: dict[str, Tensor] = {}
        self.episodes: list[list[Episode]] = [[] for _ in range(self.members)]
        self._free = [torch.empty(0, dtype=torch.int64) for _ in range(self.members)]
        self._index: list[Tensor | None] = [None] * self.members

    def add(self, member: int, batch: Sequence[NewEpisode]) -> None:
        """Insert episodes of one member, the oldest first, and let go what no longer fits."""
        new = [(Episode(torch.empty(len(next(iter(steps.values()))), dtype=torch.int64), score, extras), steps)
               for steps, score, extras in batch]  # fmt: skip
        merged = [episode for episode, _ in reversed(new)] + self.episodes[member]
        if self.order == "sorted":
            merged.sort(key=lambda episode: -episode.score)
        kept = self._fitting(merged)
        staying = {id(episode) for episode in kept}
        gone = [episode.slots for episode in self.episodes[member] if id(episode) not in staying]
        self._free[member] = torch.cat([self._free[member], *gone])
        self.episodes[member] = kept
        self._index[member] = None
        for episode, steps in new:
            if id(episode) in staying:
                episode.slots = self._take(member, len(episode), steps)
                for name, values in steps.items():
                    self.fields[name][member].index_copy_(0, episode.slots, values)

    def _fitting(self, episodes: list[Episode]) -> list[Episode]:
        if self.unit == "episodes":
            return episodes[: self.capacity]
        total = 0
        for kept, episode in enumerate(episodes):
            total += len(episode)
            if total > self.capacity and kept > 0:
                return episodes[:kept]
        return episodes

    def _take(self, member: int, count: int, like: Mapping[str, Tensor]) -> Tensor:
        if not self.fields:
            self.fields = {
                name: torch.zeros(self.members, 0, *value.shape[1:], dtype=value.dtype) for name, value in like.items()
            }
        while len(self._free[member]) < count:
            self._grow()
        slots, self._free[member] = self._free[member][:count], self._free[member][count:]
        return slots

    def _grow(self) -> None:
        old = self._slots
        new = max(_FIRST_SLOTS, 2 * old)
        for name, values in self.fields.items():
            grown = torch.zeros(self.members, new, *values.shape[2:], dtype=values.dtype)
            grown[:, :old] = values
            self.fields[name] = grown
        self._free = [torch.cat([free, torch.arange(old, new)]) for free in self._free]

    def steps(self, member: int) -> int:
        """Steps of a member's episodes in memory."""
        return sum(map(len, self.episodes[member]))

    def scores(self, member: int) -> list[float]:
        """Scores in the order of the memory: best first, or latest first."""
        return [episode.score for episode in self.episodes[member]]

    def index(self, member: int) -> Tensor:
        """The slots of all steps of a member, episode after episode, ``[steps]``."""
        index = self._index[member]
        if index is None:
            index = self._index[member] = torch.cat([episode.slots for episode in self.episodes[member]])
        return index

    def sample(self, streams: Streams, updates: int, batch: int, by: str = "step") -> Tensor:
        """Slots of `updates` batches drawn with replacement, ``[updates, M, B]``.

        ``by`` "step": every step equally likely, so that long episodes weigh more (the public code); "episode": first
        an episode, then a step of it (the paper, algorithm 2).
        """
        drawn = []
        if by == "step":
            places = streams.integers([self.steps(m) for m in range(self.members)], updates, batch)
            drawn = [self.index(m)[places[m]] for m in range(self.members)]
        else:
            which = streams.integers([len(episodes) for episodes in self.episodes], updates, batch)
            where = streams.uniform(updates, batch)
            for m in range(self.members):
                lengths = torch.tensor([len(episode) for episode in self.episodes[m]])
                length, start = lengths[which[m]], (lengths.cumsum(0) - lengths)[which[m]]
                offset = (where[m] * length).long().minimum(length - 1)
                drawn.append(self.index(m)[start + offset])
        return torch.stack(drawn, dim=1)

    def gather(self, slots: Tensor, names: Sequence[str]) -> list[Tensor]:
        """The steps in ``slots [M, B]``: one ``[M, B, ...]`` a name."""
        if self.members == 1:
            return [self.fields[name][0].index_select(0, slots[0]).unsqueeze(0) for name in names]
        flat = (slots + self._slots * torch.arange(self.members).unsqueeze(1)).flatten()
        return [self.fields[name].flatten(0, 1).index_select(0, flat).unflatten(0, slots.shape) for name in names]

    def padded(self) -> tuple[Tensor, Tensor]:
        """The episodes of all members side by side, members in turn: flat slots ``[T, N]`` for `take` and `put`, and
        which are real, ``[T, N]`` bool."""
        columns = [episode.slots + m * self._slots for m in range(self.members) for episode in self.episodes[m]]
        slots = torch.nn.utils.rnn.pad_sequence(columns, padding_value=-1)
        return slots.clamp_min(0), slots >= 0

    def take(self, name: str, flat_slots: Tensor) -> Tensor:
        """The values of one field at flat slots of any shape."""
        return self.fields[name].flatten(0, 1)[flat_slots]

    def put(self, name: str, flat_slots: Tensor, values: Tensor) -> None:
        """Write one field at flat slots."""
        self.fields[name].flatten(0, 1)[flat_slots] = values

    @property
    def _slots(self) -> int:
        return next(iter(self.fields.values())).shape[1]

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and lists; slots are not kept, for which slot a step lies in changes nothing."""
        return {
            "members": [
                {
                    "steps": {name: values[m].index_select(0, self.index(m)) for name, values in self.fields.items()},
                    "lengths": [len(episode) for episode in self.episodes[m]],
                    "scores": self.scores(m),
                    "extras": [episode.extras for episode in self.episodes[m]],
                }
                for m in range(self.members)
                if self.episodes[m]
            ]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.clear()
        for member, saved in enumerate(state["members"]):
            parts = {name: values.split(saved["lengths"]) for name, values in saved["steps"].items()}
            batch = [
                NewEpisode({name: part[i] for name, part in parts.items()}, score, extras)
                for i, (score, extras) in enumerate(zip(saved["scores"], saved["extras"], strict=True))
            ]
            self.add(member, batch[::-1])  # `add` takes the oldest first; equal scores keep their order
