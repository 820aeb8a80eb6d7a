"""Hyperparameter search with Ray Tune: ``--use_tune``. Trials are ordinary runs; see docs/tuning.md."""

import importlib
import logging
import os
import random
import shutil
import signal
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from control.cli.settings import RunConfig, Settings
from control.commands.search_results import METRIC, Search
from control.commands.search_space import Dimension, Space, search_space, trial_settings
from control.evolution.cluster import connected
from control.storage import run_dir
from models.settings import SettingError

REDUCTION = 4  # of so many trials one goes on after each rung; the published search's
_NEEDS = {"optuna": ("optuna",), "bohb": ("hpbandster", "ConfigSpace")}  # modules beside Ray
_FROM_CHECKPOINTS = ("bohb", "pbt")  # trials of these are paused, or go on from another's state
# What PBT may change while training goes on: nothing that the shapes of networks, the replay buffer or the meaning of
# its contents depend on.
PERTURBED = (
    "lr", "value_lr", "Q_alpha", "model_alpha", "softmax_temp",
    "batch_size", "num_grad_steps", "grad_clip_val", "last_few", "training_rollouts_per_worker",
    "action_noise", "beta", "max_weight", "td_lambda", "advantage_quantile", "advantage_spread",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """What every trial is told besides its hyperparameters."""

    settings: Settings
    space: Space
    folder: Path

    @property
    def from_checkpoints(self) -> bool:
        return self.settings.run.tune_algorithm in _FROM_CHECKPOINTS

    @property
    def eval_every(self) -> int:
        return self.settings.schedule.eval_every

    @property
    def interval(self) -> int:
        """Epochs between PBT's perturbations: about ten in a run, at evaluations."""
        return max(1, round(self.settings.epochs / 10 / self.eval_every)) * self.eval_every


def tune(settings: Settings) -> int:
    """Search as ``settings`` say. Returns 0, or 130 where Ctrl-C ended it. Raises UserError, one line, where the search
    space or the cluster is wrong or every trial failed."""
    run = settings.run
    space = search_space(settings)
    _check(settings, space)
    for module in ("ray", *_NEEDS.get(run.tune_algorithm, ())):
        importlib.import_module(module)
    at_once = run.max_concurrent_trials or os.cpu_count() or 1
    with connected(run.ray_address, at_once * run.num_workers):
        folder = run_dir.create(run)
        search = Search(settings, space, folder)
        where = f"on {run.ray_address}" if run.ray_address else f"{at_once} at a time"
        trials = f"{run.num_samples} trials of {settings.epochs} epochs with {run.tune_algorithm}"
        print(f"searching {', '.join(space.names)} ({space.source})\n{trials}, {where}: {folder}", flush=True)
        before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            _search(search, Job(settings, space, folder.absolute()))
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
        finally:
            signal.signal(signal.SIGTERM, before)
    shutil.rmtree(folder / "ray", ignore_errors=True)
    return search.finish(interrupted)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _check(settings: Settings, space: Space) -> None:
    """SettingError for what is wrong only in a search."""
    run, every = settings.run, settings.schedule.eval_every
    if settings.epochs < every:
        raise SettingError(f"epochs is {settings.epochs}, below eval_every {every}: no trial would be evaluated")
    if run.reload:
        raise SettingError("--use_tune and --reload exclude each other: trials have networks of different shapes")
    if run.tune_algorithm in _FROM_CHECKPOINTS and run.no_checkpoint:
        raise SettingError(
            f"--no_checkpoint and --tune_algorithm {run.tune_algorithm} exclude each other: it pauses trials"
        )
    if run.tune_algorithm == "pbt" and not set(PERTURBED) & set(space.names):
        raise SettingError(
            f"{space.source}: pbt perturbs {', '.join(PERTURBED)}; at least one of them must be in the space"
        )


def _search(search: Search, job: Job) -> None:
    """Run the trials; ``search`` is told of all events."""
    from ray import tune as ray_tune

    run, name = job.settings.run, _namer()
    tuner = ray_tune.Tuner(
        ray_tune.with_resources(ray_tune.with_parameters(_trainable, job=job), {"cpu": run.num_workers}),
        param_space={dimension.name: _domain(dimension) for dimension in job.space.dimensions},
        tune_config=ray_tune.TuneConfig(
            metric=METRIC, mode="max", num_samples=run.num_samples, scheduler=_scheduler(job),
            search_alg=_searcher(run), trial_name_creator=name, trial_dirname_creator=name,
        ),
        run_config=ray_tune.RunConfig(
            name="ray", storage_path=str(job.folder), verbose=0, callbacks=[_listener(search)],
            # PBT copies what a trial saved when it was last perturbed, so that must still exist.
            checkpoint_config=ray_tune.CheckpointConfig(num_to_keep=job.interval // job.eval_every + 3),
        ),
    )  # fmt: skip
    # It advises to reuse processes, which a trial that was cut short in its training does not survive.
    warnings.filterwarnings("ignore", message=".*reuse_actors.*")
    tuner.fit()


def _namer() -> Callable[[Any], str]:
    """Names trials in the order of their making: ``trial_1``, ``trial_2``, ..."""
    known: dict[str, int] = {}

    # A function, since Ray deep-copies what it is given for every trial, and functions are not copied.
    def name(trial: Any) -> str:
        return f"trial_{known.setdefault(trial.trial_id, len(known) + 1)}"

    return name


def _trainable(config: dict[str, Any], job: Job) -> None:
    """What Ray calls in a process of its own, on any node, with the searcher's suggestion."""
    from ray import tune as ray_tune

    from control.commands.trial import TrialFailed, run_trial

    logging.getLogger("ray").setLevel(logging.ERROR)
    if not job.folder.is_dir():
        raise TrialFailed(f"{job.folder} is not on node {os.uname().nodename}; logdir must be a folder all nodes share")
    folder = job.folder / ray_tune.get_context().get_trial_name()
    try:
        settings = trial_settings(job.settings, job.space.decode(config))
    except SettingError as error:
        raise TrialFailed(str(error)) from None
    if job.from_checkpoints:
        settings = settings.replace(checkpoint_every=settings.schedule.eval_every)

    def report(metrics: dict[str, float]) -> None:
        checkpoint = _alone(folder / "checkpoints" / "last.ckpt") if job.from_checkpoints else None
        try:
            ray_tune.report(metrics, checkpoint=checkpoint and ray_tune.Checkpoint.from_directory(checkpoint))
        finally:
            if checkpoint:
                shutil.rmtree(checkpoint, ignore_errors=True)

    start = ray_tune.get_checkpoint()
    if start is None:
        run_trial(settings, folder, None, report)
    else:
        with start.as_directory() as where:
            run_trial(settings, folder, Path(where) / "last.ckpt", report)


def _alone(file: Path) -> Path:
    """A folder with nothing but ``file``, which is what Ray takes for a checkpoint."""
    folder = file.parent / ".report"
    folder.mkdir(exist_ok=True)
    os.link(file, folder / file.name)
    return folder


def _domain(dimension: Dimension) -> Any:
    from ray import tune as ray_tune

    if dimension.kind == "choice":
        return ray_tune.choice(dimension.labels)
    low, high = dimension.values
    if dimension.kind.endswith("randint"):
        return getattr(ray_tune, dimension.kind)(int(low), int(high) + 1)
    return ray_tune.uniform(low, high) if dimension.kind == "uniform" else ray_tune.loguniform(low, high)


def _searcher(run: RunConfig) -> Any:
    at_once = run.max_concurrent_trials or 0
    if run.tune_algorithm == "optuna":
        import optuna
        from ray.tune.search import ConcurrencyLimiter
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        searcher = OptunaSearch(seed=run.seed)
        return ConcurrencyLimiter(searcher, at_once) if at_once else searcher
    if run.tune_algorithm == "bohb":
        from ray.tune.search.bohb import TuneBOHB

        return TuneBOHB(seed=run.seed, max_concurrent=at_once)
    from ray.tune.search import BasicVariantGenerator

    random.seed(run.seed)  # PBT draws from Python's own generator
    return BasicVariantGenerator(random_state=run.seed, max_concurrent=at_once)


def _scheduler(job: Job) -> Any:
    from ray.tune import schedulers

    algorithm, epochs = job.settings.run.tune_algorithm, job.settings.epochs
    if algorithm == "optuna":
        return schedulers.FIFOScheduler()
    if algorithm == "asha":
        # Its end is above the last epoch, so that a trial which gets there ends by itself and writes its files.
        return schedulers.AsyncHyperBandScheduler(
            "epoch", max_t=epochs + 1, grace_period=max(job.eval_every, epochs // 8), reduction_factor=REDUCTION
        )
    if algorithm == "bohb":
        return schedulers.HyperBandForBOHB("epoch", max_t=epochs, reduction_factor=REDUCTION)
    mutations = {
        dimension.name: dimension.labels if dimension.kind == "choice" else _domain(dimension)
        for dimension in job.space.dimensions
        if dimension.name in PERTURBED
    }
    return schedulers.PopulationBasedTraining(
        "epoch", perturbation_interval=job.interval, hyperparam_mutations=mutations,
        custom_explore_fn=job.space.clamp, log_config=False,
    )  # fmt: skip


def _listener(search: Search) -> Any:
    """A callback of Ray Tune that tells ``search`` of each event."""
    from ray import tune as ray_tune

    class Listener(ray_tune.Callback):
        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            search.start(_number(trial), trial.config)

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: Mapping[str, Any], **info: Any
        ) -> None:
            if METRIC in result:
                search.report(_number(trial), result["config"], result)

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            search.end(_number(trial))

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            search.start(_number(trial), trial.config)
            search.end(_number(trial), _problem(trial))

    return Listener()


def _number(trial: Any) -> int:
    return int(str(trial.custom_trial_name).removeprefix("trial_"))


def _problem(trial: Any) -> str:
    """One line for why a trial failed, from the file in which Ray keeps the error."""
    lines = [line.strip() for line in Path(trial.error_file).read_text(encoding="utf-8").splitlines() if line.strip()]
    before, own, text = lines[-1].partition("TrialFailed: ")
    if own:
        return text
    return f"its process ended: {lines[1]}" if len(lines) > 1 else "its process ended"
