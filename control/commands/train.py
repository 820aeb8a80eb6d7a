"""A training run: its folder, its module, Lightning's trainer, and the printed summary."""

import contextlib
import dataclasses
import importlib
import math
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger, MLFlowLogger, WandbLogger

from control.cli.colour import note, paint, print_wrapped, warning
from control.cli.ending import ending, print_on_stderr
from control.cli.progress import progress, time_in_words
from control.cli.settings import RunConfig, Settings, as_dict, end_of, to_yaml
from control.commands.choose_proxy import conclude, print_if, real_agents_text
from control.commands.process import prepare
from control.commands.summary import Command, command, path_text, show_next
from control.films.recording import check_recording, film, filmed_seed, returns_text
from control.lightning.agent import AgentModule
from control.lightning.board import show_image
from control.lightning.callbacks import AtomicCheckpointIO, Checkpoints, Progress, Recorder, RunLog, StopOnSignal
from control.lightning.module import RunModule
from control.lightning.proxy_module import ProxyModule
from control.lightning.proxy_module import build as build_search
from control.lightning.supervised import SupervisedModule
from control.lightning.trackio_logger import TrackioLogger
from control.loops.build import check_accelerator
from control.reports.curves import learning_curve, solved_return
from control.reports.outputs import check_outputs, write_outputs
from control.reports.runs import note_version
from control.reports.sheets import look_of
from control.reports.tables import solved_verdict
from control.reports.tags import GREEDY
from control.reports.verdict import read_verdict
from control.storage import checkpoints, run_dir
from control.storage.checkpoints import Checkpoint
from control.storage.versions import write_versions
from models.registry import family, parse_agents
from models.settings import HAS_NUMBA, SettingError, StopNow, UserError, names_with, raise_all
from understudy.files import IN_RUN

Callbacks = Sequence[pl.Callback]

_PACKAGE_LOGGERS = ("wandb", "mlflow", "trackio")  # loggers that need other packages


def train(settings: Settings, callbacks: Callbacks = (), verbose: bool = True) -> tuple[Path, bool]:
    """Train with ``settings``, or with ``resume`` continue the newest run with these settings. Return the run folder,
    and whether the run finished (False after Ctrl-C). Unless ``verbose``, prints only warnings. Raises SettingError."""
    run = settings.run
    prepare(run)
    check_outputs(run)
    previous_runs = run_dir.version_folders(run_dir.parent(run)) if run.resume else []
    if previous_runs:
        folder = previous_runs[-1]  # the newest
        with run_dir.locked(folder):  # before reading, so that no other process writes to it
            if (last := folder / run_dir.LAST).exists():
                module = _restored_module(settings, last)
                return folder, _train_in(folder, module, callbacks, verbose)
        with_checkpoint = [path.name for path in previous_runs if (path / run_dir.LAST).exists()]
        hint = f"; {with_checkpoint[-1]}, which has one, is another run and stays as it is" if with_checkpoint else ""
        warning(f"{folder.name} ended before its first checkpoint, so this starts anew{hint}")
    initial_checkpoint = checkpoints.load(run.reload) if run.reload else None
    if run.reload and initial_checkpoint:
        note_version(run.reload, initial_checkpoint.path, "reload")
    module = build_module(settings.replace(resume=False))
    if initial_checkpoint and isinstance(module, AgentModule):
        module.load_weights(initial_checkpoint)
    if run.resume and not previous_runs:
        warning(f"there is no run to resume in {run_dir.parent(run)}, so a new one begins")
    folder = run_dir.create(run)
    with run_dir.locked(folder, new=True):
        try:
            return folder, _train_in(folder, module, callbacks, verbose)
        except SettingError:
            if module.epoch == 0:  # an error at the start, such as in the policy to clone
                shutil.rmtree(folder)
                run_dir.remove_empty(folder.parent, Path(run.logdir))
            raise


