"""Upside-Down RL as a plain program: one environment, one observation at a time, samples fetched one by one.

The baseline of ../udrl.py: no batching, like the first public implementation. Same network, settings and commands as
ours; no logging and no validation.
"""

from collections.abc import Mapping

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

BATCH, ROLLOUTS = 768, 20
CAPACITY, LAST_FEW, MAX_RETURN = 100_000, 75, 320.0
LEARNING_RATE, CLIP = 3.5e-4, 100.0
SCALES = (0.025, 0.01)  # of the return and the horizon

Episode = dict[str, np.ndarray]


class BehaviorPolicy(nn.Module):
    """``tanh(W_s obs) * sigmoid(W_c command)``, three ReLU layers, four logits: 38 148 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.state_fc = nn.Sequential(nn.Linear(8, 32), nn.Tanh())
        self.command_fc = nn.Sequential(nn.Linear(2, 32), nn.Sigmoid())
        self.output_fc = nn.Sequential(
            nn.Linear(32, 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, 4),
        )
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor(SCALES), persistent=False)

    def forward(self, obs: Tensor, command: Tensor) -> Tensor:
        return self.output_fc(self.state_fc(obs) * self.command_fc(command * self.scale))

    def take_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights of member 0 of the project's network, from `models.layers.Network.named_weights`."""
        first_member = {name: values[0] for name, values in weights.items()}
        self.load_state_dict({name: value.T if value.dim() == 2 else value for name, value in first_member.items()})


class SortedSteps(Dataset):
    """Replay buffer of steps in arrays, best episodes first. An item is one step as a dict of tensors."""

    def __init__(self) -> None:
        self.fields: Episode = {}

    def __len__(self) -> int:
        return len(self.fields["cum_rew"])

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {name: torch.as_tensor(values[i]) for name, values in self.fields.items()}

    def add(self, episode: Episode) -> None:
        """Insert an episode before all episodes with lower returns."""
        if not self.fields:
            self.fields = episode
            return
        place = np.searchsorted(-self.fields["cum_rew"], -episode["cum_rew"][0])
        for name, values in episode.items():
            self.fields[name] = np.insert(self.fields[name], place, values, axis=0)[:CAPACITY]

    def commands(self) -> tuple[float, float, float]:
        """Return mean and standard deviation of the best returns, and the mean length of their episodes."""
        best, first = np.unique(self.fields["cum_rew"], return_index=True)
        best, first = best[-LAST_FEW:], first[-LAST_FEW:]
        return float(best.mean()), float(best.std()), float(round(self.fields["rollout_length"][first].mean()))


class PlainLoop:
    """Plain training loop. An epoch is `updates`, then `rollouts`."""

    def __init__(self) -> None:
        self.policy, self.memory = BehaviorPolicy(), SortedSteps()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=LEARNING_RATE)
        self.env = gym.make("LunarLander-v3")
        self.random = np.random.default_rng(0)

    def updates(self, count: int) -> None:
        """Make ``count`` updates of the policy, each from a batch of random steps."""
        sampler = RandomSampler(self.memory, replacement=True, num_samples=count * BATCH)
        for batch in DataLoader(self.memory, batch_sampler=BatchSampler(sampler, BATCH, drop_last=False)):
            logits = self.policy(batch["obs"], torch.stack([batch["rtg"], batch["horizon"]], dim=1))
            loss = F.cross_entropy(logits, batch["action"])
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.policy.parameters(), CLIP)
            self.optimizer.step()

    def rollouts(self) -> int:
        """Play `ROLLOUTS` episodes and store them. Return the environment steps."""
        commands = self.memory.commands()
        episodes = [self._episode(*commands) for _ in range(ROLLOUTS)]
        for episode in episodes:
            self.memory.add(episode)
        return sum(len(episode["action"]) for episode in episodes)

    @torch.no_grad()
    def _episode(self, mean: float, spread: float, horizon: float) -> Episode:
        """Play an episode. The commanded return is uniform between ``mean`` and ``mean + spread``, and the command
        changes with each step: the return by the reward, the horizon by 1."""
        desired_return = min(self.random.uniform(mean, mean + spread), MAX_RETURN)
        observations, next_observations, actions, rewards, done = [], [], [], [], False
        obs, _ = self.env.reset(seed=int(self.random.integers(2**31)))
        while not done:
            command = torch.tensor([[desired_return, horizon]], dtype=torch.float32)
            logits = self.policy(torch.as_tensor(obs).unsqueeze(0), command)
            action = int(torch.distributions.Categorical(logits=logits).sample())
            observations.append(obs)
            obs, reward, terminated, truncated, _ = self.env.step(action)
            next_observations.append(obs)
            actions.append(action)
            rewards.append(float(reward))
            desired_return = min(desired_return - rewards[-1], MAX_RETURN)
            horizon = max(horizon - 1, 1)
            done = terminated or truncated
        steps, reward_array = len(actions), np.array(rewards, np.float32)
        return {  # arrays [T, ...] of an episode of T steps
            "obs": np.stack(observations),
            "obs2": np.stack(next_observations),
            "action": np.array(actions),
            "rtg": np.cumsum(reward_array[::-1], dtype=np.float32)[::-1].copy(),
            "cum_rew": np.full(steps, reward_array.sum(), np.float32),
            "horizon": np.arange(steps, 0, -1, dtype=np.float32),
            "rollout_length": np.full(steps, steps, np.float32),
        }
