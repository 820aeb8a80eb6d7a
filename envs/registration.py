"""Register this project's environments, and the ids of `understudy`, with Gymnasium when imported. Imports no torch;
making one of this project's environments does. The installed package `understudy` does not include these environments,
only a checkout of the project does.

    gymnasium.make("understudy/ProcMaze-v0", grid_size=4, render_mode="rgb_array", max_episode_steps=100)
"""

from envs.names import register_environments

register_environments()
