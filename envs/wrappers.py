"""Gymnasium wrappers that change what the agent sees: rewards only at the end, small stacked frames."""

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box

# ITU-R BT.601 luma.
_LUMA = torch.tensor([0.299, 0.587, 0.114])


class FastDiscrete(gym.spaces.Discrete):
    """A Discrete space whose `contains` takes a short way for Python's integers: environments call it at every step."""

    def contains(self, x: Any) -> bool:
        return int(self.start) <= x < int(self.start) + int(self.n) if type(x) is int else super().contains(x)


class SparseReward(gym.Wrapper):
    """Reward 0 until the last step of the episode, which pays the whole return (float64 sum of the rewards)."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._sum = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._sum += float(reward)
        return obs, self._sum if terminated or truncated else 0.0, terminated, truncated, info


class ImageObservation(gym.Wrapper):
    """The last ``stack`` frames in grey, ``(stack, size, size)`` uint8 0..255, newest last.

    Takes uint8 images ``(H, W)`` or ``(H, W, C)`` with 1, 3 or 4 channels (the fourth is left out), or a Dict
    that holds one under ``"screen"``. Frames are shrunk by averaging areas. An episode begins with its first
    frame ``stack`` times. The sizes are those of Srivastava et al. 2019, "Training Agents using Upside-Down
    RL", for TakeCover.
    """

    def __init__(self, env: gym.Env, size: int = 32, stack: int = 8) -> None:
        super().__init__(env)
        self._size = size
        self._frames = np.zeros((stack, size, size), np.uint8)
        self.observation_space = Box(0, 255, (stack, size, size), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._frames[:] = self._small(obs)
        return self._frames.copy(), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._frames[:-1] = self._frames[1:]
        self._frames[-1] = self._small(obs)
        return self._frames.copy(), reward, terminated, truncated, info

    def _small(self, obs: Any) -> np.ndarray:
        """``[H, W(, C)]`` -> ``[size, size]`` uint8."""
        image = torch.from_numpy(np.ascontiguousarray(obs["screen"] if isinstance(obs, dict) else obs)).float()
        if image.ndim == 3:
            image = image[..., :3] @ _LUMA if image.shape[2] >= 3 else image[..., 0]
        small = torch.nn.functional.adaptive_avg_pool2d(image[None, None], self._size)
        return small[0, 0].round().to(torch.uint8).numpy()


def is_image(space: gym.Space) -> bool:
    """Whether ImageObservation takes observations of this space."""
    if isinstance(space, gym.spaces.Dict):
        return "screen" in space.spaces and is_image(space.spaces["screen"])
    if not isinstance(space, Box) or space.dtype != np.uint8:
        return False
    return len(space.shape) == 2 or len(space.shape) == 3 and space.shape[2] in (1, 3, 4)
