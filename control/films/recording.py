"""Films of agents in rendered environments, alone or side by side: an mp4 at the speed of the environment, and
optionally a GIF beside it."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from control.cli.progress import Watch, progress
from control.cli.settings import RunConfig
from control.films.encoding import encoder, gif, mp4
from control.films.pictures import GAP, Frame, captioned, enlarged, letters, side_by_side
from control.loops.loop import Loop
from control.storage.run_dir import home
from envs.make import make_environment
from models.contract import Policy
from models.settings import SettingError, UserError
from models.streams import Streams

_LONGEST = 10_000  # steps of an episode, after which it is cut: some environments have no end
_PAUSE = 1.8  # seconds of the last picture of an episode
_SPEED, _STILL = 150.0, 90  # pictures drawn and encoded in a second, nearly, and those at the end of most episodes


@dataclass(frozen=True)
class Actor:
    """A filmed agent. ``begin()`` makes a policy for the next episode, whose first member is filmed. ``caption`` is
    printed below the pictures."""

    begin: Callable[[], Policy]
    caption: str = ""


def check_recording(run: RunConfig) -> None:
    """Raise SettingError if the run is to be filmed and cannot be, before anything is trained or played."""
    setting = next((name for name in ("record", "recording_epoch_interval") if getattr(run, name) > 0), "")
    if setting:
        check_film(
            run.gamename, run.time_limit, setting, f"{str(getattr(run, setting)).lower()}, but ", "; leave it out"
        )


def check_film(game: str, time_limit: int | None, setting: str, prefix: str = "", suffix: str = "") -> None:
    """Raise SettingError about ``setting`` if a game cannot be rendered or ffmpeg is missing."""
    try:
        environment: Any = make_environment(game, 1, 1, render=True, time_limit=time_limit)
        with contextlib.closing(environment):
            environment.reset(torch.zeros(1, 1, dtype=torch.int64))
            environment.frame(0, 0)
        encoder()
    except UserError as error:
        # Errors of the game that have nothing to do with films are raised unchanged.
        make_environment(game, 1, 1, time_limit=time_limit).close()
        line = f"{prefix}{str(error).removeprefix('record: ')}{suffix}"
        raise SettingError(f"{setting} is {line}" if prefix else f"{setting}: {line}", setting) from error


def film_evaluation(loop: Loop, run: RunConfig, checkpoint: Path, stem: str, name: str, sample: bool) -> str:
    """Film the first member of a ``checkpoint`` in a new file of its run, and return a line with the path: one episode,
    or with ``record`` `record_episodes` and a GIF. ``name`` seeds the episodes, as in `film`. UserError with ``record``
    if there can be no film; without it, the line is a note."""
    path = new_film(checkpoint, f"eval_{stem}")
    try:
        with progress("filming") as watch:
            returns = film(loop, run, path, name, sample, run.record_episodes if run.record else 1, run.record, watch)
    except (UserError, OSError) as error:
        if run.record:
            raise
        return f"note: no film ({error})"
    acting = ", ".join(filter(None, [filmed_seed(loop.seeds), "drawn actions" if sample else "greedy"]))
    gif_line = f"\nGIF:   {path.with_suffix('.gif')}" if run.record else ""
    return f"video: {path} ({acting}: {returns_text(returns)}){gif_line}"


def new_film(checkpoint: Path, stem: str) -> Path:
    """The next ``STEM_N.mp4`` in the videos of the run, or beside a ``checkpoint`` that was moved elsewhere."""
    folder = checkpoint.parent if home(checkpoint) == checkpoint.parent else home(checkpoint) / "videos"
    return next(path for number in itertools.count() if not (path := folder / f"{stem}_{number}.mp4").exists())


def film_seconds(run: RunConfig, length: float | None) -> float:
    """Estimated seconds to film a run whose episodes have ``length`` steps; 0 without a film."""
    return run.record * run.record_episodes * ((length or 0) + _STILL) / _SPEED


def film(
    loop: Loop,
    run: RunConfig,
    path: Path,
    name: str,
    sample: bool = False,
    episodes: int = 1,
    small: bool = False,
    watch: Watch | None = None,
) -> list[float]:
    """Write a video of ``episodes`` of the first member, and with ``small`` a GIF beside it. Returns their returns.
    Seeds depend on ``name`` alone, so that filming does not change training. ``watch`` gets the progress."""
    streams, forks = Streams.from_name(loop.seeds, name), Streams.from_name(loop.seeds, f"{name}, actions")
    seeds = streams.episode_seeds(episodes)[0].tolist()
    actor = Actor(lambda: loop.policy(forks.fork(), sample), filmed_seed(loop.seeds))
    return record([actor], run.gamename, path, seeds, run.time_limit, small, watch)[0]


def record(
    actors: Sequence[Actor],
    game: str,
    path: Path,
    seeds: Sequence[int],
    time_limit: int | None = None,
    small: bool = False,
    watch: Watch | None = None,
) -> list[list[float]]:
    """Write a film of ``actors`` side by side to ``path`` (mp4): one episode after another, each from one of ``seeds``
    for all actors. Actors whose episode has ended wait for the others. With ``small`` also write a GIF beside it.
    ``watch`` gets the progress after each episode. Returns the returns of each actor. Raises UserError if ffmpeg is
    missing or the environment cannot be rendered."""
    with contextlib.ExitStack() as stack:
        stages = [_Stage(actor, game, time_limit, len(actors), stack) for actor in actors]
        speed = stages[0].frames_per_second
        with mp4(path, speed) as add:
            for number, seed in enumerate(seeds):
                heading = f"episode {number + 1} of {len(seeds)}" if len(seeds) > 1 else "one episode"
                for stage in stages:
                    stage.start(seed, heading)
                add(side_by_side([stage.picture() for stage in stages]))
                remaining_frames = max(1, round(_PAUSE * speed))  # pictures, after the last step
                while remaining_frames:
                    remaining_frames -= all(stage.done for stage in stages)
                    for stage in stages:
                        stage.advance()
                    add(side_by_side([stage.picture() for stage in stages]))
                if watch is not None:
                    watch((number + 1) / len(seeds))
    if small:
        gif(path)
    return [stage.returns for stage in stages]


def filmed_seed(seeds: Sequence[int]) -> str:
    """Text that names the seed that `film` shows; empty for a single seed."""
    return f"seed {seeds[0]}" if len(seeds) > 1 else ""


def returns_text(returns: Sequence[float]) -> str:
    """The number of filmed episodes and their returns, in words."""
    if len(returns) == 1:
        return f"one episode, return {returns[0]:.0f}"
    return f"{len(returns)} episodes, returns {', '.join(f'{episode_return:.0f}' for episode_return in returns)}"


class _Stage:
    """One of ``count`` actors in a separate environment, which has a row for each member of the actor's policy."""

    def __init__(self, actor: Actor, game: str, time_limit: int | None, count: int, stack: contextlib.ExitStack):
        self.actor, self.returns, self._count = actor, list[float](), count
        self.policy = actor.begin()
        members = self.policy.members
        environment: Any = make_environment(game, members, 1, render=True, time_limit=time_limit)  # it has `frame`
        stack.callback(environment.close)
        self.environment = environment
        self.frames_per_second: float = self.environment.frames_per_second
        self._first = torch.zeros(members, 1, dtype=torch.bool)
        self._first[0] = True

    def start(self, seed: int, heading: str) -> None:
        if self.returns:
            self.policy = self.actor.begin()
        seeds = torch.full(self._first.shape, seed, dtype=torch.int64)
        self._obs: Tensor = self.environment.reset(seeds, self._first)
        self._frame = enlarged(self.environment.frame(0, 0))
        self._heading, self._steps, self.done = heading, 0, False
        self.returns.append(0.0)
        self._command = self.policy.current_command()

    def advance(self) -> None:
        """Make the next step, unless the episode has ended."""
        if self.done:
            return
        action = self.policy.act(self._obs)
        self._command = self.policy.current_command()  # the command of this action
        step = self.environment.step(action, self._first)
        self.policy.advance(step.reward)
        self._steps += 1
        self._obs, self.done = step.obs, bool(step.done[0, 0]) or self._steps == _LONGEST
        self.returns[-1] += float(step.reward[0, 0])
        self._frame = enlarged(self.environment.frame(0, 0))

    def picture(self) -> Frame:
        """The current picture with its text."""
        lines = [[self._heading, f"step {self._steps:,}", f"return {_number(self.returns[-1])}"]]
        if self._command:
            lines.append([f"{name} asked {_number(float(value[0, 0]))}" for name, value in self._command.items()])
        if self.actor.caption:
            lines.insert(0, [self.actor.caption])
        return captioned(self._frame, lines, letters((self._frame.shape[1] + GAP) * self._count))


def _number(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:,.0f}"
