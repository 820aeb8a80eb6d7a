"""Generate the documentation page of all settings from their declarations.

python -m control.cli.reference     # writes docs/settings.md
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from control.cli.help import OBVIOUS, WORDS
from control.cli.options import Flag, command_flags, flags_of, parameters
from control.cli.run_settings import COMMANDS, RunConfig
from control.cli.words import word
from models.family import Family
from models.proxies.search import NetworkConfig, SearchConfig
from models.registry import implementations
from models.settings import allowed, kinds
from models.vocabulary import aliases_of

WIDTH = 120
PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
HEAD = """# Settings

Every setting with its meaning, default and range. It is a flag (`--lr 1e-3`), a key of a YAML file (`lr: 1e-3`) and a
keyword in Python (`lr=1e-3`), by the same name.

{words}

`python trainer.py --implementation CPG --help` prints those of one agent that act by default, `--help all` every one,
`--help WORD` those with a word, `--plot --help` those of a command. *Also* are other names that are accepted.
Letters in brackets are sources, named at the head of each family. This page is made by
`python -m control.cli.reference`.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join(_parts()).rstrip() + "\n"


def _parts() -> Iterator[str]:
    """Yield the parts of the page: settings of every run and command, of environments, of searches, and of families."""
    from envs.names import GAMES, declared_games

    yield HEAD.format(words=_wrap(re.sub(r"(--[a-z_]+|64,64 or 64 64)", r"`\1`", WORDS)))
    yield "## Every run\n"
    for config in (RunConfig, *COMMANDS.values()):
        yield from _sections(config())
    yield "### commands\n"
    yield from _lines(command_flags().values())
    yield "## Environments with parameters\n"
    yield "They become part of the environment's name: `--gamename procmaze --grid_size 5` is `procmaze,grid_size=5`.\n"
    for game in (*GAMES, *declared_games()):
        if flags := parameters(game):
            yield f"### {game}\n"
            yield from _lines(flags.values())
    families = implementations()
    names = [name for name, family in families.items() if family.learns_from == "evolution"]
    yield f"## Searches ({', '.join(names)})\n"
    yield "Defaults depend on the preset and the environment; `--help` with both shows those of a run.\n"
    yield from _sections(SearchConfig(), names)
    yield from _sections(NetworkConfig(), names)
    for package in dict.fromkeys(family.package for family in families.values()):
        names = [name for name, family in families.items() if family.package == package]
        yield from _of_family(families[names[0]], names)


def _of_family(family: Family, names: Sequence[str]) -> Iterator[str]:
    """Yield the settings of a family, whose implementations have these ``names``, and other defaults: of its
    implementations, presets and environments."""
    folder = family.package.rpartition(".")[2]
    yield f"## {', '.join(names)}\n"
    if sources := re.search(r"^Sources?: (.+?)(?:\n\n|\Z)", family.sources, re.DOTALL | re.MULTILINE):
        yield _wrap(sources[1]) + "\n"
    shared = {*kinds(SearchConfig), *kinds(NetworkConfig)} if family.learns_from == "evolution" else set()
    yield from _sections(family.config(), [folder], shared)
    changes = {f"`{name}`": values for name, values in family.implementations.items() if len(names) > 1}
    for preset, values_by_name in family.presets.items():
        changes |= {f"`--preset {preset}` with `{name}`": values for name, values in values_by_name.items()}
    changes |= {f"on `{game}`": values for game, values in family.game_defaults.items()}
    changes |= {f"`{name}` on `{game}`": values for (name, game), values in family.environment_presets.items()}
    if changes := {title: values for title, values in changes.items() if values}:
        yield "### other defaults\n"
        for title, values in changes.items():
            pairs = ", ".join(f"`{name}` {word(value, ',')}" for name, value in values.items())
            yield _wrap(f"- {title}: {pairs}", "  ")
        yield ""


def _sections(config: Any, families: Sequence[str] = (), without: Iterable[str] = ()) -> Iterator[str]:
    """Yield the settings of a config, except ``without``, below their headings. Settings without a heading are
    first."""
    flags = [flag for flag in flags_of(config).values() if flag.name not in without]
    sections = dict.fromkeys(flag.section for flag in flags)
    for section in sorted(sections, key=bool):  # the empty heading first, the others in order
        if section:
            yield f"### {section}\n"
        yield from _lines([flag for flag in flags if flag.section == section], families)


def _lines(flags: Iterable[Flag], families: Sequence[str] = ()) -> Iterator[str]:
    """Yield a list item for every setting, then an empty line. ``families`` determine the aliases. Allowed values are
    left out for any number or any text. A switch shows them: only they say that it is one."""
    for flag in flags:
        allowed_values = allowed(flag.kind, flag.meta)
        if flag.meta.get("choices") and not flag.kind.is_list:
            allowed_values = f"one of {allowed_values}"
        is_any_value = allowed_values.removesuffix("; or null") in OBVIOUS and flag.kind.item is not bool
        allowed_text = "" if is_any_value else f"; {allowed_values}"
        default_sentence = f"Default `{word(flag.default, ',') or 'empty'}`{allowed_text}."
        aliases = ", ".join(f"`{name}`" for name in aliases_of(flag.name, families))
        alias_sentence = f" Also {aliases}." if aliases else ""
        help_text = flag.meta["help"]
        stop = "" if help_text.endswith(".") else "."
        yield _wrap(f"- **`{flag.name}`**: {help_text}{stop} {default_sentence}{alias_sentence}", "  ")
    yield ""


def _wrap(text: str, indent: str = "") -> str:
    """Return ``text`` in lines of `WIDTH` characters, with ``indent`` before all lines except the first."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: {PAGE}")
