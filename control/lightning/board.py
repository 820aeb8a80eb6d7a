"""TensorBoard's event files of a run: curves, settings, histograms and films.

The x axis is always the number of environment steps that the member has made.
"""

import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR, Summary
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from control.cli.settings import RunConfig, Settings, default_settings, effective_values
from control.cli.words import as_word
from control.reports.stages import conclusion, race_scalars, returns_table, stage_scalars
from control.reports.tags import SYNTHETIC_STEPS, explanations
from models.settings import names_with

# The first names on HPARAMS, in its order. With more than four settings of a run, its first metric is not in sight.
_FIRST = {"implementation": "algo", "gamename": "env", "lr": "lr", "seed": "seed"}
_ROW_PARTS = 6  # parts of a folder's path in the name of a row, enough for teachers and trials
# Columns of searches that are constant, the x axis of TensorBoard, or the sum of two others.
_ONLY_IN_CSV = {SYNTHETIC_STEPS, "search/steps_per_agent", "time/generation"}


class Board:
    """Writes TensorBoard's event files of one member (the agent of one seed) in ``folder``. ``steps`` is the number of
    steps from which the run resumes, or 0. TensorBoard then drops entries of later steps, from a process that died."""

    def __init__(self, folder: Path, steps: int = 0):
        if steps:
            date_back(folder)
        self.folder = folder
        self.writer = SummaryWriter(str(folder), purge_step=steps + 1 if steps else None)
        self.undescribed = dict(explanations())

    def add_scalars(self, values: Mapping[str, float], steps: int) -> None:
        """Add a point at x = ``steps`` to the curve of each tag in ``values``, such as {"rollout/return_mean": 20.0}.
        NaN is left out. In tags of episode lengths, "length" becomes "steps", so that they are sorted after returns."""
        for tag, value in values.items():
            if tag not in _ONLY_IN_CSV and not math.isnan(value):
                point = Summary.Value(tag=tag.replace("/length_", "/steps_"), simple_value=value)
                description = self.undescribed.pop(tag, "")
                if description:  # only the first point of a curve has one
                    point.metadata.summary_description = description
                    point.metadata.plugin_data.plugin_name = "scalars"
                    point.metadata.data_class = DATA_CLASS_SCALAR  # without it, TensorBoard ignores the description
                _add_value(self.writer, point, steps)

    def add_settings(self, settings: Settings, seed: int, steps: int) -> None:
        """Add the settings of the run with ``seed`` (`add_values`); its `hyperparameters` are on the page HPARAMS."""
        values = effective_values(settings) | {"seed": seed}
        highlighted = hyperparameters(settings) | {"seed": seed}
        self.add_values(values, highlighted, _row_name(settings.run, seed, self.folder), steps)

    def add_values(self, values: Mapping[str, Any], highlighted: Mapping[str, Any], name: str, steps: int = 0) -> None:
        """Add a table of the settings ``values``, and a row with the ``name`` and the ``highlighted`` settings to
        TensorBoard's page HPARAMS. In the table, the latter come first and in bold. The page sorts the settings by name
        and shows the first five. So that the names in `_FIRST` come first, all others begin with "set."."""
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
        from torch.utils.tensorboard.summary import hparams

        lines = ["Settings in bold are also on the page HPARAMS.\n", "| setting | value |", "| --- | --- |"]
        for setting in sorted(values, key=lambda setting: setting not in highlighted):  # highlighted settings first
            label = f"**{setting}**" if setting in highlighted else setting
            lines.append(f"| {label} | `{as_word(values[setting], ',')}` |")
        self.writer.add_text("settings", "\n".join(lines), steps)
        row: dict[str, Any] = {}
        for setting, value in highlighted.items():  # numbers remain numbers, so that the page can sort and filter them
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            row[_FIRST.get(setting, f"set.{setting}")] = value if is_number else as_word(value, ",")
        # The omitted first summary declares names of hyperparameters, and would hide hyperparameters of other runs.
        _, start_summary, _ = hparams(row, {})
        plugin_data = start_summary.value[0].metadata.plugin_data
        content = HParamsPluginData.FromString(plugin_data.content)
        content.session_start_info.group_name = name
        plugin_data.content = content.SerializeToString()
        self.writer._get_file_writer().add_summary(start_summary, steps)

    def add_charts(self, charts: Mapping[str, Iterable[str]]) -> None:
        """Add ``charts`` with several curves to TensorBoard's page CUSTOM SCALARS: title -> regular expressions of the
        tags in the chart."""
        multiline = {title: ["Multiline", list(tags)] for title, tags in charts.items()}
        self.writer.add_custom_scalars({"Overview": multiline})

    def add_image(self, tag: str, path: Path, steps: int) -> None:
        """Add a picture or an animated GIF to the images of ``tag``. Do nothing for other files."""
        from PIL import Image

        if path.suffix not in (".gif", ".png") or not path.exists():
            return
        with Image.open(path) as picture:
            width, height = picture.size
        # The colour space 3 is RGB.
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes())
        _add_value(self.writer, Summary.Value(tag=tag, image=image), steps)

    def add_histogram(self, tag: str, numbers: Tensor, steps: int) -> None:
        """Add a histogram of the finite ``numbers``, if there are any."""
        samples = numbers.detach().cpu().double()
        finite = samples[samples.isfinite()]
        if len(finite):
            self.writer.add_histogram(tag, finite, steps)


