"""Training on environments that Python steps: machine code against torch, in CPU time of a step with its updates.

python benchmarks/everyday.py [--json] [--quick]
"""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import common  # first: one thread, and the project on the path
from common import Result, cpu_seconds, interleave, median_ratio

from control.cli.parse import training_from
from control.loops.build import build_loop

SMALL: dict[str, Any] = {"hidden_sizes": (64, 64), "batch_size": 64}
# Name of a row -> implementation, game and settings, and the ratio that is to be reached.
ROWS: dict[str, tuple[str, str, dict[str, Any], float]] = {
    "DDQN, LunarLander": ("DDQN", "lunarlander", {}, 4.5),
    "TD3, HalfCheetah, 64-64": ("TD3", "halfcheetah", SMALL, 3.8),
    "SAC, LunarLanderContinuous, 64-64": ("SAC", "LunarLanderContinuous-v3", SMALL, 3.8),
    "PPO, LunarLander": ("PPO", "lunarlander", {}, 1.6),
}


def trained_epochs(implementation: str, game: str, settings: dict[str, Any], compiled: bool, steps: int) -> Any:
    """Return a function that trains for about ``steps`` steps and returns the CPU microseconds of each. Training has
    begun to make updates."""
    rollouts = {"rollout_steps": steps // 8, "num_envs": 8} if implementation == "PPO" else {}
    loop = build_loop(
        training_from(
            implementation=implementation,
            gamename=game,
            compiled=compiled,
            total_steps=1_000_000,
            steps_per_epoch=steps,
            **settings,
            **rollouts,
        )
    )
    loop.compile_ahead()
    loop.warm_up()
    while not loop.gradient_steps:
        loop.epoch()

    def measure() -> float:
        steps_before = int(loop.env_steps.sum())
        seconds = cpu_seconds(loop.epoch)
        return seconds / (int(loop.env_steps.sum()) - steps_before) * 1e6

    return measure


def measure_row(name: str, steps: int, rounds: int) -> dict[str, Result]:
    """Measure a row of `ROWS` in torch and in machine code, in turns."""
    implementation, game, settings, target = ROWS[name]
    contenders: dict[str, Callable[[], float]] = {
        path: trained_epochs(implementation, game, settings, path == "machine code", steps)
        for path in ("torch", "machine code")
    }
    times = interleave(contenders, rounds)
    results = {f"{name}, {path}": Result(statistics.median(values), "us") for path, values in times.items()}
    ratio = median_ratio(times["torch"], times["machine code"])
    return results | {f"{name}, ratio": Result(ratio, "times", "torch", (">=", target))}


if __name__ == "__main__":
    parts = [partial(lambda name, size: measure_row(name, *size), name) for name in ROWS]
    common.run("A step of everyday training", __doc__, parts, full=(1024, 7), quick=(128, 1))
