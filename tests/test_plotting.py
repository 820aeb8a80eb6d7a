"""`--plot` and the learning curve of a run: reading runs, their tables and figures."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_runs
from control.reports.curves import clip_below, learning_curve, note_hidden, on_grid, smooth
from control.reports.plot import plot
from control.reports.runs import Run, find_groups, read_runs, return_tags
from control.reports.sheets import Look, sheet
from fake_runs import Shown, is_png
from models.settings import SettingError

EPOCHS = 40


def write_run(logdir: Path, implementation: str = "UDRL", top: float = 100.0, **kwargs: Any) -> Path:
    """A run whose training return rises to ``top + seed`` in a straight line over its 40 epochs of 1,000 steps."""

    def numbers(epoch: int, seed: int) -> dict[str, float]:
        value = (top + seed) * epoch / EPOCHS
        row = {"train/policy_loss": math.exp(-epoch / 9), "rollout/return_mean": value, "command/return": value + 5}
        return row | ({"eval/return_greedy": value + 10} if epoch % 10 == 0 else {})

    return fake_runs.write_run(logdir, implementation, numbers, epochs=EPOCHS, **kwargs)


def write_policy_gradients(logdir: Path, seeds: Sequence[int] = (25,)) -> Path:
    """A run whose running mean rises to the seed and falls to half of it, as the policy gradients log it."""
    tags = ["rollout/return_mean", "eval/return_sampled", "eval/return_greedy",
            "train/policy_loss", "train/entropy_loss", "train/value_loss", "train/baseline"]  # fmt: skip

    def numbers(epoch: int, seed: int) -> dict[str, float]:
        mean = seed * epoch / 20 if epoch <= 20 else seed / 2
        return {"rollout/return_running_mean": mean} | {tag: math.sin(epoch) for tag in tags}

    return fake_runs.write_run(logdir, "AAC", numbers, epochs=EPOCHS, seeds=seeds)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_return_tags_of_mixed_runs(logdir: Path) -> None:
    """If all runs have it, a running mean replaces the returns, and the reward rate the return."""
    gradient_runs = read_runs(write_policy_gradients(logdir) / "metrics.csv")
    command_runs = read_runs(write_run(logdir) / "metrics.csv")
    assert return_tags(gradient_runs) == ["rollout/return_running_mean", "eval/return_greedy"]
    assert return_tags(command_runs) == ["rollout/return_mean", "eval/return_greedy"]
    shared = ["rollout/return_mean", "eval/return_sampled", "eval/return_greedy"]
    assert return_tags(gradient_runs + command_runs) == shared
    numbers = {name: np.arange(3.0) for name in ("epoch", "env_steps", "eval/return_greedy", "eval/reward_rate")}
    flute = Run(0, Path(), numbers)
    maze = Run(0, Path(), {name: column for name, column in numbers.items() if "rate" not in name})
    assert return_tags([flute]) == ["eval/reward_rate"] and return_tags([maze]) == ["eval/return_greedy"]
    assert return_tags([flute, maze]) == ["eval/return_greedy", "eval/reward_rate"]


def test_newest_version_counts_unless_one_is_named(logdir: Path) -> None:
    newest, older = (write_run(logdir, version=version, top=top) for version, top in ((10, 200), (9, 50)))

    def best(*folders: Path) -> list[float]:
        return [group.runs[0].best("rollout/return_mean") for group in find_groups(folders)]

    assert best(logdir) == [225] and best(older) == [75] and best(newest, older) == [225, 75]
    assert [group.names[-1] for group in find_groups([newest, older])] == ["version_10", "version_9"]
    assert best(logdir, older) == [75], "a named version has priority over a newer one"
    plot([newest, older], out=logdir / "two.png")
    assert set(json.loads((logdir / "two.json").read_text())["groups"]) == {"version_10", "version_9"}


def test_file_of_a_run_selects_the_run(logdir: Path) -> None:
    run = write_run(logdir)
    write_run(logdir, "RCP-A")
    (run / "checkpoints").mkdir()
    for name in ("checkpoints/best.ckpt", "config.yaml", "metrics.csv", "script.sh", "checkpoints/films.json"):
        (run / name).touch()
    for name in ("checkpoints/best.ckpt", "config.yaml", "metrics.csv"):
        assert [group.names[-1] for group in find_groups([run / name])] == ["UDRL"]
    (logdir / "alone.ckpt").touch()
    for file in (run / "script.sh", run / "checkpoints/films.json", logdir / "alone.ckpt"):
        with pytest.raises(SettingError, match=f"plot has '{file}', a file that stands for no run; allowed: run fol"):
            find_groups([run, file])


# -- curves ------------------------------------------------------------------------------------------------------------


def test_grid_covers_the_steps_of_all_runs(logdir: Path) -> None:
    runs = [read_runs(write_run(logdir, seeds=(seed,)) / "metrics.csv")[0] for seed in (25, 26)]
    runs[1].columns = {name: values[:20] for name, values in runs[1].columns.items()}
    x, curves = on_grid(runs, "rollout/return_mean")
    assert (x[0], x[-1]) == (1000, 20000) and curves.shape == (2, len(x))
    # Straight lines remain straight, also after smoothing.
    np.testing.assert_allclose(curves[0], 125 * x / 40000)
    np.testing.assert_allclose(smooth(np.arange(500.0))[5:-5], np.arange(5.0, 495.0))
    np.testing.assert_allclose(smooth(np.full(500, 3.0)), 3.0)


@pytest.mark.parametrize(("values", "floor"), [
    ([*np.linspace(-200, 250, 99), -1936], -200),
    ([-1936.0, 100, 200], None),
    ([*np.full(10, -1936.0), *np.linspace(-200, 250, 90)], None),  # frequent values are not hidden
])  # fmt: skip
def test_outliers_below_are_clipped(values: Sequence[float], floor: float | None, tmp_path: Path) -> None:
    with sheet(tmp_path / "clipped.png", [[0]], (4, 3)) as (axis,):
        axis.plot(values)
        previous_limits = axis.get_ylim()
        clip_below(axis, np.array(values))
        note_hidden(axis, np.array(values))
        low, high = axis.get_ylim()
        texts = [text.get_text() for text in axis.texts]
    if floor is None:
        assert (low, high) == previous_limits and not texts
    else:
        assert floor - 50 < low < floor and high > 250
        assert texts == ["not shown: values down to -1936"]


# -- the figure of groups ----------------------------------------------------------------------------------------------


@pytest.mark.draws
def test_plot_writes_figure_table_and_numbers(logdir: Path, capsys: Shown) -> None:
    for seed in (25, 26, 27):
        write_run(logdir, seeds=(seed,))
    write_run(logdir, "RCP-A", seeds=(25, 26))
    assert plot([logdir]) == 0
    figure = logdir / "lunarlander" / "debug" / "plot_lunarlander_RCP-A_UDRL.png"
    assert is_png(figure)
    numbers = json.loads(figure.with_suffix(".json").read_text())["groups"]
    greedy = numbers["UDRL"]["over_seeds"]["eval/return_greedy"]
    assert greedy["mean"] == pytest.approx(136) and greedy["n"] == 3
    assert 135 <= greedy["iqm_interval"][0] <= 136 <= greedy["iqm_interval"][1] <= 137
    assert numbers["RCP-A"]["seeds"]["26"]["rollout/return_mean"]["best"] == pytest.approx(126)
    output = capsys.readouterr().out
    assert "136.0" in output and "IQM" in output and "seed 27" in output and str(figure) in output


@pytest.mark.draws
def test_pdf_embeds_truetype_fonts(logdir: Path) -> None:
    """TrueType fonts, not matplotlib's default of Type 3."""
    plot([write_run(logdir)], out=logdir / "a.pdf")
    written = (logdir / "a.pdf").read_bytes()
    assert b"/Type3" not in written and b"/CIDFontType2" in written


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("content", "message"), [
    ("epoch,env_steps,seed,rollout/return_mean\n0,100,25,soon\n", "soon"),
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


def test_bad_arguments_are_errors(logdir: Path, capsys: Shown) -> None:
    run = write_run(logdir)
    (logdir / "file").write_text("")
    (logdir / "folder.png" / "plot.json").mkdir(parents=True)
    (other := logdir / "mine.json").write_text('{"name": "mine"}')
    for arguments, message in (
        (([logdir / "nowhere"],), "is not there"),
        (([run], Path("a.jpg")), r"plot_out is 'a.jpg'; allowed: a folder, or a file ending in .png, .pdf"),
        (([run], logdir / "file"), "plot_out is '.*/file'; allowed: a folder, or a file ending in .png"),
        (([run], logdir / "folder.png/plot.json/../plot.png"), "plot_out is .*cannot be written"),
        (([run], logdir / "mine.png"), "plot_out is .* would replace mine.json, a file of something else; allowed: a"),
    ):
        with pytest.raises(SettingError, match=message):
            plot(*arguments)
    assert capsys.readouterr().out == "" and not (logdir / "folder.png" / "plot.png").exists()
    assert other.read_text() == '{"name": "mine"}' and not other.with_suffix(".png").exists()


# -- one run -----------------------------------------------------------------------------------------------------------


@pytest.mark.draws
def test_learning_curve_of_several_seeds(logdir: Path, figures: list[Any]) -> None:
    folder = write_run(logdir, seeds=(30, 31))
    assert learning_curve(folder) == folder / "curve.png" and is_png(folder / "curve.png")
    titles = [axis.get_title("left").replace("\n", " ") for axis in figures[0].axes]
    assert titles[:3] == ["Return", "Cross-entropy of actions", "Obtained against commanded return"]
    assert [axis.get_ylabel() for axis in figures[0].axes[:2]] == ["return (sum of rewards)", "loss (nats)"]
    (legend,) = figures[0].legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["training", "greedy", "solved: 200", "UDRL, published: 140"]
    assert learning_curve(folder, Look(formats=("svg", "pdf"))) == folder / "curve.svg"
    assert (folder / "curve.svg").read_bytes().startswith(b"<?xml") and (folder / "curve.pdf").exists()
