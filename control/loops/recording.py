"""Videos of agents as mp4 files. The frames come from the environment, the encoder from imageio-ffmpeg's wheel."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from control.storage.run_dir import replacing
from envs.base import Environment
from envs.make import make_environment
from models.contract import Policy
from models.settings import UserError

_FRAMES_PER_SECOND = 50


def record(policy: Policy, name: str, path: Path, seeds: Tensor, time_limit: int | None = None) -> float:
    """Write one episode of the first member of ``policy`` in environment ``name`` to ``path`` (mp4).

    Gives its return. ``seeds [M, 1]`` start it. Raises UserError where no ffmpeg can be had or the environment
    cannot be drawn.
    """
    environment = make_environment(name, policy.members, 1, render=True, time_limit=time_limit)
    try:
        frames, total = _play(policy, environment, seeds)
        write_video(path, frames)
    finally:
        environment.close()
    return total


def _play(policy: Policy, environment: Environment, seeds: Tensor) -> tuple[list[np.ndarray], float]:
    only_first = torch.zeros(seeds.shape, dtype=torch.bool)
    only_first[0] = True
    obs = environment.reset(seeds, only_first)
    frames, total, done = [environment.frame(0, 0)], 0.0, False  # type: ignore[attr-defined]  # made with render=True
    while not done:
        step = environment.step(policy.act(obs), only_first)
        policy.advance(step.reward)
        obs, total, done = step.obs, total + float(step.reward[0, 0]), bool(step.done[0, 0])
        frames.append(environment.frame(0, 0))  # type: ignore[attr-defined]  # as above
    return frames, total


def write_video(path: Path, frames: Iterable[np.ndarray]) -> None:
    """Encode ``[H, W, 3]`` uint8 frames as h264. Sides are cut to even numbers, which the format wants."""
    try:
        import imageio_ffmpeg
    except ModuleNotFoundError as error:
        raise UserError("a video needs ffmpeg: pip install imageio-ffmpeg (or leave --record out)") from error
    frames = list(frames)
    height, width = (side - side % 2 for side in frames[0].shape[:2])
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        target = temporary.with_suffix(".mp4")
        try:
            writer = imageio_ffmpeg.write_frames(
                str(target), (width, height), fps=_FRAMES_PER_SECOND, macro_block_size=2, ffmpeg_log_level="error"
            )
            writer.send(None)
            for frame in frames:
                writer.send(np.ascontiguousarray(frame[:height, :width]))
            writer.close()
        except (OSError, RuntimeError) as error:
            target.unlink(missing_ok=True)
            raise UserError(f"video {str(path)!r} could not be written: {str(error).splitlines()[0][:160]}") from error
        target.replace(temporary)
