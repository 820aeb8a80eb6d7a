"""Runs read back, their tables and figures: `--plot` and the learning curve of one run."""

import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_runs
from control.reports.curves import clip_below, draw_curves, learning_curve, note_hidden, on_grid, smooth
from control.reports.plot import Arm, _colours, plot
from control.reports.runs import Run, find_groups, read_runs, return_tags
from control.reports.sheets import Look, sheet
from control.reports.tables import summarise
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


def test_which_returns_count(logdir: Path) -> None:
    """A running mean replaces the returns it is over, the reward rate the return, where all runs have it."""
    gradient_runs = read_runs(write_policy_gradients(logdir) / "metrics.csv")
    command_runs = read_runs(write_run(logdir) / "metrics.csv")
    assert return_tags(gradient_runs) == ["rollout/return_running_mean", "eval/return_greedy"]
    assert return_tags(command_runs) == ["rollout/return_mean", "eval/return_greedy"]
    shared = ["rollout/return_mean", "eval/return_sampled", "eval/return_greedy"]
    assert return_tags(gradient_runs + command_runs) == shared, "in one figure what can be compared"
    numbers = {name: np.arange(3.0) for name in ("epoch", "env_steps", "eval/return_greedy", "eval/reward_rate")}
    flute = Run(0, Path(), numbers)
    maze = Run(0, Path(), {name: column for name, column in numbers.items() if "rate" not in name})
    assert return_tags([flute]) == ["eval/reward_rate"] and return_tags([maze]) == ["eval/return_greedy"]
    assert return_tags([flute, maze]) == ["eval/return_greedy", "eval/reward_rate"]


def test_the_newest_version_of_a_seed_counts_unless_versions_are_named(logdir: Path) -> None:
    newest, older = (write_run(logdir, version=version, top=top) for version, top in ((10, 200), (9, 50)))

    def best(*folders: Path) -> list[float]:
        return [group.runs[0].best("rollout/return_mean") for group in find_groups(folders)]

    assert best(logdir) == [225] and best(older) == [75] and best(newest, older) == [225, 75]
    assert [group.names[-1] for group in find_groups([newest, older])] == ["version_10", "version_9"]
    assert best(logdir, older) == [75], "what is named goes before what is newer"
    plot([newest, older], out=logdir / "two.png")
    assert set(json.loads((logdir / "two.json").read_text())["groups"]) == {"version_10", "version_9"}


def test_versions_that_do_not_count_are_said_once(logdir: Path, capsys: Shown) -> None:
    for seed in range(25, 31):
        older = write_run(logdir, seeds=(seed,))
        write_run(logdir, seeds=(seed,), version=1)
    newest = write_run(logdir, seeds=(30,), version=2)
    write_run(logdir, "RCP-A", seeds=(30,))
    plot([logdir], out=logdir)
    plot_args = shlex.join([str(logdir), str(newest.with_name("version_1"))])
    assert capsys.readouterr().out.splitlines()[0] == (
        "note: the newest version of a run counts: version_2 of seed_30 (not version_1, version_0), and the newest of "
        f"5 runs more; to take another, name it: --plot {plot_args}"
    )
    for folders in ([newest], [logdir / "lunarlander" / "debug" / "RCP-A"], [older.parent, older]):
        plot(folders, out=logdir)
        assert "note: " not in capsys.readouterr().out


@pytest.mark.parametrize("large", ["1e308", "-1e308", "1e200"])
def test_numbers_that_no_axis_holds_are_drawn_as_infinite(large: str, logdir: Path, capsys: Shown) -> None:
    path = write_run(logdir) / "metrics.csv"
    header, *rows = path.read_text().splitlines()
    for row, text in ((4, large), (7, large.removeprefix("-"))):
        cells = rows[row].split(",")
        cells[header.split(",").index("rollout/return_mean")] = text
        rows[row] = ",".join(cells)
    path.write_text("\n".join([header, *rows, ""]))
    (run,) = read_runs(path)
    assert np.isinf(run.columns["rollout/return_mean"]).tolist().count(True) == 2
    plot([logdir], out=logdir)
    assert "Figure:" in capsys.readouterr().out


