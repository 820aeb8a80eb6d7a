"""Register this project's environments, and the ids of `understudy`, with Gymnasium when imported. Imports no torch.
The installed package `understudy` does not include these environments, only a checkout of the project does."""

from envs.names import register_environments

register_environments()
