"""A training run: its folder, its module, Lightning's trainer, and the printed summary."""

import contextlib
import dataclasses
import importlib
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger, MLFlowLogger, WandbLogger

from control.cli.colour import note, paint, print_wrapped, warning, wrap_text
from control.cli.ending import ending
from control.cli.progress import Meter, progress, time_in_words
from control.cli.settings import Settings, as_dict, end_setting, to_yaml
from control.cli.words import as_word
from control.commands.choose_proxy import announce, draw_curve, finish_search, real_agents_text
from control.commands.summary import Command, command, path_text, resume_command, show_next
from control.films.recording import check_recording, film, filmed_seed_text, returns_text
from control.lightning.agent import AgentModule
from control.lightning.callbacks import AtomicCheckpointIO, Checkpoints, Progress, Recorder, RunLog, StopOnSignal
from control.lightning.module import RunModule
from control.lightning.proxy_module import ProxyModule
from control.lightning.proxy_module import build as build_search
from control.lightning.supervised import SupervisedModule
from control.lightning.trackio_logger import TrackioLogger
from control.loops.build import check_accelerator
from control.loops.process import configure_process
from control.reports.curves import solved_return
from control.reports.outputs import check_outputs, write_outputs
from control.reports.runs import Run, read_runs
from control.reports.tables import best_text, number_text, range_text, score_text, solved_steps
from control.reports.tags import ELAPSED, GREEDY
from control.reports.verdict import read_verdict
from control.storage import checkpoints, run_dir
from control.storage.checkpoints import Checkpoint
from control.storage.versions import write_versions
from models.registry import family
from models.settings import SettingError, StopNow, UserError, names_with, raise_all
from understudy.files import PROXY_FILE

Callbacks = Sequence[pl.Callback]

_RUN_NAMES = ("implementation", "gamename", "exp_name", "logdir")  # settings whose values name a run
_PACKAGE_LOGGERS = ("wandb", "mlflow", "trackio")  # loggers that need other packages


def train(
    settings: Settings, callbacks: Callbacks = (), verbose: bool = True, board_folder: Path | None = None
) -> tuple[Path, bool]:
    """Train with ``settings``. With the setting ``resume``, continue the newest run of the same settings, or start one
    if there is none. Return the run folder, and whether the run finished (False after Ctrl-C). ``callbacks`` are
    further callbacks of Lightning. Unless ``verbose``, prints only warnings. The event files of TensorBoard are in
    ``board_folder``, by default in the run folder. Raises SettingError."""
    run = settings.run
    configure_process(run)
    check_outputs(run)
    if run.resume:
        runs_folder = run_dir.parent(run)  # of all runs with these settings
        previous_run = run_dir.newest_run(runs_folder)
        reason = f"there is no run to resume in {path_text(runs_folder)}"
        if previous_run is not None:
            checkpoint_path = previous_run / run_dir.LAST_CHECKPOINT
            with run_dir.folder_lock(previous_run):  # before reading, so that no other process writes to it
                if checkpoint_path.exists():
                    checkpoint = checkpoints.load(checkpoint_path, resume=True)
                    module = build_module(_resumed_settings(settings, checkpoint))
                    module.restore(checkpoint)
                    module.verbose, module.board_folder = verbose, board_folder
                    return previous_run, _train_in(previous_run, module, callbacks)
            reason = f"{path_text(previous_run)} ended before its first checkpoint"
        if settings.explicit_names.isdisjoint(_RUN_NAMES):  # a long run of the defaults is hardly meant
            flags = ", ".join(f"--{name}" for name in _RUN_NAMES)
            raise SettingError(f"resume: {reason}; allowed: the flags of the run, such as {flags}", "resume")
        warning(f"{reason}, so a new one begins")
        settings = settings.replace(resume=False)
    initial_checkpoint = checkpoints.load(run.reload) if run.reload else None
    module = build_module(settings)
    if initial_checkpoint and isinstance(module, AgentModule):
        module.load_weights(initial_checkpoint)
    module.verbose, module.board_folder = verbose, board_folder
    folder = run_dir.create(run)
    with run_dir.folder_lock(folder, new=True):
        try:
            return folder, _train_in(folder, module, callbacks)
        except SettingError:
            if module.epoch == 0:  # an error at the start, such as in the policy to clone
                shutil.rmtree(folder)
                run_dir.remove_empty(folder.parent, Path(run.logdir))
            raise


