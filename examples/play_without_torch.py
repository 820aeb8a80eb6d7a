"""Play an exported agent with NumPy alone: python -m examples.play_without_torch agent.safetensors

To export one: python trainer.py --eval_agent RUN_FOLDER --export agent.safetensors
"""

import sys

import gymnasium

import understudy


def main(path: str, env_id: str = "CartPole-v1") -> float:
    """Return the return of an episode with the greedy actions."""
    policy, env = understudy.Policy(path), gymnasium.make(env_id)
    obs, _ = env.reset(seed=0)
    command, total, done = policy.command, 0.0, False
    while not done:
        obs, reward, terminated, truncated, _ = env.step(policy(obs, command))
        command = policy.advance(command, reward)  # counts down the return of UDRL; most agents have no command
        total, done = total + float(reward), terminated or truncated
    print(f"{policy}: return {total:.1f}")
    return total


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else sys.exit(__doc__))
