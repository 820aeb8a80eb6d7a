"""Numbers and figures of searches: for proxies (`describe`) and for hyperparameters (`plot_search`).

The importance of hyperparameters is PED-ANOVA (Watanabe, Bansal & Hutter 2023, arXiv 2304.10255), by Optuna. It
compares the values in the best trials with the values in all trials. Imports neither torch nor Optuna at the start.
"""

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from control.cli.files import read_json
from control.reports import figures
from control.reports.figures import DEFAULT_STYLE, FigureStyle
from control.reports.tables import Score, with_interval
from models.settings import SettingError

if TYPE_CHECKING:
    from torch import Tensor

    from control.evolution.inner_loop import Outcome
    from models.proxies.search import SearchConfig


def describe(outcome: "Outcome", config: "SearchConfig") -> dict[str, Any]:
    """Return statistics of N agents, as data for JSON:

    - ``agents``, ``failed``: the number of agents, and the number of diverged agents, whose weights are not finite;
    - ``mean``, ``std``, ``median``, ``worst``: statistics of the agents' mean returns, without diverged agents;
    - ``iqm``, ``iqm_low``, ``iqm_high``: their interquartile mean and its 95 % interval, None for fewer than three;
    - ``solved``: the fraction of agents that reach ``config.solved_reward``, None if that is unknown;
    - ``steps``, ``steps_std``, ``episodes``: mean and standard deviation of the training steps, mean of the episodes.

    If the agents were tested during training and ``solved_reward`` is known, there are also:

    - ``first``: the `quartiles` of the steps to the first solved test;
    - ``stays``: the `quartiles` of the steps until all later tests are solved;
    - ``staying``: the fraction of agents that solve all tests of the second half.
    """
    from control.evolution.objectives import first_solved_test, first_stable_test, stays_solved

    solved, curve = config.solved_reward, outcome.curve
    scores = outcome.scores[outcome.scores.isfinite()].double().numpy()
    score = Score.of(scores)
    low, high = score.bounds or (None, None)  # no interval for fewer than three agents
    if not len(scores):
        scores = np.full(1, np.nan)  # all statistics are NaN
    speed: dict[str, Any] = {}
    if curve.shape[1] and config.test_every and solved is not None:
        speed["first"] = quartiles(first_solved_test(curve, solved), curve, config.test_every)
        speed["stays"] = quartiles(first_stable_test(curve, solved), curve, config.test_every)
        speed["staying"] = float(stays_solved(curve, solved).float().mean())
    return speed | {
        "agents": len(outcome.scores),
        "failed": len(outcome.scores) - score.count,
        "mean": score.mean,
        "std": float(scores.std()),
        "median": float(np.median(scores)),
        "worst": float(scores.min()),
        "iqm": score.iqm,
        "iqm_low": low,
        "iqm_high": high,
        "solved": None if solved is None else float((scores >= solved).mean()),
        "steps": float(outcome.steps.double().mean()),
        "steps_std": float(outcome.steps.double().std(correction=0)),
        "episodes": float(outcome.episodes.double().mean()),
    }


def quartiles(tests: "Tensor", curve: "Tensor", test_every: int) -> list[float | None]:
    """Return lower quartile, median, upper quartile and maximum over N agents of the training steps to a test.

    :param tests: index ``[N]`` of each agent's test, or T if the agent has no such test.
    :param curve: returns ``[N, T]`` of the agents in T tests.
    :param test_every: training steps between two tests.
    :return: four numbers of steps. A number is None if its agent has no such test.
    """
    # With "higher", a quantile is the index of an agent, not a mean of two indices.
    indices = np.quantile(tests.double().numpy(), (0.25, 0.5, 0.75, 1.0), method="higher").tolist()
    return [(index + 1) * test_every if index < curve.shape[1] else None for index in indices]


def speed_text(summary: dict[str, Any]) -> str:
    """Return two sentences about the steps in which agents solve the game. ``summary`` is the result of `describe`. For
    example: ``Steps to the first solved test: median agent 225, slowest agent 400. Steps until all later tests are
    solved: median agent 300, slowest agent never (97 % of agents solve all tests of the second half).``"""
    texts = {}
    for key in ("first", "stays"):
        quartile_texts = ["never" if steps is None else f"{steps:,.0f}" for steps in summary[key]]
        texts[key] = f"median agent {quartile_texts[1]}, slowest agent {quartile_texts[3]}"
    share = f"{100 * summary['staying']:.0f} % of agents solve all tests of the second half"
    first = f"Steps to the first solved test: {texts['first']}."
    return f"{first} Steps until all later tests are solved: {texts['stays']} ({share})."


# Agents are clearly sooner if they take at most this fraction of the steps. A smaller difference may be chance.
SOONER = 0.8
# The two numbers in the sentence of `reward_comparison`: steps with the learned, and with the task's reward.
STEPS_TO_SOLVE = re.compile(r"solves a test: (\S+) \(task's reward: (\S+)\)")


