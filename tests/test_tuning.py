"""Hyperparameter search: the space and its errors, trials that resume, whole searches."""

import csv
import os
import subprocess
from pathlib import Path

import pytest

import trainer
from conftest import ROOT
from control.cli import parse as config
from control.cli.settings import Settings
from control.commands.search_space import Dimension, Space, search_space, trial_settings
from control.commands.trials import EVALUATED, METRIC, Search, run_trial
from control.storage import checkpoints
from fake_runs import Shown
from helpers import start
from models.registry import implementations
from models.settings import SettingError, UserError

TINY = ("--gamename cartpole --num_rand_action_rollouts 4 --training_rollouts_per_worker 4 --num_grad_steps 4 "
        "--eval_every 1 --eval_episodes 2 --batch_size 16").split()  # fmt: skip
SPACE = "lr: {logspace: [-4, -2, 11]}\nbatch_size: [16, 32]\nhidden_sizes: [[8], [8, 8]]\n"


def settings(*argv: str) -> Settings:
    return config.parse(["--use_tune", *argv])


def space_of(tmp_path: Path, text: str, *argv: str) -> Space:
    file = tmp_path / "space.yaml"
    file.write_text(text)
    return search_space(settings("--search_space", str(file), *argv))


# -- the space ---------------------------------------------------------------------------------------------------------


def test_space_values_are_parsed_like_flags(tmp_path: Path) -> None:
    text = (
        "lr: {loguniform: [1e-4, 1e-2]}\nbatch_size: [16, 32]\nhidden_sizes: [[8], [8, 16], 32]\n"
        "reward_scale: [null, 0.5]\nlast_few: {randint: [1, 9]}\nsample_by: {choice: [step, episode]}\n"
        "seed: [1, 2]\nexpo_weighting: [true, false]\n"
    )
    space = space_of(tmp_path, text)
    assert space.dimensions["lr"] == Dimension("lr", "loguniform", (1e-4, 1e-2))
    assert space.dimensions["hidden_sizes"].values == ((8,), (8, 16), (32,))
    assert space.dimensions["hidden_sizes"].labels == ["8", "8 16", "32"]
    assert space.dimensions["reward_scale"].values == (None, 0.5)
    assert space.dimensions["expo_weighting"].values == (True, False)
    raw = {"lr": 0.00123456789, "batch_size": 16, "hidden_sizes": "8 16", "reward_scale": "null", "last_few": 3,
           "sample_by": "episode", "seed": 2, "expo_weighting": True}  # fmt: skip
    values = raw | {"lr": 0.00123457, "hidden_sizes": (8, 16), "reward_scale": None}
    assert space.decode(raw) == values
    assert trial_settings(settings(), values).agent.hidden_sizes == (8, 16)


BANDITS = "--implementation SE --gamename cartpole --proxy bandit"


@pytest.mark.parametrize(("flags", "text", "error"), [
    (BANDITS, "noise_sdt: [1]", "noise_sdt is unknown; did you mean 'noise_std'?"),
    (BANDITS, "generations: [1, 2]", "generations is no hyperparameter of SE; give it as a flag"),
    (BANDITS, "discount: {log1m: [0, 1]}", "log1m is [0, 1]; allowed: [low, high] of 1 minus the value, both above 0"),
    *(("", text, error) for text, error in (
    ("learning_rat: [1]", "learning_rat is unknown; did you mean 'lr'?"),
    ("lr: []", "lr: choice is []; allowed: a list"),
    ("lr: 0.1", "lr is '0.1'; allowed: a list of choices or uniform or loguniform"),
    ("lr: {loguniform: [0, 1]}", "lr: loguniform is [0, 1]; allowed: [low, high], both above 0"),
    ("lr: {uniform: [1, 0.5]}", "lr: uniform is [1, 0.5]; allowed: [low, high], the lower first"),
    ("lr: {logspace: [-4, -2]}", "lr: logspace is [-4, -2]; allowed: [exponent, exponent, count]"),
    ("batch_size: {uniform: [1, 5]}", "batch_size: 'uniform' is unknown here; allowed: choice, randint, lograndint"),
    ("hidden_sizes: {randint: [1, 5]}", "hidden_sizes: 'randint' is unknown here; allowed: choice"),
    ("epochs: [1, 2]", "epochs is no hyperparameter of UDRL; give it as a flag"),
    ("grid_size: [3, 4]", "grid_size is unknown"),
    ("no_expo_weighting: [true]", "no_expo_weighting is unknown; did you mean 'expo_weighting'?"),
    )),
])  # fmt: skip
def test_space_error_message(tmp_path: Path, flags: str, text: str, error: str) -> None:
    with pytest.raises(SettingError) as caught:
        space_of(tmp_path, text, *flags.split())
    assert error in str(caught.value)
    assert str(tmp_path / "space.yaml") in str(caught.value) and "\n" not in str(caught.value)


