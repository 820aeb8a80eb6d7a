import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT
from control.reports import figures as plotting
from control.reports.figures import learning_curve, plot
from control.reports.panels import clip_below, label_ends, on_grid, robust_floor, smooth, spread
from control.reports.runs import find_groups, read_runs, return_tags, summarise
from models.settings import SettingError

EPOCHS = 40


def write_run(
    logdir: Path,
    implementation: str = "UDRL",
    seeds: Sequence[int] = (25,),
    version: int = 0,
    top: float = 100.0,
    game: str = "lunarlander",
) -> Path:
    """A run folder whose exploring return rises to `top + seed` in a straight line over its epochs."""
    name = f"seed_{seeds[0]}" + (f"-{seeds[-1]}" if len(seeds) > 1 else "")
    folder = logdir / game / "debug" / implementation / name / f"version_{version}"
    folder.mkdir(parents=True)
    lines = ["epoch,env_steps,seed,train/policy_loss,rollout/return_mean,eval/return_greedy,command/return"]
    for epoch in range(EPOCHS):
        for seed in seeds:
            value = (top + seed) * (epoch + 1) / EPOCHS
            greedy = str(value + 10) if epoch % 10 == 9 else ""
            lines.append(f"{epoch},{1000 * (epoch + 1)},{seed},{math.exp(-epoch / 9)},{value},{greedy},{value + 5}")
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    return folder