def _train_in(folder: Path, module: RunModule, callbacks: Callbacks, verbose: bool) -> bool:
    """Train ``module`` in ``folder``, make the results, print the summary and close the module. Return whether the run
    finished. Raises KeyboardInterrupt at the second signal to stop."""
    if not module.is_over():  # otherwise config.yaml keeps the settings of the training
        run_dir.atomic_write_text(folder / "config.yaml", to_yaml(module.settings))
        write_versions(folder, module.epoch + 1)
    if verbose:
        _print_heading(module, folder)
    started = time.monotonic()
    stop = StopOnSignal()  # ends the training at the next epoch; a second signal raises StopNow
    progress_callbacks: Callbacks = [Progress()] if verbose else []
    module.log_all = bool(callbacks)  # only callbacks of users read logged metrics; others read ``module.row``
    with contextlib.closing(module):  # also after an error, so that no process of it goes on
        try:
            with stop:
                fit(module, folder, [*progress_callbacks, Recorder(folder), *callbacks, stop])
        except StopNow:
            if (folder / run_dir.LAST).exists():
                print_on_stderr("cut short; the same command with --resume goes on from the last checkpoint")
            else:
                print_on_stderr(
                    "cut short before the first checkpoint: no agent was saved; --checkpoint_every 1 saves sooner"
                )
            raise KeyboardInterrupt from None
        finished = _conclude(module, folder, started, verbose) and not stop.stop_requested
        if finished:
            ending.status = exit_status(folder)  # everything is printed and written
    return finished


def _print_heading(module: RunModule, folder: Path) -> None:
    """Print what is trained, and how well agents learn without a proxy if presets have no settings for the game."""
    run, epochs_done = module.settings.run, module.epoch
    first, last = module.seeds[0], module.seeds[-1]
    seeds = f"seeds {first} to {last}" if last > first else f"seed {first}"
    state = "nothing is left to train" if module.is_over() else "resuming"
    hint = f" ({state} after epoch {epochs_done})" if epochs_done else ""
    print_wrapped(f"{run.implementation} on {run.gamename}, {seeds}: {path_text(folder)}{hint}")
    is_prepared = run.gamename.partition(",")[0] in family(run.implementation).prepared_games
    if isinstance(module, ProxyModule) and module.evolves and not epochs_done and not is_prepared:
        # With ``start_from``, a teacher or a proxy already shows that agents can learn.
        if module.config.start_from is None:
            print_wrapped(real_agents_text(module))


def exit_status(folder: Path) -> int:
    """Return the exit status of the finished run in ``folder``: 1 for a search that failed by its verdict, else 0."""
    return 0 if read_verdict(folder).get("passed", True) else 1


