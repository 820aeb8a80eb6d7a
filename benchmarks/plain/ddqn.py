"""DDQN on a synthetic environment as a plain program: one agent, one observation at a time, autograd in the update.

The baseline of ../evolution.py: no batching over agents. Same networks, settings and order of work as ours; no early
stop and no logging. Source: Ferreira et al. 2022, arXiv 2202.02790, and its public code.
"""

import copy
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor, nn

STATE, ACTIONS = 4, 2  # CartPole's
EPISODE_STEPS = 200


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of the agent, and the width of the environment's networks. With ``raw_done``, the replay buffer
    stores the raw output of the done network, as published, otherwise whether the output exceeds 0.5."""

    hidden: int
    activation: type[nn.Module]
    batch: int
    lr: float
    discount: float
    tau: float
    eps_init: float
    eps_min: float
    eps_decay: float
    environment_hidden: int
    raw_done: bool
    capacity: int = 100_000
    init_episodes: int = 1  # episodes before the first update


PRESETS = {
    "paper": Settings(57, nn.Tanh, 199, 0.000304, 0.988, 0.00848, 0.809, 0.0371, 0.961, 83, True),
    "recipe": Settings(64, nn.ReLU, 32, 1e-3, 0.99, 0.01, 1.0, 0.01, 0.9, 128, False),
}


def mlp(inputs: int, hidden: int, outputs: int, activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), activation, nn.Linear(hidden, outputs))


@torch.no_grad()
def take_weights(network: nn.Sequential, layers: Iterable[tuple[Tensor, Tensor]], member: int) -> None:
    """Copy the weights of one member into ``network``. ``layers`` are of all members, from `models.mlp.MLP.layers`."""
    linear = [module for module in network if isinstance(module, nn.Linear)]
    for layer, (weight, bias) in zip(linear, layers, strict=True):
        layer.weight.copy_(weight[member])
        layer.bias.copy_(bias[member, :, 0])


class SyntheticEnvironment:
    """Three networks that map ``[action, state]`` to the next state, the reward and the done output."""

    def __init__(self, settings: Settings):
        self.raw_done = settings.raw_done
        hidden, inputs = settings.environment_hidden, ACTIONS + STATE
        self.state_net = mlp(inputs, hidden, STATE, nn.LeakyReLU())
        self.reward_net = mlp(inputs, hidden, 1, nn.LeakyReLU())
        self.done_net = mlp(inputs, hidden, 1, nn.LeakyReLU())
        self.one_hot = torch.eye(ACTIONS)
        self.state, self.age = torch.zeros(STATE), 0

    def reset(self) -> Tensor:
        """Start an episode in a state from CartPole's initial distribution."""
        self.state, self.age = torch.rand(STATE) * 0.1 - 0.05, 0
        return self.state

    @torch.no_grad()
    def step(self, action: int) -> tuple[Tensor, Tensor, Tensor | bool, bool]:
        """Return the next state ``[4]``, the reward ``[1]``, the done value to store, and whether the episode ends."""
        x = torch.cat((self.one_hot[action], self.state))
        self.state, reward, raw = self.state_net(x), self.reward_net(x), self.done_net(x)
        self.age += 1
        terminated = raw.item() > 0.5
        return self.state, reward, raw if self.raw_done else terminated, terminated or self.age >= EPISODE_STEPS


