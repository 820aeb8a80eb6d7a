"""Real environments with learned rewards, which a reward network phi computes. Each member has a separate network.

M is the number of members (independent agents), E of environments of each, S the size of an observation, I the number
of values that phi reads from the info of a step. ``flat [M, D]`` are the weights of M networks. A mode
(`understudy.kinds.Mode`) determines the inputs of phi, and how rewards follow from it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from envs.base import Environment, Step
from envs.gridmaps import CellTable
from envs.make import ProxyFactory as BaseFactory
from envs.make import make_dynamics, make_environment
from models.proxies.contract import Trainee
from models.proxies.reward.config import Config
from models.proxies.reward.networks import Networks
from models.settings import SettingError
from models.streams import Streams, random_actions
from understudy.kinds import Mode
from understudy.rewards import shaped_reward

_SAMPLES = 4096  # number of random steps, or of states, to which an initial network is fitted
_SAMPLE_ENVS = 64  # environments that make these steps
_GOOD_VALUE = 5.0  # value of a termination that is worth reaching
_GOOD_FACTOR = 20  # a termination is worth reaching if it pays more than this factor times the mean of other steps


class RewardedEnvironment:
    """A real environment with the reward that ``mode`` computes from ``phi``. Interface: `envs.base.Environment`.

    ``phi`` are the reward networks of M members (`models.proxies.reward.networks.Phi`): ``obs [M, E, S]`` and ``info
    [M, E, I]`` -> values ``[M, E]``. If it reads the info of a step, it reads this info for both the state before and
    the state after the step, as in the published code. Potentials use the agents' ``discounts [M]``. With
    ``zero_at_end`` phi is 0 at termination. The real reward is multiplied by ``weight``.
    """

    def __init__(
        self, real: Environment, phi: Any, mode: Mode, discounts: Tensor, zero_at_end: bool = False, weight: float = 1.0
    ):
        self.real, self.phi, self.mode, self.zero_at_end, self.weight = real, phi, mode, zero_at_end, weight
        self.members, self.envs, self.discounts = real.members, real.envs, discounts.unsqueeze(1)
        self.spaces = replace(real.spaces, max_return=None)
        self._obs: Any = None
        self._potential: Tensor | None = None  # phi of the current observations, if it needs no info

    @property
    def state(self) -> Tensor | None:
        return self.real.state

    def _remember_obs(self, obs: Tensor) -> Tensor:
        """Store the current observations ``obs [M, E, S]`` and, for the next step, their potential. Return ``obs``."""
        self._obs = obs
        if self.mode.potential and not self.mode.info:
            self._potential = self.phi(obs)
        return obs

    def reset(self, seeds: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._remember_obs(self.real.reset(seeds, mask))

    def prepare_resets(self, seeds: Tensor) -> Tensor:
        return self.real.prepare_resets(seeds)

    def reset_prepared(self, prepared: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._remember_obs(self.real.reset_prepared(prepared, mask))

    def step(self, actions: Tensor, active: Tensor | None = None) -> Step:
        """Step the real environment, and replace its reward by the learned reward."""
        step = self.real.step(actions, active)
        potential = self._potential  # phi before the step
        if self.mode.potential and self.mode.info:  # phi also reads the info of this step
            potential = self.phi(self._obs, step.info)
        next_potential = self.phi(step.obs, step.info)
        self._obs, self._potential = step.obs, next_potential
        if self.zero_at_end:
            next_potential = next_potential.masked_fill(step.terminated, 0.0)
        real_reward = step.reward if self.weight == 1 else step.reward * self.weight
        reward = shaped_reward(self.mode, real_reward, potential, next_potential, self.discounts)
        if active is not None:
            reward = reward.masked_fill(~active, 0.0)
        return replace(step, reward=reward)

    def snapshot(self) -> dict[str, Any]:
        """Return the snapshot of the ``real`` environment, and ``obs``, the current observations."""
        return {"real": self.real.snapshot(), "obs": self._obs}

    def restore(self, state: dict[str, Any]) -> None:
        self.real.restore(state["real"])
        if state["obs"] is not None:
            self._remember_obs(state["obs"])

    def close(self) -> None:
        self.real.close()


def collect_transitions(game: str) -> tuple[Tensor, Tensor, Tensor]:
    """Collect N transitions of the real environment ``game``, to which a network can be fitted: all transitions of a
    deterministic grid world, or 4,096 steps of random play elsewhere. Return their next states ``[N, S]``, rewards
    ``[N]`` and terminations ``[N]`` bool."""
    dynamics = make_dynamics(game)
    if isinstance(dynamics, CellTable):
        return torch.eye(dynamics.spaces.obs_shape[0])[dynamics.next_cell], dynamics.reward, dynamics.terminated
    real = make_environment(game, 1, _SAMPLE_ENVS)
    streams = Streams([0])
    real.reset(streams.episode_seeds(_SAMPLE_ENVS))
    steps = []  # `Step` objects with tensors [1, envs, ...]
    for _ in range(_SAMPLES // _SAMPLE_ENVS):
        step = real.step(random_actions(real.spaces.actions, streams, _SAMPLE_ENVS))
        steps.append(step)
        if step.done.any():
            real.reset(streams.episode_seeds(_SAMPLE_ENVS), step.done)
    real.close()
    obs = torch.cat([step.obs[0] for step in steps])
    reward = torch.cat([step.reward[0] for step in steps])
    terminated = torch.cat([step.terminated[0] for step in steps])
    return obs, reward, terminated


def termination_values(reward: Tensor, terminated: Tensor) -> Tensor:
    """Return the values ``[N]`` to which ``rn_init`` "terminal" fits a reward network, for transitions with ``reward
    [N]`` and ``terminated [N]``: 5 at a good termination, -5 at a bad termination, else 0. A termination is good if its
    reward is above 20 times the mean reward of the transitions that do not terminate."""
    other_rewards = reward[~terminated]
    threshold = other_rewards.mean() * _GOOD_FACTOR if len(other_rewards) else torch.tensor(0.0)
    values = torch.where(reward > threshold, _GOOD_VALUE, -_GOOD_VALUE)
    return torch.where(terminated, values, 0.0)


class ProxyFactory(BaseFactory):
    """Makes environments in which agents train with a learned reward."""

    parameters: Networks

    def __init__(self, config: Config, game: str):
        super().__init__(config, game)
        # Explained variance of a potential that is made from a policy, on episodes to which it was not fitted.
        self.explained_variance: float | None = None
        self.parameters = Networks(config, self.spaces)
        self._base_name = game.partition(",")[0]  # name without parameters
        mode = self.parameters.mode
        self._reads_state_only = mode.state and not mode.info  # whether the state is the only input of phi
        if config.rn_init != "torch" and not self._reads_state_only:
            line = f"rn_init is {config.rn_init!r}, but mode is {config.mode}, where phi is not of the state alone"
            raise SettingError(f"{line}; allowed: torch", "rn_init")
        if config.rn_init == "hand" and self._base_name not in HAND:
            names = ", ".join(HAND)
            line = f"rn_init is 'hand', but for {self._base_name} no potential is made by hand (only for {names})"
            raise SettingError(f"{line}; allowed: torch, terminal, real", "rn_init")

    def initial(self, streams: Streams) -> Tensor:
        """Return initial parameters ``[M, D]``. They are sampled, and then fitted as ``rn_init`` says: to a handmade
        potential, to real rewards, or to values of terminations."""
        flat = self.parameters.initial(streams)
        init = self.config.rn_init
        if init == "torch":
            return flat
        if init == "hand":
            handmade = HAND[self._base_name]
            states = handmade.states(_SAMPLES)
            targets = handmade.potential(states)
        else:
            states, reward, terminated = collect_transitions(self.game)
            targets = reward if init == "real" else termination_values(reward, terminated)
        return self.parameters.fit(flat, states, targets)

    def check_policy(self, source: str) -> bool:
        """Raise SettingError unless phi is a potential of the state alone, which can be fitted to the returns of a
        policy, called ``source`` in the message. Return False, because action values are not needed."""
        if not (self.parameters.mode.potential and self._reads_state_only):
            line = f"start_from is {source!r}, a policy, but mode is {self.config.mode}"
            raise SettingError(f"{line}; allowed with a policy: 1, 2, potentials of the state", "mode")
        return False

    def clone_policy(self, policy: Callable[[Tensor], Tensor], episodes: Any, streams: Streams) -> Tensor:
        """Return parameters ``[1, D]`` of a potential that predicts the discounted returns of a policy from the state.
        ``episodes.returns(discount, count)`` plays ``count`` episodes of the policy. ``streams`` is a single stream.
        The potential is fitted to nine tenths of the ``rn_episodes`` episodes, and ``explained_variance`` is computed
        from the last tenth. The argument ``policy`` is not used."""
        count, discount = self.config.rn_episodes, self.config.rn_discount
        states, returns = episodes.returns(discount, math.ceil(count * 9 / 10))
        flat = self.parameters.fit_scaled(self.parameters.initial(streams), states, returns)
        test_states, test_returns = episodes.returns(discount, math.ceil(count / 10))
        (predicted_returns,) = self.parameters.with_weights(flat)(test_states[None])  # [N], returns of the only member
        error_variance = (test_returns - predicted_returns).var()
        return_variance = test_returns.var().clamp(min=1e-12)  # never 0, because it is a divisor
        self.explained_variance = 1 - float(error_variance / return_variance)
        return flat

    @torch.no_grad()
    def forward(
        self,
        flat: Tensor,
        obs: Tensor,
        next_obs: Tensor,
        reward: Tensor,
        terminated: Tensor,
        discount: float = 0.99,
        info: Tensor | None = None,
    ) -> Tensor:
        """Return the learned rewards ``[B]`` of B steps with the weights ``flat [1, D]``, for an agent with this
        ``discount``. ``obs`` and ``next_obs`` are ``[B, S]``, the environment's ``reward`` and ``terminated`` ``[B]``.
        ``info [B, I]`` are numbers from the environment's info, only needed if they are an input of phi."""
        phi = self.parameters.with_weights(flat)
        info_batch = None if info is None else info[None]
        potential = phi(obs[None], info_batch)  # [1, B], for one member
        next_potential = phi(next_obs[None], info_batch)
        if self.config.rn_terminal == "zero":
            next_potential = next_potential.masked_fill(terminated[None], 0.0)
        learned_reward: Tensor = shaped_reward(self.parameters.mode, reward[None], potential, next_potential, discount)
        return learned_reward[0]

    def environment(self, flat: Tensor, agent: Trainee) -> RewardedEnvironment:
        real = make_environment(self.game, agent.members, agent.envs, time_limit=self.config.test_limit)
        phi, mode = self.parameters.with_weights(flat), self.parameters.mode
        return RewardedEnvironment(real, phi, mode, agent.discounts(), self.config.rn_terminal == "zero")