def fit(module: RunModule, folder: Path, callbacks: Callbacks, checkpoint_callbacks: Callbacks = ()) -> None:
    """Train ``module`` from its current epoch to the last one. Metrics and checkpoints are written to ``folder``. In
    every epoch ``callbacks`` run first, then the log, then the checkpoints, then ``checkpoint_callbacks``. The latter
    must derive from Lightning's ``Checkpoint``, because Lightning runs only such callbacks after all others."""
    run, checkpoint = module.settings.run, module.restored
    log = RunLog(folder, module, run.logger == "tensorboard")
    saving = [] if run.no_checkpoint else [Checkpoints(folder / "checkpoints", run.checkpoint_every)]
    trainer = pl.Trainer(
        # -1 is no limit. A checkpoint may be past the last epoch.
        max_epochs=-1 if module.epochs is None else max(module.epochs, module.epoch),
        accelerator=run.accelerator,
        devices=1,
        logger=_loggers(run, folder),
        callbacks=[*callbacks, log, *saving, *checkpoint_callbacks],
        plugins=[AtomicCheckpointIO(checkpoint)],
        enable_checkpointing=bool(saving or checkpoint_callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=module.validate_every,
        default_root_dir=folder,
    )
    trainer.fit(module, ckpt_path=None if checkpoint is None else checkpoint.path, weights_only=True)
    log.finish()


def _loggers(run: RunConfig, folder: Path) -> list[Logger]:
    """Return Lightning's logger for wandb, MLflow or Trackio, in a list. It is empty for other loggers, because
    `RunLog` writes metrics.csv and TensorBoard."""
    if run.logger not in _PACKAGE_LOGGERS:
        return []
    name = "/".join(folder.parts[-4:])
    if run.logger == "wandb":
        return [WandbLogger(project=run.exp_name, name=name, save_dir=folder)]
    if run.logger == "trackio":
        return [TrackioLogger(run.exp_name, f"{run.gamename}/{name}", run.resume)]
    return [MLFlowLogger(experiment_name=run.exp_name, run_name=name, save_dir=str(Path(run.logdir) / "mlruns"))]


def build_module(settings: Settings) -> RunModule:
    """Build the module of a run with its environments. Raises SettingError if agent and environment do not fit, or if
    the run cannot be filmed or logged."""
    check_recording(settings.run)
    if settings.run.logger in _PACKAGE_LOGGERS:
        importlib.import_module(settings.run.logger)
    if family(settings.run.implementation).learns_from != "evolution":
        return AgentModule(settings)
    check_accelerator(settings.run)
    is_supervised = getattr(settings.proxy, "preset", "") == "supervised"
    return build_search(settings, SupervisedModule if is_supervised else None)


def has_machine_code(settings: Settings) -> bool:
    """Return whether a training with these settings uses machine code, so that it imports Numba."""
    run = settings.run
    names = [run.implementation] if settings.proxy is None else parse_agents(run.agent)
    return HAS_NUMBA and settings.value("compiled") and any(family(name).has_machine_code for name in names)


def _restored_module(settings: Settings, last: Path) -> RunModule:
    """Return the module of the interrupted run, restored from its checkpoint ``last``. Prints a warning if metrics.csv
    lacks rows of epochs in the checkpoint. Writes nothing."""
    checkpoint = checkpoints.load(last, resume=True)
    module = build_module(_resumed_settings(settings, checkpoint))
    module.restore(checkpoint)
    table = last.parents[1] / "metrics.csv"
    steps_of_seed = dict(zip(module.seeds, module.env_steps.tolist(), strict=True))
    if lost_epochs := run_dir.missing_epochs(table, steps_of_seed, module.epoch):
        span = f"{lost_epochs[0]} to {lost_epochs[-1]}"
        warning(f"rows of {len(lost_epochs)} {module.unit}s are lost ({span}): {str(table)!r} does not have them")
    return module


def _resumed_settings(settings: Settings, checkpoint: Checkpoint) -> Settings:
    """Return the settings of the interrupted run with the permitted changes. Raises SettingError for other changes."""
    previous, explicit_names = checkpoint.settings, settings.explicit_names
    previous_values, new_values = as_dict(previous), as_dict(settings)
    by_flag = names_with(settings.run, "by_flag")  # their values are never taken from the checkpoint
    # ``quit_when_solved`` decides whether a new target_return ends the search.
    changeable = {"quit_when_solved", *family(previous.run.implementation).changeable(previous.agent), *by_flag}
    for config in previous.configs:
        changeable |= names_with(config, "changeable") | names_with(config, "outcome", False)
    advice = "leave it out, or start a new run without --resume"
    errors = []
    for name in sorted((explicit_names & previous_values.keys()) - changeable):
        old, new = previous_values[name], new_values[name]
        if old != new:
            errors.append(SettingError(f"{name} is {new!r}, but the run to resume has {old!r}; {advice}"))
    raise_all(errors)
    changes = {name: new_values[name] for name in changeable if name in explicit_names | by_flag}
    end = end_of(previous.run.implementation)
    if new_values["total_steps"] is not None and "total_steps" in explicit_names and end != "total_steps":
        changes[end] = new_values[end]  # null by default, because total_steps ends the run
    return dataclasses.replace(previous.replace(**changes | {"resume": False}), imports=settings.imports)


def _conclude(module: RunModule, folder: Path, started: float, verbose: bool) -> bool:
    """Make the results of a run after its last epoch, and print the summary: results, time since ``started``, paths,
    and commands to type next. Return False if Ctrl-C interrupted it, else True."""
    lines: list[tuple[str, object]] = [("run", path_text(folder))]
    finished, trained = True, time.monotonic()
    try:
        if module.epoch > 0:
            for line in _results(module, folder, verbose):
                lines.append(line)  # one by one, so that an interruption loses no finished line
    except KeyboardInterrupt:
        finished = False
    if not verbose:
        return finished
    print(paint(f"\n{_work_text(module, trained - started, time.monotonic() - trained)}", "bold", sys.stdout))
    if isinstance(module, AgentModule) and module.epoch:
        if math.isfinite(module.best):
            metrics = run_dir.read_metrics(folder / "metrics.csv")
            lines.append(("best", _best_score_text(module, folder, metrics)))
            if last_score := _last_score_text(module, metrics):
                lines.append(("last", last_score))
        if not module.gradient_steps:
            note("no gradient step was made, so the agent has its initial weights")
        if module.best == -math.inf and not module.settings.run.no_checkpoint:
            note(f"nothing was evaluated yet, as --eval_every is {module.validate_every} epochs: there is no best.ckpt")
    checkpoint_path = checkpoints.find_checkpoint(folder / "checkpoints")
    if checkpoint_path:
        lines.append(("checkpoint", checkpoint_path))
    show_next(lines, _next_commands(module, folder, checkpoint_path), folder)
    if not module.is_over():
        print(f"  the same command with --resume goes on from {module.unit} {module.epoch}")
    elif not finished:
        print("  the same command with --resume does what is left after training")
    return finished


def _best_score_text(module: AgentModule, folder: Path, metrics: Mapping[str, list[float]]) -> str:
    """Return the best score and whether it solves the environment, such as ``mean greedy return 480.0, solved (475 or
    more)``. If the score is the mean of two tests, it is followed by both. If no return solves the environment, the
    score is compared with the first one. A score from training is followed by the best greedy return."""
    loop, path = module.loop, folder / "checkpoints" / "best.ckpt"
    text, solved = f"{loop.score_name} {module.best:.1f}", solved_return(module.settings.run.gamename)
    tag, seeds = loop.score_tag, len(module.seeds)
    tests, scores = ([value for value in metrics.get(name, []) if math.isfinite(value)] for name in (GREEDY, tag))
    if tag == GREEDY and loop.varies and path.exists():
        epoch = checkpoints.load(path).run_state["epoch"]
        rows = zip(metrics.get("epoch", ()), metrics.get(GREEDY, ()), strict=False)
        if returns := [value for row, value in rows if row == epoch and math.isfinite(value)]:
            first = sum(returns) / len(returns)  # of the first test
            text += f" (tests after epoch {epoch}: {first:.1f} and {2 * module.best - first:.1f})"
    if "return" not in loop.score_name:
        return text
    if solved is not None:
        text += f", {solved_verdict(module.best, solved)}"
    elif len(scores) > seeds:
        start = sum(scores[:seeds]) / seeds
        comparison = (
            "as good as" if module.best == start else "better than" if module.best > start else "no better than"
        )
        text += f", {comparison} the first ({start:.1f})"
    is_best_test = tag == GREEDY or not tests or seeds > 1
    return text if is_best_test else f"{text}; best greedy return {max(tests):.1f}"


def _last_score_text(module: AgentModule, metrics: Mapping[str, list[float]]) -> str:
    """Return the latest greedy return, such as ``171.8 after epoch 40``, if it is below the best score, else ""."""
    rows = zip(metrics.get("epoch", ()), metrics.get(GREEDY, ()), strict=False)
    returns = [(int(epoch), value) for epoch, value in rows if math.isfinite(value)]
    last = [value for epoch, value in returns if epoch == returns[-1][0]]  # of all members
    if module.loop.score_tag != GREEDY or not last or sum(last) / len(last) >= module.best:
        return ""
    return f"{sum(last) / len(last):.1f} after epoch {returns[-1][0]}"


def _work_text(module: RunModule, seconds: float, seconds_after: float) -> str:
    """Return the epochs, steps and time of a run as text, such as ``20 epochs, 10,000 environment steps in 2 min 6 s,
    filmed in 9 s``. ``seconds`` is the time of the training, ``seconds_after`` the time of the work after it."""
    if isinstance(module, ProxyModule):
        afterwards = "evaluated"
    elif module.settings.run.record:
        afterwards = "filmed"
    else:
        afterwards = ""
    time_text = time_in_words(seconds)
    if afterwards and seconds_after >= 1:
        time_text += f", {afterwards} in {time_in_words(seconds_after)}"
    plural = "" if module.epoch == 1 else "s"
    epochs = f"{module.epoch} {module.unit}{plural}"
    num_steps, kind = module.steps_a_seed(), module.steps_kind
    if num_steps == 0 and isinstance(module, ProxyModule):  # a search without agents, by the proxies' targets
        num_steps, kind = module.real_steps, "real"
    steps = f"{num_steps:,} {kind} steps"
    if len(module.seeds) > 1:
        mean_of = "a mean of " if len(set(module.env_steps.tolist())) > 1 else ""
        total = int(module.env_steps.sum())
        steps = f"{mean_of}{steps} of each of {len(module.seeds)} seeds ({total:,} in all)"
    return f"{epochs}, {steps} in {time_text}"


def _next_commands(module: RunModule, folder: Path, checkpoint_path: Path | None) -> list[Command]:
    """Return commands to type after a run: to see its curves, to evaluate its agent or proxy, and to report it."""
    settings = module.settings
    commands: list[Command] = []
    if settings.run.logger == "tensorboard":
        commands.append(("tensorboard", "--logdir", folder.parents[2]))  # of the experiment
    if checkpoint_path if isinstance(module, AgentModule) else (folder / IN_RUN).exists():
        commands += [command(settings, "--eval_agent", folder), command(settings, "--report", folder)]
    return commands


def _results(module: RunModule, folder: Path, verbose: bool) -> Iterator[tuple[str, object]]:
    """Make figures, the final video and, for a search, its winner. Yield ``(name, value)`` for lines of the summary."""
    if isinstance(module, ProxyModule):
        yield from conclude(module, folder, verbose)
        return
    assert isinstance(module, AgentModule)
    run = module.settings.run
    if (folder / "metrics.csv").exists():
        print_if(verbose, "drawing the learning curve")
        yield "figure", learning_curve(folder, look_of(run))
    if module.is_over():  # before the best weights replace the last ones
        for line in write_outputs(module.settings, module.agents, folder):
            yield "output", line
    if not run.record:
        return
    video, best = folder / "videos" / "final.mp4", folder / "checkpoints" / "best.ckpt"
    if best.exists():
        module.load_weights(checkpoints.load(best))
    seed = filmed_seed(module.seeds)
    filmed_agent = f"{seed} of the best agents" if seed else "the best agent"
    try:
        print_if(verbose, f"filming {filmed_agent}")
        with progress("filming", verbose) as watch:
            returns = film(
                module.loop, run, video, "final video", episodes=run.record_episodes, with_gif=True, watch=watch
            )
        show_image(module, folder, "film", video.with_suffix(".gif"))
        yield "video", f"{path_text(video, folder)}, .gif ({filmed_agent}, greedy: {returns_text(returns)})"
    except UserError as error:
        warning(f"no video: {error}")
