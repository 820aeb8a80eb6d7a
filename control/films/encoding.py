"""Frames as h264 in mp4, and an mp4 as a small GIF. Both are the work of ffmpeg, from imageio-ffmpeg's wheel."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from control.cli.progress import Watch
from control.films.pictures import Frame
from control.storage.run_dir import replacing
from envs.names import first_line
from models.settings import UserError

SMALL = 2_000_000  # bytes of a GIF, at most
# What a GIF may have, from good to poor: frames a second, pixels of its width, colours, seconds.
_QUALITIES = (
    (25.0, 720, 128, 40.0), (16.0, 720, 96, 40.0), (12.5, 640, 96, 40.0), (10.0, 560, 64, 40.0), (10.0, 480, 48, 30.0),
    (8.0, 400, 32, 30.0), (6.25, 360, 32, 20.0), (5.0, 320, 24, 15.0), (5.0, 240, 16, 8.0), (4.0, 160, 8, 4.0),
)  # fmt: skip


def encoder() -> Any:
    """The module that has ffmpeg. UserError where it is missing, or ffmpeg is."""
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except ModuleNotFoundError as error:
        raise UserError("a video needs ffmpeg: pip install imageio-ffmpeg") from error
    except RuntimeError as error:
        raise UserError(first_line(error)) from error
    return imageio_ffmpeg


@contextlib.contextmanager
def mp4(path: Path, frames_per_second: float) -> Iterator[Callable[[Frame], None]]:
    """Give a function that adds a frame, all of one even size, to the video ``path``, which is there when the block
    ends. Raises UserError where it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer: Any = None
    with replacing(path) as temporary:

        def add(frame: Frame) -> None:
            nonlocal writer
            with _writing("video", path):
                if writer is None:
                    writer = encoder().write_frames(
                        str(temporary), frame.shape[1::-1], fps=frames_per_second, macro_block_size=2,
                        ffmpeg_log_level="error",
                        # Drawn pictures are no larger for a quick encoder.
                        output_params=["-preset", "veryfast", "-f", "mp4", "-movflags", "+faststart"],
                    )  # fmt: skip
                    writer.send(None)
                writer.send(np.ascontiguousarray(frame))

        try:
            yield add
        finally:
            if writer is not None:
                with _writing("video", path):
                    writer.close()


@contextlib.contextmanager
def _writing(what: str, path: Path) -> Iterator[None]:
    """A UserError of whatever ffmpeg or the disk says."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise UserError(f"{what} {str(path)!r} could not be written: {first_line(error)[:160]}") from error


def gif(video: Path, limit: int = SMALL, watch: Watch | None = None) -> Path:
    """A GIF of ``video`` beside it, as good as ``limit`` bytes allow: a long or lively film gets fewer frames, pixels
    and colours, and at last fewer seconds. Raises UserError where it cannot be written. ``watch`` is told how much is
    done, each time half of what was left: nobody knows which quality will be small enough."""
    path, rate, size, done = video.with_suffix(".gif"), 0.0, 0, 0.0
    with _writing("GIF", path), replacing(path) as temporary:
        widest = next(encoder().read_frames(str(video)))["size"][0]
        for quality in _QUALITIES:
            now = quality[0] * min(quality[1], widest) ** 2  # pixels a second, nearly
            if rate and size * now / rate > 2 * limit and quality != _QUALITIES[-1]:
                continue  # by what the last one took, this one is far too large
            _convert(video, temporary, *quality)
            rate, size = now, temporary.stat().st_size
            if size <= limit:
                break
            done = (1 + done) / 2
            if watch is not None:
                watch(done)
    return path


def _convert(video: Path, to: Path, frames_per_second: float, width: int, colours: int, seconds: float) -> None:
    chain = (
        f"fps={frames_per_second},scale='min({width},iw)':-1:flags=area,split[a][b];"
        f"[a]palettegen=max_colors={colours}[p];[b][p]paletteuse=dither=none:diff_mode=rectangle"
    )
    words = [
        "-v",
        "error",
        "-y",
        "-t",
        str(seconds),
        "-i",
        str(video),
        "-vf",
        chain,
        "-loop",
        "0",
        "-f",
        "gif",
        str(to),
    ]
    done = subprocess.run(
        [encoder().get_ffmpeg_exe(), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )  # fmt: skip
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise OSError(said[-1] if said else f"ffmpeg ended with {done.returncode}")
