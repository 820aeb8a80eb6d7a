"""The documentation as a site: ``make docs``. The sources are the Markdown files as they are read in the repository.

The source folder is the repository, not docs/, so that links such as ``../experiments/...`` mean the same in both.
"""

import base64
import html
import json
import os
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

project = "Understudy"
author = "the Understudy authors"
copyright = author
metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
version = release = metadata["version"]
repository = metadata.get("urls", {}).get("Repository", "")  # its address on GitHub, once it has one

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
root_doc = "docs/index"
include_patterns = ["docs/**", "experiments/**.md", "understudy/**.md", "[CS]*.md"]
exclude_patterns = [".*", "build", "exp_dir", "**/__pycache__", "docs/_static"]
smartquotes = False  # which would make a dash of the two hyphens of a flag
default_role = "code"  # docstrings name what they speak of in single backticks
highlight_language = "none"  # of blocks without a language, such as output

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
add_module_names = False  # headings name the modules
python_maximum_signature_line_length = 80  # longer ones have a line for each parameter
copybutton_prompt_text = ">>> "
nitpick_ignore_regex = [("py:.*", r".*")]  # types of other libraries and of ours that have no page

# `make linkcheck` tries links to outside; those between pages are tested (tests/test_docs.py).
linkcheck_timeout = 20  # seconds
linkcheck_retries = 2
linkcheck_rate_limit_timeout = 60  # seconds to wait for a site that wants fewer requests
linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1)[:/]", r"https://example\.(org|com)"]  # only examples

html_theme = "furo"
html_math_renderer = "mathml"
pygments_dark_style = "github-dark"
html_title = f"Understudy {version}"
html_logo = html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs/search.js")
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e8a", "color-brand-content": "#0b6e8a"},
    "dark_css_variables": {
        "color-brand-primary": "#5cc3de",
        "color-brand-content": "#5cc3de",
        # The paper of dark figures (control/reports/figures.py), which is also GitHub's.
        "color-background-primary": "#0d1117",
        "color-background-secondary": "#151b23",
        "color-background-border": "#2f363e",
        "color-code-background": "#151b23",
    },
    "source_repository": repository,  # links to the source of each page
    "source_branch": "main",
    "source_directory": "",
}

# Pixels of PNGs by `control.reports.figures`: those as wide as a page, and those that a telephone shows as a whole.
CLASSES_BY_WIDTH = {1400: "panels", 700: "narrow"}
# Pictures of pages, whose paper is the site's.
CLASSES_BY_NAME = {"images/report": "page", "images/learned": "page"}
_PICTURE = re.compile(r'<picture>\n<source [^>]*srcset="([^"]+)">\n<img alt="([^"]+)" src="([^"]+)">\n</picture>')
_IMAGE = re.compile(r"^!\[([^\]]+)\]\(([^)]+)\)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([^):#]+)\)")
_NUMBERS = re.compile(r"(?<!\[)`([\w/]+\.json)`")
_LOOK = r"(_dark)?(_narrow)?\.png$"  # end of a picture's name
_NOTEBOOK = re.compile(r"\[[^\]]+\]\(([^):#]+\.ipynb)\)")


def _figure(source: str, caption: str, shown: str, folder: Path) -> str:
    """A figure with its description below it, and a link to the JSON file of its numbers if that is beside it;
    ``shown`` is a class of the theme, for light or dark pages alone. On a telephone, a file ``STEM_narrow`` replaces
    it."""
    narrow = Path(source).with_stem(f"{Path(source).stem}_narrow")
    if (folder / narrow).is_file() and "only-wide" not in shown:
        wide = _figure(source, caption, f"{shown} only-wide".strip(), folder)
        return wide + "\n" + _figure(str(narrow), caption, f"{shown} only-narrow".strip(), folder)
    header = path.read_bytes()[:20] if (path := folder / source).is_file() else b""
    name = re.sub(rf"^\.\./|{_LOOK}", "", source)
    kind = CLASSES_BY_NAME.get(name) or CLASSES_BY_WIDTH.get(int.from_bytes(header[16:20]), "")
    classes = f"{kind} {shown}".strip()
    options = f":alt: {caption}\n" + f":class: {classes}\n" * bool(classes) + f":figclass: {shown}\n" * bool(shown)
    numbers = re.sub(_LOOK, ".json", source)
    link = f" [Numbers]({numbers})." if numbers != source and (folder / numbers).is_file() else ""
    return f":::{{figure}} {source}\n{options}\n{caption}.{link}\n:::\n"


