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
from control.plotting import learning_curve, on_grid, plot, smooth
from control.results import find_groups, read_runs, summarise
from models.settings import SettingError

EPOCHS = 40


def write_run(
    logdir: Path, implementation: str = "UDRL", seeds: Sequence[int] = (25,), version: int = 0, top: float = 100.0
) -> Path:
    """A run folder whose exploring return rises to `top + seed` in a straight line over its epochs."""
    name = f"seed_{seeds[0]}" + (f"-{seeds[-1]}" if len(seeds) > 1 else "")
    folder = logdir / "lunarlander" / "debug" / implementation / name / f"version_{version}"
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


def test_figure_that_cannot_be_written(logdir: Path) -> None:
    run = write_run(logdir)
    (logdir / "file").write_text("")
    with pytest.raises(SettingError, match="plot_out is .*cannot be written"):
        plot([run], out=logdir / "file" / "plot.png")


def test_summary_is_plain_json(logdir: Path) -> None:
    write_run(logdir)
    (group,) = find_groups([logdir])
    json.dumps(summarise(group), allow_nan=False)


def test_importing_it_loads_neither_matplotlib_nor_torch() -> None:
    code = "import sys, control.plotting; sys.exit(any(m in sys.modules for m in ('matplotlib', 'torch')))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=os.environ, check=True, timeout=60)
