"""`--eval_agent CHECKPOINT --obedience`: does an agent that is commanded a return obtain it? A sweep of commands over
the returns seen in training and beyond, its statistics, table and figure.

A sweep commands C returns in each of E episodes of each of M seeds. A command is inside if it is within the range of
returns in the seed's training. Commands outside of it require extrapolation.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from control.cli.progress import progress
from control.evolution.fitness_shaping import centred_ranks
from control.loops.episodes import EpisodeLoop
from control.loops.loop import Loop, rounds
from control.loops.rollout import rollout
from control.reports.files import show
from control.reports.sheets import WIDTH, sheet
from control.reports.statistics import LEAST, Array, interval
from control.reports.style import COLOURS, GREY, PLAIN, Look
from control.reports.tables import aligned
from control.reports.tags import LARGEST_SEEN, SMALLEST_SEEN
from control.storage.checkpoints import Checkpoint
from control.storage.run_dir import home, read_metrics
from models.contract import Policy
from models.settings import SettingError
from models.streams import Streams

EPISODES = 20  # of each command, by default
BEYOND = 0.25  # by which a sweep exceeds each end of the training range, as a share of it
COMMANDS = 15
REGIONS = ("inside", "outside", "all")
NAMES = {"slope": "slope", "rho": "rank correlation", "mae": "mean absolute error"}
NOTE = "points: mean with its 95 % bootstrap interval; dashed: obtained as commanded; shaded: returns seen in training"


def grid(low: ArrayLike, high: ArrayLike) -> Array:
    """The returns to ask for, ``[C]``: from a quarter of the range below the lowest to as much above the highest."""
    least, highest = float(np.min(low)), float(np.max(high))
    margin = BEYOND * (highest - least or max(1.0, abs(highest)))
    return np.linspace(least - margin, highest + margin, COMMANDS)


def slope(commanded: ArrayLike, returns: ArrayLike) -> float:
    """The slope of a least-squares line through pairs ``[N]``: 1 if obtained returns follow commands, 0 if commands
    have no effect."""
    x = np.asarray(commanded, dtype=np.float64)
    x = x - x.mean()
    return float(x @ np.asarray(returns, dtype=np.float64) / (x @ x))


def rank_correlation(commanded: ArrayLike, returns: ArrayLike) -> float:
    """Spearman's rank correlation of pairs ``[N]``. Equal numbers get the mean of their ranks. 0 if one side is
    constant."""
    pair = (torch.as_tensor(np.asarray(values, dtype=np.float64)) for values in (commanded, returns))
    x, y = (centred_ranks(values).numpy() for values in pair)
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else 0.0


def absolute_error(commanded: ArrayLike, returns: ArrayLike) -> float:
    """The mean absolute difference of pairs ``[N]``, in units of return."""
    return float(np.abs(np.asarray(returns, dtype=np.float64) - np.asarray(commanded)).mean())


_STATISTICS: dict[str, Callable[[ArrayLike, ArrayLike], float]] = {
    "slope": slope,
    "rho": rank_correlation,
    "mae": absolute_error,
}


def measure(commanded: ArrayLike, returns: ArrayLike, low: ArrayLike, high: ArrayLike) -> dict[str, Any]:
    """Statistics of returns ``obtained [M, C, E]`` under commands ``[C]``, as data for JSON. ``low`` and ``high [M]``
    are the range of returns in each seed's training.

    ``regions`` has, for each of `REGIONS`, the numbers of commands and episodes, and each statistic of `NAMES` with its
    interval. Episode e starts equally under all commands, so it gives one statistic over the C commands; the result is
    the mean over episodes and seeds. It is None if a seed has fewer than two commands in the region. The bootstrap is
    over seeds, or over episodes with fewer than three seeds.
    """
    commands, got = np.asarray(commanded, dtype=np.float64), np.asarray(returns, dtype=np.float64)
    lows, highs = np.asarray(low, dtype=np.float64)[:, None], np.asarray(high, dtype=np.float64)[:, None]
    inside = (commands >= lows) & (commands <= highs)  # [M, C]
    of = dict(zip(REGIONS, (inside, ~inside, np.ones_like(inside)), strict=True))
    return {
        "commanded": commands.tolist(),
        "seen": np.concatenate([lows, highs], 1).tolist(),
        "obtained": got.mean(2).tolist(),
        "mean": got.mean((0, 2)).tolist(),
        "interval": _points(got),
        "regions": {name: _region(commands, got, where) for name, where in of.items()},
    }


def _points(got: Array) -> list[list[float]] | None:
    """The interval ``[C, 2]`` of the mean of each command."""
    bounds = interval(got.mean(2)) if len(got) >= LEAST else interval(got.mean(0).T)
    return None if bounds is None else np.stack(bounds, 1).tolist()


def _region(commands: Array, got: Array, where: Any) -> dict[str, Any]:
    """The statistics of the commands in ``where [M, C]`` bool, for each seed."""
    region: dict[str, Any] = {"commands": int(where.any(0).sum()), "episodes": int(where.sum()) * got.shape[2]}
    if where.sum(1).min() < 2:
        return region | dict.fromkeys(NAMES)
    for name, statistic in _STATISTICS.items():
        of_episodes = np.array(
            [
                [statistic(commands[w], value) for value in seed_returns[w].T]
                for seed_returns, w in zip(got, where, strict=True)
            ]
        )
        bounds = interval(of_episodes.mean(1)) if len(got) >= LEAST else interval(of_episodes.mean(0))
        region[name] = {
            "value": float(of_episodes.mean()),
            "interval": [float(value) for value in bounds] if bounds else None,
        }
    return region


def _cell(estimate: dict[str, Any] | None) -> str:
    if estimate is None:
        return "-"
    bounds = estimate["interval"]
    return f"{estimate['value']:.2f}" + (f" [{bounds[0]:.2f}, {bounds[1]:.2f}]" if bounds else "")


def table(numbers: dict[str, Any]) -> str:
    """The text of a sweep's ``numbers``, a block for each way to act with a row for each region."""
    blocks = []
    for mode, results in numbers["modes"].items():
        rows = [[mode, "commands", "episodes", *NAMES.values()]]
        for name, region in results["regions"].items():
            cells = (_cell(region[statistic]) for statistic in NAMES)
            rows.append([name, f"{region['commands']}", f"{region['episodes']:,}", *cells])
        blocks.append("\n".join(aligned(rows)))
    return "\n\n".join(blocks)


