"""Policy gradients as a plain program: one environment, one observation at a time, an update on the whole batch.

The baseline of ../policy_gradients.py, like a notebook in one process. Networks, losses and learning rates are ours as
published; no logging and no parallel environments. stable-baselines3's A2C is here too.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from models.agents.policy_gradients.config import Config

OBS, ACTIONS = 8, 4  # the lander's
EPISODE_STEPS = 300


def lander() -> gym.Env:
    return gym.make("LunarLander-v3", max_episode_steps=EPISODE_STEPS, disable_env_checker=True)


def mlp(hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, units in pairwise((OBS, *hidden)):
        layers += [nn.Linear(inputs, units), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear((OBS, *hidden)[-1], outputs))


@dataclass
class Episode:
    """Observations (tensors ``[8]``), actions and rewards of T steps."""

    obs: list[Any]
    actions: list[int]
    rewards: list[float]

    def returns(self, discount: float) -> list[float]:
        """Return the reward-to-go of each step."""
        returns, running = [], 0.0
        for reward in reversed(self.rewards):
            running = reward + discount * running
            returns.append(running)
        return returns[::-1]


class PlainTraining:
    """A new policy, a lander, and a value network if ``config.baseline`` is ``value``. Call `update` repeatedly."""

    def __init__(self, config: Config, seed: int):
        torch.manual_seed(seed)
        self.config, self.env, self.seed = config, lander(), seed
        self.policy = mlp(config.hidden_sizes, ACTIONS)
        self.critic = mlp(config.value_hidden_sizes, 1) if config.baseline == "value" else None
        groups: list[dict[str, Any]] = [{"params": self.policy.parameters()}]
        if self.critic is not None:
            groups.append({"params": self.critic.parameters(), "lr": config.value_lr or config.lr})
        self.optimizer = torch.optim.Adam(groups, lr=config.lr, eps=config.adam_eps)

    def update(self) -> int:
        """Play a batch and learn from it. Return the environment steps."""
        episodes = [self.play() for _ in range(self.config.batch_episodes)]
        self.learn(episodes)
        return sum(len(episode.actions) for episode in episodes)

    @torch.no_grad()
    def play(self) -> Episode:
        """Play an episode with sampled actions."""
        episode, done = Episode([], [], []), False
        obs, _ = self.env.reset(seed=self.seed)
        self.seed += 1
        while not done:
            probabilities = torch.softmax(self.policy(torch.as_tensor(obs)), dim=-1)
            action = int(torch.multinomial(probabilities, 1))
            episode.obs.append(torch.as_tensor(obs))
            obs, reward, terminated, truncated, _ = self.env.step(action)
            episode.actions.append(action)
            episode.rewards.append(float(reward))
            done = terminated or truncated
        return episode

    def learn(self, episodes: list[Episode]) -> None:
        """Make one step of Adam on all steps of the episodes."""
        config = self.config
        obs = torch.stack([row for episode in episodes for row in episode.obs])
        actions = torch.tensor([action for episode in episodes for action in episode.actions])
        returns = torch.tensor([value for episode in episodes for value in episode.returns(config.discount)])
        log_p = torch.log_softmax(self.policy(obs), dim=1)
        values = None if self.critic is None else self.critic(obs).squeeze(1)
        weights = returns - self.baseline(returns, values)
        loss = -(weights * log_p.gather(1, actions.unsqueeze(1)).squeeze(1)).mean()
        if config.beta > 0:
            entropy = -(log_p.exp() * log_p).sum(1) / torch.tensor(float(ACTIONS)).log()
            loss = loss - config.beta * entropy.mean()
        if values is not None:
            loss = loss + config.delta * (values - returns).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def baseline(self, returns: Tensor, values: Tensor | None) -> Tensor:
        """Return what is subtracted from the returns: the critic's ``values``, the mean return of the batch, or 0."""
        if values is not None:
            return values.detach()
        return returns.mean() if self.config.baseline == "batch_mean" else torch.zeros(())


def stable_baselines(config: Config, envs: int, value_hidden: tuple[int, ...], seed: int) -> Any:
    """Return a new A2C of stable-baselines3 with default settings (5 steps of each environment per update).

    The policy has the hidden layers of ``config``, with ReLU. The value network has ``value_hidden`` layers; it is
    linear if they are empty. Monitor and logger are off.
    """
    from stable_baselines3 import A2C
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.vec_env import DummyVecEnv

    layers = {"pi": list(config.hidden_sizes), "vf": list(value_hidden)}
    model = A2C(
        "MlpPolicy",
        DummyVecEnv([lander] * envs),
        device="cpu",
        seed=seed,
        policy_kwargs={"net_arch": layers, "activation_fn": nn.ReLU},
    )
    model.set_logger(Logger(None, []))  # the default creates a folder
    return model