def reward_comparison(learned: "Outcome", task: "Outcome", config: "SearchConfig") -> str:
    """Return a sentence that compares agents with a learned reward (``learned``) with agents that trained as long with
    the task's reward (``task``). ``config`` has the settings of the search. The sentence is empty if fewer than two
    agents of either kind have a return.

    The learned reward helps in two cases: its agents have clearly higher returns in the end, or they have no lower
    returns and the median agent solves its first test clearly sooner. In both cases, no more agents may diverge.
    """
    learned_score, task_score = Score.of(learned.scores.numpy()), Score.of(task.scores.numpy())
    if min(learned_score.count, task_score.count) < 2:  # agents that diverged do not count
        return ""
    text = f"with the task's reward, agents return {task_score} after as many steps"
    if num_diverged := len(learned.scores) - learned_score.count:
        text += f"; with the learned one, {num_diverged} agents diverged"
    # Steps of the median agent, the second of the quartiles. They are None if the agent solves no test, if there are no
    # tests, or if the return that solves the game is unknown.
    learned_steps = describe(learned, config).get("first", [None, None])[1]
    task_steps = describe(task, config).get("first", [None, None])[1]
    if learned_steps or task_steps:
        learned_text = f"{learned_steps:,.0f}" if learned_steps else "never"
        task_text = f"{task_steps:,.0f}" if task_steps else "never"
        text += f"; steps until the median agent solves a test: {learned_text} (task's reward: {task_text})"
    is_higher, is_lower = learned_score.exceeds(task_score), task_score.exceeds(learned_score)
    is_sooner = learned_steps is not None and learned_steps <= SOONER * (task_steps or math.inf)
    no_more_diverge = learned_score.count >= task_score.count
    helps = (is_higher or (is_sooner and not is_lower)) and no_more_diverge
    return f"The learned reward {'helps' if helps else 'shows no clear gain'}: {text}."


def iqm_text(summary: dict[str, Any]) -> str:
    """Return interquartile mean and interval in the result of `describe` as text, such as ``500.0 [499.1, 500.0]``."""
    bounds = (summary["iqm_low"], summary["iqm_high"])
    return with_interval(summary["iqm"], None if None in bounds else bounds)


TRIALS = "trials.json"  # file in the folder of a search
FEWEST = 10  # minimum number of trials with a score
_MAX_BYTES = 30_000_000  # maximum size of the file `TRIALS`
_BEST = 0.2  # fraction of the trials that count as the best
_RESAMPLES = 100  # number of bootstrap samples of the trials, for the intervals of importances
_PANELS = 4  # maximum number of hyperparameters with a panel of scores


def importances(space: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Estimate how much each hyperparameter matters for the score. Return hyperparameter -> importance, in [0, 1] with
    sum 1, the largest first. ``space`` and ``trials`` are as in the file `TRIALS`. ``space`` has the ``kind`` of each
    hyperparameter and its ``values``: the choices, or the ends of a range. A trial has the values of the
    hyperparameters in ``raw``, and its score in ``best``."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize")
    study.add_trials(_optuna_trials(space, trials))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that the evaluator is experimental
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_BEST)
        importance = optuna.importance.get_param_importances(study, evaluator=evaluator)
    # Optuna returns equal importances in an order that differs between processes.
    return {name: importance[name] for name in sorted(space, key=importance.__getitem__, reverse=True)}