@dataclass(frozen=True)
class HandmadePotential:
    """A handmade potential, and the states to which a network is fitted: within bounds, or the cells of a map."""

    potential: Callable[[Tensor], Tensor]  # states [..., S] -> values [...] in units of reward
    low: tuple[float, ...] = ()  # bounds of each number of a state; empty for a map
    high: tuple[float, ...] = ()
    cells: int = 0  # number of cells of a map; 0 for other states

    def states(self, count: int) -> Tensor:
        """Return ``count`` states ``[count, S]``, uniform within the bounds and the same in every call. For a map,
        return each of its cells once, one-hot ``[cells, cells]``."""
        if self.cells:
            return torch.eye(self.cells)
        low, high = torch.tensor(self.low), torch.tensor(self.high)
        generator = torch.Generator().manual_seed(0)
        return low + (high - low) * torch.rand(count, len(low), generator=generator)


def _negative_distance(obs: Tensor) -> Tensor:
    """Return -1 times the number of moves to the goal of Cliff (4 x 12 cells) for one-hot cells ``[..., 48]``."""
    cell = obs.argmax(-1)
    row, column = cell // 12, cell % 12
    manhattan_distance = (3 - row) + (11 - column)  # the goal is the bottom right cell
    # From the bottom row (the start and the cliff) the path has two additional moves, one up and one down.
    moves = torch.where((row == 3) & (column < 11), manhattan_distance + 2, manhattan_distance)
    return -moves.float()


