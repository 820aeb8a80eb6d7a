"""Learned rewards: the ways in which a network phi changes the reward r of a task, and Gymnasium wrappers that pay the
result.

    env = understudy.RewardWrapper(gymnasium.make("CliffWalking-v1"), "cliff-additive-potential")

x is the state before a step, x' the state after it, and phi may also read numbers from the step's info. Formulas are
from Ferreira et al. 2022, arXiv 2202.02790, section 3 and appendix, and its public code.
"""

from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode

from understudy.files import load
from understudy.kinds import MODES, MOST_EXPONENT, Mode
from understudy.layers import ACTIVATIONS
from understudy.program import IDS
from understudy.proxy import Proxy, ProxyError

NATIVE = "native_reward"  # entry of info for the environment's reward


def shaped(mode: Mode, reward: Any, potential: Any, next_potential: Any, discount: Any) -> Any:
    """Compute the reward that an agent gets, from arrays or tensors of one shape. ``potential`` is phi(x) (unused
    unless phi is a potential), ``next_potential`` phi(x'), and ``discount`` the agent's."""
    bonus = discount * next_potential - potential if mode.potential else next_potential
    return reward + bonus if mode.additive else bonus


class Phi:
    """The network of a `Proxy` of kind ``reward``, in NumPy. Raises ProxyError for other kinds."""

    def __init__(self, proxy: Proxy) -> None:
        if proxy.kind != "reward":
            raise ProxyError(f"proxy {str(proxy.path)!r}: {proxy.kind} of {proxy.game}; allowed: a learned reward")
        config = proxy.config
        self.mode, self.scale = MODES[config["mode"]], config["rn_output_scale"]
        self.uses_symexp = config["rn_output"] == "symexp"
        self.names = list(proxy.spaces["info"]) if self.mode.info else []
        size = proxy.spaces["obs_shape"][0]
        self._center = np.array(config["rn_input_center"] or [0.0] * size, np.float32)
        self._spread = np.array(config["rn_input_spread"] or [1.0] * size, np.float32)
        self._activation, tensors = ACTIVATIONS[config["proxy_activation_fn"]], proxy.tensors
        count = sum(name.endswith("weight") for name in tensors)
        zero = np.zeros(1, np.float32)
        self._layers = [(tensors[f"reward.{i}.weight"].T, tensors.get(f"reward.{i}.bias", zero)) for i in range(count)]

    def __call__(self, obs: np.ndarray, info: np.ndarray) -> np.ndarray:
        """Return phi ``[N]`` float32 of ``obs [N, S]`` and ``info [N, I]``."""
        if not (self.mode.state or self.mode.info):
            return np.zeros(len(obs), np.float32)
        parts = [(obs - self._center) / self._spread] * self.mode.state + [info] * self.mode.info
        x = np.concatenate(parts, 1, dtype=np.float32)
        for i, (weight, bias) in enumerate(self._layers):
            x = (self._activation(x) if i else x) @ weight + bias
        value = x[:, 0] * np.float32(self.scale)
        return (
            np.expm1(np.minimum(np.abs(value), np.float32(MOST_EXPONENT))) * np.sign(value)
            if self.uses_symexp
            else value
        )


@dataclass
class _Payer:
    """The learned reward of N environments, for both wrappers: network, discount, and current observations."""

    phi: Phi
    discount: float
    zero_at_end: bool
    obs: np.ndarray

    def pay(self, reward: np.ndarray, obs: np.ndarray, info: np.ndarray, terminated: np.ndarray) -> np.ndarray:
        """Return the learned rewards ``[N]`` of steps to ``obs [N, S]`` with ``reward [N]``, ``info [N, I]`` and
        ``terminated [N]``. Phi of both states of a step gets the info of that step, as in the published code."""
        mode, potential, next_potential = self.phi.mode, np.zeros(len(obs), np.float32), self.phi(obs, info)
        if len(self.obs) != len(obs):
            raise gym.error.ResetNeeded("stepped before its first reset")
        if mode.potential:
            potential = self.phi(self.obs, info)
        if self.zero_at_end:
            next_potential = np.where(terminated, np.float32(0), next_potential)
        return shaped(mode, reward, potential, next_potential, self.discount)


