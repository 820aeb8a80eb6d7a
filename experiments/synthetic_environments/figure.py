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
from matplotlib.figure import Figure  # noqa: E402

from control.reports.panels import COLOURS, GREY  # noqa: E402
from control.storage.run_dir import read_metrics  # noqa: E402

SEARCHES = {"CartPole, MDP": "cartpole/mdp", "CartPole, bandit": "cartpole/bandit", "Acrobot, bandit": "acrobot/bandit"}
SOLVED = {"cartpole": 475, "acrobot": -100}


def draw_search(axis: Any, title: str, folder: Path, game: str) -> None:
    """The centre's score by fresh agents over synthetic steps, a line a seed, its end the winner's report."""
    for i, metrics in enumerate(sorted(folder.glob("SE/seed_*/version_0/metrics.csv"))):
        columns = {name: np.asarray(values) for name, values in read_metrics(metrics).items()}
        scored = np.isfinite(columns["es/center_return"])
        steps = columns["es/synthetic_steps"][scored] / 1e6
        axis.plot(steps, columns["es/center_return"][scored], color=COLOURS[i], linewidth=1.2)
        scores = metrics.with_name("scores.json")
        if scores.exists():
            worth = json.loads(scores.read_text())["report"]["mean"]
            axis.plot(steps[-1] * 1.04, worth, "o", color=COLOURS[i], markersize=5, clip_on=False)
    axis.axhline(SOLVED[game], color=GREY, linewidth=1, linestyle=":")
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("synthetic steps, millions")
    axis.spines[["top", "right"]].set_visible(False)


def draw_transfer(axis: Any, results: dict[str, dict[str, Any]]) -> None:
    """stable-baselines3's agents: a bar for what they trained on, a point a seed."""
    for i, (name, row) in enumerate(results.items()):
        where = name.split(" on ")[1]
        colour = {"bandit": COLOURS[0], "mdp": COLOURS[2], "real": COLOURS[1]}[where]
        axis.bar(i, np.mean(row["returns"]), color=colour, alpha=0.5)
        axis.plot([i] * len(row["returns"]), row["returns"], "o", color=colour, markersize=4)
    axis.set_xticks(range(len(results)), [name.replace(" on ", "\n") for name in results], fontsize=7)
    steps = next(iter(results.values()))["steps"]
    axis.set_title(f"stable-baselines3 after {steps:,} steps", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--runs", type=Path, default=Path("exp_dir"))
    flags.add_argument("--transfer", type=Path)
    flags.add_argument("--out", type=Path, default=Path("synthetic_environments.png"))
    given = flags.parse_args()
    panels = len(SEARCHES) + bool(given.transfer)
    figure = Figure(figsize=(3.1 * panels, 3.1), dpi=120, layout="constrained")
    axes = figure.subplots(1, panels)
    for axis, (title, where) in zip(axes, SEARCHES.items(), strict=False):
        draw_search(axis, title, given.runs / where, where.split("/")[0])
    axes[0].set_ylabel("real return")
    if given.transfer:
        draw_transfer(axes[-1], json.loads(given.transfer.read_text()))
    figure.savefig(given.out)
    print(given.out)


if __name__ == "__main__":
    main()
