"""Synthetic environments: small networks give the dynamics, rewards and ends of an environment."""
