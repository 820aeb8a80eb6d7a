"""Trials of a hyperparameter search, which are training runs that report their evaluations, and the results of the
search. Does not use Ray.

Trials may themselves be searches for a proxy (proxy searches), as in Ferreira et al. 2022, arXiv 2202.02790. In that
paper, the score of a trial is the mean number of generations that three proxy searches need to solve the task.
"""

import collections
import contextlib
import csv
import dataclasses
import io
import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import yaml
from pytorch_lightning.callbacks import Checkpoint as CheckpointCallback

from control.cli import errors
from control.cli.colour import wrap_text
from control.cli.settings import RunConfig, Settings, to_yaml
from control.commands.search_space import Space, trial_settings
from control.commands.summary import Command, command, show_next
from control.commands.train import build_module, fit
from control.lightning.callbacks import Progress
from control.lightning.module import RunModule
from control.lightning.proxy_module import ProxyModule
from control.loops.process import configure_process
from control.reports.figures import style_of
from control.reports.search import FEWEST, TRIALS, plot_search, read_trials
from control.reports.tags import GREEDY, SAMPLED
from control.storage import checkpoints
from control.storage.checkpoints import Checkpoint
from control.storage.run_dir import LAST_CHECKPOINT, atomic_write_text
from control.storage.versions import write_versions
from models.settings import SettingError, UserError, raise_all

METRIC = "score"  # name of a trial's score: its greedy evaluation, or the running mean of training returns
EVALUATED = (GREEDY, SAMPLED)  # measurements of trials that train agents
SEARCHES, REACHED = "searches", "solved"  # measurements of proxy searches: their number, and the fraction solved
SETTINGS, SPACE = "search.yaml", "space.yaml"  # files in the folder of a hyperparameter search
DEPENDENT = ("bohb", "pbt")  # algorithms that pause trials, or continue a trial from the state of another
ENDED = ("finished", "stopped early", "failed")  # statuses of trials that do not continue
REPEATS = 3  # searches for a proxy per trial, as published
_NUM_BEST = 5  # trials in the table of results
Reporter = Callable[[dict[str, float]], None]  # is called with an evaluation, such as {"score": 195.0, "epoch": 20}


@dataclass
class Trial:
    """One trial, as in ``trials.json``. ``last`` and ``best`` are its last and its best evaluation, such as ``{"score":
    195.0, "epoch": 20}``. ``raw`` are its hyperparameters at the best evaluation, as the search algorithm suggested
    them. ``course`` has a row ``[length, score]`` for every evaluation, such as ``[20, 195.0]`` after 20 epochs."""

    number: int
    raw: Mapping[str, Any]
    status: str = "running"
    last: Mapping[str, float] = field(default_factory=dict)
    best: Mapping[str, float] = field(default_factory=dict)
    course: list[list[float]] = field(default_factory=list)

    @property
    def score(self) -> float:
        """The best score, ``-inf`` before the first evaluation."""
        return self.best.get(METRIC, -math.inf)


