"""Figures of learned rewards. On a map, they compare the best moves under the learned and under the real reward.

A reward network phi maps a state to a number. Depending on its mode (`understudy.kinds.Mode`), the learned reward is
this number, or the difference of this number, then called a potential, between two successive states.
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from control.cli.settings import Settings
from control.reports.figures import NARROW, WIDTH, FigureStyle, figure_panels, narrow_file, style_of
from control.reports.states import base_name, state_names
from envs.gridmaps import GOAL, HOLE, WALL, CellTable
from envs.make import make_dynamics
from envs.reward import collect_transitions
from models.proxies.files import Proxy
from models.proxies.reward.networks import Phi
from understudy.rewards import shaped_reward

_POINTS = 81  # points on each axis of a slice
# Marks on a colour map, which is equal in light and dark pages. Pages replace pure black, pure white and `GREY`.
_BLACK, _WHITE, _DIM = "#010101", "#fefefe", "#6a6a6a"


@dataclass(frozen=True)
class Slice:
    """A plane through the states of a game: two components of the state, x and y, vary, and the others are 0.

    :param indices: indices of x and y in the state.
    :param bounds: smallest and largest value of x, and of y.
    :param size: number S of components of a state.
    :param angle: whether x is an angle. The first two components of the state are its cosine and sine.
    """

    indices: tuple[int, int]
    bounds: tuple[tuple[float, float], tuple[float, float]]
    size: int
    angle: bool = False

    def states(self) -> Tensor:
        """Return states on a grid of the plane, ``[81, 81, S]``. As in an image, the first axis is y, the second x."""
        x, y = (torch.linspace(*bounds, _POINTS) for bounds in self.bounds)
        x_index, y_index = self.indices
        states = torch.zeros(_POINTS, _POINTS, self.size)
        states[..., y_index] = y[:, None]
        if self.angle:
            states[..., 0], states[..., 1] = x.cos(), x.sin()
        else:
            states[..., x_index] = x
        return states


SLICES: dict[str, tuple[Slice, ...]] = {
    "cartpole": (Slice((2, 3), ((-0.21, 0.21), (-2, 2)), 4), Slice((0, 1), ((-2.4, 2.4), (-2, 2)), 4)),
    "mountaincar": (Slice((0, 1), ((-1.2, 0.6), (-0.07, 0.07)), 2),),
    "pendulum": (Slice((0, 2), ((-3.14, 3.14), (-8, 8)), 3, angle=True),),
}


def picture(proxy: Proxy, folder: Path, settings: Settings) -> Path:
    """Draw ``reward.png`` in ``folder``, also as SVG and, of a grid world, narrow. Return its path. It shows the output
    of a reward network, the ``proxy``: in each cell of a grid world, with the best moves; on planes through the states
    of games in `SLICES`; for other games, as a histogram over random play. A network without states as input, or with
    the info of a step (Gymnasium's) as input, is shown by its weights instead."""
    networks: Any = proxy.networks
    game = proxy.game
    phi = networks.with_weights(proxy.parameters[None])
    dynamics = make_dynamics(game)
    style = style_of(settings.run).with_svg()
    path, title = style.path(folder, "reward"), f"{networks.mode.name} reward network of {game}"
    if not networks.mode.state or networks.mode.info:
        _weights(networks, proxy.parameters, path, title, style)
    elif isinstance(dynamics, CellTable):
        _map(dynamics, phi, float(getattr(settings.agent, "discount", 1.0)), path, title, style)
    elif base_name(game) in SLICES:
        _slices(game, phi, path, title, style)
    else:
        obs, _, terminated = collect_transitions(game)
        _histogram(phi, obs, terminated, path, title, style)
    return path


def _histogram(phi: Phi, obs: Tensor, terminated: Tensor, path: Path, title: str, style: FigureStyle) -> None:
    """Draw the distribution of the output of the reward network phi for the observations ``obs [N, *O]`` of random
    play, separately for observations at the end of episodes (``terminated [N]``) and all others."""
    values = phi(obs[None])[0]
    edges = np.histogram_bin_edges(values.numpy(), 50)
    with figure_panels(path, [[0]], (WIDTH, 2.9), style, title=title) as (axis,):
        for name, mask in (("going on", ~terminated), ("at an end", terminated)):
            if mask.any():
                axis.hist(values[mask].numpy(), edges, density=True, histtype="step", label=name)
        quantity = _quantity(phi)
        axis.set(xlabel=f"{quantity} along random play", ylabel=f"density (1 / {quantity})")


def _quantity(phi: Phi) -> str:
    """Return "potential" if the learned reward is a difference of phi between two states, else "learned reward"."""
    return "potential" if phi.networks.mode.potential else "learned reward"


def _slices(game: str, phi: Phi, path: Path, title: str, style: FigureStyle) -> None:
    """Draw the output of the reward network phi on planes through the states of a ``game``."""
    slices = SLICES[base_name(game)]
    note = f"white lines join states of equal {_quantity(phi)}; what no axis shows is 0"
    size = (3.5 * len(slices), 2.7)
    with figure_panels(path, [list(range(len(slices)))], size, style, title=title, note=note) as axes:
        for axis, plane in zip(axes, slices, strict=True):
            states = plane.states().flatten(0, 1)
            values = phi(states[None])[0].view(_POINTS, _POINTS)
            extent = (*plane.bounds[0], *plane.bounds[1])
            image = axis.imshow(values, origin="lower", extent=extent, aspect="auto")
            axis.contour(values, 8, extent=extent, colors=_WHITE, linewidths=0.6, linestyles="solid")
            x_name, y_name = (state_names(game, plane.size)[index] for index in plane.indices)
            axis.set(xlabel="angle (rad)" if plane.angle else x_name, ylabel=y_name)
            axis.grid(False)
            axis.figure.colorbar(image, ax=axis, label=_quantity(phi))


def _weights(networks: Any, parameters: Tensor, path: Path, title: str, style: FigureStyle) -> None:
    """Draw a bar for each number in the info of a step: its weight in a linear reward network, otherwise the norm of
    its weights in the first layer. ``parameters [D]`` are the flat parameters of the network."""
    names = networks.spaces.info if networks.mode.info else ("none",)  # mode 0 has a single unused input
    # [units, inputs of info]; the inputs of the state precede the inputs of info.
    weights = networks.named_tensors(parameters)["reward.0.weight"][:, -len(names) :]
    values, ylabel = weights.norm(dim=0), "size of its weights in the first layer"
    if networks.linear:  # a single unit
        values, ylabel = weights[0], "weight"
    with figure_panels(path, [[0]], (WIDTH, 2.7), style, title=title) as (axis,):
        axis.bar(range(len(values)), values.numpy())
        axis.set_xticks(range(len(values)), names, rotation=20)
        axis.set(ylabel=ylabel)


def best_moves(dynamics: CellTable, phi: Phi, discount: float, zero_at_end: bool = False) -> tuple[Tensor, Tensor]:
    """Compute the best moves in a grid world with S cells and A moves, by value iteration. Return two masks ``[S, A]``:
    the best moves under the real reward, and under the learned reward of the network ``phi``. ``discount`` is the
    discount of the agents. With ``zero_at_end``, the output of phi for terminal states counts as 0."""
    cells, moves = dynamics.spaces.obs_shape[0], len(dynamics.actions)
    potentials = phi(torch.eye(cells)[None])[0].double()  # [S]; observations are one-hot
    next_potentials = potentials[dynamics.next_cell.view(cells, moves)]
    if zero_at_end:
        next_potentials = next_potentials.masked_fill(dynamics.terminated.view(cells, moves), 0.0)
    reward = dynamics.reward.view(cells, moves).double()
    learned_reward = shaped_reward(phi.networks.mode, reward, potentials[:, None], next_potentials, discount)  # [S, A]
    values = torch.stack([dynamics.values(rewards, discount)[1] for rewards in (reward, learned_reward)])  # [2, S, A]
    rounding = 1e-9 * (1 + values.abs().amax((1, 2), keepdim=True))
    real_moves, learned_moves = values >= values.amax(2, keepdim=True) - rounding
    return real_moves, learned_moves


_MARKS = {GOAL: "goal", HOLE: "fall", WALL: "wall"}  # kind of a cell without moves -> its text
_ARROWS = {"right": (0.3, 0), "left": (-0.3, 0), "down": (0, 0.3), "up": (0, -0.3)}


def _number_texts(values: list[float], is_exponential: bool) -> list[str]:
    """Return the values of cells as texts of few letters: ``128``, or ``3e8`` if phi is exponential."""
    if is_exponential:
        return [f"{value:.0f}" if 1 <= abs(value) < 1000 else re.sub(r"e\+0*", "e", f"{value:.1g}") for value in values]
    # At least two digits of the largest value.
    decimals = max(0, 2 - math.ceil(math.log10(max(0.1, *map(abs, values)))))
    return [f"{value:z.{decimals}f}" for value in values]


def _map(dynamics: CellTable, phi: Phi, discount: float, path: Path, title: str, style: FigureStyle) -> None:
    """Draw the output of the reward network phi in each cell of a grid world, with arrows for the best moves. The
    narrow figure has no colour bar, so that its cells have room for numbers."""
    kinds = "".join(dynamics.rows)  # a letter for each cell
    quantity = _quantity(phi)
    rows, columns = len(dynamics.rows), len(dynamics.rows[0])
    values = phi(torch.eye(rows * columns)[None])[0].view(rows, columns)
    texts = _number_texts(values.flatten().tolist(), phi.uses_symexp)
    letters = max(4, *map(len, texts))  # the marks have four
    real_best, learned_best = best_moves(dynamics, phi, discount, phi.networks.config.rn_terminal == "zero")
    note = "arrows: best moves under the learned reward, grey if they are not best under the real reward"
    note += f"; numbers: {quantity}"
    widths = {path: WIDTH} | ({narrow_file(path): NARROW} if style.narrow else {})  # inches
    for file, width in widths.items():
        cell_size = min(0.7, (width - (0.8 if width == WIDTH else 0.1)) / columns)  # inches
        font_size = min(9.0, 72 * cell_size / (0.7 * letters))  # points; a letter is narrower than 0.7 of it
        arrow_style = {"arrowstyle": "->", "shrinkA": 0, "shrinkB": 0, "mutation_scale": font_size}
        size = (width, max(0.42, cell_size) * rows + 0.1)
        with figure_panels(file, [[0]], size, replace(style, narrow=False), title=title, note=note) as (axis,):
            norm = "symlog" if phi.uses_symexp else None
            image = axis.imshow(values, cmap="RdYlBu", norm=norm, aspect="auto" if width == NARROW else "equal")
            for cell, kind in enumerate(kinds):
                row, column = divmod(cell, columns)
                # Both ends of the colour map are dark.
                ink = _BLACK if 0.1 < float(image.norm(values[row, column].item())) < 0.9 else _WHITE
                word: Any = {"ha": "center", "va": "center", "fontsize": font_size, "color": ink}
                axis.text(column, row - 0.26, texts[cell], **word)
                if kind in _MARKS:
                    axis.text(column, row + 0.2, _MARKS[kind], **word)
                    continue
                y = row + 0.15  # below the number
                for number, move in enumerate(dynamics.actions):
                    if learned_best[cell, number]:
                        dx, dy = _ARROWS[move]
                        arrow = arrow_style | {"color": ink if real_best[cell, number] else _DIM}
                        axis.annotate("", (column + dx, y + dy), (column, y), arrowprops=arrow)
            axis.set(xticks=[], yticks=[])
            axis.grid(False)
            if width == WIDTH:
                _colour_bar(axis, image, quantity, values if phi.uses_symexp else None)


def _colour_bar(axis: Any, image: Any, quantity: str, symexp_values: Tensor | None) -> None:
    """Add the colour bar of an ``image`` of a ``quantity``. By default there is a tick for each power of ten of
    ``symexp_values``, and they overlap. Two powers of each sign and 0 remain."""
    bar = axis.figure.colorbar(image, ax=axis, label=quantity, shrink=0.8)
    if symexp_values is not None:
        exponent = round(math.log10(symexp_values.abs().max().clamp(min=10)))
        powers = [10.0**exponent, 10.0 ** (exponent // 2)]
        bar.set_ticks(sorted([0.0, *powers, *(-power for power in powers)]))
        bar.minorticks_off()
