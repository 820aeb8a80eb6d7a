"""The pages of settings and the table of docs/which_agent.md say what the code says."""

import importlib.util
import re

import pytest

from conftest import ROOT
from control.cli.options import flags
from control.cli.words import as_word
from docs.settings_pages import DOCS, pages
from models.registry import agent_class, default_config, family, implementations
from models.spaces import Continuous


def test_the_pages_of_settings_are_up_to_date() -> None:
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.glob("settings/*")}
    assert written | {"settings.md"} == pages().keys()
    for name, text in pages().items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, "python -m docs.settings_pages writes it anew"


def test_the_pages_have_every_setting() -> None:
    text = "".join(pages().values())
    setting_names = {name for implementation in implementations() for name in flags(implementation, "procmaze")}
    assert len(setting_names) > 200 and not [name for name in setting_names if f"- **`{name}`** (default" not in text]


@pytest.mark.parametrize("name", [path.stem for path in DOCS.glob("settings/*") if path.stem != "searches"])
def test_a_page_of_settings_opens_with_whose_defaults_it_has(name: str) -> None:
    text = (DOCS / f"settings/{name}.md").read_text()
    title, introduction = text.split("\n\n")[:2]
    first, *others = title.removeprefix("# Settings of ").split(", ")
    if family(first).learns_from == "evolution":
        assert introduction.startswith("Defaults depend on the preset and the environment;")
    else:
        config = default_config(first, "an environment without presets")
        for setting, default in re.findall(r"^- \*\*`(\w+)`\*\* \(default\s+`(.+?)`\):", text, re.MULTILINE):
            assert default == (as_word(getattr(config, setting), ",") or "empty"), setting
    assert ("\n## Other defaults\n" in text) == ("[other defaults](#other-defaults)" in introduction)
    if others:
        assert introduction.startswith(f"Defaults beside the names are {first}'s; [other")
        assert all(re.search(rf"\b{other}\b", introduction) for other in others)
    assert "\n## Sources\n" in text and "Raised letters are [sources](#sources)." in introduction.replace("\n", " ")
    meanings, sources = text.split("\n## Sources\n")
    letters = set(re.findall(r"^- \*\*([A-Z])\*\*: ", sources, re.MULTILINE))
    assert set(re.findall(r"\[([A-Z])\]\(#sources\s", meanings)) <= letters
    assert not re.search(r"\[[A-Z](, [A-Z])*[]:](?!\()", meanings)  # all sources are links


def test_a_page_of_settings_begins_with_those_that_are_tuned_most() -> None:
    """The default of the page, and the range of ``--use_tune``, also of 1 minus the value. One value is no range."""
    text = (DOCS / "settings/ppo.md").read_text()
    assert "\n| `lr` | `0.0003` | 1e-05 to 0.002 |\n" in text and "\n| `discount` | `0.99` | 0.97 to 0.9999 |\n" in text
    text = (DOCS / "settings/searches.md").read_text()
    assert "\n| `strategy` | `openai_es` | nes, openai_es, snes |\n" in text and "| `score_transform` |" not in text


def test_the_source_of_a_setting_is_a_raised_link() -> None:
    text = (DOCS / "settings/ppo.md").read_text()
    link = '<sup>[B](#sources "stable-baselines3 2.9")</sup>.'
    assert f"- **`lr`** (default `0.0003`): Adam's learning rate{link}\\\n" in text
    text = (DOCS / "settings/searches.md").read_text()
    assert '<sup>[F](synthetic.md#sources "Ferreira et al. 2022")</sup>' in text.replace("\n", " ")
    assert "observations [N, S]" in text


PAGE = (ROOT / "docs/which_agent.md").read_text()
WORDS = {True: "yes", False: "no"}


def table(heading: str) -> dict[str, list[str]]:
    """The rows below a heading row, by their first cell."""
    rows = re.search(rf"^\| {re.escape(heading)} .*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert rows
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1].splitlines()]
    return {re.sub(r"\[(.+)\]\(.+\)", r"\1", first): other_cells for first, *other_cells in cells}


def searches(name: str) -> bool:
    return family(name).learns_from == "evolution"


def test_page_has_every_implementation() -> None:
    assert set(table("`--implementation` | what it is")) == {name for name in implementations() if not searches(name)}
    assert set(table("`--implementation` | learns")) == {name for name in implementations() if searches(name)}


@pytest.mark.parametrize("name", [name for name in implementations() if not searches(name)])
def test_row_of_table(name: str) -> None:
    _, observations, actions, policy, proxies, code = table("`--implementation` | what it is")[name]
    implementation_family, agent = family(name), agent_class(name)
    observation_kinds = (
        "one-hot cells" if agent.takes_cells_only else "vectors, images" if agent.takes_images else "vectors"
    )
    action_kinds = ["continuous" if kind is Continuous else "discrete" for kind in agent.action_kinds]
    assert (observations, actions) == (observation_kinds, ", ".join(action_kinds))
    assert proxies == WORDS[implementation_family.trains_on_proxies]
    (gpu_agents,) = re.findall(r"`--accelerator gpu` is for (.+?)\.", PAGE)
    assert (name in re.split(r", | and ", gpu_agents)) == ("gpu" in implementation_family.accelerators)
    if implementation_family.learns_from == "episodes":
        assert policy == ("on" if default_config(name, "cartpole").schedule.on_policy else "off")
    if importlib.util.find_spec("numba"):
        from control.loops.compiled import AGENT_MODULES

        assert code == WORDS[agent in AGENT_MODULES]
