"""Hyperparameter search, of agents and of searches: spaces, trials that resume, whole searches, importances."""

import csv
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainer
from control.cli import parse as config
from control.cli.parse import parse
from control.cli.settings import Settings
from control.commands.search_space import Dimension, Space, search_space, trial_settings
from control.commands.trials import (
    EVALUATED,
    METRIC,
    REACHED,
    SEARCHES,
    Search,
    cost_until_solved,
    run_searches,
    run_trial,
    with_trial_defaults,
)
from control.reports.figures import FigureStyle
from control.reports.page import _importance_figures
from control.reports.search import importances, plot_search
from control.storage import checkpoints
from control.storage.run_dir import read_metrics
from fake_runs import Shown, refused
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


def test_flags_are_left_out_of_default_spaces() -> None:
    """Flags of the command line are left out of the space."""
    space = search_space(settings())
    assert {"lr", "batch_size"} <= space.dimensions.keys()
    assert not {"lr", "batch_size"} & search_space(settings("--lr", "0.1", "--batch_size", "8")).dimensions.keys()
    grid = {space.dimensions["lr"].decode(10 ** (-4 + k / 1000)) for k in range(2001)}
    assert len(grid) == 101 and min(grid) == 1e-4 and max(grid) == 1e-2 and float(f"{10**-3.98:.6g}") in grid


# -- results -----------------------------------------------------------------------------------------------------------


def test_results_file_ranks_trials(tmp_path: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "55")
    search = Search(settings("--epochs", "40", "--num_samples", "3"), space_of(tmp_path, SPACE), tmp_path)
    raw = {"lr": 0.0004, "batch_size": 16, "hidden_sizes": "8"}
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
    assert "  trial 2: score 7.0 at epoch 10\n    lr=0.0003981, batch_size=32, hidden_sizes=[8]\n" in output
    assert output.count("lr=0.00") == 2  # once for each trial
    trial_lines = [line for line in output.splitlines() if "trial " in line or " lr=" in line]
    assert max(map(len, trial_lines)) <= 55
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
    assert out.startswith("starting Ray ...\n") and "next:" in out and "trainer.py --config" in out


@pytest.mark.slow
@pytest.mark.parametrize("length", ["--epochs 4", "--total_steps 600"])
@pytest.mark.parametrize("algorithm", ["optuna", "bohb", "pbt"])
def test_every_algorithm_searches(algorithm: str, length: str, tmp_path: Path) -> None:
    if algorithm == "bohb":
        pytest.importorskip("hpbandster", reason="needs the extra bohb")
    flags = f"--num_samples 3 {length} --max_concurrent_trials 2 --tune_algorithm {algorithm}"
    with start(command_of(tmp_path, SPACE, flags), cwd=tmp_path / "here") as process:
        try:
            _, err = process.communicate(timeout=900)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")
    statuses = [row["status"] for row in search_results(tmp_path)]
    assert len(statuses) == 3 and set(statuses) <= {"finished", "stopped early"}


TINY_SEARCH = (
    "--population 4 --initial_draws 1 --inner_steps 60 --hidden_sizes 8 --batch_size 8 --fill 20 --test_episodes 1 "
    "--test_limit 20 --center_agents 2 --report_agents 2 --deploy_steps 40 --generations 3 --no_compiled --num_seeds 2"
)
SEARCH_SPACE = "noise_std: {loguniform: [0.01, 1]}\nlr: {logspace: [-4, -2, 11]}\n"


def bandit_settings(flags: str = "") -> Settings:
    return with_trial_defaults(parse(f"--use_tune {BANDITS} {flags}".split()))


# -- scores of trials --------------------------------------------------------------------------------------------------


