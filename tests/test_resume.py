"""A resumed run equals an uninterrupted one."""

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import trainer
from conftest import Finished
from control.storage import checkpoints
from control.storage.checkpoints import OURS
from control.storage.run_dir import folder_lock, read_metrics
from fake_runs import Shown, refused
from helpers import epochs_of, flags, forged, lasting, run_folder, same_runs, stopped, trained
from running import Running

SOAK_KILLS = int(os.environ.get("SOAK_KILLS", 25))  # of each run

UDRL: dict[str, Any] = {"implementation": "UDRL"}
CASES: dict[str, dict[str, Any]] = {
    "UDRL": UDRL,
    "UDRL with ranks, two seeds": {"implementation": "UDRL", "preset": "ranks", "num_seeds": 2},
    "RCP-A, two seeds": {"implementation": "RCP-A", "num_seeds": 2, "hidden_sizes": "16,16", "buffer_size": 150},
    "AAC": {"implementation": "AAC", "num_seeds": 2, "gae_lambda": 0.9, "bootstrap_truncation": True,
            "max_grad_norm": 0.5, "value_lr": 1e-2, "anneal_lr": True},
    "DDQN, two groups, three environments, linear epsilon": {
        "implementation": "DDQN", "num_seeds": 4, "vary_hp": "true", "hidden_sizes": "6", "num_envs": 3,
        "eps_fraction": 0.6,
    },
    "replayed": {"implementation": "DDQN", "gamename": "lunarlander", "steps_per_epoch": 130, "num_envs": 2},
}  # fmt: skip


_STEPS = {"hidden_sizes": 8, "steps_per_epoch": 100, "num_envs": 4, "eval_every": 2, "eval_episodes": 1,
          "checkpoint_every": 2, "epochs": 5}  # fmt: skip
_REPLAY = _STEPS | {"batch_size": 9, "buffer_size": 1000}
ON_GYMNASIUM: dict[str, dict[str, Any]] = {
    "PPO": _STEPS | {"implementation": "PPO", "gamename": "lunarlander", "rollout_steps": 20},
    "TD3": _REPLAY | {"implementation": "TD3", "gamename": "LunarLanderContinuous-v3"},
}  # fmt: skip


@pytest.fixture
def past_run(logdir: Path, finished: Finished) -> Path:
    """The folder of a finished run under ``logdir``."""
    shutil.copytree(finished(**UDRL)[0].parents[4], logdir)
    return run_folder(logdir)


def contents(logdir: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in logdir.rglob("*") if path.is_file() and "events" not in path.name}


@pytest.mark.parametrize("name", ["UDRL", "CPG", "DDQN"])
def test_short_run_is_evaluated_at_its_end(name: str, logdir: Path, capsys: Shown) -> None:
    folder = trained(logdir, **lasting({"implementation": name}, 1))
    table, output = read_metrics(folder / "metrics.csv"), capsys.readouterr().out
    assert table["epoch"] == [1] and table["time/eval"][0] > 0
    assert f"  {table['eval/return_greedy'][0]:.1f}  " in output and "nothing was evaluated" not in output
    assert (folder / "checkpoints" / "best.ckpt").exists()


def test_resume_without_a_run_starts_one(logdir: Path, capsys: Shown, finished: Finished) -> None:
    folder = trained(logdir, "--resume", **UDRL)
    warning = f"warning: there is no run to resume in {folder.parent}, so a new one begins"
    assert capsys.readouterr().out.splitlines()[0] == warning
    same_runs(folder, finished(**UDRL)[0])
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert "resume" not in settings


def test_resume_alone_starts_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown) -> None:
    monkeypatch.chdir(tmp_path)
    folder = "exp_dir/lunarlander/debug/UDRL/seed_3"
    for reason in (f"there is no run to resume in {folder}", f"{folder}/version_0 ended before its first checkpoint"):
        message = f"error: resume: {reason}; allowed: the flags of the run, such as --implementation, --gamename, --exp"
        refused(trainer.main, ["--resume", "--seed", "3"], message, capsys)
        (tmp_path / folder / "version_0").mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize("without", [(), ("--epochs", "5")], ids=["epochs", "no epochs"])