def test_flags_are_left_out_of_published_spaces() -> None:
    """Flags of the command line are left out of the space."""
    for name, family in implementations().items():
        if any((ROOT / "experiments").glob(f"{family.package.rpartition('.')[2]}/search_*.yaml")):
            space = search_space(settings("--implementation", name))
            assert "lr" in space.dimensions and "/" in space.source
    space = search_space(settings())
    assert {"lr", "batch_size"} <= space.dimensions.keys()
    assert not {"lr", "batch_size"} & search_space(settings("--lr", "0.1", "--batch_size", "8")).dimensions.keys()
    grid = {space.dimensions["lr"].decode(10 ** (-4 + k / 1000)) for k in range(2001)}
    assert len(grid) == 101 and min(grid) == 1e-4 and max(grid) == 1e-2 and float(f"{10**-3.98:.6g}") in grid


# -- results -----------------------------------------------------------------------------------------------------------


def test_results_file_ranks_trials(tmp_path: Path, capsys: Shown) -> None:
    search = Search(settings("--epochs", "40", "--num_samples", "3"), space_of(tmp_path, SPACE), tmp_path)
    raw = {"lr": 1e-3, "batch_size": 16, "hidden_sizes": "8"}
    for number, score, epoch in [(1, 5.0, 10), (2, 7.0, 10), (1, 6.0, 20), (2, 3.0, 40)]:
        search.start(number, raw)
        metrics = {METRIC: score, EVALUATED[1]: 1.0, "epoch": epoch, "env_steps": 9}
        search.report(number, raw | {"batch_size": 32}, metrics)
    search.end(2)
    search.start(3, raw)
    search.end(3, "out of memory")
    results = [(row["trial"], row["status"], row[METRIC], row["best_epoch"]) for row in rows(tmp_path / "results.csv")]
    assert results == [
        ("2", "finished", "7.0", "10"), ("1", "running", "6.0", "20"), ("3", "failed", "", "")]  # fmt: skip
    best = config.parse(["--config", str(tmp_path / "best.yaml")])
    assert (best.agent.hidden_sizes, best.agent.batch_size, best.subcommand) == ((8,), 32, None)
    assert search.finish(interrupted=True) == 130
    output = capsys.readouterr().out
    assert "trial 3: failed: out of memory" in output and f"--config {tmp_path / 'best.yaml'}\n" in output
    broken = Search(settings(), space_of(tmp_path, "lr: [0.1]"), tmp_path)
    broken.start(1, {"lr": 0.1})
    broken.end(1, "no memory")
    with pytest.raises(UserError, match="all 1 trials failed; the first: no memory"):
        broken.finish(interrupted=False)


# -- a trial -----------------------------------------------------------------------------------------------------------


def test_paused_trial_equals_uninterrupted(tmp_path: Path) -> None:
    def trial(folder: str, epochs: int, start_from: Path | None, *argv: str) -> list[dict[str, float]]:
        reports: list[dict[str, float]] = []
        base_settings = settings(*TINY, "--epochs", str(epochs), "--checkpoint_every", "1", *argv)
        run_trial(trial_settings(base_settings, {}), tmp_path / folder, start_from, reports.append)
        return reports

    full_reports = trial("whole", 4, None)
    last = tmp_path / "paused" / "checkpoints" / "last.ckpt"
    assert trial("paused", 2, None) + trial("paused", 4, last) == full_reports
    assert [report["epoch"] for report in full_reports] == [1, 2, 3, 4]
    assert trial("other", 6, last, "--lr", "0.1") != trial("same", 6, last)
    assert " 6/6 " in (tmp_path / "same" / "log.txt").read_text()
    content = checkpoints.load(tmp_path / "other" / "checkpoints" / "last.ckpt").content
    assert content["optimizer_states"][0]["param_groups"][0]["lr"] == 0.1


