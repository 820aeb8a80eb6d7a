"""Learned rewards: how a network phi changes the reward r of a task, and Gymnasium wrappers with the result.

    env = understudy.RewardWrapper(gymnasium.make("CliffWalking-v1"), "cliff-additive-potential")

x is the state before a step, x' is the state after it. Phi may also read numbers from the info of the step. Formulas
are from Ferreira et al. 2022, arXiv 2202.02790, section 3 and appendix, and its public code.
"""

from numbers import Real
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode

from understudy.files import load
from understudy.kinds import ACTIVATIONS, MODES, MOST_EXPONENT, Mode
from understudy.program import IDS, run_layers
from understudy.proxy import Proxy, ProxyError

NATIVE = "native_reward"  # entry of info for the environment's reward


def shaped_reward(mode: Mode, reward: Any, potential: Any, next_potential: Any, discount: Any) -> Any:
    """Compute the reward of an agent from the outputs of a reward network phi. The arguments after ``mode`` are arrays
    or tensors of the same shape: the ``reward`` r of the task, ``potential`` phi(x), which is unused unless phi is a
    potential, ``next_potential`` phi(x'), and the ``discount`` of the agent."""
    learned_reward = discount * next_potential - potential if mode.potential else next_potential
    return reward + learned_reward if mode.additive else learned_reward


class _LearnedReward:
    """The learned reward of N environments, for both wrappers. ``obs`` has their current observations ``[N, S]`` (``[0,
    S]`` before the first reset).

    ``discount`` is the discount of the agent; None means the discount of the agents in the search. ``space`` is the
    observation space and ``spec`` the spec of the environments. Raises ProxyError if the proxy is no learned reward, if
    it was learned for another environment or for observations of another size, or if a potential has no discount.
    Actions may differ, because rewards do not depend on them.
    """

    def __init__(
        self, proxy: str | Path | Proxy, discount: float | None, space: gym.Space, spec: EnvSpec | None
    ) -> None:
        loaded = proxy if isinstance(proxy, Proxy) else load(proxy)
        if loaded.kind != "reward":
            raise ProxyError(f"proxy {str(loaded.path)!r}: {loaded.kind} of {loaded.game}; allowed: a learned reward")
        config, tensors = loaded.config, loaded.tensors
        self.mode = MODES[config["mode"]]
        if discount is None:  # only a potential uses it
            discount = loaded.description.get("settings", {}).get("discount") if self.mode.potential else 0.0
        is_number = isinstance(discount, Real) and not isinstance(discount, bool)
        if not is_number or not 0 <= float(discount) <= 1:
            raise ProxyError(f"discount is {discount!r}; allowed: a number from 0 to 1, that of the agent")
        self._discount = float(discount)
        base_name = loaded.game.partition(",")[0]  # the name without parameters
        game_id = IDS.get(base_name, base_name)
        obs_size, expected_size = gym.spaces.flatdim(space), loaded.spaces["obs_shape"][0]
        if obs_size != expected_size:
            raise ProxyError(
                f"learned reward {str(loaded.path)!r}: it is for observations of {expected_size} numbers, those of "
                f"{loaded.game}; here there are observations of {obs_size} numbers"
            )
        if spec is not None and _is_other_task(spec, game_id):
            raise ProxyError(
                f"learned reward {str(loaded.path)!r}: it is for {loaded.game}, which is {game_id}; "
                f"this environment is {spec.id}"
            )
        self.obs = np.zeros((0, obs_size), np.float32)
        self.names = list(loaded.spaces["info"]) if self.mode.info else []
        self._zero_at_end, self._uses_symexp = config["rn_terminal"] == "zero", config["rn_output"] == "symexp"
        self._scale = np.float32(config["rn_output_scale"])
        # An empty list in the file means no scaling.
        self._center = np.array(config["rn_input_center"] or [0.0] * obs_size, np.float32)
        self._spread = np.array(config["rn_input_spread"] or [1.0] * obs_size, np.float32)
        self._activation = ACTIVATIONS[config["proxy_activation_fn"]]
        depth = sum(name.endswith("weight") for name in tensors)
        no_bias = np.zeros(1, np.float32)  # if info is the only input, the file has only a weight
        self._layers = [
            (tensors[f"reward.{i}.weight"].T, tensors.get(f"reward.{i}.bias", no_bias)) for i in range(depth)
        ]

    def phi(self, obs: np.ndarray, info: np.ndarray) -> np.ndarray:
        """Return the outputs ``[N]`` float32 of the reward network phi for ``obs [N, S]`` and ``info [N, I]``."""
        if not (self.mode.state or self.mode.info):
            return np.zeros(len(obs), np.float32)
        inputs = [(obs - self._center) / self._spread] if self.mode.state else []
        if self.mode.info:
            inputs.append(info)
        (weight, bias), *later_layers = self._layers
        first_outputs = np.concatenate(inputs, 1, dtype=np.float32) @ weight + bias
        outputs = run_layers(first_outputs, later_layers, self._activation)[:, 0] * self._scale
        if not self._uses_symexp:
            return outputs
        # symexp, the inverse of sign(x) log(1 + |x|), without overflow
        return np.expm1(np.minimum(np.abs(outputs), np.float32(MOST_EXPONENT))) * np.sign(outputs)

    def compute(self, reward: np.ndarray, obs: np.ndarray, info: np.ndarray, terminated: np.ndarray) -> np.ndarray:
        """Return the learned rewards ``[N]`` of a step in each environment, from the results of the step: ``reward
        [N]``, the observations ``obs [N, S]``, ``info [N, I]`` and ``terminated [N]``. Phi reads the info of a step for
        the states before and after it, as in the published code."""
        if len(self.obs) != len(obs):
            raise gym.error.ResetNeeded("stepped before its first reset")
        potential = self.phi(self.obs, info) if self.mode.potential else np.zeros(len(obs), np.float32)
        next_potential = self.phi(obs, info)
        if self._zero_at_end:
            next_potential = np.where(terminated, np.float32(0), next_potential)
        return shaped_reward(self.mode, reward, potential, next_potential, self._discount)


