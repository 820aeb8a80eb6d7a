"""Figures 5, 9 (learning curves) and 10 (a map) of Ferreira et al. 2022 with our reward networks.

    python experiments/reward_networks/figure.py curves docs/results/reward_networks.json --out figure5.png
    python experiments/reward_networks/figure.py curves docs/results/paper_rewards.json --columns 3 --out figure5.png
    python experiments/reward_networks/figure.py map cliff-additive-potential --simplify --out figure10.png

Curves are from compare.py: returns at tests on the real reward, mean and quartiles over agents, against training
steps. The map shows the reward that each move in each cell of Cliff pays, as triangles: red is the lowest,
blue the highest. ``--simplify`` leaves rewards of -50 and less grey, as the second panel of the paper does.
"""

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from control.reports.curves import Level, draw_levels
from control.reports.figures import COLOURS, GREY, WIDTH, FigureStyle, figure_panels, row_lengths, set_title
from control.reports.figures import rows as rows_of
from envs.gridmaps import GOAL, HOLE, CellTable
from envs.make import make_dynamics
from experiments.comparison import (
    REWARD_ROWS,
    add_look,
    figure_to_write,
    numbers_in,
    run_script,
    script_flags,
    style_of,
)
from models.proxies import files
from models.settings import SettingError
from understudy.rewards import shaped_reward

# Selection of comparisons and rewards: a file can hold too many for one figure.
COMPARISONS = (
    "cliff, QLearning",
    "cliff, QLearning, vary_hp=true",
    "cliff, SARSA, lr=0.5",
    "cartpole-200, DDQN",
    "cartpole-200, DDQN, vary_hp=true",
    "cartpole-200, DuelingDDQN",
)
REWARDS = (
    "exclusive-potential",
    "additive-potential",
    "exclusive",
    "additive",
    "learned",
    "native",
    "count",
    "optimal",
    "by hand x 1",
    "by hand x 10",
    "icm",
    "rnd",
    "trained",
)
MEANT = {"vary_hp=true": "sampled hyperparameters", "lr=0.5": "learning rate 0.5"}
NOTE = "line: mean over agents; band: quartiles; solved: the return that a search is told to reach"
DISCOUNT = 0.8  # of the agents, for the map
FALL = -50.0  # `--simplify` draws moves grey that pay this or less, such as falls
SOLVED = {"cliff": -12.0, "cartpole-200": 195.0, "mountaincar-continuous": 90.0, "pendulum": -300.0}


def curves(source: Path, out: Path, style: FigureStyle, columns: int) -> None:
    """Draw a panel for each of `COMPARISONS` and a line for each of `REWARDS` (all, if the file has none of them)."""
    comparisons = numbers_in("source", source, REWARD_ROWS, script="compare.py")
    panels = {key: rows for key, rows in comparisons.items() if key in COMPARISONS} or comparisons
    names = list(dict.fromkeys(name for rows in panels.values() for name in rows))
    line_names = [name for name in names if name in REWARDS] or names
    # Lines have different colours, then also different dashes.
    looks = itertools.cycle(itertools.product(("-", "--", ":"), COLOURS))
    look_of = dict(zip(line_names, looks, strict=False))
    lengths = row_lengths(len(panels), columns)
    with figure_panels(out, rows_of(*lengths), (WIDTH, 2.1 * len(lengths)), style, source, note=NOTE) as axes:
        for axis, (key, rows) in zip(axes, panels.items(), strict=True):
            for name in line_names:
                if name not in rows:
                    continue
                row, (line_style, colour) = rows[name], look_of[name]
                total = row["every"] * row["tests"]
                steps = np.linspace(total / len(row["mean"]), total, len(row["mean"]))
                axis.plot(steps, row["mean"], color=colour, linestyle=line_style, label=name)
                axis.fill_between(steps, row["low"], row["high"], color=colour, alpha=0.1, linewidth=0)
            level = SOLVED.get(key.split(",")[0])
            if level is not None:
                draw_levels(axis, [Level(level, "solved")])
            set_title(axis, ", ".join(MEANT.get(part, part) for part in key.split(", ")), 5.6 / columns)
            axis.set(xlabel="training steps of an agent", ylabel="return on the real reward")


