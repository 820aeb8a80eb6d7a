"""Settings and fixtures for all tests: one thread a process, no display, repeatable hypothesis examples."""

import contextlib
import gc
import io
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# Before torch is imported: idle OpenMP threads spin and take the cores from the other test workers.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["SDL_VIDEODRIVER"] = "dummy"
os.environ.setdefault("MKL_CBWR", "AUTO")  # as trainer.py does

import pytest
from hypothesis import settings

import probes  # noqa: F401  # registers the probe environments

# Tests in the background or under nohup would ignore these signals, and so would their child processes.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

ROOT = Path(__file__).resolve().parent.parent
Finished = Callable[..., tuple[Path, str]]  # the type of the fixture `finished`

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle the tests by the seed TEST_ORDER, if set."""
    if order := os.environ.get("TEST_ORDER"):
        random.Random(order).shuffle(items)


def pytest_report_header() -> str | None:
    order = os.environ.get("TEST_ORDER")
    return f"random order: TEST_ORDER={order}" if order else None


def pytest_collection_finish() -> None:
    """Exclude existing objects from garbage collection, as they live to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_chance() -> None:
    """Seed the global generator of torch for each test."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def denormal_numbers() -> Iterator[None]:
    """Runs flush denormal numbers to zero; hypothesis generates them."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(autouse=True)
def no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable fsync to save time; tests of power cuts patch it themselves."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def blank_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write blank figures to save time, except in tests with the mark ``draws``. With the fixture `figures`, texts of
    the figures are available. Without it and without `curves`, runs make neither learning curves nor histograms."""
    if request.node.get_closest_marker("draws") is not None:
        return
    if not {"figures", "curves"} & {*request.fixturenames}:
        if "control.commands.choose_proxy" in sys.modules:  # its import takes seconds
            curve = lambda folder, style: blank(style.path(folder, "curve"), style.formats)  # noqa: E731
            monkeypatch.setattr("control.commands.choose_proxy.learning_curve", curve)
        if "control.reports.synthetic" in sys.modules:
            monkeypatch.setattr("control.reports.synthetic.draw_histograms", lambda path, *_: blank(path))
            monkeypatch.setattr("control.reports.synthetic._AGENTS", 2)
    monkeypatch.setattr("matplotlib.figure.Figure.draw", lambda self, renderer: None)
    if "figures" not in request.fixturenames:
        from matplotlib.figure import Figure

        monkeypatch.setattr(Figure, "findobj", lambda self, *args, **kwargs: [])
        monkeypatch.setattr("control.reports.figures.DPI", 20)  # large blank pictures take long to compress


def blank(path: Path, formats: Sequence[str] = ()) -> Path:
    """Write an empty figure in place of one with panels."""
    from matplotlib.figure import Figure

    for form in formats or ("png",):
        Figure((1, 1), dpi=20).savefig(path.with_suffix(f".{form}"))
    return path


@pytest.fixture
def curves() -> None:
    """Runs make their learning curves and histograms, with blank figures."""


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Saved figures."""
    from matplotlib.figure import Figure

    saved_figures: list[Any] = []
    write = Figure.savefig
    save = lambda self, *args, **kwargs: (saved_figures.append(self), write(self, *args, **kwargs))  # noqa: E731
    monkeypatch.setattr(Figure, "savefig", save)
    return saved_figures


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Films without the pause after each episode."""
    monkeypatch.setattr("control.films.recording._PAUSE_SECONDS", 0.0)


@pytest.fixture
def short_stages(short_fits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--learn` with few updates, states, episodes and agents on the task itself."""
    from control.learn import teacher

    parse = teacher.settings_from
    sizes = {"SE": {"table_size": 600}, "RN": {"rn_episodes": 64}}
    cells = lambda values: values.get("first_states") == "cells"  # noqa: E731  # which have no table
    small = lambda values: {} if cells(values) else sizes[values["implementation"]]  # noqa: E731
    monkeypatch.setattr(teacher, "settings_from", lambda **values: parse(**values, **small(values)))
    monkeypatch.setattr("control.learn.agents.REAL_AGENTS", 1)


@pytest.fixture
def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clones and potentials are fitted briefly."""
    monkeypatch.setattr("models.proxies.fitting._UPDATES", 600)
    monkeypatch.setattr("envs.synthetic._DAGGER_UPDATES", 200)


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """A root for run folders that does not exist yet."""
    return tmp_path / "exp_dir"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A function that trains small runs, each once for all tests of a process. It returns the folder, which tests must
    not change, and the output."""
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