def _optuna_trials(space: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Convert ``trials`` to trials of Optuna. Trials without a score become failed trials. Raises ValueError if a value
    of a trial is not in the ``space``, and other exceptions if the data are not as in the file `TRIALS`."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.trial import TrialState, create_trial

    dimensions: dict[str, Any] = {}
    for name, entry in space.items():
        kind, values = entry["kind"], entry["values"]
        if kind == "choice":
            dimensions[name] = CategoricalDistribution(values)
        else:
            distribution = IntDistribution if kind.endswith("randint") else FloatDistribution
            dimensions[name] = distribution(values[0], values[-1], log=kind.startswith("log"))
    converted = []
    for trial in trials:
        raw = {name: trial["raw"][name] for name in dimensions}
        result: dict[str, Any] = {"value": trial["best"]["score"]} if trial["best"] else {"state": TrialState.FAIL}
        converted.append(create_trial(params=raw, distributions=dimensions, **result))
    return converted


def read_trials(
    folder: Path, setting: str, space: Mapping[str, Any] | None = None, convert: Callable[[Any], Any] = dict
) -> tuple[Mapping[str, Any], list[Any]]:
    """Read the file `TRIALS` in the ``folder`` of a search of hyperparameters. Return the space of hyperparameters, and
    the trials, each as the object ``convert(trial)``. The space is ``space`` or, by default, the space in the file.
    Raises SettingError about the ``setting`` if the file is damaged or a value of a trial is outside the space."""
    try:
        content = read_json(folder / TRIALS, _MAX_BYTES)
        space, trials = space or content["space"], content["trials"]
        _optuna_trials(space, trials)  # raises if a trial is not in the space
        return space, [convert(trial) for trial in trials]
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except (ValueError, TypeError, LookupError, AttributeError):
        reason = "is not as a search writes it"
    raise SettingError(
        f"{setting} is {str(folder)!r}, where {TRIALS} {reason}; allowed: the folder of a search", setting
    )


def plot_search(folder: Path, style: FigureStyle = DEFAULT_STYLE, out: Path | None = None) -> Path:
    """Draw the `importance_figure` of the search for hyperparameters in ``folder``, and return its path: ``out`` or
    else ``importance.png`` there. Raises SettingError for fewer than `FEWEST` trials with a score or constant
    settings."""
    space, trials = read_trials(folder, "plot")
    num_scored = sum(bool(trial["best"]) for trial in trials)
    if num_scored < FEWEST:
        raise SettingError(f"{folder} has {num_scored} trials with a score; allowed: at least {FEWEST}", "plot")
    if all(len(entry["values"]) == 1 for entry in space.values()):
        raise SettingError(f"{folder} has no hyperparameter that varies", "plot")
    target = figures.figure_file(out or folder / "importance.png", style=style)
    figures.check_writable("plot_out", target)
    importance_figure({"space": space, "trials": trials}, target, style)
    return target


def importance_figure(
    content: Mapping[str, Any], target: Path, style: FigureStyle = DEFAULT_STYLE, numbers_path: Path | None = None
) -> None:
    """Draw the importance of hyperparameters, and the scores over the values of the most important hyperparameters.
    Importances have 95 % intervals over resampled trials. ``content`` is the content of the file `TRIALS`. A PNG stores
    the hash of the file ``numbers_path``."""
    space = {name: entry for name, entry in content["space"].items() if len(entry["values"]) > 1}
    trials = [trial for trial in content["trials"] if trial["best"]]  # only trials with a score
    importance = importances(space, trials)  # the largest first
    generator = np.random.default_rng(0)
    samples = [generator.choice(trials, len(trials)).tolist() for _ in range(_RESAMPLES)]
    resampled = [importances(space, sample) for sample in samples]  # importances of each sample
    top = list(importance)[:_PANELS]
    note = f"{len(trials)} trials; importance: PED-ANOVA of the best fifth against all; lines: 95 % of resampled trials"
    # Heights in inches: of the importances, with 0.17 for a bar, and of the panels of scores.
    heights = [max(1.5, 0.17 * len(importance) + 0.7), 1.7]
    cells, size = figures.rows(1, len(top)), (figures.WIDTH, sum(heights))
    with figures.figure_panels(target, cells, size, style, numbers_path, note=note, heights=heights) as axes:
        bars, *panels = axes
        for position, (name, value) in enumerate(importance.items()):
            bars.barh(position, value, color=figures.COLOURS[0] if name in top else figures.GREY, alpha=0.7)
            bounds = np.percentile([values[name] for values in resampled], [2.5, 97.5])
            bars.plot(bounds, [position, position], color=figures.INK, linewidth=1)
        figures.set_row_labels(bars, list(importance))
        bars.set(xlabel="importance")
        for axis, name in zip(panels, top, strict=True):
            _draw_values(axis, name, space[name], trials)


def _draw_values(axis: Any, name: str, entry: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
    """Draw the scores of ``trials`` over the values of the hyperparameter ``name``, with the best fifth of the trials
    in colour. ``entry`` is the entry of the hyperparameter in the space (`importances`)."""
    kind = entry["kind"]
    values = [trial["raw"][name] for trial in trials]
    scores = np.array([trial["best"]["score"] for trial in trials])
    label = f"1 - {name}" if kind == "log1m" else name  # raw values of log1m are 1 - the hyperparameter
    if kind == "choice":
        choices = list(map(str, entry["values"]))
        jitter = np.random.default_rng(0).uniform(-0.2, 0.2, len(values))  # so that equal choices do not overlap
        values = [choices.index(str(value)) + shift for value, shift in zip(values, jitter, strict=True)]
        axis.set(xticks=range(len(choices)), xticklabels=choices)
    elif kind.startswith("log"):
        low, high = entry["values"]
        axis.set(xscale="log", xlim=(low / 1.1, high * 1.1))
        axis.set_xticks([low, high], [f"{low:g}", f"{high:g}"])
        axis.minorticks_off()
    is_best = scores >= np.quantile(scores, 1 - _BEST)
    axis.scatter(np.array(values)[~is_best], scores[~is_best], s=6, color=figures.GREY)
    axis.scatter(np.array(values)[is_best], scores[is_best], s=8, color=figures.COLOURS[1])
    axis.set(xlabel=label, ylabel="score")
