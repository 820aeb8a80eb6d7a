"""Ranges of settings: finite for numbers, a maximal length for texts, and a short error beyond them."""

import math
from pathlib import Path
from typing import Any

import pytest

from control.cli.options import Flag, flags, parameters
from control.cli.parse import settings_from
from envs.names import GAMES
from fake_runs import Shown, refused
from helpers import yaml_file
from models.registry import family, implementations
from models.settings import SettingError, bounds, check_value
from trainer import main

NUMBERS = (int, float)
FAMILIES = list({family(name).config: name for name in reversed(implementations())}.values())
LONG = "9" * 400


def numeric(flags_by_name: dict[str, Flag]) -> list[Flag]:
    return [flag for flag in flags_by_name.values() if flag.kind.item in NUMBERS]


@pytest.mark.parametrize("name", implementations())
def test_numbers_have_finite_ranges_and_texts_a_length(name: str) -> None:
    flags_by_name = flags(name, "cartpole") | {n: f for game in GAMES for n, f in parameters(game).items()}
    assert len(numeric(flags_by_name)) > 30
    for flag in flags_by_name.values():
        limits = bounds(flag.kind, flag.meta)
        if flag.kind.item in NUMBERS and not flag.meta["choices"]:
            assert len(limits) == 2 and all(map(math.isfinite, limits.values())), flag
        elif flag.kind.item is str:
            assert flag.meta["choices"] or limits["maximum"] <= 4096, flag
        assert not flag.kind.is_list or 1 <= flag.meta["max_items"] <= 10_000


def outside(flag: Flag, bound: str, value: Any) -> Any:
    if bound in ("above", "below"):
        return value
    up = bound == "maximum"
    return value + (1 if up else -1) if flag.kind.item is int else math.nextafter(value, math.inf if up else -math.inf)


@pytest.mark.parametrize("name", [*FAMILIES, *sorted({game.base_name for game in GAMES.values() if game.parameters})])
def test_value_just_outside_its_range_is_refused(name: str) -> None:
    words = {"above": "greater than", "minimum": "at least", "below": "less than", "maximum": "at most"}
    for flag in numeric(parameters(name) if name in GAMES else flags(name, "cartpole")):
        for bound, value in bounds(flag.kind, flag.meta).items():
            item = outside(flag, bound, value)
            with pytest.raises(SettingError, match=f"^{flag.name} is .*{words[bound]} {value}".replace("+", r"\+")):
                check_value(flag.name, (item,) if flag.kind.is_list else item, flag.kind, flag.meta)


LINES = [
    (f"--seed {LONG}", "seed is 99999", "at most 4611686018427387904"),
    ("--lr 1e400", "lr is '1e400'", "number, greater than 0"),
    ("--command.return 1e308", "command.return is 1e+308", "at least -1000000000, at most 1000000000; or null"),
    ("--epochs 1e-3", "epochs is '1e-3'", "integer, at least 1; or null"),
    ("--hidden_sizes 9223372036854775807", "hidden_sizes is [9223372036854775807]", "each at most 65536"),
    (f"--hidden_sizes {'8,' * 17}", "hidden_sizes is [8, 8, 8", "each at most 65536, 16 of them at most"),
    (f"--exp_name {'ä' * 51}", "exp_name is 'äääää", "text, at most 100 bytes, not empty"),
    (f"--logdir {'a/' * 2100}", "logdir is 'a/a/a", "text, at most 4096 bytes, not empty"),
    (f"--eval_agent {'a' * 300}", "File name too long", ""),
    (f"--{'x' * 5000} x y", "is unknown", ""),
]


@pytest.mark.parametrize(("words", "problem", "allowed"), LINES, ids=[words[:30] for words, *_ in LINES])
def test_range_error_message(words: str, problem: str, allowed: str, capsys: Shown, tmp_path: Path) -> None:
    line = refused(main, words.split(), problem, capsys)
    assert allowed in line and len(line) < 700
    if "." in words.split()[0] or len(words.split()) != 2 or "File" in problem or "logdir" in words:
        return
    name, value = words.removeprefix("--").split()
    line = refused(main, ["--config", yaml_file(tmp_path, f"{name}: {value}\n")], problem, capsys)
    assert allowed in line and len(line) < 700


def test_bounds_are_allowed() -> None:
    settings = settings_from(implementation="CPG", lr=1e9, reward_scale=1e-30, seed=2**62, max_episodes=10**9)
    assert settings.agent.lr == 1e9 and settings.agent.reward_scale == 1e-30
