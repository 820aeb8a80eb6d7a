"""TensorBoard's event files of a run: curves, settings, histograms and films.

The x axis is always the number of environment steps that the member has made.
"""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.summary_pb2 import Summary
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from control.cli.settings import Settings, default_settings, effective_values
from control.cli.words import as_word
from control.lightning.module import RunModule
from control.reports.tags import HELD_OUT_RETURN
from models.settings import names_with

_COMMON = ("lr", "discount", "batch_size")  # settings of most agents, on HPARAMS for every run that has them
_MOST_NUMBERS = 10_000  # maximum number of numbers in a histogram


class Board:
    """Writes the event files of one member in ``folder``. ``steps`` is the number of steps from which the run resumes,
    or 0. Entries of later steps, from a process that died, are purged."""

    def __init__(self, folder: Path, steps: int):
        if steps:
            date_back(folder)
        self.writer = SummaryWriter(str(folder), purge_step=steps + 1 if steps else None)

    def add_scalars(self, values: Mapping[str, float], steps: int) -> None:
        """Add a point at ``steps`` to the curves of some tags. ``values`` maps tags to numbers; NaN is left out."""
        for tag, value in values.items():
            if not math.isnan(value):
                _add_value(self.writer, Summary.Value(tag=tag, simple_value=value), steps)

    def add_settings(self, settings: Settings, seed: int, steps: int) -> None:
        """Add a table of the settings of the member with this ``seed``, with `hyperparameters` first and in bold. Also
        add the hyperparameters to TensorBoard's page HPARAMS, which takes the metrics from the scalars."""
        from torch.utils.tensorboard.summary import hparams

        highlighted = hyperparameters(settings) | {"seed": seed}
        values = effective_values(settings) | {"seed": seed}
        rows = []
        for name in sorted(values, key=lambda name: name not in highlighted):  # highlighted names first
            label = f"**{name}**" if name in highlighted else name
            rows.append(f"| {label} | `{as_word(values[name], ',')}` |")
        heading = "Settings in bold are also on the page HPARAMS, implementation as algo.\n"
        lines = [heading, "| setting | value |", "| --- | --- |", *rows]
        self.writer.add_text("settings", "\n".join(lines), steps)
        # HPARAMS shows the first five names in alphabetical order. As "algo", the implementation is among them.
        hparam_dict = {"algo": highlighted.pop("implementation"), **highlighted}
        for name, value in hparam_dict.items():
            if not isinstance(value, int | float):
                hparam_dict[name] = str(value)
        # The omitted first summary declares names of hyperparameters, and would hide hyperparameters of other runs.
        _, start_summary, _ = hparams(hparam_dict, {})
        self.writer._get_file_writer().add_summary(start_summary, steps)

    def add_histogram(self, tag: str, numbers: Tensor, steps: int) -> None:
        """Add a histogram of the finite ``numbers``. If there are more than `_MOST_NUMBERS`, only every second, third,
        ... number is used. Integers have a bar for each integer."""
        all_values = numbers.detach().reshape(-1)
        interval = math.ceil(len(all_values) / _MOST_NUMBERS)
        values = all_values[::interval].cpu().double()
        values = values[values.isfinite()]
        if not len(values):
            return
        if numbers.is_floating_point():
            self.writer.add_histogram(tag, values, steps)
        else:
            edges = np.arange(float(values.min()) - 0.5, float(values.max()) + 1)  # up to the maximum + 0.5
            self.writer.add_histogram(tag, values, steps, bins=edges)  # type: ignore[arg-type]  # torch accepts edges


def hyperparameters(settings: Settings) -> dict[str, Any]:
    """Return the settings that distinguish a run: agent, environment, seed, the settings in `_COMMON`, and other
    settings that affect learning, if the user set them or they differ from the default of this agent in this
    environment. Parts of a command, such as the return that an agent pursues, have the names ``command.NAME``."""
    run = settings.run
    identity = {"implementation": run.implementation, "gamename": run.gamename}
    if settings.proxy is not None:
        identity["agent"] = run.agent
    defaults, values = default_settings(settings), effective_values(settings)
    command = {f"command.{name}": value for name, value in values.pop("command", {}).items()}
    learning_settings = {name for config in settings.configs for name in names_with(config, "hparam")}
    other_settings = {}
    for name, value in values.items():
        is_changed = name in settings.explicit_names or value != defaults.get(name)
        if name in _COMMON or (name in learning_settings and is_changed):
            other_settings[name] = value
    return identity | {"seed": run.seed} | other_settings | command


def show_held_out(module: RunModule, folder: Path, mean_return: float, verdict: str) -> None:
    """Add the ``mean_return`` of fresh agents that trained on a search's winner, and the ``verdict`` about them, to
    TensorBoard."""
    if module.settings.run.logger == "tensorboard":
        board, steps = Board(folder, 0), int(module.env_steps[0])
        board.add_scalars({HELD_OUT_RETURN: mean_return}, steps)
        board.writer.add_text("verdict", verdict, steps)
        board.writer.close()


def show_image(module: RunModule, folder: Path, tag: str, path: Path) -> None:
    """Add the picture or GIF ``path`` of the finished run in ``folder`` to TensorBoard. Do nothing for other files, and
    if the run has no TensorBoard."""
    if module.settings.run.logger != "tensorboard" or path.suffix not in (".gif", ".png") or not path.exists():
        return
    with SummaryWriter(str(member_folders(folder, module.seeds)[0])) as writer:
        add_image(writer, tag, path, int(module.env_steps[0]))


def show_learned(folder: Path, sentences: str, figure: Path) -> None:
    """Add the conclusion of ``--learn`` and its ``figure``, if there is one, to TensorBoard. They replace earlier
    ones."""
    for event_file in folder.glob("events.out.tfevents.*"):
        event_file.unlink()
    with SummaryWriter(str(folder)) as writer:
        writer.add_text("conclusion", sentences)
        if figure.exists():
            add_image(writer, "returns", figure, 0)


def add_image(writer: SummaryWriter, tag: str, path: Path, steps: int) -> None:
    """Add a picture or an animated GIF to the images of ``tag``."""
    from PIL import Image

    with Image.open(path) as picture:
        width, height = picture.size
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes())
    _add_value(writer, Summary.Value(tag=tag, image=image), steps)


def _add_value(writer: SummaryWriter, value: Summary.Value, steps: int) -> None:
    """Add a value that `SummaryWriter` has no method for."""
    writer._get_file_writer().add_summary(Summary(value=[value]), steps)


def member_folders(folder: Path, seeds: Sequence[int]) -> list[Path]:
    """Return the folder of each member's event files: the run's ``folder`` for one member, else ``seed_N`` in it."""
    return [folder] if len(seeds) == 1 else [folder / f"seed_{seed}" for seed in seeds]


def date_back(folder: Path) -> None:
    """Rename event files, ``events.out.tfevents.SECONDS.REST``, so that all have a time before the next file. This is
    necessary if the newest has the current second or, after the clock was set back, a later one: TensorBoard reads
    files in the order of their names, and a purge affects only files read before it."""
    now = int(time.time())
    files = sorted(folder.glob("events.out.tfevents.*"))
    if files and int(files[-1].name.split(".")[3]) >= now:
        for seconds, file in enumerate(files, start=now - len(files)):  # now - 1 for the newest
            *_, rest = file.name.split(".", 4)
            file.rename(folder / f"events.out.tfevents.{seconds:010d}.{rest}")
