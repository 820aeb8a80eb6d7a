"""Checkpoints: none is believed before it is checked, and none is lost for want of room."""

import errno
import functools
import math
import operator
import os
import pickle
import shutil
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
from helpers import different, flags, forged, run_folder, trained


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


def test_knows_its_settings_weights_and_members_and_best_is_small(finished: Path) -> None:
    last, best = (checkpoints.load(finished / "checkpoints" / f"{name}.ckpt") for name in ("last", "best"))
    assert last.settings.run.gamename == "cartpole" and last.settings.agent.hidden_sizes == (12, 16)
    assert last.run_state["epoch"] == 2
    assert set(last.content["state_dict"]) >= {f"agents.0.{name}" for name in ("policy.flat", "commands.mean")}
    assert last.run_state["loop"]["agent"] is not None and best.run_state["loop"]["agent"] is None
    (finished / "checkpoints" / ".last.ckpt.4711.tmp").write_bytes(b"half")  # what a kill leaves does not disturb
    assert checkpoints.load(finished).path.name == "best.ckpt"


def test_of_several_versions_the_one_that_is_taken_is_said(finished: Path, tmp_path: Path, capsys: Shown) -> None:
    for number in range(3):
        shutil.copytree(finished / "checkpoints", tmp_path / "seed_25" / f"version_{number}" / "checkpoints")
    note = "note: the newest version of a run counts: version_2 of seed_25 (not version_1, version_0); to take another"
    flag = ["--num_eval_episodes", "1", "--eval_agent"]
    for folder, is_printed in (tmp_path / "seed_25", True), (tmp_path / "seed_25" / "version_0", False):
        assert trainer.main([*flag, str(folder)]) == 0
        line = f"{note}, name it: --eval_agent {tmp_path / 'seed_25' / 'version_1'}"
        assert (capsys.readouterr().out.splitlines()[0] == line) == is_printed
    trained(tmp_path / "reloaded", "--reload", str(tmp_path / "seed_25"), epochs=1)
    assert f"{note}, name it: --reload " in capsys.readouterr().out