def _opened(
    proxy: str | Path | Proxy, discount: float | None, space: gym.Space, actions: gym.Space, spec: EnvSpec | None
) -> _Payer:
    """Make the `_Payer` of a wrapper. Raises ProxyError if the reward was learned for another environment than ``spec``
    or for spaces of other sizes, or if there is no discount. Bounds of actions may differ, because rewards do not
    depend on actions."""
    loaded = proxy if isinstance(proxy, Proxy) else load(proxy)
    phi = Phi(loaded)
    if discount is None:
        discount = loaded.description.get("settings", {}).get("discount") if phi.mode.potential else 0.0
    if not isinstance(discount, Real) or isinstance(discount, bool) or not 0 <= float(discount) <= 1:
        raise ProxyError(f"discount is {discount!r}; allowed: a number from 0 to 1, that of the agent")
    name, size = loaded.game.partition(",")[0], gym.spaces.flatdim(space)
    line, game_id = f"learned reward {str(loaded.path)!r}: it is for", IDS.get(name, name)
    expected = f"observations of {loaded.spaces['obs_shape'][0]} numbers and {_kind(loaded.action_space)}"
    actual = f"observations of {size} {_units(space) if name in IDS else 'numbers'} and {_kind(actions)}"
    if actual != expected:
        raise ProxyError(f"{line} {expected}, those of {loaded.game}; here there are {actual}")
    if spec is not None and _other_task(spec, game_id):
        raise ProxyError(f"{line} {loaded.game}, which is {game_id}; this environment is {spec.id}")
    return _Payer(phi, float(discount), loaded.config["rn_terminal"] == "zero", np.zeros((0, size), np.float32))


def _kind(actions: gym.Space) -> str:
    """Return kind and size of a space of actions, in words."""
    if isinstance(actions, gym.spaces.Discrete):
        return f"{actions.n} actions"
    continuous = isinstance(actions, gym.spaces.Box)
    return f"continuous actions of size {gym.spaces.flatdim(actions)}" if continuous else str(actions)


def _units(space: gym.Space) -> str:
    """Return the unit of an observation's size for error messages: numbers with their shape, or cells and the first
    cell's number if that is not 0."""
    if isinstance(space, gym.spaces.Box) and len(space.shape) != 1:
        return f"numbers in the shape {list(space.shape)}"
    first = space.start if isinstance(space, gym.spaces.Discrete) else 0
    return f"cells that count from {first}" if first else "numbers"


def _other_task(spec: EnvSpec, game_id: str) -> bool:
    """Return whether ``spec`` and ``game_id`` are Gymnasium's environments with different names and classes. Variants
    from other packages are accepted."""
    game_spec = gym.registry.get(game_id)
    if game_spec is None or game_spec.name == spec.name or game_spec.entry_point == spec.entry_point:
        return False
    return all(str(env_spec.entry_point).startswith("gymnasium.envs.") for env_spec in (game_spec, spec))


def _info_values(names: list[str], info: dict[str, Any], count: int) -> np.ndarray:
    """Return the numbers ``[N, I]`` of ``names`` in the info of a step. Raises ProxyError if one is missing."""
    for name in names:
        if name not in info:
            raise ProxyError(f"the learned reward needs info[{name!r}], which this environment does not tell")
    return np.stack([np.broadcast_to(info[name], count) for name in names], 1) if names else np.zeros((count, 0))


def _vector_info_values(
    names: list[str], info: dict[str, Any], stepped: np.ndarray, reset_mask: np.ndarray
) -> np.ndarray:
    """Return the numbers ``[N, I]`` of ``names`` in the infos of N environments. Environments that are not in ``stepped
    [N]``, because they were only reset, have zeros. Environments in ``reset_mask [N]`` started a new episode in the
    same step; their numbers are in ``final_info``."""
    info_values = np.zeros((len(stepped), len(names)))
    for where, source in ((stepped & ~reset_mask, info), (reset_mask, info.get("final_info", {}))):
        if where.any():
            info_values[where] = _info_values(names, source, len(where))[where]
    return info_values


