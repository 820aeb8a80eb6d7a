"""``--help``: every setting with its meaning, default and range, grouped."""

import contextlib
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from control.cli.options import Flag
from control.cli.words import word
from models.registry import families_of, family, implementations
from models.settings import LONGEST, RANGES, SMALLEST, allowed
from models.vocabulary import others

HEAD = """usage: python trainer.py [--config FILE.yaml] [--name value ...]

train PPO until it lands on the moon, and film it:
  python trainer.py --implementation PPO --gamename lunarlander --steps_per_epoch 1024 --target_return 250 --record
play 100 episodes with that run's best checkpoint:
  python trainer.py --eval_agent exp_dir/lunarlander/debug/PPO/seed_25/version_0
draw and tabulate all runs below a folder:
  python trainer.py --plot exp_dir/lunarlander
learn an environment for CartPole, on which new agents train:
  python trainer.py --implementation SE --gamename cartpole --proxy bandit

More: README.md, docs/algorithms.md (which agent?), docs/index.md (all
pages); below, every setting of {implementation}.

implementations (--help --algo PPO shows the settings of PPO):
{implementations}
environments:
{games}
  any Gymnasium id, your own as module:Name-v0; probe-1 to 5, for tests
"""
OPTIONS = (
    ("-h, --help", "show this and end"),
    ("--version", "show the version and end"),
    ("--config FILE.yaml", "settings from a file; a run's config.yaml repeats it"),
    ("--import MODULE,...", "import these first; a file can name no module itself"),
)
OLDER = {
    "print_statements": " 1 (a line for every epoch)", "no_checkpoint": "",
    "recording_epoch_interval": " N and", "record_n_rollouts_per_epoch": " N (videos while training)",
    "display": " (without effect)",
}  # fmt: skip
"""Flags of old scripts, shown in a line of their own."""
WORDS = (
    "A bare flag switches on (--record), --no_ before it off; lists are 64,64 or 64 64; null stands for none. Where a "
    f"flag says nothing else, numbers are at most {RANGES[int]['maximum']:,} in size, numbers other than 0 at least "
    f"{SMALLEST:g}, and lists have at most {LONGEST} items. Integers may be written 1000 or 1e3."
)
EXAMPLES = """more examples than those at the top:
  python trainer.py --algo PPO --env CartPole-v1 --total_timesteps 100000    in the words of other libraries
  python trainer.py --seed 26                              train Upside-Down RL on LunarLander
  python trainer.py --implementation RCP-A --lr 5e-4       another agent, another learning rate
  python trainer.py --eval_agent cartpole-bandit           train fresh agents on a shipped proxy
  python trainer.py --config run.yaml --epochs 500         settings from a file; flags win
  python trainer.py --eval_agent RUN/checkpoints/best.ckpt --record --command.return 250"""
WIDEST = 110
COLUMN = 32  # of the explanations
METAVARS = {bool: "true|false", int: "N", float: "X", str: "TEXT"}
OBVIOUS = ("true or false", "text, not empty", "text", "number")  # the metavar says so already


def help_text(known: Mapping[str, Flag], implementation: str, game: str) -> str:
    """The whole help page, with the defaults of that implementation on that game."""
    from envs.names import GAMES, declared

    width = max(40, min(WIDEST, _columns()))

    def filled(text: str, indent: str = "  ") -> str:
        return textwrap.fill(" ".join(text.split()), width, initial_indent=indent, subsequent_indent=indent)

    games = [name for name, game in GAMES.items() if not game.is_probe] + [*declared()]
    names = {"implementations": ", ".join(implementations()), "games": ", ".join(games)}
    parts = [HEAD.format(implementation=implementation, **{name: filled(text) for name, text in names.items()})]
    parts += [filled(WORDS, ""), "", "options:", *(_entry(left, text, width) for left, text in OPTIONS), ""]
    groups: dict[str, list[Flag]] = {}
    for flag in known.values():
        groups.setdefault(flag.section, []).append(flag)
    families = families_of(implementation, known["agent"].default)
    # Tags such as [C] are explained once, above the hyperparameters.
    sources = re.search(r"^Sources: (.+?)(?:\n\n|\Z)", family(implementation).sources, re.DOTALL | re.MULTILINE)
    for section in sorted(groups, key=_place):
        parts.append(f"{section}:")
        if section.startswith("hyperparameters") and sources:
            parts += [filled(f"Defaults are those with --gamename {game}. {sources[1]}"), ""]
            sources = None
        shown = [flag for flag in groups[section] if flag.name not in OLDER]
        parts += [_entry(f"--{flag.name} {_metavar(flag)}", _explain(flag, families), width) for flag in shown]
        parts.append("")
    older = ", ".join(f"--{name}{text}" for name, text in OLDER.items())
    return "\n".join([*parts, filled(f"older flags, which are still accepted: {older}", ""), "", EXAMPLES, ""])


def _columns() -> int:
    """Of the terminal; in a file or pipe, the widest."""
    with contextlib.suppress(ValueError, OSError):
        return int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(1).columns
    return WIDEST


def _place(section: str) -> tuple[bool, bool]:
    """Sort key: hyperparameters last, so that they are visible in a terminal, and their subsections after them."""
    return section.startswith("hyperparameters"), ": " in section


def _entry(left: str, text: str, width: int) -> str:
    lines = textwrap.wrap(" ".join(text.split()), width - COLUMN)
    first = [f"  {left:<{COLUMN - 2}}{lines.pop(0)}"] if len(left) < COLUMN - 3 else [f"  {left}"]
    return "\n".join([*first, *(" " * COLUMN + line for line in lines)])


def _metavar(flag: Flag) -> str:
    if flag.meta.get("choices") and not flag.kind.many:
        return "NAME"
    single = METAVARS[flag.kind.item]
    return f"{single},..." if flag.kind.many else single


def _explain(flag: Flag, families: Sequence[str]) -> str:
    parts = [f"default: {word(flag.default, ',')}"]
    range_ = allowed(flag.kind, flag.meta)
    if flag.kind.many or not range_.startswith("text, ") and range_.split(";")[0] not in OBVIOUS:
        parts.append(f"allowed: {range_}")
    if flag.default is True:
        parts.append(f"off: --no_{flag.name}")
    if also := others(flag.name, families):
        parts.append(f"also: {', '.join(also)}")
    return f"{flag.meta.get('help', '')} ({'; '.join(parts)})"


def version() -> str:
    """The version of this checkout, as pyproject.toml has it."""
    import tomllib

    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(pyproject)["project"]["version"])