def test_generations_until_solved_by_hand() -> None:
    assert cost_until_solved(7, 30, 480.0, 475.0) == 7
    # It lacks 380 of 475, which is 0.8: 30 (1 + 0.8 / 1.8).
    assert cost_until_solved(30, 30, 95.0, 475.0) == pytest.approx(43.0 + 1 / 3)
    assert cost_until_solved(50, 50, -50.0, -12.0) == pytest.approx(50 * (1 + 38 / 50))
    assert cost_until_solved(3, 30, -math.inf, 475.0) == 60
    reached = [-math.inf, -1e9, 0.0, 400.0, 474.9]
    losses = [cost_until_solved(30, 30, best_return, 475.0) for best_return in reached]
    assert losses == sorted(losses, reverse=True) and min(losses) > 30


def test_trial_scores_the_mean_of_its_searches_and_resumes(tmp_path: Path) -> None:
    """No mean reaches 475 within 20 steps, so a search counts as three generations and the missing share."""
    trial_config, reports = trial_settings(bandit_settings(TINY_SEARCH), {"lr": 1e-3}), list[dict[str, float]]()
    run_searches(trial_config, 2, "generations", tmp_path / "trial", reports.append)
    assert [report[SEARCHES] for report in reports] == [1, 2]
    losses = []
    for seed in (25, 26):
        table = read_metrics(tmp_path / "trial" / f"seed_{seed}" / "metrics.csv")
        assert table["epoch"] == [1, 2, 3]
        missing = (475 - table["search/center_return"][-1]) / 475
        losses.append(3 * (1 + missing / (1 + missing)))
    assert [report[METRIC] for report in reports] == pytest.approx([-losses[0], -np.mean(losses)])
    assert reports[-1][REACHED] == 0 and reports[-1]["epoch"] == 3

    second_reports = list[dict[str, float]]()
    run_searches(trial_config, 1, "generations", tmp_path / "cut short", second_reports.append)
    run_searches(trial_config, 2, "generations", tmp_path / "cut short", second_reports.append)
    assert second_reports == [reports[0], *reports]
    run_searches(trial_config, 2, "generations", tmp_path / "trial", second_reports.append)
    assert second_reports[3:] == reports
    table = read_metrics(tmp_path / "trial" / "seed_25" / "metrics.csv")
    assert table["epoch"] == [1, 2, 3]


def test_solved_search_ends_and_other_agents_score_it(tmp_path: Path) -> None:
    """Any mean has a return of at least 1."""
    easy, reports = bandit_settings(f"{TINY_SEARCH} --solved_reward 1"), list[dict[str, float]]()
    run_searches(trial_settings(easy, {}), 1, "generations", tmp_path / "generations", reports.append)
    assert [(report[METRIC], report[REACHED], report["epoch"]) for report in reports] == [(-1, 1, 1)]
    steps = bandit_settings(f"{TINY_SEARCH} --solved_reward 1 --tune_objective steps --total_steps 10000")
    run_searches(trial_settings(steps, {}), 1, "steps", tmp_path / "steps", reports.append)
    assert reports[1][METRIC] == -reports[1]["env_steps"] < 0
    scored = bandit_settings(f"{TINY_SEARCH} --tune_objective score")
    run_searches(trial_settings(scored, {}), 1, "score", tmp_path / "score", reports.append)
    assert reports[2]["epoch"] == 3 and 8 <= reports[2][METRIC] <= 20


def test_trials_of_searches_have_their_defaults() -> None:
    default, run = bandit_settings(), bandit_settings().run
    assert (run.num_seeds, default.subcommand.tune_algorithm) == (3, "optuna_asha")
    assert default.subcommand.tune_objective == "generations"
    assert default.proxy.quit_when_solved and default.proxy.eval_every == 1
    changed = bandit_settings("--num_seeds 1 --tune_algorithm asha --tune_objective score --eval_every 2")
    assert (changed.run.num_seeds, changed.subcommand.tune_algorithm, changed.proxy.eval_every) == (1, "asha", 2)
    reward = with_trial_defaults(parse("--use_tune --implementation RN --gamename cliff --agent QLearning".split()))
    assert reward.subcommand.tune_objective == "score" and not reward.proxy.quit_when_solved
    trial = trial_settings(bandit_settings(), {"noise_std": 0.2})
    assert (trial.run.num_seeds, trial.subcommand, trial.proxy.noise_std) == (1, None, 0.2)


