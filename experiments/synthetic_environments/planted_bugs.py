"""Does a learned environment tell a correct implementation of DQN or PPO from one with a bug? Both are written here in
plain PyTorch, train on learned CartPoles, and are tested on the real one. Each bug is planted in one line.

    python experiments/synthetic_environments/planted_bugs.py --json results.json
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

import understudy  # noqa: F401  registers the synthetic environments
from control.reports.figures import write_numbers
from experiments.comparison import Layout, check_options, run_script, script_flags

IDS = {
    "bandit": "understudy/SyntheticCartPole-v0",
    "broad": "understudy/SyntheticCartPoleMDPBroad-v0",
    "real": "CartPole-v1",
}
NUM_ENVS, BATCH, DISCOUNT = 16, 64, 0.99
DQN_BUGS = (
    "next observations stored as observations",
    "rewards of the sample before",
    "value of the best action trained",
    "losses of shape [64, 64]",
    "minimum of the next values",
    "target network never updated",
    "values beyond the end",
)
PPO_BUGS = (
    "minus the advantages",
    "advantages of another environment",
    "advantages of the step before",
    "logits in place of log-probabilities",
    "ratio upside down",
    "entropy minimised",
    "maximum in place of minimum",
    "advantages across episodes",
)


def network(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def floats(array: Any) -> Tensor:
    return torch.as_tensor(np.asarray(array), dtype=torch.float32)


class Steps:
    """Environments side by side. A step returns the observation after it, also at the end of an episode."""

    def __init__(self, env_id: str, seed: int):
        torch.manual_seed(seed)
        # The synthetic environments are vectors themselves. Gymnasium's own vector of CartPole has no such mode.
        is_synthetic = env_id.startswith("understudy/")
        mode: dict[str, Any] = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        options: dict[str, Any] = mode if is_synthetic else {"vectorization_mode": "sync", "vector_kwargs": mode}
        self.envs = gymnasium.make_vec(env_id, NUM_ENVS, **options)
        self.obs = floats(self.envs.reset(seed=seed)[0])

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return next observations, rewards, terminations and ends, by termination or time limit."""
        obs, rewards, terminated, truncated, infos = self.envs.step(actions.numpy())
        self.obs, next_obs = floats(obs), floats(obs).clone()
        for i in np.flatnonzero(terminated | truncated):
            next_obs[i] = floats(infos["final_obs"][i])
        return next_obs, floats(rewards), floats(terminated), floats(terminated | truncated)


def train_dqn(env_id: str, bug: str, seed: int, updates: int) -> nn.Sequential:
    """Train a double DQN with a ``bug`` of `DQN_BUGS` ("" for none), and return its network of action values. There is
    an update for each step of all environments."""
    steps, q, target = Steps(env_id, seed), network(2), network(2)
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), 1e-3)
    memory = [torch.zeros(updates, NUM_ENVS, *shape) for shape in ((4,), (), (), (4,), ())]
    for update in range(updates):
        obs, is_random = steps.obs, torch.rand(NUM_ENVS) < max(0.05, 1 - 2 * update / updates)
        with torch.no_grad():
            actions = torch.where(is_random, torch.randint(2, (NUM_ENVS,)), q(obs).argmax(1))
        next_obs, rewards, terminated, _ = steps.step(actions)
        if bug == "next observations stored as observations":
            obs = steps.obs
        for column, values in zip(memory, (obs, actions, rewards, next_obs, terminated), strict=True):
            column[update] = values
        rows = torch.randint(update + 1, (BATCH,)), torch.randint(NUM_ENVS, (BATCH,))
        obs, actions, rewards, next_obs, terminated = (column[rows] for column in memory)
        with torch.no_grad():
            next_values = target(next_obs).gather(1, q(next_obs).argmax(1, keepdim=True))[:, 0]
            if bug == "minimum of the next values":
                next_values = target(next_obs).amin(1)
            if bug == "rewards of the sample before":
                rewards = rewards.roll(1)
            goes_on = torch.ones(BATCH) if bug == "values beyond the end" else 1 - terminated
            target_values = rewards + DISCOUNT * goes_on * next_values
        values = q(obs).gather(1, actions[:, None].long())[:, 0]
        if bug == "value of the best action trained":
            values = q(obs).amax(1)
        errors = values[:, None] - target_values if bug == "losses of shape [64, 64]" else values - target_values
        minimise(errors.square().mean(), optimizer)
        if bug != "target network never updated":
            for slow, fast in zip(target.parameters(), q.parameters(), strict=True):
                slow.data.lerp_(fast.data, 0.05)
    return q


def minimise(loss: Tensor, optimizer: torch.optim.Optimizer, max_norm: float = 10.0) -> None:
    """Make a step of the optimizer, with gradients clipped at ``max_norm``."""
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], max_norm)
    optimizer.step()


