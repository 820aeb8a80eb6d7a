"""The published search beside ours: the return of new agents on the mean in each generation.

    python experiments/synthetic_environments/learning_curves.py measure cartpole --seeds 10 --json exp_dir/curves.json
    python experiments/synthetic_environments/learning_curves.py draw docs/results/learning_curves.json --out 2.png

Figure 2 of Ferreira et al. 2022: NES with the published settings (``--preset paper``: 16 mirrored pairs, 16 agents on
the mean, agents that stop once their returns no longer change, 200 generations). Thin lines are seeds, thick lines
their mean. Our search is ``--preset recipe``. The next call resumes a stopped seed. ``--generations`` ends all sooner.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from control.reports.curves import Level, draw_levels
from control.reports.figures import COLOURS, WIDTH, rows, write_numbers
from control.reports.runs import read_runs
from control.reports.tags import MEAN_RETURN, SYNTHETIC_STEPS
from experiments.comparison import Layout, check_options, numbers_in, run_script, run_search
from experiments.plotting import draw_pages, measure_and_draw, parse_with_extra_flags

# Game -> title, return at which it is solved.
GAMES = {"cartpole": ("CartPole, 200 steps", 195.0), "acrobot": ("Acrobot", -100.0)}
SEARCHES = {"paper": ["--preset", "paper"], "recipe": ["--preset", "recipe", "--eval_every", "1"]}
LABELS = {"paper": "NES, published settings", "recipe": "OpenAI-ES, our settings"}
COLOUR = {"paper": COLOURS[1], "recipe": COLOURS[0]}
LAYOUT = Layout(("synthetic_steps", "returns"), 3)  # game -> search -> seed
NOTE = "thin lines: seeds, mean of 16 new agents trained on the mean of the search; thick lines: mean of the seeds"


def measure(flags: argparse.Namespace) -> None:
    """Run or resume the searches of one game, and write the curve of each. Raises SettingError for a file of another
    script."""
    check_options(flags, LAYOUT, seeds=1, generations=1)
    for seed in range(flags.seeds):
        for search in flags.searches:
            search_flags = ["--generations", str(flags.generations)] if flags.generations else []
            search_flags += SEARCHES[search]
            if flags.game == "cartpole" and search == "recipe":  # tests have 200 steps, as in the paper
                search_flags += ["--test_limit", "200", "--solved_reward", "195"]
            search_flags += flags.extra_flags
            folder = run_search(flags.logdir, flags.game, f"curves_{search}", seed, search_flags)
            (run,) = read_runs(folder / "metrics.csv")
            steps, returns = run.points(MEAN_RETURN, SYNTHETIC_STEPS)
            rounded = [round(float(value), 2) for value in returns]
            results = numbers_in("json", flags.json, LAYOUT, new=True)
            seeds = results.setdefault(flags.game, {}).setdefault(search, {})
            seeds[str(seed)] = {"synthetic_steps": [int(step) for step in steps], "returns": rounded}
            write_numbers(flags.json, results)
            text = f"{len(returns)} generations, last {returns[-1]:.1f}, best {returns.max():.1f}"
            print(f"{flags.game}, {search}, seed {seed}: {text}", flush=True)


def fill(axes: list[Any], numbers: dict[str, Any]) -> None:
    """Draw a panel for each game."""
    for axis, game in zip(axes, [game for game in GAMES if game in numbers], strict=True):
        title, solved = GAMES[game]
        for search, seeds in numbers[game].items():
            curves = [seed["returns"] for seed in seeds.values()]
            if len(curves) > 1:
                for curve in curves:
                    axis.plot(range(1, len(curve) + 1), curve, color=COLOUR[search], linewidth=0.5, alpha=0.6)
            shortest = min(map(len, curves))
            mean = np.mean([curve[:shortest] for curve in curves], 0)
            axis.plot(range(1, len(mean) + 1), mean, color=COLOUR[search], label=LABELS[search])
        draw_levels(axis, [Level(solved, "solved")])
        counts = ", ".join(f"{search}: {len(seeds)}" for search, seeds in numbers[game].items())
        axis.set(title=f"{title} (seeds: {counts})", xlabel="generation", ylabel="return on the real environment")


def draw(flags: argparse.Namespace) -> None:
    """Write the figure of all games in the file. Raises SettingError for a file of another script."""
    num_games = len(GAMES.keys() & numbers_in("source", flags.source, LAYOUT).keys())
    draw_pages(flags.source, LAYOUT, flags.out, fill, (rows(num_games), (WIDTH, 2.4)), NOTE)


def main(argv: Sequence[str] | None = None) -> int:
    flags, measuring, _ = measure_and_draw(__doc__)
    measuring.add_argument("game", choices=GAMES)
    measuring.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    measuring.add_argument("--seeds", type=int, default=10, help="of each search: 0 and on")
    measuring.add_argument("--generations", type=int, help="of each search, in place of its settings")
    measuring.add_argument("--logdir", type=Path, default=Path("exp_dir"), help="folder of the searches")
    values = parse_with_extra_flags(flags, argv)
    return run_script(lambda: measure(values) if values.command == "measure" else draw(values))


if __name__ == "__main__":
    sys.exit(main())