def load_map(name: str) -> tuple[CellTable, str, np.ndarray]:
    """Return the map of a learned reward, the name of its mode, and the reward ``[S, A]`` of each move in each cell.
    Raises SettingError if ``name`` is no reward of an environment with a map."""
    proxy = files.load(name)
    dynamics = make_dynamics(proxy.game)
    if proxy.config.proxy != "reward" or not isinstance(dynamics, CellTable):
        line = f"source is {name!r}, {proxy.config.proxy} of {proxy.game}"
        raise SettingError(f"{line}; allowed: reward of an environment with a map, as cliff")
    networks: Any = proxy.networks
    moves = len(dynamics.actions)
    one_hot = torch.eye(len(dynamics.rows) * len(dynamics.rows[0]))  # observations of all cells
    phi = networks.with_weights(proxy.parameters[None])(one_hot[None])[0]  # potential of each cell, [S]
    next_phi = phi[dynamics.next_cell].view(-1, moves)
    rewards = shaped_reward(networks.mode, dynamics.reward.view(-1, moves), phi[:, None], next_phi, DISCOUNT).numpy()
    return dynamics, networks.mode.name, rewards


def on_map(names: Sequence[str], out: Path, style: FigureStyle, simplify: bool = False) -> None:
    """Draw the reward of each move on the map, a panel for each learned reward (`load_map`)."""
    maps = [load_map(name) for name in names]
    height = sum(0.58 * len(dynamics.rows) + 0.25 for dynamics, *_ in maps)
    with figure_panels(out, rows_of(*[1] * len(maps)), (WIDTH, height), style) as axes:
        for axis, (dynamics, mode, rewards) in zip(axes, maps, strict=True):
            set_title(axis, f"{mode}: reward paid", WIDTH)
            draw_map(axis, dynamics, rewards, simplify)


def draw_map(axis: Any, dynamics: CellTable, rewards: np.ndarray, simplify: bool) -> None:
    """Draw each move of a map as a triangle in the colour of its reward ``rewards [S, A]``. With ``simplify``, moves
    that pay -50 or less are grey, and do not affect the scale of colours."""
    import matplotlib
    from matplotlib.patches import Polygon

    rows, columns, cells = len(dynamics.rows), len(dynamics.rows[0]), "".join(dynamics.rows)
    corners = {"right": ((1, 0), (1, 1)), "left": ((0, 0), (0, 1)), "down": ((0, 1), (1, 1)), "up": ((0, 0), (1, 0))}
    inner = [cell for cell, kind in enumerate(cells) if kind not in (GOAL, HOLE)]  # cells with moves
    coloured = rewards[inner][rewards[inner] > FALL] if simplify else rewards[inner].ravel()
    sizes, colour_map = np.abs(coloured), matplotlib.colormaps["RdYlBu"]
    low, middle = np.quantile(sizes[sizes > 0], [0.1, 0.5]) if sizes.any() else (1.0, 1.0)
    # Rewards that grow by a factor from cell to cell need a logarithmic scale.
    is_wide = sizes.max() > 1000 * middle
    scale: Any
    if is_wide:
        scale = matplotlib.colors.SymLogNorm(low, vmin=-sizes.max(), vmax=sizes.max())
    else:
        scale = matplotlib.colors.Normalize(*np.quantile(coloured, [0.0 if simplify else 0.1, 1.0]))
    for cell, kind in enumerate(cells):
        row, column = divmod(cell, columns)
        if cell not in inner:
            axis.text(column + 0.5, row + 0.5, "goal" if kind == GOAL else "hole", ha="center", va="center")
            continue
        for value, action in zip(rewards[cell], dynamics.actions, strict=True):
            points = [(column + x, row + y) for x, y in (*corners[action], (0.5, 0.5))]
            colour = GREY if simplify and value <= FALL else colour_map(scale(value))
            axis.add_patch(Polygon(points, facecolor=colour, edgecolor="white"))
    axis.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[], aspect="equal")
    axis.grid(False)
    bar = axis.figure.colorbar(matplotlib.cm.ScalarMappable(scale, colour_map), ax=axis, label="reward", shrink=0.8)
    if is_wide:
        powers = [10.0**exponent for exponent in range(4, 40, 4) if 10.0**exponent < sizes.max()]
        bar.set_ticks([*(-power for power in reversed(powers)), 0.0, *powers], minor=False)


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("kind", choices=("curves", "map"))
    flags.add_argument("source", nargs="+", help="JSON of compare.py, or learned rewards")
    flags.add_argument("--out", type=Path, required=True)
    flags.add_argument("--columns", type=int, choices=range(1, 5), default=2, help="panels in a row, of curves")
    flags.add_argument("--simplify", action="store_true", help="show rewards above -50 alone, on the map")
    add_look(flags)
    options = flags.parse_args(argv)

    def make() -> None:
        out = figure_to_write("out", options.out)
        if options.kind == "curves" and len(options.source) > 1:
            raise SettingError(f"source is {' '.join(options.source)!r}; allowed for curves: one file")
        if options.kind == "curves":
            curves(Path(options.source[0]), out, style_of(options), options.columns)
        else:
            on_map(options.source, out, style_of(options), options.simplify)
        print(out)

    return run_script(make)


if __name__ == "__main__":
    sys.exit(main())
