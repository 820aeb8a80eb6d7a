"""A training run from start to summary: folder, module, Lightning's trainer, and what is said at the end."""

import logging
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch

from control.cli.settings import RunConfig, Settings, as_dict, to_yaml
from control.lightning import episodes as agent_module
from control.lightning import steps as step_module
from control.lightning.callbacks import Checkpoints, RunLog
from control.lightning.module import RunModule
from control.lightning.progress import Progress
from control.loops.process import settle
from control.storage import checkpoints, run_dir
from control.storage.checkpoints import AtomicCheckpointIO, Checkpoint
from models.registry import family, learns_from
from models.settings import SettingError

# What a resumed run may change: how long, how often, and what is shown; never what is learned.
# Families add their own (`changeable`).
CHANGEABLE = (
    "epochs", "generations", "target_return", "checkpoint_every", "no_checkpoint", "recording_epoch_interval",
    "record_n_rollouts_per_epoch", "record", "print_statements", "num_workers", "resume", "logdir", "display",
    "accelerator", "num_threads",
)  # fmt: skip


def train(settings: Settings, extra_callbacks: tuple[pl.Callback, ...] = ()) -> int:
    """Train as `settings` say and print where everything is. Returns 0, or 130 where Ctrl-C ended it."""
    prepare(settings.run)
    folder = _find_resumable(settings)
    if folder:
        with run_dir.locked(folder):  # before reading: nobody may write on while this run makes up its mind
            checkpoint = checkpoints.load(folder / "checkpoints" / "last.ckpt", resume=True)
            module = build_module(_resumed_settings(settings, checkpoint))
            return _fit(module, folder, checkpoint, extra_callbacks)
    weights = checkpoints.load(settings.run.reload) if settings.run.reload else None
    module = build_module(settings.replace(resume=False))
    if weights:
        _reload(module, weights)
    folder = run_dir.create(settings.run)
    with run_dir.locked(folder):
        return _fit(module, folder, None, extra_callbacks)


def _fit(
    module: RunModule, folder: Path, checkpoint: Checkpoint | None, extra_callbacks: tuple[pl.Callback, ...]
) -> int:
    settings = module.settings
    run = settings.run
    done = checkpoint.run_state["epoch"] if checkpoint else None
    if done is None or done < module.epochs:  # of a run that is over the file says how it came about
        run_dir.atomic_write_text(folder / "config.yaml", to_yaml(settings))
    print(
        f"{run.implementation} on {run.gamename}, seed {_seeds(module)}: {folder}"
        + (f" (resuming after epoch {done})" if checkpoint else "")
    )
    started = time.monotonic()
    stop = StopOnSignal()
    shown: list[pl.Callback] = [Progress(), Recorder(folder)]
    try:
        with stop:
            fit(module, folder, [*shown, *extra_callbacks, stop], checkpoint)
    except StopNow:
        raise KeyboardInterrupt from None
    finished = _after(module, folder, time.monotonic() - started)
    module.close()
    return 0 if finished and not stop.asked else 130


def fit(
    module: RunModule,
    folder: Path,
    callbacks: Sequence[pl.Callback],
    checkpoint: Checkpoint | None = None,
    after: Sequence[pl.Callback] = (),
) -> None:
    """Train `module` to its last epoch, from `checkpoint` where one is given; metrics and checkpoints go to `folder`.

    In every epoch the module's own callbacks act first, then `callbacks`, then the log, then the checkpoints, then
    those in `after`, which Lightning must know as checkpoints too.
    """
    run = module.settings.run
    done = checkpoint.run_state["epoch"] if checkpoint else None
    log = RunLog(folder, module.seeds, done)
    saving = [] if run.no_checkpoint else [Checkpoints(folder / "checkpoints", run.checkpoint_every)]
    trainer = pl.Trainer(
        max_epochs=module.epochs, accelerator=run.accelerator, devices=1, logger=False,
        callbacks=[*module.callbacks(), *callbacks, log, *saving, *after],
        plugins=[AtomicCheckpointIO()],
        enable_checkpointing=bool(saving or after), enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0, check_val_every_n_epoch=module.eval_every, default_root_dir=folder,
    )  # fmt: skip
    if checkpoint:  # Lightning would restore only to train on
        module.load_state_dict(checkpoint.content["state_dict"])
        module.on_load_checkpoint(checkpoint.content)
    if not checkpoint or not module.is_over():
        trainer.fit(module, ckpt_path=checkpoint.path if checkpoint else None, weights_only=True)
    log.finish(module)


def build_module(settings: Settings) -> RunModule:
    """The module of a run with its environments; SettingError where agent and environment do not fit."""
    way = learns_from(settings.run.implementation)
    _check_accelerator(settings)
    if way == "evolution":
        from control.lightning.population import build

        return build(settings)
    return step_module.build(settings) if way == "steps" else agent_module.build(settings)


def _check_accelerator(settings: Settings) -> None:
    run = settings.run
    if run.accelerator == "cpu":
        return
    if run.accelerator not in family(run.implementation).accelerators:
        raise SettingError(f"accelerator is {run.accelerator!r}; allowed for {run.implementation}: cpu", "accelerator")
    if not torch.cuda.is_available():
        raise SettingError(
            f"accelerator is {run.accelerator!r}, but torch {torch.__version__} finds no GPU; allowed here: cpu",
            "accelerator",
        )