def _is_other_task(spec: EnvSpec, game_id: str) -> bool:
    """Return whether an environment with ``spec`` is clearly another task than the environment with the id ``game_id``:
    both are Gymnasium's own, and have different names and classes. Environments of other packages may be variants."""
    game_spec = gym.registry.get(game_id)
    if game_spec is None or game_spec.name == spec.name or game_spec.entry_point == spec.entry_point:
        return False
    return all(str(env_spec.entry_point).startswith("gymnasium.envs.") for env_spec in (game_spec, spec))


def _info_values(names: list[str], info: dict[str, Any], stepped: np.ndarray, reset_mask: np.ndarray) -> np.ndarray:
    """Collect the I entries ``names`` from the ``info`` of a step of N environments, as an array ``[N, I]``. Raises
    ProxyError if an entry is missing.

    :param stepped: ``[N]`` bool, False for environments that were only reset. Their entries are 0.
    :param reset_mask: ``[N]`` bool, True for environments that have started a new episode in the same step. The entries
        of their step are in ``info["final_info"]``.
    """
    info_values = np.zeros((len(stepped), len(names)))
    sources = ((stepped & ~reset_mask, info), (reset_mask, info.get("final_info", {})))
    for mask, source in sources:
        if not mask.any():  # ``source`` may lack the entries
            continue
        for column, name in enumerate(names):
            if name not in source:
                raise ProxyError(f"the learned reward needs info[{name!r}], which this environment does not tell")
            info_values[mask, column] = np.broadcast_to(source[name], len(mask))[mask]
    return info_values


