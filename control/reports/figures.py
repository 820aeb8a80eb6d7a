"""Figures of panels: width, colours, fonts, files, title, legend and note.

Every figure of the project is drawn by `figure_panels`. Axes are matplotlib's. It is imported on first use, because the
import takes half a second, too long for `--help` and errors of flags.
"""

import contextlib
import errno
import hashlib
import json
import logging
import math
import re
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from control.storage.run_dir import atomic_file, atomic_write_text
from models.settings import SettingError

# On a new machine matplotlib prints that it searches for fonts. A letter that the font lacks becomes a box.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", "Glyph .* missing from font")

FORMATS = ("png", "pdf", "svg")
THEMES = ("light", "dark")
WIDTH = 7.0  # inches across a page, about 180 mm
NARROW = 3.0  # inches across a telephone, and across a card of TensorBoard
DPI = 200

# Names of colours by their place in the cycle of the theme. Matplotlib looks up the colour when it draws.
COLOURS = tuple(f"C{i}" for i in range(12))
INK = "C6"
GREY = "C12"  # colour of lines that show no measurement
# Palette of Okabe and Ito, safe for all common kinds of colour blindness. Two of its colours are replaced: yellow, too
# faint on white, and blue, too faint on black. Five colours of Tol's muted palette follow, then grey.
CYCLES = {
    "light": ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000",
              "#882255", "#44AA99", "#999933", "#332288", "#9C5B3B", "#6b6b6b"),
    "dark": ("#4AA8E8", "#FF8A3D", "#2CC69A", "#E39AC4", "#9AD8FF", "#F0C24B", "#FFFFFF",
             "#D0648F", "#6FD0C0", "#C8C860", "#A9A0F0", "#C98A6A", "#9aa4af"),
}  # fmt: skip
PAPER = {"light": "#ffffff", "dark": "#0d1117"}
INKS = {"light": "#1a1a1a", "dark": "#e6edf3"}
RULES = {"light": "#e4e4e4", "dark": "#2a313a"}

_NOTE_LETTERS, _LABEL_LETTERS, _LEGEND_LETTERS, _TITLE_LETTERS = 21, 15, 15, 12  # letters per inch
_HANDLE_LETTERS = 7  # width of the line beside a label of the legend, in letters
_NOTE_LINE, _LEGEND_LINE, _TITLE_LINE = 0.125, 0.15, 0.192  # heights of a line in inches


@dataclass(frozen=True)
class FigureStyle:
    """Appearance of a figure. If ``formats`` is empty, the suffix of the file is the format. ``log`` asks for a
    logarithmic axis of returns. With ``narrow``, the figure is also drawn with all panels in a single column, for
    telephones and TensorBoard, in files ``STEM_narrow``."""

    theme: str = "light"
    formats: tuple[str, ...] = ()
    log: bool = False
    narrow: bool = False

    def path(self, folder: Path, stem: str) -> Path:
        """Return the file of a figure, ``stem`` with the first of the formats, or else ``png``, as suffix."""
        return folder / f"{stem}.{self.formats[0] if self.formats else 'png'}"

    def with_svg(self) -> "FigureStyle":
        """Return the style of a figure that is also written as SVG, wide and narrow, for pages in HTML."""
        formats = dict.fromkeys([*(self.formats or ("png",)), "svg"])  # each once
        return replace(self, formats=tuple(formats), narrow=True)


DEFAULT_STYLE = FigureStyle()


def style_of(run: Any) -> FigureStyle:
    """Return the style of figures in the settings of a run (`control.cli.settings.RunConfig`)."""
    return FigureStyle(run.plot_theme, tuple(dict.fromkeys(run.plot_format or ())), run.plot_log)  # each format once


def show(text: str, numbers: Any, draw: Callable[[Path], None], target: Path, setting: str = "out") -> None:
    """Show a result: print the table ``text``, call ``draw(target)`` to write its figure, and write the ``numbers`` as
    JSON beside it. Raises SettingError about the ``setting`` if a file cannot be written, before anything is
    printed."""
    numbers_path = target.with_suffix(".json")
    check_writable(setting, target, numbers_path)
    print(text)
    draw(target)
    write_numbers(numbers_path, numbers)
    print(f"\nFigure:  {target}\nNumbers: {numbers_path}")


def write_numbers(path: Path, numbers: Any) -> None:
    """Write ``numbers`` as JSON, with lists of numbers on a single line, so that files can be compared line by line."""
    text = json.dumps(numbers, indent=2)
    # Replace the line breaks in lists that contain no other list and no mapping.
    text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    atomic_write_text(path, text + "\n")