def test_resume_of_a_finished_run_changes_nothing(
    without: tuple[str, ...], past_run: Path, logdir: Path, capsys: Shown
) -> None:
    """Without ``--epochs``, the epochs of the run count."""
    old_files = contents(logdir)
    assert trainer.main([word for word in flags(logdir, "--resume", **UDRL) if word not in without]) == 0
    output = capsys.readouterr().out
    steps = int(read_metrics(past_run / "metrics.csv")["env_steps"][-1])
    assert f"5 epochs, {steps:,} environment steps" in output and "--resume" not in output
    new_files = contents(logdir)
    assert old_files.keys() == new_files.keys()
    for path in (past_run / "metrics.csv", past_run / "checkpoints" / "last.ckpt"):
        assert old_files[path] == new_files[path]


def test_resume_with_another_hyperparameter_is_refused(past_run: Path, logdir: Path, capsys: Shown) -> None:
    old_files = contents(logdir)
    for change, line in [({"lr": 0.5}, f"lr is 0.5, but the run to resume in {past_run} has 0.00035"),
                         ({"command.return": 3}, "command")]:  # fmt: skip
        refused(trainer.main, flags(logdir, "--resume", **UDRL | change), line, capsys, run_started=True)
    assert trainer.main(flags(logdir, "--resume", **UDRL, lr=0.5, time_limit=9)) == 2
    _, line = capsys.readouterr().err.splitlines()  # the first line names the folder
    assert line.startswith("error: time_limit is 9, but the run to resume has null; leave it out")
    assert old_files == contents(logdir)


def test_resume_takes_the_newest_run_even_without_a_checkpoint(
    past_run: Path, logdir: Path, capsys: Shown, finished: Finished
) -> None:
    trained(logdir, "--no_checkpoint", epochs=1)
    capsys.readouterr()
    anew = trained(logdir, "--resume")
    warning = f"warning: {anew.with_name('version_1')} ended before its first checkpoint, so a new one begins"
    assert warning in capsys.readouterr().out and anew.name == "version_2"
    same_runs(finished(**UDRL)[0], anew)


def test_locked_run_without_a_checkpoint_is_not_resumed(past_run: Path, logdir: Path, capsys: Shown) -> None:
    (past_run / "checkpoints" / "last.ckpt").unlink()
    with folder_lock(past_run):
        refused(trainer.main, flags(logdir, "--resume"), "which has no checkpoint yet; wait for it", capsys)
    assert run_folder(logdir) == past_run


def test_resume_refuses_a_damaged_or_best_checkpoint(past_run: Path, logdir: Path, capsys: Shown) -> None:
    """The error offers the other checkpoint if it is intact."""
    last, best = (past_run / "checkpoints" / name for name in ("last.ckpt", "best.ckpt"))
    last_bytes, weights = last.read_bytes(), best.read_bytes()
    policy = checkpoints.load(last).content["state_dict"]["agents.0.policy.flat"].numpy().tobytes()
    flipped = last_bytes.replace(policy, bytes([policy[0] ^ 1]) + policy[1:])
    forged(last, last, lambda content: content[OURS]["loop"].update(stuck=-1))
    for content, other, message, offered in (
        (last_bytes[:1000], weights, "damaged", True),
        (flipped, weights, "is not what was written", True),
        (flipped, weights[:-30], "is not what was written", False),
        (last.read_bytes(), weights, "stuck is -1", True),
        (weights, weights, "holds weights but no memory", True),
    ):
        last.write_bytes(content), best.write_bytes(other)
        old_files = contents(logdir)
        error = refused(trainer.main, flags(logdir, "--resume", epochs=7), message, capsys, run_started=True)
        assert (f"{str(best)!r} may serve with --reload" in error) == offered
        assert old_files == contents(logdir)