def is_png(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


def test_seeds_become_a_figure_a_table_and_numbers(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (25, 26, 27):
        write_run(logdir, seeds=(seed,))
    write_run(logdir, "RCP-A", seeds=(25, 26))
    assert plot([logdir]) == 0
    common = logdir / "lunarlander" / "debug"
    assert is_png(common / "plot.png")
    numbers = json.loads((common / "plot.json").read_text())["groups"]
    assert set(numbers) == {"UDRL", "RCP-A"}
    greedy = numbers["UDRL"]["over_seeds"]["eval/return_greedy"]
    assert greedy["mean"] == pytest.approx(136) and greedy["n"] == 3
    low, high = greedy["iqm_interval"]
    assert 135 <= low <= 136 <= high <= 137
    assert numbers["RCP-A"]["seeds"]["26"]["rollout/return_mean"]["best"] == pytest.approx(126)
    shown = capsys.readouterr().out
    assert "136.0" in shown and "IQM" in shown and "seed 27" in shown and str(common / "plot.png") in shown


def write_policy_gradients(logdir: Path, implementation: str = "AAC", seeds: Sequence[int] = (25,)) -> Path:
    """A run whose running mean rises to the seed and falls to half of it, as the policy gradients log it."""
    folder = logdir / "lunarlander" / "debug" / implementation / f"seed_{seeds[0]}" / "version_0"
    folder.mkdir(parents=True)
    losses = ["train/loss_p", "train/loss_e", "train/loss_v", "train/baseline"]
    tags = ["train/mean_reward", "rollout/return_mean", "eval/return_sampled", "eval/return_greedy", *losses]
    lines = [",".join(["epoch", "env_steps", "seed", *tags])]
    for epoch in range(1, EPOCHS + 1):
        for seed in seeds:
            mean = seed * epoch / 20 if epoch <= 20 else seed / 2
            lines.append(f"{epoch},{1000 * epoch},{seed},{mean}" + f",{math.sin(epoch)}" * (len(tags) - 1))
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_a_running_mean_stands_for_the_returns_it_is_over(logdir: Path) -> None:
    ours = read_runs(write_policy_gradients(logdir) / "metrics.csv")
    theirs = read_runs(write_run(logdir) / "metrics.csv")
    assert return_tags(ours) == ["train/mean_reward", "eval/return_greedy"]
    assert return_tags(theirs) == ["rollout/return_mean", "eval/return_greedy"]
    shared = ["rollout/return_mean", "eval/return_sampled", "eval/return_greedy"]
    assert return_tags(ours + theirs) == shared, "in one figure what can be compared"


def test_the_best_running_mean_is_aggregated_too(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot([write_policy_gradients(logdir, seeds=(20, 40))], out=logdir / "one.png")
    (group,) = json.loads((logdir / "one.json").read_text())["groups"].values()
    assert group["seeds"]["40"]["train/mean_reward"] == {"last": 20, "best": 40}
    assert group["over_seeds"]["train/mean_reward"]["mean"] == 15
    assert group["best_over_seeds"]["train/mean_reward"]["mean"] == 30
    rows = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "running mean" in rows["AAC"] and "20.0 (40.0)" in rows["seed 40"] and "15.0 (30.0)" in rows["mean"]


def test_panels_that_would_be_called_the_same_say_what_they_are(logdir: Path) -> None:
    ours = read_runs(write_policy_gradients(logdir) / "metrics.csv")
    theirs = read_runs(write_run(logdir) / "metrics.csv")
    assert list(plotting._titles(ours).values()) == [
        "Mean return of the latest training episodes", "Evaluation return, greedy actions", "Policy loss",
        "Entropy loss", "Value loss", "Baseline",
    ]  # fmt: skip
    titles = plotting._titles(ours + theirs)
    assert titles["train/policy_loss"] == "Policy loss (train/policy_loss)"
    assert titles["train/loss_p"] == "Policy loss (train/loss_p)" and titles["train/loss_e"] == "Entropy loss"


def test_many_losses_make_two_rows_beside_the_returns(logdir: Path) -> None:
    assert is_png(learning_curve(write_policy_gradients(logdir, seeds=(25, 26))))
    with plotting.style() as plt:
        for count, rows, columns in ((0, 1, 1), (3, 1, 4), (4, 2, 3), (5, 2, 4)):
            _, axes = plotting._beside_returns(plt, count)
            grid = axes[-1].get_gridspec()
            assert (len(axes), grid.nrows, grid.ncols) == (1 + count, rows, columns)
            assert len(axes[0].get_subplotspec().rowspan) == rows, "returns are as high as the figure"
        plt.close("all")


def test_one_seed_has_no_interval(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(logdir)
    plot([run], out=logdir / "figures" / "one.png", x="epoch")
    assert is_png(logdir / "figures" / "one.png") and (logdir / "figures" / "one.json").exists()
    assert "one seed" in capsys.readouterr().out


def test_newest_version_of_a_seed_counts(logdir: Path) -> None:
    write_run(logdir, version=10, top=200)
    write_run(logdir, version=9, top=50)
    (group,) = find_groups([logdir])
    assert [run.best("rollout/return_mean") for run in group.runs] == [225]


def test_older_version_when_asked_for_by_name(logdir: Path) -> None:
    write_run(logdir, version=1, top=200)
    older = write_run(logdir, version=0, top=50)
    (group,) = find_groups([older])
    assert group.runs[0].best("rollout/return_mean") == 75


def test_last_tenth_averages_late_epochs_only(logdir: Path) -> None:
    (run,) = read_runs(write_run(logdir, top=375) / "metrics.csv")
    assert run.last("rollout/return_mean") == pytest.approx(10 * np.mean([37, 38, 39, 40]))
    assert math.isnan(run.last("eval/return_sampled"))


def test_grid_covers_what_all_runs_share(logdir: Path) -> None:
    runs = [read_runs(write_run(logdir, seeds=(seed,)) / "metrics.csv")[0] for seed in (25, 26)]
    runs[1].columns = {name: values[:20] for name, values in runs[1].columns.items()}
    grid, curves = on_grid(runs, "rollout/return_mean", "env_steps")
    assert (grid[0], grid[-1]) == (1000, 20000) and curves.shape == (2, len(grid))
    # Straight lines stay straight lines.
    np.testing.assert_allclose(curves[0], 125 * grid / 40000)


def test_smooth_keeps_lines_and_constants() -> None:
    np.testing.assert_allclose(smooth(np.arange(500.0))[5:-5], np.arange(5.0, 495.0))
    np.testing.assert_allclose(smooth(np.full(500, 3.0)), 3.0)


def test_learning_curve_of_one_and_of_several_seeds(logdir: Path) -> None:
    for seeds in ((25,), (30, 31)):
        folder = write_run(logdir, seeds=seeds)
        assert learning_curve(folder) == folder / "curve.png"
        assert is_png(folder / "curve.png")


@pytest.mark.parametrize(
    "header",
    ["epoch,env_steps,seed,rollout/return_mean", "epoch,env_steps,seed,train/value_loss", "epoch,env_steps,seed"],
)
def test_learning_curve_after_one_epoch_and_few_tags(tmp_path: Path, header: str) -> None:
    cells = header.count(",") - 2
    (tmp_path / "metrics.csv").write_text(f"{header}\n0,4000,25{',-120.5' * cells}\n")
    assert is_png(learning_curve(tmp_path))


def test_line_cut_by_a_kill_is_left_out(logdir: Path) -> None:
    path = write_run(logdir) / "metrics.csv"
    path.write_text(path.read_text() + "40,410")
    (run,) = read_runs(path)
    assert len(run.columns["epoch"]) == EPOCHS


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("epoch,env_steps,seed,rollout/return_mean\n0,100,25,soon\n", "soon"),
        ("step,loss\n1,2\n", "no column epoch"),
        ("", "no column epoch"),
        ("epoch,env_steps,seed,rollout/return_mean\n0,100\n", "is no metrics.csv of numbers"),
        ("epoch,env_steps,seed,rollout/return_mean\n", "no epoch yet"),
        ("epoch,env_steps,seed\n0,100,25\n", "neither returns nor losses"),
    ],
)
def test_broken_files_are_one_clear_line(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "metrics.csv").write_text(content)
    with pytest.raises(SettingError, match=said) as caught:
        plot([tmp_path])
    assert "\n" not in str(caught.value)


def test_nothing_to_plot_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no metrics.csv"):
        plot([tmp_path])
    with pytest.raises(SettingError, match="is not there"):
        plot([tmp_path / "nowhere"])
    with pytest.raises(SettingError, match="x is 'time'; allowed: env_steps, epoch"):
        plot([tmp_path], x="time")


@pytest.mark.parametrize("name", ["file/plot.png", "folder.png/plot.json/../plot.png"])
def test_figure_that_cannot_be_written_is_said_before_the_table(
    logdir: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(logdir)
    (logdir / "file").write_text("")
    (logdir / "folder.png" / "plot.json").mkdir(parents=True)
    with pytest.raises(SettingError, match="plot_out is .*cannot be written"):
        plot([run], out=logdir / name)
    assert capsys.readouterr().out == "" and not (logdir / "folder.png" / "plot.png").exists()


@pytest.mark.parametrize(
    ("out", "written", "start"),
    [
        ("a.pdf", "a.pdf", b"%PDF"),
        ("a.SVG", "a.SVG", b"<?xml"),
        ("there.v1", "there.v1/plot.png", b"\x89PNG"),
        ("new", "new/plot.png", b"\x89PNG"),
    ],
)
def test_formats_and_folders_of_the_figure(logdir: Path, out: str, written: str, start: bytes) -> None:
    (logdir / "there.v1").mkdir(parents=True)
    plot([write_run(logdir)], out=logdir / out)
    assert (logdir / written).read_bytes().startswith(start)


def test_another_format_is_refused(logdir: Path) -> None:
    with pytest.raises(SettingError, match=r"plot_out is 'a.jpg'; allowed: a folder, or a file ending in .png, .pdf"):
        plot([write_run(logdir)], out=Path("a.jpg"))


def test_each_game_has_its_own_row_of_panels(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for game, implementation in (("lunarlander", "UDRL"), ("lunarlander", "RCP-A"), ("takecover", "RCP-A")):
        write_run(logdir, implementation, game=game)
    drawn = []
    monkeypatch.setattr(plotting, "_draw_panel", lambda axis, row, tag, x, colours: drawn.append((list(row), colours)))
    plot([logdir])
    both, one = ["RCP-A", "UDRL"], ["RCP-A"]
    assert [row for row, _ in drawn] == [both] * 3 + [one] * 3
    assert all(set(colours) == {"UDRL", "RCP-A"} for _, colours in drawn), "a colour means the same in every row"


def test_several_games_are_one_figure(logdir: Path) -> None:
    for game in ("lunarlander", "takecover"):
        write_run(logdir, game=game)
    plot([logdir])
    assert is_png(logdir / "plot.png")


def test_one_collapse_does_not_flatten_the_rest() -> None:
    assert robust_floor(np.array([*np.linspace(-200, 250, 99), -1936])) == -200
    for kept in (np.linspace(-200, 250, 100), np.array([-1936.0, 100, 200]), np.array([20.0] + [500] * 99)):
        assert robust_floor(kept) is None
    many = np.concatenate([np.full(10, -1936.0), np.linspace(-200, 250, 90)])
    assert robust_floor(many) is None, "what happens often is to be seen"


def test_what_is_clipped_is_said_in_the_panel() -> None:
    with plotting.style() as plt:
        axis = plt.figure().subplots()
        values = np.array([*np.linspace(-200, 250, 99), -1936])
        axis.plot(values)
        clip_below(axis, values)
        low, high = axis.get_ylim()
        plt.close("all")
    assert -250 < low < -200 and high > 250
    assert [text.get_text() for text in axis.texts] == ["not shown: 1 of 100 values, down to -1936"]


def test_labels_stay_beside_their_ends() -> None:
    with plotting.style() as plt:
        axis = plt.figure().subplots()
        axis.set(xlim=(0, 1), ylim=(0, 10))
        label_ends(axis, [(1, y, name, "k") for y, name in ((9, "far"), (2, "b"), (1.9, "a"))])
        heights = {text.get_text(): text.get_position()[1] for text in axis.texts}
        plt.close("all")
    assert heights == pytest.approx({"far": 0.9, "b": 0.23, "a": 0.16})


@pytest.mark.parametrize("wanted", [[0.5], [0.0, 0.0, 0.0], [0.2, 0.21, 0.9], [0.99, 1.0, 3.0], [0.5] * 40])
def test_spread_keeps_order_gaps_and_the_panel(wanted: list[float]) -> None:
    heights = spread(np.array(wanted), 0.07)
    gap = min(0.07, 1 / max(1, len(wanted) - 1))
    assert np.all(np.diff(heights) >= gap - 1e-9) and heights.min() >= -1e-9 and heights.max() <= 1 + 1e-9


def test_summary_is_plain_json(logdir: Path) -> None:
    write_run(logdir)
    (group,) = find_groups([logdir])
    json.dumps(summarise(group), allow_nan=False)


def test_importing_it_loads_neither_matplotlib_nor_torch() -> None:
    code = "import sys, control.reports.figures; sys.exit(any(m in sys.modules for m in ('matplotlib', 'torch')))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=os.environ, check=True, timeout=60)
