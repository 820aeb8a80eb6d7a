"""Search of the hyperparameters of searches for a proxy: objectives, spaces, resume, importances."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainer
from control.cli.parse import parse
from control.cli.settings import Settings
from control.commands.search_space import Space, search_space, trial_settings
from control.commands.trials import (
    METRIC,
    REACHED,
    SEARCHES,
    Search,
    cost_until_solved,
    run_searches,
    with_trial_defaults,
)
from control.reports.figures import FigureStyle
from control.reports.search import importances, plot_search
from control.storage.run_dir import read_metrics
from fake_runs import Shown, refused

SEARCH = "--use_tune --implementation SE --gamename cartpole --proxy bandit"
TINY = (
    "--population 4 --initial_draws 1 --inner_steps 60 --hidden_sizes 8 --batch_size 8 --fill 20 --test_episodes 1 "
    "--test_limit 20 --center_agents 2 --report_agents 2 --deploy_steps 40 --generations 3 --no_compiled --num_seeds 2"
)
SPACE = "noise_std: {loguniform: [0.01, 1]}\nlr: {logspace: [-4, -2, 11]}\n"


def settings(flags: str = "") -> Settings:
    return with_trial_defaults(parse(f"{SEARCH} {flags}".split()))


def space_of(tmp_path: Path, text: str, flags: str = SEARCH) -> Space:
    (file := tmp_path / "space.yaml").write_text(text)
    return search_space(parse([*flags.split(), "--search_space", str(file)]))


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
    trial_config, reports = trial_settings(settings(TINY), {"lr": 1e-3}), list[dict[str, float]]()
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
    easy, reports = settings(f"{TINY} --solved_reward 1"), list[dict[str, float]]()
    run_searches(trial_settings(easy, {}), 1, "generations", tmp_path / "generations", reports.append)
    assert [(report[METRIC], report[REACHED], report["epoch"]) for report in reports] == [(-1, 1, 1)]
    steps = settings(f"{TINY} --solved_reward 1 --tune_objective steps --total_steps 10000")
    run_searches(trial_settings(steps, {}), 1, "steps", tmp_path / "steps", reports.append)
    assert reports[1][METRIC] == -reports[1]["env_steps"] < 0
    scored = settings(f"{TINY} --tune_objective score")
    run_searches(trial_settings(scored, {}), 1, "score", tmp_path / "score", reports.append)
    assert reports[2]["epoch"] == 3 and 8 <= reports[2][METRIC] <= 20


def test_trials_of_searches_have_their_defaults() -> None:
    default, run = settings(), settings().run
    assert (run.num_seeds, default.subcommand.tune_algorithm) == (3, "optuna_asha")
    assert default.subcommand.tune_objective == "generations"
    assert default.proxy.quit_when_solved and default.proxy.eval_every == 1
    changed = settings("--num_seeds 1 --tune_algorithm asha --tune_objective score --eval_every 2")
    assert (changed.run.num_seeds, changed.subcommand.tune_algorithm, changed.proxy.eval_every) == (1, "asha", 2)
    reward = with_trial_defaults(parse("--use_tune --implementation RN --gamename cliff --agent QLearning".split()))
    assert reward.subcommand.tune_objective == "score" and not reward.proxy.quit_when_solved
    trial = trial_settings(settings(), {"noise_std": 0.2})
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


# -- a search that is resumed ------------------------------------------------------------------------------------------


def start_search(tmp_path: Path) -> Search:
    """A search with two finished trials and an interrupted one."""
    space = space_of(tmp_path, SPACE)
    search_settings = settings(f"{TINY} --num_samples 4 --logdir {tmp_path} --search_space {tmp_path / 'space.yaml'}")
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
