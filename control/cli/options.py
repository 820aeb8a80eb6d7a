"""Words to values: what flags there are, which one a misspelt name meant, what a text after a flag says.

Names are checked here and jsonargparse reads the values. YAML is read as text too, so that a value in a file and
the same text after a flag cannot mean different things.
"""

import argparse
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from control.cli.settings import COMMANDS, Command, RunConfig
from models.agents.model_generalisation.published import translated
from models.registry import default_configs, family, implementations, inner_agents
from models.settings import Kind, SettingError, allowed, closest, kinds, refused

Pair = tuple[str, list[str]]
"""The name of a setting and the words given for it, none for a bare flag."""

FLAG_ONLY = ("config", "help", "version")
NULL = ("null", "none", "~", "")
SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# What people type who come from other projects.
SYNONYMS = {
    "learning_rate": "lr", "learn_rate": "lr", "gamma": "discount", "hidden_layers": "hidden_sizes",
    "layers": "hidden_sizes", "env": "gamename", "env_id": "gamename", "environment": "gamename",
    "game": "gamename", "algorithm": "implementation", "workers": "num_workers",
    "num_epochs": "epochs", "output_dir": "logdir", "log_dir": "logdir", "checkpoint": "eval_agent",
    "return": "command.return", "lambda": "td_lambda",
}  # fmt: skip


@dataclass(frozen=True)
class Flag:
    """One setting as the command line knows it; ``section`` is its heading in the help."""

    name: str
    kind: Kind
    meta: Mapping[str, Any]
    default: Any
    section: str

    @property
    def hint(self) -> Any:
        """The type, as jsonargparse wants it."""
        item: Any = self.kind.item
        hint: Any = tuple[item, ...] if self.kind.many else item
        return hint | None if self.kind.optional else hint


def flags(implementation: str, game: str, given: Mapping[str, str] | None = None) -> dict[str, Flag]:
    """Every setting of an implementation by name, with its default on that game, and every parameter of the game.
    ``given`` are words that choose other defaults: a stand-in's ``preset``, ``proxy`` and ``agent``."""
    given = given or {}
    found = {flag.name: flag for flag in _flags_of(RunConfig())}
    for name, field in COMMANDS.items():
        flag = Flag(f"command.{name}", kinds(Command)[field.name], field.metadata, None, field.metadata["section"])
        found[flag.name] = flag
    inner = given.get("agent", RunConfig.agent)
    agent, proxy = default_configs(implementation, game, given, inner)
    own = list(_flags_of(proxy)) if proxy is not None else []
    own += _flags_of(agent, f"hyperparameters of {inner if proxy is not None else implementation}")
    for flag in (*parameters(game).values(), *own):
        if flag.name in found:
            raise RuntimeError(f"{flag.name} is a setting of {implementation} and of every run")
        found[flag.name] = flag
    return found


def flags_of_all(game: str) -> dict[str, Flag]:
    """Every setting of every implementation, and every parameter of every game."""
    from envs.names import GAMES

    found = {name: flag for world in GAMES for name, flag in parameters(world).items()}
    return found | {n: flag for implementation in implementations() for n, flag in flags(implementation, game).items()}


def parameters(game: str) -> dict[str, Flag]:
    """What ``game`` is made with, where names of games can say so (`envs.names`); the default is what its name says."""
    from envs.names import GAMES, resolve

    if game.partition(",")[0] not in GAMES:
        return {}
    found = resolve(game)
    if found.parameters is None:
        return {}
    of_kind, values = kinds(found.parameters), found.in_use()
    section = f"parameters of {found.world}, which become part of gamename"
    return {
        f.name: Flag(f.name, of_kind[f.name], f.metadata, values[f.name], section) for f in fields(found.parameters)
    }


def for_fresh_agents() -> set[str]:
    """The hyperparameters of agents that can train on a stand-in."""
    return {name for agent in inner_agents() for name in kinds(family(agent).config)}


def _flags_of(config: Any, section: str = "") -> Iterator[Flag]:
    for field in fields(config):
        kind = kinds(type(config))[field.name]
        where = ": ".join(filter(None, [section, field.metadata.get("section")]))
        yield Flag(field.name, kind, field.metadata, getattr(config, field.name), where)