# -- spaces ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "file", "ranges"), [
    ("SE --gamename acrobot --preset paper", "search_se.yaml",
     {"score_transform": (0, 7), "noise_std": (0.01, 1), "discount": (0.001, 0.1), "width": (48, 192)}),
    ("SE --gamename cartpole --proxy bandit", "search_se-bandit.yaml", {"eps_fraction": (0.1, 1)}),
    ("RN --gamename cliff --agent QLearning", "search_rn-qlearning.yaml", {"step_size": (0.02, 1)}),
    ("RN --gamename cartpole-200 --mode 1", "search_rn.yaml", {"eps_decay": (0.01, 0.2), "noise_std": (0.001, 1)}),
    ("RN --gamename mountaincar-continuous --agent TD3", "search_rn-td3.yaml", {"policy_delay": (1, 3)}),
])  # fmt: skip
def test_both_ends_of_published_spaces_are_valid(flags: str, file: str, ranges: dict[str, Any]) -> None:
    search_settings = with_trial_defaults(parse(f"--use_tune --implementation {flags}".split()))
    space = search_space(search_settings)
    assert Path(space.source).name == file
    assert {name: space.dimensions[name].values for name in ranges} == ranges
    for end in (0, -1):  # both ends of every range are valid together
        values = {name: dimension.labels[end] for name, dimension in space.dimensions.items()}
        trial_settings(search_settings, space.decode(values))


_GAMES = {"TD3": "pendulum", "DDPG": "pendulum", "SAC": "pendulum", "QLearning": "cliff", "SARSA": "cliff"}


@pytest.mark.parametrize(
    "name", [name for name, family in implementations().items() if family.learns_from != "evolution"]
)
def test_every_agent_has_a_default_space(name: str) -> None:
    """Both ends of every range are valid together."""
    agent_settings = parse(["--use_tune", "--implementation", name, "--gamename", _GAMES.get(name, "cartpole")])
    space = search_space(agent_settings)
    assert "lr" in space.dimensions
    for end in (0, -1):
        values = {setting: dimension.labels[end] for setting, dimension in space.dimensions.items()}
        trial_settings(agent_settings, space.decode(values))


# -- a search that is resumed ------------------------------------------------------------------------------------------


def start_search(tmp_path: Path) -> Search:
    """A search with two finished trials and an interrupted one."""
    space = space_of(tmp_path, SEARCH_SPACE, *BANDITS.split())
    flags = f"{TINY_SEARCH} --num_samples 4 --logdir {tmp_path} --search_space {tmp_path / 'space.yaml'}"
    search_settings = bandit_settings(flags)
    (folder := tmp_path / "version_0").mkdir()
    search = Search(search_settings, space, folder)
    search.begin()
    for number, raw in enumerate([{"noise_std": 0.1, "lr": 1e-3}, {"noise_std": 0.5, "lr": 1e-4}], 1):
        search.report(number, raw, {METRIC: -1.0 * number, REACHED: 0.0, "epoch": 3, "env_steps": 9, SEARCHES: 2})
        search.end(number)
    search.start(3, {"noise_std": 0.05, "lr": 1e-2})
    return search


def test_resumed_search_keeps_finished_trials(tmp_path: Path, capsys: Shown) -> None:
    search = start_search(tmp_path)
    resume_settings = parse(["--use_tune", "--resume", str(search.folder), "--num_samples", "5"])
    assert (resume_settings.subcommand.num_samples, resume_settings.subcommand.resume_search) == (5, str(search.folder))
    assert resume_settings.proxy == search.settings.proxy
    resumed = Search(with_trial_defaults(resume_settings), search.space, search.folder)
    resumed.begin()
    assert [(trial.number, trial.status) for trial in resumed.trials.values()] == [
        (1, "finished"), (2, "finished"), (3, "interrupted")]  # fmt: skip
    assert [trial.number for trial in resumed.interrupted] == [3]
    assert resumed.trials[1] == search.trials[1] and resumed.ranked[0].number == 1
    line = f"--num_seeds is a setting that the search in '{search.folder}' has already; allowed with --resume FOLDER: "
    refused(trainer.main, ["--use_tune", "--resume", str(search.folder), "--num_seeds", "1"], line, capsys)


