"""What TensorBoard shows of a run beside its curves: settings, histograms and films.

The x axis of everything is the number of environment steps that the member has made.
"""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from control.cli.settings import Settings, acting, default_settings
from control.lightning.module import RunModule
from models.settings import names_with

_LARGEST = 10_000  # numbers of a histogram; of more, as many are taken evenly


class Board:
    """The event files of one member in ``folder``. It has made ``steps`` before; what is there of later ones, by a
    process that died, is forgotten."""

    def __init__(self, folder: Path, steps: int):
        self.folder = folder
        if steps:
            date_back(folder)
        self.writer = SummaryWriter(str(folder), purge_step=steps + 1 if steps else None)

    def scalars(self, values: Mapping[str, float], steps: int) -> None:
        for tag, value in values.items():
            if not math.isnan(value):
                self.writer.add_scalar(tag, value, steps)

    def settings(self, settings: Settings, steps: int) -> None:
        """What a run goes by, as a table; what differs from the default, or was given, first and in bold."""
        highlighted = set(hyperparameters(settings))
        values = sorted(acting(settings).items(), key=lambda item: item[0] not in highlighted)
        lines = [f"| {'**' + name + '**' if name in highlighted else name} | `{value}` |" for name, value in values]
        self.writer.add_text("settings", "\n".join(["| setting | value |", "| --- | --- |", *lines]), steps)

    def histogram(self, tag: str, numbers: Tensor, steps: int) -> None:
        """Add a histogram of those of the ``numbers`` that are finite; each whole number gets a bar of its own."""
        values = numbers.detach().reshape(-1)
        values = values[:: -(-len(values) // _LARGEST)].cpu().double()
        values = values[values.isfinite()]
        if not len(values):
            return
        if numbers.is_floating_point():
            self.writer.add_histogram(tag, values, steps)
        else:
            bars = np.arange(float(values.min()) - 0.5, float(values.max()) + 1)
            self.writer.add_histogram(tag, values, steps, bins=bars)  # type: ignore[arg-type]  # edges are bins

    def film(self, video: Path, steps: int) -> None:
        """Show the GIF beside a ``video``, as an image that moves."""
        add_film(self.writer, video, steps)

    def hyperparameters(self, settings: Settings, seed: int) -> None:
        """What makes this run another, for the page HPARAMS, which adds the last value of every scalar. It lists all
        hyperparameters of all runs only where none of them says itself which there are."""
        from torch.utils.tensorboard.summary import hparams

        values = hyperparameters(settings) | {"seed": seed}
        plain = {name: value if isinstance(value, int | float | str) else str(value) for name, value in values.items()}
        for summary in hparams(plain, {})[1:]:
            self.writer._get_file_writer().add_summary(summary)

    def close(self) -> None:
        self.writer.close()


def hyperparameters(settings: Settings) -> dict[str, Any]:
    """What makes a run another run: agent, environment, seed, and settings of what is learned that were given or differ
    from the default of this agent in this environment."""
    run = settings.run
    identity = {"implementation": run.implementation, "gamename": run.gamename}
    identity |= {} if settings.proxy is None else {"agent": run.agent}
    defaults, values = default_settings(settings), acting(settings)
    hparams = {name for part in settings.configs for name in names_with(part, "hparam")}
    command = {f"command.{name}": value for name, value in values.pop("command", {}).items()}
    changed_settings = {
        name: value
        for name, value in values.items()
        if name in hparams and (name in settings.explicit_names or value != defaults.get(name))
    }
    return identity | {"seed": run.seed} | changed_settings | command


def show_film(module: RunModule, folder: Path, video: Path) -> None:
    """Have TensorBoard show the ``video`` of the first member of a run that has ended, if there is a GIF beside it."""
    if module.settings.run.logger != "tensorboard" or not video.with_suffix(".gif").exists():
        return
    with SummaryWriter(str(places(folder, module.seeds)[0])) as writer:
        add_film(writer, video, int(module.env_steps[0]))


def add_film(writer: SummaryWriter, video: Path, steps: int) -> None:
    """Add the GIF beside a ``video`` to the images of the tag ``film``."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    content = video.with_suffix(".gif").read_bytes()
    width, height = (int.from_bytes(content[at : at + 2], "little") for at in (6, 8))
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=content)
    writer._get_file_writer().add_summary(Summary(value=[Summary.Value(tag="film", image=image)]), steps)


def places(folder: Path, seeds: Sequence[int]) -> list[Path]:
    """The folder of each member's event files in that of a run."""
    return [folder] if len(seeds) == 1 else [folder / f"seed_{seed}" for seed in seeds]


def date_back(folder: Path) -> None:
    """Give event files an earlier time if they bear this second's, or a later one by a clock that was set back since.
    TensorBoard reads them in the order of their names; purging forgets rows of files that were read before."""
    now, files = int(time.time()), sorted(folder.glob("events.out.tfevents.*"))
    if files and int(files[-1].name.split(".")[3]) >= now:
        for place, file in enumerate(files, start=now - len(files)):
            file.rename(folder / f"events.out.tfevents.{place:010d}.{file.name.split('.', 4)[4]}")
