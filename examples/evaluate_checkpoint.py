"""Evaluate a checkpoint, also in another environment: python -m examples.evaluate_checkpoint RUN_FOLDER"""

import sys

import trainer


def main(path: str, episodes: int = 20) -> float:
    """Return the mean greedy return. ``path`` is a run folder, whose best checkpoint plays, or a checkpoint."""
    run = trainer.load(path)
    result = run.evaluate(episodes=episodes)
    print(f"{path}: mean {result.mean:.1f}, worst episode {result.returns.min():.1f}")
    long_pole = run.evaluate(episodes=episodes, gamename="cartpole,half_length=1")
    print(f"with a pole twice as long: mean {long_pole.mean:.1f}")
    return float(result.mean)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else sys.exit(__doc__))
