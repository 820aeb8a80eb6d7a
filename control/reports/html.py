"""Pages in HTML. A page is a single file that needs no others, with figures in the page's colours. The layout of all
pages is `layout.html.j2`; the content of a page is another template in this folder.
"""

import base64
import functools
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from control.films.encoding import poster
from control.reports.figures import CYCLES, GREY, INK, INKS, PAPER, RULES
from control.storage.versions import versions

_MEDIA = {".svg": "image/svg+xml", ".mp4": "video/mp4", ".png": "image/png"}


class Picture(NamedTuple):
    """A figure as a ``url``, with a description ``alt``. ``narrow``, if not empty, is a drawing for telephones."""

    url: str
    alt: str
    title: str = ""
    narrow: str = ""


def render_page(template: str, title: str, description: str, **values: Any) -> str:
    """Return the HTML of a page with ``title`` and ``description``. Its content is the file ``template`` in this
    folder, which uses the ``values``. Sections with headings ``<h2 id=...>`` are listed at the top."""
    templates = _templates()
    values["content"] = Markup(templates.get_template(template).render(**values))
    values["sections"] = re.findall(r'<h2 id="([^"]*)">([^<]*)', values["content"])
    values |= {"title": title, "description": description}
    values |= {"date": time.strftime("%Y-%m-%d"), "version": versions()["understudy"]}
    return templates.get_template("layout.html.j2").render(**values)


@functools.cache
def _templates() -> Environment:
    """Return the templates in this folder, with their filters: functions such as ``{{ path|data_url }}`` in HTML."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data_url"] = data_url
    environment.filters["poster"] = lambda film: base64.b64encode(poster(film)).decode()
    environment.filters["with_code"] = _mark_code
    # Line breaks do not divide a word with hyphens, or a flag and its value.
    words = re.compile(r"(--\w+ (?!-)\S+|\S+)")
    environment.filters["words"] = lambda text: Markup(words.sub(r"<span>\1</span>", str(escape(text))))
    environment.globals["cycles"] = CYCLES
    return environment


def _mark_code(text: str) -> Markup:
    """Return the HTML of a text. Words between backquotes are code, and text after the first line is faint. Flags and
    numbers such as ``1e-05`` are not divided at their hyphens."""
    html = re.sub(r"--\w+|\d[\d.]*e-\d+", r'<span class="whole">\g<0></span>', str(escape(text)))
    first, line_break, rest = re.sub(r"`([^`]+)`", r"<code>\1</code>", html).partition("\n")
    return Markup(f'{first}<br><span class="faint">{rest}</span>' if line_break else first)


def data_url(path: Path) -> str:
    """Return a film or a picture as a URL ``data:TYPE;base64,...``. An SVG, which cannot run scripts, is recoloured."""
    content = path.read_bytes()
    if path.suffix == ".svg":
        # An image does not inherit the page's style, so the SVG needs a copy. It goes right after the tag <svg ...>,
        # which is the first and so ends with the first ">".
        theme = _templates().get_template("theme.css.j2").render()
        style = f"<style>{theme} svg {{ color: var(--ink); fill: currentColor; }}</style>"
        content = _recolour(content.decode("utf-8", "replace")).replace(">", f">{style}", 1).encode()
    return f"data:{_MEDIA[path.suffix]};base64,{base64.b64encode(content).decode()}"


def _recolour(svg: str) -> str:
    """Return an SVG of matplotlib in the page's colours, without metadata, and with coordinates of two decimals."""
    text = svg[svg.find("<svg") :]  # without the XML declaration
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)  # comments
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)  # coordinates
    theme = "dark" if PAPER["dark"] in text else "light"
    cycle = [colour.lower() for colour in CYCLES[theme]]
    variables = {colour: f"var(--c{number})" for number, colour in enumerate(cycle)}
    ink, grey = cycle[int(INK[1:])], cycle[int(GREY[1:])]  # INK and GREY are places in the cycle, such as "C6"
    variables |= {ink: "currentColor", grey: "var(--faint)", INKS[theme]: "currentColor"}
    variables |= {PAPER[theme]: "var(--paper)", RULES[theme]: "var(--rule)"}
    text = re.sub(r"#[0-9a-fA-F]{6}\b", lambda colour: variables.get(colour[0].lower(), colour[0]), text)
    return re.sub(r">\s+<", "><", text)  # space between elements
