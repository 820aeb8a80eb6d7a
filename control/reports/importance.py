"""How much each hyperparameter of a search mattered: PED-ANOVA (Watanabe, Bansal & Hutter 2023, arXiv 2304.10255), by
Optuna. It compares the values in the best trials with those in all."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from control.cli.files import read_json
from control.reports.files import check_writable, figure_files
from control.reports.sheets import WIDTH, sheet
from control.reports.style import COLOURS, GREY, PLAIN, Look
from models.settings import SettingError

TRIALS = "trials.json"  # in the folder of a search
FEWEST = 10  # trials of which anything can be said
_LARGEST = 30_000_000  # bytes of `TRIALS`
_RANGES = ("uniform", "loguniform", "randint", "lograndint", "log1m")
_BEST = 0.2  # share of the trials that count as the best
_RESAMPLES = 100
_SHOWN = 4  # hyperparameters whose values are shown beside the scores


def importances(space: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the importance of each hyperparameter, in [0, 1] with sum 1, the largest first. ``space`` and ``trials``
    are those of `TRIALS`: kind and values of each hyperparameter; its value (``raw``) and the score (``best``) of each
    trial."""
    import optuna
    from optuna import distributions as of

    dimensions: dict[str, Any] = {}
    for name, entry in space.items():
        kind, values = entry["kind"], entry["values"]
        if kind == "choice":
            dimensions[name] = of.CategoricalDistribution(values)
        else:
            is_integer, log = kind.endswith("randint"), kind.startswith("log")
            dimensions[name] = (of.IntDistribution if is_integer else of.FloatDistribution)(
                values[0], values[1], log=log
            )
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize")
    for trial in trials:
        raw = {name: trial["raw"][name] for name in dimensions}
        study.add_trial(optuna.trial.create_trial(params=raw, distributions=dimensions, value=trial["best"]["score"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the evaluator is experimental
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_BEST)
        return optuna.importance.get_param_importances(study, evaluator=evaluator)


def read_trials(
    folder: Path, setting: str, space: Mapping[str, Any] | None = None, check: Callable[[Any], bool] = bool
) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    """Read the space and the trials of `TRIALS` in ``folder``. All values must fit the given space, or else
    that of the file, and ``check`` must hold for each trial. Raises SettingError about the ``setting``."""
    problem = "is not as a search writes it"
    try:
        content = read_json(folder / TRIALS, _LARGEST)
        dimensions, trials = space or content["space"], content["trials"]
        if all(_is_dimension(name, **dimensions[name]) for name in dimensions):
            if all(_is_trial(trial, dimensions) and check(trial) for trial in trials):
                return dimensions, trials
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except (ValueError, TypeError, LookupError, AttributeError):
        pass
    line = f"{setting} is {str(folder)!r}, where {TRIALS} {problem}; allowed: the folder of a search"
    raise SettingError(line, setting)


def is_number(value: Any, kind: str = "") -> bool:
    """Whether a value is a finite number, and one of this ``kind`` of hyperparameter."""
    is_integer = kind.endswith("randint")
    return type(value) in (int, float) and abs(value) < 1e18 and (value % 1 == 0 or not is_integer)


def _is_dimension(name: str, kind: str, values: Any) -> bool:
    if not name.isidentifier() or not isinstance(values, list):
        return False
    if kind == "choice":
        return all(type(value) in (bool, str) or is_number(value) for value in values)
    low, high = values[0], values[-1]
    is_valid = kind in _RANGES and len(values) <= 2 and is_number(low, kind) and is_number(high, kind)
    return is_valid and (0 if "log" in kind else -1e18) < low <= high


def _is_trial(trial: Mapping[str, Any], space: Mapping[str, Any]) -> bool:
    for name, entry in space.items():
        value, kind, values = trial["raw"][name], entry["kind"], entry["values"]
        is_choice = kind == "choice" and any(value == choice and type(value) is type(choice) for choice in values)
        if not is_choice and not (is_number(value, kind) and kind in _RANGES and values[0] <= value <= values[-1]):
            return False
    return not trial["best"] or is_number(trial["best"]["score"])


def plot_search(folder: Path, look: Look = PLAIN, out: Path | None = None) -> Path:
    """Draw `importance_figure` of the search in ``folder``: ``importance.png`` there, or ``out``. Raises SettingError
    for fewer than `FEWEST` trials with a score, and for hyperparameters that do not vary."""
    space, trials = read_trials(folder, "plot")
    if (count := sum(bool(trial["best"]) for trial in trials)) < FEWEST:
        raise SettingError(f"{folder} has {count} trials with a score; allowed: at least {FEWEST}", "plot")
    if all(len(entry["values"]) == 1 for entry in space.values()):
        raise SettingError(f"{folder} has no hyperparameter that varies", "plot")
    target, _ = figure_files(out or folder / "importance.png", look)
    check_writable("plot_out", target)
    importance_figure({"space": space, "trials": trials}, target, look)
    return target


def importance_figure(
    content: Mapping[str, Any], target: Path, look: Look = PLAIN, numbers: Path | None = None
) -> None:
    """Draw the importance of hyperparameters, with intervals over resampled trials, and the scores over the values of
    the most important ones. ``content`` is that of `TRIALS`, and ``numbers`` the file that it is from."""
    space = {name: entry for name, entry in content["space"].items() if len(entry["values"]) > 1}
    trials = [trial for trial in content["trials"] if trial["best"]]
    shares, generator = importances(space, trials), np.random.default_rng(0)
    resampled = [importances(space, generator.choice(trials, len(trials)).tolist()) for _ in range(_RESAMPLES)]
    bounds = {name: np.percentile([row[name] for row in resampled], [2.5, 97.5]) for name in shares}
    top = list(shares)[:_SHOWN]
    note = f"{len(trials)} trials; importance: PED-ANOVA of the best fifth against all; lines: 95 % of resampled trials"
    cells = [[0, *range(1 + row, len(top) + 1, 2)] for row in range(min(2, len(top)))]
    width = max(map(len, cells))
    cells = [[*row, *[-1] * (width - len(row))] for row in cells]
    with sheet(target, cells, (WIDTH, max(2.9, 0.17 * len(shares) + 1.2)), look, numbers, note=note) as (bars, *panels):
        for place, (name, share) in enumerate(shares.items()):
            bars.barh(place, share, color=COLOURS[0] if name in top else GREY, alpha=0.7)
            bars.plot(bounds[name], [place, place], color="C6", linewidth=1)
        bars.set(yticks=range(len(shares)), yticklabels=list(shares), xlabel="importance")
        bars.invert_yaxis()
        bars.grid(axis="y", visible=False)
        for axis, name in zip(panels, top, strict=True):
            _values(axis, name, space[name], trials)


def _values(axis: Any, name: str, entry: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
    """Scores over the values of one hyperparameter; the best fifth of the trials is coloured."""
    kind, values = entry["kind"], [trial["raw"][name] for trial in trials]
    scores = np.array([trial["best"]["score"] for trial in trials])
    label = f"1 - {name}" if kind == "log1m" else name
    if kind == "choice":
        choices = list(map(str, entry["values"]))
        spread = np.random.default_rng(0).uniform(-0.2, 0.2, len(values))
        values = [choices.index(str(value)) + shift for value, shift in zip(values, spread, strict=True)]
        axis.set(xticks=range(len(choices)), xticklabels=choices)
    elif kind.startswith("log"):
        axis.set_xscale("log")
        axis.minorticks_off()
        low, high = entry["values"]
        ticks = np.geomspace(low, high, 3)
        axis.set(xticks=ticks, xticklabels=[f"{float(f'{tick:.2g}'):g}" for tick in ticks])
        axis.set_xlim(ticks[0] / 1.1, ticks[-1] * 1.1)
    best = scores >= np.quantile(scores, 1 - _BEST)
    axis.scatter(np.array(values)[~best], scores[~best], s=6, color=GREY)
    axis.scatter(np.array(values)[best], scores[best], s=8, color=COLOURS[1])
    axis.set(xlabel=label, ylabel="score")
