"""Base class of tensor programs that can repeat an action."""

import math

import torch
from torch import Tensor

from envs.names import RepeatParameters
from envs.tensor import Dynamics
from models.spaces import Continuous, Discrete, Spaces


class RepeatedDynamics(Dynamics):
    """Base class of dynamics that repeat every action. A subclass defines one repetition, `single_step`.

    With ``action_repeat`` n, a step is n repetitions of an action, or fewer if the episode ends before. It pays the sum
    of their rewards. ``max_episode_steps`` counts repetitions: with a limit of 999 and n = 2, an episode has 500 steps,
    and the last step has one repetition. If the limit is no multiple of n, states have an additional last column with
    the repetitions since the start. Raises SettingError.
    """

    obs_size: int
    actions: Discrete | Continuous
    max_return: float | None = None

    def __init__(
        self, action_repeat: int = RepeatParameters.action_repeat, max_episode_steps: int | None = None
    ) -> None:
        RepeatParameters(action_repeat)  # only to check the value
        limit = max_episode_steps
        self.repeat = action_repeat
        # Number of repetitions after which an episode ends in the middle of a step; None if that never happens. Only
        # with this limit do states have a column of repetitions.
        self.repetition_limit = limit if limit is not None and limit % action_repeat else None
        step_limit = None if limit is None else math.ceil(limit / action_repeat)
        self.spaces = Spaces((self.obs_size,), self.actions, torch.float32, step_limit, self.max_return)

    def first_states(self, seeds: Tensor) -> Tensor:
        """Return initial states as `Dynamics.initial` does, without the column of repetitions."""
        raise NotImplementedError

    def single_step(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute one repetition of ``actions [M, E(, A)]`` in ``state [M, E, K]``. Return the next state, the reward
        ``[M, E]`` in any floating dtype, and terminated ``[M, E]`` bool. States have no column of repetitions here."""
        raise NotImplementedError

    def observe_state(self, state: Tensor) -> Tensor:
        """Return the observations of states without the column of repetitions."""
        raise NotImplementedError

    def initial(self, seeds: Tensor) -> Tensor:
        state = self.first_states(seeds)
        if self.repetition_limit is None:
            return state
        no_repetitions = torch.zeros_like(state[..., :1])
        return torch.cat((state, no_repetitions), -1)

    def observe(self, state: Tensor) -> Tensor:
        return self.observe_state(state if self.repetition_limit is None else state[..., :-1])

    def step(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Repeat the actions and return the sum of the rewards. Episodes that have ended keep their state."""
        if self.repeat == 1:
            state, reward, terminated = self.single_step(state, actions)
            return state, reward.float(), terminated, None
        limit = self.repetition_limit
        if limit is not None:
            state, counts = state[..., :-1], state[..., -1:]  # repetitions before this step
        state, total, terminated = self.single_step(state, actions)
        for repetitions in range(1, self.repeat):
            continues = ~terminated
            if limit is not None:
                continues &= counts[..., 0] + repetitions < limit
            next_state, reward, next_terminated = self.single_step(state, actions)
            state = torch.where(continues[..., None], next_state, state)
            total = total + torch.where(continues, reward, 0.0)
            terminated = terminated | (continues & next_terminated)
        if limit is not None:
            state = torch.cat((state, counts + self.repeat), -1)
        return state, total.float(), terminated, None
