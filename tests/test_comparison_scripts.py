"""The scripts of experiments/ that measure what learned rewards and environments are worth: their calls and files."""

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
proxies, transfer = load_script("synthetic_environments/figure"), load_script("synthetic_environments/transfer")
tuning, by_table = load_script("synthetic_environments/tuning"), load_script("reward_networks/plain_q_learning")
behaviour = load_script("synthetic_environments/behaviour")
TEXT, RESULTS = ROOT / "pyproject.toml", ROOT / "docs/results"
OTHER, LEARNED = RESULTS / "reliability.json", "a=cliff-additive-potential"
NOT_OURS = f"json is '{OTHER}', which holds no numbers of this script; allowed: a new file, or one of this script"


@pytest.mark.parametrize(("script", "flags", "message"), [
    *((rewards, f"cliff {flags}", message) for flags, message in (
        (f"--json {TEXT} --only", f"json is '{TEXT}', which is no JSON"),
        ("--json /dev/null/x --only", "json is '/dev/null/x', which cannot be written"),
        ("--reward a=cartpole-additive-potential", "which is of cartpole-200; allowed: a reward of cliff"),
        ("--reward a=nonsense", "proxy is 'nonsense'; allowed: a .safetensors file, or one of "),
        ("--reward cliff-additive-potential", "reward is 'cliff-additive-potential'; allowed: NAME=FILE"),
        ("--set lr=two", "lr is 'two'; allowed: number, greater than 0"),
        *((f"--set {name}=1", f"set is '{name}'; allowed: ") for name in ("gamename", "inner_steps", "mode")),
        ("--set Lr=1", "set is 'Lr'; did you mean 'lr'? Allowed: "),
        ("--agent PPPO", "agent is 'PPPO'; did you mean 'PPO'?"),
        ("--steps -5", "steps is -5; allowed: integer, at least 1"),
        ("--steps 5 --every 9", "every is 9; allowed: at most steps, which is 5"),
        ("--shifts 1 nan", "shifts is [1.0, nan]; allowed: list of numbers"),
        ("--hand_scales inf", "hand_scales is [inf]; allowed: list of numbers"),
        (f"--json {OTHER}", NOT_OURS),
        ("--late 5001", "late is 5001; allowed: at most 5000"),
        ("--agents 0", "agents is 0; allowed: integer, at least 1"),
        ("--use mode=2", "--use has no effect without --reward"),
        ("--trained_steps 9", "--trained_steps has no effect: the optimal values of cliff are known"),
        ("--agent TD3", "agent is 'TD3', but TD3 takes continuous actions, and those of cliff are discrete; allowed: "),
        ("--agent DDQN,PPO", "agent is 'DDQN,PPO', of several families; allowed: agents of one family"),
        ("--agent DDQN --only count", "only is 'count'; allowed: native, icm, rnd, optimal"),
        (f"--reward {LEARNED} --reward {LEARNED}", "reward is 'a=...', and another row has this name"),
        ("--reward native=cliff-additive-potential", "reward is 'native=...', and another row has this name"),
        ("--only nativ", "only is 'nativ'; did you mean 'native'? Allowed: native, count, "),
        *((f"--reward {LEARNED} --use {use}", message) for use, message in (
            ("mode=77", "mode is 77; allowed: 0, 1, 2"), ("mode=two", "mode is 'two'; allowed: 0, 1, 2"),
            ("test_episodes=3", "--use test_episodes=3 has no effect: all agents train and are tested alike"),
            ("nomode=2", "use is 'nomode'; did you mean 'mode'?"),
            ("proxy_hidden_size=2", "would have 101 weights; allowed: settings that leave it its 1601"),
        )),
    )),
    (rewards, "cartpole-200 --reward a=cartpole-bandit", "is a synthetic bandit; allowed: a reward of cartpole-200"),
    (rewards, "cartpole-200 --agent SARSA --only", "whose observations are no cells; SARSA takes one-hot observ"),
    (rewards, "cartpole-200 --trained_steps 20000 --shifts 5 --only trainde", "'trainde'; did you mean 'trained'? All"),
    *((of_rewards, f"{command} --out x.png", message) for command, message in (
        ("map cartpole-additive-potential", "reward of cartpole-200; allowed: reward of an environment with a map"),
        ("map nonsense", "proxy is 'nonsense'; allowed: a .safetensors file"),
        ("curves nonsense.json", "source is 'nonsense.json', which cannot be read: No such file"),
        (f"curves {TEXT}", f"source is '{TEXT}', which is no JSON"),
        *((f"map cliff-additive-potential --discount {number}", f"discount is {message}; allowed: number, at least 0")
          for number, message in (("nan", "nan"), ("-7", "-7.0"))),
        (f"curves {RESULTS / 'physics.json'}", "which holds no numbers of compare.py"),
    )),
    *((script, f"{first} --json {file}", message) for script, first in
      ((exam, "cartpole-bandit"), (tuning, "cartpole-bandit"), (physics, ""), (transfer, "")) for file, message in (
        ("/dev/null/x", "json is '/dev/null/x', which cannot be written"),
        ("/dev/null", "json is '/dev/null', which is no file; allowed: a new file, or one of this script"),
        (OTHER, NOT_OURS),
    )),
    (exam, "cartpole-bandit --exams supervised", "proxies is 'cartpole-bandit', which has no pairs"),
    *((script, f"cartpole-bandit {other}", message) for script in (exam, tuning) for other, message in (
        ("nonsense", "checkpoint 'nonsense' does not exist"),
        ("cliff-additive-potential", "'cliff-additive-potential', which is a reward network; allowed: synthetic env"),
        ("pendulum-bandit", "'pendulum-bandit', whose actions are continuous; allowed with DDQN"),
        ("--agents 0", "agents is 0; allowed: integer, at least 1"),
    )),
    (exam, "cartpole-bandit --exams supervised --real", "--real has no effect with --exams supervised"),
    (tuning, "cartpole-bandit --real_steps 0", "real_steps is 0; allowed: integer, at least 1"),
    (tuning, f"cartpole-bandit --searched {ROOT / 'nothing.yaml'}", "nothing.yaml'"),
    (by_table, "--agents 0", "agents is 0; allowed: integer, at least 1"),
    (by_table, "--reward nonsense", "proxy is 'nonsense'; allowed: a .safetensors file"),
    (physics, f"--numbers {TEXT}", f"numbers is '{TEXT}', which is no JSON"),
    (physics, "--spread 0.5", "spread is 0.5; allowed: number, at least 1.0, at most 10.0"),
    (physics, "--spread nan", "spread is nan; allowed: number, at least 1.0, at most 10.0"),
    (physics, f"--proxies {LEARNED}", "which is a reward network; allowed: synthetic environments"),
    (physics, "--proxies a=acrobot-bandit", "'a=acrobot-bandit'; allowed: synthetic environments of cartpole"),
    (behaviour, "pendulum-bandit --out x.png", "agent is 'DDQN', but DDQN takes discrete actions, and those of pend"),
    *((transfer, f"--on bandit {flags}", message) for flags, message in (
        ("--real_id CartPol-v1", "real_id is 'CartPol-v1', which Gymnasium cannot make: Environment `CartPol`"),
        ("--real_id Pendulum-v1", "real_id is 'Pendulum-v1', whose actions are Box(-2.0, 2.0, (1,), float32)"),
        ("--real_id Acrobot-v1", "bandit is 'cartpole-bandit', which is a synthetic bandit of cartpole; allowed: synt"),
        ("--bandit cartpole-additive-potential", "is a reward network of cartpole-200; allowed: synthetic"),
    )),
])  # fmt: skip
def test_a_call_that_cannot_work_is_one_line(script: ModuleType, flags: str, message: str, capsys: Shown) -> None:
    refused(script.main, flags.split(), message, capsys)


