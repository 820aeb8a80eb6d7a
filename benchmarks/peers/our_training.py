"""This project's agents: the loop that `trainer.py` trains with, epoch by epoch."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from training import Case, main

import trainer

PACKAGES = ("torch",)
GAMES = {"CartPole-v1": "cartpole", "Pendulum-v1": "pendulum"}
ENDLESS = 1_000_000  # epochs, so that nothing ends or is annealed while it is timed


def trainer_of(case: Case) -> Callable[[int], int]:
    """Return the function that `training.serve` times. It trains for a number of units and returns the steps."""
    values: dict[str, Any] = {
        "implementation": case.agent, "gamename": GAMES[case.game], "num_seeds": case.members, "seed": 0,
        "steps_per_epoch": case.unit, "epochs": ENDLESS, "hidden_sizes": case.hidden, "batch_size": case.batch,
        "num_envs": case.envs,
    }  # fmt: skip
    if case.rollout:
        values |= {"rollout_steps": case.rollout, "ppo_epochs": case.passes}
    else:
        values |= {"buffer_size": case.buffer, "fill": 1, "init_episodes": 0, "tau": 0.01}
    loop: Any = trainer.module(**values).loop

    def train(units: int) -> int:
        before = int(loop.env_steps.sum())
        for _ in range(units):
            loop.epoch()
        return int(loop.env_steps.sum()) - before

    return train


def first_result(game: str, seed: int) -> int:
    raise NotImplementedError("its whole command is trainer.py")


if __name__ == "__main__":
    main(trainer_of, first_result, PACKAGES)
