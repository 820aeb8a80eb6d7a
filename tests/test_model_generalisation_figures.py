"""experiments/model_generalisation: the figure of the comparison, the comparison with the original, the script that
trains, the search spaces; and `--plot` of such runs."""

import importlib.util
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from conftest import ROOT
from control.cli.parse import parse, to_yaml
from control.commands.search_space import search_space
from control.reports.figures import plot
from control.reports.runs import find_groups, read_runs, return_tags
from models.agents.model_generalisation.config import IMPLEMENTATIONS, PRESETS
from models.settings import SettingError

FOLDER = ROOT / "experiments" / "model_generalisation"
EVALUATIONS = 20


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"model_generalisation_{name}", FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


figure, parity = load_script("figure"), load_script("parity")


def write_run(
    logdir: Path, implementation: str, *flags: str, seeds: Sequence[int] = (0, 1), name: str = "debug", version: int = 0
) -> Path:
    """A run whose evaluation of seed s is ``10 e + s`` at its e-th of 20 evaluations, less 100 in a world with
    episodes and by the hundred in one without; they are 500 steps apart."""
    settings = parse(["--implementation", implementation, "--num_seeds", str(len(seeds)), *flags])
    game = settings.run.gamename.replace(",", "_")
    folder = logdir / game / name / implementation / f"seed_{seeds[0]}-{seeds[-1]}" / f"version_{version}"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(settings))
    episodic = getattr(settings.agent, "episodic_env", True)
    tags = ["train/loss", "eval/return_greedy"] + ["eval/reward_rate"] * (not episodic)
    lines = [",".join(["epoch", "env_steps", "seed", *tags])]
    for e in range(1, EVALUATIONS + 1):
        for seed in seeds:
            height = 10 * e + seed
            values = [1 / e, height - 100] if episodic else [1 / e, height, height / 100]
            lines.append(",".join(map(str, [e, 500 * e, seed, *values])))
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    return folder