@pytest.mark.slow
def test_a_new_machine_reads_no_word_of_fonts(tmp_path: Path) -> None:
    """matplotlib looks for fonts at its first import, and says so after 5 seconds; here at once."""
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
def test_a_figure_makes_the_folder_that_it_goes_to(script: ModuleType, argv: list[str], tmp_path: Path) -> None:
    out = tmp_path / "new" / "figure.png"
    assert script.main([*argv, "--out", str(out)]) == 0 and is_png(out)


@pytest.mark.parametrize(
    "change",
    [{"mean": [], "low": [], "high": []}, {"low": [1]}, {"every": "one"}, {"tests": 0}, {"mean": [1, None]}],
)
def test_damaged_curves_are_one_line(change: dict[str, Any], tmp_path: Path, capsys: Shown) -> None:
    row = {"every": 1, "tests": 2, "mean": [1, 2], "low": [1, 2], "high": [1, 2]}
    (file := tmp_path / "curves.json").write_text(json.dumps({"cliff, QLearning": {"native": row | change}}))
    refused(of_rewards.main, ["curves", str(file), "--out", "x.png"], "which holds no numbers of compare.py", capsys)


@pytest.mark.parametrize("damaged_key", ["spread", "regimes", "regime", "row", "number"])
def test_damaged_numbers_of_physics_are_one_line(damaged_key: str, tmp_path: Path, capsys: Shown) -> None:
    numbers = json.loads((RESULTS / "physics.json").read_text())
    regime = next(iter(numbers["regimes"].values()))
    place = {"regime": regime, "row": regime["as it is"], "number": regime["as it is"]}.get(damaged_key, numbers)
    place[{"regime": "as it is", "row": "iqm_low", "number": "iqm"}.get(damaged_key, damaged_key)] = "three"
    (file := tmp_path / "physics.json").write_text(json.dumps(numbers))
    message = f"numbers is '{file}', which holds no numbers of this script"
    refused(physics.main, ["--numbers", str(file), "--out", "x.png"], message, capsys)