def test_last_tenth_averages_late_epochs_only_and_a_cut_line_is_left_out(logdir: Path) -> None:
    path = write_run(logdir, top=375) / "metrics.csv"
    path.write_text(path.read_text() + "40,410")  # killed here
    (run,) = read_runs(path)
    assert len(run.columns["epoch"]) == EPOCHS
    assert run.last("rollout/return_mean") == pytest.approx(10 * np.mean([37, 38, 39, 40]))
    assert math.isnan(run.last("eval/return_sampled")) and math.isnan(run.best("eval/return_sampled"))


@pytest.mark.parametrize(("arms", "seeds", "expected_words"), [
    (1, 2, {"fewer"}), (1, 3, {"line", "band", "thin"}), (1, 4, {"line", "band", "dashed", "thin"}),
    (2, 4, {"line", "band", "dashed"}),
])  # fmt: skip
def test_the_note_is_about_what_is_drawn(
    arms: int, seeds: int, expected_words: set[str], logdir: Path, figures: list[Any]
) -> None:
    for name in ("UDRL", "RCP-R")[:arms]:
        write_run(logdir, name, seeds=range(25, 25 + seeds))
    plot([logdir], out=logdir)
    (note,) = (text.get_text() for text in figures[0].texts if "moving averages" in text.get_text())
    assert {word for word in ("line", "band", "dashed", "thin", "fewer") if note.startswith(word) or f"; {word}" in note
            } == expected_words  # fmt: skip


def test_a_file_stands_for_its_run_or_is_refused(logdir: Path) -> None:
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


def test_grid_covers_what_all_runs_share(logdir: Path) -> None:
    runs = [read_runs(write_run(logdir, seeds=(seed,)) / "metrics.csv")[0] for seed in (25, 26)]
    runs[1].columns = {name: values[:20] for name, values in runs[1].columns.items()}
    x, curves = on_grid(runs, "rollout/return_mean")
    assert (x[0], x[-1]) == (1000, 20000) and curves.shape == (2, len(x))
    # Straight lines stay straight lines, also when smoothed.
    np.testing.assert_allclose(curves[0], 125 * x / 40000)
    np.testing.assert_allclose(smooth(np.arange(500.0))[5:-5], np.arange(5.0, 495.0))
    np.testing.assert_allclose(smooth(np.full(500, 3.0)), 3.0)


@pytest.mark.parametrize(("values", "floor"), [
    ([*np.linspace(-200, 250, 99), -1936], -200),
    (np.linspace(-200, 250, 100), None),
    ([-1936.0, 100, 200], None),
    ([20.0] + [500] * 99, None),
    ([*np.full(10, -1936.0), *np.linspace(-200, 250, 90)], None),  # what happens often is to be seen
])  # fmt: skip
def test_one_collapse_does_not_flatten_the_rest(values: Sequence[float], floor: float | None, tmp_path: Path) -> None:
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
    with sheet(tmp_path / "whole.png", [[0]], (4, 3)) as (axis,):
        clip_below(axis, np.array(values))
        axis.set_ylim(-2000, 600)  # as neighbours of the same quantity may ask
        note_hidden(axis, np.array(values))
        assert not axis.texts


def test_groups_of_one_environment_differ_in_colour() -> None:
    games = [*"aaaa", *"bbbbbb", "a", "a", "b", *(5 * "a")]
    arms = [Arm(f"{i:02}", (game,), 3, game=game) for i, game in enumerate(games)]
    colours = _colours([arm.label for arm in arms], arms)
    for game in "ab":
        game_colours = [colours[arm.label] for arm in arms if arm.game == game]
        assert len(set(game_colours)) == len(game_colours)


