"""Replay buffer of whole episodes, the best or the latest of each member, from which single steps are sampled. A
member is one of M independent agents that are trained together."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from models.state import check_like, require
from models.streams import Streams

_FIRST_SLOTS = 4096  # slots of a member when the first episode is stored


@dataclass(eq=False)
class Episode:
    """An episode of L steps: ``steps {name: [L, ...]}``, the ``score`` that ranks episodes, and ``extras``, tensors
    about the whole episode. In `EpisodeMemory`, ``steps`` is empty, and ``slots [L]`` int64 are the positions of its
    steps."""

    steps: Mapping[str, Tensor]
    score: float
    extras: dict[str, Tensor]

    def __post_init__(self) -> None:
        self.slots = torch.empty(len(next(iter(self.steps.values()))), dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.slots)


class EpisodeMemory:
    """Replay buffer of whole episodes of M members. ``fields`` hold the steps in N slots, ``{name: [M, N, ...]}``. An
    episode is a list of slots, so that no data is moved when an episode is removed.

    With ``order`` "sorted" the episodes with the highest scores are kept, best first; with "recent" the latest ones,
    latest first. ``capacity`` is the largest number of "steps" or "episodes" (``unit``) of each member. Episodes are
    removed as a whole, and at least one is kept, however long. Storage starts small and doubles.
    """

    def __init__(self, members: int, capacity: int, unit: str = "steps", order: str = "sorted"):
        self.members, self.capacity, self.unit, self.order = members, capacity, unit, order
        self.clear()

    def clear(self) -> None:
        """Remove all episodes and storage."""
        self.fields: dict[str, Tensor] = {}
        self.episodes: list[list[Episode]] = [[] for _ in range(self.members)]
        self._free_slots = [torch.empty(0, dtype=torch.int64) for _ in range(self.members)]

    def add(self, member: int, batch: Sequence[Episode]) -> None:
        """Insert the episodes ``batch`` of one member, oldest first. Then keep the first episodes in ``order`` that fit
        into ``capacity``, and remove all others, new or old."""
        merged = [*reversed(batch), *self.episodes[member]]
        if self.order == "sorted":
            merged.sort(key=lambda episode: -episode.score)
        sizes = [len(episode) if self.unit == "steps" else 1 for episode in merged]
        cumulative_sizes = list(accumulate(sizes))
        num_fitting = bisect_right(cumulative_sizes, self.capacity)  # the number of episodes that fit together
        kept_episodes = merged[: max(1, num_fitting)]
        kept_set = set(kept_episodes)  # episodes are compared by identity
        freed_slots = [episode.slots for episode in self.episodes[member] if episode not in kept_set]
        self._free_slots[member] = torch.cat([self._free_slots[member], *freed_slots])
        self.episodes[member] = kept_episodes
        for episode in batch:
            if episode in kept_set:
                self._store(member, episode)

    def _store(self, member: int, episode: Episode) -> None:
        """Move the steps of an episode to free slots: set ``episode.slots`` and empty ``episode.steps``. If there are
        too few free slots, first double the storage of all members, repeatedly if necessary."""
        steps, count = episode.steps, len(episode)
        if not self.fields:
            self.fields = {name: value.new_zeros(self.members, 0, *value.shape[1:]) for name, value in steps.items()}
        while len(self._free_slots[member]) < count:
            old_size = next(iter(self.fields.values())).shape[1]
            new_size = max(_FIRST_SLOTS, 2 * old_size)
            for name, values in self.fields.items():
                self.fields[name] = values.new_zeros(self.members, new_size, *values.shape[2:])
                self.fields[name][:, :old_size] = values
            self._free_slots = [torch.cat([slots, torch.arange(old_size, new_size)]) for slots in self._free_slots]
        free_slots = self._free_slots[member]
        episode.slots, self._free_slots[member] = free_slots[:count], free_slots[count:]
        for name, values in steps.items():
            self.fields[name][member].index_copy_(0, episode.slots, values)
        episode.steps = {}

    def index(self, member: int) -> Tensor:
        """Return the slots (positions in ``fields``) of all steps of a member, ``[steps]``, in the order of
        ``episodes``."""
        return torch.cat([episode.slots for episode in self.episodes[member]])

    def column(self, name: str) -> list[Tensor]:
        """Return one field of all steps, a tensor ``[steps, ...]`` for each member, in the order of `index`."""
        return [values.index_select(0, self.index(m)) for m, values in enumerate(self.fields[name])]

    def set_column(self, name: str, values: Tensor) -> None:
        """Overwrite the field ``name`` of all steps with ``values [total steps, ...]``: the steps of all members, one
        member after the other, in the order of `index`."""
        indices = [self.index(m) for m in range(self.members)]
        for m, member_values in enumerate(values.split([len(index) for index in indices])):
            self.fields[name][m].index_copy_(0, indices[m], member_values)

    def sample(self, streams: Streams, updates: int, batch: int, by: str = "step") -> Tensor:
        """Sample ``updates`` minibatches of B = ``batch`` steps with replacement. Return the slots of these steps
        (positions in ``fields``), ``[updates, M, B]``.

        ``by`` "step" samples all steps with equal probability, so that long episodes have more weight, as in the public
        code of Srivastava et al. 2019 (arXiv 1912.02877). "episode" first samples an episode, then one of its steps, as
        in algorithm 2 of that paper.
        """
        indices = [self.index(m) for m in range(self.members)]
        if by == "step":
            positions = streams.integers([len(index) for index in indices], updates, batch)
            slots = [index[positions[m]] for m, index in enumerate(indices)]
        else:
            episode_indices = streams.integers([len(episodes) for episodes in self.episodes], updates, batch)
            fractions = streams.uniform(updates, batch)  # each chooses a step of its episode
            slots = []
            for m in range(self.members):
                lengths = torch.tensor([len(episode) for episode in self.episodes[m]])
                starts = lengths.cumsum(0) - lengths  # positions in `index`
                length, start = lengths[episode_indices[m]], starts[episode_indices[m]]
                offset = (fractions[m] * length).long().minimum(length - 1)  # rounding may give ``length``
                slots.append(indices[m][start + offset])
        return torch.stack(slots, dim=1)

    def gather(self, slots: Tensor, names: Sequence[str]) -> list[Tensor]:
        """Return the fields ``names``, ``[M, B, ...]`` each, of the steps at ``slots [M, B]`` (from `sample`)."""
        num_slots = self.fields[names[0]].shape[1]
        flat_slots = (slots + num_slots * torch.arange(self.members).unsqueeze(1)).flatten()  # in [M * N, ...]
        return [self.fields[name].flatten(0, 1).index_select(0, flat_slots).unflatten(0, slots.shape) for name in names]

    def state_dict(self) -> dict[str, Any]:
        """Return all episodes as plain tensors and lists. Slots are left out, because their order does not affect
        results. The list ``members`` is empty before the first episodes."""
        members = []
        for m, episodes in enumerate(self.episodes):
            if episodes:
                steps = {name: values[m].index_select(0, self.index(m)) for name, values in self.fields.items()}
                lengths = [len(episode) for episode in episodes]
                scores = [episode.score for episode in episodes]
                extras = [episode.extras for episode in episodes]
                members.append({"steps": steps, "lengths": lengths, "scores": scores, "extras": extras})
        return {"members": members}

    def load_state_dict(self, state: dict[str, Any], example: Episode) -> None:
        """Replace all episodes by the result of `state_dict`. Raises StateError if its fields differ in name, shape or
        dtype from the fields of the episode ``example``."""
        self.clear()
        require(len(state["members"]) in (0, self.members), "memory", "lacks members", f"all {self.members}")
        for member, saved in enumerate(state["members"]):
            lengths, name = saved["lengths"], f"memory of member {member}"
            require(min(lengths) > 0, name, f"has lengths {lengths}", "1 and above")
            total = sum(lengths)
            template = {
                "steps": {key: values[0].expand(total, *values.shape[1:]) for key, values in example.steps.items()},
                "lengths": lengths,
                "scores": [0.0] * len(lengths),
                "extras": [example.extras] * len(lengths),
            }
            check_like(template, saved, name)
            fields = {field: values.split(lengths) for field, values in saved["steps"].items()}
            batch = []
            for i, (score, extras) in enumerate(zip(saved["scores"], saved["extras"], strict=True)):
                steps = {field: episode_values[i] for field, episode_values in fields.items()}
                batch.append(Episode(steps, score, extras))
            batch.reverse()  # `add` expects the oldest first; equal scores keep their order
            self.add(member, batch)