def output_file(out: Path, setting: str, stem: str, formats: Sequence[str] = FORMATS) -> Path:
    """Return the file to write: ``out`` or, if that is a folder, the file ``stem`` in this folder with the first of
    ``formats`` as suffix. A path without suffix is a folder, unless it is an existing file. Raises SettingError about
    the ``setting`` for a file with a suffix that is not in ``formats``."""
    if out.is_dir() or not (out.suffix or out.is_file()):
        out = out / f"{stem}.{formats[0]}"
    if out.suffix.removeprefix(".").lower() not in formats:
        allowed = ", ".join(f".{suffix}" for suffix in formats)
        raise SettingError(f"{setting} is '{out}'; allowed: a folder, or a file ending in {allowed}", setting)
    return out


def figure_file(out: Path, setting: str = "plot_out", style: FigureStyle = DEFAULT_STYLE, stem: str = "plot") -> Path:
    """Return the `output_file` of a figure. A suffix that is not among the formats of ``style`` becomes the first
    one."""
    path = output_file(out, setting, stem)
    if style.formats and path.suffix[1:].lower() not in style.formats:
        path = path.with_suffix(f".{style.formats[0]}")
    return path


def check_writable(setting: str, *paths: Path) -> None:
    """Create the folders of files to write. Raises SettingError about the ``setting`` if a file cannot be written."""
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path.parent).close()  # raises if no file can be made in the folder
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "it is a folder")
    except OSError as error:
        raise SettingError(f"{setting} is '{paths[0]}', which cannot be written: {error.strerror}") from error


Cells = list[list[int]]
"""Layout of a figure: for each row, the index of the panel in each cell. A panel may span several cells."""


