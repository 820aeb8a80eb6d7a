"""The text of ``--help``. Alone, it is a page of two screens to begin with. Other pages have settings with their
meaning, default and range: of an implementation (``--help PPO``), of a command (``--plot --help``), with a word
(``--help discount``), or all (``--help all``)."""

import dataclasses
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from control.cli.colour import paint
from control.cli.options import flags_of_settings, flags_without_effect
from control.cli.run_settings import COMMANDS
from control.cli.settings import Settings, defaults_for
from control.cli.words import Flag, Flags, as_word
from models.registry import family, implementations
from models.settings import MAX_ITEMS, RANGES, SettingError, allowed, nearest
from models.vocabulary import aliases_of

SOURCES = re.compile(r"(, as in| of)? \[[A-Z]\b[^]]*\]")  # references in help texts to sources, see a config.py
# Their times are measured on one core.
EXAMPLES = r"""train an agent on CartPole with PPO (seconds):
  python trainer.py --implementation PPO --gamename cartpole --total_steps 50000
train new agents on a learned CartPole, test them on the real one (seconds):
  python trainer.py --eval_agent cartpole-bandit
learn such a CartPole (1 minute):
  python trainer.py --implementation SE --gamename cartpole --proxy bandit \
    --seed 0
land on the moon with PPO, and film it (a minute):
  python trainer.py --implementation PPO --target_return 250 --record
teacher, learned environment, learned reward, and a page of results (minutes):
  python trainer.py --learn CartPole-v1
"""
_FIRST_SETTINGS = ("implementation", "gamename", "total_steps", "seed", "num_seeds", "exp_name", "record", "resume")
_OFTEN_TUNED = ("lr", "num_envs", "rollout_steps", "batch_size", "discount")  # first in their section
_OPTIONS = (
    ("--config FILE.yaml", "settings from a file; a run's config.yaml repeats it"),
    ("--import MODULE,...", "import these first; a file can name no module itself"),
    ("--version", "show the version and end"),
)
_MORE = (
    ("--help PPO", "the settings of an implementation"),
    ("--help discount", "the settings with this word"),
    ("--learn --help", "the settings of a command"),
    ("--help all", "every setting"),
    ("pages", "README.md, docs/which_agent.md, docs/index.md"),
)
_LOOPS = {"episodes": "learn after episodes", "steps": "learn after steps"}  # `Family.learns_from` -> heading
SYNTAX = (
    "A bare flag switches on (--record), --no_record off; lists are 64,64 or 64 64, and lists of folders have spaces; "
    f"null stands for none. Where a flag says nothing else, numbers are at most {RANGES[int]['maximum']:,} in size, "
    f"and lists have at most {MAX_ITEMS} items. Integers may be written 1000 or 1e3."
)
MAX_WIDTH = 110
TEXT_COLUMN, _NARROW_COLUMN = 32, 25  # columns at which explanations begin; the second is for the first page
METAVARS = {bool: "true|false", int: "N", float: "X", str: "TEXT"}
# Pattern of a part of a page -> its colour on a terminal: headings, flags and commands, defaults.
_COLOURS = {
    "^(usage:|\\S.*:$)": "bold",
    "^ {2,4}(--|python ).*?(?=  |$)": "cyan",
    r"\(default:(?:[^()]|\([^()]*\))*\)": "dim",
}
OBVIOUS_VALUES = ("true or false", "text, not empty", "text", "number")  # allowed values that the metavar already says


def help_text(defaults: Settings, words: Sequence[str], command: str | None, is_default: bool) -> str:
    """Return the help page for the ``words`` after ``--help``, such as ``["discount"]``, and for ``command``, a command
    such as ``plot``, or None for training. ``defaults`` are the settings of the run without further flags.
    ``is_default`` says that the user chose no implementation. Raises SettingError if no setting contains the words."""
    valid_flags = flags_of_settings(defaults)
    shows_all = words == ["all"]
    if words and not shows_all:
        return _search_page(defaults, valid_flags, " ".join(words), is_default)
    if command:
        return _command_page(valid_flags, command, defaults.families)
    if shows_all or not is_default:
        return _training_page(defaults, valid_flags, shows_all)
    return _first_page(valid_flags)


