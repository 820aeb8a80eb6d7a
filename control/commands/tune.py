"""`--use_tune`: hyperparameter search with Ray Tune (docs/tuning.md). Trials are training runs."""

import contextlib
import importlib
import itertools
import logging
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from control.cli.colour import print_wrapped
from control.cli.settings import Settings
from control.commands import trials
from control.commands.search_space import Space, search_space, trial_settings
from control.commands.summary import path_text
from control.commands.trials import DEPENDENT, METRIC, Search, TrialFailed, trial_length
from control.evolution.cluster import ray_connection
from control.films.recording import check_recording
from control.loops.build import adapt_to_spaces
from control.reports.curves import solved_return
from control.storage import run_dir
from envs.make import spaces_of
from envs.names import import_module
from models.settings import SettingError, names_with, raise_all

REDUCTION = 4  # reduction factor of ASHA, as published: after each rung, one of 4 trials continues
# Algorithm -> Python modules that it needs in addition to Ray.
_EXTRA_MODULES = {"bohb": ("hpbandster", "ConfigSpace"), "optuna": ("optuna",), "optuna_asha": ("optuna",)}


def tune(settings: Settings) -> int:
    """Run or resume the hyperparameter search of ``settings``. Return 0, or 130 if Ctrl-C ended it. Raises UserError if
    the search space or the cluster is wrong, or if every trial failed."""
    resumed = settings.subcommand.resume_search
    if resumed:  # the folder of the search has a copy of its space
        settings = settings.replace(search_space=str(Path(resumed, trials.SPACE)))
    settings = trials.with_trial_defaults(settings)
    run, search_config, space = settings.run, settings.subcommand, search_space(settings)
    check_recording(run)
    raise_all([*_problems(settings, space)])
    settings = adapt_to_spaces(settings, spaces_of(run.gamename))
    for module in ("ray", *_EXTRA_MODULES.get(search_config.tune_algorithm, ())):
        importlib.import_module(module)  # raises the error for a missing module before files are written
    max_concurrent = search_config.max_concurrent_trials or os.cpu_count() or 1
    search: Search | None = None
    interrupted = False
    try:
        if run.ray_address is None:
            print("starting Ray ...", flush=True)
        else:
            print(f"connecting to Ray at {run.ray_address} ...", flush=True)
        with ray_connection(run.ray_address, max_concurrent * run.num_workers), contextlib.ExitStack() as locks:
            folder = Path(resumed) if resumed else run_dir.create(run, search=True)
            locks.enter_context(run_dir.folder_lock(folder, new=not resumed))
            search = Search(settings, space, folder)
            search.begin()
            num_kept = len(search.trials) - len(search.interrupted)  # trials of the resumed search that had ended
            _print_heading(search, num_kept, max_concurrent)
            if num_kept < search_config.num_samples:
                _run_trials(search)
    except KeyboardInterrupt:
        if search is None:  # nothing to print or resume yet
            raise
        interrupted = True
    shutil.rmtree(search.folder / "ray", ignore_errors=True)
    return search.finish(interrupted)


def _print_heading(search: Search, num_kept: int, max_concurrent: int) -> None:
    """Print the hyperparameters, number and length of the trials, the algorithm and the folder of a search. Of the
    trials, ``num_kept`` are from before it was resumed, and ``max_concurrent`` run at the same time."""
    settings, space = search.settings, search.space
    run, search_config = settings.run, settings.subcommand
    unit, length = trial_length(settings)
    units = {"env_steps": "steps", "epoch": "epochs", trials.SEARCHES: "searches"}[unit]
    place = f"on {run.ray_address}" if run.ray_address else f"{max_concurrent} at a time"
    kept_text = f"; {num_kept} are kept" if search.trials else ""
    print_wrapped(f"searching {', '.join(space.dimensions)} ({path_text(Path(space.source))})")
    trials_text = f"{search_config.num_samples} trials of {length:,} {units} with {search_config.tune_algorithm}"
    print_wrapped(f"{trials_text}, {place}{kept_text}: {path_text(search.folder)}")
    solved = solved_return(run.gamename) if settings.proxy is None else None
    if solved is not None:
        print_wrapped(f"score: the best mean return of a trial, solved from {solved:g}")


