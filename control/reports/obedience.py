"""Obedience of agents that follow commanded returns: sweep, statistics, table and figure of `--obedience`.

A sweep commands C returns in E episodes of each of M seeds. A command is inside if it is between the smallest and the
largest training return of the seed. Commands outside of this range require extrapolation.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from control.cli.progress import progress
from control.evolution.fitness_shaping import centred_ranks
from control.loops.episodes import EpisodeLoop
from control.loops.loop import Loop, rounds
from control.loops.rollout import rollout
from control.reports.figures import COLOURS, GREY, WIDTH, figure_panels, rows, show
from control.reports.statistics import MIN_RUNS, Array, interval
from control.reports.tables import Table, with_interval
from control.reports.tags import LARGEST_SEEN, SMALLEST_SEEN
from control.storage.checkpoints import Checkpoint
from control.storage.run_dir import read_metrics, run_folder_of
from models.settings import SettingError
from models.streams import Streams
from models.trajectory import discounted_returns

EPISODES = 20  # default number of episodes per command
MARGIN = 0.25  # extension of a sweep at each end of the training range, as a fraction of the range
COMMANDS = 15  # number of commands of a sweep
REGIONS = ("inside", "outside", "all")
NAMES = {"slope": "slope", "rho": "rank correlation", "mae": "mean absolute error"}
NOTE = "points: mean with its 95 % bootstrap interval; dashed: obtained as commanded; shaded: returns seen in training"


def command_grid(low: ArrayLike, high: ArrayLike) -> Array:
    """Return the commanded returns ``[C]`` of a sweep. They are evenly spaced over the range of the training returns,
    extended by a quarter at each end. ``low [M]`` and ``high [M]`` are smallest and largest training return by seed."""
    lowest, highest = float(np.min(low)), float(np.max(high))
    width = highest - lowest
    if width == 0:  # all training returns are equal
        width = max(1.0, abs(highest))
    return np.linspace(lowest - MARGIN * width, highest + MARGIN * width, COMMANDS)


def slope(commands: Array, returns: Array) -> float:
    """Return the slope of a least-squares line of returns over commands, ``[N]`` each: 1 if all commands are obeyed."""
    centred = commands - commands.mean()
    return float(centred @ returns / (centred @ centred))


def rank_correlation(commanded: ArrayLike, returns: ArrayLike) -> float:
    """Return Spearman's rank correlation of N pairs of a command and an obtained return. Equal numbers get the mean of
    their ranks. The correlation is 0 if all commands or all returns are equal."""
    # Ranks minus their means, [N].
    command_ranks = centred_ranks(torch.as_tensor(np.asarray(commanded, dtype=np.float64))).numpy()
    return_ranks = centred_ranks(torch.as_tensor(np.asarray(returns, dtype=np.float64))).numpy()
    scale = float(np.sqrt((command_ranks @ command_ranks) * (return_ranks @ return_ranks)))
    return float(command_ranks @ return_ranks) / scale if scale else 0.0


def _mean_absolute_error(commands: Array, returns: Array) -> float:
    return float(np.abs(returns - commands).mean())


_STATISTICS = {"slope": slope, "rho": rank_correlation, "mae": _mean_absolute_error}


def measure(commanded: ArrayLike, returns: ArrayLike, low: ArrayLike, high: ArrayLike) -> dict[str, Any]:
    """Measure how well agents obey commanded returns, inside and outside of the range of their training returns. Return
    the statistics of a sweep as data for JSON.

    :param commanded: the commanded returns ``[C]``.
    :param returns: the obtained returns ``[M, C, E]`` of M seeds in E episodes under each command.
    :param low: the smallest training return of each seed, ``[M]``.
    :param high: the largest training return of each seed, ``[M]``.
    :return: ``commanded``: the commands. ``seen [M, 2]``: the range of training returns of each seed. ``obtained [M,
        C]``: means over episodes. ``mean [C]``: means over seeds and episodes. ``interval [C, 2]``: their 95 %
        intervals. ``regions``: name of a region -> `_region`, for commands inside of the training range of a seed,
        commands outside of it, and all commands.
    """
    commands, obtained = np.asarray(commanded, dtype=np.float64), np.asarray(returns, dtype=np.float64)
    lows, highs = np.asarray(low, dtype=np.float64)[:, None], np.asarray(high, dtype=np.float64)[:, None]
    is_inside = (commands >= lows) & (commands <= highs)  # [M, C]
    masks = (is_inside, ~is_inside, np.ones_like(is_inside))  # a mask [M, C] for each of `REGIONS`
    return {
        "commanded": commands.tolist(),
        "seen": np.concatenate([lows, highs], 1).tolist(),
        "obtained": obtained.mean(2).tolist(),
        "mean": obtained.mean((0, 2)).tolist(),
        "interval": _interval(obtained.transpose(0, 2, 1)),  # the argument is [M, E, C]
        "regions": {name: _region(commands, obtained, mask) for name, mask in zip(REGIONS, masks, strict=True)},
    }


def _interval(results: Array) -> list[Any] | None:
    """Return the 95 % interval ``[..., 2]`` of the mean of ``results [M, E, ...]`` over M seeds and E episodes, as
    lists. The bootstrap is over seeds or, with fewer than three, over episodes."""
    bounds = interval(results.mean(1) if len(results) >= MIN_RUNS else results.mean(0))
    return None if bounds is None else np.stack(bounds, -1).tolist()


def _region(commands: Array, returns: Array, mask: Any) -> dict[str, Any]:
    """Return statistics of the ``returns [M, C, E]`` under the commands of a region. ``mask [M, C]`` is True for these
    commands, among ``commands [C]``. They may differ between seeds.

    The result has the numbers of ``commands`` and ``episodes`` in the region, and each statistic of `NAMES` with its
    ``value`` and ``interval``. A statistic is None if a seed has fewer than two commands in the region. Episode number
    e begins in the same state under all commands, so a statistic is computed for each e, and averaged over seeds and
    episodes. Bootstraps are over seeds or, with fewer than three seeds, over episodes.
    """
    num_episodes = returns.shape[2]
    region: dict[str, Any] = {"commands": int(mask.any(0).sum()), "episodes": int(mask.sum()) * num_episodes}
    if mask.sum(1).min() < 2:  # number of commands of a seed
        return region | dict.fromkeys(NAMES)
    for name, statistic in _STATISTICS.items():
        estimates = np.empty((len(returns), num_episodes))  # [M, E]
        for seed, seed_mask in enumerate(mask):
            seed_returns = returns[seed][seed_mask]  # under the K commands in the region, [K, E]
            for episode in range(num_episodes):
                estimates[seed, episode] = statistic(commands[seed_mask], seed_returns[:, episode])
        region[name] = {"value": float(estimates.mean()), "interval": _interval(estimates)}
    return region


def table(numbers: dict[str, Any]) -> str:
    """Return the ``numbers`` of `report` as text: a table for each mode, with a row for each of `REGIONS`."""
    tables = []
    for mode, results in numbers["modes"].items():
        table_rows = [[mode, "commands", "episodes", *NAMES.values()]]
        for name, region in results["regions"].items():
            estimates = [region[statistic] for statistic in NAMES]
            texts = [with_interval(e["value"], e["interval"], digits=2) if e else "-" for e in estimates]
            table_rows.append([name, f"{region['commands']}", f"{region['episodes']:,}", *texts])
        tables.append(str(Table(table_rows)))
    return "\n\n".join(tables)


def draw(numbers: dict[str, Any], target: Path) -> None:
    """Write the figure of the ``numbers`` of `report` to ``target``. It has a panel for each mode (greedy, sampled),
    which shows the mean return under each command with its interval, and the ranges of returns in training."""
    modes = numbers["modes"]
    size = (WIDTH if len(modes) > 1 else 0.6 * WIDTH, 2.9)
    quantity = "return" if numbers["discount"] == 1 else "discounted return"
    with figure_panels(target, rows(len(modes)), size, title=numbers["title"], note=NOTE) as axes:
        for axis, (mode, results) in zip(axes, modes.items(), strict=True):
            draw_returns(axis, results)
            title = f"{mode.capitalize()} actions"
            axis.set(title=title, xlabel=f"commanded {quantity}", ylabel=f"obtained {quantity}")


def draw_returns(axis: Any, results: dict[str, Any]) -> None:
    """Draw `measure`'s ``results``: mean return and interval under each command, and the ranges of training returns."""
    commands, mean, ranges = results["commanded"], np.array(results["mean"]), results["seen"]
    for low, high in ranges:
        axis.axvspan(low, high, color=GREY, alpha=0.18 / len(ranges), linewidth=0)
    ends = [commands[0], commands[-1]]
    axis.plot(ends, ends, color=GREY, linewidth=1, linestyle=(0, (4, 2)))
    if len(ranges) > 1:
        axis.plot(commands, np.array(results["obtained"]).T, color=COLOURS[0], linewidth=0.5, alpha=0.4)
    # By rounding, a mean may be outside its interval; bars must not have negative lengths.
    bars = np.abs(np.array(results["interval"]).T - mean) if results["interval"] else None
    axis.errorbar(commands, mean, yerr=bars, color=COLOURS[0], fmt="o", markersize=3, linewidth=0, elinewidth=1)


