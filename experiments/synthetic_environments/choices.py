"""Figure of tuning.py: scores of settings on synthetic environments against their return on the real one.

    python experiments/synthetic_environments/choices.py docs/results/choosing.json --out choices.png

Follows the figure of Ferreira et al. 2022 on hyperparameter rankings: a point for each setting, with the rank
correlations of Spearman and Kendall, and Pearson's correlation of the returns.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from control.reports.figures import COLOURS, WIDTH, rows
from control.reports.obedience import rank_correlation
from experiments.comparison import Layout, numbers_in, run_script, script_flags
from experiments.plotting import Array, draw_pages
from models.settings import SettingError

LAYOUT = Layout(("settings", "agents", "real_steps", "results"))
ORDERS = ("real return", "synthetic return")
NOTE = (
    "a point: a setting of DDQN; real return after training on the synthetic environment (above), return on the "
    "synthetic environment itself (below); S, K, P: correlations of Spearman, Kendall and Pearson"
)


def kendall(x: Array, y: Array) -> float:
    """Return Kendall's tau-b of N pairs of ``x [N]`` and ``y [N]``; 0 if all values of one side are equal."""
    pairs = np.triu_indices(len(x), 1)  # each pair of indices once
    x_signs, y_signs = np.sign(x[:, None] - x[None])[pairs], np.sign(y[:, None] - y[None])[pairs]
    scale = float(np.sqrt((x_signs**2).sum() * (y_signs**2).sum()))
    return float(x_signs @ y_signs) / scale if scale else 0.0


def pearson(x: Array, y: Array) -> float:
    """Return Pearson's correlation of N pairs of ``x [N]`` and ``y [N]``; 0 if all values of one side are equal."""
    return float(np.corrcoef(x, y)[0, 1]) if x.std() and y.std() else 0.0


def panels_of(results: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (synthetic environment, order) of each panel, without environments that lack some settings."""
    panels = []
    for order in ORDERS:
        for name, row in results.items():
            real_returns = results[name.partition("-")[0]]["returns"]
            if order in row and len(row[order]["scores"]) == len(real_returns):
                panels.append((name, order))
    return panels


def fill(axes: list[Any], numbers: dict[str, Any]) -> None:
    """Draw a column for each synthetic environment, a row for each order."""
    results = numbers["results"]
    for axis, (name, order) in zip(axes, panels_of(results), strict=True):
        scores, colour = np.array(results[name][order]["scores"]), COLOURS[ORDERS.index(order)]
        true_returns = np.array(results[name.partition("-")[0]]["returns"]).mean(1)  # of the same settings
        axis.plot(scores, true_returns, "o", color=colour, markersize=3, markeredgewidth=0, alpha=0.8)
        axis.set(title=name, xlabel=order)
        text = f"S {rank_correlation(scores, true_returns):.2f}, K {kendall(scores, true_returns):.2f}"
        text += f", P {pearson(scores, true_returns):.2f}"
        axis.text(0.03, 0.97, text, transform=axis.transAxes, fontsize=6.5, va="top")
    for axis in (axes[0], axes[len(axes) // 2]):
        axis.set_ylabel("trained on the real one")


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("source", type=Path, help="JSON of tuning.py")
    flags.add_argument("--out", type=Path, required=True, help=".png, .pdf or .svg; the dark page's ends in _dark")
    values = flags.parse_args(argv)

    def draw() -> None:
        panels = panels_of(numbers_in("source", values.source, LAYOUT, script="tuning.py")["results"])
        if not panels:
            raise SettingError(f"source is '{values.source}', which has no synthetic environment", "source")
        cells = (rows(len(panels) // 2, len(panels) // 2), (WIDTH, 3.6))
        draw_pages(values.source, LAYOUT, values.out, fill, cells, NOTE)

    return run_script(draw)


if __name__ == "__main__":
    sys.exit(main())
