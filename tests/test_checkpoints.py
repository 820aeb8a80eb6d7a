"""Checkpoints: checks before use, no code execution, and full disks."""

import errno
import functools
import operator
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import proxies
import trainer
from control.cli import errors
from control.commands.train import build_module
from control.storage import checkpoints
from control.storage.checkpoints import OURS, CheckpointError
from fake_runs import Shown
from fake_runs import refused as refused_run
from helpers import SEARCHED, different, flags, forged, run_folder, trained
from inputs import Harm


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run; its files are for reading."""
    return trained(tmp_path_factory.mktemp("finished"), epochs=2)


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        checkpoints.load(path)
    line = errors.one_line(error.value)
    assert line and str(path) in line and "\n" not in line
    return line


def test_contents_of_last_and_best_checkpoint(finished: Path) -> None:
    last, best = (checkpoints.load(finished / "checkpoints" / f"{name}.ckpt") for name in ("last", "best"))
    assert last.settings.run.gamename == "cartpole" and last.settings.agent.hidden_sizes == (12, 16)
    assert last.run_state["epoch"] == 2
    assert set(last.content["state_dict"]) >= {f"agents.0.{name}" for name in ("policy.flat", "commands.mean")}
    assert last.run_state["loop"]["agent"] is not None and best.run_state["loop"]["agent"] is None
    (finished / "checkpoints" / ".last.ckpt.4711.tmp").write_bytes(b"half")  # left by a killed run
    assert checkpoints.load(finished).path.name == "best.ckpt"


def test_foreign_or_truncated_file_is_refused(finished: Path, tmp_path: Path) -> None:
    assert "best.ckpt" in refused(finished / "checkpoints" / "lst.ckpt")
    path = tmp_path / "x.ckpt"
    assert "does not exist" in refused(path)
    intact_data = (finished / "checkpoints" / "last.ckpt").read_bytes()
    cuts = [intact_data[:size] for size in (1, 100, len(intact_data) // 2, len(intact_data) - 1)]
    for content in (b"epoch,reward\n1,2\n", b"", os.urandom(2000), *cuts):
        path.write_bytes(content)
        assert "damaged or not a checkpoint" in refused(path)
    for foreign in ({"state_dict": {"w": torch.zeros(2)}}, torch.zeros(3), {OURS: 7}, [1]):
        torch.save(foreign, path)
        assert "was not written by this program" in refused(path)
    torch.save({"model": torch.nn.Linear(2, 2)}, path)
    assert "damaged or not a checkpoint" in refused(path)
    path.unlink(), os.mkfifo(path)
    assert "is no file" in refused(path)


@pytest.mark.parametrize("file_format", ["pickle", "torch", "legacy"])
def test_code_in_a_checkpoint_is_not_run(tmp_path: Path, file_format: str) -> None:
    path, harmed = tmp_path / "x.ckpt", tmp_path / "harmed"
    if file_format == "pickle":
        path.write_bytes(pickle.dumps({OURS: Harm(harmed)}))
    else:
        torch.save({OURS: Harm(harmed)}, path, _use_new_zipfile_serialization=file_format == "torch")
    refused(path)
    assert not harmed.exists()


@pytest.mark.parametrize("kind", ["checkpoint", "proxy", "settings", "settings, help"])
def test_files_cannot_import_modules(
    kind: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    """Only a flag can import a module."""
    (tmp_path / "payload.py").write_text(f"open({str(tmp_path / 'harmed')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    game, path = "payload:CartPole-v1", tmp_path / ("x.safetensors" if kind == "proxy" else "x.ckpt")
    words = ["--eval_agent", str(path), "--num_eval_episodes", "1"]
    if kind == "checkpoint":
        best = finished / "checkpoints" / "best.ckpt"
        forged(best, path, lambda content: content[OURS]["settings"].update(gamename=game))
    elif kind == "proxy":
        proxies.written(path, "bandit", game=game, config=replace(proxies.KINDS["bandit"][0], inner_steps=10))
        words += ["--num_agents", "1", "--no_real_baseline"]
    else:
        path.write_text(f"gamename: {game}")
        words = ["--config", str(path), *(["--help"] if "help" in kind else flags(tmp_path, epochs=1)[2:])]
    message = "module payload is not imported; give --import payload"
    refused_run(trainer.main, words, message, capsys, run_started=kind == "proxy")
    assert not (tmp_path / "harmed").exists() and "payload" not in sys.modules
    try:
        assert trainer.main([*words, "--import", "payload"]) in (SEARCHED if kind == "proxy" else (0,))
    except SystemExit as end:
        assert not end.code
    assert (tmp_path / "harmed").exists()
    del sys.modules["payload"]


def test_flipped_bit_is_found_or_harmless(finished: Path, tmp_path: Path) -> None:
    """Bits of the padding between tensors and of duplicate fields of the archive are harmless."""
    intact_path, path, error_count = finished / "checkpoints" / "last.ckpt", tmp_path / "last.ckpt", 0
    intact_data, intact_content = intact_path.read_bytes(), checkpoints.load(intact_path).content
    for bit in torch.randint(8 * len(intact_data), (60,), generator=torch.Generator().manual_seed(1)).tolist():
        place = bit // 8
        path.write_bytes(intact_data[:place] + bytes([intact_data[place] ^ 1 << bit % 8]) + intact_data[place + 1 :])
        try:
            content = checkpoints.load(path).content
        except CheckpointError as error:
            error_count += 1
            assert str(path) in str(error) and "\n" not in str(error)
        else:
            assert list(different(intact_content, content)) == [], f"bit {bit}"
    assert error_count > 30


ONE = torch.ones(1, dtype=torch.int64)
MEMORY = "understudy.loop.agent.memory.members.0"
INVALID_VALUES: dict[str, tuple[Any, str]] = {
    "understudy.epoch": ("7", "epoch is str; allowed: int"),
    "understudy.gradient_steps": (-1, "gradient_steps is -1"),
    "understudy.env_steps": (ONE.repeat(2), r"env_steps is int64 \[2\]; allowed: int64 \[1\]"),
    "understudy.loop.agent": ({}, "it has no 'memory'"),
    "understudy.loop.agent.streams": (torch.zeros(1, 7, dtype=torch.uint8), "random generators"),
    f"{MEMORY}.lengths.0": (0, "memory of member 0 has lengths"),
    "optimizer_states.1.state.0.square": (torch.Tensor.neg_, "square is below 0"),
    "state_dict.more": (ONE, "state_dict has"),
}


@pytest.mark.parametrize("path", INVALID_VALUES)
def test_invalid_value_is_refused_by_name(path: str, finished: Path, tmp_path: Path) -> None:
    value, message = INVALID_VALUES[path]

    def change(content: dict[str, Any]) -> None:
        *path_parts, last = [int(name) if name.isdigit() else name for name in path.split(".")]
        place = functools.reduce(operator.getitem, path_parts, content)
        place[last] = value(place[last]) if callable(value) and not isinstance(value, torch.Tensor) else value

    file = forged(finished / "checkpoints" / "last.ckpt", tmp_path / "last.ckpt", change)
    checkpoint = checkpoints.load(file)
    with pytest.raises(CheckpointError, match=message) as error:
        build_module(checkpoint.settings).restore(checkpoint)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(("change", "line"), [
    ({"format": 8}, "was written by another version: its format is 8, not 9"),
    ({"settings": {"implementation": "UDRL", "learning_rat": 1}}, "learning_rat is unknown"),
])  # fmt: skip
def test_unknown_format_or_settings_are_refused(finished: Path, tmp_path: Path, change: dict, line: str) -> None:
    forged(finished / "checkpoints" / "last.ckpt", tmp_path / "x.ckpt", lambda content: content[OURS].update(change))
    with pytest.raises(Exception, match=line) as error:
        checkpoints.load(tmp_path / "x.ckpt")
    assert errors.one_line(error.value)


# -- writing -----------------------------------------------------------------------------------------------------------


def full_disk(monkeypatch: pytest.MonkeyPatch, first_failure: int) -> None:
    """From the ``first_failure``-th checkpoint on, the temporary file is /dev/full."""
    real, count = checkpoints.atomic_file, iter(range(1000))

    @contextmanager
    def atomic_file(path: Path) -> Iterator[Path]:
        with real(path) as temporary:
            if next(count) >= first_failure:
                temporary.symlink_to("/dev/full")
            yield temporary

    monkeypatch.setattr(checkpoints, "atomic_file", atomic_file)


def test_full_disk_keeps_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.ckpt"
    checkpoints.save({"weights": torch.ones(50_000)}, path)
    old_data = path.read_bytes()
    full_disk(monkeypatch, first_failure=0)
    for size in (3, 50_000):
        with pytest.raises(OSError, match="disk full") as error:
            checkpoints.save({"weights": torch.zeros(size)}, path)
        assert errors.one_line(error.value) == f"disk full or failing at {str(path)!r}; make room"
    assert path.read_bytes() == old_data
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_full_disk_for_event_files_is_an_error(logdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown) -> None:
    """TensorBoard writes in another thread, before the first checkpoint."""

    def fails(self: Any, data: bytes) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", fails)
    error = refused_run(trainer.main, flags(logdir), "make room and start again", capsys, run_started=True)
    assert str(run_folder(logdir)) in error


def test_run_on_a_full_disk_ends_and_resumes_later(
    logdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    with monkeypatch.context() as patched:
        full_disk(patched, first_failure=3)  # best and last of epoch 2, best or last of epoch 4
        refused_run(
            trainer.main, flags(logdir, epochs=6), "make room and go on with --resume", capsys, run_started=True
        )
    folder = run_folder(logdir)
    assert checkpoints.load(folder / "checkpoints" / "last.ckpt").run_state["epoch"] in (2, 4)
    assert trained(logdir, "--resume", epochs=6) == folder
    assert checkpoints.load(folder / "checkpoints" / "last.ckpt").run_state["epoch"] == 6


def test_a_folder_above_runs_names_them_and_no_run_inside_them(tmp_path: Path) -> None:
    """A folder of ``--learn`` has the run of its teacher, and no bandit if the exam failed."""
    learned = tmp_path / "debug/learned/seed_1/version_0"
    inner = learned / "cartpole/teacher/PPO/seed_1/version_0/checkpoints"
    inner.mkdir(parents=True)
    for file, listed in (
        (inner / "last.ckpt", str(inner.parent.relative_to(tmp_path))),
        (learned / "teacher.ckpt", "debug/learned/seed_1/version_0/teacher.ckpt"),
        (learned / "bandit.safetensors", "debug/learned/seed_1/version_0"),
    ):
        file.touch()
        with pytest.raises(checkpoints.CheckpointError, match=f"has 1 below it; allowed: one of {listed}$"):
            checkpoints.load(tmp_path)
    other = tmp_path / "debug/PPO/seed_1/version_0/checkpoints"
    other.mkdir(parents=True)
    (other / "last.ckpt").touch()
    with pytest.raises(checkpoints.CheckpointError, match="has 2 below it; .* debug/PPO/seed_1/version_0, debug"):
        checkpoints.load(tmp_path)
