"""PanFlute as a tensor program: notes must be played in the right order to reach the ends of their pipes together.

Each action plays a note in one pipe. A note needs i + 1 steps to the end of pipe i of n. A step pays 1 if all pipes had
a note at their ends before the step. To earn it, play the pipes n - 1, n - 2, ..., 0. Rare events put notes at all
ends, so that even an agent that never earns a reward sees a reward. There are no episodes.
"""

from typing import Any

import torch
from torch import Tensor

from envs.names import FluteParameters
from envs.seeded import uniform_at
from envs.tensor import ChanceDynamics, Transition


class PanFlute(ChanceDynamics):
    """State ``[..., 2 + n (n + 1) / 2]`` int64: seed, steps since the reset, then the places of the pipes. Pipe i (from
    0) has i + 1 places, from its mouth to its end. A place is 1 if it holds a note, else 0.

    The observation is all places in float32. Episodes never terminate, and have a time limit only with
    ``max_episode_steps``. ``num_pipes`` n is also the number of actions. With ``spontaneous_reward`` each step has an
    event with probability 1 / n**2. Raises SettingError.
    """

    def __init__(self, *values: Any, max_episode_steps: int | None = None, **parameters: Any) -> None:
        """Take the fields of `FluteParameters`, in order (``values``) or by name (``parameters``)."""
        flute = FluteParameters(*values, **parameters)
        num_pipes, spontaneous_reward = flute.num_pipes, flute.spontaneous_reward
        num_places = num_pipes * (num_pipes + 1) // 2  # places of all pipes
        super().__init__(num_places, num_pipes, max_episode_steps)
        pipes = torch.arange(num_pipes)
        # Indices of places count through all pipes. The pipes before pipe i have 1 + 2 + ... + i places.
        self._mouths = pipes * (pipes + 1) // 2  # index of the first place of each pipe, [n]
        self._ends = self._mouths + pipes  # index of the last place of each pipe, [n]
        self._is_end = torch.zeros(num_places, dtype=torch.int64).index_fill(0, self._ends, 1)  # [num_places], 0 or 1
        self._not_mouth = torch.ones(num_places, dtype=torch.int64).index_fill(0, self._mouths, 0)  # [num_places]
        self._one_step = torch.tensor([0, 1])  # a step adds it to (seed, number of steps), the start of the state
        self.chances = int(spontaneous_reward)  # random numbers of a step: one for the event, if events are possible
        self.state_size = 2 + num_places
        self._event_probability = 1 / num_pipes**2 if spontaneous_reward else 0.0

    def initial(self, seeds: Tensor) -> Tensor:
        empty = torch.zeros(*seeds.shape, 1 + len(self._is_end), dtype=torch.int64)
        return torch.cat((seeds.to(torch.int64)[..., None], empty), -1)

    def observe(self, state: Tensor) -> Tensor:
        return state[..., 2:].float()

    def chance_at(self, seed: Tensor, time: Tensor) -> Tensor:
        return uniform_at(seed, time + 1)  # columns are numbered by the time after the step

    def advance(self, state: Tensor, actions: Tensor, chance: Tensor) -> Transition:
        """Move all notes, and insert a note. An event happens if ``chance [..., 1]`` is below its probability."""
        counters, notes = state.split((2, len(self._is_end)), -1)
        success = notes.index_select(-1, self._ends).all(-1)
        # Every note moves one place on. Notes that leave the end of a pipe must not enter the mouth of the next pipe.
        notes = notes.roll(1, -1) * self._not_mouth
        new_note = torch.take(self._mouths, actions[..., None])  # index of its place
        notes = notes.scatter_(-1, new_note, 1)
        if self.chances:
            event = chance < self._event_probability
            notes = notes | (self._is_end * event)
        next_state = torch.cat((counters + self._one_step, notes), -1)
        return Transition(next_state, success.float(), terminated=torch.zeros_like(success))

    def text(self, state: Tensor) -> str:
        """Draw a state ``[K]`` as text, one line per pipe with its end on the right: ``O`` note, ``.`` no note."""
        places = "".join("O" if note else "." for note in state[2:].tolist())
        lines = []
        for mouth, end in zip(self._mouths.tolist(), self._ends.tolist(), strict=True):
            lines.append(places[mouth : end + 1].rjust(len(self._ends)))
        return "\n".join(lines)