class Search:
    """Records the trials of a hyperparameter search. `start`, `report` and `end` are called at every start, evaluation
    and end of a trial. They update the files in ``folder``, and print a line at every end and every new best score."""

    def __init__(self, settings: Settings, space: Space, folder: Path):
        self.settings, self.space, self.folder = settings, space, folder
        self.trials: dict[int, Trial] = {}  # by number
        self.problems: list[str] = []  # messages of failed trials
        self.started = time.monotonic()

    def begin(self) -> None:
        """Write the files from which a search can be resumed. If this search is resumed, read its trials instead.
        Raises SettingError if their file is damaged."""
        if self.settings.subcommand.resume_search:
            _, trials = read_trials(self.folder, "resume", self._dimensions, lambda record: Trial(**record))
            for trial in trials:
                self.trials[trial.number] = trial
                if trial.status not in ENDED:
                    trial.status = "interrupted"
            return
        run = self.settings.run
        values = yaml.safe_load(to_yaml(self.settings))
        values |= dataclasses.asdict(self.settings.subcommand)  # settings of the command, which `to_yaml` omits
        del values["search_space"], values["resume_search"]  # paths, which a resumed search sets itself
        values |= {"num_seeds": run.num_seeds, "seed": run.seed}
        atomic_write_text(self.folder / SETTINGS, yaml.safe_dump(values, sort_keys=False))
        atomic_write_text(self.folder / SPACE, yaml.safe_dump(dict(self.space.entries), sort_keys=False))
        self.write()

    @property
    def _dimensions(self) -> dict[str, Any]:
        """The search space as in ``trials.json``, such as ``{"lr": {"kind": "uniform", "values": [0.001, 0.01]}}``."""
        dimensions = self.space.dimensions.items()
        return {name: {"kind": dimension.kind, "values": dimension.labels} for name, dimension in dimensions}

    @property
    def ranked(self) -> list[Trial]:
        """All trials, best first: by the number of completed searches if they are proxy searches, then by the score."""
        trials = self.trials.values()
        return sorted(trials, key=lambda trial: (-trial.best.get(SEARCHES, 0), -trial.score, trial.number))

    @property
    def scored(self) -> list[Trial]:
        """Trials with a score, best first."""
        return [trial for trial in self.ranked if trial.best]

    @property
    def interrupted(self) -> list[Trial]:
        """Trials of a resumed search that had not ended."""
        return [trial for trial in self.trials.values() if trial.status == "interrupted"]

    @property
    def kept_trials(self) -> list[Trial]:
        """Trials of a resumed search that had ended and have a score, best first."""
        return [trial for trial in self.scored if trial.status != "interrupted"]

    def start(self, number: int, raw: Mapping[str, Any]) -> Trial:
        """Record that a trial with hyperparameters ``raw`` starts, or continues after a pause, and return it."""
        if number not in self.trials:
            self.trials[number] = Trial(number, dict(raw))
            self.write()
        self.trials[number].status = "running"
        return self.trials[number]

    def report(self, number: int, raw: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Record an evaluation of a trial, ``metrics`` such as ``{"score": 195.0, "epoch": 20}``, and its current
        hyperparameters ``raw``. If trials are proxy searches, the latest evaluation always counts as the best."""
        trial = self.start(number, raw)
        trial.last = dict(metrics)
        unit, _ = trial_length(self.settings)
        trial.course.append([metrics[unit], metrics[METRIC]])
        is_better = metrics[METRIC] > trial.score  # False for NaN
        if is_better or SEARCHES in metrics:
            trial.best, trial.raw = trial.last, dict(raw)
            if self.scored[0] is trial:  # the best of all trials
                self._print(f"trial {number}: best so far, {_score_text(trial)}")
        self.write()

    def end(self, number: int, problem: str = "", status: str = "failed") -> None:
        """Record that a trial ended. If a ``problem`` ended it, its status becomes ``status``. Otherwise its status is
        ``finished`` or, if it had more evaluations to come, ``stopped early``."""
        trial = self.trials[number]
        if problem:
            trial.status = status
            text = f"{status}: {problem}"
            self.problems.append(problem)
        else:
            unit, length = trial_length(self.settings)
            eval_every = self.settings.schedule.eval_every if unit == "epoch" else 1
            is_complete = trial.last.get(unit, 0) + eval_every > length
            # With a length in steps, the number of steps of the last evaluation is unknown.
            trial.status = "finished" if unit == "env_steps" or is_complete else "stopped early"
            text = f"{trial.status} {_progress_text(trial.last)}, best score {trial.score:.1f}"
        num_ended = sum(other.status in ENDED for other in self.trials.values())
        self._print(f"trial {number}: {text}  [{num_ended} of {self.settings.subcommand.num_samples} done]")
        self.write()

    def write(self) -> None:
        """Write ``trials.json``, ``results.csv`` and, once a trial has been evaluated, ``best.yaml``."""
        trials = [dataclasses.asdict(trial) for trial in self.trials.values()]
        atomic_write_text(self.folder / TRIALS, json.dumps({"space": self._dimensions, "trials": trials}) + "\n")
        score_names = (METRIC, *(EVALUATED if self.settings.proxy is None else (SEARCHES, REACHED)))
        names = ["trial", "status", "epoch", "env_steps", *score_names, "best_epoch", *self.space.dimensions]
        text = io.StringIO()
        writer = csv.DictWriter(text, [*names, "checkpoint"], lineterminator="\n")
        writer.writeheader()
        for trial in self.ranked:
            checkpoint = self._checkpoint(trial) or ""
            row: dict[str, Any] = {"trial": trial.number, "status": trial.status, "checkpoint": checkpoint}
            row |= {name: trial.last.get(name, 0) for name in ("epoch", "env_steps")}
            if trial.best:
                row |= {name: trial.best.get(name, math.nan) for name in score_names}
                row["best_epoch"] = trial.best.get("epoch", math.nan)
            hyperparameters = self.space.decode(trial.raw).items()
            writer.writerow(row | {name: _yaml_text(value) for name, value in hyperparameters})
        atomic_write_text(self.folder / "results.csv", text.getvalue())
        if self.scored:
            winner = self.scored[0]
            line = f"# trial {winner.number} of {self.folder}: {_score_text(winner)}\n"
            settings = trial_settings(self.settings, self.space.decode(winner.raw))
            atomic_write_text(self.folder / "best.yaml", line + to_yaml(settings))

    def finish(self, interrupted: bool) -> int:
        """End the search: write the files, and print the results and commands to type next. Returns the exit status, 0,
        or 130 if ``interrupted``. Raises UserError if no trial was evaluated, unless ``interrupted``."""
        for trial in self.trials.values():
            if trial.status == "running":
                trial.status = "interrupted"
        self.write()
        best = self.scored[:_NUM_BEST]
        if not best and not interrupted:
            problem = "no trial was evaluated"
            if self.problems:
                problem = f"all {len(self.problems)} trials failed; the first: {self.problems[0]}"
            logs = f"; see {self.folder}/trial_*/log.txt" if list(self.folder.glob("trial_*/log.txt")) else ""
            raise UserError(f"{problem}{logs}")
        statuses = collections.Counter(trial.status for trial in self.trials.values())
        counts = [f"{count} {status}" for status, count in statuses.items()]
        trials = "1 trial" if len(self.trials) == 1 else f"{len(self.trials)} trials"
        minutes = (time.monotonic() - self.started) / 60
        prefix = "interrupted: " if interrupted else ""
        print(f"\n{prefix}{trials} in {minutes:.1f} minutes ({', '.join(counts) or 'none begun'})")
        for trial in best:
            print(f"  trial {trial.number}: {_score_text(trial)}")
            print(wrap_text(self._values_text(trial), sys.stdout, indent="    ", start="    "))
        run, search_config = self.settings.run, self.settings.subcommand
        lines: list[tuple[str, object]] = [("search", self.folder), ("table", self.folder / "results.csv")]
        if len(self.scored) >= FEWEST and not interrupted:
            lines.append(("figure", plot_search(self.folder, style_of(run))))
        commands: list[Command] = []
        if best:
            path = self.folder / "best.yaml"
            logdir = ("--logdir", run.logdir) if "logdir" in self.settings.explicit_names else ()
            lines.append(("settings", path))
            commands.append(command(self.settings, "--config", path, *logdir))
            checkpoint = self._checkpoint(best[0])
            if checkpoint:
                lines.append(("checkpoint", checkpoint))
                commands.append(command(self.settings, "--eval_agent", checkpoint.parents[1]))
            commands.append(command(self.settings, "--report", self.folder))
        is_unfinished = len(self.trials) < search_config.num_samples or self.interrupted
        if search_config.tune_algorithm not in DEPENDENT and is_unfinished:
            commands.insert(0, command(self.settings, "--use_tune", "--resume", self.folder))
        show_next(lines, [*commands, ("tensorboard", "--logdir", self.folder)], self.folder)
        return 130 if interrupted else 0

    def _checkpoint(self, trial: Trial) -> Path | None:
        """Return the checkpoint of a trial's best epoch, or None."""
        path = self.folder / f"trial_{trial.number}" / "checkpoints" / "best.ckpt"
        return path if path.exists() else None

    def _values_text(self, trial: Trial) -> str:
        """Return the hyperparameters of a trial that vary as text, such as ``lr=0.001, batch_size=64``. Numbers have
        four digits; the files have all digits."""
        texts: list[str] = []
        for name, value in self.space.decode(trial.raw).items():
            if len(self.space.dimensions[name].values) > 1:
                value_text = f"{value:.4g}" if isinstance(value, float) else _yaml_text(value)
                texts.append(f"{name}={value_text}")
        return ", ".join(texts)

    def _print(self, line: str) -> None:
        """Print a line with the time since the start of the search."""
        minutes, seconds = divmod(round(time.monotonic() - self.started), 60)
        print(wrap_text(line, sys.stdout, indent=" " * 8, start=f"{minutes:3d}:{seconds:02d}  "), flush=True)


def trial_length(settings: Settings) -> tuple[str, int]:
    """Return the unit in which a trial's length is measured, and the length of a complete trial in this unit, such as
    ``("epoch", 100)``. The evaluations of a trial have an entry with the name of the unit."""
    if settings.proxy is not None:
        return SEARCHES, settings.run.num_seeds
    if settings.epochs is not None:
        return "epoch", settings.epochs
    assert settings.total_steps is not None  # ensured by `from_dict`
    return "env_steps", settings.total_steps


def _score_text(trial: Trial) -> str:
    """Return the best score of a trial, such as ``score 195.0 at epoch 20``."""
    return f"score {trial.score:.1f} {_progress_text(trial.best)}"


def _progress_text(metrics: Mapping[str, float]) -> str:
    """Return the progress of a trial at an evaluation as text: ``at epoch 20``, or ``after 2 searches``."""
    if SEARCHES in metrics:
        noun = "searches" if metrics[SEARCHES] > 1 else "search"
        return f"after {metrics[SEARCHES]} {noun}"
    return f"at epoch {metrics.get('epoch', 0)}"


def _yaml_text(value: Any) -> str:
    """Return the value of a hyperparameter as it is written in YAML."""
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return "null" if value is None else str(value)


class TrialFailed(Exception):
    """Raised if a trial cannot continue. The message is one line. The traceback is in the trial's log."""


class Report(CheckpointCallback):
    """Callback that passes every evaluation of a trial to ``report``. It derives from Lightning's checkpoint callback,
    because Lightning runs such callbacks last. So ``last.ckpt`` is already written when ``report`` is called."""

    def __init__(self, report: Reporter):
        self.report = report

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Report the score and the mean returns over seeds, after an epoch with an evaluation."""
        assert isinstance(module, RunModule)
        score = module.score()
        if score is None or not module.is_evaluated():
            return
        measurements = {name: float(module.row[name].mean()) for name in EVALUATED if name in module.row}
        self.report({METRIC: score, **measurements, "epoch": module.epoch, "env_steps": module.steps_a_seed()})


def run_trial(settings: Settings, folder: Path, start_from: Path | None, report: Reporter) -> None:
    """Run a trial that trains an agent in ``folder``, from the checkpoint ``start_from`` unless it is None. ``report``
    is called with the measurements of each evaluation (`Report`). Raises TrialFailed."""
    with trial_log(folder, settings.run), contextlib.closing(build_module(settings)) as module:
        atomic_write_text(folder / "config.yaml", to_yaml(module.settings))
        if start_from:
            _restore_with_learning_rates(checkpoints.load(start_from), module, folder / "checkpoints" / "best.ckpt")
        write_versions(folder, module.epoch + 1)
        module.log_all = False
        module.evaluations = 1  # no additional ones in short runs, because schedulers expect regular evaluations
        fit(module, folder, [Progress()], [Report(report)])


@contextlib.contextmanager
def trial_log(folder: Path, run: RunConfig) -> Iterator[None]:
    """Context manager that appends a trial's output to ``folder/log.txt`` and turns its errors into TrialFailed."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        open(folder / "log.txt", "a", encoding="utf-8", buffering=1) as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        try:
            configure_process(run)
            yield
        except Exception as error:
            traceback.print_exc()
            line = errors.one_line(error) or f"{type(error).__name__}: {error}".splitlines()[0]
            raise TrialFailed(line) from None


def _restore_with_learning_rates(checkpoint: Checkpoint, module: RunModule, best: Path) -> None:
    """Restore ``module`` from ``checkpoint``, which may be of another trial and is changed. Only the learning rates and
    the best score are of this trial: the score in its file ``best``, or -inf if the file does not exist."""
    for optimizer, saved in zip(module.configure_optimizers(), checkpoint.content["optimizer_states"], strict=True):
        for group, saved_group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
            # A weight decay may depend on the learning rate.
            saved_group |= {name: group[name] for name in ("lr", "weight_decay") if name in group}
    checkpoint.run_state["best"] = checkpoints.load(best).run_state["best"] if best.exists() else -math.inf
    module.restore(checkpoint)


# -- trials that are searches for a proxy ------------------------------------------------------------------------------


def with_trial_defaults(settings: Settings) -> Settings:
    """Return ``settings`` with the defaults for trials that are proxy searches, or unchanged if trials train agents.
    Raises SettingError if the objective lacks a setting that it needs, or if it is set although trials train agents."""
    run, proxy, objective = settings.run, settings.proxy, settings.subcommand.tune_objective
    if proxy is None:
        if objective is not None:
            problem = f"tune_objective is {objective!r}, but {run.implementation} trains agents"
            raise SettingError(f"{problem}, whose trials are judged by their returns; allowed: null", "tune_objective")
        return settings
    if objective is None:
        can_count_generations = proxy.solved_reward is not None and proxy.generations is not None
        objective = "generations" if run.implementation == "SE" and can_count_generations else "score"
    defaults: dict[str, Any] = {"num_seeds": REPEATS, "tune_algorithm": "optuna_asha"}
    changes: dict[str, Any] = {"tune_objective": objective}
    if objective != "score":
        needed_names = ("solved_reward", "generations" if objective == "generations" else "total_steps")
        missing_names = [name for name in needed_names if settings.value(name) is None]
        message = f"tune_objective is {objective!r}, but {{name}} is null; allowed: score, or a value of {{name}}"
        raise_all([SettingError(message.format(name=name), "tune_objective") for name in missing_names])
        changes["quit_when_solved"] = True
        defaults["eval_every"] = 1  # to end with the generation that solves the task
    changes |= {name: value for name, value in defaults.items() if name not in settings.explicit_names}
    return settings.replace(**changes)


def run_searches(settings: Settings, repeats: int, objective: str, folder: Path, report: Reporter) -> None:
    """Run a trial that consists of proxy searches: one with each of ``repeats`` seeds, one after another. Each has a
    subfolder of ``folder``, and continues from the checkpoint in it if there is one. After each search, ``report`` is
    called with the mean measurements of all searches so far. Raises TrialFailed."""
    outcomes: list[Mapping[str, float]] = []
    with trial_log(folder, settings.run):
        for seed in range(settings.run.seed, settings.run.seed + repeats):
            outcomes.append(_run_search(settings.replace(seed=seed), objective, folder / f"seed_{seed}"))
            means = {name: sum(outcome[name] for outcome in outcomes) / len(outcomes) for name in outcomes[0]}
            report({SEARCHES: len(outcomes), **means})


def _run_search(settings: Settings, objective: str, folder: Path) -> dict[str, float]:
    """Run a search for a proxy (a learned environment or reward) in ``folder`` and return its measurements, such as
    ``{"score": -12.0, "solved": 1.0, "epoch": 12, "env_steps": 50000}``. A search that ends early because all proxies
    have the same fitness or the mean has diverged is unsolved. Raises SettingError if no search is possible."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(build_module(settings)) as module:
        assert isinstance(module, ProxyModule)
        atomic_write_text(folder / "config.yaml", to_yaml(module.settings))
        if (folder / LAST_CHECKPOINT).exists():
            module.restore(checkpoints.load(folder / LAST_CHECKPOINT, resume=True))
        write_versions(folder, module.epoch + 1)
        module.log_all = False
        try:
            fit(module, folder, [Progress()])
        except UserError as error:
            if isinstance(error, SettingError):  # a subclass of UserError
                raise
            print(f"this search ends unsolved: {error}")
        solved_reward = module.config.solved_reward
        steps = int(module.env_steps.sum())
        is_solved = solved_reward is not None and module.mean_return >= solved_reward
        if objective == "score":
            score = held_out_score(module)
        else:
            spent, budget = module.epoch, module.config.generations
            if objective == "steps":
                spent, budget = steps, module.settings.total_steps
            assert solved_reward is not None and budget is not None  # as `with_trial_defaults` ensures
            score = -cost_until_solved(spent, budget, module.mean_return, solved_reward)
        return {METRIC: score, REACHED: float(is_solved), "epoch": module.epoch, "env_steps": steps}


def cost_until_solved(spent: int, budget: int, mean_return: float, solved_reward: float) -> float:
    """Return the cost of a search for a proxy, to compare searches. If its ``mean_return`` is at least
    ``solved_reward``, the cost is the number of generations or steps ``spent``. Otherwise it is one to two times the
    ``budget``, and lower for a higher return."""
    if mean_return >= solved_reward:
        return spent
    shortfall = (solved_reward - mean_return) / max(1.0, abs(solved_reward))
    return budget * (2 - 1 / (1 + shortfall))


def held_out_score(module: ProxyModule) -> float:
    """Return the average return of new agents that train on the best mean of a search, or on the last one if none has a
    fitness. With ``test_every``, it is the average of all tests during training, otherwise of the tests at the end. A
    diverged agent counts as the worst of the others. Raises TrialFailed if all have diverged."""
    config, count = module.config, module.config.report_agents
    entries = module.archive.entries
    proxy = entries[0].mean if entries else module.mean.detach()[0]  # [D]
    seeds = module.seeds_of("report", count)
    outcome = module.workers.run(proxy.expand(count, -1), seeds, inner_steps=config.steps_in_use)
    scores = outcome.curve.mean(1) if config.test_every else outcome.scores
    finite_scores = scores[scores.isfinite()]
    if not len(finite_scores):
        raise TrialFailed("the weights of all agents that judge the search are no longer finite: a smaller lr may help")
    return float(scores.nan_to_num(nan=float(finite_scores.min())).mean())
