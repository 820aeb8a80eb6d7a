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
        logged_tags = list(self.summary["over_seeds"])
        return next((tag for tag in (RUNNING_MEAN, GREEDY, MEAN_RETURN, *logged_tags) if tag in logged_tags), "")


def judged_by(subjects: Sequence[Subject]) -> list[str]:
    """The return to show of each: that by which it is judged or, where these differ between agents, the greedy one if
    all of them have it. Searches have returns of their own."""
    agents = [subject for subject in subjects if not subject.search]
    greedy_counts = [subject.summary["over_seeds"].get(GREEDY, {"n": 0})["n"] for subject in agents]
    if len({agent.tag for agent in agents}) > 1 and greedy_counts == [len(agent.group.runs) for agent in agents]:
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
            effective = yaml.safe_load(to_yaml(self.settings))
            values = {name: value for name, value in effective.items() if name in self.settings.explicit_names}
        elif file:
            with contextlib.suppress(UserError):
                values = read_mapping("report", str(file), "name: value", empty=True)
        command = values.pop("command", None)
        values |= {f"command.{name}": value for name, value in command.items()} if isinstance(command, dict) else {}
        return {name: as_text(value) for name, value in values.items()}

    @cached_property
    def flags(self) -> Mapping[str, Flag]:
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
        videos = (self.file("videos", path.name) for path in (*end, *evaluations, *epochs[-1:]))
        return [path for path in videos if path]


def say_versions_of(groups: Sequence[Group], run_dirs: Sequence[Path], flag: str) -> None:
    """`say_versions` for groups found in ``run_dirs``, all of which stay in the command."""
    run_path = shlex.quote(short_path(run_dirs[0])) if len(run_dirs) == 1 else "..."
    older_versions = {folder: older_runs for group in groups for folder, older_runs in group.older_versions.items()}
    say_versions(older_versions, f"--{flag} {run_path}")


def say_version_of(path: str, used_path: Path, flag: str) -> None:
    """`say_versions` for the file that was taken of what a flag names."""
    runs = versions(Path(path))[::-1]
    counts = next((run for run in runs if run in used_path.parents), None)
    if counts and len(runs) > 1:
        say_versions({counts: [run for run in runs if run != counts]}, f"--{flag}")


def say_versions(older_versions: Mapping[Path, Sequence[Path]], words: str) -> None:
    """Print a note if only the newest versions of runs are used. ``older_versions`` maps these to the unused older
    ones. The note shows how to use an older one: its path after the ``words`` of a command."""
    if not older_versions:
        return
    counts, older_runs = next(iter(older_versions.items()))
    also = f", and the newest of {len(older_versions) - 1} runs more" if len(older_versions) > 1 else ""
    instead = ", ".join(other.name for other in older_runs)
    note(
        f"the newest version of a run counts: {counts.name} of {counts.parent.name} (not {instead}){also}; to take "
        f"another, name it: {words} {shlex.quote(short_path(older_runs[0]))}"
    )


def short_path(path: Path) -> str:
    """A path as one would type it from here."""
    full_path, working_dir = path.resolve(), Path.cwd()
    return str(full_path.relative_to(working_dir)) if full_path.is_relative_to(working_dir) else str(full_path)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else word(value, ",")