def test_numbers_are_added_to_those_of_before_and_late_may_be_all(tmp_path: Path) -> None:
    file = tmp_path / "rewards.json"
    for name in ("native", "optimal"):
        argv = f"cliff --only {name} --agents 2 --steps 20 --every 10 --late 0 --set gamma=0.9 --json {file}".split()
        assert rewards.main(argv) == 0
    rows = json.loads(file.read_text())["cliff, QLearning, gamma=0.9"]
    assert [rows[name]["late"]["from"] for name in ("native", "optimal")] == [0, 0]


def test_policies_of_pairs_have_no_row_of_the_real_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = dict.fromkeys(("agents", "mean", "iqm", "worst", "cpu_seconds"), 1.0) | {"iqm_low": None, "iqm_high": None}
    monkeypatch.setattr(exam, "opened", lambda path, exams: path)
    monkeypatch.setattr(exam, "examine", lambda *args: row)
    for _ in range(2):  # the second replaces what the first has written
        assert exam.main(f"x --exams supervised DDQN --real --json {tmp_path / 'exam.json'}".split()) == 0
    results = json.loads((tmp_path / "exam.json").read_text())
    assert {name: list(rows) for name, rows in results.items()} == {"x": ["supervised", "DDQN"], "x, real": ["DDQN"]}


def test_the_row_of_a_reward_has_the_peak_of_the_mean_and_its_average() -> None:
    curve = torch.tensor([[-9.0, 3.0, 2.0, 1.0], [-9.0, 1.0, 4.0, -5.0]])
    zeros = torch.zeros(2)
    outcome = Outcome(curve, torch.zeros_like(curve), curve, zeros, zeros, 0, 0.0, 0.0)
    row = rewards.row_of(outcome, SearchConfig(test_every=25, solved_reward=1.0), 75)
    assert row["peak"] == {"mean": 3.0, "step": 75} and row["average"] == -1.5 and row["late"]["mean"] == 0.5
    assert row["first"][1] == 50 and row["mean_reaches"] == 50 and row["mean_stays"] is None and row["staying"] == 0.5
