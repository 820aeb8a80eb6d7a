"""Where machine code is kept: which states of the sources stay, and what several processes save side by side."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

machine = pytest.importorskip("models.machine", reason="needs Numba")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "understudy"


def test_processes_that_save_side_by_side_keep_both(tmp_path: Path) -> None:
    """Each compiles the same function for another type, and a third process calls both."""
    (tmp_path / "doubled.py").write_text(
        "from models.machine import kernel\n\n\n@kernel\ndef double(x):\n    return x * 2\n"
    )
    variables = os.environ | {
        "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))
    }  # fmt: skip

    def started(*values: str) -> "subprocess.Popen[str]":
        code = f"from doubled import double; print([double(value) for value in ({', '.join(values)},)])"
        return subprocess.Popen([sys.executable, "-c", code], env=variables, text=True, stdout=subprocess.PIPE)

    side_by_side = [(started("1.5"), "[3.0]"), (started("2j"), "[4j]")]
    for process, expected in side_by_side:
        assert process.communicate()[0].strip() == expected
    assert started("1.5", "2j").communicate()[0].strip() == "[3.0, 4j]"