def _train_in(folder: Path, module: RunModule, callbacks: Callbacks) -> bool:
    """Train ``module`` in the run folder ``folder``, draw and film the results, print the summary and close the module.
    Return whether the run finished. Raises KeyboardInterrupt at the second signal to stop."""
    if not module.is_over():  # without further training, config.yaml keeps the settings of the training
        run_dir.atomic_write_text(folder / "config.yaml", to_yaml(module.settings))
        write_versions(folder, module.epoch + 1)  # of the software that trains from this epoch on
    if module.verbose:
        _print_heading(module, folder)
    started = Meter.seconds()
    stop = StopOnSignal()  # ends the training at the next epoch; a second signal raises StopNow
    module.log_all = bool(callbacks)  # only callbacks of users read logged metrics; others read ``module.row``
    with contextlib.closing(module):  # also after an error, so that no process of it goes on
        try:
            with stop:
                progress_callbacks = [Progress()] if module.verbose else []
                fit(module, folder, [*progress_callbacks, Recorder(folder), *callbacks, stop])
        except StopNow:
            if module.verbose:
                ending.print_interrupted()
                if (folder / run_dir.LAST_CHECKPOINT).exists():
                    show_next([], _next_commands(module, folder, finished=False, has_agent=False))
                elif not module.settings.run.no_checkpoint:
                    note("no checkpoint was saved yet; --checkpoint_every 1 saves sooner")
            raise KeyboardInterrupt from None
        finished = _conclude(module, folder, started, stop.stop_requested) and not stop.stop_requested
        if finished:  # everything is printed and written
            passed = read_verdict(folder).get("passed", True)  # only a search has a verdict
            ending.status = 0 if passed else 1
    return finished


def _print_heading(module: RunModule, folder: Path) -> None:
    """Print the implementation, game, seeds, length and folder of a run. At the start of a search for a proxy in a game
    that no preset has settings for, also train agents on the real environment, and print whether they learn."""
    run, epochs_done = module.settings.run, module.epoch
    first, last = module.seeds[0], module.seeds[-1]
    seeds = f"seeds {first} to {last}" if last > first else f"seed {first}"
    state = "nothing is left to train" if module.is_over() else "resuming"
    hint = f" ({state} after {module.unit} {epochs_done})" if epochs_done else ""
    if "implementation" not in module.settings.explicit_names and not epochs_done:
        advice = "--implementation PPO, or SAC for continuous actions, is a good start"
        note(f"{run.implementation} is the default; {advice}")
    length = _length_text(module.settings)
    print_wrapped(f"{run.implementation} on {run.gamename}, {seeds}, {length}: {path_text(folder)}{hint}")
    # With ``start_from``, a teacher or a proxy already shows that agents can learn.
    if not isinstance(module, ProxyModule) or not module.evolves or epochs_done or module.config.start_from is not None:
        return
    game, _, _ = run.gamename.partition(",")  # without parameters of the environment
    if game not in family(run.implementation).prepared_games():
        print_wrapped(real_agents_text(module))


def _length_text(settings: Settings) -> str:
    """Return the length of a training, such as ``1,000,000 steps`` or ``2,000 epochs or 1,000,000 steps``."""
    end_name = end_setting(settings.run.implementation)  # "epochs", or the name of another setting
    limits = {end_name: settings.value(end_name), "total_steps": settings.total_steps}
    if end_name == "epochs" and family(settings.run.implementation).learns_from == "steps" and limits["epochs"]:
        # An epoch has a fixed number of steps, so both limits are numbers of steps, and the smaller one counts.
        steps = limits.pop("epochs") * settings.schedule.steps_per_epoch
        limits["total_steps"] = min(steps, settings.total_steps or steps)
    texts: list[str] = []
    for name, limit in limits.items():
        _, _, unit = name.rpartition("_")  # "steps" of "total_steps", for example
        if limit is not None:
            texts.append(f"{limit:,} {unit.removesuffix('s') if limit == 1 else unit}")
    return " or ".join(texts)


def train_and_report(settings: Settings) -> int:
    """Train as the command does, and return the exit status: 1 for a search whose verdict is a failure."""
    train(settings)
    return ending.status  # the status of an interruption if the run did not finish