def _problems(settings: Settings, space: Space) -> Iterator[SettingError]:
    """Yield an error for each setting that is valid in a training run, but not in this hyperparameter search."""
    run, resumed, algorithm = settings.run, settings.subcommand.resume_search, settings.subcommand.tune_algorithm
    if resumed and algorithm in DEPENDENT:
        problem = f"resume is {resumed!r}, a search with {algorithm}, whose trials depend on each other"
        yield SettingError(f"{problem}; allowed: a search with asha, optuna or optuna_asha", "resume")
    if settings.proxy is not None and algorithm == "pbt":
        problem = f"tune_algorithm is 'pbt', but trials of {run.implementation} are whole searches"
        yield SettingError(f"{problem}; allowed: asha, optuna, optuna_asha, bohb", "tune_algorithm")
    elif algorithm == "pbt":
        perturbed = names_with(settings.agent, "perturbed")
        if not perturbed & space.dimensions.keys():
            problem = f"{space.source}: pbt perturbs {', '.join(sorted(perturbed))}"
            yield SettingError(f"{problem}; at least one of them must be in the space")
    if algorithm in DEPENDENT and run.no_checkpoint:
        yield SettingError(f"--no_checkpoint and --tune_algorithm {algorithm} exclude each other: it pauses trials")


def _run_trials(search: Search) -> None:
    """Run the remaining trials of a hyperparameter search with Ray, beginning with the interrupted trials."""
    from ray import tune as ray_tune

    settings, space = search.settings, search.space
    run, search_config = settings.run, settings.subcommand
    unit, _ = trial_length(settings)
    interrupted = [trial.number for trial in search.interrupted]
    # `_searcher` suggests the interrupted trials first, so these keep their numbers. New trials get the next numbers.
    next_number = max(search.trials, default=0) + 1
    numbers = itertools.chain(interrupted, itertools.count(next_number))
    number_of_id: dict[str, int] = {}  # Ray's id of a trial -> its number in this search

    # Ray deep-copies its arguments for every trial, but not functions. So all trials share these numbers.
    def trial_name(trial: Any) -> str:
        """Return the name of Ray's ``trial``, such as ``trial_3``. A new trial gets the next number."""
        if trial.trial_id not in number_of_id:
            number_of_id[trial.trial_id] = next(numbers)
        return f"trial_{number_of_id[trial.trial_id]}"

    # PBT may copy the checkpoint of a trial's last perturbation. There is a checkpoint of each evaluation. So a trial
    # keeps all checkpoints since its last perturbation, and three more. In a search whose trials have a length in
    # steps, the number of evaluations between perturbations is unknown, so a trial keeps all checkpoints (None).
    num_to_keep = None
    if unit == "epoch":
        num_to_keep = _perturbation_interval(settings) // settings.schedule.eval_every + 3
    trainable = ray_tune.with_parameters(
        _run_ray_trial, settings=settings, space=space, folder=search.folder.absolute()
    )
    tuner = ray_tune.Tuner(
        ray_tune.with_resources(trainable, {"cpu": run.num_workers}),
        param_space={} if "optuna" in search_config.tune_algorithm else _domains(space),
        tune_config=ray_tune.TuneConfig(
            # The trials of a resumed search count, except interrupted trials, which run again.
            num_samples=search_config.num_samples - len(search.trials) + len(interrupted),
            max_concurrent_trials=search_config.max_concurrent_trials,
            # A trial of proxy searches ends between two searches, so its process can run another trial. A training run
            # may end in the middle, and then its process cannot run another trial.
            reuse_actors=settings.proxy is not None,
            search_alg=_searcher(search),
            scheduler=_scheduler(search),
            trial_name_creator=trial_name,
            trial_dirname_creator=trial_name,
        ),
        run_config=ray_tune.RunConfig(
            name="ray",
            storage_path=str(search.folder.absolute()),
            verbose=0,
            callbacks=[_listener(search)],
            checkpoint_config=ray_tune.CheckpointConfig(num_to_keep=num_to_keep),
        ),
    )
    # Ray's warning advises ``reuse_actors=True``.
    warnings.filterwarnings("ignore", message=".*reuse_actors.*")
    tuner.fit()