def with_badges(text: str, folder: Path, repository: str) -> str:
    """A Markdown page whose links to notebooks are followed by a badge that opens the notebook on Colab. ``repository``
    is an address on GitHub; if it is empty, there are no badges."""

    def with_badge(link: re.Match[str]) -> str:
        notebook = (folder / link[1]).resolve().relative_to(ROOT)
        address = repository.replace("https://github.com/", "https://colab.research.google.com/github/")
        badge = "![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)"
        return f"{link[0]} [{badge}]({address}/blob/main/{notebook})"

    return _NOTEBOOK.sub(with_badge, text) if repository else text


def _download(path: str, folder: Path) -> str:
    """The path of a file as code. It is a link if the file is there, in the folder of a page or in the repository."""
    addresses = [address for root, address in ((folder, path), (ROOT, f"/{path}")) if (root / path).is_file()]
    return f"[`{path}`]({addresses[0]})" if addresses else f"`{path}`"


def as_on_the_site(text: str, folder: Path) -> str:
    """A Markdown page as the site needs it: pictures are figures, a link to a folder is its name, the path of a JSON
    file from the page or from the repository is a link, what is only for readers of the repository is left out, and
    comments for the site are part of the page."""
    text = with_badges(text, folder, repository)
    text = re.sub(r"<!-- repository -->.*?<!-- /repository -->\n\n", "", text, flags=re.DOTALL)
    text = re.sub(r"<!-- site\n(.*?)-->", r"\1", text, flags=re.DOTALL)
    text = _PICTURE.sub(
        lambda it: _figure(it[3], it[2], "only-light", folder) + "\n" + _figure(it[1], it[2], "only-dark", folder), text
    )
    text = _IMAGE.sub(lambda it: _figure(it[2], it[1], "", folder), text)
    text = _NUMBERS.sub(lambda it: _download(it[1], folder), text)
    return _LINK.sub(lambda it: it[1] if (folder / it[2]).is_dir() else it[0], text)


LIVE_TASKS = ("CartPole", "Acrobot", "Pendulum", "MountainCar")
_COMMENT_OR_INDENT = re.compile(r"^ *(/\*([^*]|\*(?!/))*\*/|// .*)\n| +// .*$|^ +|^\n", re.MULTILINE)
_LINE_END = re.compile(r"(?<=[;{,])\n")  # which JavaScript does not need
_SPACE = re.compile(r'("[^"\n]*"|`[^`]*`)| *([=<>,;:?{}()|&*]+) *')  # beside signs, outside texts


def live_script() -> str:
    """The script of docs/live.md: the networks of shipped bandits, and docs/live/*.js without comments and spaces, on
    few lines.

    Tables of first states are left out; the script draws such states itself.
    """
    import understudy

    weights = {}
    for title in LIVE_TASKS:
        proxy = understudy.load(f"{title.lower()}-bandit")
        tensors = {key: tensor for key, tensor in proxy.tensors.items() if key != "states.table"}
        encoded = {key: base64.b64encode(tensor.astype("<f4").tobytes()).decode() for key, tensor in tensors.items()}
        weights[title] = {"activation": proxy.config["proxy_activation_fn"], "tensors": encoded}
    code = "".join((ROOT / "docs/live" / name).read_text() for name in ("learning.js", "page.js"))
    numbers = json.dumps(weights, separators=(",", ":"))
    code = _SPACE.sub(r"\1\2", _LINE_END.sub("", _COMMENT_OR_INDENT.sub("", code)))
    return f"const understudyWeights={numbers};\n{code}"


def live_page() -> str:
    """docs/live/index.html, the buttons of docs/live.md on a page that needs no other file."""
    layout, controls = ((ROOT / "docs/live" / name).read_text() for name in ("layout.html", "controls.html"))
    controls = controls.replace('<script src="../_static/live.js"></script>\n', "")
    return layout.replace("{controls}", controls.rstrip()).replace("{script}", live_script().rstrip())