@pytest.mark.slow
def test_resumed_search_runs_interrupted_and_new_trials(tmp_path: Path, capfd: Shown) -> None:
    pytest.importorskip("ray")
    search = start_search(tmp_path)
    ended_trials = [search.trials[1], search.trials[2]]
    command = f"--use_tune --resume {search.folder} --max_concurrent_trials 1"
    assert trainer.main(command.split()) == 0
    out, err = capfd.readouterr()
    assert err == "" and "2 are kept" in out
    trials = json.loads((search.folder / "trials.json").read_text())["trials"]
    assert [trial["number"] for trial in trials] == [1, 2, 3, 4]
    assert [trial["best"] for trial in trials[:2]] == [trial.best for trial in ended_trials]
    assert trials[2]["raw"] == {"noise_std": 0.05, "lr": 1e-2} and trials[2]["course"][0][0] == 1
    assert {trial["status"] for trial in trials} <= {"finished", "stopped early"}
    assert not (search.folder / "trial_1").exists()  # not trained again
    with open(search.folder / "results.csv") as lines:
        (third,) = [row for row in csv.DictReader(lines) if row["trial"] == "3"]
    assert float(third["noise_std"]) == 0.05 and float(third["lr"]) == 0.01
    best = parse(["--config", str(search.folder / "best.yaml")])
    assert best.proxy.noise_std == 0.1 and best.run.num_seeds == 1 and best.subcommand is None


# -- importances -------------------------------------------------------------------------------------------------------


def write_trials(folder: Path, count: int = 60) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Trials whose score depends on noise_std and, a little, on strategy."""
    space = {"noise_std": {"kind": "loguniform", "values": [0.01, 1.0]},
             "strategy": {"kind": "choice", "values": ["nes", "snes"]},
             "population": {"kind": "randint", "values": [2, 64]},
             "mirrored": {"kind": "choice", "values": [True]}}  # fmt: skip
    generator, trials = np.random.default_rng(1), []
    for number in range(count):
        noise, snes = float(10 ** generator.uniform(-2, 0)), bool(generator.integers(2))
        raw = {"noise_std": noise, "strategy": "snes" if snes else "nes", "population": int(generator.integers(2, 65)),
               "mirrored": True}  # fmt: skip
        score = -abs(math.log10(noise) + 1) - 0.1 * snes
        trials.append({"number": number, "status": "finished", "raw": raw, "best": {"score": score}})
    (folder / "trials.json").write_text(json.dumps({"space": space, "trials": trials}))
    return space, trials


@pytest.mark.slow
@pytest.mark.draws
def test_importances_find_the_decisive_setting(tmp_path: Path, capsys: Shown) -> None:
    pytest.importorskip("optuna")
    space, trials = write_trials(tmp_path)
    varied = {name: entry for name, entry in space.items() if name != "mirrored"}
    shares = importances(varied, trials)
    assert list(shares)[0] == "noise_std" and shares["noise_std"] > 0.5 and sum(shares.values()) == pytest.approx(1)
    assert trainer.main(["--plot", str(tmp_path)]) == 0
    assert str(tmp_path / "importance.png") in capsys.readouterr().out
    dark = plot_search(tmp_path, FigureStyle("dark"), tmp_path / "dark.png")
    assert dark.read_bytes() != (tmp_path / "importance.png").read_bytes()
    (picture,) = _importance_figures([tmp_path, tmp_path / "without trials"])  # of a page
    assert picture.url.startswith("data:image/svg") and picture.narrow not in ("", picture.url)
