"""Write frames to an mp4 (h264), and convert an mp4 to a small GIF. Both use ffmpeg from the package imageio-ffmpeg."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from control.films.pictures import Frame
from control.storage.run_dir import atomic_file
from envs.names import first_line
from models.settings import UserError

GIF_BYTES = 2_000_000  # size at which a GIF is cut off; the file exceeds it by at most about one frame
_GIF_FRAME_RATE = 12.5  # frames per second
_GIF_MAX_WIDTH = 560  # pixels
_GIF_COLOURS = 64  # number of colours


def encoder() -> Any:
    """Return the module ``imageio_ffmpeg``. Raises UserError if it or ffmpeg is missing."""
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()  # raises RuntimeError without ffmpeg
    except ModuleNotFoundError as error:
        raise UserError("a video needs ffmpeg: pip install imageio-ffmpeg") from error
    except RuntimeError as error:
        raise UserError(first_line(error)) from error
    return imageio_ffmpeg


@contextlib.contextmanager
def mp4(path: Path, frames_per_second: float) -> Iterator[Callable[[Frame], None]]:
    """Context manager for writing a video to the file ``path``. It yields a function, which the block calls with each
    frame. Frames must have one size, with even height and width. Raises UserError if the file cannot be written."""
    # For drawn pictures, slower presets than "veryfast" make no smaller files. With "+faststart", the index is at the
    # beginning of the file, so that a browser can play the film before it has loaded all of it.
    options = ["-preset", "veryfast", "-f", "mp4", "-movflags", "+faststart"]
    settings: Any = {"fps": frames_per_second, "macro_block_size": 2, "ffmpeg_log_level": "error"}
    writer: Any = None  # a generator of imageio_ffmpeg that receives frames
    with atomic_file(path) as temporary:

        def add(frame: Frame) -> None:
            nonlocal writer
            with _writing("video", path):
                if writer is None:  # the first frame has the size of the video
                    height, width, _ = frame.shape
                    writer = encoder().write_frames(str(temporary), (width, height), output_params=options, **settings)
                    writer.send(None)  # starts the generator
                writer.send(np.ascontiguousarray(frame))

        try:
            yield add
        finally:
            if writer is not None:
                with _writing("video", path):
                    writer.close()


@contextlib.contextmanager
def _writing(file_kind: str, path: Path) -> Iterator[None]:
    """Context manager for writing the file ``path``, whose folder it makes. It turns errors of ffmpeg and of the disk
    into a UserError that names the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, RuntimeError) as error:
        raise UserError(f"{file_kind} {str(path)!r} could not be written: {first_line(error)[:160]}") from error


def poster(video: Path) -> bytes:
    """Return the first frame of a video, as the content of a JPEG. Empty if the video cannot be read."""
    options = "-v error -frames:v 1 -c:v mjpeg -f image2pipe -".split()  # "-": to the standard output
    with contextlib.suppress(UserError, OSError, subprocess.TimeoutExpired):
        # Only mp4 is accepted: files of other formats may name further files, which ffmpeg would read.
        command = [encoder().get_ffmpeg_exe(), "-f", "mp4", "-i", str(video), *options]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20).stdout
    return b""


def gif(video: Path) -> Path:
    """Write a GIF beside ``video``, cut off at `GIF_BYTES`, and return its path. Raises UserError if that fails."""
    path = video.with_suffix(".gif")
    # "-1" keeps the ratio of width and height. ffmpeg copies the frames to a and b, computes the palette p from a, and
    # draws b with it.
    filters = (
        f"fps={_GIF_FRAME_RATE},scale='min({_GIF_MAX_WIDTH},iw)':-1:flags=area,split[a][b];"
        f"[a]palettegen=max_colors={_GIF_COLOURS}[p];[b][p]paletteuse=dither=none:diff_mode=rectangle"
    )
    with _writing("GIF", path), atomic_file(path) as temporary:
        # "-loop 0" repeats the film for ever. "-fs" is the size at which the file is cut off.
        options = ["-v", "error", "-y", "-i", video, "-vf", filters, "-loop", "0", "-fs", GIF_BYTES, "-f", "gif"]
        command = [encoder().get_ffmpeg_exe(), *map(str, options), str(temporary)]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if result.returncode:
            raise OSError(f"ffmpeg ended with {result.returncode}: {result.stderr.strip()}")
    return path
