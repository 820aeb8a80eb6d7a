"""What `--plot` draws of the seeds of a group, from run folders or from the numbers of an earlier figure; and what the
groups, and their figure, are called."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from control.cli.files import read_json
from control.reports import panels
from control.reports.runs import Array, Group, logged, return_tags
from control.reports.style import Look
from control.reports.tables import table
from control.reports.tags import TAGS, of_search, tags
from models.settings import SettingError

_LARGEST = 20_000_000  # bytes of the numbers of a figure


@dataclass
class Arm:
    """What is drawn of the seeds of one group. ``curves``: by tag the steps ``[G]`` and values ``[N, G]``;
    ``scores``: by tag of a return the mean over the last tenth of the epochs ``[N]``, of each seed. ``label`` tells it
    from the others of its environment, which is ``game`` where several are shown."""

    label: str
    names: tuple[str, ...]
    seeds: int
    curves: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    scores: dict[str, Array] = field(default_factory=dict)
    game: str = ""

    @property
    def search(self) -> bool:
        return of_search((*self.curves, *self.scores))

    @property
    def environment(self) -> str:
        """As `--gamename` has it, where the folder's name still tells."""
        return self.names[0].replace("_", ",", 1) if "=" in self.names[0] else self.names[0]


def arm_of(group: Group, label: str) -> Arm:
    shown_tags = [*return_tags(group.runs), *logged(group.runs, tags("return", "loss"))]
    curves = {tag: panels.on_grid(group.runs, tag) for tag in dict.fromkeys(shown_tags)}
    finals = {tag: np.array([run.last(tag) for run in group.runs]) for tag in curves if TAGS[tag].kind == "return"}
    finals = {tag: values[np.isfinite(values)] for tag, values in finals.items()}
    return Arm(label, group.names, len(group.runs), curves, finals)


def read_numbers(path: Path) -> tuple[str, dict[str, Any], list[Arm]]:
    """Title, summary and arms of a JSON that `plot` wrote. Raises SettingError."""
    try:
        content = read_json(path, _LARGEST)
        title, arms = str(content["runs"]), []
        table(title, content["groups"])  # raises an error for a value that the loop below does not check
        for label, group in content["groups"].items():
            curves = {
                tag: (
                    np.array(curve["env_steps"], float).reshape(len(curve["env_steps"])),
                    np.array(curve["seeds"], float).reshape(len(curve["seeds"]), len(curve["env_steps"])),
                )
                for tag, curve in group.get("curves", {}).items()
            }
            finals: dict[str, list[float]] = {}
            for numbers in group["seeds"].values():
                for tag, number in numbers.items():
                    if tag in TAGS and (last := number["last"]) is not None:
                        finals.setdefault(tag, []).append(last)
            # Those of old files say it in title and label.
            names = tuple(map(str, group.get("names") or [*title.split(", "), *label.split("/")]))
            by_tag = {tag: np.array(finals[tag], float) for tag in TAGS if tag in finals}
            arms.append(Arm(label, names, len(group["seeds"]), curves, by_tag))
        return title, content["groups"], arms
    except OSError as error:
        raise SettingError(f"plot is '{path}', which cannot be read: {error.strerror}") from None
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError):
        raise SettingError(
            f"plot is '{path}', which --plot did not write; allowed: run folders, or a JSON file that it wrote"
        ) from None


def labelled(names: Sequence[tuple[str, ...]]) -> tuple[list[str], str]:
    """What tells each group from the others, and what they share."""
    if len({len(parts) for parts in names}) > 1:
        return ["/".join(parts) for parts in names], ""
    differs = [len(set(level)) > 1 for level in zip(*names, strict=True)]
    shared = ", ".join(name for name, differ in zip(names[0], differs, strict=True) if not differ)
    return ["/".join(compress(parts, differs)) or parts[-1] for parts in names], shared


def name_rows(arms: Sequence[Arm]) -> str:
    """Where there are several environments, whose returns share no scale, give each arm its own and a label that does
    not name it. What all labels begin with, up to a - or _, is left out of them and given back."""
    environments = {arm.names[0] for arm in arms}
    if len(environments) > 1 and all(len(arm.names) >= 3 for arm in arms):
        short, _ = labelled([arm.names[1:] for arm in arms])
        for arm, label in zip(arms, short, strict=True):
            arm.label, arm.game = label, arm.names[0]
    distinct = {arm.label for arm in arms}
    start = re.match(r".*[-_]", os.path.commonprefix(sorted(distinct)) if len(distinct) > 1 else "")
    if not start or not all(re.search("[a-zA-Z]", label[start.end() :]) for label in distinct):
        return ""
    for arm in arms:
        arm.label = arm.label[start.end() :]
    return start[0].strip("-_")


def default_name(folder: Path, arms: Sequence[Arm], look: Look) -> Path:
    """`plot_lunarlander_RCP-A_UDRL.png` in ``folder``."""
    games = sorted({arm.names[0] for arm in arms}) if all(len(arm.names) >= 3 for arm in arms) else []
    words = games if len(games) <= 3 else [f"{len(games)}_environments"]
    kinds = sorted({arm.label for arm in arms})
    words += kinds if len(kinds) <= 4 else [f"{len(kinds)}_groups"]
    words += ["dark"] * (look.theme == "dark") + ["log"] * look.log
    stem = re.sub(r"[^\w.+-]+", "-", "_".join(["plot", *words]))[:80]
    return folder / f"{stem}.{(look.formats or ('png',))[0]}"


def has_numbers(path: Path) -> bool:
    """Whether a file is JSON that `control.reports.groups.plot` wrote."""
    try:
        return {"runs", "groups"} <= read_json(path, _LARGEST).keys()
    except (OSError, ValueError, AttributeError):
        return False