def _perturbation_interval(settings: Settings) -> int:
    """Return the number of epochs or steps (`trial_length`) between the perturbations of a trial's hyperparameters by
    population-based training (PBT): about a tenth of a run. It is a multiple of the epochs between evaluations, because
    only an evaluation can be followed by a perturbation."""
    unit, length = trial_length(settings)
    eval_every = settings.schedule.eval_every if unit == "epoch" else 1
    return eval_every * max(1, round(length / 10 / eval_every))


def _run_ray_trial(config: dict[str, Any], settings: Settings, space: Space, folder: Path) -> None:
    """Run a trial, which is a training run or several proxy searches. Ray calls this in a separate process on any node.
    ``config`` has the hyperparameters that the search algorithm suggested. ``settings`` and ``folder`` are the settings
    and the folder of the hyperparameter search. Raises TrialFailed."""
    from ray import tune as ray_tune

    logging.getLogger("ray").setLevel(logging.ERROR)
    trial_folder = folder / ray_tune.get_context().get_trial_name()
    run, search_config = settings.run, settings.subcommand
    saves_for_ray = search_config.tune_algorithm in DEPENDENT  # the algorithm continues trials from checkpoints
    if not folder.is_dir():
        raise TrialFailed(f"{folder} is not on node {os.uname().nodename}; logdir must be a folder all nodes share")
    try:
        import_module("gamename", run.gamename)
        settings = trial_settings(settings, space.decode(config))
    except SettingError as error:
        raise TrialFailed(str(error)) from None
    if saves_for_ray:
        settings = settings.replace(checkpoint_every=settings.schedule.eval_every)

    def report(metrics: dict[str, float]) -> None:
        """Pass an evaluation to Ray, with the newest checkpoint if ``saves_for_ray``."""
        if not saves_for_ray:
            ray_tune.report(metrics)
            return
        # Ray takes a folder as a checkpoint, and copies it. A link puts the file there without another copy.
        with tempfile.TemporaryDirectory(prefix=".", dir=trial_folder) as checkpoint_folder:
            newest = max(trial_folder.rglob("last.ckpt"), key=lambda path: path.stat().st_mtime)
            os.link(newest, Path(checkpoint_folder, "last.ckpt"))
            ray_tune.report(metrics, checkpoint=ray_tune.Checkpoint.from_directory(checkpoint_folder))

    if settings.proxy is not None:
        trials.run_searches(settings, run.num_seeds, str(search_config.tune_objective), trial_folder, report)
        return
    last_checkpoint = trial_folder / run_dir.LAST_CHECKPOINT  # exists after an interruption
    resumed_checkpoint = last_checkpoint if last_checkpoint.exists() else None
    with contextlib.ExitStack() as stack:
        ray_checkpoint = ray_tune.get_checkpoint()  # may be a checkpoint of another trial
        if ray_checkpoint:
            resumed_checkpoint = Path(stack.enter_context(ray_checkpoint.as_directory()), "last.ckpt")
        trials.run_trial(settings, trial_folder, resumed_checkpoint, report)


def _domains(space: Space) -> dict[str, Any]:
    """Return hyperparameter -> its distribution in Ray, such as ``ray.tune.loguniform(1e-4, 1e-2)``."""
    from ray import tune as ray_tune

    domains: dict[str, Any] = {}
    for name, dimension in space.dimensions.items():
        if dimension.kind == "choice":
            domains[name] = ray_tune.choice(dimension.labels)
            continue
        low, high = dimension.values
        if dimension.kind.endswith("randint"):
            high += 1  # Ray excludes the upper end of integer ranges
        kind = "loguniform" if dimension.kind == "log1m" else dimension.kind  # other kinds have Ray's names
        domains[name] = getattr(ray_tune, kind)(low, high)
    return domains