class Harm:
    """Makes a file when unpickled."""

    def __init__(self, path: Path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_what_is_no_checkpoint_of_ours_is_refused_in_one_line(finished: Path, tmp_path: Path) -> None:
    assert "best.ckpt" in refused(finished / "checkpoints" / "lst.ckpt"), "names what is there"
    path = tmp_path / "x.ckpt"
    assert "does not exist" in refused(path)
    for content in (b"epoch,reward\n1,2\n", b"", os.urandom(2000)):
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
    torch.load(path, weights_only=False) if file_format != "pickle" else pickle.loads(path.read_bytes())
    assert harmed.exists()  # it would have


@pytest.mark.parametrize("kind", ["checkpoint", "proxy", "settings", "settings, help"])
def test_no_file_chooses_what_is_imported(
    kind: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    """A module is imported only where a flag names it."""
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
    message = "only a flag can have module payload imported; give --import payload"
    refused_run(trainer.main, words, message, capsys, run_started=kind == "proxy")
    assert not (tmp_path / "harmed").exists() and "payload" not in sys.modules
    try:
        assert trainer.main([*words, "--import", "payload"]) == 0
    except SystemExit as end:
        assert not end.code
    assert (tmp_path / "harmed").exists()
    del sys.modules["payload"]


def test_a_truncated_or_garbled_one_is_refused_in_one_line(finished: Path, tmp_path: Path) -> None:
    intact_data = (finished / "checkpoints" / "last.ckpt").read_bytes()
    path = tmp_path / "last.ckpt"
    generator = torch.Generator().manual_seed(0)
    for cut in [1, 4, 100, *torch.randint(len(intact_data), (15,), generator=generator).tolist(), len(intact_data) - 1]:
        path.write_bytes(intact_data[:cut])
        assert "damaged or not a checkpoint" in refused(path)


def test_a_flipped_bit_is_found_or_harmless(finished: Path, tmp_path: Path) -> None:
    """Harmless are those in the padding between tensors and in what an archive says twice."""
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
PIECES: dict[str, tuple[Any, str]] = {
    "understudy.epoch": ("7", "epoch is str; allowed: int"),
    "understudy.gradient_steps": (-1, "gradient_steps is -1"),
    "understudy.best": (math.nan, "best is nan"),
    "understudy.env_steps": (ONE.repeat(2), r"env_steps is int64 \[2\]; allowed: int64 \[1\]"),
    "understudy.loop.gradient_steps": (1.0, "gradient_steps is float"),
    "understudy.loop.env_steps": (ONE, "loop has counted"),
    "understudy.loop.agent": ({}, "it has no 'memory'"),
    "understudy.loop.agent.streams": (torch.zeros(1, 7, dtype=torch.uint8), "random generators"),
    f"{MEMORY}.lengths.0": (0, "memory of member 0 has lengths"),
    f"{MEMORY}.steps.rtg": (torch.zeros(3), r"memory of member 0.steps.rtg is float32 \[3\]"),
    "understudy.loop.recent.more": (ONE, "recent has"),
    "optimizer_states.1.state.0.square": (torch.Tensor.neg_, "square is below 0"),
    "optimizer_states.1.param_groups.0.params": ([0, 1], "a list of 2"),
    "state_dict.more": (ONE, "state_dict has"),
}


@pytest.mark.parametrize("path", PIECES)
def test_a_piece_that_no_run_has_written_is_refused_by_name(path: str, finished: Path, tmp_path: Path) -> None:
    value, message = PIECES[path]

    def change(content: dict[str, Any]) -> None:
        *way, last = [int(name) if name.isdigit() else name for name in path.split(".")]
        place = functools.reduce(operator.getitem, way, content)
        place[last] = value(place[last]) if callable(value) and not isinstance(value, torch.Tensor) else value

    file = forged(finished / "checkpoints" / "last.ckpt", tmp_path / "last.ckpt", change)
    checkpoint = checkpoints.load(file)
    with pytest.raises(CheckpointError, match=message) as error:
        build_module(checkpoint.settings).restore(checkpoint)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(("change", "line"), [
    ({"format": 99}, "has format 99"),
    ({"format": None}, "has format None"),
    ({"settings": {"implementation": "UDRL", "learning_rat": 1}}, "learning_rat is unknown"),
    ({"settings": {"implementation": "Nope"}}, "implementation is 'Nope'"),
])  # fmt: skip
def test_another_format_or_unknown_settings_are_one_line(
    finished: Path, tmp_path: Path, change: dict, line: str
) -> None:
    forged(finished / "checkpoints" / "last.ckpt", tmp_path / "x.ckpt", lambda content: content[OURS].update(change))
    with pytest.raises(Exception, match=line) as error:
        checkpoints.load(tmp_path / "x.ckpt")
    assert errors.one_line(error.value)


# -- writing ---------------------------------------------------------------------------------------------------------


def full_disk(monkeypatch: pytest.MonkeyPatch, first_failure: int) -> None:
    """From the ``first_failure``-th checkpoint on, the temporary file is /dev/full, which has room for nothing."""
    real, count = checkpoints.replacing, iter(range(1000))

    @contextmanager
    def replacing(path: Path) -> Iterator[Path]:
        with real(path) as temporary:
            if next(count) >= first_failure:
                temporary.symlink_to("/dev/full")
            yield temporary

    monkeypatch.setattr(checkpoints, "replacing", replacing)


def test_the_previous_checkpoint_survives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_event_file_without_room_is_one_line_and_no_traceback(
    logdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    """TensorBoard writes in a thread of its own. There is no checkpoint to go on from yet."""

    def fails(self: Any, data: bytes) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", fails)
    error = refused_run(trainer.main, flags(logdir), "make room and start again", capsys, run_started=True)
    assert str(run_folder(logdir)) in error


def test_a_run_on_a_full_disk_ends_with_one_line_and_goes_on_later(
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