def test_score_of_a_trial_is_the_mean_of_its_seeds(tmp_path: Path) -> None:
    def score(*argv: str) -> float:
        reports: list[dict[str, float]] = []
        trial = trial_settings(settings(*TINY, "--epochs", "1", *argv), {})
        run_trial(trial, tmp_path / "_".join(argv), None, reports.append)
        return reports[-1]["score"]

    first, second = score("--seed", "1"), score("--seed", "2")
    assert first != second
    assert score("--seed", "1", "--num_seeds", "2") == pytest.approx((first + second) / 2)


# -- whole searches ----------------------------------------------------------------------------------------------------


def command_of(tmp_path: Path, text: str, flags: str) -> list[str]:
    """A search of the space ``text``, for the new folder ``workdir``."""
    pytest.importorskip("ray", reason="needs the extra tune")
    (tmp_path / "here").mkdir(parents=True)
    (space := tmp_path / "space.yaml").write_text(text)
    return ["--use_tune", "--search_space", str(space), *TINY, *flags.split()]


def rows(file: Path) -> list[dict[str, str]]:
    with open(file) as lines:
        return list(csv.DictReader(lines))


def search_results(tmp_path: Path) -> list[dict[str, str]]:
    (file,) = (tmp_path / "here").glob("exp_dir/*/*/*/tune/version_0/results.csv")
    return rows(file)


def started(tmp_path: Path, text: str, flags: str) -> "subprocess.Popen[str]":
    return start(command_of(tmp_path, text, flags), cwd=tmp_path / "here")


def searched(tmp_path: Path, text: str, flags: str) -> tuple[int, str, str]:
    with started(tmp_path, text, flags) as process:
        try:
            out, err = process.communicate(timeout=900)
        finally:
            process.kill()
    return process.returncode, out, err


@pytest.mark.slow
def test_search_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    command = command_of(tmp_path, SPACE, "--num_samples 1 --max_concurrent_trials 1 --total_steps 300")
    monkeypatch.chdir(workdir := tmp_path / "here")
    assert trainer.main(command) == 0
    out, err = capfd.readouterr()
    assert err == "" and len(out.splitlines()) < 25 and os.listdir(workdir) == ["exp_dir"]
    folder = workdir / "exp_dir" / "cartpole" / "debug" / "UDRL" / "tune" / "version_0"
    expected_files = [".lock", "best.yaml", "results.csv", "search.yaml", "space.yaml", "trial_1", "trials.json"]
    assert sorted(os.listdir(folder)) == expected_files
    (first,) = search_results(tmp_path)
    assert first["status"] == "finished" and int(first["env_steps"]) >= 300
    assert (workdir / first["checkpoint"]).exists()
    best = config.parse(["--config", str(folder / "best.yaml")])
    assert str(best.agent.lr) == first["lr"] and best.subcommand is None
    assert best == config.parse(["--config", str(folder / f"trial_{first['trial']}" / "config.yaml")])
    assert "next:" in out and "trainer.py --config" in out


@pytest.mark.slow
@pytest.mark.parametrize("length", ["--epochs 4", "--total_steps 600"])
@pytest.mark.parametrize("algorithm", ["optuna", "bohb", "pbt"])
def test_every_algorithm_searches(algorithm: str, length: str, tmp_path: Path) -> None:
    if algorithm == "bohb":
        pytest.importorskip("hpbandster", reason="needs the extra bohb")
    flags = f"--num_samples 3 {length} --max_concurrent_trials 2 --tune_algorithm {algorithm}"
    assert searched(tmp_path, SPACE, flags)[::2] == (0, "")
    statuses = [row["status"] for row in search_results(tmp_path)]
    assert len(statuses) == 3 and set(statuses) <= {"finished", "stopped early"}
