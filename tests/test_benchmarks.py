"""Each benchmark runs, scaled down, and reports in the agreed form. Speeds are not tested: machines differ."""

import functools
import json
import math
import os
import subprocess
import sys
import tempfile
from typing import Any

import pytest

from benchmarks.common import Meter, Result, interleave, median_ratio
from conftest import ROOT

BENCHMARKS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in ("__init__", "common"))


@functools.cache
def quick_run(name: str) -> tuple[dict[str, Any], str, list[str]]:
    """The JSON object, the table, and the files left in the working directory."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick", "--json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr, os.listdir(folder)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_json_is_one_object_of_named_numbers(name: str) -> None:
    results, table, left_behind = quick_run(name)
    assert results and not left_behind
    for key, result in results.items():
        assert set(result) == {"value", "unit", "against"}, key
        assert isinstance(result["value"], float) and math.isfinite(result["value"]) and result["value"] >= 0, key
        assert isinstance(result["unit"], str) and result["unit"], key
        assert result["against"] is None or isinstance(result["against"], str), key
        assert key in table


def test_udrl_holds_itself_to_its_bars() -> None:
    results, _, _ = quick_run("udrl")
    bars = {key: result["against"].split(":")[0] for key, result in results.items() if ":" in (result["against"] or "")}
    assert bars == {
        "epoch_early_speedup": ">= 5",
        "epoch_trained_speedup": ">= 5",
        "rollout_early_speedup": ">= 3",
        "rollout_trained_speedup": ">= 3",
        "update_slowdown": "<= 1.3",
        "fit_lightning_share": "< 5",
    }


def test_parts_of_a_lightning_epoch_add_up() -> None:
    value = {key: result["value"] for key, result in quick_run("udrl")[0].items()}
    parts = value["fit_own_work"] + value["fit_callbacks"] + value["fit_lightning"]
    assert parts == pytest.approx(value["fit_epoch"])
    assert value["fit_lightning_share"] == pytest.approx(100 * value["fit_lightning"] / value["fit_epoch"])


def test_contenders_take_turns_after_a_round_that_does_not_count() -> None:
    calls: list[str] = []
    contenders = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    assert interleave(contenders, 2) == {"a": [3, 6], "b": [4, 5]}
    assert "".join(calls) == "baabba"


def test_a_ratio_is_taken_within_each_round() -> None:
    assert median_ratio([2.0, 20.0, 90.0], [1.0, 10.0, 30.0]) == 2.0


def test_a_bar_is_met_or_missed() -> None:
    assert Result(5.0, "times", "x", (">=", 5)).verdict.startswith("holds")
    assert Result(5.0, "%", "x", ("<", 5)).verdict.startswith("MISSED")
    assert Result(5.0, "%").verdict == ""


def test_a_meter_counts_what_it_wraps() -> None:
    class Work:
        def double(self, x: int) -> int:
            return 2 * x + 0 * sum(range(100_000))

    work, meter = Work(), Meter()
    meter.wrap(work, "double", "double")
    assert work.double(4) == 8
    assert meter.take()["double"] > 0 and meter.take() == {}


def test_the_plain_loop_is_the_network_we_compare_it_with() -> None:
    import torch

    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from plain.udrl import BehaviorPolicy
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    from models.agents.command_conditioned.networks import BehaviorNetwork
    from models.streams import Streams

    ours, plain = BehaviorNetwork(8, 2, 4, (32, 128, 128, 128), Streams([1])), BehaviorPolicy()
    plain.take_weights(ours.named_weights())
    obs, command = torch.randn(5, 8), torch.rand(5, 2) * 100
    expected = ours(obs.unsqueeze(0), (command * plain.scale).unsqueeze(0)).squeeze(0)
    assert sum(p.numel() for p in plain.parameters()) == ours.size == 38_148
    torch.testing.assert_close(plain(obs, command), expected)
