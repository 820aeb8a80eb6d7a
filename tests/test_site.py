"""The documentation as a site: what is changed of a page for it, and that Sphinx builds it without a warning."""

import json
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

from conftest import ROOT
from fake_runs import load_script
from helpers import completed


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "path", list(sys.path))  # which the script changes
        return load_script("../docs/conf")


def test_pictures_become_figures_and_links_to_folders_their_names(conf: ModuleType) -> None:
    page = """<picture>
<source media="(prefers-color-scheme: dark)" srcset="results/a_dark.png">
<img alt="Two curves" src="results/a.png">
</picture>

![A film](images/b.gif)

See [peers](../benchmarks/peers), [speed](benchmarks.md) and [a site](https://example.org).
"""
    text = conf.as_on_the_site(page, ROOT / "docs")
    assert re.findall(r":::{figure} (.+)", text) == ["results/a.png", "results/a_dark.png", "images/b.gif"]
    assert ":figclass: only-light\n\nTwo curves.\n:::" in text and ":figclass: only-dark\n\nTwo curves.\n:::" in text
    assert "<img" not in text and "See peers, [speed](benchmarks.md) and [a site](https://example.org)." in text


def test_numbers_are_links(conf: ModuleType) -> None:
    page = "![Seeds](results/lunarlander.png)\n\n`docs/results/gpu.json`, [`a`](results/gpu.json), `scores.json`.\n"
    text = conf.as_on_the_site(page, ROOT / "docs")
    assert text.count("Seeds. [Numbers](results/lunarlander.json).\n:::") == 2  # also of the narrow figure
    assert "\n[`docs/results/gpu.json`](/docs/results/gpu.json), [`a`](results/gpu.json), `scores.json`." in text
    assert conf.as_on_the_site("`gpu.json`", ROOT / "docs/results") == "[`gpu.json`](gpu.json)"


def attribute_values(page: str) -> list[str]:
    """The attributes of all elements of a page."""
    values: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: values.extend(f"{name}={value}" for name, value in attributes)  # type: ignore[method-assign]
    parser.feed(page)
    return values


def test_code_breaks_in_its_text_alone(conf: ModuleType) -> None:
    start = '<pre><div class="viewcode-block" id="a">\n<a class="viewcode-back" href="../docs/api.html#a-b">'
    page = conf.unbroken(f"{start}[docs]</a> of docs/api --lr 1\n</div></pre>")
    assert page.startswith(start) and "docs/<wbr>api" in page and '<span class="word">--lr</span>' in page
    assert attribute_values(page) == attribute_values(start) + ["class=word"]
    name = '<code class="literal"><span class="pre">tests/test_a.py::{}</span></code>'
    assert "<wbr>" not in conf.unbroken(name.format("test_b"))
    long_name = conf.unbroken(name.format("test_resumed_run"))
    assert "tests/<wbr>test_<wbr>a.py::<wbr>test_<wbr>resumed_<wbr>run" in long_name


def test_numbers_of_seeds_stay_on_a_line(conf: ModuleType) -> None:
    row = "<td><p>500, 472, -3.5</p></td><td>500, 472</td><td>1, 2, 3 agents</td>"
    assert conf.unbroken(row) == row.replace("500, 472, -3.5", '<span class="interval">500, 472, -3.5</span>')
    many = f"<td><p>{', '.join(['100'] * 12)}</p></td>"
    assert conf.unbroken(many) == many


