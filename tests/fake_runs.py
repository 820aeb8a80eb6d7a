"""Run folders with made-up numbers, and a fake interpreter for tests of scripts that start runs."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from conftest import ROOT
from control.cli.parse import parse
from control.cli.settings import to_yaml

Shown = pytest.CaptureFixture[str]


def write_run(
    logdir: Path, implementation: str, numbers: Callable[[int, int], dict[str, float]], *, flags: Sequence[str] = (),
    seeds: Sequence[int] = (25,), epochs: int = 40, steps: int = 1000, game: str = "lunarlander", name: str = "debug",
    version: int = 0,
) -> Path:  # fmt: skip
    """A run folder with ``numbers(epoch, seed)`` in metrics.csv, for ``epochs`` epochs of ``steps`` environment steps.
    Missing tags are empty cells. With ``flags`` it has a config.yaml."""
    place = f"seed_{seeds[0]}" + (f"-{seeds[-1]}" if len(seeds) > 1 else "")
    folder = logdir / game / name / implementation / place / f"version_{version}"
    folder.mkdir(parents=True)
    rows = [(epoch, seed, numbers(epoch, seed)) for epoch in range(1, epochs + 1) for seed in seeds]
    tags = list(dict.fromkeys(tag for *_, row in rows for tag in row))
    lines = [",".join(["epoch", "env_steps", "seed", *tags])]
    for epoch, seed, row in rows:
        lines.append(",".join(map(str, [epoch, steps * epoch, seed, *(row.get(tag, "") for tag in tags)])))
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    if flags:
        (folder / "config.yaml").write_text(to_yaml(parse(["--implementation", implementation, *flags])))
    return folder


def is_png(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


def load_script(path: str) -> ModuleType:
    """A script of experiments/ as a module."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), ROOT / "experiments" / f"{path}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for dataclasses
    spec.loader.exec_module(module)
    return module


def refused(
    main: Callable[[list[str]], int], argv: Sequence[str], message: str, capsys: Shown, run_started: bool = False
) -> str:
    """The error of a call that ends with status 2: one line, without other output unless a run began."""
    capsys.readouterr()
    assert main(list(argv)) == 2
    output = capsys.readouterr()
    assert message in output.err and output.err.startswith("error: ") and output.err.count("\n") == 1, output.err
    assert run_started or output.out == ""
    return output.err


# -- scripts that start runs -------------------------------------------------------------------------------------------

# The variable FAIL lists names that fail; with WAIT it waits for Ctrl-C.
INTERPRETER = """#!{python}
import os, sys, time
if sys.argv[1] == "-c":
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
if "figure.py" in sys.argv[1]:
    print("figure", sys.argv[2:])
    sys.exit()
given = {{flag: value for flag, value in zip(sys.argv, sys.argv[1:]) if flag.startswith("--")}}
if "--implementation" in given and "--preset" in given:
    name = given["--implementation"] + " " + given["--preset"]
else:
    name = given["--seed"]
print("argv", sys.argv[1:], "threads", os.environ["OMP_NUM_THREADS"])
if name in os.environ.get("FAIL", "").split(","):
    sys.exit("error: " + name + " broke")
if os.environ.get("WAIT"):
    with open("starting " + name, "w") as file:
        file.write(str(os.getpid()))
    try:
        os.rename("starting " + name, "waiting " + name)
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.5)  # a second signal would be seen here
        print("checkpoint written")
        sys.exit(130)
open("finished " + name, "a").write("once ")
"""
OURS = {"SEEDS", "EPISODES", "AGENTS", "WORLDS", "REGIMES", "NUM_SEEDS", "SEED", "NUM_STEPS", "EXP_NAME", "LOGDIR",
        "JOBS", "PYTHON"}  # fmt: skip


def _gnu_parallel() -> bool:
    if not shutil.which("parallel"):
        return False
    version = subprocess.run(["parallel", "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return version.stdout.startswith("GNU parallel")


# Programs that can start jobs on this machine; tests with the second one are slow.
STARTERS = ["parallel", "xargs"] if _gnu_parallel() else ["xargs"]


class Script:
    """A bash script with the fake interpreter. With xargs, `parallel` is another program."""

    def __init__(self, path: str, folder: Path, starter: str, extra_code: str = "", **variables: str):
        self.path, self.folder = ROOT / path, folder
        python = folder / "python"
        python.write_text(INTERPRETER.format(python=sys.executable) + extra_code)
        python.chmod(0o755)
        inherited_variables = {name: value for name, value in os.environ.items() if name not in OURS}
        self.environment = {**inherited_variables, "PYTHON": str(python), "HOME": str(folder), **variables}
        if starter == "xargs":
            other = folder / "bin" / "parallel"
            other.parent.mkdir(exist_ok=True)
            other.write_text("#!/bin/sh\nexit 0\n")
            other.chmod(0o755)
            self.environment["PATH"] = f"{other.parent}:{os.environ['PATH']}"

    def start(self, *flags: str, **variables: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["bash", str(self.path), *flags], cwd=self.folder, env=self.environment | variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def __call__(self, *flags: str, timeout: int = 90, **variables: str) -> tuple[int, str, str]:
        """Exit status, output and errors."""
        process = self.start(*flags, **variables)
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err

    def waiting(self, jobs: int, *flags: str, **variables: str) -> tuple["subprocess.Popen[str]", list[int]]:
        """The script and the process ids of its waiting jobs."""
        process = self.start(*flags, WAIT="yes", **variables)
        deadline = time.monotonic() + 90
        while len(job_files := list(self.folder.glob("waiting *"))) < jobs and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(job_files) == jobs
        return process, [int(path.read_text()) for path in job_files]

    def refuses(self, message: str, *flags: str, **variables: str) -> None:
        """The script ends with one line and status 2 and writes nothing."""
        code, out, err = self(*flags, **variables)
        assert (code, out) == (2, "") and message in err and err.count("\n") == 1
        assert [path.name for path in self.folder.iterdir() if path.name not in ("python", "bin")] == []

    def finished(self) -> dict[str, int]:
        """Number of times each job finished."""
        return {
            path.name.removeprefix("finished "): path.read_text().count("once")
            for path in self.folder.glob("finished *")
        }
