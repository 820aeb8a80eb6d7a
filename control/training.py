"""A training run from start to summary: folder, module, Lightning's trainer, and what is said at the end."""

import logging
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch

from control import checkpoints, run_dir
from control.agent_module import AgentModule
from control.checkpoints import AtomicCheckpointIO, Checkpoint
from control.logs import Checkpoints, RunLog
from control.progress import Progress
from control.recording import record
from control.run_config import Settings, as_dict, to_yaml
from envs.make import make_environment
from models.agents import agent_class
from models.settings import SettingError, UserError
from models.streams import Streams

# What a resumed run may change: how long, how often, and what is shown; never what is learned.
CHANGEABLE = (
    "epochs", "target_return", "checkpoint_every", "no_checkpoint", "recording_epoch_interval", "num_workers",
    "record_n_rollouts_per_epoch", "record", "print_statements", "resume", "logdir", "display",
)  # fmt: skip


def train(settings: Settings, extra_callbacks: tuple[pl.Callback, ...] = ()) -> int:
    """Train as `settings` say and print where everything is. Returns 0, or 130 where Ctrl-C ended it."""
    torch.set_num_threads(1)
    quiet()
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
    module: AgentModule, folder: Path, checkpoint: Checkpoint | None, extra_callbacks: tuple[pl.Callback, ...]
) -> int:
    settings = module.settings
    run = settings.run
    run_dir.atomic_write_text(folder / "config.yaml", to_yaml(settings))
    done = checkpoint.run_state["epoch"] if checkpoint else None
    print(
        f"{run.implementation} on {run.gamename}, seed {_seeds(module)}: {folder}"
        + (f" (resuming after epoch {done})" if checkpoint else "")
    )
    started = time.monotonic()
    stop = StopOnSignal()
    shown: list[pl.Callback] = [Progress(run.epochs, run.target_return, bool(run.print_statements)), Recorder(folder)]
    try:
        with stop:
            fit(module, folder, [*shown, *extra_callbacks, stop], checkpoint)
    except StopNow:
        raise KeyboardInterrupt from None
    finished = _after(module, folder, time.monotonic() - started)
    module.environment.close()
    return 0 if finished and not stop.asked else 130


def fit(
    module: AgentModule,
    folder: Path,
    callbacks: Sequence[pl.Callback],
    checkpoint: Checkpoint | None = None,
    after: Sequence[pl.Callback] = (),
) -> None:
    """Train `module` to its last epoch, from `checkpoint` where one is given; metrics and checkpoints go to `folder`.

    In every epoch `callbacks` act first, then the log, then the checkpoints, then those in `after`, which Lightning
    must know as checkpoints too.
    """
    run = module.settings.run
    done = checkpoint.run_state["epoch"] if checkpoint else None
    log = RunLog(folder, module.seeds, done)
    saving = [] if run.no_checkpoint else [Checkpoints(folder / "checkpoints", run.checkpoint_every)]
    trainer = pl.Trainer(
        max_epochs=run.epochs, accelerator="cpu", devices=1, logger=False, callbacks=[*callbacks, log, *saving, *after],
        plugins=[AtomicCheckpointIO()],
        enable_checkpointing=bool(saving or after), enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0, check_val_every_n_epoch=run.eval_every, default_root_dir=folder,
    )  # fmt: skip
    if done is None or done < run.epochs:
        trainer.fit(module, ckpt_path=checkpoint.path if checkpoint else None, weights_only=True)
    elif checkpoint:
        module.load_state_dict(checkpoint.content["state_dict"])
        module.on_load_checkpoint(checkpoint.content)
    log.finish(module)


def build_module(settings: Settings) -> AgentModule:
    """The module of a run with its environments; SettingError where agent and environment do not fit."""
    run, config = settings.run, settings.agent
    rows = max(config.training_rollouts_per_worker, run.eval_episodes)
    environment = make_environment(run.gamename, run.num_seeds, rows, run.num_workers, time_limit=run.time_limit)
    kinds = agent_class(run.implementation).action_kinds
    if not isinstance(environment.spaces.actions, kinds):
        given = type(environment.spaces.actions).__name__.lower()
        able = " or ".join(kind.__name__.lower() for kind in kinds)
        environment.close()
        raise SettingError(
            f"gamename is {run.gamename!r}, whose actions are {given}; {run.implementation} takes {able} actions"
        )
    return AgentModule(settings, environment)


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
        assert isinstance(module, AgentModule)
        run = module.settings.run
        if run.recording_epoch_interval > 0 and module.epoch % run.recording_epoch_interval == 0:
            # seeds of its own: a run that records learns the same as one that does not
            streams = Streams.named(module.seeds, f"video of epoch {module.epoch}")
            for i in range(run.record_n_rollouts_per_epoch):
                path = self.folder / "videos" / f"epoch_{module.epoch:04d}_{i}.mp4"
                record(module.agent, run.gamename, path, streams, command=module.settings.command)


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
    for name in sorted(settings.given - set(CHANGEABLE)):
        if name in before and before[name] != now[name]:
            raise SettingError(
                f"{name} is {now[name]!r}, but the run to resume has {before[name]!r}; leave it out, or start a "
                "new run without --resume"
            )
    changes = {name: now[name] for name in CHANGEABLE if name in settings.given or name == "logdir"}
    return checkpoint.settings.replace(**changes | {"resume": False})