def in_colours(page: str) -> str:
    """Return a help page with the `_COLOURS` of its parts, if stdout is a terminal."""
    for pattern, colour in _COLOURS.items():
        page = re.sub(pattern, paint(r"\g<0>", colour, sys.stdout), page, flags=re.MULTILINE)
    return page


def _first_page(valid_flags: Flags) -> str:
    """Return the page of ``--help`` alone: examples, names of implementations and games, and settings to begin with."""
    settings = []
    for name in _FIRST_SETTINGS:
        flag = valid_flags[name]
        first_clause, *_ = re.split("[;:.] ", flag.meta["help"])
        default = "" if flag.default in (None, False) else f" (default: {flag.default})"
        term = f"--{name}" if flag.type.item is bool else f"--{name} {_metavar(flag)}"
        settings.append((term, first_clause + default))
    commands = [(f"--{name}", str(config_class.__doc__).rstrip(".")) for name, config_class in COMMANDS.items()]
    parts = ["usage: python trainer.py [--name value ...]\n", EXAMPLES, *_implementations_and_games()]
    groups = {"settings to begin with": [*settings, *_OPTIONS], "other commands": commands, "more": _MORE}
    for heading, entries in groups.items():
        parts.append(f"{heading}:")
        parts += [_entry(term, text, _NARROW_COLUMN) for term, text in entries]
        parts.append("")
    return "\n".join(parts).rstrip()


def _implementations_and_games() -> list[str]:
    """Return the lines of the first help page about the values of ``--implementation`` and ``--gamename``."""
    from envs.names import GAMES

    parts = ["values of --implementation:"]
    for loop, heading in _LOOPS.items():
        names = [name for name, family_spec in implementations().items() if family_spec.learns_from == loop]
        parts.append(_entry(heading, ", ".join(names), _NARROW_COLUMN))
    parts.append(_entry("others", "SE learns a synthetic environment, RN a reward", _NARROW_COLUMN))
    parts += ["", "values of --gamename:", _wrap(", ".join(GAMES), "  ")]
    return [*parts, "  any Gymnasium id, your own as module:Name-v0", ""]


def _command_page(valid_flags: Flags, command: str, families: Sequence[str]) -> str:
    """Return the page with the settings of a ``command``, such as ``--plot --help``."""
    usage = f"usage: python trainer.py --{command} "
    if valid_flags[command].type.item is not bool:
        usage += f"{_metavar(valid_flags[command])} "
    listed = [flag for flag in valid_flags.values() if flag.command == command]
    if command != "use_tune":  # it uses all settings of a training run, too many to list
        listed += [flag for flag in valid_flags.values() if command in flag.meta["commands"] and flag.meta["usual"]]
    if command == "learn":  # the value of --learn is the environment, and it chooses an implementation for the task
        teacher = valid_flags["implementation"]
        meta = {**teacher.meta, "help": "the learning algorithm of the teacher; null: one that suits the task"}
        listed = [flag for flag in listed if flag.name != "gamename"]
        listed[listed.index(teacher)] = dataclasses.replace(teacher, default=None, meta=meta)
    return "\n".join([f"{usage}[--name value ...]\n", *_entries(listed, {}, families)])


def _search_page(defaults: Settings, valid_flags: Flags, typed: str, is_default: bool) -> str:
    """Return the page of ``--help discount`` or of another text ``typed``: the settings that contain it (`_contains`).
    They are settings of the user's implementation or, if ``is_default`` or if it has none, of all implementations.
    Raises SettingError if no setting contains the text."""
    families, text = defaults.families, typed.lower().lstrip("-")
    matches = {name: flag for name, flag in valid_flags.items() if _contains(flag, text, families)}
    if matches and not is_default:
        heading = f"settings of {defaults.run.implementation} with {text!r}:"
        notes = _notes_without_effect(defaults, valid_flags)
    else:
        families = []  # without aliases of a family
        matches, notes = _matches_of_all(text, defaults.run.gamename)
        if not matches:
            hint = nearest(text, [*valid_flags, *implementations()])
            raise SettingError(f"help is {typed!r}, which no setting contains{hint}; allowed: all, or a word")
        first, *_ = implementations()
        heading = _wrap(
            f"Settings with {text!r}. Their implementations are in brackets, and the default is of the first of them. "
            f"Without brackets, all implementations have the setting, and the default is of {first}."
        )
    shown_flags = []
    # First the setting with the name ``text``, then settings with the text in their name, then all others.
    for flag in sorted(matches.values(), key=lambda flag: (flag.name != text, text not in flag.name)):
        help_without_sources = SOURCES.sub("", flag.meta["help"])
        shown_flags.append(dataclasses.replace(flag, meta={**flag.meta, "help": help_without_sources}))
    return "\n".join([heading, *_entries(shown_flags, notes, families)])


