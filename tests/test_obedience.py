"""Obedience: obtained against commanded returns, by hand and for a run."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import trainer
from control.reports import obedience
from fake_runs import Shown, refused
from helpers import trained
from test_command_conditioned import experienced_agent, ranking_agent

COMMANDS = np.array([-1.0, 0.0, 1.0, 2.0, 3.0, 4.0])
LOW, HIGH = [0.0], [2.0]


def test_perfect_agent_has_slope_1_and_no_error() -> None:
    """Slope 1, rank correlation 1 and no error, inside and outside the seen range."""
    result = obedience.measure(COMMANDS, np.broadcast_to(COMMANDS[:, None], (1, 6, 4)), LOW, HIGH)
    regions = [result["regions"][name] for name in obedience.REGIONS]
    assert [(region["commands"], region["episodes"]) for region in regions] == [(3, 12), (3, 12), (6, 24)]
    for region in regions:
        for name, value in (("slope", 1.0), ("rho", 1.0), ("mae", 0.0)):
            assert region[name]["value"] == pytest.approx(value, abs=1e-12)
            assert region[name]["interval"] == pytest.approx([value, value], abs=1e-12)
    assert result["mean"] == COMMANDS.tolist() and result["seen"] == [[0.0, 2.0]]


def test_saturating_agent_obeys_only_the_returns_it_can_reach() -> None:
    """It obeys up to 2 and obtains 2 beyond."""
    regions = obedience.measure(COMMANDS, np.minimum(COMMANDS, 2.0)[None, :, None], LOW, HIGH)["regions"]
    assert regions["inside"]["slope"]["value"] == pytest.approx(1) and regions["inside"]["mae"]["value"] == 0
    # Outside: (-1, -1), (3, 2), (4, 2). Deviations of commands -3, 1, 2; slope (3 + 2 + 4) / (9 + 1 + 4).
    assert regions["outside"]["slope"]["value"] == pytest.approx(9 / 14)
    # Ranks 1, 2, 3 and 1, 2.5, 2.5: covariance 1.5, squares 2 and 1.5.
    assert regions["outside"]["rho"]["value"] == pytest.approx(1.5 / math.sqrt(3))
    assert regions["outside"]["mae"]["value"] == pytest.approx(1.0)
    assert regions["outside"]["rho"]["interval"] is None  # one episode has no interval


def test_seeds_have_separate_ranges() -> None:
    """One obeys, one always obtains 0, one does the opposite; the second has seen all commands."""
    returns = np.stack([COMMANDS, np.zeros(6), -COMMANDS])[:, :, None]
    regions = obedience.measure(COMMANDS, returns, [0.0, -1.0, 0.0], [2.0, 4.0, 2.0])["regions"]
    assert regions["inside"]["slope"]["value"] == pytest.approx(0, abs=1e-12)
    assert regions["inside"]["slope"]["interval"] == pytest.approx([-1, 1])
    assert regions["inside"]["episodes"] == 3 + 6 + 3
    assert regions["outside"]["slope"] is None  # the second seed has no command outside
    assert regions["all"]["mae"]["value"] == pytest.approx((0 + 11 / 6 + 22 / 6) / 3)


def test_grid_extends_beyond_seen_returns() -> None:
    grid = obedience.command_grid([0.0, 2.0], [6.0, 8.0])
    assert (grid[0], grid[-1], len(grid)) == (-2.0, 10.0, obedience.COMMANDS)
    assert obedience.command_grid([5.0], [5.0])[0] < 5 < obedience.command_grid([5.0], [5.0])[-1]


def test_status_has_range_of_returns() -> None:
    """Episodes of 6, 10 and -4; with discount 1/2 1 + 1 + 0.75, 10 and -2."""
    for discount, low, high in ((1.0, -4.0, 10.0), (0.5, -2.0, 10.0)):
        status = experienced_agent("UDRL", discount=discount).status()
        assert [status[f"rollout/command_return_seen_{end}"].tolist() for end in ("min", "max")] == [[low], [high]]
    assert "rollout/command_return_seen_min" not in experienced_agent("RCP-A").status()
    assert ranking_agent(discount=0.5).status()["rollout/command_return_seen_max"].tolist() == [10.0]


def test_evaluation_of_a_run_measures_obedience(logdir: Path, capsys: Shown) -> None:
    folder = trained(logdir, implementation="RCP-R", gamename="cartpole", num_seeds=2)
    capsys.readouterr()
    words = ["--eval_agent", str(folder), "--obedience", "--num_eval_episodes", "3"]
    assert trainer.main(words) == 0
    output = capsys.readouterr().out
    assert "15 commands, 3 episodes of each per seed" in output and "rank correlation" in output
    file = folder / "checkpoints" / "best_obedience.json"
    first = json.loads(file.read_text())
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG") and set(first["modes"]) == {"greedy", "sampled"}
    greedy = first["modes"]["greedy"]
    assert greedy["regions"]["all"]["episodes"] == 2 * 15 * 3 and len(greedy["seen"]) == 2
    assert greedy["commanded"][0] < min(low for low, _ in greedy["seen"])
    assert trainer.main([*words, "--evaluation", "greedy"]) == 0
    assert json.loads(file.read_text())["modes"] == {"greedy": greedy}  # the same episodes
    refused(trainer.main, [*words, "--record"], "--record has no effect with --obedience", capsys)
    (folder / "metrics.csv").unlink()
    line = "no metrics.csv that says which returns its training has seen"
    refused(trainer.main, words, line, capsys, run_started=True)