def is_png(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 10000


# -- the figure --------------------------------------------------------------------------------------------------------


def test_a_panel_for_each_world_and_amount_of_data(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for preset in PRESETS:
        for implementation in ("GaussianLatent", "ER"):
            write_run(logdir, implementation, "--preset", preset, name=preset)
    write_run(logdir, "DDQN", "--gamename", "procmaze")
    out = logdir / "figures" / "all.png"
    assert figure.main([str(logdir), "--out", str(out)]) == 0
    assert is_png(out)
    numbers = json.loads(out.with_suffix(".json").read_text())
    assert sorted(numbers["panels"]) == sorted(PRESETS)
    assert all(list(panel["agents"]) == ["ER", "GaussianLatent"] for panel in numbers["panels"].values())
    maze, flute = numbers["panels"]["procmaze_low"], numbers["panels"]["panflute_high"]
    assert (maze["metric"], flute["metric"]) == ("eval/return_greedy", "eval/reward_rate")
    assert maze["references"] == {"optimum": -4.40, "random": -35.36} and maze["threshold"] == pytest.approx(-19.88)
    er = maze["agents"]["ER"]
    # The last tenth of 10,000 steps is what lies above 9,000: evaluations 19 and 20, at 90 and 100 and at one more.
    assert (er["seeds"], er["env_steps"], er["last_tenth"]["mean"]) == (2, 10_000, 95.5)
    assert er["last_tenth"]["interval"] == [95, 96]
    # A straight line from -90 to 100, and one that is one higher.
    assert er["area"]["mean"] == pytest.approx(5.5)
    # Means of the seeds are 10 e - 99.5: the first of at least -19.88 is the eighth.
    assert er["steps_to_threshold"] == 4000
    assert flute["agents"]["ER"]["last_tenth"]["mean"] == pytest.approx(1.955)
    assert numbers["panels"]["buttongrid_high"]["threshold"] is None
    shown = capsys.readouterr().out
    assert "procmaze_low" in shown and "4,000" in shown and str(out) in shown and "DDQN" not in shown


def test_moving_average_and_thinning(logdir: Path) -> None:
    runs = read_runs(write_run(logdir, "ER", "--gamename", "procmaze", seeds=(0,)) / "metrics.csv")
    plain = figure.curves(runs, "eval/return_greedy", 1, 1)
    assert len(plain.steps) == EVALUATIONS and plain.values[0, 0] == -90
    # Of evaluations 1, 4, 7, ..., 19 the means of three in a row, the first at the seventh.
    smooth = figure.curves(runs, "eval/return_greedy", 3, 3)
    assert smooth.steps.tolist() == [3500, 5000, 6500, 8000, 9500]
    assert smooth.values.tolist() == [[-60, -30, 0, 30, 60]]
    with pytest.raises(SettingError, match="window is 21, but .* have 20 evaluations in common"):
        figure.curves(runs, "eval/return_greedy", 21, 1)


def test_seeds_meet_where_all_of_them_were_evaluated(logdir: Path) -> None:
    (one,) = read_runs(write_run(logdir, "ER", "--gamename", "procmaze", seeds=(0,)) / "metrics.csv")
    (other,) = read_runs(write_run(logdir, "ER", "--gamename", "procmaze", seeds=(1,)) / "metrics.csv")
    other.columns = {name: values[1:14:2] for name, values in other.columns.items()}
    met = figure.curves([one, other], "eval/return_greedy", 1, 1)
    assert met.steps.tolist() == [1000, 2000, 3000, 4000, 5000, 6000, 7000]
    assert (met.values[1] - met.values[0]).tolist() == [1] * 7


@pytest.mark.parametrize(
    ("flags", "shape"),
    [
        (["procmaze_high"], (1, 1)),
        (["procmaze_high", "procmaze_low"], (2, 1)),
        (["procmaze_high", "panflute_low"], (2, 2)),
    ],
)
def test_what_has_no_run_takes_no_room(
    logdir: Path, flags: list[str], shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib.pyplot as plt

    for preset in flags:
        write_run(logdir, "ER", "--preset", preset, seeds=(3,), name=preset)
    drawn: list[Any] = []
    monkeypatch.setattr(plt, "close", drawn.append)
    assert figure.main([str(logdir), "--out", str(logdir / "one.svg")]) == 0
    grid = drawn[0].axes[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == shape
    assert sum(axis.get_visible() for axis in drawn[0].axes) == len(flags)
    assert drawn[0].axes[0].get_title("left") == "ProcMaze, high data"
    assert [text.get_text() for text in drawn[0].axes[0].texts] == ["optimum\n-4.4", "random\n-35.36"]
    monkeypatch.undo()
    plt.close(drawn[0])


def broken(logdir: Path, what: str) -> None:
    """Something below ``logdir`` that belongs in no figure."""
    folder = write_run(logdir, "DDQN" if what == "family" else "ER", "--gamename", "procmaze")
    metrics = folder / "metrics.csv"
    if what == "twice":
        shutil.copytree(logdir / "procmaze" / "debug", logdir / "procmaze" / "again")
    elif what == "game":
        write_run(logdir, "SimpleModel", "--gamename", "procmaze", "--grid_size", "3")
    elif what == "metric":
        write_run(logdir, "SimpleModel", "--gamename", "procmaze", "--no_episodic_env")
    elif what == "no config":
        (folder / "config.yaml").unlink()
    elif what == "other config":
        (folder / "config.yaml").write_text("- ER\n")
    elif what == "no evaluation":
        metrics.write_text(metrics.read_text().replace("return_greedy", "return"))
    elif what == "nothing":
        metrics.unlink()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("nothing", "which holds no metrics.csv"),
        ("family", "which holds no run of ER, PerfectModel, SimpleModel, CategoricalLatent, GaussianLatent"),
        ("twice", "logdir holds seed 0 of ER twice"),
        ("game", "gamename of these runs is procmaze and procmaze,grid_size=3; allowed: one a panel"),
        ("metric", "episodic_env of these runs is true and false; allowed: one a panel"),
        ("no config", "config.yaml, which says what was trained, cannot be read: No such file"),
        ("other config", "config.yaml, which says what was trained, cannot be read: it holds no settings"),
        ("no evaluation", "has no evaluation yet: eval/return_greedy is missing"),
    ],
)
def test_what_belongs_in_no_figure_is_one_line(
    logdir: Path, tmp_path: Path, what: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(logdir, what)
    assert figure.main([str(logdir), "--out", str(tmp_path / "x.png")]) == 2
    refused(said, capsys)
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--window", "0"], "window is 0; allowed: integer, at least 1"),
        (["-f", "0"], "frequency is 0; allowed: integer, at least 1"),
        (["-w", "30"], "window is 30, but "),
        (["--out", "x.jpg"], "out is 'x.jpg'; allowed: a folder, or a file ending in .png, .pdf, .svg"),
        (["--out", "/dev/null/x.png"], "out is '/dev/null/x.png', which cannot be written"),
    ],
)
def test_a_call_that_cannot_work_is_one_line(
    logdir: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert figure.main([str(write_run(logdir, "ER", "--gamename", "procmaze")), *flags]) == 2
    refused(said, capsys)


def refused(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = capsys.readouterr()
    assert said in output.err and output.err.startswith("error: ") and output.err.count("\n") == 1
    assert output.out == ""


# -- `trainer.py --plot` ---------------------------------------------------------------------------------------------


def test_worlds_without_episodes_show_the_reward_a_step(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flute = read_runs(write_run(logdir, "ER", "--gamename", "panflute") / "metrics.csv")
    maze = read_runs(write_run(logdir, "ER", "--gamename", "procmaze") / "metrics.csv")
    assert return_tags(flute) == ["eval/reward_rate"] and return_tags(maze) == ["eval/return_greedy"]
    assert return_tags(flute + maze) == ["eval/return_greedy", "eval/reward_rate"]
    plot([logdir / "panflute"])
    rows = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "reward rate" in rows["ER"] and "1.9 (2.0)" in rows["seed 0"]


def test_versions_that_are_named_stay_apart(logdir: Path) -> None:
    high = write_run(logdir, "ER", "--preset", "procmaze_high")
    low = write_run(logdir, "ER", "--preset", "procmaze_low", version=1)
    assert [group.names[-1] for group in find_groups([high, low])] == ["version_0", "version_1"]
    assert [len(group.runs) for group in find_groups([high, low])] == [2, 2]
    (newest,) = find_groups([logdir])
    assert {run.source for run in newest.runs} == {low / "metrics.csv"} and newest.names[-1] == "ER"
    plot([high, low], out=logdir / "two.png")
    assert set(json.loads((logdir / "two.json").read_text())["groups"]) == {"version_0", "version_1"}


# -- against the original --------------------------------------------------------------------------------------------


def test_the_originals_curves_are_whole() -> None:
    counts = {"A": [30, 24, 22], "B": [10] * 5, "untrained": [1] * 5}
    for name, fixture in parity.FIXTURES.items():
        entries = fixture["agents"].values()
        assert [len(entry["mean"]) for entry in entries] == counts[name]
        assert all(("se" in entry) != ("typical_se" in entry) for entry in entries)
        assert all(len(entry["se"]) == len(entry["mean"]) for entry in entries if "se" in entry)
        for agent in fixture["agents"]:
            curve = parity.original(name, agent)
            assert all(np.isfinite(curve.at(step)).all() and curve.at(step)[1] > 0 for step in fixture["points"])
    assert parity.original("A", "PerfectModel").at(20_000) == (-3.2, 0.2)
    assert parity.original("B", "CategoricalLatent").at(3500) == (0.361, 0.017)
    assert parity.original("B", "ER").at(5000) == (0.293, 0.0375), "the middle of what is typical"
    assert parity.original("untrained", "GaussianLatent").at(1) == (-39.8, 1.4)


@pytest.mark.parametrize(("fixture", "agent"), [(f, a) for f in parity.FIXTURES for a in parity.FIXTURES[f]["agents"]])
def test_ours_are_trained_with_the_originals_settings(fixture: str, agent: str) -> None:
    settings = parse(parity.flags_of(fixture, agent, 5, ["--num_threads", "2"]))
    run, own = settings.run, settings.agent
    assert (run.seed, run.num_threads, own.faithful_to_paper) == (5, 2, True)
    assert own.gamma == 0.9 and own.training_start_time == 1000
    if fixture == "untrained":
        assert (run.num_seeds, own.num_steps, own.num_hidden_units, run.gamename) == (30, 1, 200, "procmaze")
        return
    step, buffer = (1e-3, 20_000) if fixture == "A" else (5e-4, 10_000)
    assert (run.num_seeds, own.num_hidden_layers, own.num_hidden_units) == (10, 2, 64)
    assert (own.Q_alpha, own.buffer_size, own.target_update_frequency) == (step, buffer, 50)
    assert own.batch_size == (80 if agent == "ER" else 8) and own.episodic_env == (fixture == "A")
    assert own.softmax_temp == (0.4 if fixture == "A" and agent != "ER" else 0.1)
    assert own.model_alpha == (step if agent not in ("ER", "PerfectModel") else 2e-4)


def made_up(mean: float, error: float) -> Any:
    return parity.Curve(np.array([2000.0, 3500.0]), np.array([mean, mean + 0.1]), np.array([error, np.nan]))


def test_the_table_says_who_is_close() -> None:
    rows = parity.compare("B", "CategoricalLatent", parity.original("B", "CategoricalLatent"), made_up(0.317, 0.02))
    assert [(row["step"], row["within"]) for row in rows] == [(2000, True), (3500, False)]
    assert rows[0]["difference"] == pytest.approx(1.0) and rows[1]["ours_se"] is None
    rows += parity.compare("B", "ER", parity.original("B", "ER"), made_up(0.2, 0.02))
    lines = parity.table(rows).splitlines()
    assert lines[0].split() == ["B:", "PanFlute,", "3", "pipes", "step", "original", "ours", "difference", "/", "SE",
                                "within", "2"]  # fmt: skip
    assert lines[1].split() == ["CategoricalLatent", "2,000", "0.280", "(0.037)", "0.317", "(0.020)", "+1.0", "yes"]
    assert lines[2].split()[-2:] == ["+3.3", "NO"] and "(one seed)" in lines[2]
    assert lines[3].split()[:5] == ["ER", "2,000", "0.212", "(~0.037)", "0.200"]
    assert lines[-1] == "3 of 4 points within 2 standard errors of the original"


def test_ours_over_theirs(tmp_path: Path) -> None:
    pairs = {("A", "ER"): "ER", ("B", "ER"): "ER", ("B", "SimpleModel"): "SimpleModel"}
    curves = {place: (parity.original(*place), made_up(0.2, 0.02)) for place in pairs}
    parity.draw(curves, tmp_path / "curves.png")
    assert is_png(tmp_path / "curves.png")


def test_a_run_is_read_back_over_its_seeds(logdir: Path) -> None:
    curve = parity.ours(write_run(logdir, "ER", "--gamename", "procmaze", seeds=(0, 1, 2)), "eval/return_greedy")
    assert curve.at(1000) == pytest.approx((-79, 1 / 3**0.5)) and curve.at(1001) is None


def test_a_short_comparison_from_nothing(tmp_path: Path, logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--num_hidden_units", "8", "--eval_steps", "3", "--logdir", str(logdir)]
    argv = ["--fixture", "untrained", "--agents", "ER", "PerfectModel", "--json", str(tmp_path / "rows.json"), *small]
    assert parity.main(argv) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["agent"] for row in rows] == ["ER", "PerfectModel"]
    assert all((row["step"], row["original"], row["original_se"]) == (1, -54.4, 1.6) for row in rows)
    assert all(-3 <= row["ours"] <= -1 and not row["within"] for row in rows)
    assert "0 of 2 points within 2 standard errors" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--agents", "SimplModel"], "agents is 'SimplModel'; allowed: "),
        (["--fixture", "A", "--agents", "GaussianLatent"], "agents is GaussianLatent; none of them is in fixture A"),
        (["--fixture", "A", "--figure", "x.jpg"], "figure is 'x.jpg'; allowed: "),
        (["--fixture", "A", "--json", "/dev/null/x"], "json is '/dev/null/x', which cannot be written"),
        (["--fixture", "A", "--agents", "ER", "--model_alpha", "1"], "--model_alpha has no effect: model is 'none'"),
        (["--seed", "-1"], "seed is -1; allowed: integer, at least 0"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_one_line(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parity.main(flags) == 2
    refused(said, capsys)


# -- search spaces -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_every_published_value_lies_in_the_search_space(name: str) -> None:
    space = search_space(parse(["--use_tune", "--implementation", name]))
    learned = name not in ("ER", "PerfectModel")
    assert space.names == ["Q_alpha", *["model_alpha"] * learned, "softmax_temp"]
    low, high = space["Q_alpha"].values
    for values in PRESETS.values():
        assert low < values[name]["Q_alpha"] < high
        assert values[name]["softmax_temp"] in space["softmax_temp"].values


@pytest.mark.parametrize("game", ["procmaze", "panflute", "cartpole"])
def test_worlds_are_not_searched(tmp_path: Path, game: str) -> None:
    (tmp_path / "space.yaml").write_text("Q_alpha: [0.1]\ngrid_size: [3, 4]\n")
    argv = ["--use_tune", "--implementation", "ER", "--gamename", game, "--search_space", str(tmp_path / "space.yaml")]
    with pytest.raises(SettingError) as caught:
        search_space(parse(argv))
    assert str(caught.value) == (
        f"{tmp_path / 'space.yaml'}: grid_size is no hyperparameter but a parameter of procmaze, opengrid, buttongrid; "
        "give it as a flag"
    )
