"""Parts of a page: tables, figures, films and text as HTML that needs nothing from elsewhere."""

import base64
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

_KINDS = {".mp4": "video/mp4", ".png": "image/png"}
# What figures are drawn in, and the colours of the page that take its place. Others stay as they are.
_COLOURS = {
    "#000000": "currentColor",
    "#1a1a1a": "currentColor",
    "#ffffff": "var(--paper)",
    "#e4e4e4": "var(--rule)",
    "#6b6b6b": "var(--faint)",
    "#0072b2": "var(--c0)",
    "#d55e00": "var(--c1)",
    "#009e73": "var(--c2)",
    "#cc79a7": "var(--c3)",
    "#56b4e9": "var(--c4)",
    "#e69f00": "var(--c5)",
    "#882255": "var(--c7)",
    "#44aa99": "var(--c8)",
    "#999933": "var(--c9)",
    "#332288": "var(--c10)",
    "#9c5b3b": "var(--c11)",
}


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{_class(kind)}>{escape(text)}</p>"


def link(target: str, text: str) -> str:
    return f'<a href="#{escape(target)}">{escape(text)}</a>'


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = True) -> str:
    """A table of texts. The first cell of a row is its heading; the others are ``numbers``, or words. It scrolls within
    itself where the page is narrow."""
    across = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>\n'
        for first, *rest in rows
    )
    return _scrolling(
        f"<table{_class('numbers' if numbers else '')}><caption>{escape(caption)}</caption>\n"
        f"<thead><tr>{across}</tr></thead>\n<tbody>\n{body}</tbody></table>",
        caption,
    )


def details(summary: str, content: str) -> str:
    """Content that opens on demand."""
    return f"<details><summary>{escape(summary)}</summary>\n{content}</details>"


def code(lines: Sequence[str]) -> str:
    """Commands for a shell."""
    text = re.sub(r"(?<!\S)--\w[\w.]*", r"<span>\g<0></span>", escape("\n".join(lines)))  # lines end beside flags
    return f'<pre tabindex="0"><code>{text}</code></pre>'


def drawing(svg: str, number: int, alt: str, caption: str) -> str:
    """A figure of matplotlib's, in the colours of the page. ``number`` keeps its names from those of other figures."""
    inner = svg[svg.index("<svg") :]
    inner = re.sub(r"<metadata>.*?</metadata>", "", inner, flags=re.DOTALL)
    inner = re.sub(r"<!--.*?-->\s*", "", inner, flags=re.DOTALL)
    inner = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>f{number}-", inner)
    inner = re.sub(r' d="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]), inner)
    inner = re.sub(r"#[0-9a-fA-F]{6}\b", lambda match: _COLOURS.get(match[0].lower(), match[0]), inner)
    inner = re.sub(r">\s+<", "><", inner)
    size = re.search(r'viewBox="[^"]*"', inner)
    rest = inner[inner.index(">") + 1 :]
    name = f'role="img" aria-label="{escape(alt)}"'
    image = f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" {size[0] if size else ""} {name}>{rest}'
    return _figure(_scrolling(image, alt), caption)


def picture(path: Path, alt: str, caption: str) -> str:
    """An image file, within the page."""
    image = f'<img src="{_data(path)}" alt="{escape(alt)}" loading="lazy">'
    return _figure(_scrolling(image, alt), caption)


def video(path: Path, alt: str, caption: str) -> str:
    """An mp4 within the page, which is played when asked to."""
    element = f'<video controls preload="metadata" aria-label="{escape(alt)}" src="{_data(path)}">{escape(alt)}</video>'
    return _figure(element, caption)


def _data(path: Path) -> str:
    return f"data:{_KINDS[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _figure(content: str, caption: str) -> str:
    return f"<figure>{content}<figcaption>{escape(caption)}</figcaption></figure>"


def _scrolling(content: str, name: str) -> str:
    """Content that scrolls by itself where it is wider than the page, by keys too."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{escape(name)}">{content}</div>'


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
