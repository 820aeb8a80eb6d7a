"""Hostile files: no file takes much time or memory, or adds other files to a page."""

import os
import pickle
import re
import struct
import zipfile
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer
import understudy
from control.cli.files import read_config
from control.reports.search import read_trials
from control.storage import checkpoints
from control.storage.checkpoints import OURS, CheckpointError
from control.storage.run_dir import read_metrics
from control.storage.versions import read_versions
from fake_runs import Shown
from fake_runs import refused as refused_run
from inputs import archive, nested, saved
from models.settings import SettingError
from understudy import ProxyError

PICKLE = "archive/data.pkl"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\nq\x07"  # the function, and its place 7 in the memo


def content(part: Any) -> dict[str, Any]:
    return {OURS: {"format": checkpoints.FORMAT, "settings": part}, "state_dict": part}


def pickled(opcodes: bytes, **storages: bytes) -> bytes:
    """An archive with {"understudy": ``opcodes``}."""
    head, tail = b"\x80\x02}X\x0a\x00\x00\x00understudy", b"s."
    return archive(
        {PICKLE: head + opcodes + tail, "archive/version": b"3"}
        | {f"archive/data/{name}": storage for name, storage in storages.items()}
    )


def tensor(size: tuple[int, ...], stride: tuple[int, ...], count: int) -> bytes:
    """Opcodes of a tensor in a storage that claims to hold ``count`` numbers."""
    length, offset, *encoded_shape = (pickle.dumps(value, 2)[2:-1] for value in (count, 0, size, stride))
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu" + length + b"tQ"
    return TENSOR + b"(" + storage + offset + b"".join(encoded_shape) + b"\x89}tR"


def overlapping() -> bytes:
    """Ten parts with the same million bytes."""
    archive_bytes = archive({"archive/data.pkl": bytes(10**6)})
    start = archive_bytes.index(b"PK\x01\x02")
    table, end = archive_bytes[start:-22], archive_bytes[-22:]
    return archive_bytes[:start] + table * 10 + end[:8] + struct.pack("<2HL", 10, 10, 10 * len(table)) + end[16:]


WORDS = b"X\x00\x00\x08\x00" + b"x" * 2**19 + b"q\x01"
FOREIGN = "was not written by this program"
ATTACKS: dict[str, tuple[Callable[[], bytes], str]] = {
    "lists that share parts, as settings": (lambda: saved(content(nested(60))), "damaged"),
    "a list within itself": (lambda: pickled(b"]q\x00h\x00a"), FOREIGN),
    "a long text again and again": (lambda: pickled(b"](" + WORDS + b"h\x01" * 10**5 + b"e"), FOREIGN),
    "stride 0": (lambda: saved(content(torch.zeros(1).expand(10**9))), "damaged"),
    "a storage longer than its part": (lambda: pickled(tensor((10**9,), (1,), 10**9), **{"0": bytes(4)}), "size"),
    "a tensor beyond its storage": (lambda: pickled(tensor((9,), (1,), 1), **{"0": bytes(4)}), "resize"),
    "compressed": (lambda: archive({PICKLE: bytes(10**8)}, zipfile.ZIP_DEFLATED), "longer than the file"),
    "parts that share bytes": (overlapping, "longer than the file"),
    "a number of 2 GB": (lambda: pickled(b"\x8b\xff\xff\xff\x7f"), "more than tensors and plain values"),
    "bytes of 2 ** 60": (lambda: pickled(b"\x8e" + struct.pack("<Q", 2**60)), "more than tensors and plain values"),
    "bytearray(10 ** 10)": (lambda: pickled(b"cbuiltins\nbytearray\nI10000000000\n\x85R"), "more than tensors"),
    "attributes of a function": (lambda: pickled(TENSOR + b"}X\x01\x00\x00\x00aK\x01sb"), "more than tensors"),
    "a hundred thousand levels": (lambda: pickled(b"]" * 10**5 + b"a" * (10**5 - 1)), FOREIGN),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_checkpoint_is_refused(attack: str, tmp_path: Path) -> None:
    make, message = ATTACKS[attack]
    path = tmp_path / "last.ckpt"
    path.write_bytes(make())
    with pytest.raises(CheckpointError, match=message) as error:
        checkpoints.load(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400 + len(str(path))


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**10)


@pytest.mark.parametrize("make_special", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), large, Path.mkdir])
def test_special_or_huge_files_are_not_read(make_special: Callable[[Path], None], tmp_path: Path) -> None:
    for name in ("metrics.csv", "config.yaml", "versions.json", "trials.json"):
        make_special(tmp_path / name)
    with pytest.raises(SettingError, match="not a regular file|too large|directory"):
        read_metrics(tmp_path / "metrics.csv")
    with pytest.raises(SettingError, match="not a regular file|too large|directory"):
        read_config(str(tmp_path / "config.yaml"))
    with pytest.raises(SettingError, match="not a regular file|too large|directory"):
        read_trials(tmp_path, "resume")
    assert read_versions(tmp_path) == []


def test_page_leaves_out_links_to_other_folders(tmp_path: Path, capsys: Shown) -> None:
    """The page leaves out links to other folders."""
    run, secret = tmp_path / "run", tmp_path / "secret.png"
    (run / "videos").mkdir(parents=True)
    (run / "metrics.csv").write_text("epoch,env_steps,seed,eval/return_greedy\n" + "1,100,25,1.0\n2,200,25,2.0\n")
    secret.write_bytes(b"\x89PNG a picture of somebody else")
    (run / "behaviour.png").symlink_to(secret)
    (run / "config.yaml").symlink_to(tmp_path / "secret.yaml")
    (tmp_path / "secret.yaml").write_text("password: swordfish\n")
    (run / "videos" / "final.mp4").write_bytes(b"a film")
    (run / "reward.png").write_bytes(b"\x89PNG the picture of a search")
    (run / "behaviour_reward.png").symlink_to(run / "reward.png")
    assert trainer.main(["--report", str(run)]) == 0
    page, output = (run / "report.html").read_text(), capsys.readouterr().out
    media = [b64decode(encoded) for encoded in re.findall(r"base64,([^\"]+)", page)]
    assert media.count(b"a film") == 1 and media.count(b"\x89PNG the picture of a search") == 2
    figures = [content for content in media if content.startswith(b"<svg")]
    assert len(media) == 3 + len(figures) and "swordfish" not in page
    for name in ("behaviour.png", "config.yaml"):
        assert output.count(f"left out: '{run / name}'") == 1


def test_linked_metrics_are_refused(tmp_path: Path, capsys: Shown) -> None:
    for name in ("ours", "received"):
        (tmp_path / name).mkdir()
    (tmp_path / "ours" / "metrics.csv").write_text("epoch,env_steps,seed,eval/return_greedy\n1,100,25,1.0\n")
    (tmp_path / "received" / "metrics.csv").symlink_to(tmp_path / "ours" / "metrics.csv")
    refused_run(trainer.main, ["--report", str(tmp_path / "received")], "is a link to another folder's", capsys)


def test_huge_safetensors_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    entries = ",".join(f'"{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(200_000))
    path.write_bytes(struct.pack("<Q", len(entries) + 2) + b"{" + entries.encode() + b"}")
    with pytest.raises(ProxyError, match="a header of 11,[0-9,]* bytes"):
        understudy.load(path)
