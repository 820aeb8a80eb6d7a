"""The searches and the transfer in one figure.

    python experiments/synthetic_environments/figure.py --runs exp_dir --transfer transfer.json --out figure.png

``--runs`` is the folder of `cartpole/mdp`, `cartpole/bandit` and `acrobot/bandit`, as the README's commands make them.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from control.reports.panels import COLOURS, GREY, sheet  # noqa: E402
from control.reports.runs import read_runs  # noqa: E402
from control.reports.tags import MEAN_RETURN, SYNTHETIC_STEPS  # noqa: E402

SEARCHES = {"CartPole, MDP": "cartpole/mdp", "CartPole, bandit": "cartpole/bandit", "Acrobot, bandit": "acrobot/bandit"}
SOLVED = {"cartpole": 475, "acrobot": -100}


def draw_search(axis: Any, title: str, folder: Path, game: str) -> None:
    """The return of the mean's fresh agents over synthetic steps, one line per seed; a dot is the winner's score."""
    for colour, metrics in zip(COLOURS, sorted(folder.glob("SE/seed_*/version_0/metrics.csv")), strict=False):
        (run,) = read_runs(metrics)
        steps, returns = run.points(MEAN_RETURN, SYNTHETIC_STEPS)
        axis.plot(steps / 1e6, returns, color=colour, linewidth=1.2)
        scores = metrics.with_name("scores.json")
        if scores.exists():
            worth = json.loads(scores.read_text())["report"]["mean"]
            axis.plot(steps[-1] / 1e6 * 1.04, worth, "o", color=colour, markersize=5, clip_on=False)
    axis.axhline(SOLVED[game], color=GREY, linewidth=1, linestyle=":")
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("synthetic steps, millions")


def draw_transfer(axis: Any, results: dict[str, dict[str, Any]]) -> None:
    """stable-baselines3's agents: one bar for what they trained on, one point per seed."""
    for i, (name, row) in enumerate(results.items()):
        where = name.split(" on ")[1]
        colour = {"bandit": COLOURS[0], "mdp": COLOURS[2], "real": COLOURS[1]}[where]
        axis.bar(i, np.mean(row["returns"]), color=colour, alpha=0.5)
        axis.plot([i] * len(row["returns"]), row["returns"], "o", color=colour, markersize=4)
    axis.set_xticks(range(len(results)), [name.replace(" on ", "\n") for name in results], fontsize=7)
    steps = next(iter(results.values()))["steps"]
    axis.set_title(f"stable-baselines3 after {steps:,} steps", fontsize=10)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--runs", type=Path, default=Path("exp_dir"))
    flags.add_argument("--transfer", type=Path)
    flags.add_argument("--out", type=Path, default=Path("synthetic_environments.png"))
    given = flags.parse_args()
    panels = len(SEARCHES) + bool(given.transfer)
    with sheet(given.out, [list(range(panels))], (3.1 * panels, 3.1)) as axes:
        for axis, (title, where) in zip(axes, SEARCHES.items(), strict=False):
            draw_search(axis, title, given.runs / where, where.split("/")[0])
        axes[0].set_ylabel("real return")
        if given.transfer:
            draw_transfer(axes[-1], json.loads(given.transfer.read_text()))
    print(given.out)


if __name__ == "__main__":
    main()
