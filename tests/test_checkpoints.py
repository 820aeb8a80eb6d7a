"""Checkpoints: none is believed before it is checked, and none is lost for want of room."""

import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import proxies
import trainer
from control.cli import errors
from control.storage import checkpoints
from control.storage.checkpoints import OURS, AtomicCheckpointIO, CheckpointError
from fake_runs import Shown
from fake_runs import refused as refused_run
from helpers import flags, run_folder, trained


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
    assert last.seeds == [25] and last.run_state["epoch"] == 2
    assert set(last.content["state_dict"]) >= {f"agents.0.{name}" for name in ("policy.flat", "commands.mean")}
    assert last.run_state["loop"]["agent"] is not None and best.run_state["loop"]["agent"] is None
    (finished / "checkpoints" / ".last.ckpt.4711.tmp").write_bytes(b"half")  # what a kill leaves does not disturb
    assert checkpoints.load(finished).path.name == "best.ckpt"


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


@pytest.mark.parametrize("how", ["pickle", "torch", "legacy"])
def test_code_in_a_checkpoint_is_not_run(tmp_path: Path, how: str) -> None:
    path, harmed = tmp_path / "x.ckpt", tmp_path / "harmed"
    if how == "pickle":
        path.write_bytes(pickle.dumps({OURS: Harm(harmed)}))
    else:
        torch.save({OURS: Harm(harmed)}, path, _use_new_zipfile_serialization=how == "torch")
    refused(path)
    assert not harmed.exists()
    torch.load(path, weights_only=False) if how != "pickle" else pickle.loads(path.read_bytes())
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
        content = torch.load(finished / "checkpoints" / "best.ckpt", weights_only=True)
        content[OURS]["settings"]["gamename"] = game
        torch.save(content, path)
    elif kind == "proxy":
        proxies.written(path, "bandit", game=game, config=replace(proxies.KINDS["bandit"][0], inner_steps=10))
        words += ["--num_agents", "1", "--no_real_baseline"]
    else:
        path.write_text(f"gamename: {game}")
        words = ["--config", str(path), *(["--help"] if "help" in kind else flags(tmp_path, epochs=1)[2:])]
    said = "only a flag can have module payload imported; give --import payload"
    refused_run(trainer.main, words, said, capsys, begun=kind == "proxy")
    assert not (tmp_path / "harmed").exists() and "payload" not in sys.modules
    try:
        assert trainer.main([*words, "--import", "payload"]) == 0
    except SystemExit as end:
        assert not end.code
    assert (tmp_path / "harmed").exists()
    del sys.modules["payload"]


def test_a_truncated_or_garbled_one_is_refused_in_one_line(finished: Path, tmp_path: Path) -> None:
    whole = (finished / "checkpoints" / "last.ckpt").read_bytes()
    path = tmp_path / "last.ckpt"
    generator = torch.Generator().manual_seed(0)
    for cut in [1, 4, 100, *torch.randint(len(whole), (15,), generator=generator).tolist(), len(whole) - 1]:
        path.write_bytes(whole[:cut])
        assert "damaged or not a checkpoint" in refused(path)
    for place in torch.randint(min(len(whole), 3000), (60,), generator=generator).tolist():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            checkpoints.load(path)  # one byte of a tensor may pass for another number
        except Exception as error:
            assert errors.one_line(error), f"byte {place}: {type(error).__name__}: {error}"


@pytest.mark.parametrize(("change", "line"), [
    ({"format": 99}, "has format 99"),
    ({"format": None}, "has format None"),
    ({"seeds": None}, "is damaged"),
    ({"settings": {"implementation": "UDRL", "learning_rat": 1}}, "learning_rat is unknown"),
    ({"settings": {"implementation": "Nope"}}, "implementation is 'Nope'"),
])  # fmt: skip
def test_another_format_or_unknown_settings_are_one_line(
    finished: Path, tmp_path: Path, change: dict, line: str
) -> None:
    content = torch.load(finished / "checkpoints" / "last.ckpt", weights_only=True)
    content[OURS] |= change
    torch.save(content, tmp_path / "x.ckpt")
    with pytest.raises(Exception, match=line) as error:
        checkpoints.load(tmp_path / "x.ckpt")
    assert errors.one_line(error.value)


# -- writing ---------------------------------------------------------------------------------------------------------


def full_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """From the ``after``-th checkpoint on, the temporary file is /dev/full, which has room for nothing."""
    real, count = checkpoints.replacing, iter(range(1000))

    @contextmanager
    def replacing(path: Path) -> Iterator[Path]:
        with real(path) as temporary:
            if next(count) >= after:
                temporary.symlink_to("/dev/full")
            yield temporary

    monkeypatch.setattr(checkpoints, "replacing", replacing)


def test_the_previous_checkpoint_survives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"weights": torch.ones(50_000)}, path)
    before = path.read_bytes()
    full_disk(monkeypatch, after=0)
    for size in (3, 50_000):
        with pytest.raises(CheckpointError, match="the previous one is kept") as error:
            AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(size)}, path)
        assert "\n" not in str(errors.one_line(error.value))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_a_run_on_a_full_disk_ends_with_one_line_and_goes_on_later(
    logdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    with monkeypatch.context() as patched:
        full_disk(patched, after=3)  # best and last of epoch 2, best or last of epoch 4
        error = refused_run(trainer.main, flags(logdir, epochs=6), "--resume", capsys, begun=True)
    assert error.startswith("error: checkpoint ")
    folder = run_folder(logdir)
    assert checkpoints.load(folder / "checkpoints" / "last.ckpt").run_state["epoch"] in (2, 4)
    assert trained(logdir, "--resume", epochs=6) == folder
    assert checkpoints.load(folder / "checkpoints" / "last.ckpt").run_state["epoch"] == 6
