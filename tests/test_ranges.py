"""Ranges of settings: finite for numbers, a maximal length for texts, and a short error beyond them."""

import math
from typing import Any

import pytest

from control.cli.options import Flag, flags, parameters
from control.cli.parse import settings_from
from envs.names import GAMES
from models.registry import family, implementations
from models.settings import SettingError, bounds, check_value

NUMBERS = (int, float)
FAMILIES = list({family(name).config: name for name in reversed(implementations())}.values())


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


def test_bounds_are_allowed() -> None:
    settings = settings_from(implementation="CPG", lr=1e9, reward_scale=1e-30, seed=2**62, max_episodes=10**9)
    assert settings.agent.lr == 1e9 and settings.agent.reward_scale == 1e-30
