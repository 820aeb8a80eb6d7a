"""Gymnasium ids of our own environments; importing this registers them, and those of `understudy`. Imports no torch;
making one of our own does. They are there in a checkout of the project only, not where `understudy` was installed.

    gymnasium.make("understudy/ProcMaze-v0", grid_size=4, render_mode="rgb_array", max_episode_steps=100)
"""

from gymnasium.envs.registration import register, registry

import understudy  # noqa: F401  # registers its own
from envs.names import GAMES

for _game in GAMES.values():
    if _game.parameters and _game.gym_id not in registry:
        register(_game.gym_id, "envs.tensor_gym:TensorGym", kwargs={"dynamics": _game.dynamics})