def draw(numbers: dict[str, Any], target: Path, look: Look = PLAIN) -> None:
    """Write the figure of a sweep's ``numbers``: a panel for each way to act."""
    modes = numbers["modes"]
    size = (WIDTH if len(modes) > 1 else 0.6 * WIDTH, 2.9)
    with sheet(target, [list(range(len(modes)))], size, look, title=numbers["title"], note=NOTE) as axes:
        for axis, (mode, results) in zip(axes, modes.items(), strict=True):
            _panel(axis, results)
            axis.set(title=f"{mode.capitalize()} actions", xlabel="commanded return", ylabel="obtained return")


def _panel(axis: Any, results: dict[str, Any]) -> None:
    commands, mean, ranges = results["commanded"], np.array(results["mean"]), results["seen"]
    for low, high in ranges:
        axis.axvspan(low, high, color=GREY, alpha=0.18 / len(ranges), linewidth=0)
    axis.plot([commands[0], commands[-1]], [commands[0], commands[-1]], color=GREY, linewidth=1, linestyle=(0, (4, 2)))
    if len(ranges) > 1:
        axis.plot(commands, np.array(results["obtained"]).T, color=COLOURS[0], linewidth=0.5, alpha=0.4)
    bars = None
    if results["interval"]:
        # A bar has no negative length, though a mean may lie outside its interval by rounding.
        bars = np.abs(np.array(results["interval"]).T - mean)
    axis.errorbar(commands, mean, yerr=bars, color=COLOURS[0], fmt="o", markersize=3, linewidth=0, elinewidth=1)


# -- the sweep --------------------------------------------------------------------------------------------------------


class _Counting(Policy):
    """A policy that sums the rewards of its episodes, discounted if its commands are discounted returns."""

    def __init__(self, policy: Policy, discount: float):
        self.policy, self.members, self.discount = policy, policy.members, discount
        self.weight, self.returns = 1.0, torch.zeros(())

    def act(self, obs: Tensor) -> Tensor:
        return self.policy.act(obs)

    def advance(self, reward: Tensor) -> None:
        self.returns = self.returns + self.weight * reward
        self.weight *= self.discount
        self.policy.advance(reward)