class RewardWrapper(gym.Wrapper, RecordConstructorArgs):
    """Replace the reward of an environment by a learned reward. ``info["native_reward"]`` has the environment's reward.

    >>> env = understudy.RewardWrapper(gymnasium.make("CliffWalking-v1"), "cliff-additive-potential")
    >>> obs, info = env.reset(seed=0)
    >>> obs, reward, terminated, truncated, info = env.step(0)
    >>> round(reward, 2), info["native_reward"]
    (2.39, -1)

    :param env: The environment.
    :param proxy: A learned reward: a file, the run folder of a search, the name of a shipped reward, or a `Proxy`.
    :param discount: Discount of the agent, which a potential needs. None: the discount of the agents in the search.
    :raises ProxyError: The proxy cannot be loaded or does not fit the environment.
    :raises TypeError: It is a vector environment.
    """

    def __init__(self, env: gym.Env, proxy: str | Path | Proxy, discount: float | None = None) -> None:
        if isinstance(env, gym.vector.VectorEnv):
            raise TypeError("RewardWrapper has a vector environment; allowed: one environment, or RewardVectorWrapper")
        # Gymnasium's spec of the wrapper needs the arguments.
        RecordConstructorArgs.__init__(self, proxy=proxy, discount=discount)
        gym.Wrapper.__init__(self, env)
        self._learned_reward = _LearnedReward(proxy, discount, env.observation_space, env.unwrapped.spec)

    def _flatten(self, obs: Any) -> np.ndarray:
        """Return an observation of any space as a batch ``[1, S]`` float32."""
        return np.asarray(gym.spaces.flatten(self.env.observation_space, obs), np.float32).reshape(1, -1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._learned_reward.obs = self._flatten(obs)
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment and replace its reward, computed as for a batch of one environment."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        flat_obs = self._flatten(obs)  # [1, S]
        info_values = _info_values(self._learned_reward.names, info, np.ones(1, np.bool_), np.zeros(1, np.bool_))
        rewards = np.array([reward], np.float32)
        learned_rewards = self._learned_reward.compute(rewards, flat_obs, info_values, np.array([terminated]))
        self._learned_reward.obs = flat_obs
        return obs, float(learned_rewards[0]), terminated, truncated, info | {NATIVE: reward}


class RewardVectorWrapper(gym.vector.VectorWrapper):
    """`RewardWrapper` for a vector environment with any autoreset mode. A step that only resets an environment pays the
    environment's reward.

    >>> envs = gymnasium.make_vec("CliffWalking-v1", num_envs=2)
    >>> envs = understudy.RewardVectorWrapper(envs, "cliff-additive-potential")

    :param env: The vector environment.
    :param proxy: A learned reward, as for `RewardWrapper`.
    :param discount: Discount of the agent, which a potential needs. None: the discount of the agents in the search.
    :raises ProxyError: The proxy cannot be loaded or does not fit the environment.
    """

    def __init__(self, env: gym.vector.VectorEnv, proxy: str | Path | Proxy, discount: float | None = None) -> None:
        super().__init__(env)
        # A vector environment built without ``gymnasium.make_vec`` has no spec, but its environments may have a spec.
        first = getattr(env.unwrapped, "envs", (env,))[0]
        spec = env.unwrapped.spec or getattr(getattr(first, "unwrapped", None), "spec", None)
        self._learned_reward = _LearnedReward(proxy, discount, env.single_observation_space, spec)
        self._mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._resets_next = np.zeros(env.num_envs, np.bool_)  # environments for which the next step only resets

    def _flatten(self, obs: Any) -> np.ndarray:
        """Return the observations of all environments, of any space, as a batch ``[N, S]`` float32."""
        space = self.env.single_observation_space
        row_obs = gym.vector.utils.iterate(self.env.observation_space, obs)
        return np.stack([np.asarray(gym.spaces.flatten(space, row), np.float32).ravel() for row in row_obs])

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        self._learned_reward.obs, self._resets_next = self._flatten(obs), np.zeros(self.num_envs, np.bool_)
        return obs, info

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step all environments and replace their rewards. With autoreset mode SAME_STEP, the learned reward of the
        last step of an episode is computed from the last observation, which is in ``info["final_obs"]``."""
        obs, rewards, terminated, truncated, info = self.env.step(actions)
        flat_obs, dones = self._flatten(obs), terminated | truncated
        # Environments whose observation in ``obs`` is the first observation of the next episode.
        reset_mask = dones & (self._mode is AutoresetMode.SAME_STEP)
        last_obs = flat_obs.copy() if reset_mask.any() else flat_obs
        for row in np.flatnonzero(reset_mask):
            last_obs[row] = gym.spaces.flatten(self.env.single_observation_space, info["final_obs"][row])
        info_values = _info_values(self._learned_reward.names, info, ~self._resets_next, reset_mask)
        native_rewards = rewards.astype(np.float32)
        learned_rewards = self._learned_reward.compute(native_rewards, last_obs, info_values, terminated)
        if self._mode is AutoresetMode.NEXT_STEP:  # this step has only reset the environments in `_resets_next`
            learned_rewards = np.where(self._resets_next, native_rewards, learned_rewards)
            self._resets_next = dones & ~self._resets_next
        self._learned_reward.obs = flat_obs
        return obs, learned_rewards, terminated, truncated, info | {NATIVE: rewards}
