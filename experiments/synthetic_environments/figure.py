"""Draw the searches, new agents on their winners, and the transfer to stable-baselines3 in one figure.

    python experiments/synthetic_environments/figure.py --runs exp_dir --transfer transfer.json --out figure.png
    python experiments/synthetic_environments/figure.py --numbers docs/results/synthetic_environments.json

``--runs`` is the folder of `cartpole/mdp`, `cartpole/bandit` and `acrobot/bandit`, from the README's commands.
``--numbers`` is a JSON of earlier results, without curves of the searches. ``--trained_on bandit,real`` draws
only the agents of stable-baselines3 on these environments, without PPO as in CleanRL.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from control.reports.curves import draw_levels, share_limits, solved_levels
from control.reports.figures import COLOURS, INK, WIDTH, figure_files, figure_panels, rows, set_row_labels, set_title
from control.reports.runs import read_runs
from control.reports.tags import MEAN_RETURN, SYNTHETIC_STEPS
from experiments.comparison import Layout, add_look, figure_to_write, numbers_in, run_script, script_flags, style_of
from models.settings import SettingError, choice_error

SEARCHES = {"CartPole, MDP": "cartpole/mdp", "CartPole, bandit": "cartpole/bandit", "Acrobot, bandit": "acrobot/bandit"}
# A training environment has the same colour in all panels.
COLOUR = {"bandit": COLOURS[0], "real": COLOURS[1], "mdp": COLOURS[2], "broad": COLOURS[3]}
WORDS = {"bandit": "synthetic bandit", "mdp": "synthetic MDP", "broad": "broad MDP", "real": "real"}
STYLES = ("-", (0, (4, 1.5)), (0, (1, 1)))
SOLVED = "SB3: stable-baselines3; PPO*: as in CleanRL; solved: Gymnasium's reward_threshold"


def draw_search(axis: Any, title: str, folder: Path, where: str) -> None:
    """Draw the return of fresh agents on the mean over synthetic steps, one line per seed of the search."""
    game, kind = where.split("/")
    files = sorted(folder.glob("SE/seed_*/version_0/metrics.csv"))
    for seed, (style, metrics) in enumerate(zip(STYLES, files, strict=False)):
        (run,) = read_runs(metrics)
        steps, returns = run.points(MEAN_RETURN, SYNTHETIC_STEPS)
        axis.plot(steps / 1e6, returns, color=COLOUR[kind], linestyle=style, linewidth=1.3)
        axis.plot([], [], color=INK, linestyle=style, label=f"search seed {seed}")
    draw_levels(axis, solved_levels(game))
    set_title(axis, title, 2.1)
    axis.set(xlabel="synthetic steps (millions)", ylabel="return on the real environment")


def draw_winners(axis: Any, reports: dict[str, dict[str, Any]], game: str) -> None:
    """Draw a row for the winner of each search: the real return of its 64 held-out agents."""
    game_reports = {name: report for name, report in reports.items() if name.startswith(f"{game}/")}
    for at, (name, report) in enumerate(game_reports.items()):
        colour = COLOUR[name.partition("/")[2].partition(",")[0]]
        axis.plot([report["iqm_low"], report["iqm_high"]], [at, at], color=colour, linewidth=1.6)
        axis.plot(report["iqm"], at, "D", color=colour, markersize=4)
        axis.plot(report["worst"], at, "x", color=colour, markersize=4.5)
    axis.plot([], [], "D", color=INK, markersize=4, label="interquartile mean")
    axis.plot([], [], "x", color=INK, markersize=4.5, label="worst agent")
    set_row_labels(axis, [name.partition("/")[2].replace("mdp", "MDP") for name in game_reports])
    draw_levels(axis, solved_levels(game), axis_name="x")
    set_title(axis, {"cartpole": "CartPole", "acrobot": "Acrobot"}[game] + ": held-out agents", 1.7)
    axis.set_xlabel("real return")


def draw_transfer(axis: Any, results: dict[str, dict[str, Any]], width: float) -> None:
    """Draw stable-baselines3's agents: a row per algorithm and training environment, a point per seed. The title may
    have ``width`` inches."""
    for at, (name, row) in enumerate(results.items()):
        colour = COLOUR[name.split(" on ")[1]]
        axis.plot(
            row["returns"], np.full(len(row["returns"]), at + 0.15), "o", color=colour, markersize=3.2, alpha=0.6, mew=0
        )
        axis.plot(np.mean(row["returns"]), at - 0.15, "D", color=colour, markersize=4)
    axis.plot([], [], "D", color=INK, markersize=4, label="mean of the seeds")
    axis.plot([], [], "o", color=INK, markersize=3.2, label="seed")
    set_row_labels(axis, [name.replace("mdp", "MDP").replace(" as in CleanRL", "*") for name in results])
    draw_levels(axis, solved_levels("cartpole"), axis_name="x")
    steps = next(iter(results.values()))["steps"]
    set_title(axis, f"CartPole: SB3 after {steps:,} steps", width)
    axis.set_xlabel("real return")


def make(options: argparse.Namespace) -> None:
    """Write the figure. Raises SettingError for an unknown kind or if there is nothing to draw."""
    numbers = numbers_in("numbers", options.numbers, Layout()) if options.numbers else {}
    search_folders = {
        title: where for title, where in SEARCHES.items() if options.runs and (options.runs / where).is_dir()
    }
    reports = {name: row["report"] for name, row in numbers.get("searches", {}).items()}
    results = (
        numbers_in("transfer", options.transfer, Layout(("steps", "returns"), 1), script="transfer.py")
        if options.transfer
        else numbers.get("stable_baselines3", {})
    )
    if not (search_folders or reports or results):
        raise SettingError("runs, numbers and transfer hold nothing to draw")
    if options.trained_on:
        chosen = options.trained_on.split(",")
        for kind in chosen:
            if kind not in WORDS:
                raise choice_error("trained_on", kind, WORDS)
        results = {
            name: row for name, row in results.items() if name.split(" on ")[1] in chosen and "as in" not in name
        }
        reports = {}
    games = list(dict.fromkeys(name.partition("/")[0] for name in reports))
    cells = rows(len(search_folders), len(games) + bool(results))
    notes = ["lines: new agents trained on the mean of the search distribution"] * bool(search_folders)
    held_out = "held-out: 64 new agents, 10 episodes each; line: 95 % bootstrap interval of the interquartile mean"
    notes += [held_out] * bool(reports)
    notes += [SOLVED.replace(" PPO*: as in CleanRL;", "") if options.trained_on else SOLVED]
    width = WIDTH / 2 if options.trained_on else WIDTH  # half: a telephone shows it as a whole
    height = 2.1 * bool(search_folders) + max(2.3, 0.22 * len(results)) * bool(games or results)
    out, style = figure_to_write("out", options.out), style_of(options)
    with figure_panels(out, cells, (width, height), style, options.numbers, note="; ".join(notes)) as axes:
        for kind in options.trained_on.split(",") if options.trained_on else WORDS:
            axes[0].plot([], [], color=COLOUR[kind], linewidth=3, label=WORDS[kind])
        remaining_axes = iter(axes)
        for title, where in search_folders.items():
            draw_search(next(remaining_axes), title, options.runs / where, where)
        share_limits(
            [axis for axis, where in zip(axes, search_folders.values(), strict=False) if where.startswith("cartpole")]
        )
        for game in games:
            draw_winners(next(remaining_axes), reports, game)
        if results:
            draw_transfer(next(remaining_axes), results, 1.6 if reports else width)
    print("\n".join(map(str, figure_files(out, style))))


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("--runs", type=Path, help="folder of the searches")
    flags.add_argument("--transfer", type=Path, help="JSON of transfer.py")
    flags.add_argument("--numbers", type=Path, help="JSON of earlier results")
    flags.add_argument("--trained_on", help="training environments of stable-baselines3's agents, such as bandit,real")
    flags.add_argument("--out", type=Path, default=Path("synthetic_environments.png"))
    add_look(flags)
    options = flags.parse_args(argv)
    return run_script(lambda: make(options))


if __name__ == "__main__":
    sys.exit(main())