def _reload(module: AgentModule, checkpoint: Checkpoint) -> None:
    """Only the weights, as --reload always meant: no optimiser, memory or counters."""
    weights = checkpoint.agent_state()
    own = module.agent.state_dict()
    shapes = {name: (tuple(weights[name].shape), tuple(own[name].shape)) for name in own if name in weights}
    if set(own) != set(weights) or any(theirs != ours for theirs, ours in shapes.values()):
        raise SettingError(
            f"reload is {str(checkpoint.path)!r}, a {checkpoint.settings.run.implementation} on "
            f"{checkpoint.settings.run.gamename} whose "
            "networks have other shapes; allowed: a checkpoint with the same network settings, spaces and num_seeds"
        )
    module.agent.load_state_dict(weights)


def _after(module: AgentModule, folder: Path, seconds: float) -> bool:
    """Figure and video, and the summary a person reads at the end: what came out, where it is, what to type next.
    False where Ctrl-C cut the figure or the video short."""
    run = module.settings.run
    lines: list[tuple[str, object]] = []
    try:
        for line in _pictures(module, folder):
            lines.append(line)
        finished = True
    except KeyboardInterrupt:
        finished = False
    best = folder / "checkpoints" / "best.ckpt"
    kept = best if best.exists() else folder / "checkpoints" / "last.ckpt"
    spent = f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.0f} seconds"
    print(f"\n{module.epoch} epochs, {int(module.env_steps.sum()):,} environment steps in {spent}")
    for name, value in [("run", folder), *lines]:
        print(f"  {name:<12}{value}")
    if kept.exists():
        print(f"  {'checkpoint':<12}{kept}")
    python = _python()
    print("next:")
    print(f"  {python} -m tensorboard.main --logdir {run.logdir}")
    if kept.exists():
        print(f"  {python} trainer.py --eval_agent {kept}")
        print(f"  {python} trainer.py --eval_agent {kept} --num_eval_episodes 1 --record")
    if module.epoch < run.epochs:
        print(f"  the same command with --resume goes on from epoch {module.epoch}")
    return finished


def _pictures(module: AgentModule, folder: Path) -> Iterator[tuple[str, str]]:
    """Make the run's figure and, if wanted, its final video; yields what the summary says of each."""
    from control.plotting import learning_curve

    if module.epoch == 0:
        return
    run = module.settings.run
    if (folder / "metrics.csv").exists():
        yield "figure", str(learning_curve(folder))
    if run.record:
        video, best = folder / "videos" / "final.mp4", folder / "checkpoints" / "best.ckpt"
        streams = Streams.named(module.seeds, "final video")
        if best.exists():
            module.agent.load_state_dict(checkpoints.load(best).agent_state())
        try:
            total = record(module.agent, run.gamename, video, streams, command=module.settings.command)
            yield "video", f"{video} (the best agent, greedy; return {total:.0f})"
        except UserError as error:
            print(f"warning: no video: {error}")


def _python() -> str:
    """The interpreter as one would type it here: ``.venv/bin/python``, or ``python`` where it is not below this
    folder."""
    executable = Path(sys.executable)
    return str(executable.relative_to(Path.cwd())) if executable.is_relative_to(Path.cwd()) else "python"


def _seeds(module: AgentModule) -> str:
    first, last = module.seeds[0], module.seeds[-1]
    return str(first) if first == last else f"{first} to {last}"


def quiet() -> None:
    """Lightning's advice is about data loaders and loggers that are as they are on purpose."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    warnings.filterwarnings(
        "ignore", category=UserWarning, message=".*(dataloader|num_workers|DataLoader|pkg_resources).*"
    )