def train_ppo(env_id: str, bug: str, seed: int, updates: int) -> nn.Sequential:
    """Train PPO with a ``bug`` of `PPO_BUGS` ("" for none), and return its policy. It makes about ``updates`` updates:
    ten passes over each rollout of 32 steps."""
    steps, policy, critic = Steps(env_id, seed), network(2), network(1)
    optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], 1e-3)
    for _ in range(max(1, updates // 80)):
        rollout = []
        for _ in range(32):
            obs = steps.obs
            with torch.no_grad():
                choice = torch.distributions.Categorical(logits=policy(obs))
                actions = choice.sample()
            rollout.append((obs, actions, choice.log_prob(actions), *steps.step(actions)))
        obs, actions, log_probs, next_obs, rewards, terminated, ended = map(torch.stack, zip(*rollout, strict=True))
        with torch.no_grad():
            values, next_values = critic(obs)[..., 0], critic(next_obs)[..., 0]
        if bug == "advantages across episodes":
            terminated, ended = torch.zeros_like(terminated), torch.zeros_like(ended)
        advantages, running = torch.zeros_like(rewards), torch.zeros(NUM_ENVS)
        for t in reversed(range(32)):
            error = rewards[t] + DISCOUNT * (1 - terminated[t]) * next_values[t] - values[t]
            running = error + DISCOUNT * 0.95 * (1 - ended[t]) * running
            advantages[t] = running
        returns = advantages + values
        if bug == "minus the advantages":
            advantages = -advantages
        if bug in ("advantages of another environment", "advantages of the step before"):
            advantages = advantages.roll(1, 1 if bug == "advantages of another environment" else 0)
        columns = [column.flatten(0, 1) for column in (obs, actions, log_probs, advantages, returns)]
        for _ in range(10):
            for rows in torch.randperm(32 * NUM_ENVS).split(BATCH):
                losses = ppo_losses(policy, critic, bug, *(column[rows] for column in columns))
                minimise(losses, optimizer, 0.5)
    return policy


def ppo_losses(
    policy: nn.Module,
    critic: nn.Module,
    bug: str,
    obs: Tensor,
    actions: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    returns: Tensor,
) -> Tensor:
    """Return the loss of a minibatch, the sum of the losses of policy, critic and entropy."""
    logits = policy(obs)
    all_log_probs = logits.log_softmax(1)
    scores = logits if bug == "logits in place of log-probabilities" else all_log_probs
    log_ratio = scores.gather(1, actions[:, None])[:, 0] - old_log_probs
    ratio = (-log_ratio if bug == "ratio upside down" else log_ratio).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    smaller = torch.maximum if bug == "maximum in place of minimum" else torch.minimum
    surrogate = smaller(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    entropy = -(all_log_probs.exp() * all_log_probs).sum(1).mean()
    weight = -1.0 if bug == "entropy minimised" else 0.01
    return 0.5 * (critic(obs)[:, 0] - returns).square().mean() - surrogate - weight * entropy


def real_return(preferences: nn.Module, episodes: int) -> float:
    """Return the mean return on the real CartPole of the actions with the highest ``preferences``."""
    envs, total, alive = gymnasium.make_vec("CartPole-v1", num_envs=episodes), 0.0, np.ones(episodes, bool)
    obs, _ = envs.reset(seed=1000)
    while alive.any():
        obs, rewards, terminated, truncated, _ = envs.step(preferences(floats(obs)).argmax(1).numpy())
        total += float(rewards[alive].sum())
        alive &= ~(terminated | truncated)
    return total / episodes


AGENTS: dict[str, tuple[Callable[[str, str, int, int], nn.Sequential], tuple[str, ...], int]] = {
    "DQN": (train_dqn, DQN_BUGS, 1000),
    "PPO": (train_ppo, PPO_BUGS, 1600),
}  # function, bugs, updates


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("--json", type=Path)
    flags.add_argument("--agents", nargs="+", choices=list(AGENTS), default=list(AGENTS))
    flags.add_argument("--on", nargs="+", choices=list(IDS), default=["bandit"])
    flags.add_argument("--bugs", nargs="+", default=None, help="these alone; '' is the correct form")
    flags.add_argument("--seeds", type=int, default=3)
    flags.add_argument("--updates", type=int, help="of an agent (DQN 1,000, PPO 1,600)")
    flags.add_argument("--episodes", type=int, default=10)
    options = flags.parse_args(argv)
    return run_script(lambda: make(options))


def make(options: argparse.Namespace) -> None:
    """Train and test all agents. Raises SettingError before the first if an option is wrong."""
    check_options(options, Layout(("returns", "cpu_seconds"), 1), seeds=1, episodes=1)
    torch.set_num_threads(1)
    results: dict[str, dict[str, Any]] = {}
    for kind in options.agents:
        train, bugs, updates = AGENTS[kind]
        for where in options.on:
            for bug in options.bugs or ("", *bugs):
                started = time.process_time()
                networks = [train(IDS[where], bug, seed, options.updates or updates) for seed in range(options.seeds)]
                seconds = (time.process_time() - started) / options.seeds
                returns = [real_return(trained, options.episodes) for trained in networks]
                name = f"{kind} on {where}, {bug or 'correct'}"
                results[name] = {"returns": returns, "cpu_seconds": seconds}
                print(f"{name}: {', '.join(f'{value:.0f}' for value in returns)}  ({seconds:.1f} s)", flush=True)
    if options.json:
        write_numbers(options.json, results)


if __name__ == "__main__":
    sys.exit(main())