def test_output_and_drawings_fit_the_narrowest_column_of_a_desktop() -> None:
    for page in (*ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/**/*.md"), *ROOT.glob("understudy/**/*.md")):
        for block in re.findall(r"^```text\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            assert max(map(len, block.splitlines())) <= 84, page


def test_a_telephone_shows_the_first_heading_of_a_table(conf: ModuleType) -> None:
    """It may hold the unit of a table whose rows stand below each other. Two headings of plain words are hidden."""
    style = (ROOT / "docs/_static/site.css").read_text()
    hidden = re.findall(r"^ *([^{}\n]*sentences[^{}\n]*) { display: none;", style, re.MULTILINE)
    shown = re.findall(r"^ *([^{}\n]*sentences[^{}\n]*) { display: inline;", style, re.MULTILINE)
    assert [selector for selector in hidden if "thead" in selector] == ["table.docutils.sentences.plain thead"]
    assert any("thead, th:first-child," in selector for selector in shown)
    assert conf.is_plain(["I want to", "page"]) and not conf.is_plain(["tag", "meaning", "unit"])
    assert not conf.is_plain(["run, on CartPole", "measured"]) and not conf.is_plain(["steps", "of 500"])


def test_formulas_need_no_script(conf: ModuleType) -> None:
    pytest.importorskip("docutils", reason="needs the extra docs")
    assert re.sub(r"\s", "", conf.mathml("c_v", False)).endswith("<msub><mi>c</mi><mi>v</mi></msub></math>")
    display = conf.mathml("c_v", True)
    assert 'display="block"' in display and attribute_values(display)[0] == "class=formula"


def test_every_picture_of_the_pages_is_understood(conf: ModuleType) -> None:
    for page in (*ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/**/*.md")):
        text = conf.as_on_the_site(page.read_text(), page.parent)
        assert not re.search(r"<(img|picture|source)\b", text), page
        for name in re.findall(r":::{figure} (.+)", text):
            assert (page.parent / name).is_file(), f"{page.name} shows {name}"


def test_the_page_for_a_browser_is_current_and_one_file(conf: ModuleType) -> None:
    page = (ROOT / "docs/live/index.html").read_text()
    assert page == conf.live_page(), "run python docs/conf.py"
    assert len(page.encode()) <= 40_000
    assert not re.search(r"\b(src|href)=|https?://|url\(", page)
    # A return of more digits must not move what is below it.
    assert ".figures figcaption { white-space: pre-line; }" in page and ":\\n${result}`" in page


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for package in ("sphinx", "furo", "myst_parser", "sphinx_copybutton"):
        pytest.importorskip(package, reason="needs the extra docs")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-n", "-W", "--keep-going", "-q"]
    command += ["-d", str(tmp_path / "read"), "-c", "docs", ".", str(tmp_path / "site")]
    completed(command, ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})
    start = (tmp_path / "site/docs/index.html").read_text()
    assert "docs/index.html" in (tmp_path / "site/index.html").read_text()
    assert all(f"how_to/{page.stem}.html" in start for page in ROOT.glob("docs/how_to/*.md"))
    assert "logo.svg" in start and "copybutton" in start
    settings = (tmp_path / "site/docs/settings/ppo.html").read_text()
    assert 'id="ppo-clip-range"' in settings and 'href="#ppo-clip-range"><code' in settings
    index = json.loads(re.sub(r"^Search.setIndex\((.*)\)$", r"\1", (tmp_path / "site/searchindex.js").read_text()))
    for page in (ROOT / "docs/settings.md", *ROOT.glob("docs/settings/*.md")):
        for listed in re.findall(r"Also\s(`[^.]+)\.", page.read_text()):
            assert set(re.findall(r"\w+", listed.lower())) <= set(index["indexentries"]), f"{page.name}: {listed}"
    names = {
        "ddqn": ["replay buffer"],
        "how_to/environment": ["custom environment"],
        "python": ["save model", "load model", "checkpoint"],
        "reliability": ["reproducibility", "determinism", "resume"],
        "synthetic_environments": ["bandit"],
        "tensorboard": ["logging", "metrics"],
    }
    for page, entries in names.items():
        number = index["docnames"].index(f"docs/{page}")
        assert all([number, ""] in [found[:2] for found in index["indexentries"][entry]] for entry in entries), page
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 50 and not [page for page in pages if "<wbr" in "".join(attribute_values(page.read_text()))]
    downloads = {path.name for path in (tmp_path / "site/_downloads").rglob("*.json")}
    assert downloads >= {path.name for path in ROOT.glob("docs/results/*.json")}
    ppo = (tmp_path / "site/docs/ppo.html").read_text()
    assert '<math display="block"' in ppo and not [
        value for value in attribute_values(ppo) if value.startswith("src=http")
    ]
    api = (tmp_path / "site/docs/api.html").read_text()
    assert all(
        f'id="{name}"' in api
        for name in (
            "trainer.train",
            "understudy.load",
            "control.commands.run.Run.predict",
            "models.settings.UserError",
        )
    )