def fit(module: RunModule, folder: Path, callbacks: Callbacks, checkpoint_callbacks: Callbacks = ()) -> None:
    """Train ``module`` with Lightning, from its current epoch to the last one. Metrics and checkpoints are written to
    ``folder``. In every epoch ``callbacks`` run first, then the metrics are written, then the checkpoint, and
    ``checkpoint_callbacks`` run last. They must derive from Lightning's ``Checkpoint``, because Lightning runs only
    such callbacks last. The event files of TensorBoard stay open for the results after the training."""
    run, checkpoint = module.settings.run, module.restored
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    if run.logger == "tensorboard":
        module.open_boards(module.board_folder or folder)
    log = RunLog(folder, module)
    loggers: list[Logger] = []  # `RunLog` writes metrics.csv and TensorBoard
    name = "/".join(folder.parts[-4:])  # EXPERIMENT/IMPLEMENTATION/seed_N/version_K
    if run.logger == "wandb":
        loggers = [WandbLogger(project=run.exp_name, name=name, save_dir=folder)]
    elif run.logger == "trackio":
        loggers = [TrackioLogger(run.exp_name, f"{run.gamename}/{name}", checkpoint is not None)]
    elif run.logger == "mlflow":
        loggers = [MLFlowLogger(experiment_name=run.exp_name, run_name=name, save_dir=str(Path(run.logdir, "mlruns")))]
    saving = [] if run.no_checkpoint else [Checkpoints(folder / "checkpoints", run.checkpoint_every)]
    trainer = pl.Trainer(
        # -1 is no limit. Lightning refuses a limit below the checkpoint's epoch, which may be past the last epoch.
        max_epochs=-1 if module.epochs is None else max(module.epochs, module.epoch),
        accelerator=run.accelerator,
        devices=1,
        logger=loggers,
        callbacks=[*callbacks, log, *saving, *checkpoint_callbacks],
        plugins=[AtomicCheckpointIO(checkpoint)],  # gives Lightning this checkpoint, so the file is read once
        enable_checkpointing=bool(saving or checkpoint_callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=module.validate_every,
        default_root_dir=folder,
    )
    trainer.fit(module, ckpt_path=None if checkpoint is None else checkpoint.path, weights_only=True)


def build_module(settings: Settings) -> RunModule:
    """Build the LightningModule of a run with its environments. Raises SettingError if agent and environment do not
    fit or if the run cannot be filmed, and ModuleNotFoundError if the package of the logger is missing."""
    check_recording(settings.run)
    if settings.run.logger in _PACKAGE_LOGGERS:
        importlib.import_module(settings.run.logger)
    if family(settings.run.implementation).learns_from != "evolution":
        return AgentModule(settings)
    check_accelerator(settings.run)
    is_supervised = getattr(settings.proxy, "preset", "") == "supervised"
    return build_search(settings, SupervisedModule if is_supervised else None)


def _resumed_settings(settings: Settings, checkpoint: Checkpoint) -> Settings:
    """Return the settings of the interrupted run, with the user's values (``settings``) for settings that may change
    when a run resumes. Raises SettingError if the user changes another setting."""
    previous, explicit_names = checkpoint.settings, settings.explicit_names
    old_values, new_values = as_dict(previous), as_dict(settings)
    by_flag = names_with(settings.run, "by_flag")  # settings whose values are never taken from the checkpoint
    # In a search, a ``target_return``, which the user may change, also switches ``quit_when_solved`` on.
    changeable = {"quit_when_solved", *family(previous.run.implementation).changeable(previous.agent), *by_flag}
    for config in previous.configs:
        # Settings whose property ``outcome`` is False do not affect results.
        changeable |= names_with(config, "changeable") | names_with(config, "outcome", False)
    names_of_run = explicit_names & old_values.keys()  # without settings of the command line alone, such as ``config``
    folder = run_dir.run_folder_of(checkpoint.path)
    check_unchanged(names_of_run - changeable, old_values, new_values, folder)
    changes = {name: new_values[name] for name in changeable if name in explicit_names | by_flag}
    end_name = end_setting(previous.run.implementation)  # such as "epochs"
    user_limits_steps = "total_steps" in explicit_names and new_values["total_steps"] is not None
    if user_limits_steps and end_name != "total_steps":
        # From now on ``total_steps`` ends the run. The number of epochs of the interrupted run must not end it, so it
        # becomes the user's number, or null without one.
        changes[end_name] = new_values[end_name]
    changes["resume"] = False
    return dataclasses.replace(previous.replace(**changes), imports=settings.imports)


def check_unchanged(
    names: Iterable[str], old_values: Mapping[str, Any], new_values: Mapping[str, Any], folder: Path
) -> None:
    """Raise SettingError for each of the settings ``names`` with another value than in the run in ``folder``, to
    resume."""
    errors: list[SettingError] = []
    for name in sorted(names):
        if old_values[name] != new_values[name]:
            place = "" if errors else f" in {path_text(folder)}"
            old, new = as_word(old_values[name], ","), as_word(new_values[name], ",")
            line = f"{name} is {new}, but the run to resume{place} has {old}"
            errors.append(SettingError(f"{line}; leave it out, or start a new run without --resume", name))
    raise_all(errors)


def _conclude(module: RunModule, folder: Path, started: float, was_stopped: bool) -> bool:
    """Draw and film the results after a training, and print the summary: results, time since ``started``, paths, and
    commands to type next. ``was_stopped`` says that a signal ended the training. Return False after Ctrl-C."""
    lines: list[tuple[str, object]] = [("run", path_text(folder))]  # pairs (name, value) of the summary
    finished, training_end = True, Meter.seconds()
    try:
        if module.epoch > 0:
            for line in _results(module, folder):  # one by one, so that an interruption loses no finished line
                lines.append(line)
    except KeyboardInterrupt:
        finished = False
    runs = read_runs(folder / "metrics.csv")
    was_interrupted = was_stopped and not module.is_over()
    score_lines: list[tuple[str, str]] = []
    if isinstance(module, AgentModule) and math.isfinite(module.best):
        with contextlib.suppress(UserError):  # best.ckpt was deleted or damaged since it was written
            best_epoch = checkpoints.load(folder / "checkpoints" / "best.ckpt").run_state["epoch"]
            score_lines = [*_score_lines(module, runs, best_epoch)]
    conclusion = [*score_lines]
    if was_interrupted:
        conclusion.insert(0, ("training", _epochs_text(module, was_interrupted)))
    if conclusion:
        module.show_text("conclusion", "\n".join(f"- **{name}**: {text}" for name, text in conclusion))
    if not module.verbose:
        return finished
    seconds = runs[0].best(ELAPSED) if runs else training_end - started
    work_text = _work_text(module, was_interrupted, seconds, Meter.seconds() - training_end)
    print(paint(f"\n{wrap_text(work_text, sys.stdout)}", "bold", sys.stdout))
    if isinstance(module, AgentModule) and module.epoch:
        lines += score_lines
        if not module.gradient_steps:
            note("no gradient step was made, so the agent has its initial weights")
        if module.best == -math.inf and not module.settings.run.no_checkpoint:  # -inf before the first evaluation
            note(f"nothing was evaluated yet, as --eval_every is {module.validate_every} epochs: there is no best.ckpt")
    checkpoint_path = checkpoints.find_checkpoint(folder / "checkpoints")
    if checkpoint_path:
        lines.append(("checkpoint", checkpoint_path))
    has_agent = checkpoint_path is not None and isinstance(module, AgentModule)
    show_next(lines, _next_commands(module, folder, finished, has_agent), folder)
    return finished


def _next_commands(module: RunModule, folder: Path, finished: bool, has_agent: bool) -> list[Command]:
    """Return the commands to type after a run: to continue it, if that is useful, and to look at its results."""
    settings = module.settings
    commands: list[Command] = []
    can_continue = not (finished and module.is_over()) and (folder / run_dir.LAST_CHECKPOINT).exists()
    all_epochs_done = module.epochs is not None and module.epoch >= module.epochs
    if can_continue and not module.stop_reason():  # a run that reached its target is complete
        commands.append(resume_command(settings))
    elif all_epochs_done and module.epoch > 1 and not read_verdict(folder).get("solved", True):
        commands.append(resume_command(settings, generations=2 * module.epoch))  # a search may need more
    if settings.run.logger == "tensorboard":
        commands.append(("tensorboard", "--logdir", folder.parents[2]))  # the folder of all runs of the experiment
    if has_agent or (folder / PROXY_FILE).exists():
        commands.append(command(settings, "--eval_agent", folder))
    if (folder / "metrics.csv").exists():
        commands.append(command(settings, "--report", folder))
    return commands


def _score_lines(module: AgentModule, runs: Sequence[Run], best_epoch: int) -> Iterator[tuple[str, str]]:
    """Yield the lines ``(name, text)`` of the summary about scores. ``runs`` has the metrics of each seed. "best" is
    the score of best.ckpt, which was saved in ``best_epoch``. If this score is the greedy return and there were several
    evaluations, "last tenth" follows, the mean greedy return over the last tenth of the epochs, and for several seeds
    "solved", the steps at which they solved the environment."""
    loop = module.loop
    score_is_greedy = loop.score_tag == GREEDY
    greedy_returns = [run.points(GREEDY)[1] for run in runs if run.has(GREEDY)]  # [K] for each seed: K evaluations
    solved = solved_return(module.settings.run.gamename) if "return" in loop.score_name else None
    text = f"{loop.score_name} {best_text(module.best, best_epoch, solved, runs if score_is_greedy else ())}"
    if score_is_greedy and greedy_returns and len(greedy_returns[0]) > 1:
        yield "best", f"{text}; chosen from {len(greedy_returns[0])} evaluations"
        yield "last tenth", score_text(float(np.nanmean([run.last(GREEDY) for run in runs])), solved)
        steps = [] if solved is None else solved_steps(runs, GREEDY, solved)
        if steps and len(runs) > 1:
            yield "solved", f"by {len(steps)} of {len(runs)} seeds, at step {range_text(steps)}"
    elif greedy_returns and not score_is_greedy:
        best_greedy = float(np.mean([returns.max() for returns in greedy_returns]))
        yield "best", f"{text}; best greedy return {number_text(best_greedy)}"
    else:
        yield "best", text


def _epochs_text(module: RunModule, was_interrupted: bool) -> str:
    """Return the epochs of a run as text, such as ``20 epochs`` or ``interrupted after 20 of 100 epochs``."""
    if was_interrupted and module.epochs:
        return f"interrupted after {module.epoch:,} of {module.epochs:,} {module.unit}s"
    epochs = f"{module.epoch:,} {module.unit}" if module.epoch == 1 else f"{module.epoch:,} {module.unit}s"
    return f"interrupted after {epochs}" if was_interrupted else epochs


def _work_text(module: RunModule, was_interrupted: bool, seconds: float, seconds_after: float) -> str:
    """Return the epochs, steps and time of a run as text, such as ``20 epochs, 10,000 environment steps in 2 min 6 s,
    drawn in 9 s``. ``seconds`` is the time of the training, with its earlier parts if it was resumed. ``seconds_after``
    is the time of drawing, filming and evaluating after it (`_results`), which is left out below one second."""
    num_steps, kind_of_steps = module.steps_a_seed(), module.steps_kind
    if num_steps == 0 and isinstance(module, ProxyModule):  # a search without agents, by the proxies' targets
        num_steps, kind_of_steps = module.real_steps, "real"
    steps = f"{num_steps:,} {kind_of_steps} steps"
    if len(module.seeds) > 1:
        total = int(module.env_steps.sum())
        steps = f"{steps} of each of {len(module.seeds)} seeds ({total:,} in all)"
        if len(set(module.env_steps.tolist())) > 1:  # the seeds made different numbers of steps
            steps = f"a mean of {steps}"
    text = f"{_epochs_text(module, was_interrupted)}, {steps} in {time_in_words(seconds)}"
    if seconds_after < 1:
        return text
    is_evaluated = isinstance(module, ProxyModule) and module.is_over()  # an interrupted search has no winner
    work = "evaluated" if is_evaluated else "drawn"
    if module.settings.run.record and (is_evaluated or isinstance(module, AgentModule)):
        work += " and filmed"
    return f"{text}, {work} in {time_in_words(seconds_after)}"


def _results(module: RunModule, folder: Path) -> Iterator[tuple[str, object]]:
    """Draw the learning curve, film the best agent and, for a search, choose and evaluate the best proxy. Yield a pair
    ``(name, value)`` for each line of the summary."""
    if isinstance(module, ProxyModule):
        yield from finish_search(module, folder)
        return
    assert isinstance(module, AgentModule)
    run = module.settings.run
    if module.epoch > 1 and (folder / "metrics.csv").exists():  # the curve of one epoch is a point
        announce(module, "drawing the learning curve")
        yield from draw_curve(module, folder)
    if module.is_over():
        # These files are about the last weights. Below, the weights of the best checkpoint replace them.
        for line in write_outputs(module.settings, module.agents, folder):
            yield "output", line
    if not run.record:
        return
    video = folder / "videos" / "final.mp4"
    best_checkpoint = folder / "checkpoints" / "best.ckpt"
    weights = "last"
    if best_checkpoint.exists():
        module.load_weights(checkpoints.load(best_checkpoint))
        weights = "best"
    seed_text = filmed_seed_text(module.seeds)  # empty for a single agent
    filmed_agent = f"{seed_text} of the {weights} agents" if seed_text else f"the {weights} agent"
    episodes = run.record_episodes
    try:
        announce(module, f"filming {filmed_agent}")
        with progress("filming", module.verbose) as watch:
            returns = film(module.loop, run, video, "final video", episodes=episodes, with_gif=True, watch=watch)
        module.show_image("film", video.with_suffix(".gif"))
        yield "video", f"{path_text(video, folder)}, .gif ({filmed_agent}, greedy: {returns_text(returns)})"
    except UserError as error:
        warning(f"no video: {error}")
