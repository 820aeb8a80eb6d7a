"""MountainCarContinuous as a tensor program: the equations of Gymnasium 1.4.0's MountainCarContinuous-v0, which keeps
its state in float32, rounded as it rounds them. As MountainCar otherwise (`envs.mountaincar`).
"""

from torch import Tensor

from envs.mountaincar import driven, track, valley
from envs.repeated import RepeatedDynamics
from models.spaces import Continuous
from models.streams import Streams

_GRAVITY, _POWER = 0.0025, 0.0015
_GOAL, _PRIZE, _COST = 0.45, 100.0, 0.1


class MountainCarContinuous(RepeatedDynamics):
    """State and observation ``[..., 2]`` float32, position and speed. Actions ``[..., 1]`` are forces within [-1, 1]. A
    step costs 0.1 times the square of the force, and pays 100 where it terminates, from position 0.45 on.

    Gymnasium's first state alone is in float64, so its first step may differ from ours in the last digit, and so does
    a force that it has to cut."""

    observed, actions, max_return = 2, Continuous((-1.0,), (1.0,)), _PRIZE

    def first(self, seeds: Tensor) -> Tensor:
        return valley(seeds).float()

    def anywhere(self, streams: Streams, count: int) -> Tensor:
        return track(streams, count)

    def seen(self, state: Tensor) -> Tensor:
        return state

    def once(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position, speed = state.unbind(-1)
        force = actions.squeeze(-1)
        # The cosine and the square are float64 there, all else is float32.
        slope = ((position * 3).double().cos() * _GRAVITY).float()
        state, terminated = driven(position, speed + (force.clamp(-1.0, 1.0) * _POWER - slope), _GOAL)
        return state, terminated.double() * _PRIZE - force.double().square() * _COST, terminated
