"""Videos of agents as mp4 files. The frames come from the environment, the encoder from imageio-ffmpeg's wheel."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from control.cli.settings import RunConfig
from control.loops.loop import Loop
from control.storage.run_dir import replacing
from envs.make import make_environment
from envs.names import first_line
from models.contract import Policy
from models.settings import SettingError, UserError
from models.streams import Streams

_FRAMES_PER_SECOND = 50


def check_recording(run: RunConfig) -> None:
    """Before anything is trained or played, SettingError where the run is to be filmed and cannot be."""
    wanted = next((name for name in ("record", "recording_epoch_interval") if getattr(run, name) > 0), "")
    if not wanted:
        return
    try:
        environment: Any = make_environment(run.gamename, 1, 1, render=True, time_limit=run.time_limit)
        with contextlib.closing(environment):
            environment.reset(torch.zeros(1, 1, dtype=torch.int64))
            environment.frame(0, 0)
        _encoder().get_ffmpeg_exe()
    except (UserError, RuntimeError) as error:  # of the latter, imageio where there is no ffmpeg
        problem = f"{str(getattr(run, wanted)).lower()}, but {str(error).removeprefix('record: ')}; leave it out"
        raise SettingError(f"{wanted} is {problem}", wanted) from error


def film(loop: Loop, run: RunConfig, path: Path, name: str, sample: bool = False) -> float:
    """Write a video of one episode of the first member and return its return. Seeds come from ``name`` alone: a run
    that records learns the same as one that does not."""
    streams = Streams.named(loop.seeds, name)
    policy = loop.policy(streams.fork(), sample)
    return record(policy, run.gamename, path, streams.episode_seeds(1)[: policy.members], run.time_limit)


def record(policy: Policy, name: str, path: Path, seeds: Tensor, time_limit: int | None = None) -> float:
    """Write one episode of the first member of ``policy`` in environment ``name`` to ``path`` (mp4), its return.

    ``seeds [M, 1]`` start it. Raises UserError where ffmpeg is missing or the environment cannot be drawn.
    """
    environment: Any = make_environment(name, policy.members, 1, render=True, time_limit=time_limit)  # it has `frame`
    only_first = torch.zeros(seeds.shape, dtype=torch.bool)
    only_first[0] = True
    with contextlib.closing(environment):
        obs = environment.reset(seeds, only_first)
        frames, total, done = [environment.frame(0, 0)], 0.0, False
        while not done:
            step = environment.step(policy.act(obs), only_first)
            policy.advance(step.reward)
            obs, total, done = step.obs, total + float(step.reward[0, 0]), bool(step.done[0, 0])
            frames.append(environment.frame(0, 0))
        _write(path, frames)
    return total


def _encoder() -> Any:
    try:
        import imageio_ffmpeg
    except ModuleNotFoundError as error:
        raise UserError("a video needs ffmpeg: pip install imageio-ffmpeg") from error
    return imageio_ffmpeg


def _write(path: Path, frames: Sequence[np.ndarray]) -> None:
    """Encode ``[H, W, 3]`` uint8 frames as h264. Sides are cut to even numbers, which the format wants."""
    height, width = (side - side % 2 for side in frames[0].shape[:2])
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(path) as temporary:
            writer = _encoder().write_frames(
                str(temporary), (width, height), fps=_FRAMES_PER_SECOND, macro_block_size=2, ffmpeg_log_level="error",
                output_params=["-f", "mp4"],
            )  # fmt: skip
            writer.send(None)
            for frame in frames:
                writer.send(np.ascontiguousarray(frame[:height, :width]))
            writer.close()
    except (OSError, RuntimeError) as error:
        raise UserError(f"video {str(path)!r} could not be written: {first_line(error)[:160]}") from error