class Replay:
    """The latest ``capacity`` transitions."""

    def __init__(self, capacity: int):
        self.capacity, self.size, self.position = capacity, 0, 0
        self.obs, self.next_obs = torch.empty(capacity, STATE), torch.empty(capacity, STATE)
        self.action = torch.empty(capacity, 1, dtype=torch.int64)
        self.reward, self.done = torch.empty(capacity, 1), torch.empty(capacity, 1)

    @property
    def fields(self) -> tuple[Tensor, ...]:
        return self.obs, self.action, self.next_obs, self.reward, self.done

    def add(self, obs: Tensor, action: int, next_obs: Tensor, reward: Tensor, done: Tensor | bool) -> None:
        i = self.position
        self.obs[i], self.action[i], self.next_obs[i] = obs, action, next_obs
        self.reward[i], self.done[i] = reward, done
        self.position = (i + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, batch: int) -> tuple[Tensor, ...]:
        """Sample observations ``[B, 4]``, actions ``[B, 1]``, next observations, rewards and dones ``[B, 1]``."""
        return self.at(torch.randint(self.size, (batch,)))

    def at(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the transitions with the indices ``rows [B]``."""
        return tuple(field[rows] for field in self.fields)


class PlainTraining:
    """A new agent on one synthetic environment. Call `run` repeatedly to continue."""

    def __init__(self, settings: Settings, seed: int):
        torch.manual_seed(seed)
        self.settings, self.random = settings, random.Random(seed)
        self.online = mlp(STATE, settings.hidden, ACTIONS, settings.activation())
        self.target = copy.deepcopy(self.online)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=settings.lr)
        self.memory, self.environment = Replay(settings.capacity), SyntheticEnvironment(settings)
        self.episode, self.epsilon = 0, settings.eps_init
        self.obs = self.environment.reset()

    def run(self, steps: int) -> None:
        """Train for this number of environment steps, with an update after each step."""
        settings = self.settings
        for _ in range(steps):
            action = self.act(self.obs)
            next_obs, reward, done, episode_done = self.environment.step(action)
            self.memory.add(self.obs, action, next_obs, reward, done)
            if self.episode >= settings.init_episodes:
                self.update(*self.memory.sample(settings.batch))
            self.obs = next_obs
            if episode_done:
                self.obs = self.environment.reset()
                self.episode += 1
                self.epsilon = max(settings.eps_min, self.epsilon * settings.eps_decay)

    @torch.no_grad()
    def act(self, obs: Tensor) -> int:
        if self.random.random() < self.epsilon:
            return self.random.randrange(ACTIONS)
        return int(self.online(obs).argmax())

    def update(self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, done: Tensor) -> None:
        """Make one update of double Q-learning from a batch (`Replay.sample`), and move the target network."""
        with torch.no_grad():
            next_action = self.online(next_obs).argmax(1, keepdim=True)
            td_target = reward + self.settings.discount * (1 - done) * self.target(next_obs).gather(1, next_action)
        loss = F.mse_loss(self.online(obs).gather(1, action), td_target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for target, online in zip(self.target.parameters(), self.online.parameters(), strict=True):
                target.lerp_(online, self.settings.tau)


def cartpole() -> gym.Env:
    return gym.make("CartPole-v1", max_episode_steps=EPISODE_STEPS)


@torch.no_grad()
def test(network: nn.Module, env: gym.Env, seeds: Iterable[int]) -> list[float]:
    """Play a greedy episode per seed on the real environment. Return the returns."""
    returns = []
    for seed in seeds:
        obs, _ = env.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            obs, reward, terminated, truncated, _ = env.step(int(network(torch.as_tensor(obs)).argmax()))
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def play(env: gym.Env, actions: Iterable[int]) -> None:
    """Play a fixed sequence of actions, with a reset after each episode."""
    env.reset(seed=0)
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()


def stable_baselines(settings: Settings) -> Any:
    """Return stable-baselines3's DQN with the same sizes and updates per step on CartPole, past its first updates.

    It is not a double DQN, has a Huber loss and clips gradients. It explores little, as agents do late in training.
    """
    from stable_baselines3 import DQN

    model = DQN(
        "MlpPolicy",
        cartpole(),
        learning_rate=settings.lr,
        buffer_size=settings.capacity,
        learning_starts=settings.batch,
        batch_size=settings.batch,
        tau=settings.tau,
        gamma=settings.discount,
        train_freq=1,
        gradient_steps=1,
        target_update_interval=1,
        exploration_initial_eps=settings.eps_min,
        exploration_final_eps=settings.eps_min,
        device="cpu",
        seed=0,
        policy_kwargs={"net_arch": [settings.hidden], "activation_fn": settings.activation},
    )
    return model.learn(2 * settings.batch)
