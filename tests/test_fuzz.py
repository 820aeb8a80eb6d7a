"""Random command lines and settings files: the command accepts them, or refuses them with status 2 and a line for each
fault. The quick suite tries a few, `make fuzz` thousands: FUZZ_CASES is their number, FUZZ_SEED the seed."""

import contextlib
import io
import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st

import inputs
import trainer

LONGEST = 640  # characters in a line of error
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
QUICK = pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.fuzz)], ids=["few", "many"])


@pytest.fixture(autouse=True)
def only_parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Accepted command lines start nothing."""
    monkeypatch.setattr(trainer, "run", lambda settings: 0)
    (tmp_path / "case").mkdir()
    monkeypatch.chdir(tmp_path / "case")


def try_inputs(count: int, quick: bool, check: Callable[[st.DataObject], None]) -> None:
    """Call ``check`` with one input after another."""
    limits: dict[str, Any] = {"phases": [Phase.generate, Phase.shrink], "suppress_health_check": [*HealthCheck]}
    count = count if quick else int(os.environ.get("FUZZ_CASES", 250 * count))
    run = settings(max_examples=count, database=None, derandomize=quick, **limits)(given(st.data())(check))
    (run if quick else seed(int(os.environ.get("FUZZ_SEED", 0)))(run))()


def check_answer(argv: Sequence[str], names: Sequence[str]) -> None:
    """The command accepts ``argv``, or each line of error is short, printable and mentions one of ``names``."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = trainer.main(argv)
        except SystemExit as end:  # of --help and --version
            status = end.code
    note(f"$ trainer.py {shlex.join(argv)[:2000]}\n{err.getvalue()[-3000:]}-> {status}")
    errors = [line for line in err.getvalue().split("\n") if line.startswith("error: ")]
    assert (status or 0, len({*errors})) == (2 if errors else 0, len(errors))
    for line in errors:
        assert len(line) <= LONGEST and not CONTROL.search(line), line
        assert not names or any(name in line for name in names), line


SHELF = {
    "empty": b"", "text.yaml": b"lr: 0.01\n", "text.json": b'{"lr": 0.01}', "list.yaml": b"- 1\n",
    "bytes": b"\xff\xfe\x00", "bytes.yaml": b"\xff\xfe\x00", "empty.ckpt": b"", "zip.ckpt": b"PK\x03\x04",
    "empty.safetensors": b"", "bytes.safetensors": b"\xff" * 64, "space.yaml": b"lr: {uniform: [0.1, 0.2]}\n",
    "metrics.csv": b"epoch,env_steps,seed\n",
}  # fmt: skip


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder of files for path flags."""
    (tmp_path / "shelf" / "folder" / "version_0").mkdir(parents=True)
    for name, content in SHELF.items():
        (tmp_path / "shelf" / name).write_bytes(content)
    (tmp_path / "shelf" / "dangling").symlink_to("nowhere")
    (tmp_path / "shelf" / "round").symlink_to("round")
    return tmp_path / "shelf"


@QUICK
def test_command_lines(quick: bool, shelf: Path) -> None:
    def check(data: st.DataObject) -> None:
        argv, names = data.draw(inputs.lines(shelf))
        flags = [word.removeprefix("--").partition("=")[0] for word in argv if word]
        check_answer(argv, [*names, *flags, "module", "checkpoint"] if names else ())
        assert not [*Path().iterdir()]

    try_inputs(20, quick, check)


@QUICK
def test_settings_files(quick: bool) -> None:
    def check(data: st.DataObject) -> None:
        name, content, argv, names = data.draw(inputs.settings_files())
        Path(name).write_bytes(content)
        check_answer(argv, names)
        assert not Path("EXECUTED").exists()

    try_inputs(8, quick, check)
