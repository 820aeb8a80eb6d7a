"""Measure how much a baseline reduces the variance of a policy gradient, and whether a critic fitted to q learns v.

    python experiments/policy_gradients/baseline.py --game beresheet --batches 100

A random policy, which never trains, plays many batches of episodes. Every batch gives one estimate of the policy
gradient for each of three weights: the reward-to-go q, q minus the batch's mean, and q minus v(s) of a critic that was
fitted to q of other episodes. The spread of the estimates is the variance of a training step.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from envs.names import resolve
from experiments.comparison import check_counts, run_script, script_flags

DISCOUNT = 0.99
CRITIC_STEPS = 500


class Batch(NamedTuple):
    """The N steps of whole episodes: ``states [N, O]``, ``actions [N]``, rewards-to-go ``q [N]``, first steps
    ``[N]``."""

    states: Tensor
    actions: Tensor
    q: Tensor
    is_first: Tensor


def network(inputs: int, outputs: int) -> nn.Module:
    """Return a network with two layers of 64 units."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


def play(env: gym.Env, policy: nn.Module, episodes: int) -> Batch:
    """Play episodes with sampled actions."""
    states, actions, q_values, is_first = [], [], [], []
    for _ in range(episodes):
        state, done = env.reset()[0], False
        rewards: list[float] = []
        while not done:
            with torch.no_grad():
                action = int(torch.distributions.Categorical(logits=policy(torch.as_tensor(state))).sample())
            states.append(torch.as_tensor(state))
            actions.append(action)
            is_first.append(not rewards)
            state, reward, terminated, truncated, _ = env.step(action)
            rewards.append(float(reward))
            done = terminated or truncated
        q = torch.zeros(len(rewards) + 1)
        for t in reversed(range(len(rewards))):
            q[t] = rewards[t] + DISCOUNT * q[t + 1]
        q_values.append(q[:-1])
    return Batch(torch.stack(states), torch.tensor(actions), torch.cat(q_values), torch.tensor(is_first))


def gradient(policy: nn.Module, batch: Batch, weights: Tensor) -> Tensor:
    """Return the gradient of ``-mean(weights * log pi(a|s))`` as one flat vector."""
    log_pi = torch.distributions.Categorical(logits=policy(batch.states)).log_prob(batch.actions)
    loss = -(weights * log_pi).mean()
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(policy.parameters()))])


def fitted_critic(batch: Batch) -> nn.Module:
    """Fit a network to q by least squares; its optimum is the mean of q in a state, v(s)."""
    critic = network(batch.states.shape[1], 1)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
    for _ in range(CRITIC_STEPS):
        loss = (critic(batch.states)[:, 0] - batch.q).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return critic


def measure(game: str, batches: int, episodes: int, critic_episodes: int, seed: int) -> None:
    """Play all batches and print the table."""
    game_spec = resolve(game)
    limit: dict[str, Any] = {"max_episode_steps": game_spec.kwargs.get("max_episode_steps")}  # None: Gymnasium's limit
    env: Any = gym.make(game_spec.gym_id, **limit)
    torch.manual_seed(seed)
    env.reset(seed=seed)
    policy = network(env.observation_space.shape[0], int(env.action_space.n))
    critic = fitted_critic(play(env, policy, critic_episodes))
    gradients_by_weight: dict[str, list[Tensor]] = {"q": [], "q - mean(q)": [], "q - v(s)": []}
    first_values = []  # mean q and v of the first states, of each batch
    for _ in range(batches):
        batch = play(env, policy, episodes)
        with torch.no_grad():
            v = critic(batch.states)[:, 0]
        gradients_by_weight["q"].append(gradient(policy, batch, batch.q))
        gradients_by_weight["q - mean(q)"].append(gradient(policy, batch, batch.q - batch.q.mean()))
        gradients_by_weight["q - v(s)"].append(gradient(policy, batch, batch.q - v))
        first_values.append(torch.stack((batch.q[batch.is_first].mean(), v[batch.is_first].mean())))
    print(f"{game}, {batches} batches of {episodes} episodes, one policy, seed {seed}\n")
    print(f"{'weight':<12} {'length of the mean':>18} {'standard deviation':>18} {'variance, q is 1':>16}")
    base_variance = torch.stack(gradients_by_weight["q"]).var(0).sum()
    for name, gradients in gradients_by_weight.items():
        mean, variance = torch.stack(gradients).mean(0), torch.stack(gradients).var(0).sum()
        print(f"{name:<12} {mean.norm():>18.3f} {variance.sqrt():>18.3f} {variance / base_variance:>16.3f}")
    q, v = torch.stack(first_values).mean(0)
    print(f"\nin first states: mean q {q:.1f}, mean v {v:.1f}")
    env.close()


def main() -> None:
    parser = script_flags(__doc__)
    parser.add_argument("--game", default="cartpole", help="an environment with vectors and discrete actions")
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--episodes", type=int, default=8, help="episodes of a batch")
    parser.add_argument("--critic_episodes", type=int, default=200, help="episodes that the critic is fitted to")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    check_counts(options, batches=2, episodes=1, critic_episodes=1)
    measure(options.game, options.batches, options.episodes, options.critic_episodes, options.seed)


if __name__ == "__main__":
    sys.exit(run_script(main))
