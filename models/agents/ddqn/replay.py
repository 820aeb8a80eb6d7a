"""Replay memory of members that advance in lock-step, so that one write position serves all of them."""

import torch
from torch import Tensor


class Replay:
    """The latest ``capacity`` transitions of each member, rows ``obs, next obs, action, reward, discount`` of floats
    in ``[capacity, M, width]``: an insert is one contiguous block, a batch one `index_select`.

    It grows as it fills, so that a short training pays for what it uses. ``discount`` is the bootstrap factor of the
    environment, 0 where the episode ended.
    """

    def __init__(self, capacity: int, members: int, obs_size: int):
        self.capacity, self.obs_size = capacity, obs_size
        self.rows = torch.empty(min(capacity, 1024), members, 2 * obs_size + 3)
        self.size = 0
        self.position = 0
        self._member = torch.arange(members)

    def add(self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor) -> None:
        """Insert ``[M, E, ...]``, E transitions a member."""
        parts = [obs, next_obs, action.unsqueeze(-1), reward.unsqueeze(-1), discount.unsqueeze(-1)]
        new = torch.cat(parts, -1).transpose(0, 1)  # action and flags become floats
        count = new.shape[0]
        self._grow(self.size + count)
        first = min(count, len(self.rows) - self.position)
        self.rows[self.position : self.position + first] = new[:first]
        if first < count:
            self.rows[: count - first] = new[first:]
        self.position = (self.position + count) % self.capacity
        self.size = min(self.size + count, self.capacity)

    def _grow(self, needed: int) -> None:
        have = len(self.rows)
        if min(needed, self.capacity) > have:
            bigger = torch.empty(min(self.capacity, max(needed, 2 * have)), *self.rows.shape[1:])
            bigger[:have] = self.rows
            self.rows = bigger

    def sample(self, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """A batch by ``uniform [M, B]`` in [0, 1): ``obs`` and ``next_obs`` ``[M, O, B]``, ``action``, ``reward``,
        ``discount`` ``[M, B]``."""
        members, batch = uniform.shape
        index = (uniform * self.size).to(torch.int64).clamp_(max=self.size - 1)
        index.mul_(members).add_(self._member.unsqueeze(1))
        width, o = self.rows.shape[2], self.obs_size
        flat = self.rows.view(-1, width).index_select(0, index.view(-1)).view(members, batch, width)
        columns = flat.transpose(1, 2)
        action, reward, discount = columns[:, 2 * o :].contiguous().unbind(1)
        return columns[:, :o], columns[:, o : 2 * o], action, reward, discount

    def select(self, members: Tensor) -> None:
        """Forget the members that are not in ``members``."""
        self.rows = self.rows[:, members]
        self._member = torch.arange(len(members))

    def state(self) -> dict[str, object]:
        """Everything, with only the rows in use."""
        return {"rows": self.rows[: self.size].clone(), "position": self.position}

    def load_state(self, state: dict) -> None:
        self.size, self.position = len(state["rows"]), state["position"]
        self._grow(self.size)
        self.rows[: self.size] = state["rows"]