def _searcher(search: Search) -> Any:
    """Return Ray's search algorithm, which suggests the hyperparameters of trials. In a resumed search it first
    suggests the hyperparameters of interrupted trials, and Optuna also learns the scores of the finished trials."""
    space, run, search_config = search.space, search.settings.run, search.settings.subcommand
    suggestions = [dict(trial.raw) for trial in search.interrupted]
    seed = run.seed + len(search.kept_trials)  # a resumed search does not repeat its first suggestions
    if "optuna" in search_config.tune_algorithm:
        import optuna
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        domains = OptunaSearch.convert_search_space(_domains(space))
        searcher = OptunaSearch(domains, METRIC, "max", points_to_evaluate=suggestions, seed=seed)
        for trial in search.kept_trials:
            searcher.add_evaluated_point(dict(trial.raw), trial.score)
        return searcher
    if search_config.tune_algorithm == "bohb":
        from ray.tune.search.bohb import TuneBOHB

        return TuneBOHB(metric=METRIC, mode="max", seed=run.seed)
    from ray.tune.search import BasicVariantGenerator

    random.seed(run.seed)  # PBT draws from Python's own generator
    limit = search_config.max_concurrent_trials or 0  # 0 is no limit
    return BasicVariantGenerator(points_to_evaluate=suggestions, random_state=seed, max_concurrent=limit)


def _scheduler(search: Search) -> Any:
    """Return Ray's scheduler, which stops, pauses or perturbs trials."""
    from ray.tune import schedulers

    settings, space, search_config = search.settings, search.space, search.settings.subcommand
    unit, length = trial_length(settings)
    objective: dict[str, Any] = {"time_attr": unit, "metric": METRIC, "mode": "max"}
    if search_config.tune_algorithm == "optuna":
        return schedulers.FIFOScheduler()
    # If trials are proxy searches, a third of them continues after each evaluation, as published.
    reduction = REDUCTION if settings.proxy is None else 3
    if search_config.tune_algorithm == "bohb":
        return schedulers.HyperBandForBOHB(**objective, max_t=length, reduction_factor=reduction)
    if "asha" in search_config.tune_algorithm:
        first_evaluation = min(length, settings.schedule.eval_every) if unit == "epoch" else 1
        shortest_trial = max(length // 8, first_evaluation)  # no trial is stopped before an eighth of its length
        # ``max_t`` is above the last report, so that a complete trial ends by itself and writes its files.
        scheduler = schedulers.AsyncHyperBandScheduler(
            **objective, max_t=length + 1, grace_period=shortest_trial, reduction_factor=reduction
        )
        controller: Any = None  # ASHA does not use it
        for trial in search.kept_trials:  # so that ASHA also compares new trials with these
            kept_trial: Any = SimpleNamespace(trial_id=f"kept {trial.number}")  # ASHA uses only the id of a trial
            scheduler.on_trial_add(controller, kept_trial)
            for length_so_far, score in trial.course:
                scheduler.on_trial_result(controller, kept_trial, {unit: length_so_far, METRIC: score})
        return scheduler
    # Population-based training.
    mutations = _domains(space)
    for name, dimension in space.dimensions.items():
        if name not in names_with(settings.agent, "perturbed"):
            del mutations[name]
        elif dimension.kind == "choice":
            mutations[name] = dimension.labels  # in a list, PBT moves from a choice to its neighbour
    return schedulers.PopulationBasedTraining(
        **objective,
        perturbation_interval=_perturbation_interval(settings),
        custom_explore_fn=space.clamp,  # perturbed numbers stay in their ranges
        hyperparam_mutations=mutations,
        log_config=False,
    )


def _listener(search: Search) -> Any:
    """Return Ray's callback that passes the events of trials to ``search``."""
    from ray import tune as ray_tune

    class Listener(ray_tune.Callback):
        """Calls `Search.start`, `Search.report` and `Search.end`."""

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            search.start(_trial_number(trial), trial.config)

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: Mapping[str, Any], **info: Any
        ) -> None:
            if METRIC in result:
                search.report(_trial_number(trial), result["config"], result)

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            search.end(_trial_number(trial))

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            search.start(_trial_number(trial), trial.config)  # if it has not started
            text = Path(trial.error_file).read_text(encoding="utf-8")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            # A traceback ends with the class and the message of the exception.
            _, separator, problem = lines[-1].partition("TrialFailed: ")
            if separator:
                search.end(_trial_number(trial), problem)
            else:  # the process was killed; the trial may succeed when the search is resumed
                reason = f"its process ended: {lines[1]}" if len(lines) > 1 else "its process ended"
                search.end(_trial_number(trial), reason, "interrupted")

    return Listener()


def _trial_number(trial: Any) -> int:
    """Return N, the number of Ray's trial with the name ``trial_N``."""
    return int(str(trial.custom_trial_name).removeprefix("trial_"))