def commanded_loop(loop: Loop, implementation: str) -> EpisodeLoop:
    """Return ``loop``. Raises SettingError if its agents (``implementation``) do not follow commanded returns."""
    if not isinstance(loop, EpisodeLoop) or "return" not in loop.agent.command_names:
        raise SettingError(
            f"--obedience has no effect with {implementation}, whose agents are commanded no return; "
            "allowed: UDRL, RCP-R"
        )
    return loop


def sweep(loop: EpisodeLoop, commands: Sequence[float], episodes: int, sample: bool, seed: int) -> Array:
    """Play ``episodes`` (E) episodes under each of the C commanded returns ``commands``. Actions are sampled if
    ``sample``, otherwise greedy. Return the obtained returns ``[M, C, E]``, discounted if commands are discounted.
    ``seed`` determines the episodes, whose initial states are the same under all commands. Other numbers of a command,
    such as a horizon, are as in other evaluations of the ``loop``."""
    config: Any = loop.agent.config
    discount = config.return_discount
    returns = []
    with progress("commands") as watch:
        for number, command in enumerate(commands, start=1):
            # The same streams, and so the same episodes, under each command.
            streams = Streams.from_name([seed + member for member in range(len(loop.seeds))], "obedience")
            full_command = {**loop.command, "return": float(command)}
            command_returns = []
            for count in rounds(episodes, loop.eval_envs):  # number of episodes that are played at once
                policy = loop.agent.begin(count, streams.fork(), sample=sample, evaluate=True, command=full_command)
                trajectory = rollout(policy, loop.evaluation, streams.episode_seeds(count))
                if discount == 1:  # as in other evaluations; `discounted_returns` rounds differently
                    command_returns.append(trajectory.returns)
                else:
                    returns_to_go = discounted_returns(trajectory.reward, trajectory.valid, discount)
                    command_returns.append(returns_to_go[0])  # from the first step on
            returns.append(torch.cat(command_returns, dim=1))
            if watch:
                watch(number / len(commands))
    return torch.stack(returns, dim=1).double().numpy()