def hyperparameters(settings: Settings) -> dict[str, Any]:
    """Return the settings that distinguish runs in a comparison, name -> value: implementation, environment, learning
    rate, and other settings that affect learning, if the user set them or they differ from the default. The goals of
    an agent, such as a return, have the names ``command.NAME``."""
    run = settings.run
    shown: dict[str, Any] = {"implementation": run.implementation, "gamename": run.gamename}
    if settings.proxy is not None and "agent" in settings.explicit_names:
        shown["agent"] = run.agent
    defaults, values = default_settings(settings), effective_values(settings)
    command = values.pop("command", {})
    learning_settings = {name for config in settings.configs for name in names_with(config, "hparam")}
    for name, value in values.items():
        is_changed = name in settings.explicit_names or value != defaults.get(name)
        if name == "lr" or (name in learning_settings and is_changed):
            shown[name] = value
    return shown | {f"command.{name}": value for name, value in command.items()}


def show_learned(
    run: RunConfig,
    folder: Path,
    options: Mapping[str, Any],
    setup: Mapping[str, Any],
    results: Mapping[str, Any],
    figure: Path,
) -> None:
    """Write the ``results`` of `--learn` (stage -> its results) to TensorBoard's files in ``folder``, in place of
    earlier ones. Also write all ``options``, the ``setup`` (game and options that distinguish runs), and the picture
    ``figure``, if it exists. The curves of the stage `race`, which compares agents with different rewards, share a
    chart, so each of them is a run in a subfolder."""
    board = _new_board(folder, stage_scalars(results))
    board.add_values({**options, **setup}, {"implementation": "learn", **setup}, _row_name(run, run.seed, folder))
    board.add_image("summary/returns", figure, 0)
    stages = [f"- **{stage}**: {result['text']}" for stage, result in results.items()]
    table = f"```text\n{returns_table(results)}\n```\n" if "exam" in results else ""
    board.writer.add_text("conclusion", "\n".join([*conclusion(results), "", table, *stages]))
    board.writer.close()
    for reward, points in race_scalars(results).items():
        _new_board(folder / f"race_{reward}", points).writer.close()


def _row_name(run: RunConfig, seed: int, folder: Path) -> str:
    """Return the name of a row of HPARAMS, such as ``PPO 25 v0 debug: exp_dir/cartpole/debug/PPO/seed_25/version_0``.
    It has the last parts of the folder's path, so that it is unique. The page shows some 15 letters of it, so a trial
    of a search begins with its number, ``trial_2 PPO 25 v0 debug: ...``."""
    parts = Path(os.path.abspath(folder)).parts[-_ROW_PARTS:]
    trial = f"{folder.name} " if folder.name.startswith("trial_") else ""
    version = "".join(f" v{part.removeprefix('version_')}" for part in parts if part.startswith("version_"))
    return f"{trial}{run.implementation} {seed}{version} {run.exp_name}: {'/'.join(parts)}"


def _new_board(folder: Path, points: Iterable[tuple[str, float, int]]) -> Board:
    """Replace the event files in ``folder`` by new ones with the ``points`` (tag, value, steps) of curves."""
    for event_file in folder.glob("events.out.tfevents.*"):
        event_file.unlink()
    board = Board(folder)
    for tag, value, steps in points:
        board.add_scalars({tag: value}, steps)
    return board


def _add_value(writer: SummaryWriter, value: Summary.Value, steps: int) -> None:
    """Add a ``value`` for which `SummaryWriter` has no method, such as a finished GIF."""
    writer._get_file_writer().add_summary(Summary(value=[value]), steps)


def date_back(folder: Path) -> None:
    """Rename the event files in ``folder``, ``events.out.tfevents.SECONDS.REST``, if they do not all have a time before
    now, because TensorBoard reads files in the order of their names. It must read the next file last, which drops the
    entries after a resume. Their time is not earlier if less than a second passed, or if the clock was set back."""
    now = int(time.time())
    files = sorted(folder.glob("events.out.tfevents.*"))
    if files and int(files[-1].name.split(".")[3]) >= now:
        for seconds, file in enumerate(files, start=now - len(files)):  # now - 1 for the newest
            *_, rest = file.name.split(".", 4)
            file.rename(folder / f"events.out.tfevents.{seconds:010d}.{rest}")
