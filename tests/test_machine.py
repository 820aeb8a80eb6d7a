"""Machine code: what several processes save side by side, members in threads, and lean imports."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT
from control.cli.settings import from_dict
from control.loops.build import build_loop
from control.loops.process import configure_torch
from control.loops.threads import for_members
from helpers import output_of


def test_processes_that_save_side_by_side_keep_both(tmp_path: Path) -> None:
    """Each compiles the same function for another type, and a third process calls both."""
    pytest.importorskip("numba")
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
    # Removing the cache, as processes with other code may, does not stop a running process.
    code = (
        "import shutil, doubled; from models.machine import cache_folder; shutil.rmtree(cache_folder()); "
        "print(doubled.double(1j))"
    )
    process = subprocess.run([sys.executable, "-c", code], env=variables, text=True, capture_output=True)
    assert process.stdout.strip() == "2j", process.stderr


def test_every_thread_rounds_denormal_numbers_to_zero() -> None:
    configure_torch()  # this one's settings
    all_at_once, records = threading.Barrier(3), []

    def work(memory: None, first: int, last: int) -> None:
        all_at_once.wait(10)
        records.append((threading.get_ident(), first, last, float(np.float32(1e-39) * np.float32(0.5))))

    for_members(work, 3, [None] * 3)
    assert len({thread for thread, *_ in records}) == 3
    assert sorted(record[1:] for record in records) == [(0, 1, 0.0), (1, 2, 0.0), (2, 3, 0.0)]


@pytest.mark.parametrize("in_caller", [True, False])
def test_what_a_thread_raises_comes_out_when_all_have_stopped(in_caller: bool) -> None:
    caller, barrier, stopped = threading.get_ident(), threading.Barrier(2), []

    def work(memory: None, first: int, last: int) -> None:
        if first in (0, 7):  # they begin at either end
            barrier.wait(10)
            if (threading.get_ident() == caller) == in_caller:
                raise ValueError("of a member")
            stopped.append(first)

    with pytest.raises(ValueError, match="of a member"):
        for_members(work, 8, [None] * 2)
    assert len(stopped) == 1


def test_another_thread_begins_with_what_is_done_beside() -> None:
    start_event = threading.Event()
    thread_ids: list[int] = []

    def side_task() -> None:
        thread_ids.append(threading.get_ident())
        start_event.set()

    for_members(lambda memory, first, last: start_event.wait(10), 8, [None] * 2, side_task)
    assert len(thread_ids) == 1 and thread_ids[0] != threading.get_ident()

    def fails() -> None:
        raise ValueError("beside")

    with pytest.raises(ValueError, match="beside"):
        for_members(lambda *_: None, 8, [None] * 2, fails)


LEAN = "import sys; from control.lightning import lean; lean.load(); import pytorch_lightning"


@pytest.mark.slow
def test_lightning_comes_without_them_and_the_real_ones_come_for_whoever_imports_them() -> None:
    code = f"""{LEAN}
absent = ("scipy.signal", "scipy.stats", "torch._dynamo", "torch.export", "sympy", "matplotlib", "matplotlib.pyplot")
print([name for name in absent if name in sys.modules])
import scipy.signal, torch
one = torch.nn.Linear(1, 1)
print(scipy.signal.lfilter([1.0], [1.0], [3.0])[0])
ones = torch.ones(2, 1)
print(torch.compile(one, backend="eager")(ones).shape, torch.export.export(one, (ones,)).graph is not None)
import matplotlib.colors, torchmetrics
mean = torchmetrics.MeanMetric()
mean.update(1.0)
print(float(mean.compute()), matplotlib.colors.to_hex("red"))
"""
    assert output_of(code).splitlines() == [
        "[]", "3.0", "torch.Size([2, 1]) True", "1.0 #ff0000"
    ]  # fmt: skip


def test_agents_train_in_torch_without_a_writable_cache(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr("models.machine.keeps_cache", lambda: False)
    loop = build_loop(from_dict({"implementation": "DDQN", "gamename": "cartpole"}))
    assert not loop.compiled and all(group.machine_code is None for group in loop.groups)
    assert "so agents train in torch" in "".join(capsys.readouterr())


@pytest.mark.slow
def test_numba_comes_without_scipy_and_its_products_of_matrices_work() -> None:
    pytest.importorskip("numba")
    code = """
import sys
import numpy as np
from control.lightning import lean
lean.load_numba()
print("scipy.linalg" in sys.modules)
import numba
product = numba.njit(lambda a, b: np.linalg.inv(a) @ b)(2 * np.eye(2), np.ones((2, 2)))
print(product.sum(), type(sys.modules["scipy.linalg"]).__name__)
"""
    assert output_of(code).splitlines() == ["False", "2.0 module"]