def _matches_of_all(text: str, game: str) -> tuple[dict[str, Flag], dict[str, str]]:
    """Return the settings of all implementations that contain ``text``, setting -> flag, and setting -> note about the
    implementations that have it, such as ``of PPO, A2C``. There is no note if all of them have it."""
    matches: dict[str, Flag] = {}
    owners: dict[str, list[str]] = {}  # setting -> implementations that have it
    for implementation in implementations():
        defaults = defaults_for({"implementation": implementation, "gamename": game})
        for flag in flags_of_settings(defaults).values():
            if _contains(flag, text, defaults.families):
                matches.setdefault(flag.name, flag)
                owners.setdefault(flag.name, []).append(implementation)
    notes = {name: f"of {', '.join(names)}" for name, names in owners.items()}
    return matches, {name: note for name, note in notes.items() if len(owners[name]) < len(implementations())}


def _contains(flag: Flag, text: str, families: Sequence[str]) -> bool:
    """Return whether a setting has ``text``, in lower case, in its name, topic, help text or aliases."""
    topic = re.sub("^hyperparameters of [^:]*", "", flag.section)  # without the name of an algorithm
    return text in " ".join([flag.name, topic, flag.meta["help"], *aliases_of(flag.name, families)]).lower()


def _training_page(defaults: Settings, valid_flags: Flags, full: bool) -> str:
    """Return the help page of a training run: with all settings if ``full``, otherwise with the usual ones."""
    notes = _notes_without_effect(defaults, valid_flags)
    listed = list(valid_flags.values())
    if not full:  # settings of training that have an effect; commands to the agent have no owner
        listed = [flag for flag in listed if not flag.command and flag.owner is not None]
        listed = [flag for flag in listed if flag.meta["usual"] and flag.name not in notes]
    implementation, game = defaults.run.implementation, defaults.run.gamename
    explanation = f"Defaults are those with --gamename {game}; add another --gamename to see its defaults."
    parts = [f"usage: python trainer.py --implementation {implementation} [--name value ...]\n", _wrap(explanation), ""]
    parts += [*_groups(listed, implementation, notes, defaults.families if full else None), _wrap(SYNTAX)]
    if full:
        # Explains tags such as [C] in the entries. A paragraph of the family's text begins with "Sources: ".
        sources = re.search(r"^Sources: .+?(?=\n\n|\Z)", family(implementation).sources, re.DOTALL | re.MULTILINE)
        parts += ["", _wrap(sources[0]) if sources else "", ""]
        return "\n".join([*parts, *_implementations_and_games()]).rstrip()
    hidden = len(valid_flags) - len(listed)
    line = f"{hidden} more settings are of a command, an agent or an environment, or have no effect with this choice; "
    line += f"--implementation {implementation} --help all lists them, and --help WORD finds them, with ranges."
    return "\n".join([*parts, "", _wrap(line)])


def _wrap(text: str, indent: str = "") -> str:
    """Break ``text`` into lines that fit the terminal, each of which begins with ``indent``."""
    width = max(40, min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns))
    return textwrap.fill(" ".join(text.split()), width, initial_indent=indent, subsequent_indent=indent)