class StopNow(BaseException):
    """The second Ctrl-C. Lightning would answer a KeyboardInterrupt with exit status 1."""


class StopOnSignal(pl.Callback):
    """Ctrl-C and SIGTERM end the run after the epoch under way, with a checkpoint; a second Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise StopNow
        self.asked = True
        print("\nstopping after this epoch; once more to stop at once", file=sys.stderr, flush=True)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        # Lightning has put a handler around ours by now that would end the run without its summary.
        signal.signal(signal.SIGTERM, self._ask)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self.asked:
            trainer.should_stop = True


class Recorder(pl.Callback):
    """Videos of greedy episodes every `recording_epoch_interval` epochs."""

    def __init__(self, folder: Path):
        self.folder = folder

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, RunModule)
        run = module.settings.run
        every = run.recording_epoch_interval
        if every <= 0 or module.epoch % every or not module.can_play:
            return
        for i in range(run.record_n_rollouts_per_epoch):
            path = self.folder / "videos" / f"epoch_{module.epoch:04d}_{i}.mp4"
            module.film(path, f"video {i} of epoch {module.epoch}")


def _find_resumable(settings: Settings) -> Path | None:
    """With --resume, the newest run of this folder. None where it ended before its first checkpoint: an older one is
    another run."""
    if not settings.run.resume:
        return None
    older: list[Path] = run_dir.versions(run_dir.parent(settings.run))
    having = [folder for folder in older if (folder / "checkpoints" / "last.ckpt").exists()]
    if older and older[-1] not in having:
        kept = f"; {having[-1].name}, which has one, is another run and stays as it is" if having else ""
        print(f"{older[-1].name} ended before its first checkpoint, so this starts anew{kept}")
        return None
    return older[-1] if older else None


def _resumed_settings(settings: Settings, checkpoint: Checkpoint) -> Settings:
    """The settings of the interrupted run, with what may change taken from now; SettingError where more was asked
    to."""
    before, now = as_dict(checkpoint.settings), as_dict(settings)
    own = family(checkpoint.settings.run.implementation)
    changeable = CHANGEABLE + own.changeable(checkpoint.settings.agent)
    for name in sorted(settings.given - set(changeable)):
        if name in before and before[name] != now[name]:
            raise SettingError(
                f"{name} is {now[name]!r}, but the run to resume has {before[name]!r}; leave it out, or start a "
                "new run without --resume"
            )
    changes = {name: now[name] for name in changeable if name in settings.given or name == "logdir"}
    return checkpoint.settings.replace(**changes | {"resume": False})


def _reload(module: RunModule, checkpoint: Checkpoint) -> None:
    """Only the weights, as --reload always meant: no optimiser, memory or counters."""
    weights, own = checkpoint.content["state_dict"], module.state_dict()
    shapes = {name: (tuple(weights[name].shape), tuple(own[name].shape)) for name in own if name in weights}
    if set(own) != set(weights) or any(theirs != ours for theirs, ours in shapes.values()):
        raise SettingError(
            f"reload is {str(checkpoint.path)!r}, of {checkpoint.settings.run.implementation} on "
            f"{checkpoint.settings.run.gamename}, whose networks are others; allowed: a checkpoint with the same "
            "network settings, spaces and num_seeds"
        )
    module.load_state_dict(weights)


def _after(module: RunModule, folder: Path, seconds: float) -> bool:
    """What the module still has to do, and the summary a person reads at the end: what came out, where it is, what to
    type next. False where Ctrl-C cut the former short."""
    lines: list[tuple[str, object]] = []
    try:
        for line in module.finish(folder):
            lines.append(line)
        finished = True
    except KeyboardInterrupt:
        finished = False
    kept = checkpoints.kept(folder)
    spent = f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.0f} seconds"
    count = f"{module.epoch} {module.unit}{'s' * (module.epoch != 1)}"
    print(f"\n{count}, {int(module.env_steps.sum()):,} {module.steps_on} steps in {spent}")
    for name, value in [("run", folder), *lines]:
        print(f"  {name:<12}{value}")
    if kept is not None:
        print(f"  {'checkpoint':<12}{kept}")
    python = _python()
    print("next:")
    print(f"  {python} -m tensorboard.main --logdir {module.settings.run.logdir}")
    for command in module.next_commands(folder):
        print(f"  {python} {command}")
    if not module.is_over():
        print(f"  the same command with --resume goes on from {module.unit} {module.epoch}")
    elif not finished:
        print("  the same command with --resume does what is left after training")
    return finished


def _python() -> str:
    """The interpreter as one would type it here: ``.venv/bin/python``, or ``python`` where it is not below this
    folder."""
    executable = Path(sys.executable)
    return str(executable.relative_to(Path.cwd())) if executable.is_relative_to(Path.cwd()) else "python"


def _seeds(module: RunModule) -> str:
    first, last = module.seeds[0], module.seeds[-1]
    return str(first) if first == last else f"{first} to {last}"


def prepare(run: RunConfig | None = None) -> None:
    """Settings of this process, before anything is computed in it."""
    run = run or RunConfig()
    settle(run.num_threads, run.matmul_precision)
    # Lightning's advice is about data loaders and loggers that are as they are on purpose.
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    warnings.filterwarnings(
        "ignore", category=UserWarning, message=".*(dataloader|num_workers|DataLoader|pkg_resources).*"
    )