def return_range(checkpoint: Checkpoint, seeds: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return two lists: the smallest and the largest training return of each of the ``seeds``, up to the checkpoint.
    Raises SettingError if the run's metrics.csv is missing or lacks these returns."""
    columns = read_metrics(run_folder_of(checkpoint.path) / "metrics.csv")
    metrics = {tag: np.array(column) for tag, column in columns.items()}
    low, high = [], []
    if metrics.keys() >= {SMALLEST_SEEN, LARGEST_SEEN}:
        for seed in seeds:
            is_row = (metrics["epoch"] <= checkpoint.run_state["epoch"]) & (metrics["seed"] == seed)
            is_row &= np.isfinite(metrics[SMALLEST_SEEN])
            low.append(float(metrics[SMALLEST_SEEN][is_row].min(initial=np.inf)))
            high.append(float(metrics[LARGEST_SEEN][is_row].max(initial=-np.inf)))
    if not low or np.inf in low:  # inf: a seed has no training return yet
        raise SettingError(
            f"checkpoint {str(checkpoint.path)!r} has no metrics.csv that says which returns its training has seen"
        )
    return low, high


def report(checkpoint: Checkpoint, loop: EpisodeLoop, modes: Sequence[str], episodes: int, seed: int) -> None:
    """Run a `sweep` for each of ``modes`` (``greedy``, ``sampled``), print its table, and write figure and numbers
    beside the checkpoint. ``loop`` plays the agents of the checkpoint. ``episodes`` and ``seed`` are as in `sweep`."""
    run, config = checkpoint.settings.run, loop.agent.config
    low, high = return_range(checkpoint, loop.seeds)
    commands = command_grid(low, high)
    seeds = ", ".join(map(str, loop.seeds))
    numbers: dict[str, Any] = {
        "title": f"{run.implementation} on {run.gamename}, seed {seeds}: obtained against commanded return",
        "seeds": list(loop.seeds),
        "epoch": checkpoint.run_state["epoch"],
        "episodes": episodes,
        "discount": config.return_discount,
        "modes": {},
    }
    for mode in modes:
        returns = sweep(loop, commands.tolist(), episodes, mode == "sampled", seed)
        numbers["modes"][mode] = measure(commands, returns, low, high)
    path = checkpoint.path.with_name(f"{checkpoint.path.stem}_obedience.png")
    show(table(numbers), numbers, lambda target: draw(numbers, target), path, setting="eval_agent")
