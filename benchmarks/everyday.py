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
from control.evolution.inner_loop import InnerLoop
from control.loops.build import build_loop
from models.streams import Streams

SMALL: dict[str, Any] = {"hidden_sizes": (64, 64), "batch_size": 64}
ONE_LAYER: dict[str, Any] = {"hidden_sizes": (64,), "batch_size": 32, "num_envs": 1, "updates_per_step": 1}
BATCHES: dict[str, Any] = {"batch_size": 512, "ppo_epochs": 6}
PLAIN: dict[str, Any] = BATCHES | {"normalize_obs": False, "normalize_reward": False}
# Name of a row -> implementation, game and settings, and the ratio that is to be reached.
ROWS: dict[str, tuple[str, str, dict[str, Any], float]] = {
    "DDQN, LunarLander": ("DDQN", "lunarlander", ONE_LAYER, 4.5),
    "TD3, HalfCheetah, 64-64": ("TD3", "halfcheetah", SMALL, 3.8),
    "SAC, LunarLanderContinuous, 64-64": ("SAC", "LunarLanderContinuous-v3", SMALL, 3.8),
    "PPO, LunarLander": ("PPO", "lunarlander", PLAIN, 1.6),
    "PPO, LunarLander, normalised": ("PPO", "lunarlander", BATCHES, 1.6),
}
WITH_REWARD = "TD3 with a learned reward, HalfCheetah, 64-64"


def trained_epochs(
    implementation: str, game: str, settings: dict[str, Any], compiled: bool, steps: int
) -> Callable[[], float]:
    """Return a contender: a function that trains for about ``steps`` steps, with updates, and returns the CPU
    microseconds of each step. With ``compiled``, in machine code, otherwise in torch."""
    values: dict[str, Any] = {"implementation": implementation, "gamename": game, "compiled": compiled, **settings}
    if implementation == "PPO":
        values |= {"rollout_steps": steps // 8, "num_envs": 8}
    loop = build_loop(training_from(total_steps=1_000_000, steps_per_epoch=steps, **values))
    loop.compile_ahead()
    loop.warm_up()
    while not loop.gradient_steps:
        loop.epoch()

    def measure() -> float:
        steps_before = int(loop.env_steps.sum())
        seconds = cpu_seconds(loop.epoch)
        return seconds / (int(loop.env_steps.sum()) - steps_before) * 1e6

    return measure


def trained_with_reward(compiled: bool, steps: int) -> Callable[[], float]:
    """Return a contender as `trained_epochs`: a new TD3 agent with a learned reward on HalfCheetah, as in a search."""
    settings = training_from(
        implementation="RN",
        gamename="halfcheetah",
        agent="TD3",
        compiled=compiled,
        init_episodes=0,
        fill=64,
        inner_steps=steps,
        **SMALL,
    )
    inner_loop = InnerLoop(settings.proxy, settings.run.agent, settings.agent, settings.run.gamename)
    reward = inner_loop.factory.parameters.initial(Streams([0]))

    def measure() -> float:
        return cpu_seconds(lambda: inner_loop.train_to_end(inner_loop.begin(reward, [0]))) / steps * 1e6

    measure()  # compiles
    return measure


def measure_row(name: str, size: tuple[int, int]) -> dict[str, Result]:
    """Measure a row of `ROWS`, or `WITH_REWARD`, in torch and in machine code. ``size`` is (steps in a round,
    rounds)."""
    steps, rounds = size
    contenders: dict[str, Callable[[], float]] = {}
    for path in ("torch", "machine code"):
        if name == WITH_REWARD:
            contenders[path], target = trained_with_reward(path == "machine code", steps), 3.0
        else:
            implementation, game, settings, target = ROWS[name]
            contenders[path] = trained_epochs(implementation, game, settings, path == "machine code", steps)
    times = interleave(contenders, rounds)
    results = {f"{name}, {path}": Result(statistics.median(values), "us") for path, values in times.items()}
    ratio = median_ratio(times["torch"], times["machine code"])
    return results | {f"{name}, ratio": Result(ratio, "times", "torch", (">=", target))}


if __name__ == "__main__":
    parts = [partial(measure_row, name) for name in (*ROWS, WITH_REWARD)]
    common.run("A step of everyday training", __doc__, parts, full=(1024, 7), quick=(512, 1))
