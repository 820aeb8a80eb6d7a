"""``--help``: every setting with its meaning, default and range, grouped."""

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from control.cli.options import Flag
from control.cli.run_settings import RunConfig
from control.cli.words import word
from models.registry import families_of, family, implementations
from models.settings import LONGEST, RANGES, SMALLEST, allowed
from models.vocabulary import others

HEAD = """Train, evaluate, tune, plot, film and report on agents.

{words}

implementations:
  {implementations}
environments:
  {games}
  any Gymnasium id, your own as module:Name-v0; probe-1 to 5, for tests"""
WORDS = (
    "A bare flag switches on (--record), --no_ before it off; lists are 64,64 or 64 64; null stands for none. Where a "
    f"flag says nothing else, numbers are at most {RANGES[int]['maximum']:,} in size, numbers other than 0 at least "
    f"{SMALLEST:g}, and lists have at most {LONGEST} items. Integers are written out: 1000, not 1e3."
)
EXAMPLES = """examples:
  python trainer.py --seed 26                              train Upside-Down RL on LunarLander
  python trainer.py --implementation RCP-A --lr 5e-4       another agent, another learning rate
  python trainer.py --implementation SE --gamename cartpole --proxy bandit   learn a synthetic CartPole
  python trainer.py --eval_agent cartpole-bandit           train fresh agents on a shipped proxy
  python trainer.py --config run.yaml --epochs 500         settings from a file; flags win
  python trainer.py --eval_agent RUN/checkpoints/best.ckpt --record --command.return 250"""
WIDEST = 110
METAVARS = {bool: "true|false", int: "N", float: "X", str: "TEXT"}
OBVIOUS = ("true or false", "text, not empty", "text", "number")  # the metavar says so already


def help_text(known: Mapping[str, Flag], implementation: str) -> str:
    """The whole help page, with the defaults of that implementation on that game."""
    from envs.names import GAMES, declared

    columns = shutil.get_terminal_size((WIDEST, 24)).columns  # in a file or pipe, the widest
    width = max(40, min(WIDEST, columns))

    def indented(names: Iterable[str]) -> str:
        return "\n  ".join(textwrap.wrap(", ".join(names), width - 2))

    games = [name for name, game in GAMES.items() if not game.is_probe] + [*declared()]
    parser = argparse.ArgumentParser(
        prog="trainer.py",
        usage="python trainer.py [--config FILE.yaml] [--name value ...]",
        description=HEAD.format(
            words=textwrap.fill(WORDS, width), implementations=indented(implementations()), games=indented(games)
        ),
        epilog=EXAMPLES,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=32, width=width),
    )
    parser.add_argument("--version", help="show the version and end", action="store_true")
    parser.add_argument("--config", metavar="FILE.yaml", help="settings from a file; a run's config.yaml repeats it")
    parser.add_argument("--import", metavar="MODULE,...", help="import these first; a file can name no module itself")
    groups: dict[str, Any] = {}
    families = families_of(implementation, RunConfig.agent)
    # What tags such as [C] stand for is said once, above the hyperparameters.
    sources = re.search(r"^Sources: (.+?)(?:\n\n|\Z)", family(implementation).sources, re.DOTALL | re.MULTILINE)
    for flag in sorted(known.values(), key=lambda flag: flag.section.startswith("hyperparameters")):
        if flag.section not in groups:
            groups[flag.section] = parser.add_argument_group(flag.section)
            if sources and flag.section.startswith("hyperparameters"):
                groups[flag.section].description = textwrap.fill(" ".join(sources[1].split()), width - 2)
                sources = None
        groups[flag.section].add_argument(f"--{flag.name}", metavar=_metavar(flag), help=_explain(flag, families))
    return parser.format_help()


def _metavar(flag: Flag) -> str:
    if flag.meta.get("choices") and not flag.kind.many:
        return "NAME"
    single = METAVARS[flag.kind.item]
    return f"{single},..." if flag.kind.many else single


def _explain(flag: Flag, families: Sequence[str]) -> str:
    parts = [f"default: {word(flag.default, ',')}"]
    if flag.kind.many or allowed(flag.kind, flag.meta).split(";")[0] not in OBVIOUS:
        parts.append(f"allowed: {allowed(flag.kind, flag.meta)}")
    if flag.default is True:
        parts.append(f"off: --no_{flag.name}")
    if also := others(flag.name, families):
        parts.append(f"also: {', '.join(also)}")
    return f"{flag.meta.get('help', '')} ({'; '.join(parts)})".replace("%", "%%")


def version() -> str:
    """The version of this checkout, as pyproject.toml has it."""
    import tomllib

    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(pyproject)["project"]["version"])