def with_types(thing, lines: list[str]) -> list[str]:
    """A docstring of a function or a class, with types and defaults of its parameters."""
    from sphinx.util import inspect, typing

    found: list[str] = []
    for line in lines:
        if name := re.match(r":param (\w+):", line):
            parameter = inspect.signature(thing).parameters[name[1]]
            default = parameter.default
            text = "" if default is parameter.empty else f", default {inspect.object_description(default)}"
            found.append(f":type {name[1]}: {typing.stringify_annotation(parameter.annotation, 'smart')}{text}")
        found.append(line)
    return found


def _tidy_api(app, document):
    """Write dashes in lists of parameters, and the heading of attributes."""
    from docutils import nodes

    for fields in document.findall(nodes.field_list):
        for text in [text for text in fields.findall(nodes.Text) if text in (" -- ", "Variables")]:
            text.parent.replace(text, nodes.Text(" \N{EN DASH} " if text == " -- " else "Attributes"))


SHORT_CODE = 40  # letters that fit into a line on a telephone
_SOURCE = re.compile(r'src="([^"]+)"')


def _text(body: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", body))


def unbroken(body: str) -> str:
    """The HTML of a page whose code does not break at hyphens, nor between a flag and its value, but after the slashes
    of a path, and after other signs in a long name. Tables do not break ranges such as [1, 2], (1 to 2) and 1 [2],
    which are elements, nor short lists of numbers. Each line of code is an element. If it wraps, it continues two
    columns to the right of its start. Pictures wider than a telephone are links to their full size."""
    span = re.compile(r"\[-?[\d.,]+, -?[\d.,]+\]|\(-?[\d.,]+ to -?[\d.,]+\)|(?<=\d)\N{NO-BREAK SPACE}\[[\w.,]+\]")
    cell = re.compile(r"<td\b.*?</td>", re.S)
    # One number in brackets stays beside the number before it.
    body = cell.sub(lambda it: re.sub(r"(?<=\d) (?=\[([\d.,]+|never)\])", "\N{NO-BREAK SPACE}", it[0]), body)
    body = cell.sub(lambda it: span.sub(r'<span class="range">\g<0></span>', it[0]), body)
    # A cell with the numbers of a few seeds, which fit into a line of a telephone.
    seeds = re.compile(r"(<td\b[^>]*>(?:<p>)?)((?=[^<]{1,36}<)-?[\d.]+(?:, -?[\d.]+){2,})(?=</(?:p|td)>)")
    body = seeds.sub(r'\1<span class="interval">\2</span>', body)
    body = re.sub(r'<span class="pre">(?=[^<\s]{1,28}<)', '<span class="pre short">', body)
    long_name = re.compile(r'(?<=<span class="pre">)[^<]+')
    body = long_name.sub(lambda it: re.sub(r"(?<=[/:_=])(?=\w)", "<wbr>", it[0]), body)
    inline = re.compile(r'(<code class="[^"]*literal)([^"]*">)(.*?)(?=</code>)', re.S)
    body = inline.sub(lambda it: it[1] + " unbroken" * (len(_text(it[3])) <= SHORT_CODE) + it[2] + it[3], body)
    # A range in a sentence, such as [-1, 1], whose ends may be code.
    interval = re.compile(r"\[-(?:[^\[\]<>]|</?(?:code|span)\b[^>]*>){1,200}\]")
    body = re.sub(
        r"<p>.*?</p>", lambda it: interval.sub(r'<span class="interval">\g<0></span>', it[0]), body, flags=re.S
    )
    picture = re.compile(r'<img [^>]*class="[^"]*\b(?:panels|page)\b[^>]*>')
    body = picture.sub(lambda it: f'<a href="{_SOURCE.findall(it[0])[0]}">{it[0]}</a>', body)
    index = (
        r'<span class="p">[^<]*\[</span><span class="o">-</span><span class="mi">\d+</span><span class="p">[^<]*</span>'
    )
    body = re.sub(index, r'<span class="index">\g<0></span>', body)
    flag = r"-[^\s<]*<span class=\"w\"> </span>(?:[^\s<-][^\s<]*|<span class=\"m\">[^\s<]*</span>)"
    in_text = "(?![^<]*>)"  # not in an attribute
    word = re.compile(rf"(?<=[\s>])({flag}|[^\s<>]*-[^\s<>]*)(?=[\s<]){in_text}")
    slash = re.compile(rf"(?<=\w/)(?=\w){in_text}")
    block = re.compile(r"<pre>.*?</pre>", re.S)
    body = block.sub(lambda it: slash.sub("<wbr>", word.sub(r'<span class="word">\1</span>', it[0])), body)
    code = re.compile(r'(<div class="(?:doctest )?highlight-.*?<pre>(?:<span></span>)?)(.*?)(</pre>)', re.S)
    line = re.compile(r'((?:<span class="w">)?( *).*)\n')
    return code.sub(lambda it: it[1] + line.sub(_code_line, it[2]) + it[3], body)


def _code_line(found: re.Match[str]) -> str:
    return f'<span class="line" style="--indent: {len(found[2]) + 2}ch">{found[1]}\n</span>'


# Abbreviations in names of settings, as somebody may write them in a search.
_WORDS = {"coef": "coefficient", "ent": "entropy", "vf": "value", "obs": "observations", "lr": "learning rate"}
_WORDS |= {"num": "number of", "envs": "environments", "eps": "epsilon", "std": "standard deviation"}


def aliases(text: str) -> list[str]:
    """Return the other names of a setting from its text, which may wrap beside the word "Also"."""
    return re.findall(r"\w+", re.split(r"\sAlso\s", text)[-1]) if re.search(r"\sAlso\s", text) else []


def _link_settings(app, document):
    """Give each setting in the lists of docs/settings* an anchor such as ``ppo-clip-range``, a link to it, and entries
    of the index."""
    from docutils import nodes
    from sphinx import addnodes

    name = app.env.docname
    if not name.startswith("docs/settings"):
        return
    title = document.next_node(nodes.title)
    agents = title.astext().removeprefix("Settings of ").split(", ") if name != "docs/settings" else []
    document.insert(0, addnodes.index(entries=[("single", f"{it} settings", "", "main", None) for it in agents]))
    slugs = app.env.metadata[name].setdefault("myst_slugs", {})
    anchors: dict[str, str] = {}
    for item in document.findall(nodes.list_item):
        names = [part for part in item[0] if part.astext()][:1]  # its first words
        if not (isinstance(names[0], nodes.strong) and isinstance(names[0].children[-1], nodes.literal)):
            continue
        anchor = f"{Path(name).name}-{names[0].astext()}".replace("_", "-")
        anchor += "" if anchor not in slugs else f"-{sum(slug.startswith(anchor) for slug in slugs)}"
        slugs[anchor] = (item.line, anchor, names[0].astext())
        item["ids"].append(anchor)
        setting_names = (names[0].astext(), *aliases(item[0].astext()))
        texts = {" ".join(_WORDS.get(word, word) for word in name.split("_")) for name in setting_names}
        texts |= {name.replace("_", " ") for name in setting_names}
        texts |= {f"{agent} {text}" for agent in agents for text in texts if len(text) > len(agent)}
        # The search finds entries of the index that equal the query, and links to their anchor.
        entries = [("single", text, anchor, "main", None) for text in sorted({*setting_names, *texts})]
        item[0].insert(0, addnodes.index(entries=entries))
        link = f'<a class="headerlink" href="#{anchor}" title="Link to this setting">#</a>'
        item[0] += nodes.raw("", link, format="html")
        anchors.setdefault(names[0].astext(), anchor)
    for code in [code for table in document.findall(nodes.table) for code in table.findall(nodes.literal)]:
        if anchor := anchors.get(code.astext()):
            code.replace_self(nodes.reference("", "", code.deepcopy(), refid=anchor, internal=True))


PHONE_LETTERS = 40  # of a table's row on a telephone


def is_plain(heads: list[str]) -> bool:
    """Whether the headings of a table are two, without a unit or a number."""
    return len(heads) == 2 and all(re.fullmatch(r"[A-Za-z ]+", head) for head in heads)


def _classify_tables(app, document):
    """Mark tables that are too wide for a telephone, which shows their rows as a list, without headings such as "tag"
    and "meaning"."""
    from docutils import nodes

    for table in document.findall(nodes.table):
        num_columns = len(list(table.findall(nodes.colspec)))
        cells = [cell for body in table.findall(nodes.tbody) for cell in body.findall(nodes.entry)]
        lengths = [len(cell.astext()) for cell in cells]
        if sum(max(lengths[i::num_columns]) for i in range(num_columns)) > PHONE_LETTERS:
            table["classes"].append("sentences")
            head_row = next(table.findall(nodes.thead))
            heads = [head.astext() for head in head_row.findall(nodes.entry)]
            if is_plain(heads) and not list(head_row.findall(nodes.literal)):
                table["classes"].append("plain")
            for i, cell in enumerate(cells):
                if len(heads) > 2 and (column := i % len(heads)) and heads[column] and cell.astext():
                    cell[0].insert(0, nodes.inline("", f"{heads[column]}: ", classes=["column-name"]))


# Words of readers, for which a page has others.
_KEYWORDS = {
    "docs/faq": ("faq", "help", "glossary", "proxy", "candidate", "teacher"),
    "docs/citing": ("license", "licence"),
    "docs/ddqn": ("replay buffer",),
    "docs/how_to/environment": ("custom environment",),
    "docs/model_generalisation": ("ER", "PerfectModel", "SimpleModel", "CategoricalLatent", "GaussianLatent"),
    "docs/python": ("save model", "load model", "checkpoint"),
    "docs/reliability": ("reproducibility", "determinism", "resume"),
    "docs/synthetic_environments": ("bandit",),
    "docs/tensorboard": ("logging", "metrics"),
}


def _name_pages(app, document):
    """Give each page its name in the sidebar and its keywords as entries of the index, which the search finds."""
    from sphinx import addnodes

    page = app.env.docname
    names = [
        name
        for parent in ("index", "synthetic_environments", "reward_networks", "results/README")
        for name, path in re.findall(r"^(.+) <(.+)>$", (ROOT / f"docs/{parent}.md").read_text(), re.MULTILINE)
        if ((ROOT / f"docs/{parent}.md").parent / path).resolve() == ROOT / page
    ]
    names += _KEYWORDS.get(page, ())
    document.insert(0, addnodes.index(entries=[("single", name, "", "main", None) for name in names]))


def mathml(formula: str, is_display: bool) -> str:
    """A formula of LaTeX as MathML. Browsers draw it without a script, which would come from the internet."""
    from docutils.utils.math.latex2mathml import tex2mathml

    math = tex2mathml(formula)
    if not is_display:
        return math
    display = math.replace("<math", '<math display="block"', 1)
    return f'<div class="formula">{display}</div>'


def _visit_formula(translator, node):
    from docutils import nodes

    translator.body.append(mathml(node.astext(), isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def _page(app, name, template, context, document):
    if "body" in context:
        context["body"] = unbroken(context["body"])


def _read(app, name, source):
    source[0] = as_on_the_site(source[0], (ROOT / name).parent)


def _document(app, what, name, thing, options, lines):
    lines[:] = [re.sub(r"``(docs/\w+)\.md``", r":doc:`/\1`", line) for line in with_types(thing, lines)]


def _extra_files(app, error):
    """What opens where somebody opens the folder of the site, and the script of a page."""
    if error is None and app.builder.name == "html":
        (Path(app.outdir) / "_static/live.js").write_text(live_script())
        start = f'<meta http-equiv="refresh" content="0; url={root_doc}.html"><a href="{root_doc}.html">{project}</a>\n'
        (Path(app.outdir) / "index.html").write_text(f"<!doctype html><title>{project}</title>{start}")


def setup(app):
    app.add_html_math_renderer("mathml", (_visit_formula, None), (_visit_formula, None))
    app.connect("source-read", _read)
    app.connect("doctree-read", _link_settings)
    app.connect("doctree-read", _classify_tables)
    app.connect("doctree-read", _name_pages)
    app.connect("doctree-read", _tidy_api)
    app.connect("html-page-context", _page)
    app.connect("autodoc-process-docstring", _document)
    app.connect("build-finished", _extra_files)


if __name__ == "__main__":  # not in Sphinx
    (ROOT / "docs/live/index.html").write_text(live_page())
