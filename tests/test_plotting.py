"""`--plot` and the learning curve of a run: reading runs, their tables and figures."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_runs
from control.reports.curves import Level, curves_note, draw_curves, draw_levels, on_grid, smooth
from control.reports.figures import NARROW, WIDTH, FigureStyle, figure_panels, rows
from control.reports.plot import distinct_labels, figure_of, learning_curve, plot
from control.reports.runs import find_groups, read_runs
from control.storage.run_dir import RESULTS
from fake_runs import Shown, is_png
from models.settings import SettingError

EPOCHS = 40


def write_run(logdir: Path, implementation: str = "UDRL", top: float = 100.0, **kwargs: Any) -> Path:
    """A run whose training return rises to ``top + seed`` in a straight line over its 40 epochs of 1,000 steps."""

    def numbers(epoch: int, seed: int) -> dict[str, float]:
        value = (top + seed) * epoch / EPOCHS
        row = {
            "train/policy_loss": math.exp(-epoch / 9),
            "rollout/return_mean": value,
            "rollout/command_return": value + 5,
        }
        return row | ({"eval/return_greedy": value + 10} if epoch % 10 == 0 else {})

    return fake_runs.write_run(logdir, implementation, numbers, epochs=EPOCHS, **kwargs)


def titles(figure: Any) -> list[str]:
    return [axis.get_title("left").replace("\n", " ") for axis in figure.axes]


def write_foreign(folder: Path, returns: Sequence[float] = (1, 2, 3, 4), env_id: str = "LunarLander-v3") -> Path:
    """A run of stable-baselines3 with two environments: their episodes of 10 and of 5 steps end in turns."""
    folder.mkdir(parents=True)
    for env, start in enumerate((1000.5, 1000.0)):
        header = json.dumps({"t_start": start, "env_id": env_id})
        rows = [f"{value},{(10, 5)[env]},{2 * i + env}" for i, value in enumerate(returns[env::2])]
        text = "\n".join([f"#{header}", "r,l,t", *rows, "7.0,"])  # a row that is being written
        (folder / f"{env}.monitor.csv").write_text(text)
    results = np.array([[5.0, 15.0], [25.0, 35.0]])
    np.savez(folder / "evaluations.npz", timesteps=[12, 24], results=results, ep_lengths=results)
    return folder


def test_runs_of_stable_baselines3_are_plotted_beside_ours(tmp_path: Path, capsys: Shown) -> None:
    """Steps are of both environments, in the order in which episodes end; both libraries are in one figure."""
    for seed in (0, 1, 2):
        write_foreign(tmp_path / "logs" / f"ppo_{seed}")
    (group,) = find_groups([tmp_path / "logs"])
    assert group.names == ("lunarlander", "logs", "ppo") and [run.seed for run in group.runs] == [0, 1, 2]
    steps, returns = group.runs[0].points("rollout/return_mean", "env_steps")
    assert steps.tolist() == [10, 15, 25, 30] and returns.tolist() == [1, 2, 3, 4]
    steps, means = group.runs[0].points("eval/return_greedy", "env_steps")
    assert steps.tolist() == [12, 24] and means.tolist() == [10, 30]
    write_run(tmp_path / "ours")
    out = tmp_path / "both.png"
    assert plot([tmp_path / "logs", tmp_path / "ours"], out) == 0
    text = capsys.readouterr().out
    assert text.startswith("lunarlander: returns") and "logs/ppo" in text and "debug/UDRL" in text
    assert set(json.loads(out.with_suffix(".json").read_text())["groups"]) == {"logs/ppo", "debug/UDRL"}
    assert find_groups([write_foreign(tmp_path / "x" / "new", env_id="New-v0")])[0].names == ("New-v0", "x", "new")
    with pytest.raises(SettingError, match="which holds no metrics.csv"):
        find_groups([tmp_path / "logs"], "report")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "monitor.csv").write_text('#{"t_start": 1}\nr,l,t\n')
    with pytest.raises(SettingError, match="has no episode and no evaluation yet"):
        find_groups([tmp_path / "empty"])


def test_newest_version_counts_unless_one_is_named(logdir: Path) -> None:
    newest, older = (write_run(logdir, version=version, top=top) for version, top in ((10, 200), (9, 50)))

    def best(*folders: Path) -> list[float]:
        return [group.runs[0].best("rollout/return_mean") for group in find_groups(folders)]

    assert best(logdir) == [225] and best(older) == [75] and best(newest, older) == [75, 225]
    assert [group.names[-1] for group in find_groups([newest, older])] == ["version_9", "version_10"]
    assert best(logdir, older) == [75], "a named version has priority over a newer one"
    (newest / "config.yaml").write_text("gamename: procmaze,grid_size=5\n")
    assert find_groups([newest])[0].names == ("procmaze,grid_size=5", "debug", "UDRL")
    (newest / "config.yaml").unlink()
    plot([newest, older], out=logdir / "two.png")
    assert set(json.loads((logdir / "two.json").read_text())["groups"]) == {"version_10", "version_9"}


def test_runs_inside_a_run_count_if_no_other_is_below(logdir: Path) -> None:
    """A folder of ``--learn`` has the run of its teacher."""
    debug, learned = logdir / "lunarlander" / "debug", logdir / "lunarlander/debug/learned/seed_25/version_0"
    teacher = write_run(learned, implementation="PPO")
    (learned / RESULTS).touch()
    assert all(find_groups([folder])[0].names[2] == "PPO" for folder in (debug, learned, teacher))
    run = write_run(logdir)
    trial = debug / "DDQN/tune/version_0/trial_1"
    trial.parent.mkdir(parents=True)
    write_run(logdir.parent / "other", implementation="DDQN").rename(trial)
    assert [group.names[2] for group in find_groups([debug])] == ["DDQN", "UDRL"]
    assert [group.names[2] for group in find_groups([run, learned])] == ["PPO", "UDRL"]
    version = write_run(logdir, implementation="A2C", name="version_1")  # the user's name
    assert [group.names[2] for group in find_groups([debug.parent])] == ["DDQN", "UDRL", "A2C"] and version.exists()


def test_grid_covers_the_steps_of_all_runs(logdir: Path) -> None:
    runs = [read_runs(write_run(logdir, seeds=(seed,)) / "metrics.csv")[0] for seed in (25, 26)]
    runs[1].columns = {name: values[:20] for name, values in runs[1].columns.items()}
    x, curves = on_grid(runs, "rollout/return_mean")
    assert (x[0], x[-1]) == (1000, 20000) and curves.shape == (2, len(x))
    # Straight lines remain straight, also after smoothing.
    np.testing.assert_allclose(curves[0], 125 * x / 40000)
    np.testing.assert_allclose(smooth(np.arange(500.0))[5:-5], np.arange(5.0, 495.0))
    np.testing.assert_allclose(smooth(np.full(500, 3.0)), 3.0)


def test_long_curves_are_exact_at_the_left_of_a_logarithmic_axis(logdir: Path) -> None:
    """The first of a thousand points are as far apart there as all others."""
    folder = fake_runs.write_run(logdir, "PPO", lambda epoch, _: {"rollout/return_mean": 500 - 480 / epoch}, epochs=999)
    x, (curve,) = on_grid(read_runs(folder / "metrics.csv"), "rollout/return_mean")
    assert x[:3].tolist() == [1000, 2000, 3000] and curve[0] == 20 and curve[1] < 300 and x[-1] == 999_000
    assert 200 < len(x) <= 400 and np.diff(x).max() <= 6000 and (x[1:] / x[:-1]).max() == 2


def test_evaluations_are_not_smoothed(logdir: Path) -> None:
    tags = ("eval/return_greedy", "rollout/return_mean")
    folder = fake_runs.write_run(logdir, "UDRL", lambda epoch, _: dict.fromkeys(tags, epoch % 2), epochs=100)
    runs = read_runs(folder / "metrics.csv")
    evaluations, returns = (on_grid(runs, tag)[1] for tag in tags)
    assert evaluations.max() > 0.9 and returns[0, 10:-10].max() < 0.7


@pytest.mark.parametrize("seeds", [1, 2, 3, 4])
def test_curves_are_means_with_thin_seeds(seeds: int, tmp_path: Path) -> None:
    with figure_panels(tmp_path / "curves.png", [[0]], (4, 3)) as (axis,):
        draw_curves(axis, np.arange(5.0), np.arange(5.0 * seeds).reshape(seeds, 5), "C0", "PPO")
        main, *others = axis.get_lines()
        assert main.get_label() == "PPO" and main.get_ydata()[0] == 2.5 * (seeds - 1)
        assert [line.get_linewidth() for line in others] == {1: [], 2: [0.5, 0.5], 3: [], 4: [0.9]}[seeds]
        assert ("dashed" in curves_note(seeds)) == (seeds == 4)


def test_far_reference_levels_are_left_out(tmp_path: Path) -> None:
    with figure_panels(tmp_path / "levels.png", [[0]], (4, 3)) as (axis,):
        axis.set_ylim(0, 10)
        draw_levels(axis, [Level(-15.0, "near"), Level(500.0, "far")])
        assert [line.get_label() for line in axis.get_lines()] == ["near"]
        assert axis.get_ylim()[0] < -15 and axis.get_ylim()[1] == 10


@pytest.mark.draws
def test_narrow_figures_have_one_column(tmp_path: Path) -> None:
    style = FigureStyle(narrow=True)
    with figure_panels(tmp_path / "a.svg", rows(1, 2), (WIDTH, 4), style, title="title", note="note") as axes:
        for axis in axes:
            axis.plot([1, 2], label="line")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "a_narrow.svg"]
    figure = axes[0].figure
    assert figure.get_size_inches()[0] == NARROW
    assert [axis.get_subplotspec().rowspan.start for axis in figure.axes] == [0, 1, 2]
    assert [text.get_text() for text in figure.texts] == ["title", "note"] and len(figure.legends) == 1


@pytest.mark.draws
def test_plot_writes_figure_table_and_numbers(logdir: Path, capsys: Shown) -> None:
    for seed in (25, 26, 27):
        write_run(logdir, seeds=(seed,))
    write_run(logdir, "RCP-A", seeds=(25, 26))
    assert plot([logdir]) == 0
    figure = logdir / "plot_lunarlander_RCP-A_UDRL.png"
    assert is_png(figure)
    numbers = json.loads(figure.with_suffix(".json").read_text())["groups"]
    greedy = numbers["UDRL"]["over_seeds"]["eval/return_greedy"]
    assert greedy["mean"] == pytest.approx(136) and greedy["n"] == 3
    assert 135 <= greedy["iqm_interval"][0] <= 136 <= greedy["iqm_interval"][1] <= 137
    assert numbers["RCP-A"]["seeds"]["26"]["rollout/return_mean"]["best"] == pytest.approx(126)
    output = capsys.readouterr().out
    assert "136.0" in output and "IQM" in output and "seed 27" in output and str(figure) in output


@pytest.mark.parametrize(("content", "message"), [
    ("", "it is empty"),
    ("epoch,env_steps,seed,rollout/return_mean\n", "no epoch yet"),
    ("epoch,env_steps,seed\n0,100,25\n", "neither returns nor losses"),
    (None, "holds no metrics.csv"),
])  # fmt: skip
def test_broken_metrics_file_is_an_error(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "metrics.csv").write_text(content)
    with pytest.raises(SettingError, match=message) as caught:
        plot([tmp_path])
    assert "\n" not in str(caught.value)


def test_paths_that_cannot_be_read_or_written_are_errors(logdir: Path, capsys: Shown) -> None:
    run = write_run(logdir)
    (logdir / "file").write_text("")
    (logdir / "folder.png" / "plot.json").mkdir(parents=True)
    (other := logdir / "mine.json").write_text('{"name": "mine"}')
    for arguments, message in (
        (([logdir / "nowhere"],), "is not there"),
        (([run], Path("a.jpg")), r"plot_out is 'a.jpg'; allowed: a folder, or a file ending in .png, .pdf"),
        (([run], logdir / "file"), "plot_out is '.*/file'; allowed: a folder, or a file ending in .png"),
        (([run], logdir / "folder.png/plot.json/../plot.png"), "plot_out is .*cannot be written"),
        (([run], logdir / "mine.png"), "plot_out is .*mine.json., which --plot did not write; allowed: another name"),
    ):
        with pytest.raises(SettingError, match=message):
            plot(*arguments)
    assert capsys.readouterr().out == "" and not (logdir / "folder.png" / "plot.png").exists()
    assert other.read_text() == '{"name": "mine"}' and not other.with_suffix(".png").exists()


@pytest.mark.draws
def test_learning_curve_of_several_seeds(logdir: Path, figures: list[Any]) -> None:
    folder = write_run(logdir, seeds=(30, 31))
    assert learning_curve(folder) == folder / "curve.png" and is_png(folder / "curve.png")
    assert titles(figures[0]) == ["Training return", "Evaluation return, greedy", "Policy loss"]
    assert [axis.get_ylabel() for axis in figures[0].axes] == [*["return (sum of rewards)"] * 2, "loss"]
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["UDRL", "solved (Gymnasium)"]
    assert learning_curve(folder, FigureStyle(formats=("svg", "pdf"))) == folder / "curve.svg"
    assert (folder / "curve.svg").read_bytes().startswith(b"<?xml") and (folder / "curve.pdf").exists()


def test_losses_of_different_families_have_different_titles(logdir: Path, figures: list[Any]) -> None:
    for name in ("UDRL", "DDQN"):
        write_run(logdir, name)
    plot([logdir], logdir / "both.png")
    assert titles(figures[0])[2:] == ["Policy loss of DDQN", "Policy loss of UDRL"]


def test_title_names_a_single_seed(logdir: Path) -> None:
    first, second = write_run(logdir), write_run(logdir, seeds=(30, 31))
    for folders, text in (([first], "seed 25"), ([second], "2 seeds"), ([first, second], "3 seeds")):
        figure = figure_of(find_groups(folders))
        assert figure.heading(figure.arms) == f"lunarlander, debug, UDRL, {text}"


def test_figure_is_redrawn_from_its_json(logdir: Path, figures: list[Any], capsys: Shown) -> None:
    for name in ("UDRL", "RCP-A"):
        write_run(logdir, name, seeds=(25, 26, 27))
    plot([logdir], logdir / "one.png")
    table = capsys.readouterr().out.partition("Figure:")[0]
    plot([logdir / "one.json"], logdir / "two.png")
    assert capsys.readouterr().out.partition("Figure:")[0] == table
    first, comparison, redrawn, compared = figures
    assert titles(redrawn) == titles(first) and len(titles(first)) == 3
    for panel, other in zip(first.axes, redrawn.axes, strict=True):
        for line, copy in zip(panel.get_lines(), other.get_lines(), strict=True):
            np.testing.assert_allclose(line.get_ydata(), copy.get_ydata(), rtol=1e-4)
    assert [axis.get_xlim() for axis in comparison.axes] == [axis.get_xlim() for axis in compared.axes]
    (logdir / "broken.json").write_text('{"runs": "x", "groups": {"a": 1}}')
    with pytest.raises(SettingError, match="broken.json', which --plot did not write; allowed: run folders"):
        plot([logdir / "broken.json"])


def test_algorithms_with_three_seeds_are_compared(logdir: Path, figures: list[Any], capsys: Shown) -> None:
    """Each seed of UDRL is better than each of RCP-A."""
    write_run(logdir, "UDRL", 100, seeds=(25, 26, 27))
    write_run(logdir, "RCP-A", 50, seeds=(25, 26, 27))
    write_run(logdir, "RCP-R", 70, seeds=(25, 26))
    plot([logdir], logdir / "all.png")
    output = capsys.readouterr().out
    assert "UDRL > RCP-A" in output and output.count("\n  95 %") == 2 and "RCP-R >" not in output
    compared = json.loads((logdir / "all.json").read_text())["compared"]
    assert compared["tag"] == "eval/return_greedy"
    assert compared["improvement"]["UDRL > RCP-A"] == {"estimate": 1.0, "interval": [1.0, 1.0]}
    curves, scores = figures
    bands = [len(axis.collections) for axis in curves.axes]
    assert bands == [2, 2, 2]
    assert titles(scores) == ["Score of each seed", "Seeds that score more", "Probability that UDRL is better"]
    plot([logdir / "lunarlander/debug/RCP-R", logdir / "lunarlander/debug/UDRL"], logdir / "few.png")
    assert "probability" not in capsys.readouterr().out and len(figures) == 3


def test_steps_are_logarithmic_if_one_run_is_much_longer(logdir: Path, figures: list[Any]) -> None:
    write_run(logdir, "PPO", steps=100)
    write_run(logdir, "A2C", steps=500)
    plot([logdir], logdir / "near.png")
    write_run(logdir, "DDQN", steps=600)
    plot([logdir], logdir / "far.png")
    near, far = (axes_of.axes[:2] for axes_of in figures)
    assert [axis.get_xscale() for axis in (*near, *far)] == ["linear"] * 2 + ["log"] * 2
    assert far[0].get_xlabel() == "environment steps (log)" and far[0].get_xlim() == far[1].get_xlim()


def test_search_has_the_line_of_its_solved_return(logdir: Path, figures: list[Any]) -> None:
    """Gymnasium has no threshold for CliffWalking."""
    flags = ["--gamename", "cliffwalking"]

    def row(epoch: int, _: int) -> dict[str, float]:
        return {"search/center_return": epoch - 60.0, "search/fitness_mean": epoch - 60.0}

    fake_runs.write_run(logdir, "RN", row, flags=flags, game="cliffwalking")
    plot([logdir], logdir / "plot.png")
    lines = [line.get_label() for axis in figures[0].axes for line in axis.lines]
    assert lines.count("solved (search)") == 1
    plot([logdir / "plot.json"], logdir / "again.png")  # the JSON of the figure has the level too
    assert len(figures[1].axes[1].lines) == len(figures[0].axes[1].lines)


def test_axes_of_nearly_constant_curves_have_plain_numbers(logdir: Path, figures: list[Any]) -> None:
    fake_runs.write_run(logdir, "PPO", lambda epoch, _: {"train/entropy": 0.6931 + 1e-6 * epoch})
    plot([logdir], logdir / "plot.png")
    (axis,) = figures[0].axes
    low, high = axis.get_ylim()
    assert high - low > 6e-4 and axis.yaxis.get_major_formatter().get_offset() == ""


def test_labels_are_the_names_that_differ() -> None:
    run, trial = ("cartpole", "debug", "PPO"), ("cartpole", "debug", "PPO", "tune 0", "trial 1")
    assert distinct_labels([run, trial]) == (["PPO", "tune 0/trial 1"], "cartpole, debug, PPO")
    other = ("cartpole", "long", "PPO")
    assert distinct_labels([run, trial, other]) == (["debug", "debug/tune 0/trial 1", "long"], "cartpole, PPO")
    assert distinct_labels([run, ("copied",)]) == (["cartpole/debug/PPO", "copied"], "")
    assert distinct_labels([run, run]) == (["PPO", "PPO"], "cartpole, debug, PPO")


def test_search_without_steps_is_drawn_over_generations(logdir: Path, figures: list[Any]) -> None:
    def row(epoch: int, _: int) -> dict[str, float]:
        return {"search/center_return": epoch}

    fake_runs.write_run(logdir, "SE", row, steps=0)
    plot([logdir], logdir / "plot.png")
    (axis,) = figures[0].axes
    assert axis.get_xlabel() == "generations" and axis.lines[-1].get_xdata()[[0, -1]].tolist() == [1, 40]


def test_titles_of_panels_have_one_line_if_their_row_has_room(logdir: Path, figures: list[Any]) -> None:
    """A row of two panels is above a row of three."""
    losses = dict.fromkeys(("train/policy_loss", "train/value_loss", "train/entropy"), 1.0)
    fake_runs.write_run(logdir, "PPO", lambda epoch, _: losses)
    fake_runs.write_run(logdir, "SE", lambda epoch, _: {"search/center_return": epoch, "search/fitness_mean": epoch})
    plot([logdir], logdir / "plot.png")
    assert "Return of new agents on the task" in [axis.get_title("left") for axis in figures[0].axes]
