"""Run the quick suite as other machines would: ``python tests/portability.py [CONDITION ...]``, or all conditions.

Prints a table, and under a row what failed. Exits with 1 after a failure, with 2 for an unknown condition.
"""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What makes a test file one about numbers: it compares them but for rounding, or to the bit.
_NUMERIC = re.compile(r"from rounding import|assert_close|allclose|torch\.equal|array_equal|same_numbers|same_runs")
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error)")


@dataclasses.dataclass(frozen=True)
class Condition:
    """How the tests are run. ``numeric``: only files about numbers; ``spaces``: in a copy of the checkout whose path
    has spaces, with a temporary folder of such a path."""

    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    numeric: bool = True
    spaces: bool = False
    umask: int = -1
    numba: bool = True


CONDITIONS = {
    "as it is": Condition(numeric=False),
    "ATEN_CPU_CAPABILITY=avx2": Condition({"ATEN_CPU_CAPABILITY": "avx2"}),
    "ATEN_CPU_CAPABILITY=default": Condition({"ATEN_CPU_CAPABILITY": "default"}),
    "MKL_CBWR=COMPATIBLE": Condition({"MKL_CBWR": "COMPATIBLE"}),
    # NumPy's products, for processors without AVX.
    "OPENBLAS_CORETYPE=Prescott": Condition({"OPENBLAS_CORETYPE": "Prescott"}),
    # Numba keeps machine code by the processor's name too, so this needs no cache folder of its own.
    "NUMBA_CPU_NAME=generic": Condition({"NUMBA_CPU_NAME": "generic"}),
    "without Numba": Condition(numba=False),
    "random order": Condition(),
    "paths with spaces": Condition(spaces=True),
    "LC_ALL=C": Condition({"LC_ALL": "C"}),
    "umask 077": Condition(umask=0o077),
}


def main(names: list[str]) -> int:
    if unknown := set(names) - set(CONDITIONS):
        print(f"condition is {min(unknown)!r}; allowed: {', '.join(CONDITIONS)}", file=sys.stderr)
        return 2
    status = 0
    print(f"{'condition':30} {'passed':>7} {'failed':>7} {'skipped':>7} {'seconds':>8}", flush=True)
    for name in names or CONDITIONS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="portability-") as folder:
            variables = dict(CONDITIONS[name].variables)
            if name == "random order":
                variables["TEST_ORDER"] = str(int.from_bytes(os.urandom(4)))
                name = f"TEST_ORDER={variables['TEST_ORDER']}"
                done = run(CONDITIONS["random order"], variables, Path(folder))
            else:
                done = run(CONDITIONS[name], variables, Path(folder))
        counts = {word: int(count) for count, word in _COUNTS.findall(done.stdout.splitlines()[-1])}
        failed = counts.get("failed", 0) + counts.get("error", 0)
        print(
            f"{name:30} {counts.get('passed', 0):7} {failed:7} {counts.get('skipped', 0):7} "
            f"{time.monotonic() - began:8.0f}",
            flush=True,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if done.returncode:
            status = 1
            print(*(lines or [f"exit status {done.returncode}", done.stdout[-2000:]]), sep="\n", flush=True)
    return status


def run(condition: Condition, variables: dict[str, str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """pytest in a process of its own; ``folder`` is empty, and takes what the condition needs on disk."""
    checkout = ROOT
    if condition.spaces:
        checkout, variables["TMPDIR"] = folder / "a check out", str(folder / "temporary files")
        copied(checkout)
        Path(variables["TMPDIR"]).mkdir()
    if not condition.numba:
        hidden = "import sys\nsys.modules['numba'] = None  # import numba fails\n"
        (folder / "sitecustomize.py").write_text(hidden)
        variables["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    numeric = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/test_*.py"))]
    numeric = [path for path in numeric if _NUMERIC.search((ROOT / path).read_text(encoding="utf-8"))]
    processes = ["-n", "auto", "--maxprocesses", "4"]
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE", "--disable-warnings", *processes]
    return subprocess.run(
        [*words, *(numeric if condition.numeric else [])],
        cwd=checkout, env=os.environ | variables, umask=condition.umask, text=True, encoding="utf-8", errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def copied(checkout: Path) -> None:
    """Copy the files that git knows or would add, and link the environment."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name)
    (checkout / ".venv").symlink_to(ROOT / ".venv")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
