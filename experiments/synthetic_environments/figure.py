"""Draw new agents on the winners of searches, and the transfer to stable-baselines3, in one figure.

    python experiments/synthetic_environments/figure.py --numbers docs/results/synthetic_environments.json

``--numbers`` has the scores of searches and the results of transfer.py. ``--trained_on bandit,real`` draws only the
agents of stable-baselines3 on these environments, without PPO as in CleanRL.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from control.reports.curves import draw_levels, solved_levels
from control.reports.figures import COLOURS, INK, WIDTH, figure_files, figure_panels, rows, set_row_labels, set_title
from experiments.comparison import Layout, add_look, figure_to_write, numbers_in, run_script, script_flags, style_of
from models.settings import choice_error

# A training environment has the same colour in all panels.
COLOUR = {"bandit": COLOURS[0], "real": COLOURS[1], "mdp": COLOURS[2], "broad": COLOURS[3]}
LABELS = {"bandit": "synthetic bandit", "mdp": "synthetic MDP", "broad": "broad MDP", "real": "real"}
HELD_OUT = "held-out: 64 new agents, 10 episodes each; line: 95 % bootstrap interval of the interquartile mean"
SOLVED = "SB3: stable-baselines3; PPO*: as in CleanRL; solved: Gymnasium's reward_threshold"


def draw_winners(axis: Any, reports: dict[str, dict[str, Any]], game: str) -> None:
    """Draw a row for the winner of each search: the real return of its 64 held-out agents (by ``GAME/SEARCH``)."""
    searches = {name.partition("/")[2]: report for name, report in reports.items() if name.startswith(f"{game}/")}
    for row, (search, report) in enumerate(searches.items()):
        colour = COLOUR[search.partition(",")[0]]
        axis.plot([report["iqm_low"], report["iqm_high"]], [row, row], color=colour, linewidth=1.6)
        axis.plot(report["iqm"], row, "D", color=colour, markersize=4)
        axis.plot(report["worst"], row, "x", color=colour, markersize=4.5)
    axis.plot([], [], "D", color=INK, markersize=4, label="interquartile mean")
    axis.plot([], [], "x", color=INK, markersize=4.5, label="worst agent")
    set_row_labels(axis, [search.replace("mdp", "MDP") for search in searches])
    draw_levels(axis, solved_levels(game), axis_name="x")
    set_title(axis, {"cartpole": "CartPole", "acrobot": "Acrobot"}[game] + ": held-out agents", 1.7)
    axis.set_xlabel("real return")


def draw_transfer(axis: Any, results: dict[str, dict[str, Any]], width: float) -> None:
    """Draw stable-baselines3's agents: a row per algorithm and training environment, a point per seed."""
    for row, (name, result) in enumerate(results.items()):
        returns, colour = result["returns"], COLOUR[name.split(" on ")[1]]
        axis.plot(returns, np.full(len(returns), row + 0.15), "o", color=colour, markersize=3.2, alpha=0.6, mew=0)
        axis.plot(np.mean(returns), row - 0.15, "s", color=colour, markersize=4)
    axis.plot([], [], "s", color=INK, markersize=4, label="mean of the seeds")
    axis.plot([], [], "o", color=INK, markersize=3.2, label="seed")
    set_row_labels(axis, [name.replace("mdp", "MDP").replace(" as in CleanRL", "*") for name in results])
    draw_levels(axis, solved_levels("cartpole"), axis_name="x")
    steps = next(iter(results.values()))["steps"]
    set_title(axis, f"CartPole: SB3 after {steps:,} steps", width)
    axis.set_xlabel("real return")


def make(options: argparse.Namespace) -> None:
    """Write the figure. Raises SettingError for an unknown training environment."""
    numbers = numbers_in("numbers", options.numbers, Layout(("searches", "stable_baselines3")))
    reports = {name: row["report"] for name, row in numbers["searches"].items()}
    results, environments = numbers["stable_baselines3"], list(LABELS)
    # Half of a page: a telephone shows it as a whole.
    width, title_width, notes = WIDTH, 1.6, [HELD_OUT, SOLVED]
    if options.trained_on:
        environments = options.trained_on.split(",")
        for environment in environments:
            if environment not in LABELS:
                raise choice_error("trained_on", environment, LABELS)
        names = [name for name in results if name.split(" on ")[1] in environments and "as in" not in name]
        results = {name: results[name] for name in names}
        reports, width, title_width = {}, WIDTH / 2, WIDTH / 2
        notes = [SOLVED.replace(" PPO*: as in CleanRL;", "")]
    games = list(dict.fromkeys(name.partition("/")[0] for name in reports))
    size = (width, max(2.3, 0.22 * len(results)))
    out, style = figure_to_write("out", options.out), style_of(options)
    with figure_panels(out, rows(len(games) + 1), size, style, options.numbers, note="; ".join(notes)) as axes:
        for environment in environments:
            axes[0].plot([], [], color=COLOUR[environment], linewidth=3, label=LABELS[environment])
        for axis, game in zip(axes, games, strict=False):
            draw_winners(axis, reports, game)
        draw_transfer(axes[-1], results, title_width)
    print("\n".join(map(str, figure_files(out, style))))


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("--numbers", type=Path, required=True, help="JSON of earlier results")
    flags.add_argument("--trained_on", help="training environments of stable-baselines3's agents, such as bandit,real")
    flags.add_argument("--out", type=Path, default=Path("synthetic_environments.png"))
    add_look(flags)
    options = flags.parse_args(argv)
    return run_script(lambda: make(options))


if __name__ == "__main__":
    sys.exit(main())
