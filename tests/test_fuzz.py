"""Whatever is typed, read or played ends in an answer: a short pass of tests/fuzz.py, and the long one."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fuzz
import trainer
from fuzzing.sandbox import call, complaints

pytestmark = pytest.mark.xdist_group("fuzz")  # all cases start from the same few runs


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> fuzz.Fuzzer:
    return fuzz.Fuzzer(tmp_path_factory.mktemp("fuzz"), quick=True)


@pytest.mark.parametrize(
    "kind, cases", [("flags", 20), ("files", 10), ("checkpoints", 3), ("proxies", 2), ("environments", 3)]
)
def test_a_few_cases(kind: str, cases: int, fuzzer: fuzz.Fuzzer) -> None:
    assert fuzz.run(kind, range(cases), fuzzer) == []


def _exits(argv: list[str]) -> int:
    os._exit(3)


def _raises(argv: list[str]) -> int:
    raise ValueError("a bug")


def _crashes(argv: list[str]) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def _hangs(argv: list[str]) -> int:
    while True:
        pass


def _ignores_ctrl_c(argv: list[str]) -> int:
    while True:
        try:
            _hangs(argv)
        except KeyboardInterrupt:
            pass


def _writes(argv: list[str]) -> int:
    Path("../elsewhere").mkdir()
    return 0


def _says_nothing(argv: list[str]) -> int:
    return 2


def _says_much(argv: list[str]) -> int:
    fuzz.sys.stderr.write(f"error: {'x' * 1000}\n")
    return 2


FAULTS: list[tuple[Callable[[list[str]], int], str]] = [
    (_exits, "status 3"), (_raises, "ValueError: a bug"), (_crashes, "was killed: SIGSEGV"), (_hangs, "too long"),
    (_ignores_ctrl_c, "took too long"), (_writes, "changed what is not its own"), (_says_nothing, "0 lines of error"),
    (_says_much, "a line of 1007 characters"),
]  # fmt: skip


@pytest.mark.parametrize("main, complaint", FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_faults_are_found(main: Callable[[list[str]], int], complaint: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(trainer, "main", main)
    monkeypatch.setattr("fuzzing.sandbox.CTRL_C_AGAIN", 0.2)
    monkeypatch.setattr("fuzzing.sandbox.GRACE", 0.5)
    outcome = call([], tmp_path / "case", cpu=0.2, parse_only=True)
    assert any(complaint in text for text in complaints(outcome))
    assert not (tmp_path / "elsewhere").exists()


@pytest.fixture(scope="session")
def table() -> Iterator[list[str]]:
    rows: list[str] = []
    yield rows
    print(fuzz.HEAD, *rows, sep="\n")


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", fuzz.CASES)
def test_all_cases(kind: str, tmp_path: Path, table: list[str]) -> None:
    """`make fuzz`: an hour of a processor. FUZZ_CASES says how many of each kind, FUZZ_SEED which ones."""
    numbers = range(int(os.environ.get("FUZZ_CASES", fuzz.CASES[kind])))
    failures = fuzz.run(kind, numbers, fuzz.Fuzzer(tmp_path, int(os.environ.get("FUZZ_SEED", 0))), fuzz.say)
    table.append(fuzz.row(kind, len(numbers), failures))
    assert failures == []