def argv_of(case: str, logdir: Path, *extra_flags: str) -> list[str]:
    if case not in ON_GYMNASIUM:
        return flags(logdir, *extra_flags, **CASES[case])
    values = ON_GYMNASIUM[case] | {"seed": 3, "logdir": logdir}
    return [word for name, value in values.items() for word in (f"--{name}", str(value))] + list(extra_flags)


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=[pytest.mark.slow] * (case == "RCP-A, two seeds")) for case in CASES | ON_GYMNASIUM
])  # fmt: skip
def test_resumed_run_equals_uninterrupted(case: str, tmp_path: Path) -> None:
    """The run dies after epoch 3 or 5, with the checkpoint of the epoch before, in the middle of episodes."""
    full, cut, changes = tmp_path / "full", tmp_path / "cut", (CASES | ON_GYMNASIUM)[case]
    assert trainer.main(argv_of(case, full)) == 0
    last, rows = 5 if case in ON_GYMNASIUM else 3, changes.get("num_seeds", 1)
    state = stopped(argv_of(case, cut), cut, last)
    assert epochs_of(cut) == last * rows
    if changes["implementation"] == "DDQN":
        assert all(group["lengths"].any() for group in state["loop"]["groups"])
    if "lunar" in changes.get("gamename", "").lower() and changes.get("num_envs") == 4:
        assert state["loop"]["groups"][0]["environment"]["began"].unique().numel() > 1
    assert trainer.main(argv_of(case, cut, "--resume")) == 0
    metrics = read_metrics(run_folder(cut) / "metrics.csv")
    assert metrics["epoch"][::rows] == [1, 2, 3, 4, 5]
    assert metrics["time/elapsed"] == sorted(metrics["time/elapsed"]), "the time goes on"
    same_runs(run_folder(full), run_folder(cut))


SEARCH: dict[str, Any] = {"implementation": "SE", "generations": 6, "inner_steps": 400}


@pytest.mark.parametrize("case", ["UDRL", pytest.param("SE", marks=pytest.mark.slow)])
def test_killed_run_equals_uninterrupted(case: str, logdir: Path, tmp_path: Path, finished: Finished) -> None:
    """A search is killed twice."""
    changes = SEARCH if case == "SE" else lasting(UDRL, 12)
    for rows in (1, 3) if case == "SE" else (5,):
        run = Running(flags(logdir, "--resume", **changes), tmp_path / f"killed_{rows}")
        while epochs_of(logdir) < rows or (case == "SE" and not any(logdir.rglob("last.ckpt"))):
            assert not run.has_ended()
            time.sleep(0.005)
        time.sleep(0.013)
        assert run.kill()
    same_runs(finished(**changes)[0], trained(logdir, "--resume", **changes))


@pytest.mark.soak
@pytest.mark.parametrize("changes", [*CASES.values(), SEARCH], ids=[*CASES, "SE"])
def test_run_killed_at_random_moments_equals_uninterrupted(changes: dict[str, Any], tmp_path: Path) -> None:
    """Each run is killed up to three times."""
    changes, draws, kills = changes if changes is SEARCH else lasting(changes, 40), random.Random(0), 0
    began = time.monotonic()
    full_run = trained(tmp_path / "full", **changes)
    seconds = time.monotonic() - began
    while kills < SOAK_KILLS:
        logdir = tmp_path / f"cut_{kills}"
        argv = flags(logdir, "--resume", **changes)
        for _ in range(draws.choice((1, 1, 2, 3))):
            run = Running(argv, tmp_path / "cut")
            time.sleep(draws.uniform(0, seconds))
            kills += run.kill()
        Running(argv, tmp_path / "cut").to_the_end()
        same_runs(full_run, run_folder(logdir))
