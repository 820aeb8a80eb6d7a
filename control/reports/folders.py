"""Run folders as far as they can be read: settings, versions, films; and the groups of them that a page is about."""

import contextlib
import io
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from control.cli.colour import note
from control.cli.files import read_mapping
from control.cli.options import Flag, chosen_flags
from control.cli.parse import parse
from control.cli.settings import Settings, to_yaml
from control.cli.words import word
from control.reports.runs import Group
from control.reports.tags import GREEDY, MEAN_RETURN, RUNNING_MEAN, of_search
from control.storage.run_dir import versions
from models.settings import UserError


@dataclass
class Subject:
    """The runs of a group: what tells them from other groups, their numbers, and their folders."""

    label: str
    group: Group
    summary: dict[str, Any]

    @cached_property
    def folders(self) -> list["Folder"]:
        return [Folder(path) for path in dict.fromkeys(run.source.parent for run in self.group.runs)]

    @property
    def search(self) -> bool:
        return of_search(self.summary["over_seeds"])

    @property
    def tag(self) -> str:
        """The return that the runs are judged by."""
        shown = list(self.summary["over_seeds"])
        return next((tag for tag in (RUNNING_MEAN, GREEDY, MEAN_RETURN, *shown) if tag in shown), "")


def judged_by(subjects: Sequence[Subject]) -> list[str]:
    """The return to show of each: that by which it is judged or, where these differ between agents, the greedy one if
    all of them have it. Searches have returns of their own."""
    agents = [subject for subject in subjects if not subject.search]
    measured = [subject.summary["over_seeds"].get(GREEDY, {"n": 0})["n"] for subject in agents]
    if len({agent.tag for agent in agents}) > 1 and measured == [len(agent.group.runs) for agent in agents]:
        return [subject.tag if subject.search else GREEDY for subject in subjects]
    return [subject.tag for subject in subjects]


@dataclass
class Folder:
    """A run folder, as far as it can be read."""

    path: Path
    left_out: dict[Path, None] = field(default_factory=dict)

    def file(self, *names: str) -> Path | None:
        """The file of that name, if it is a regular one within the folder. Any other that is there is noted in
        ``left_out``."""
        path = self.path.joinpath(*names)
        if path.is_file() and path.resolve().is_relative_to(self.path.resolve()):
            return path
        if os.path.lexists(path):
            self.left_out[path] = None
        return None

    @cached_property
    def settings(self) -> Settings | None:
        """Those of its config.yaml; None where that is missing, or is for another program or version."""
        file = self.file("config.yaml")
        with contextlib.suppress(UserError, SystemExit), contextlib.redirect_stderr(io.StringIO()):
            return parse(["--config", str(file)]) if file else None
        return None

    @cached_property
    def written(self) -> dict[str, str]:
        """Settings as text, by name."""
        import yaml

        file = self.file("config.yaml")
        values: dict[str, Any] = {}
        if self.settings is not None:
            # What the run left out had no effect, which may be known from its environment alone.
            acted = yaml.safe_load(to_yaml(self.settings))
            values = {name: value for name, value in acted.items() if name in self.settings.given}
        elif file:
            with contextlib.suppress(UserError):
                values = read_mapping("report", str(file), "name: value", empty=True)
        command = values.pop("command", None)
        values |= {f"command.{name}": each for name, each in command.items()} if isinstance(command, dict) else {}
        return {name: as_text(value) for name, value in values.items()}

    @cached_property
    def known(self) -> Mapping[str, Flag]:
        """Its settings with their defaults, where a preset and its like chose them that one's, and meanings."""
        if self.settings is None:
            return {}
        run = self.settings.run
        return chosen_flags(run.implementation, run.gamename, self.written)

    @property
    def films(self) -> list[Path]:
        """The film of the end, those of evaluations, and the last of those on the way."""
        patterns = ("final.mp4", "eval_*.mp4", "epoch_*.mp4")
        end, evaluations, epochs = (sorted((self.path / "videos").glob(pattern)) for pattern in patterns)
        shown = (self.file("videos", path.name) for path in (*end, *evaluations, *epochs[-1:]))
        return [path for path in shown if path]


def say_versions_of(groups: Sequence[Group], run_dirs: Sequence[Path], flag: str) -> None:
    """`say_versions` for groups found in ``run_dirs``, all of which stay in the command."""
    given = shlex.quote(near(run_dirs[0])) if len(run_dirs) == 1 else "..."
    left = {folder: others for group in groups for folder, others in group.left.items()}
    say_versions(left, f"--{flag} {given}")


def say_version_of(path: str, taken: Path, flag: str) -> None:
    """`say_versions` for the file that was taken of what a flag names."""
    runs = versions(Path(path))[::-1]
    counts = next((run for run in runs if run in taken.parents), None)
    if counts and len(runs) > 1:
        say_versions({counts: [run for run in runs if run != counts]}, f"--{flag}")


def say_versions(left: Mapping[Path, Sequence[Path]], words: str) -> None:
    """Print a note if only the newest versions of runs are used. ``left`` maps these to the unused older ones. The note
    shows how to use an older one: its path after the ``words`` of a command."""
    if not left:
        return
    counts, others = next(iter(left.items()))
    also = f", and the newest of {len(left) - 1} runs more" if len(left) > 1 else ""
    instead = ", ".join(other.name for other in others)
    note(
        f"the newest version of a run counts: {counts.name} of {counts.parent.name} (not {instead}){also}; to take "
        f"another, name it: {words} {shlex.quote(near(others[0]))}"
    )


def near(path: Path) -> str:
    """A path as one would type it from here."""
    whole, here = path.resolve(), Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(whole)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else word(value, ",")