def _groups(
    listed: Sequence[Flag], implementation: str, notes: Mapping[str, str], families: Sequence[str] | None
) -> list[str]:
    """Return the lines for the ``listed`` settings (`_entries`), with a heading for each section."""
    config_class = family(implementation).config

    def sort_key(flag: Flag) -> tuple[bool, bool, bool, bool, int]:
        """Sort the hyperparameters of the implementation first, then those of the agents on its proxy. In a section,
        settings that decide about others, such as ``preset``, are first. False is before True."""
        is_of_agent = flag.section.startswith("hyperparameters")
        is_in_subsection = is_of_agent and ": " in flag.section  # such as ``hyperparameters of PPO: network``
        rank = _OFTEN_TUNED.index(flag.name) if flag.name in _OFTEN_TUNED else len(_OFTEN_TUNED)
        decides = flag.meta["chooses"] or flag.meta["identity"]
        return flag.owner is not config_class, not is_of_agent, is_in_subsection, not decides, rank

    groups: dict[str, list[Flag]] = {}
    for flag in sorted(listed, key=sort_key):
        groups.setdefault(flag.section, []).append(flag)
    parts = []
    for section, section_flags in groups.items():
        parts += [f"{section}:", *_entries(section_flags, notes, families), ""]
    return parts


def _notes_without_effect(defaults: Settings, valid_flags: Flags) -> dict[str, str]:
    """Return setting -> note, such as ``no effect with SE``, for settings without effect in a run with ``defaults``."""
    names = [name for name, flag in valid_flags.items() if not flag.command]
    return {name: f"no effect{reason}" for name, reason in flags_without_effect(defaults, names, valid_flags)}


def _entries(listed: Sequence[Flag], notes: Mapping[str, str], families: Sequence[str] | None) -> list[str]:
    """Return the text for each of the ``listed`` settings, such as ``--lr X  learning rate (default: 0.001)``. A note
    (``notes`` maps a setting to it) follows in brackets. For ``families`` see `_explanation`."""
    texts = []
    for flag in listed:
        note = f" [{notes[flag.name]}]" if flag.name in notes else ""
        texts.append(_entry(f"--{flag.name} {_metavar(flag)}", _explanation(flag, families) + note))
    return texts


def _entry(term: str, text: str, column: int = TEXT_COLUMN) -> str:
    """Return a line with ``term`` and, from ``column`` on, its explanation ``text``, which may need more lines."""
    explanation = _wrap(text, " " * column)  # each line begins with spaces, which the term replaces in the first line
    indented_term = f"  {term}"
    if len(indented_term) + 2 > column:  # no room for two spaces before the explanation
        return f"{indented_term}\n{explanation}"
    return indented_term + explanation[len(indented_term) :]


def _metavar(flag: Flag) -> str:
    """Return the placeholder for a flag's value: ``N``, ``N,...`` or, if text may have commas, ``TEXT ...``."""
    if flag.meta["choices"] and not flag.type.is_list:
        return "NAME"
    single = METAVARS[flag.type.item]
    if not flag.type.is_list:
        return single
    return f"{single},..." if flag.comma_separates else f"{single} ..."


def _explanation(flag: Flag, families: Sequence[str] | None) -> str:
    """Return the help text of a flag, with default, allowed values and aliases in brackets. ``families`` are the folder
    names of algorithms whose aliases are listed. If it is None, leave out ranges, aliases and sources."""
    notes = [f"default: {as_word(flag.default, ',')}"]
    allowed_values = allowed(flag.type, flag.meta)
    is_obvious = allowed_values.removesuffix("; or null") in OBVIOUS_VALUES
    is_text = allowed_values.startswith("text, ")  # its maximum length is left out
    if not (is_obvious or is_text) and (families is not None or flag.meta["choices"]):
        notes.append(f"allowed: {allowed_values}")
    if families is None:
        return f"{SOURCES.sub('', flag.meta['help'])} ({'; '.join(notes)})"
    if flag.default is True:
        notes.append(f"off: --no_{flag.name}")
    aliases = aliases_of(flag.name, families)
    if aliases:
        notes.append(f"also: {', '.join(aliases)}")
    return f"{flag.meta['help']} ({'; '.join(notes)})"


def version() -> str:
    """Return the version in pyproject.toml."""
    import tomllib

    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(pyproject)["project"]["version"])