def split(argv: Sequence[str]) -> list[Pair]:
    """``--a=1 --b --c 2 3`` as ``[("a", ["1"]), ("b", []), ("c", ["2", "3"])]``; ``-h`` is ``--help``.

    Raises SettingError for words before the first flag, a setting with one dash, and bytes that are no UTF-8.
    """
    pairs: list[Pair] = []
    for word in argv:
        if word == "-h":
            word = "--help"
        meant = _with_one_dash(word, first=not pairs)
        if meant:
            raise SettingError(f"{word!r} is not a flag; did you mean '--{meant}'?")
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            pairs.append((name, [value] if equals else []))
        elif pairs:
            pairs[-1][1].append(word)
        else:
            raise SettingError(f"{word!r} is not a flag; flags start with --")
    _check_readable(pairs)
    return pairs


def _with_one_dash(word: str, first: bool) -> str | None:
    """The setting meant by ``-seed`` or, where no text can stand, ``-sed``. Numbers have one dash too."""
    name = word[1:].partition("=")[0]
    if not word.startswith("-") or word.startswith("--") or not name[:1].isalpha():
        return None
    known = [*flags_of_all(""), *FLAG_ONLY]
    return name if name in known else closest(name, known) if first else None


def _check_readable(pairs: Iterable[Pair]) -> None:
    """Refuse bytes that are no UTF-8: Python keeps them as lone surrogates, which no file of ours can hold."""
    for name, words in pairs:
        for word in (name, *words):
            if any("\ud800" <= character <= "\udfff" for character in word):
                raise SettingError(f"{name} is {word!r}; allowed: text in UTF-8", name)


def read_config(path: str) -> list[Pair]:
    """The settings in a file: our own names, in YAML or JSON, or in a ``.json`` those of a published code that some
    family knows. Raises SettingError."""
    if not path.lower().endswith(".json"):
        return read_yaml(path)
    content = _read_json(path)
    try:
        pairs = translated(content)
    except SettingError as error:
        raise SettingError(f"{path}: {error}", error.name) from error
    pairs = list(_flatten(content, path)) if pairs is None else pairs
    _check_readable(pairs)
    return pairs


def _read_json(path: str) -> dict[str, Any]:
    """A JSON object with its values as they are written: numbers, true, false and null are text here."""

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise SettingError(f"{path}: {twice} is given twice")
        return {name: text(value) for name, value in pairs}

    def text(value: Any) -> Any:
        if isinstance(value, list):
            return [text(item) for item in value]
        return value if isinstance(value, str | dict) else json.dumps(value)

    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file, object_pairs_hook=mapping, parse_int=str, parse_float=str, parse_constant=str)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise SettingError(f"config is {path!r}: {reason}") from error
    except json.JSONDecodeError as error:
        raise SettingError(f"config is {path!r}: not valid JSON, line {error.lineno}: {error.msg}") from error
    if not isinstance(content, dict):
        raise SettingError(f"config is {path!r}: allowed: a mapping of names to values")
    return content


