"""Environments, as tensors ``[M, E, ...]``: see `envs.base.Environment`. Imports nothing."""
