"""Figures of several runs as pages: rows of panels, names of files, comparisons by scores, levels of others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_runs
from control.reports.curves import learning_curve, levels, quantity, solved_return, sources
from control.reports.plot import plot
from control.reports.sheets import COLOURS, WIDTH, Look, balanced, rows
from fake_runs import Shown
from models.settings import SettingError
from test_plotting import write_run


def test_each_environment_has_rows_of_its_own_and_no_page_is_wider_than_paper(logdir: Path, figures: list[Any]) -> None:
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
    assert len({labels["RCP-A"] for labels in colours}) == 1, "a colour means the same in every row"
    assert [axis.get_ylabel() for axis in axes] == ["return (sum of rewards)", ""] * 2
    for panel, other in (axes[:2], axes[2:]):
        assert panel.get_ylim() == other.get_ylim() and panel.get_xlim() == other.get_xlim()
    assert axes[0].get_ylim() != axes[2].get_ylim(), "environments share no scale"


def test_pages_of_many_environments_are_those_of_one_pdf(logdir: Path, figures: list[Any], capsys: Shown) -> None:
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


def test_the_name_of_a_figure_says_what_it_shows(logdir: Path) -> None:
    runs = [write_run(logdir, version=version) for version in (1, 2)]
    plot([runs[1]])
    plot(runs)
    assert sorted(path.name for path in logdir.rglob("plot*.png")) == [
        "plot_lunarlander_UDRL.png", "plot_lunarlander_version_1_version_2.png"
    ]  # fmt: skip


def test_a_figure_is_drawn_again_from_its_numbers(logdir: Path, figures: list[Any], capsys: Shown) -> None:
    for name in ("UDRL", "RCP-A"):
        write_run(logdir, name, seeds=(25, 26, 27))
    plot([logdir], logdir / "one.png")
    table = capsys.readouterr().out.partition("Figure:")[0]
    plot([logdir / "one.json"], logdir / "two.png")
    assert capsys.readouterr().out.partition("Figure:")[0] == table
    first, comparison, redrawn, compared = figures
    kinds = [[axis.get_title("left").replace("\n", " ") for axis in figure.axes] for figure in (first, redrawn)]
    assert kinds[1] == kinds[0][:2] and len(kinds[0]) == 3, "of losses there are no numbers"
    for panel, other in zip(first.axes, redrawn.axes, strict=False):
        for line, copy in zip(panel.get_lines(), other.get_lines(), strict=True):
            np.testing.assert_allclose(line.get_ydata(), copy.get_ydata(), rtol=1e-4)
    assert [axis.get_xlim() for axis in comparison.axes] == [axis.get_xlim() for axis in compared.axes]
    for content in ("{}", "[]", '{"runs": "x", "groups": {"a": 1}}', "nothing"):
        (logdir / "broken.json").write_text(content)
        with pytest.raises(
            SettingError, match="broken.json', which --plot did not write; allowed: run folders, or a JSON"
        ):
            plot([logdir / "broken.json"])


def test_algorithms_of_three_seeds_are_compared_and_fewer_have_no_interval(
    logdir: Path, figures: list[Any], capsys: Shown
) -> None:
    """UDRL's three seeds are each better than RCP-A's."""
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
    assert bands == [2, 2, 2], "one for each of three seeds, none for two"
    lines = [
        line for line in curves.axes[0].get_lines() if line.get_color() == COLOURS[1] and len(line.get_xdata()) > 2
    ]
    assert len(lines) == 2, "a line for each of the two seeds, and nothing else"
    titles = [axis.get_title("left").replace("\n", " ") for axis in scores.axes]
    better = "Probability that UDRL is better, return, greedy"
    assert titles == ["Score of each seed", "", "Seeds that score more", better]
    labels = [axis.get_xlabel() for axis in scores.axes]
    assert labels == ["return, greedy", "return, training", "return, greedy", "probability"]
    assert scores.axes[0].get_xlim() == scores.axes[1].get_xlim()
    plot([logdir / "lunarlander/debug/RCP-R", logdir / "lunarlander/debug/UDRL"], logdir / "few.png")
    assert "probability" not in capsys.readouterr().out and len(figures) == 3


def test_searches_and_agents_share_no_axis_of_steps(logdir: Path, figures: list[Any], capsys: Shown) -> None:
    """A search counts the steps of all its agents: beside these an agent's would be a stroke."""
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
    assert len(point.get_xdata()) == 1 and not point.get_clip_on(), "no frame cuts it"
    assert max(ends["environment steps"]) < 50_000 and min(ends["steps of all agents on proxies"]) > 4_000_000
    assert json.loads((logdir / "all.json").read_text())["compared"]["groups"] == ["RCP-A", "UDRL"]
    assert [label.get_text() for label in scores.axes[0].get_yticklabels()] == ["UDRL", "RCP-A"]


def test_returns_have_a_logarithmic_axis_only_where_asked(logdir: Path, figures: list[Any]) -> None:
    run = write_run(logdir)  # returns from 3 to 125
    plot([run])
    plot([run], look=Look(log=True))
    learning_curve(run)
    learning_curve(run, Look(log=True))
    assert [figure.axes[0].get_yscale() for figure in figures] == ["linear", "log", "linear", "log"]


def test_levels_have_names_and_sources() -> None:
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
    assert quantity("train/value_loss", "ddqn") == ("Squared TD error", "loss (reward²)")
    assert quantity("eval/reward_rate")[1] == "reward per step"


def test_a_level_far_away_does_not_flatten_the_curves(logdir: Path, figures: list[Any]) -> None:
    plot([write_run(logdir, top=20, game="halfcheetah")])
    axis = figures[0].axes[0]
    assert axis.get_ylim()[1] < 100
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["UDRL", "solved: 4800 (beyond the axis)"]


def test_a_sheet_names_what_it_shows_and_nothing_else(logdir: Path, figures: list[Any], capsys: Shown) -> None:
    """Of three environments one has losses, and of one the level lies beyond the axis."""
    write_run(logdir, top=20, game="halfcheetah")
    for game, name in ("cartpole", "one"), ("corridor", "two"):
        numbers = {"rollout/return_mean": 450.0}
        fake_runs.write_run(logdir, "PPO", lambda epoch, seed, row=numbers: row, game=game, name=name)
    plot([logdir])
    assert capsys.readouterr().out.startswith("Returns, mean of the last tenth of the epochs")
    legends = [[text.get_text() for text in figure.legends[0].get_texts()] for figure in figures if figure.legends]
    assert legends == [["debug/UDRL", "one/PPO", "two/PPO", "solved", "solved: 4800 in halfcheetah (beyond the axis)"]]
    titles = [figure._suptitle.get_text() for figure in figures]
    assert titles == ["3 environments, 1 seed", "halfcheetah, 1 seed"]


def test_rows_have_no_holes() -> None:
    for count in range(1, 14):
        lengths = balanced(count)
        cells = rows(*lengths)
        assert max(lengths) <= 3 and max(lengths) - min(lengths) <= 1
        assert {len(row) for row in cells} == {len(cells[0])} and {i for row in cells for i in row} == set(range(count))
