import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.settings import SettingError, check, nearest, setting


@dataclass(frozen=True)
class Example:
    lr: float = setting(1e-3, "step size", above=0)
    batch: int = setting(8, "steps", minimum=1, maximum=64)
    sizes: tuple[int, ...] = setting((64,), "units", minimum=1)
    extra: tuple[str, ...] = setting((), "may be empty", empty=True)
    scale: float | None = setting(None, "factor", above=0, below=1)
    kind: str = setting("max", "which", choices=("max", "mean"))
    on: bool = setting(False, "whether")
    name: str = setting("x", "what")
    note: str = setting("", "may be empty", empty=True)
    places: tuple[int, ...] | None = setting(None, "where")


WRONG: list[tuple[str, Any, str]] = [
    ("lr", -1.0, "lr is -1.0; allowed: number, greater than 0"),
    ("lr", math.nan, "lr is nan; allowed: number, greater than 0"),
    ("lr", math.inf, "lr is inf; allowed: number, greater than 0"),
    ("lr", None, "lr is None; allowed: number, greater than 0"),
    ("lr", True, "lr is True; allowed: number, greater than 0"),
    ("batch", 1.0, "batch is 1.0; allowed: integer, at least 1, at most 64"),
    ("batch", 65, "batch is 65; allowed: integer, at least 1, at most 64"),
    ("sizes", (), "sizes is []; allowed: list of integers, each at least 1"),
    ("sizes", (8, 0), "sizes is [8, 0]; allowed: list of integers, each at least 1"),
    ("sizes", [8], "sizes is [8]; allowed: list of integers, each at least 1"),
    ("scale", 1.0, "scale is 1.0; allowed: number, greater than 0, less than 1; or null"),
    ("kind", "maxx", "kind is 'maxx'; allowed: max, mean; did you mean 'max'?"),
    ("name", " ", "name is ' '; allowed: text, not empty"),
    ("on", 1, "on is 1; allowed: true or false"),
    ("places", (1.5,), "places is [1.5]; allowed: list of integers; or null"),
]


@pytest.mark.parametrize(("field", "value", "line"), WRONG)
def test_a_value_out_of_range_is_refused_in_one_line(field: str, value: Any, line: str) -> None:
    with pytest.raises(SettingError) as error:
        check(Example(**{field: value}))
    assert str(error.value) == line


@given(
    lr=st.floats(0, 1e6, exclude_min=True) | st.integers(1, 100),
    batch=st.integers(1, 64),
    sizes=st.lists(st.integers(1), min_size=1).map(tuple),
    scale=st.none() | st.floats(0, 1, exclude_min=True, exclude_max=True),
)
def test_values_in_range_pass(lr: float, batch: int, sizes: tuple[int, ...], scale: float | None) -> None:
    check(Example(lr=lr, batch=batch, sizes=sizes, scale=scale))


def test_the_nearest_name_is_offered_and_a_far_one_is_not() -> None:
    assert nearest("rcp_r", ["UDRL", "RCP-R"]) == "; did you mean 'RCP-R'?"
    assert nearest("quite else", ["UDRL", "RCP-R"]) == ""
