"""The base of every LightningModule here: what a run is, reports and keeps, whatever it is that learns."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from control.cli.settings import RunConfig, Settings, as_dict
from control.loops.recording import record
from control.reports.tags import GREEDY
from control.storage import checkpoints
from control.storage.checkpoints import FORMAT, OURS
from envs.make import make_environment
from models.contract import Agent, Policy
from models.settings import SettingError, UserError
from models.spaces import Spaces
from models.streams import Streams

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class RunModule(pl.LightningModule):
    """M members of one run, with seeds ``seeds [M]``; training, logging and checkpoints know only this class.

    A Lightning epoch has one batch, so that Lightning's cost is paid once an epoch. A subclass trains an epoch in
    `training_step`, where it sets ``epoch`` and begins a new ``row``, and evaluates in `validation_step`. ``row`` is
    what the epoch measured, ``{tag: [M]}``, NaN where there was nothing to measure; ``env_steps [M]`` and
    ``gradient_steps`` count from the start of the run, ``best`` is the best `score` so far.
    """

    unit = "epoch"  # what the progress bar counts
    steps_on = "environment"  # what `env_steps` are steps of
    advice = Agent.advice
    can_play = True  # whether `policy` gives one

    def __init__(self, settings: Settings, seeds: list[int]):
        super().__init__()
        self.automatic_optimization = False
        self.settings, self.seeds = settings, seeds
        self.row: dict[str, Tensor] = {}
        self.epoch = 0  # of the row being collected; survives a resume as Lightning's own counter does
        self.epochs_before = 0  # done when this process took over
        self.env_steps = torch.zeros(len(seeds), dtype=torch.int64)
        self.gradient_steps = 0
        self.best = -math.inf
        self.keep_memory = True  # whether the checkpoint about to be written must serve --resume
        self._warned: set[str] = set()

    # -- what a subclass may say otherwise ------------------------------------------------------------------------

    @property
    def epochs(self) -> int:
        return self.settings.epochs

    def is_over(self) -> bool:
        """Whether nothing is left to train."""
        return self.epoch >= self.epochs

    @property
    def eval_every(self) -> int:
        """Epochs between evaluations."""
        return self.settings.schedule.eval_every

    @property
    def target(self) -> float | None:
        """The `score` that ends the run."""
        return self.settings.run.target_return

    def score(self) -> float | None:
        """What best.ckpt and the target go by in this epoch; None where nothing was evaluated."""
        greedy = self.row.get(GREEDY)
        return None if greedy is None else float(greedy.mean())

    @property
    def score_name(self) -> str:
        """What `score` is, in words."""
        return "greedy return"

    def is_evaluated(self) -> bool:
        """Whether this epoch ended with an evaluation."""
        return self.score() is not None

    def headline(self) -> str:
        """Short text for the progress bar."""
        return ""

    def report(self) -> list[str] | None:
        """Parts of this epoch's printed line; None prints nothing."""
        return [self.steps_text()] if self.has_something_to_say() else None

    def figures(self) -> dict[str, list["Figure"]]:
        """Figures for TensorBoard that are due in this epoch, one a member."""
        return {}

    def histograms(self) -> dict[str, Tensor]:
        """Numbers of the first member whose distribution TensorBoard shows, taken at evaluations."""
        return {}

    def own_state(self) -> dict[str, Any]:
        """What a resumed run needs beyond weights and the fields above; it lies beside those in checkpoints."""
        return {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Take up what `own_state` gave; ``state`` holds the other fields too."""

    def callbacks(self) -> list[pl.Callback]:
        """The module's own; they act before all others."""
        return []

    def policy(self, streams: Streams, sample: bool = False) -> Policy | None:
        """Of the first members, for one episode each; ``streams`` are one a member. None where nothing can play."""
        return None

    def finish(self, folder: Path) -> Iterator[tuple[str, object]]:
        """What is left to do after the last epoch; yields names and values of lines for the summary."""
        from control.reports.figures import learning_curve

        if self.epoch == 0:
            return
        if (folder / "metrics.csv").exists():
            yield "figure", learning_curve(folder)
        if self.settings.run.record and self.can_play:
            video, best = folder / "videos" / "final.mp4", folder / "checkpoints" / "best.ckpt"
            if best.exists():
                self.load_state_dict(checkpoints.load(best).content["state_dict"])
            try:
                yield "video", f"{video} (the best agent, greedy; return {self.film(video, 'final video'):.0f})"
            except UserError as error:
                print(f"warning: no video: {error}")

    def next_commands(self, folder: Path) -> list[str]:
        """What to type next, after the name of the interpreter."""
        kept = checkpoints.kept(folder)
        if kept is None:
            return []
        return [f"trainer.py --eval_agent {kept}", f"trainer.py --eval_agent {kept} --num_eval_episodes 1 --record"]

    def close(self) -> None:
        """Close the environments and end the processes that are the module's."""

    # -- Lightning's hooks ----------------------------------------------------------------------------------------

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return []

    def train_dataloader(self) -> DataLoader:
        return DataLoader([0])  # type: ignore[arg-type]  # a list is a dataset

    val_dataloader = train_dataloader

    def on_train_start(self) -> None:
        self.epochs_before = self.epoch

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[OURS] = {
            "format": FORMAT, "settings": as_dict(self.settings), "seeds": self.seeds, "epoch": self.epoch,
            "env_steps": self.env_steps, "gradient_steps": self.gradient_steps, "best": self.best,
            "whole": self.keep_memory,
        } | self.own_state()  # fmt: skip

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        ours = checkpoint[OURS]
        self.epoch, self.gradient_steps, self.best = ours["epoch"], ours["gradient_steps"], ours["best"]
        self.env_steps = ours["env_steps"]
        self.load_own_state(ours)

    # -- for subclasses -------------------------------------------------------------------------------------------

    def has_something_to_say(self) -> bool:
        """At evaluations, in the first epoch of a process, and always where more is to be printed."""
        first = self.epoch == self.epochs_before + 1
        return first or self.is_evaluated() or self.settings.run.print_statements > 0

    def steps_text(self) -> str:
        steps = int(self.env_steps.sum())
        return f"{steps:,} steps" if steps < 100_000 else f"{steps / 1e6:.2f} M steps"

    def film(self, path: Path, name: str) -> float:
        """Write a video of one greedy episode of the first member and return its return. Seeds come from ``name``
        alone: a run that records learns the same as one that does not."""
        run, streams = self.settings.run, Streams.named(self.seeds, name)
        policy = self.policy(streams.fork())
        assert policy is not None
        return record(policy, run.gamename, path, streams.episode_seeds(1)[: policy.members], run.time_limit)

    def _time(self, name: str, seconds: float) -> None:
        self.row[f"time/{name}"] = torch.full((len(self.seeds),), seconds)

    def _warn_of_loss(self, what: str, loss: Tensor, measured: Tensor | None = None) -> None:
        """Of ``loss [M]`` that is not finite, among those ``measured [M]`` bool."""
        told = [True] * len(self.seeds) if measured is None else measured.tolist()
        for seed, value, tell in zip(self.seeds, loss.tolist(), told, strict=True):
            if tell and not math.isfinite(value):
                self._warn_once(f"seed {seed}: the {what} is {value} since epoch {self.epoch}; {self.advice}")

    def _check_weights(self, sound: Tensor) -> None:
        """Warn of members that are not ``sound [M]`` bool; UserError where none is."""
        for seed, fine in zip(self.seeds, sound.tolist(), strict=True):
            if not fine:
                self._warn_once(f"seed {seed}: weights are no longer finite (epoch {self.epoch}); it cannot recover")
        if not sound.any():
            raise UserError(
                f"the weights are no longer finite (epoch {self.epoch}), so training stops; earlier checkpoints are "
                f"kept: {self.advice}"
            )

    def _warn_once(self, text: str) -> None:
        key = text.split(" (")[0].split(" since")[0]
        if key not in self._warned:
            self._warned.add(key)
            print(f"warning: {text}", flush=True)


def seeds_of(run: RunConfig) -> list[int]:
    """The seeds of a run's members."""
    return [run.seed + member for member in range(run.num_seeds)]


def finite(parameters: Iterable[Tensor], members: int) -> Tensor:
    """Which members have nothing but finite numbers in ``parameters``, each ``[M, D]``: ``[M]`` bool."""
    sound = torch.ones(members, dtype=torch.bool)
    for weights in parameters:
        sound &= torch.isfinite(weights.detach().sum(1)).cpu()
    return sound


def spaces_of(game: str) -> Spaces:
    """What a game shows and takes, without an environment that stays open."""
    environment = make_environment(game, 1, 1)
    environment.close()
    return environment.spaces


def check_actions(
    run: RunConfig, spaces: Spaces, agent: type[Agent], close: Callable[[], None] = lambda: None, name: str = ""
) -> None:
    """SettingError, after ``close``, where class ``agent`` cannot choose the game's actions. ``name`` is the
    implementation that acts, where that is not the run's own."""
    kinds = agent.action_kinds
    if not isinstance(spaces.actions, kinds):
        close()
        given = type(spaces.actions).__name__.lower()
        able = " or ".join(kind.__name__.lower() for kind in kinds)
        acts = name or run.implementation
        raise SettingError(f"gamename is {run.gamename!r}, whose actions are {given}; {acts} takes {able} actions")


def check_command(settings: Settings, followed: Collection[str], close: Callable[[], None] = lambda: None) -> None:
    """SettingError, after ``close``, where a command is given that is not among those ``followed``."""
    unknown = [f"command.{name}" for name in settings.command if name not in followed]
    if unknown:
        close()
        able = ", ".join(followed) or "no command"
        raise SettingError(f"{', '.join(unknown)} has no effect: {settings.run.implementation} here follows {able}")


def rounds(episodes: int, envs: int) -> list[int]:
    """`episodes` in rounds of at most `envs`."""
    return [min(envs, episodes - done) for done in range(0, episodes, envs)]