# -- the figure of groups ----------------------------------------------------------------------------------------------


@pytest.mark.draws
def test_seeds_become_a_figure_a_table_and_numbers(logdir: Path, capsys: Shown) -> None:
    for seed in (25, 26, 27):
        write_run(logdir, seeds=(seed,))
    write_run(logdir, "RCP-A", seeds=(25, 26))
    assert plot([logdir]) == 0
    figure = logdir / "lunarlander" / "debug" / "plot_lunarlander_RCP-A_UDRL.png"
    assert is_png(figure)
    numbers = json.loads(figure.with_suffix(".json").read_text())["groups"]
    assert set(numbers) == {"UDRL", "RCP-A"}
    greedy = numbers["UDRL"]["over_seeds"]["eval/return_greedy"]
    assert greedy["mean"] == pytest.approx(136) and greedy["n"] == 3
    assert 135 <= greedy["iqm_interval"][0] <= 136 <= greedy["iqm_interval"][1] <= 137
    assert numbers["RCP-A"]["seeds"]["26"]["rollout/return_mean"]["best"] == pytest.approx(126)
    output = capsys.readouterr().out
    assert "136.0" in output and "IQM" in output and "seed 27" in output and str(figure) in output


def test_the_best_running_mean_is_aggregated_too(logdir: Path, capsys: Shown) -> None:
    plot([write_policy_gradients(logdir, seeds=(20, 40))], out=logdir / "one.png")
    (group,) = json.loads((logdir / "one.json").read_text())["groups"].values()
    assert group["seeds"]["40"]["rollout/return_running_mean"] == {"last": 20, "best": 40}
    assert group["over_seeds"]["rollout/return_running_mean"]["mean"] == 15
    assert group["best_over_seeds"]["rollout/return_running_mean"]["mean"] == 30
    rows = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "running mean" in rows["AAC"] and "20.0 (40.0)" in rows["seed 40"] and "15.0 (30.0)" in rows["mean"]


def test_names_are_drawn_as_they_are(tmp_path: Path, figures: list[Any]) -> None:
    with sheet(tmp_path / "named.png", [[0]], (4, 3), title="$") as (axis,):
        for name in ("_Ω", "a$b$c", "日\x01\udcff"):
            draw_curves(axis, np.arange(2.0), np.ones((1, 2)), "k", name)
    texts = figures[0].legends[0].get_texts()
    assert [text.get_text() for text in texts] == [" _Ω", "a$b$c", r"\u65e5\x01\udcff"]
    assert not texts[1].get_parse_math() and not figures[0]._suptitle.get_parse_math()


def test_losses_of_different_kinds_have_panels_of_their_own(logdir: Path, figures: list[Any]) -> None:
    write_policy_gradients(logdir)
    plot([logdir])
    write_run(logdir)
    plot([logdir])
    gradient_titles, all_titles = ([axis.get_title("left") for axis in figure.axes] for figure in figures)
    gradient_titles, all_titles = (
        [title.replace("\n", " ") for title in titles] for titles in (gradient_titles, all_titles)
    )
    assert gradient_titles == [
        "Mean return of the latest training episodes", "Evaluation return, greedy actions", "Policy-gradient loss",
        "Squared error of the value", "Entropy loss", "Baseline",
    ]  # fmt: skip
    assert {"Cross-entropy of actions", "Policy-gradient loss", "Entropy loss"} <= set(all_titles)
    legend = [text.get_text() for text in figures[1].legends[0].get_texts()]
    assert legend == ["AAC", "UDRL", "solved: 200", "UDRL, published: 140"]


@pytest.mark.draws
def test_a_pdf_has_fonts_that_publishers_take(logdir: Path) -> None:
    """TrueType and no Type 3, which is what matplotlib would choose by itself."""
    plot([write_run(logdir)], out=logdir / "a.pdf")
    written = (logdir / "a.pdf").read_bytes()
    assert b"/Type3" not in written and b"/CIDFontType2" in written


