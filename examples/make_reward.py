"""Learn a reward for Cliff and give it to any agent: python -m examples.make_reward, from the root of a checkout."""

from typing import Any

import gymnasium

import trainer
import understudy


def main(**settings: Any) -> gymnasium.Env[Any, Any]:
    """Return CliffWalking with the learned reward. The search takes some twenty CPU seconds; ``settings`` change it."""
    search = trainer.train(
        implementation="RN", gamename="cliff", agent="QLearning", mode="additive_potential", seed=0, **settings
    )
    print(search.verdict["sentence"])
    env = understudy.RewardWrapper(gymnasium.make("CliffWalking-v1"), search.folder / "proxy.safetensors")
    env.reset(seed=0)
    _, reward, _, _, info = env.step(0)
    print(f"one step up: learned reward {reward:.3g}, the task's {info['native_reward']:.0f}")
    return env


if __name__ == "__main__":
    main()
