"""Gymnasium ids of our own environments; importing this registers them, and those of `understudy`. Imports no torch;
making one of our own does. They are there in a checkout of the project only, not where `understudy` was installed.

    gymnasium.make("understudy/ProcMaze-v0", grid_size=4, render_mode="rgb_array", max_episode_steps=100)
"""

from gymnasium.envs.registration import register, registry

import understudy  # noqa: F401  # registers its own

# Id -> dynamics, whose parameters `gymnasium.make` takes.
WORLDS = {
    "understudy/ProcMaze-v0": "envs.procmaze:ProcMaze",
    "understudy/OpenGrid-v0": "envs.opengrid:OpenGrid",
    "understudy/ButtonGrid-v0": "envs.buttongrid:ButtonGrid",
    "understudy/PanFlute-v0": "envs.panflute:PanFlute",
}

for _id, _dynamics in WORLDS.items():
    if _id not in registry:
        register(_id, entry_point="envs.tensor_gym:TensorGym", kwargs={"dynamics": _dynamics})
