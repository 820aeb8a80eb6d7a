"""Train an agent in plain PyTorch on a learned CartPole, and test it on the real one.

From the root of a checkout: python -m examples.train_on_learned_environment
"""

import gymnasium
import numpy as np
import torch

import understudy  # noqa: F401  registers the environments


def main(updates: int = 300) -> float:
    """Return the mean of ten returns on the real CartPole. The learned one is a bandit: an episode is one action."""
    torch.manual_seed(0)
    learned = gymnasium.make_vec("understudy/SyntheticCartPole-v0", num_envs=32, autoreset_mode="SameStep")
    values = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(values.parameters(), lr=1e-3)
    obs, _ = learned.reset(seed=0)
    for _ in range(updates):
        actions = torch.randint(2, (32,))
        predicted = values(torch.as_tensor(obs, dtype=torch.float32))[torch.arange(32), actions]
        obs, rewards, *_ = learned.step(actions.numpy())
        loss = (predicted - torch.as_tensor(rewards, dtype=torch.float32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    real, total, alive = gymnasium.make_vec("CartPole-v1", num_envs=10), 0.0, np.ones(10, bool)
    obs, _ = real.reset(seed=0)
    while alive.any():
        obs, rewards, terminated, truncated, _ = real.step(values(torch.as_tensor(obs)).argmax(1).numpy())
        total += float(rewards[alive].sum())
        alive &= ~(terminated | truncated)
    print(f"mean return on the real CartPole: {total / 10:.1f}")
    return total / 10


if __name__ == "__main__":
    main()