def rows(*lengths: int) -> Cells:
    """Return the layout of rows with ``lengths`` panels, without rows of length 0. Panels of shorter rows span more
    cells, so that no cell is empty: ``rows(1, 2)`` is ``[[0, 0], [1, 2]]``."""
    filled_lengths = [length for length in lengths if length]
    columns = math.lcm(*filled_lengths)
    cells = []
    first_panel = 0  # index of the first panel of a row
    for length in filled_lengths:
        cells.append([first_panel + column * length // columns for column in range(columns)])
        first_panel += length
    return cells


def row_lengths(panels: int, max_columns: int = 3) -> list[int]:
    """Divide panels into rows of at most ``max_columns``. Return their lengths, as equal as possible: [3, 2] for 5."""
    num_rows = math.ceil(panels / max_columns)
    return [len(row) for row in np.array_split(range(panels), num_rows)] if panels else []


def figure_files(target: Path, style: FigureStyle) -> list[Path]:
    """Return the files of a figure: ``target`` with the suffix of each format of ``style``, or else ``target``."""
    return [target.with_suffix(f".{name}") for name in style.formats or (target.suffix[1:].lower(),)]


def narrow_file(target: Path) -> Path:
    """Return the file of the narrow drawing of a figure (`FigureStyle`)."""
    return target.with_stem(f"{target.stem}_narrow")


@contextlib.contextmanager
def figure_panels(
    target: Path,
    cells: Cells,
    size: tuple[float, float],
    style: FigureStyle = DEFAULT_STYLE,
    numbers_path: Path | None = None,
    *,
    title: str = "",
    note: str = "",
    widths: Sequence[float] | None = None,
    heights: Sequence[float] | None = None,
) -> Iterator[list[Any]]:
    """Context manager that makes a figure: it yields the axes of the panels to draw into, and writes the `figure_files`
    at the end of the block. ``cells`` is the layout of the panels (`rows`), and ``size`` the width and height of all
    panels in inches, without title, legend and note. ``widths`` and ``heights`` are ratios of columns and rows. Panels
    without data are hidden. Panels without a legend share one. A PNG stores the SHA-256 of the file
    ``numbers_path``."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_parameters(style.theme)):
        figure = Figure(figsize=size, layout="constrained")
        # The type stubs allow only names of panels, not indices.
        panels: Any = figure.subplot_mosaic(cells, width_ratios=widths, height_ratios=heights)  # type: ignore[arg-type]
        axes = [panels[number] for number in sorted(panels)]
        yield axes
        for axis in axes:
            axis.set_visible(axis.has_data())
        _frame(figure, axes, title, note)
        _save(figure, target, style, numbers_path)
        if style.narrow:
            _stack(figure, axes, size[1])
            _frame(figure, axes, title, note)
            figure.draw_without_rendering()  # the layout needs two passes for so different a size
            _wrap_words(axes)
            _save(figure, narrow_file(target), style, numbers_path)


def _save(figure: Any, target: Path, style: FigureStyle, numbers_path: Path | None) -> None:
    """Write the `figure_files`, without a date: equal figures are equal files. A PNG stores the hash of the numbers."""
    metadata: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    if numbers_path:
        metadata["png"] = {"Numbers": hashlib.sha256(numbers_path.read_bytes()).hexdigest()}
    for path in figure_files(target, style):
        with atomic_file(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:], metadata=metadata[path.suffix[1:]])


def _stack(figure: Any, axes: Sequence[Any], height: float) -> None:
    """Move the panels of a figure, whose rows have together this ``height`` in inches, into a single narrow column."""
    ratios = axes[0].get_gridspec().get_height_ratios()
    heights = [height * ratios[axis.get_subplotspec().rowspan.start] / sum(ratios) for axis in axes]
    for axis, place in zip(axes, figure.add_gridspec(len(axes), height_ratios=heights), strict=True):
        axis.set_subplotspec(place)
    # `_frame` adds legend and note a second time. The first text is the title, which `_frame` replaces.
    for artist in [*figure.legends, *figure.texts[1:]]:
        artist.remove()
    figure.set_size_inches(NARROW, sum(heights))


def _wrap_words(axes: Sequence[Any]) -> None:
    """Break the titles and the labels below panels of a narrow figure into lines that end at its edge."""
    for axis in axes:
        box = axis.get_position()
        set_title(axis, axis.get_title("left"), NARROW * (1 - box.x0))
        centre = (box.x0 + box.x1) / 2
        letters = int(2 * NARROW * min(centre, 1 - centre) * _LABEL_LETTERS)
        axis.set_xlabel(textwrap.fill(axis.get_xlabel(), letters))


def set_title(axis: Any, title: str, width: float) -> None:
    """Set the ``title`` of a panel, broken into lines that fit ``width`` inches."""
    letters = max(12, int(width * _LABEL_LETTERS))
    axis.set_title(textwrap.fill(title, letters))


def set_row_labels(axis: Any, labels: Sequence[str]) -> None:
    """Label the rows 0, 1, ... of a panel, from the top to the bottom."""
    axis.set_yticks(range(len(labels)), labels)
    margin = 0.6  # distance from the middle of the first and the last row to the edge
    axis.set_ylim(len(labels) - 1 + margin, -margin)  # reversed: row 0 is at the top
    axis.tick_params(axis="y", length=0)
    axis.grid(False, axis="y")


def _frame(figure: Any, axes: Sequence[Any], title: str, note: str) -> None:
    """Add title, legend and note around the panels. The figure becomes higher, so that the panels keep their size."""
    width, panel_height = figure.get_size_inches()
    title = textwrap.fill(title, int(_TITLE_LETTERS * width))
    note = textwrap.fill(note, int(_NOTE_LETTERS * width))
    handles: dict[str, Any] = {}  # label -> line of the first panel with this label
    for axis in axes:
        if axis.get_legend() is None:
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
    column_letters = max(map(len, handles), default=0) + _HANDLE_LETTERS
    letters = int(_LEGEND_LETTERS * width)  # number of letters in a line of the legend
    columns = max(1, letters // column_letters)
    labels = [textwrap.fill(label, letters - _HANDLE_LETTERS) for label in handles]
    legend_lines = math.ceil(sum(len(label.splitlines()) for label in labels) / columns)
    # Heights in inches, with space around the text.
    title_height = 0.04 + _TITLE_LINE * len(title.splitlines())
    legend_height = 0.04 + _LEGEND_LINE * legend_lines
    note_height = 0.04 + _NOTE_LINE * len(note.splitlines())
    height = panel_height + title_height + legend_height + note_height
    figure.set_size_inches(width, height)
    figure.get_layout_engine().set(rect=(0, note_height / height, 1, panel_height / height))
    figure.suptitle(title, x=0.05 / width, y=1 - 0.05 / height, ha="left", va="top", weight="bold")
    if handles:
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, 1 - title_height / height)}
        figure.legend(list(handles.values()), labels, ncols=columns, borderaxespad=0.2, **place)
    figure.text(0.05 / width, 0.03 / height, note, ha="left", va="bottom", fontsize=6.5, color=GREY)


def _parameters(theme: str) -> Any:
    """Return matplotlib's parameters of a theme. Fonts are embedded: as TrueType in PDF, as outlines in SVG."""
    from cycler import cycler

    ink, paper = INKS[theme], PAPER[theme]
    coloured = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    return dict.fromkeys(coloured, ink) | {
        "axes.prop_cycle": cycler(color=CYCLES[theme]),
        "figure.facecolor": paper, "axes.facecolor": paper, "savefig.facecolor": paper, "patch.edgecolor": paper,
        "figure.dpi": DPI, "savefig.dpi": DPI,
        "font.size": 8, "axes.titlesize": 8.5, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
        "legend.fontsize": 7.5, "figure.titlesize": 10,
        "axes.titlelocation": "left", "axes.titlepad": 5, "axes.linewidth": 0.7, "lines.linewidth": 1.4,
        "xtick.major.width": 0.7, "ytick.major.width": 0.7, "xtick.major.size": 3, "ytick.major.size": 3,
        "axes.spines.top": False, "axes.spines.right": False,
        "axes.formatter.useoffset": False,  # no tick such as 1e-5 beside an offset
        "axes.grid": True, "axes.axisbelow": True, "grid.color": RULES[theme], "grid.linewidth": 0.6,
        "legend.frameon": False, "legend.handlelength": 1.8, "legend.columnspacing": 1.6,
        "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "understudy",
    }  # fmt: skip
