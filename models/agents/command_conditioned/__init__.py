"""Upside-Down RL and Reward-Conditioned Policies: supervised learning of actions that obtained what is commanded."""