class RewardWrapper(gym.Wrapper, RecordConstructorArgs):
    """Replace the reward of an environment by a learned one. ``info["native_reward"]`` has the environment's reward.

    ``proxy`` is a file, the run folder of a search, the name of a shipped reward, or a `Proxy`. ``discount`` is the
    agent's, for potentials; None means the discount of the search's agents. Raises ProxyError if the proxy cannot be
    loaded or does not fit the environment.
    """

    def __init__(self, env: gym.Env, proxy: str | Path | Proxy, discount: float | None = None) -> None:
        RecordConstructorArgs.__init__(self, proxy=proxy, discount=discount)  # for its spec
        gym.Wrapper.__init__(self, env)
        self._payer = _opened(proxy, discount, env.observation_space, env.action_space, env.unwrapped.spec)

    def _flat(self, obs: Any) -> np.ndarray:
        return np.asarray(gym.spaces.flatten(self.env.observation_space, obs), np.float32).reshape(1, -1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._payer.obs = self._flat(obs)
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        flat_obs, info_values = self._flat(obs), _info_values(self._payer.phi.names, info, 1)
        learned_rewards = self._payer.pay(np.array([reward], np.float32), flat_obs, info_values, np.array([terminated]))
        self._payer.obs = flat_obs
        return obs, float(learned_rewards[0]), terminated, truncated, info | {NATIVE: reward}


class RewardVectorWrapper(gym.vector.VectorWrapper):
    """`RewardWrapper` for a vector environment with any autoreset mode. A step that only resets an environment pays
    the environment's reward."""

    def __init__(self, env: gym.vector.VectorEnv, proxy: str | Path | Proxy, discount: float | None = None) -> None:
        super().__init__(env)
        # A vector environment built without ``gymnasium.make_vec`` has no spec, but its environments do.
        first = getattr(env.unwrapped, "envs", (env,))[0]
        spec = env.unwrapped.spec or getattr(getattr(first, "unwrapped", None), "spec", None)
        self._payer = _opened(proxy, discount, env.single_observation_space, env.single_action_space, spec)
        self._mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._fresh = np.zeros(env.num_envs, np.bool_)  # environments for which the next step only resets

    def _flat(self, obs: Any) -> np.ndarray:
        space = self.env.single_observation_space
        rows = [
            np.asarray(gym.spaces.flatten(space, row_obs), np.float32)
            for row_obs in gym.vector.utils.iterate(self.env.observation_space, obs)
        ]
        return np.stack(rows).reshape(len(rows), -1)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        self._payer.obs, self._fresh = self._flat(obs), np.zeros(self.num_envs, np.bool_)
        return obs, info

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        obs, rewards, terminated, truncated, info = self.env.step(actions)
        flat_obs, dones = self._flat(obs), terminated | truncated
        last, reset_mask = flat_obs, dones & (self._mode is AutoresetMode.SAME_STEP)
        if reset_mask.any():
            last, space = flat_obs.copy(), self.env.single_observation_space
            for row in np.flatnonzero(dones):
                last[row] = gym.spaces.flatten(space, info["final_obs"][row])
        info_values = _vector_info_values(self._payer.phi.names, info, ~self._fresh, reset_mask)
        learned_rewards = self._payer.pay(rewards.astype(np.float32), last, info_values, terminated)
        if self._mode is AutoresetMode.NEXT_STEP:
            learned_rewards, self._fresh = (
                np.where(self._fresh, rewards.astype(np.float32), learned_rewards),
                dones & ~self._fresh,
            )
        self._payer.obs = flat_obs
        return obs, learned_rewards, terminated, truncated, info | {NATIVE: rewards}