@pytest.mark.parametrize(("out", "written", "start"), [
    ("a.pdf", "a.pdf", b"%PDF"), ("a.SVG", "a.SVG", b"<?xml"),
    ("there.v1", "there.v1/plot_lunarlander_UDRL.png", b"\x89PNG"),
    ("new", "new/plot_lunarlander_UDRL.png", b"\x89PNG"),
])  # fmt: skip
def test_formats_and_folders_of_the_figure(logdir: Path, out: str, written: str, start: bytes, capsys: Shown) -> None:
    """Of one seed, which has no interval."""
    (logdir / "there.v1").mkdir(parents=True)
    plot([run := write_run(logdir)], out=logdir / out)
    assert (logdir / written).read_bytes().startswith(start) and "one seed" in capsys.readouterr().out
    json.dumps(summarise(find_groups([run])[0]), allow_nan=False)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("content", "message"), [
    ("epoch,env_steps,seed,rollout/return_mean\n0,100,25,soon\n", "soon"),
    ("step,loss\n1,2\n", "its first line must be epoch"),
    ("", "it is empty"),
    ("epoch,env_steps,seed,rollout/return_mean\n0,100\n", "is no metrics.csv of numbers"),
    ("epoch,env_steps,seed,rollout/return_mean\n", "no epoch yet"),
    ("epoch,env_steps,seed\n0,100,25\n", "neither returns nor losses"),
    (None, "holds no metrics.csv"),
])  # fmt: skip
def test_broken_files_are_one_clear_line(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "metrics.csv").write_text(content)
    with pytest.raises(SettingError, match=message) as caught:
        plot([tmp_path])
    assert "\n" not in str(caught.value)


def test_bad_arguments_are_said_before_the_table(logdir: Path, capsys: Shown) -> None:
    run = write_run(logdir)
    (logdir / "file").write_text("")
    (logdir / "folder.png" / "plot.json").mkdir(parents=True)
    (other := logdir / "mine.json").write_text('{"name": "mine"}')
    for arguments, message in (
        (([logdir / "nowhere"],), "is not there"),
        (([run], Path("a.jpg")), r"plot_out is 'a.jpg'; allowed: a folder, or a file ending in .png, .pdf"),
        (([run], logdir / "file"), "plot_out is '.*/file'; allowed: a folder, or a file ending in .png"),
        (([run], logdir / "file/plot.png"), "plot_out is .*cannot be written"),
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
    assert any("thin: as logged; thick: centred moving average" in text.get_text() for text in figures[0].texts)
    assert learning_curve(folder, Look(formats=("svg", "pdf"))) == folder / "curve.pdf"
    assert (folder / "curve.svg").read_bytes().startswith(b"<?xml")


def test_learning_curves_with_many_losses_and_after_one_epoch_with_few(logdir: Path, figures: list[Any]) -> None:
    folders = [write_run(logdir), write_policy_gradients(logdir, seeds=(25, 26))]
    for name, *tags in ("one", "rollout/return_mean", "command/return"), ("two", "train/value_loss"), ("three",):
        row = dict.fromkeys(tags, -120.5)
        folders.append(fake_runs.write_run(logdir, "UDRL", lambda epoch, seed, row=row: row, epochs=1, name=name))
    assert all(learning_curve(folder).read_bytes().startswith(b"\x89PNG") for folder in folders)
    notes = [figure.texts[-1].get_text() for figure in figures]
    assert "over seeds" not in notes[0] and "2 % of the points, mean over seeds" in notes[1]
    assert notes[2].startswith("dots: as logged; solved")
    labels = [[axis.get_ylabel() for axis in figure.axes] for figure in figures]
    assert labels[0][-1] == "epoch" and labels[2] == ["return (sum of rewards)", "obtained return"], (
        "no bar of one epoch"
    )