def read_yaml(path: str) -> list[Pair]:
    """The settings in a YAML file, ``command: {return: 250}`` as ``command.return``. Raises SettingError."""
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.load(file, yaml.BaseLoader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise SettingError(f"config is {path!r}: {reason}") from error
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise SettingError(f"config is {path!r}: not valid YAML{where}: {problem or 'unreadable'}") from error
    if content is not None and not isinstance(content, dict):
        raise SettingError(f"config is {path!r}: allowed: a mapping, one 'name: value' a line")
    pairs = list(_flatten(content or {}, path))
    _check_readable(pairs)
    return pairs


def _flatten(mapping: Mapping[str, Any], path: str) -> Iterator[Pair]:
    for name, value in mapping.items():
        if name == "command" and isinstance(value, dict):
            yield from _flatten({f"command.{key}": item for key, item in value.items()}, path)
        elif name == "command" and value not in NULL:
            shown = " ".join(map(str, value)) if isinstance(value, list) else value
            raise SettingError(f"{path}: command is {shown!r}; allowed: a mapping of {', '.join(COMMANDS)}")
        elif isinstance(value, dict):
            raise SettingError(f"{path}: {name} is a mapping; settings are flat, one 'name: value' a line")
        elif name != "command":
            yield name, [str(item) for item in value] if isinstance(value, list) else [str(value)]


def one_word(name: str, words: Sequence[str]) -> str:
    """The single word given for a setting that needs one."""
    if not words:
        raise SettingError(f"--{name} needs a value")
    if len(words) > 1:
        raise SettingError(f"{name} is {' '.join(words)!r}; allowed: one value", name)
    return words[0]


def named(
    pairs: Iterable[Pair], known: Mapping[str, Flag], implementation: str, prefix: str, game: str = ""
) -> dict[str, list[str]]:
    """The words for each setting, the last where one is repeated; ``no_x`` becomes ``x`` turned round.

    ``prefix`` stands before a name in errors: ``--``, or the file it came from; ``game`` is what they may mention.
    """
    found: dict[str, list[str]] = {}
    for name, words in pairs:
        positive = name.removeprefix("no_")
        if name in known:
            found[name] = words
        elif positive in known and known[positive].kind.item is bool:
            value = SWITCH.get(" ".join(words).lower() or "true")
            if value is None:
                raise refused(name, " ".join(words), known[positive].kind, {})
            found[positive] = [str(not value).lower()]
        else:
            raise _unknown(name, known, implementation, prefix, game)
    return found


def _unknown(name: str, known: Mapping[str, Flag], implementation: str, prefix: str, game: str) -> SettingError:
    from envs.names import worlds_with

    worlds = worlds_with(name) or worlds_with(name.removeprefix("no_"))
    if worlds and game:
        line = f"{prefix}{name} has no effect with gamename {game}; it is a parameter of {', '.join(worlds)}"
        return SettingError(line)
    owners = [other for other in implementations() if name in flags(other, "")]
    if owners:
        return SettingError(f"{prefix}{name} is a setting of {', '.join(owners)}, not of {implementation}")
    if name in FLAG_ONLY:
        return SettingError(f"{prefix}{name} is unknown")
    if name == "command" or name.startswith("command."):
        return SettingError(f"{prefix}{name} is unknown; allowed: {', '.join(f'command.{key}' for key in COMMANDS)}")
    switches = [f"no_{other}" for other, flag in known.items() if flag.default is True]
    meanings = {alias: to for alias, to in SYNONYMS.items() if to in known}
    meanings |= {other: other for other in [*known, *switches, *(FLAG_ONLY if prefix == "--" else ())]}
    close = difflib.get_close_matches(name.lower(), meanings, n=1, cutoff=0.6)
    dashes = "--" if prefix == "--" else ""
    hint = f"; did you mean '{dashes}{meanings[close[0]]}'?" if close else "; see --help"
    return SettingError(f"{prefix}{name} is unknown{hint}")


def read_values(words: Mapping[str, list[str]], known: Mapping[str, Flag]) -> dict[str, Any]:
    """The value of each setting, of its type but not yet held against its range. Raises SettingError."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False, add_help=False)
    for name in words:
        parser.add_argument(f"--{name}", type=known[name].hint)
    arguments = [f"--{name}={_canonical(known[name], given)}" for name, given in words.items()]
    try:
        values = parser.parse_args(arguments, defaults=False)
    except argparse.ArgumentError as error:
        key = re.search(r'Parser key "([^"]+)"', str(error))
        if key is None:
            raise
        flag = known[key[1]]
        raise refused(flag.name, " ".join(words[flag.name]), flag.kind, flag.meta) from None
    return {name: values[name] for name in words}


def _canonical(flag: Flag, words: list[str]) -> str:
    """The words for a setting as the one text that jsonargparse reads."""
    if flag.kind.item is bool and not words:
        return "true"
    if not words:
        raise SettingError(f"--{flag.name} needs a value; allowed: {allowed(flag.kind, flag.meta)}")
    if flag.kind.optional and len(words) == 1 and words[0].lower() in NULL:
        return "null"
    if flag.kind.many and flag.kind.item is str:
        return json.dumps(words)
    if flag.kind.many:
        return f"[{','.join(','.join(words).strip('[]() ').split(','))}]"
    return one_word(flag.name, words)
