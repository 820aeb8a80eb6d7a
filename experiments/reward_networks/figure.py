"""The figures of Ferreira et al. 2022 on reward networks, with ours: 5 and 9 are learning curves, 10 is a map.

    python experiments/reward_networks/figure.py curves docs/results/reward_networks.json --out figure5.png
    python experiments/reward_networks/figure.py map cliff-additive-potential --out figure10.png

Curves are what compare.py has written: returns at tests on the real reward, mean and quartiles over agents, against
training steps. The map shows the reward that each move in each cell of Cliff pays, as triangles: red is the lowest,
green the highest.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402

from control.reports.panels import COLOURS, GREY, grid, sheet  # noqa: E402
from envs.gridmaps import GOAL, HOLE, CellTable  # noqa: E402
from envs.make import make_dynamics  # noqa: E402
from models.proxies import files  # noqa: E402
from understudy.rewards import shaped  # noqa: E402

SOLVED = {"cliff": -12.0, "cartpole-200": 195.0, "mountaincar-continuous": 90.0, "pendulum": -300.0}


def curves(source: Path, out: Path, only: list[str], most: int) -> None:
    found = json.loads(source.read_text())
    names = list(dict.fromkeys(name for rows in found.values() for name in rows))
    shown = [name for name in names if not only or name in only]
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(shown)}
    styles = {name: ("-", "--", ":")[i // len(COLOURS) % 3] for i, name in enumerate(shown)}
    cells = grid(len(found), min(2, len(found)))
    with sheet(out, cells, (5.2 * len(cells[0]) + 1.4, 3.2 * len(cells)), legend="outside right upper") as axes:
        for axis, (key, rows) in zip(axes, found.items(), strict=True):
            for name in shown:
                if name not in rows:
                    continue
                row = rows[name]
                total = row["every"] * row["tests"]
                steps = np.linspace(total / len(row["mean"]), total, len(row["mean"]))
                kept = steps <= (most or total)
                axis.plot(
                    steps[kept], np.array(row["mean"])[kept], color=colours[name], linestyle=styles[name], label=name
                )
                axis.fill_between(steps[kept], np.array(row["low"])[kept], np.array(row["high"])[kept],
                                  color=colours[name], alpha=0.07, linewidth=0)  # fmt: skip
            level = SOLVED.get(key.split(",")[0])
            if level is not None:
                axis.axhline(level, color=GREY, linewidth=1, linestyle=":", label="solved")
            axis.set(title=key, xlabel="training steps of an agent", ylabel="return on the real reward")


def on_map(name: str, out: Path, discount: float) -> None:
    proxy = files.load(name)
    dynamics = make_dynamics(proxy.game)
    assert isinstance(dynamics, CellTable), f"{proxy.game} has no map"
    networks, (rows, columns) = proxy.networks, (len(dynamics.rows), len(dynamics.rows[0]))
    moves = len(dynamics.actions)
    phi = networks.program(proxy.parameters[None])(torch.eye(rows * columns)[None])[0]
    after = phi[dynamics.next_cell].view(-1, moves)
    paid = shaped(networks.mode, dynamics.reward.view(-1, moves), phi[:, None], after, discount).numpy()
    corners = {"right": ((1, 0), (1, 1)), "left": ((0, 0), (0, 1)), "down": ((0, 1), (1, 1)), "up": ((0, 0), (1, 0))}
    kinds = "".join(dynamics.rows)
    going = [cell for cell in range(len(kinds)) if kinds[cell] not in (GOAL, HOLE)]
    usual = np.quantile(paid[going], [0.1, 1.0])
    with sheet(out, [[0]], (0.9 * columns + 1.5, 0.9 * rows + 1.2), title=f"{networks.mode.name}: reward paid") as (
        axis,
    ):
        import matplotlib
        from matplotlib.patches import Polygon

        scale, colour = matplotlib.colors.Normalize(*usual), matplotlib.colormaps["RdYlGn"]
        for cell in range(len(kinds)):
            row, column = divmod(cell, columns)
            if cell not in going:
                axis.text(column + 0.5, row + 0.5, "goal" if kinds[cell] == GOAL else "hole", ha="center", va="center")
                continue
            for move, action in enumerate(dynamics.actions):
                points = [(column + x, row + y) for x, y in (*corners[action], (0.5, 0.5))]
                axis.add_patch(Polygon(points, facecolor=colour(scale(paid[cell, move])), edgecolor="white"))
        axis.plot([0, columns], [0, rows], alpha=0)
        axis.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[], aspect="equal")
        axis.grid(False)
        axis.figure.colorbar(matplotlib.cm.ScalarMappable(scale, colour), ax=axis, label="reward", shrink=0.8)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("kind", choices=("curves", "map"))
    flags.add_argument("source", help="JSON of compare.py, or a learned reward")
    flags.add_argument("--out", type=Path, required=True)
    flags.add_argument("--only", nargs="*", default=[], help="names of rewards")
    flags.add_argument("--most", type=int, default=0, help="last training step shown")
    flags.add_argument("--discount", type=float, default=0.8, help="the agent's, for the map")
    given = flags.parse_args()
    if given.kind == "curves":
        curves(Path(given.source), given.out, given.only, given.most)
    else:
        on_map(given.source, given.out, given.discount)
    print(given.out)


if __name__ == "__main__":
    main()
