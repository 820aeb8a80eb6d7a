"""Scripts of experiments/ that compare learned rewards and environments: errors, figures and files."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from conftest import ROOT
from control.evolution.inner_loop import Outcome
from fake_runs import Shown, is_png, load_script, refused
from models.proxies.search import SearchConfig

rewards, of_rewards = load_script("reward_networks/compare"), load_script("reward_networks/figure")
exam, physics = load_script("synthetic_environments/exam"), load_script("synthetic_environments/physics")
tuning = load_script("synthetic_environments/tuning")
proxies, transfer = load_script("synthetic_environments/figure"), load_script("synthetic_environments/transfer")
TEXT, RESULTS = ROOT / "pyproject.toml", ROOT / "docs/results"
OTHER, LEARNED = RESULTS / "reliability.json", "a=cliff-additive-potential"
NOT_OURS = f"json is '{OTHER}', which holds no numbers of this script; allowed: a new file, or one of this script"


@pytest.mark.parametrize(("script", "flags", "message"), [
    *((rewards, f"cliff {flags}", message) for flags, message in (
        (f"--json {TEXT} --only", f"json is '{TEXT}', which is no JSON"),
        (f"--json {OTHER}", NOT_OURS),
        ("--reward a=cartpole-additive-potential", "which is of cartpole-200; allowed: a reward of cliff"),
        ("--set lr=two", "lr is 'two'; allowed: number, greater than 0"),
        ("--set mode=1", "set is 'mode'; allowed: "),
        ("--steps 5 --every 9", "every is 9; allowed: at most steps, which is 5"),
        ("--shifts 1 nan", "shifts is [1.0, nan]; allowed: list of numbers"),
        ("--trained_steps 9", "--trained_steps has no effect: the optimal values of cliff are known"),
        ("--agent DDQN,PPO", "agent is 'DDQN,PPO', of several families; allowed: agents of one family"),
        ("--agent DDQN --only count", "only is 'count'; allowed: native, icm, rnd, optimal"),
        (f"--reward {LEARNED} --reward {LEARNED}", "reward is 'a=...', and another row has this name"),
        (f"--reward {LEARNED} --use mode=77", "mode is 77; allowed: 0, 1, 2"),
        (f"--reward {LEARNED} --use proxy_hidden_size=2", "would have 101 weights; allowed: settings that leave"),
    )),
    (of_rewards, "map cartpole-additive-potential --out x.png", "allowed: reward of an environment with a map"),
    (of_rewards, f"curves {RESULTS / 'physics.json'} --out x.png", "which holds no numbers of compare.py"),
    *((script, f"{first} --json {OTHER}", NOT_OURS) for script, first in
      ((exam, "cartpole-bandit"), (tuning, "cartpole-bandit"), (physics, ""), (transfer, ""))),
    (exam, "cartpole-bandit --exams supervised", "proxies is 'cartpole-bandit', which has no pairs"),
    (exam, "cartpole-bandit pendulum-bandit", "'pendulum-bandit', whose actions are continuous; allowed with DDQN"),
    (physics, "--spread 0.5", "spread is 0.5; allowed: number, at least 1.0, at most 10.0"),
    (physics, "--proxies a=acrobot-bandit", "'a=acrobot-bandit'; allowed: synthetic environments of cartpole"),
    (transfer, "--on bandit --real_id CartPol-v1", "which Gymnasium cannot make: Environment `CartPol`"),
])  # fmt: skip
def test_flag_error_message(script: ModuleType, flags: str, message: str, capsys: Shown) -> None:
    refused(script.main, flags.split(), message, capsys)


@pytest.mark.slow
def test_font_cache_prints_nothing(tmp_path: Path) -> None:
    """matplotlib looks for fonts at its first import and prints a line after 5 seconds; here at once."""
    code = (
        "import sys, threading\n"
        "later = threading.Timer\n"
        "threading.Timer = lambda seconds, function: later(0, function)\n"
        "from experiments.reward_networks import figure\n"
        "sys.exit(figure.main(['curves', 'docs/results/reward_networks.json', '--out', sys.argv[1]]))\n"
    )
    variables = os.environ | {"MPLCONFIGDIR": str(tmp_path)}
    words = [sys.executable, "-c", code, str(tmp_path / "figure.png")]
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("script", "argv"),
    [
        (of_rewards, ["curves", str(RESULTS / "reward_networks.json")]),
        (physics, ["--numbers", str(RESULTS / "physics.json")]),
        (proxies, ["--numbers", str(RESULTS / "synthetic_environments.json")]),
    ],
)
def test_figure_creates_its_folder(script: ModuleType, argv: list[str], tmp_path: Path) -> None:
    out = tmp_path / "new" / "figure.png"
    assert script.main([*argv, "--out", str(out)]) == 0 and is_png(out)


@pytest.mark.parametrize(
    "change",
    [{"mean": [], "low": [], "high": []}, {"low": [1]}, {"every": "one"}],
)
def test_damaged_curves_are_refused(change: dict[str, Any], tmp_path: Path, capsys: Shown) -> None:
    row = {"every": 1, "tests": 2, "mean": [1, 2], "low": [1, 2], "high": [1, 2]}
    (file := tmp_path / "curves.json").write_text(json.dumps({"cliff, QLearning": {"native": row | change}}))
    refused(of_rewards.main, ["curves", str(file), "--out", "x.png"], "which holds no numbers of compare.py", capsys)


def test_new_rows_are_added_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "rewards.json"
    for name in ("native", "optimal"):
        argv = f"cliff --only {name} --agents 2 --steps 20 --every 10 --late 0 --set gamma=0.9 --json {file}".split()
        assert rewards.main(argv) == 0
    rows = json.loads(file.read_text())["cliff, QLearning, gamma=0.9"]
    assert [rows[name]["late"]["from"] for name in ("native", "optimal")] == [0, 0]


def test_supervised_policies_have_no_real_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = dict.fromkeys(("agents", "mean", "iqm", "worst", "cpu_seconds"), 1.0) | {"iqm_low": None, "iqm_high": None}
    monkeypatch.setattr(exam, "opened", lambda path, exams: path)
    monkeypatch.setattr(exam, "examine", lambda *args: row)
    for _ in range(2):  # the second call replaces the rows
        assert exam.main(f"x --exams supervised DDQN --real --json {tmp_path / 'exam.json'}".split()) == 0
    results = json.loads((tmp_path / "exam.json").read_text())
    assert {name: list(rows) for name, rows in results.items()} == {"x": ["supervised", "DDQN"], "x, real": ["DDQN"]}


def test_row_of_a_reward_by_hand() -> None:
    curve = torch.tensor([[-9.0, 3.0, 2.0, 1.0], [-9.0, 1.0, 4.0, -5.0]])
    zeros = torch.zeros(2)
    outcome = Outcome(curve, torch.zeros_like(curve), curve, zeros, zeros, 0, 0.0, 0.0)
    row = rewards.row_of(outcome, SearchConfig(test_every=25, solved_reward=1.0), 75)
    assert row["peak"] == {"mean": 3.0, "step": 75} and row["average"] == -1.5 and row["late"]["mean"] == 0.5
    assert row["first"][1] == 50 and row["mean_reaches"] == 50 and row["mean_stays"] is None and row["staying"] == 0.5
