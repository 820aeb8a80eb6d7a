"""A run that was killed and resumed is the run that was not."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

import trainer
from control.storage.run_dir import read_metrics
from helpers import SMALL_POLICY_RUN, flags, learned, on_policy, run_folder, same_runs, start, wait_until

Shown = pytest.CaptureFixture[str]
BY_CASE = {
    "UDRL": {"checkpoint_every": 2},
    "RCP-A": {"implementation": "RCP-A", "hidden_sizes": "16,16", "checkpoint_every": 1, "buffer_size": 150},
    "two seeds": {"num_seeds": 2, "checkpoint_every": 3, "eval_every": 1},
    "AAC": {"implementation": "AAC", "num_seeds": 2, "gae_lambda": 0.9, "bootstrap_truncation": True,
            "grad_clip_val": 0.5, "value_lr": 1e-2},
}  # fmt: skip


def lasting(changes: dict, epochs: int) -> dict:
    """``changes`` and a run of so many epochs."""
    if on_policy(changes.get("implementation", "UDRL")):
        return changes | {"max_episodes": epochs * SMALL_POLICY_RUN["batch_size"]}
    return changes | {"epochs": epochs}


def epochs_of(logdir: Path) -> int:
    files = list(logdir.rglob("metrics.csv"))
    return len(files[-1].read_text().splitlines()) - 1 if files else 0


# -- in this process ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "stop"), [("UDRL", 1), ("UDRL", 5), ("RCP-A", 4), ("two seeds", 3), ("AAC", 3)])
def test_in_two_parts_is_the_same_as_in_one(case: str, stop: int, logdir: Path, tmp_path: Path) -> None:
    """Ended after epoch ``stop`` by asking for no more, then resumed to the end."""
    changes = BY_CASE[case]
    assert trainer.main(flags(tmp_path / "whole", **lasting(changes, 7))) == 0
    assert trainer.main(flags(logdir, **lasting(changes, stop))) == 0
    assert trainer.main(flags(logdir, "--resume", **lasting(changes, 7))) == 0
    assert run_folder(logdir).name == "version_0"
    same_runs(run_folder(tmp_path / "whole"), run_folder(logdir))


def test_resume_starts_a_run_where_there_is_none(logdir: Path, tmp_path: Path) -> None:
    assert trainer.main(flags(logdir, "--resume")) == 0
    assert trainer.main(flags(tmp_path / "plain")) == 0
    same_runs(run_folder(logdir), run_folder(tmp_path / "plain"))


def test_resume_of_a_finished_run_changes_nothing_and_says_what_is_there(logdir: Path, capsys: Shown) -> None:
    assert trainer.main(flags(logdir)) == 0
    folder = run_folder(logdir)
    before = learned(folder), (folder / "checkpoints" / "last.ckpt").read_bytes()
    capsys.readouterr()
    assert trainer.main(flags(logdir, "--resume")) == 0
    shown = capsys.readouterr().out
    assert f"5 epochs, {int(before[0]['env_steps'][-1]):,} environment steps" in shown
    assert "goes on from" not in shown
    assert repr((learned(folder), (folder / "checkpoints" / "last.ckpt").read_bytes())) == repr(before)
    assert run_folder(logdir) == folder


def test_resume_without_epochs_takes_those_of_the_run(logdir: Path) -> None:
    assert trainer.main(flags(logdir, epochs=3)) == 0
    without = [word for word in flags(logdir, "--resume") if word not in ("--epochs", "5")]
    assert trainer.main(without) == 0
    assert epochs_of(logdir) == 3


def test_resume_with_another_hyperparameter_is_refused(logdir: Path, capsys: Shown) -> None:
    assert trainer.main(flags(logdir)) == 0
    before = {path: path.read_bytes() for path in logdir.rglob("*") if path.is_file()}
    capsys.readouterr()
    for change, line in [({"lr": 0.5}, "lr is 0.5, but the run to resume has 0.00035"),
                         ({"batch_size": 17}, "batch_size is 17, but the run to resume has 16"),
                         ({"command.return": 3}, "command")]:  # fmt: skip
        assert trainer.main(flags(logdir, "--resume", **change)) == 2
        shown = capsys.readouterr().err
        assert shown.startswith("error: ") and line in shown and shown.count("\n") == 1
    assert before == {path: path.read_bytes() for path in logdir.rglob("*") if path.is_file()}


def test_resume_takes_the_newest_run_even_when_it_came_to_no_checkpoint(logdir: Path, tmp_path: Path) -> None:
    """A finished older one with other settings is another run."""
    assert trainer.main(flags(logdir, lr=0.5)) == 0
    assert trainer.main(flags(logdir, "--no_checkpoint", epochs=1)) == 0
    assert trainer.main(flags(logdir, "--resume")) == 0
    assert run_folder(logdir).name == "version_2"
    assert trainer.main(flags(tmp_path / "plain")) == 0
    same_runs(run_folder(tmp_path / "plain"), run_folder(logdir))


@pytest.mark.parametrize("changes", [{}, BY_CASE["AAC"] | {"anneal_lr": True}], ids=["UDRL", "AAC"])
def test_rows_after_the_last_checkpoint_are_learned_again(
    changes: dict, logdir: Path, tmp_path: Path, monkeypatch
) -> None:
    """The run dies after epoch 3 was logged, with the checkpoint of epoch 2."""
    from control.lightning.callbacks import RunLog

    real = RunLog.on_train_epoch_end

    def dies(self, lightning, module) -> None:
        real(self, lightning, module)
        if module.epoch == 3:
            raise ArithmeticError

    with monkeypatch.context() as patched:
        patched.setattr(RunLog, "on_train_epoch_end", dies)
        with pytest.raises(ArithmeticError):
            trainer.main(flags(logdir, **changes))
    rows = changes.get("num_seeds", 1)
    assert epochs_of(logdir) == 3 * rows
    assert torch.load(run_folder(logdir) / "checkpoints" / "last.ckpt", weights_only=True)["understudy"]["epoch"] == 2
    assert trainer.main(flags(logdir, "--resume", **changes)) == 0
    assert read_metrics(run_folder(logdir) / "metrics.csv")["epoch"][::rows] == [1, 2, 3, 4, 5]
    assert trainer.main(flags(tmp_path / "whole", **changes)) == 0
    same_runs(run_folder(tmp_path / "whole"), run_folder(logdir))


def test_a_damaged_checkpoint_is_not_resumed_from(logdir: Path, capsys: Shown) -> None:
    assert trainer.main(flags(logdir, epochs=2)) == 0
    path = run_folder(logdir) / "checkpoints" / "last.ckpt"
    path.write_bytes(path.read_bytes()[:1000])
    capsys.readouterr()
    assert trainer.main(flags(logdir, "--resume")) == 2
    shown = capsys.readouterr().err
    assert "damaged" in shown and shown.count("\n") == 1 and epochs_of(logdir) == 2


# -- killed ----------------------------------------------------------------------------------------------------------


def killed_until_done(logdir: Path, waits: list, **changes) -> int:
    """Start with --resume again and again, SIGKILL as each of ``waits`` says, then let it end; the kills that hit."""
    kills = 0
    for wait in waits:
        process = start(flags(logdir, "--resume", **changes))
        wait(process)
        process.kill()
        _, err = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), err
        kills += process.returncode == -signal.SIGKILL
    assert trainer.main(flags(logdir, "--resume", **changes)) == 0
    return kills


@pytest.mark.parametrize(
    "case", [case if case == "UDRL" else pytest.param(case, marks=pytest.mark.slow) for case in BY_CASE]
)
def test_killed_and_resumed_is_the_same_run(case: str, logdir: Path, tmp_path: Path) -> None:
    changes = lasting(BY_CASE[case], 12)
    assert trainer.main(flags(tmp_path / "whole", **changes)) == 0
    rows = changes.get("num_seeds", 1)

    def after(epochs: int, moment: float):
        def wait(process) -> None:
            wait_until(lambda: epochs_of(logdir) >= epochs * rows, process)
            time.sleep(moment)

        return wait

    assert (
        killed_until_done(logdir, [after(5, 0.013)] if case == "UDRL" else [after(4, 0.0), after(8, 0.013)], **changes)
        >= 1
    )
    same_runs(run_folder(tmp_path / "whole"), run_folder(logdir))


@pytest.mark.soak
def test_fifty_random_kills(logdir: Path, tmp_path: Path) -> None:
    """`make soak`: about ten minutes. Kills fall anywhere from the first import to the last checkpoint; SOAK_KILLS says
    how many instead of fifty."""
    changes = {"epochs": 400, "checkpoint_every": 3, "eval_every": 5, "lr": 3e-3}
    wanted = int(os.environ.get("SOAK_KILLS", 50))
    assert trainer.main(flags(tmp_path / "whole", **changes)) == 0
    draws = random.Random(0)
    kills = 0
    for _ in range(wanted):
        process = start(flags(logdir, "--resume", **changes))
        if draws.random() < 0.8:  # the rest fall into imports and the start
            process.stdout.readline()  # what the run prints first comes with its first epoch
        time.sleep(draws.uniform(0, 0.8))  # a dozen epochs, so that the kills wander through the run
        process.kill()
        _, err = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), err
        kills += process.returncode == -signal.SIGKILL
        print(f"kill {kills}: {epochs_of(logdir)} epochs", flush=True)
    assert killed_until_done(logdir, [], **changes) == 0
    assert kills > wanted // 2
    same_runs(run_folder(tmp_path / "whole"), run_folder(logdir))
