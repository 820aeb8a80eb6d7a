"""Figures of several runs: rows of panels, file names, comparisons by scores, reference levels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_runs
from control.reports.curves import levels, solved_return, sources
from control.reports.plot import plot
from control.reports.sheets import WIDTH, Look
from fake_runs import Shown
from models.settings import SettingError
from test_plotting import write_run


def test_each_environment_has_its_row_of_panels(logdir: Path, figures: list[Any]) -> None:
    for game, implementation in ("lunarlander", "UDRL"), ("lunarlander", "RCP-A"), ("takecover", "RCP-A"):
        write_run(logdir, implementation, game=game)
    plot([logdir])
    returns, losses = figures
    axes = returns.axes
    titles = [axis.get_title("left").replace("\n", " ") for axis in axes]
    assert [title.split(":")[0] for title in titles] == ["lunarlander"] * 2 + ["takecover"] * 2
    assert [axis.get_title("left").split(":")[0] for axis in losses.axes] == ["lunarlander", "takecover"]
    grid = axes[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == (2, 2) and returns.get_size_inches()[0] == losses.get_size_inches()[0] == WIDTH
    colours = [
        {line.get_label(): line.get_color() for line in axis.get_lines() if len(line.get_xdata()) > 2} for axis in axes
    ]
    names = [{label for label in labels if label in ("RCP-A", "UDRL")} for labels in colours]
    assert names == [{"RCP-A", "UDRL"}] * 2 + [{"RCP-A"}] * 2
    assert len({labels["RCP-A"] for labels in colours}) == 1
    assert [axis.get_ylabel() for axis in axes] == ["return (sum of rewards)", ""] * 2
    for panel, other in (axes[:2], axes[2:]):
        assert panel.get_ylim() == other.get_ylim() and panel.get_xlim() == other.get_xlim()
    assert axes[0].get_ylim() != axes[2].get_ylim()


def test_many_environments_fill_several_pages(logdir: Path, figures: list[Any], capsys: Shown) -> None:
    for i in range(6):
        write_run(logdir, game=f"corridor{i}")
    plot([logdir], logdir / "all.pdf", Look("dark", ("pdf", "svg")))
    paths = [line.split()[-1] for line in capsys.readouterr().out.splitlines() if line.startswith("Figure:")]
    assert [Path(path).name for path in paths] == [
        "all.pdf", "all.svg", "all_2.svg", "all_losses.svg", "all_losses2.svg"
    ]  # fmt: skip
    assert (logdir / "all.pdf").read_bytes().count(b"/Type /Page ") == 4
    pages = [len(figure.axes) for figure in figures[::2]]
    assert pages == [8, 4, 4, 2] and {figure.get_facecolor()[:3] for figure in figures} == {
        (13 / 255, 17 / 255, 23 / 255)
    }


def test_figure_is_redrawn_from_its_json(logdir: Path, figures: list[Any], capsys: Shown) -> None:
    for name in ("UDRL", "RCP-A"):
        write_run(logdir, name, seeds=(25, 26, 27))
    plot([logdir], logdir / "one.png")
    table = capsys.readouterr().out.partition("Figure:")[0]
    plot([logdir / "one.json"], logdir / "two.png")
    assert capsys.readouterr().out.partition("Figure:")[0] == table
    first, comparison, redrawn, compared = figures
    kinds = [[axis.get_title("left").replace("\n", " ") for axis in figure.axes] for figure in (first, redrawn)]
    assert kinds[1] == kinds[0][:2] and len(kinds[0]) == 3, "the file has no numbers of losses"
    for panel, other in zip(first.axes, redrawn.axes, strict=False):
        for line, copy in zip(panel.get_lines(), other.get_lines(), strict=True):
            np.testing.assert_allclose(line.get_ydata(), copy.get_ydata(), rtol=1e-4)
    assert [axis.get_xlim() for axis in comparison.axes] == [axis.get_xlim() for axis in compared.axes]
    for content in ("{}", "[]", '{"runs": "x", "groups": {"a": 1}}', "nothing"):
        (logdir / "broken.json").write_text(content)
        with pytest.raises(SettingError, match="broken.json', which --plot did not write; allowed: run folders"):
            plot([logdir / "broken.json"])


def test_algorithms_with_three_seeds_are_compared(logdir: Path, figures: list[Any], capsys: Shown) -> None:
    """Each seed of UDRL is better than each of RCP-A."""
    write_run(logdir, "UDRL", 100, seeds=(25, 26, 27))
    write_run(logdir, "RCP-A", 50, seeds=(25, 26, 27))
    write_run(logdir, "RCP-R", 70, seeds=(25, 26))
    plot([logdir], logdir / "all.png")
    output = capsys.readouterr().out
    assert "UDRL > RCP-A" in output and "two seeds" in output and "RCP-R >" not in output
    compared = json.loads((logdir / "all.json").read_text())["compared"]
    assert compared["tag"] == "eval/return_greedy"
    assert compared["improvement"]["UDRL > RCP-A"] == {"estimate": 1.0, "interval": [1.0, 1.0]}
    (profile,) = compared["profiles"].values()
    assert profile["above"]["UDRL"]["estimate"][:3] == [1, 1, 1] and profile["above"]["RCP-A"]["estimate"][-1] == 0
    curves, scores = figures
    bands = [len(axis.collections) for axis in curves.axes]
    assert bands == [2, 2, 2]
    titles = [axis.get_title("left").replace("\n", " ") for axis in scores.axes]
    better = "Probability that UDRL is better, return, greedy"
    assert titles == ["Score of each seed", "", "Seeds that score more", better]
    plot([logdir / "lunarlander/debug/RCP-R", logdir / "lunarlander/debug/UDRL"], logdir / "few.png")
    assert "probability" not in capsys.readouterr().out and len(figures) == 3


def test_searches_and_agents_have_separate_axes(logdir: Path, figures: list[Any], capsys: Shown) -> None:
    """A search counts the steps of all its agents, so its axis is far longer."""
    write_run(logdir, "UDRL", 100, seeds=(25, 26, 27))
    write_run(logdir, "RCP-A", 50, seeds=(25, 26, 27))
    search = {"search/fitness_mean": 20.0, "search/center_return": 40.0}
    fake_runs.write_run(logdir, "SE", lambda epoch, seed: search, steps=100_000)
    fake_runs.write_run(logdir, "RCP-R", lambda epoch, seed: {"eval/return_greedy": 5.0}, epochs=1)
    plot([logdir], logdir / "all.png")
    assert "steps of all agents" in capsys.readouterr().out
    curves, scores = figures
    ends: dict[str, set[float]] = {}
    for axis in curves.axes:
        ends.setdefault(axis.get_xlabel(), set()).add(axis.get_xlim()[1])
    assert list(ends) == ["environment steps", "steps of all agents on proxies"]
    (point,) = {line for axis in curves.axes for line in axis.get_lines() if line.get_marker() == "o"}
    assert len(point.get_xdata()) == 1 and not point.get_clip_on()
    assert max(ends["environment steps"]) < 50_000 and min(ends["steps of all agents on proxies"]) > 4_000_000
    assert json.loads((logdir / "all.json").read_text())["compared"]["groups"] == ["RCP-A", "UDRL"]
    assert [label.get_text() for label in scores.axes[0].get_yticklabels()] == ["UDRL", "RCP-A"]


def test_reference_levels_have_names_and_sources() -> None:
    thresholds = {"lunarlander": 200, "beresheet": 200, "cartpole": 475, "acrobot": -100}
    assert {game: solved_return(game) for game in thresholds} == thresholds
    assert all(solved_return(game) is None for game in ("pendulum", "procmaze,grid_size=3", "unheard of"))
    reference_levels = levels("lunarlander", ["RCP-A", "RCP-R"])
    assert [level.label for level in reference_levels] == [
        "solved: 200",
        "RCP-R, published: 220",
        "RCP-A, published: 200",
    ]
    assert sources(reference_levels) == (
        "solved: Gymnasium's reward_threshold; RCP-R and RCP-A, published: Kumar et al. 2019, read off a figure"
    )
