"""What every test may count on: one thread a process, no display, the same hypothesis examples each time."""

import contextlib
import gc
import io
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before torch is imported: idle OpenMP threads spin and take the cores from the other test workers.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["SDL_VIDEODRIVER"] = "dummy"
os.environ.setdefault("MKL_CBWR", "AUTO")  # as trainer.py does

import pytest
from hypothesis import settings

# A shell that starts the tests in the background has them ignore Ctrl-C, nohup the hang-up, and what they start
# inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffles the tests by the seed TEST_ORDER, if there is one; groups of one process stay in one."""
    if order := os.environ.get("TEST_ORDER"):
        random.Random(order).shuffle(items)


def pytest_report_header() -> str | None:
    order = os.environ.get("TEST_ORDER")
    return f"random order: TEST_ORDER={order}" if order else None


def pytest_collection_finish() -> None:
    """All that is there now stays to the end, so Python's search for garbage need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_chance() -> None:
    """What a test draws from torch's global generator is the same each time, alone or after any other test."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def denormal_numbers() -> Iterator[None]:
    """Runs round them to zero, and in the process that ran them it stays so; hypothesis draws them."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(autouse=True)
def no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run waits until the disk has what it wrote, some twenty times each; a test that cuts the power keeps account
    of what would be there."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def blank_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write blank figures: drawing would take most of the time of a run of seconds, and so would the ticks that
    are made when texts are looked for. Tests about figures are marked ``draws``, or ask for `figures`."""
    if request.node.get_closest_marker("draws") is not None:
        return
    monkeypatch.setattr("matplotlib.figure.Figure.draw", lambda self, renderer: None)
    if "figures" not in request.fixturenames:
        from matplotlib.figure import Figure

        monkeypatch.setattr(Figure, "findobj", lambda self, *args, **kwargs: [])


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were written."""
    from matplotlib.figure import Figure

    saved_figures: list[Any] = []
    write = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **kwargs: (saved_figures.append(self), write(self, *args, **kwargs))
    )
    return saved_figures


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Films end with an episode, not after its card, which takes most pictures of a short one."""
    monkeypatch.setattr("control.films.recording._PAUSE_SECONDS", 0.0)


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """A root for run folders that is not there yet, as on a first run."""
    return tmp_path / "exp_dir"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, str]]:
    """Small runs that have ended, each made once for all tests of a process: the folder, which is only to be read, and
    what was printed. Called with a run's flags and settings."""
    from helpers import trained

    runs: dict[str, tuple[Path, str]] = {}

    def run(*extra_flags: str, **changes: Any) -> tuple[Path, str]:
        key = repr((extra_flags, sorted(changes.items())))
        if key not in runs:
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                folder = trained(tmp_path_factory.mktemp("finished") / "exp_dir", *extra_flags, **changes)
            runs[key] = folder, output.getvalue()
        return runs[key]

    return run
