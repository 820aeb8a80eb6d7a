"""What a synthetic bandit pays for, over state and action."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from control.reports.sheets import WIDTH, balanced, rows, sheet
from control.reports.style import Look
from models.proxies.files import Proxy
from models.spaces import Discrete

_BINS, _ACTIONS, _PANELS = 25, 41, 9


def paid(proxy: Proxy, states: Tensor, coordinate: int = 0) -> tuple[Tensor, Tensor]:
    """Actions ``[K]``, of continuous ones the values of one coordinate with the others at the middle of their ranges,
    and the reward ``[K, N]`` of each in ``states [N, S]``."""
    networks: Any = proxy.networks
    program, actions, count = networks.program(proxy.parameters[None]), networks.actions, len(states)
    if isinstance(actions, Discrete):
        values = torch.arange(actions.n)
        acted = values.view(-1, 1, 1).expand(-1, 1, count)
    else:
        low, high = torch.tensor(actions.low), torch.tensor(actions.high)
        values = torch.linspace(float(low[coordinate]), float(high[coordinate]), _ACTIONS)
        acted = ((low + high) / 2).repeat(_ACTIONS, 1, count, 1)
        acted[..., coordinate] = values.view(-1, 1, 1)
    return values, torch.cat([program.step(states[None], action).reward for action in acted])


def in_bins(reward: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Edges ``[_BINS + 1]`` of one number ``seen [N]`` of the states, without its outermost 0.5 %, and the mean reward
    ``[K, _BINS]`` of ``reward [K, N]`` there, NaN where there is no state."""
    low, high = seen.quantile(0.005), seen.quantile(0.995)
    edges = torch.linspace(float(low), float(high) if high > low else float(low) + 1, _BINS + 1)
    at = torch.bucketize(seen.contiguous(), edges[1:-1])
    inside = (seen >= edges[0]) & (seen <= edges[-1])
    sums = torch.zeros(len(reward), _BINS).index_add_(1, at[inside], reward[:, inside])
    return edges, sums / torch.bincount(at[inside], minlength=_BINS)


def draw_paid(path: Path, proxy: Proxy, states: Tensor, names: list[str], look: Look) -> Path:
    """Mean reward of each action over each number of ``states [N, S]``, which agents train on: lines of discrete
    actions, and of continuous ones an image for each coordinate. Of many, the nine where it depends most on the number
    of the state which actions are paid."""
    networks: Any = proxy.networks
    actions = networks.actions
    discrete = isinstance(actions, Discrete)
    panels = []
    for coordinate in range(1 if isinstance(actions, Discrete) else actions.size):
        values, reward = paid(proxy, states, coordinate)
        for i, name in enumerate(names):
            edges, means = in_bins(reward, states[:, i])
            rise = (means[-1] - means[0])[means.isfinite().all(0)]  # from the least action to the largest
            panels.append((float(rise.std()) if len(rise) > 1 else 0.0, coordinate, name, values, edges, means))
    telling = sorted(range(len(panels)), key=lambda k: -panels[k][0])[:_PANELS]
    shown = [panels[k] for k in sorted(telling)]
    lengths = balanced(len(shown))
    note = "means over the states that agents train on; other numbers of the action are at the middle of their ranges"
    note = "means over the states that agents train on" if discrete or actions.size == 1 else note
    title = f"what the synthetic bandit of {proxy.game} pays for"
    with sheet(path, rows(*lengths), (WIDTH, 2.0 * len(lengths)), look, title=title, note=note) as axes:
        for axis, (_, coordinate, name, values, edges, means) in zip(axes, shown, strict=True):
            middles = (edges[1:] + edges[:-1]) / 2
            if discrete:
                for value, mean in zip(values.tolist(), means, strict=True):
                    axis.plot(middles, mean, label=f"action {value}")
                axis.set(xlabel=name, ylabel="reward")
                continue
            ends = (float(edges[0]), float(edges[-1]), float(values[0]), float(values[-1]))
            image = axis.imshow(means, origin="lower", extent=ends, aspect="auto")
            axis.set(xlabel=name, ylabel="action" if actions.size == 1 else f"action {coordinate}")
            axis.grid(False)
            axis.figure.colorbar(image, ax=axis, label="reward")
    return path
