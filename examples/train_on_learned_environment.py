"""Train a Q-network in plain PyTorch on a learned CartPole, and test it on the real one.

From the root of a checkout: python -m examples.train_on_learned_environment
"""

import gymnasium
import torch

import understudy  # noqa: F401  registers the environments


def main(updates: int = 300) -> float:
    """Return the real CartPole's return. The learned one is a bandit: each of its episodes is one action."""
    torch.manual_seed(0)
    q_network = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(q_network.parameters(), lr=1e-3)
    learned = gymnasium.make_vec("understudy/SyntheticCartPole-v0", num_envs=32, autoreset_mode="SameStep")
    obs, _ = learned.reset(seed=0)
    for _ in range(updates):
        actions = torch.randint(2, (32, 1))
        q_values = q_network(torch.as_tensor(obs)).gather(1, actions)[:, 0]
        obs, rewards, *_ = learned.step(actions[:, 0].numpy())
        loss = torch.nn.functional.mse_loss(q_values, torch.as_tensor(rewards).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    real = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
    obs, info = real.reset(seed=0)
    while "episode" not in info:
        obs, _, _, _, info = real.step(q_network(torch.as_tensor(obs)).argmax().item())
    print(f"return on the real CartPole: {info['episode']['r']:.0f}")
    return float(info["episode"]["r"])


if __name__ == "__main__":
    main()
