"""How figures look: width of a page, fonts, colours of a light and of a dark page, file formats. Every figure of the
project takes them from here.

Imports no matplotlib, which takes half a second that `--help` and flag errors must not pay.
"""

import logging
from dataclasses import dataclass
from typing import Any

# On a new machine matplotlib looks for fonts, and says so amid what we print.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

FORMATS = ("png", "pdf", "svg")
THEMES = ("light", "dark")
WIDTH = 7.0  # inches across a page, about 180 mm
DPI = 200

# Colours by their place in the theme's cycle, which matplotlib looks up while it draws. The last is
# for what is no measurement.
COLOURS = tuple(f"C{i}" for i in range(12))
INK = "C6"
GREY = "C12"
# Okabe and Ito's palette, told apart under every common colour blindness; its yellow is too faint for a line on white,
# and its blue on black. Then five of Tol's muted palette, then grey.
_CYCLES = {
    "light": ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000",
              "#882255", "#44AA99", "#999933", "#332288", "#9C5B3B", "#6b6b6b"),
    "dark": ("#4AA8E8", "#FF8A3D", "#2CC69A", "#E39AC4", "#9AD8FF", "#F0C24B", "#FFFFFF",
             "#D0648F", "#6FD0C0", "#C8C860", "#A9A0F0", "#C98A6A", "#9aa4af"),
}  # fmt: skip
_PAPER = {"light": "#ffffff", "dark": "#0d1117"}
_INK = {"light": "#1a1a1a", "dark": "#e6edf3"}
_RULES = {"light": "#e4e4e4", "dark": "#2a313a"}


@dataclass(frozen=True)
class Look:
    """What a user may choose of a figure. ``formats`` are those to write, none of them for that of the file's name;
    ``log`` asks for a logarithmic axis of returns."""

    theme: str = "light"
    formats: tuple[str, ...] = ()
    log: bool = False


PLAIN = Look()


def look_of(run: Any) -> Look:
    """What the settings of a run (`control.cli.settings.RunConfig`) say of its figures."""
    return Look(run.plot_theme, tuple(dict.fromkeys(run.plot_format or ())), run.plot_log)


def parameters(theme: str) -> Any:
    """matplotlib's parameters of a theme. Fonts are embedded: as TrueType in PDF, as outlines in SVG."""
    from cycler import cycler

    ink, paper = _INK[theme], _PAPER[theme]
    coloured = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    return dict.fromkeys(coloured, ink) | {
        "axes.prop_cycle": cycler(color=_CYCLES[theme]),
        "figure.facecolor": paper, "axes.facecolor": paper, "savefig.facecolor": paper, "patch.edgecolor": paper,
        "figure.dpi": DPI, "savefig.dpi": DPI,
        "font.size": 8, "axes.titlesize": 8.5, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
        "legend.fontsize": 7.5, "figure.titlesize": 10,
        "axes.titlelocation": "left", "axes.titlepad": 5, "axes.linewidth": 0.7, "lines.linewidth": 1.4,
        "xtick.major.width": 0.7, "ytick.major.width": 0.7, "xtick.major.size": 3, "ytick.major.size": 3,
        "axes.spines.top": False, "axes.spines.right": False,
        "axes.grid": True, "axes.axisbelow": True, "grid.color": _RULES[theme], "grid.linewidth": 0.6,
        "legend.frameon": False, "legend.handlelength": 1.8, "legend.columnspacing": 1.6,
        "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "understudy",
    }  # fmt: skip
