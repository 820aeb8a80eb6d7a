"""Films agents in rendered environments, alone or side by side, as mp4 at the environment's frame rate and as GIF."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from control.cli.progress import Watch
from control.cli.settings import RunConfig
from control.cli.words import as_word
from control.films.encoding import encoder, gif, mp4
from control.films.pictures import GAP, Frame, add_caption, enlarge, place_side_by_side
from control.loops.loop import Loop
from control.storage.run_dir import atomic_write_text, run_folder_of
from envs.make import make_environment
from models.contract import Policy
from models.settings import SettingError, UserError
from models.streams import Streams

_MAX_STEPS = 10_000  # maximum length of a filmed episode, because some environments do not end
_PAUSE_SECONDS = 1.8  # time for which the last frame of an episode is shown


@dataclass(frozen=True)
class Actor:
    """A filmed agent. ``begin()`` returns a policy for the next episode. If the policy has several members (agents that
    train side by side), the first one is filmed. ``caption`` is a line of text below the pictures."""

    begin: Callable[[], Policy]
    caption: str = ""


def check_recording(run: RunConfig) -> None:
    """Raise SettingError if ``run`` has settings for a video but cannot be filmed. Call it before training."""
    for name in ("record", "recording_epoch_interval"):
        value = getattr(run, name)
        if value > 0:  # True, or a number of epochs
            check_film(run.gamename, run.time_limit, name, as_word(value))


def check_film(game: str, time_limit: int | None, setting: str, value: str = "") -> None:
    """Raise SettingError if ``game`` with this ``time_limit`` cannot be rendered, or if ffmpeg is missing. The message
    names the ``setting`` that asks for a film and, if it is not empty, the ``value`` of the setting."""
    try:
        environment: Any = make_environment(game, members=1, envs=1, render=True, time_limit=time_limit)
        with contextlib.closing(environment):
            environment.reset(torch.zeros(1, 1, dtype=torch.int64))
            environment.frame(0, 0)
        encoder()
    except UserError as error:
        # If the game cannot be made without rendering either, this line raises the error about that problem.
        make_environment(game, members=1, envs=1, time_limit=time_limit).close()
        message = f"{setting} is {value}, but {error}; leave it out" if value else f"{setting}: {error}"
        raise SettingError(message, setting) from error


def new_film(checkpoint: Path, stem: str) -> Path:
    """Return the path of a new film ``STEM_N.mp4`` (`unused_path`) in the folder ``videos`` of the run that
    ``checkpoint`` belongs to. If the checkpoint is outside of a run, the film is beside it."""
    is_in_run = checkpoint.parent.name == "checkpoints"
    return unused_path(run_folder_of(checkpoint) / "videos" if is_in_run else checkpoint.parent, stem)


def unused_path(folder: Path, stem: str) -> Path:
    """Return the path ``STEM_N.mp4`` in ``folder`` with the smallest N (from 0) for which there is no file."""
    paths = (folder / f"{stem}_{number}.mp4" for number in itertools.count())
    return next(path for path in paths if not path.exists())


def film(
    loop: Loop,
    run: RunConfig,
    path: Path,
    name: str,
    sample: bool = False,
    episodes: int = 1,
    with_gif: bool = False,
    watch: Watch | None = None,
) -> list[float]:
    """Film the agent of a run's first seed as ``path`` (mp4) and, if ``with_gif``, as a GIF beside it. ``loop`` plays
    the agents of the ``run``. Actions are greedy unless ``sample``. Write the seed and the returns to a text file
    beside the film, and return the return of each episode. Random streams depend on ``name`` and the run's seeds, so
    filming does not change training."""
    seeds = Streams.from_name(loop.seeds, name).episode_seeds(episodes)[0].tolist()  # seeds of the first member
    action_streams = Streams.from_name(loop.seeds, f"{name}, actions")  # forked for each episode
    actor = Actor(lambda: loop.policy(action_streams.fork(), sample), filmed_seed_text(loop.seeds))
    (returns,) = record([actor], run.gamename, path, seeds, run.time_limit, with_gif, watch)
    atomic_write_text(path.with_suffix(".txt"), f"seed {loop.seeds[0]}, {returns_text(returns)}\n")
    return returns


def record(
    actors: Sequence[Actor],
    game: str,
    path: Path,
    seeds: Sequence[int],
    time_limit: int | None = None,
    with_gif: bool = False,
    watch: Watch | None = None,
) -> list[list[float]]:
    """Film ``actors`` side by side as ``path`` (mp4) and, if ``with_gif``, as a GIF beside it.

    The film has one episode of ``game`` for each of ``seeds``, in which all actors have the same seed. Actors whose
    episode has ended wait for the others. ``time_limit`` is in steps; None means the environment's limit. ``watch`` is
    called with the finished fraction. Returns, for each actor, the list of the returns of its episodes. Raises
    UserError if ffmpeg is missing or the environment cannot be rendered.
    """
    with contextlib.ExitStack() as stack:
        episodes = [_FilmedEpisodes(actor, game, time_limit, len(actors), stack) for actor in actors]
        frame_rate = episodes[0].environment.frames_per_second
        pause_frames = max(1, round(_PAUSE_SECONDS * frame_rate))
        add_frame = stack.enter_context(mp4(path, frame_rate))
        for number, seed in enumerate(seeds):
            heading = f"episode {number + 1} of {len(seeds)}" if len(seeds) > 1 else "one episode"
            for episode in episodes:
                episode.start(seed, heading)
            add_frame(place_side_by_side([episode.picture() for episode in episodes]))
            num_paused = 0  # number of frames since all episodes have ended
            while num_paused < pause_frames:
                if all(episode.done for episode in episodes):
                    num_paused += 1
                for episode in episodes:
                    episode.advance()
                add_frame(place_side_by_side([episode.picture() for episode in episodes]))
            if watch is not None:
                watch((number + 1) / len(seeds))
    if with_gif:
        gif(path)
    return [episode.returns for episode in episodes]


def filmed_seed_text(seeds: Sequence[int]) -> str:
    """Return a text about the filmed seed, the first of ``seeds``. It is empty if there is only one seed."""
    return f"seed {seeds[0]}" if len(seeds) > 1 else ""


def returns_text(returns: Sequence[float]) -> str:
    """Return the number of filmed episodes and their returns as text, such as ``2 episodes, returns 500, 431``."""
    if len(returns) == 1:
        return f"one episode, return {returns[0]:.0f}"
    texts = ", ".join(f"{episode_return:.0f}" for episode_return in returns)
    return f"{len(returns)} episodes, returns {texts}"


class _FilmedEpisodes:
    """Plays the episodes of one of ``num_actors`` actors, in a separate environment, which ``stack`` closes. The
    environment has a row for each member of the actor's policy, but only the first row is stepped. ``time_limit`` is in
    steps; None means the environment's limit."""

    def __init__(self, actor: Actor, game: str, time_limit: int | None, num_actors: int, stack: contextlib.ExitStack):
        self.actor, self._num_actors = actor, num_actors
        self.returns: list[float] = []  # returns of all episodes; the last episode is still running
        self.policy = actor.begin()
        members = self.policy.members
        # Any: only a rendered environment has `frame` and `frames_per_second`.
        self.environment: Any = make_environment(game, members, 1, render=True, time_limit=time_limit)
        stack.callback(self.environment.close)
        self._is_filmed = torch.arange(members)[:, None] == 0  # [M, 1], True for the first row

    def start(self, seed: int, heading: str) -> None:
        """Start an episode from ``seed``. ``heading`` is the first text below the picture."""
        if self.returns:  # the policy of the first episode exists already
            self.policy = self.actor.begin()
        seeds = torch.full(self._is_filmed.shape, seed, dtype=torch.int64)
        self._obs: Tensor = self.environment.reset(seeds, self._is_filmed)
        self._frame = enlarge(self.environment.frame(0, 0))
        self._heading = heading
        self._steps = 0
        self.done = False
        self.returns.append(0.0)
        self._command = self.policy.current_command()

    def advance(self) -> None:
        """Make a step, unless the episode has ended."""
        if self.done:
            return
        action = self.policy.act(self._obs)
        self._command = self.policy.current_command()  # the command of this action
        step = self.environment.step(action, self._is_filmed)
        self.policy.advance(step.reward)
        self._steps += 1
        self._obs = step.obs
        self.done = bool(step.done[0, 0]) or self._steps == _MAX_STEPS
        self.returns[-1] += float(step.reward[0, 0])
        self._frame = enlarge(self.environment.frame(0, 0))

    def picture(self) -> Frame:
        """Return the current picture of the environment, with lines about the agent and the episode below."""
        lines = [[self._heading, f"step {self._steps:,}", f"return {_number_text(self.returns[-1])}"]]
        if self.actor.caption:
            lines.insert(0, [self.actor.caption])
        if self._command:  # goals of an agent that follows commands, such as "return" -> [M, 1]
            lines.append([f"{name} asked {_number_text(float(goal[0, 0]))}" for name, goal in self._command.items()])
        film_width = (self._frame.shape[1] + GAP) * self._num_actors
        letter_height = max(16, film_width // 52)  # pixels; letters are readable at half size
        return add_caption(self._frame, lines, letter_height)


def _number_text(value: float) -> str:
    """Return a return or a command as text, such as ``12.5`` or ``1,250``."""
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:,.0f}"