def _balance(obs: Tensor) -> Tensor:
    """Return how near CartPole is to standing upright, still and in the middle: at most 1, for ``obs [..., 4]``."""
    x, speed, angle, spin = obs.unbind(-1)
    return 1 - (0.2 * x**2 + 0.1 * speed**2 + 20 * angle**2 + spin**2 + 5 * angle * spin)


def _energy(obs: Tensor) -> Tensor:
    """Return 1,000 times the mechanical energy of MountainCar for ``obs [..., 2]``, position and speed."""
    x, speed = obs.unbind(-1)
    # Gravity accelerates the car by -0.0025 cos(3 x), so its potential energy is 0.0025 / 3 sin(3 x).
    return 1000 * (0.0025 / 3 * (3 * x).sin() + speed**2 / 2)


def _upright(obs: Tensor) -> Tensor:
    """Return how upright and how still the pendulum is: at most 10, for ``obs [..., 3]``."""
    cos, _, speed = obs.unbind(-1)
    return 10 * cos - 0.1 * speed**2


_BALANCE = HandmadePotential(_balance, (-2.4, -2, -0.21, -2), (2.4, 2, 0.21, 2))
HAND: dict[str, HandmadePotential] = {
    "cliff": HandmadePotential(_negative_distance, cells=48),
    "cartpole": _BALANCE,
    "cartpole-200": _BALANCE,
    "mountaincar-continuous": HandmadePotential(_energy, (-1.2, -0.07), (0.6, 0.07)),
    "pendulum": HandmadePotential(_upright, (-1, -1, -8), (1, 1, 8)),
}
