"""Time per step of synthetic and real environments in Gymnasium, with random actions.

    python experiments/synthetic_environments/step_times.py measure cartpole-mdp --json exp_dir/step_times.json
    python experiments/synthetic_environments/step_times.py draw docs/results/step_times.json --out step_times.png

Follows the table of Ferreira et al. 2022. Times are CPU time of this process, so other programs hardly matter. Each
measurement has at least 50 episodes and 5,000 steps.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gymnasium

import understudy  # registers the synthetic environments
from control.reports.figures import COLOURS, WIDTH, write_numbers
from experiments.comparison import Layout, check_options
from experiments.plotting import measure_and_draw, run_command
from understudy.program import IDS

LAYOUT = Layout(("kind", "game", "microseconds", "steps", "episodes"), 1)
NOTE = "CPU time of a step with a random action, resets included; one environment in one process"


def time_steps(env: Any, episodes: int) -> dict[str, Any]:
    """Play at least ``episodes`` episodes with random actions. Return microseconds per step, steps and episodes."""
    env.action_space.seed(0)
    env.reset(seed=0)
    steps, episode_count, started = 0, 0, time.process_time()
    while episode_count < episodes or steps < 100 * episodes:
        env.reset()
        done = False
        while not done:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            steps, done = steps + 1, terminated or truncated
        episode_count += 1
    seconds = time.process_time() - started
    return {"microseconds": round(1e6 * seconds / steps, 2), "steps": steps, "episodes": episode_count}


def measure(flags: argparse.Namespace) -> None:
    """Time the synthetic environments and the real ones. Raises SettingError or ProxyError for other files."""
    check_options(flags, LAYOUT, episodes=1)
    proxies = {name: understudy.load(name) for name in flags.proxies}
    synthetic_envs = {name: gymnasium.make("understudy/Synthetic-v0", proxy=name) for name in proxies}
    results = {}
    for name, proxy in proxies.items():
        game = proxy.game.partition(",")[0]
        if game not in results:
            real_times = time_steps(gymnasium.make(IDS.get(game, game)), flags.episodes)
            results[game] = {"kind": "real", "game": game} | real_times
        results[name] = {"kind": proxy.kind, "game": game} | time_steps(synthetic_envs[name], flags.episodes)
    for name, row in results.items():
        print(f"{name:<24}{row['microseconds']:8.1f} us a step, {row['steps']:,} steps", flush=True)
    write_numbers(flags.json, results)


def fill(axes: list[Any], numbers: dict[str, Any]) -> None:
    """Draw a bar for each environment."""
    (axis,) = axes
    colours = {"real": COLOURS[1], "mdp": COLOURS[2], "bandit": COLOURS[0]}
    for place, row in enumerate(numbers.values()):
        axis.barh(place, row["microseconds"], 0.6, color=colours[row["kind"]])
        axis.text(row["microseconds"], place, f" {row['microseconds']:.0f}", va="center", fontsize=7)
    labels = [f"{name}, real" if row["kind"] == "real" else name for name, row in numbers.items()]
    axis.set_yticks(range(len(numbers)), labels)
    axis.set(ylim=(len(numbers) - 0.4, -0.6), xlabel="microseconds of a step")
    axis.grid(False, axis="y")


def main(argv: Sequence[str] | None = None) -> int:
    flags, measuring, _ = measure_and_draw(__doc__)
    measuring.add_argument("proxies", nargs="+", help="files, run folders or shipped names")
    measuring.add_argument("--episodes", type=int, default=50)
    return run_command(flags.parse_args(argv), measure, LAYOUT, fill, ([[0]], (WIDTH, 1.9)), NOTE)


if __name__ == "__main__":
    sys.exit(main())
