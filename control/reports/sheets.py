"""Sheets of panels, and books of sheets: a title and one legend above the panels, a note below, written to files.

Axes are matplotlib's, which is imported on first use.
"""

import contextlib
import hashlib
import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from control.reports.files import sheet_file
from control.reports.style import GREY, PLAIN, WIDTH, Look, parameters
from control.storage.run_dir import replacing

Cells = list[list[int]]
"""The layout of a sheet: in each row the numbers of its panels. A panel may span several cells; -1 is an empty cell."""

_NOTE_LETTERS = 21  # an inch, in the size of notes
_TITLE_LETTERS = 12
_LINE = 0.125  # inches of a line of the note
_HEAD = 0.24  # inches of the title


def grid(panels: int, columns: int) -> Cells:
    """The cells of ``panels`` panels, filled row by row."""
    return [[i if i < panels else -1 for i in range(row, row + columns)] for row in range(0, panels, columns)]


def rows(*lengths: int) -> Cells:
    """Rows of so many panels each. All rows are equally wide, so that none has a hole."""
    columns, cells, first = math.lcm(*(length for length in lengths if length)), [], 0
    for length in lengths:
        if length:
            cells.append([first + i * length // columns for i in range(columns)])
            first += length
    return cells


def balanced(panels: int, max_columns: int = 3) -> list[int]:
    """The lengths of rows for ``panels`` panels, at most ``max_columns`` in one, as equal as can be: 4 panels are 2 and
    2."""
    count = -(-panels // max_columns)
    return [panels // count + (i < panels % count) for i in range(count)]


class Book:
    """Sheets that belong together, written to ``target`` in every format of ``look``: the pages of one PDF, or a file
    for each, whose name ends with the sheet's but for the first. ``files`` are those that have been written. A PNG has
    the SHA-256 of the file ``numbers`` that it was drawn from, where one is given, as its text ``Numbers``."""

    def __init__(self, target: Path, look: Look = PLAIN, numbers: Path | None = None):
        self.look, self.target, self.files = look, target, list[Path]()
        digest = hashlib.sha256(numbers.read_bytes()).hexdigest() if numbers else None
        self.metadata: dict[str, Any] = {"svg": {"Date": None}, "png": {"Numbers": digest} if digest else {}}
        self.formats = look.formats or (target.suffix[1:].lower(),)
        self.pages: Any = None
        self.has_sheets = False

    def __enter__(self) -> "Book":
        import matplotlib

        self.stack = contextlib.ExitStack()
        # Until the end: a PDF chooses its fonts when it is closed.
        self.stack.enter_context(matplotlib.rc_context(parameters(self.look.theme)))
        if "pdf" in self.formats:
            from matplotlib.backends.backend_pdf import PdfPages

            path = sheet_file(self.target, "pdf")
            temporary = self.stack.enter_context(replacing(path))
            self.pages = self.stack.enter_context(PdfPages(temporary, metadata={"CreationDate": None}))
            self.files.append(path)
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)

    @contextlib.contextmanager
    def sheet(
        self,
        cells: Cells,
        size: tuple[float, float],
        *,
        name: str = "",
        title: str = "",
        note: str = "",
        widths: Sequence[float] | None = None,
        heights: Sequence[float] | None = None,
        legend: int = 2,
    ) -> Iterator[list[Any]]:
        """The axes of a sheet that is written at the end. ``size`` is that of the panels in inches, to which title,
        legend and note are added; ``widths`` and ``heights`` are those of columns and rows, relatively. Panels in which
        nothing was drawn are left out. The legend is one for all panels, names a label once, and is left out for fewer
        labels than ``legend``."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.text import Text

        figure = Figure(figsize=size, layout="constrained")
        by_number = _panels(figure, cells, widths, heights)
        axes = [by_number[number] for number in sorted(by_number)]
        yield axes
        for axis in axes:
            axis.set_visible(axis.has_data())
        renderer = FigureCanvasAgg(figure).get_renderer()
        _frame(figure, renderer, axes, size, title, note, legend)
        for text in figure.findobj(Text):
            _make_drawable(text)
        for form in self.formats:
            if form == "pdf":
                self.pages.savefig(figure)
                continue
            path = sheet_file(self.target, form, name if self.has_sheets else "")
            with replacing(path) as temporary:
                figure.savefig(temporary, format=form, metadata=self.metadata[form])
            self.files.append(path)
        self.has_sheets = True


def _panels(figure: Any, cells: Cells, widths: Any, heights: Any) -> dict[int, Any]:
    """The axes by their numbers. Rows of different lengths are laid out apart, since their columns do not meet."""
    lengths = [len(set(row)) for row in cells]
    separate = len(set(lengths)) > 1 and len({number for row in cells for number in row}) == sum(lengths)
    if not separate:
        return dict(
            figure.subplot_mosaic(cells, empty_sentinel=-1, width_ratios=widths, height_ratios=heights)  # type: ignore
        )
    axes: dict[int, Any] = {}
    for part, row in zip(figure.subfigures(len(cells), 1, height_ratios=heights), cells, strict=True):
        axes |= part.subplot_mosaic([list(dict.fromkeys(row))])
    return axes


@contextlib.contextmanager
def sheet(
    target: Path,
    cells: Cells,
    size: tuple[float, float],
    look: Look = PLAIN,
    numbers: Path | None = None,
    **options: Any,
) -> Iterator[Any]:
    """The axes of a figure of one sheet (`Book.sheet`)."""
    with Book(target, look, numbers) as book, book.sheet(cells, size, **options) as axes:
        yield axes


def _frame(
    figure: Any, renderer: Any, axes: Sequence[Any], size: tuple[float, float], title: str, note: str, legend: int
) -> None:
    """Put the title, the legend and the note around the panels, which keep their size."""
    width = size[0]
    heading = textwrap.fill(title, int(_TITLE_LETTERS * width)) if title else ""
    words = textwrap.fill(note, int(_NOTE_LETTERS * width)) if note else ""
    top = 0.05 + _HEAD * 0.8 * (heading.count("\n") + 1) if heading else 0.02
    labelled: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        labelled |= {name: handle for name, handle in zip(labels, handles, strict=True) if name not in labelled}
    legend_box: Any = None
    if labelled and len(labelled) >= legend:
        for columns in range(len(labelled), 0, -1):
            if legend_box is not None:
                legend_box.remove()
            legend_box = figure.legend(
                list(labelled.values()),
                list(labelled),
                loc="upper left",
                ncols=columns,
                bbox_to_anchor=(0, 1),
                borderaxespad=0.2,
            )
            for text in legend_box.get_texts():
                _make_drawable(text)
            extent = legend_box.get_window_extent(renderer)
            if extent.width <= 0.98 * width * figure.dpi:
                break
    bottom_margin = _LINE * (words.count("\n") + 1) + 0.05 if words else 0.0
    top_margin = top + (extent.height / figure.dpi if legend_box is not None else 0.0)
    height = size[1] + top_margin + bottom_margin
    figure.set_size_inches(width, height)
    figure.get_layout_engine().set(rect=(0, bottom_margin / height, 1, 1 - (top_margin + bottom_margin) / height))
    if heading:
        figure.suptitle(heading, x=0.05 / width, y=1 - 0.05 / height, ha="left", va="top", weight="bold")
    if legend_box is not None:
        legend_box.set_bbox_to_anchor((0, 1 - top / height))
    if words:
        figure.text(0.05 / width, 0.03 / height, words, ha="left", va="bottom", fontsize=6.5, color=GREY)


def set_title(axis: Any, words: str, width: float) -> None:
    """A title broken into lines that fit above a panel ``width`` inches wide."""
    axis.set_title(textwrap.fill(words, max(12, int(width * 15))))


def _make_drawable(text: Any) -> None:
    """Have a text drawn as it is: dollars as dollars, and what the font has not as ``\\u65e5``."""
    from matplotlib.font_manager import findfont, get_font

    words = text.get_text()
    text.set_parse_math("$" not in words)
    missing = set(map(ord, words)) - get_font(findfont(text.get_fontproperties())).get_charmap().keys() - {ord("\n")}
    text.set_text(
        words.translate({char_code: chr(char_code).encode("unicode_escape").decode() for char_code in missing})
    )


__all__ = ["WIDTH", "Book", "Cells", "balanced", "grid", "rows", "set_title", "sheet"]
