"""Synthetic environments: small networks that stand in for the dynamics, rewards and ends of an environment."""
