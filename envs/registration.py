"""Gymnasium ids of our own environments; importing this registers them, and those of `understudy`. Imports no torch;
making one of our own does. They are there in a checkout of the project only, not where `understudy` was installed.

    gymnasium.make("understudy/ProcMaze-v0", grid_size=4, render_mode="rgb_array", max_episode_steps=100)
"""

from envs.names import register_ours

register_ours()