def check(loop: Loop, kind: str) -> EpisodeLoop:
    """The loop, of an agent that can be commanded a return. SettingError for any other."""
    if not isinstance(loop, EpisodeLoop) or "return" not in loop.agent.commands_now():
        raise SettingError(
            f"--obedience has no effect with {kind}, whose agents are commanded no return; allowed: UDRL, RCP-R"
        )
    return loop


def sweep(
    loop: EpisodeLoop,
    commands: Sequence[float],
    episodes: int,
    sample: bool,
    seed: int,
    fixed_command: dict[str, float],
) -> Array:
    """Returns ``[M, C, E]`` under each of the ``commands``, in their units. ``seed`` chooses the episodes, which are
    equal for all commands. ``fixed_command`` are fixed parts of the command."""
    returns, config = [], loop.agent.config
    discount = config.discount if config.desire_rtg else 1.0
    with progress("commands") as watch:
        for number, command in enumerate(commands):
            streams = Streams.from_name([seed + member for member in range(len(loop.seeds))], "obedience")
            parts = []
            for count in rounds(episodes, loop.eval_envs):
                full_command = {**fixed_command, "return": float(command)}
                policy = loop.agent.begin(count, streams.fork(), sample=sample, evaluate=True, command=full_command)
                counting = _Counting(policy, discount)
                rollout(counting, loop.evaluation, streams.episode_seeds(count), keep=False)
                parts.append(counting.returns)
            returns.append(torch.cat(parts, 1))
            if watch:
                watch((number + 1) / len(commands))
    return torch.stack(returns, 1).double().numpy()


def return_range(checkpoint: Checkpoint, seeds: Sequence[int], discount: float) -> tuple[list[float], list[float]]:
    """The smallest and largest training return of each seed up to the checkpoint, from the run's metrics.csv. Raises
    SettingError if the file is missing or lacks them."""
    written = read_metrics(home(checkpoint.path) / "metrics.csv")
    metrics = {tag: np.array(column) for tag, column in written.items()}
    pairs = [(SMALLEST_SEEN, LARGEST_SEEN)] + [("rollout/return_min", "rollout/return_max")] * (discount == 1)
    tags = next((pair for pair in pairs if metrics.keys() >= {*pair}), None)
    if tags is None:
        path = str(checkpoint.path)
        raise SettingError(f"checkpoint {path!r} has no metrics.csv that says which returns its training has seen")
    past = metrics["epoch"] <= checkpoint.run_state["epoch"]
    low, high = ([metrics[tag][past & (metrics["seed"] == seed)] for seed in seeds] for tag in tags)
    if not all(np.isfinite(values).any() for values in low):
        raise SettingError(f"checkpoint {str(checkpoint.path)!r} is of a run that had not played yet")
    return [float(np.nanmin(values)) for values in low], [float(np.nanmax(values)) for values in high]


def report(
    checkpoint: Checkpoint,
    loop: EpisodeLoop,
    modes: Sequence[str],
    episodes: int,
    seed: int,
    fixed_command: dict[str, float],
) -> None:
    """Sweep, print the table, and write figure and numbers beside the checkpoint."""
    run, config = checkpoint.settings.run, loop.agent.config
    low, high = return_range(checkpoint, loop.seeds, config.discount if config.desire_rtg else 1.0)
    commands, seeds = grid(low, high), ", ".join(map(str, loop.seeds))
    numbers: dict[str, Any] = {
        "title": f"{run.implementation} on {run.gamename}, seed {seeds}: obtained against commanded return",
        "seeds": list(loop.seeds),
        "epoch": checkpoint.run_state["epoch"],
        "episodes": episodes,
        "modes": {},
    }
    for mode in modes:
        returns = sweep(loop, commands.tolist(), episodes, mode == "sampled", seed, fixed_command)
        numbers["modes"][mode] = measure(commands, returns, low, high)
    path = checkpoint.path.with_name(f"{checkpoint.path.stem}_obedience.png")
    show(table(numbers), numbers, lambda to: draw(numbers, to), path, "eval_agent")
