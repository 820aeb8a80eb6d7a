"""Shared parts of all benchmarks: one thread, CPU time, interleaved repeats, a table, JSON. Import it first."""

import argparse
import contextlib
import datetime
import functools
import importlib.util
import json
import operator
import os
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

# ruff: noqa: E402  # these lines must precede the imports of torch and of the project
os.environ["OMP_NUM_THREADS"] = "1"
ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import pytorch_lightning as pl

from control.cli.settings import RunConfig
from control.loops.process import configure_process, configure_torch

T = TypeVar("T")
S = TypeVar("S")
_HOLDS = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True)
class Result:
    """One measured number. ``against`` names the comparison or the setup, ``target`` is a limit like ``(">=", 5)``."""

    value: float
    unit: str
    against: str | None = None
    target: tuple[str, float] | None = None

    @property
    def verdict(self) -> str:
        """Whether the value meets the target, in words; empty if there is no target."""
        if self.target is None:
            return ""
        sign, limit = self.target
        return f"{'met' if _HOLDS[sign](self.value, limit) else 'not met'}: {sign} {limit:g}"


@dataclass
class Meter:
    """CPU seconds (all threads of this process) spent in wrapped methods, by name. Nested calls count twice."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def wrap(self, owner: Any, method: str, name: str) -> None:
        """Wrap ``owner.method`` so that the time of each call is added to ``name``."""
        inner = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return inner(*args, **kwargs)
            finally:
                self.seconds[name] += time.process_time() - start

        setattr(owner, method, timed)

    def take(self) -> dict[str, float]:
        """Return the seconds by name since the last call, and start from zero."""
        elapsed, self.seconds = dict(self.seconds), defaultdict(float)
        return elapsed


class LightningClock(pl.Callback):
    """Measure CPU ``seconds`` and environment ``steps`` of all epochs after the first, and split the seconds into
    ``parts``.

    ``parts["own"]`` is the module's training and validation steps, ``parts["lightning"]`` the rest. ``name`` maps every
    other callback to the part that its ``on_train_epoch_end`` counts under.
    """

    def __init__(self, name: Callable[[pl.Callback], str]) -> None:
        self.name, self.meter = name, Meter()
        self.seconds, self.steps = 0.0, 0
        self.parts: dict[str, float] = {}

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        for step in ("training_step", "validation_step"):
            self.meter.wrap(module, step, "own")
        for callback in trainer.callbacks:  # type: ignore[attr-defined]  # the trainer's type lacks it
            if callback is not self:
                self.meter.wrap(callback, "on_train_epoch_end", self.name(callback))

    def on_train_epoch_start(self, trainer: pl.Trainer, module: Any) -> None:
        if trainer.current_epoch == 1:
            self.meter.take()
            self.steps = -int(module.env_steps.sum())
            self.seconds = -time.process_time()

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        self.seconds += time.process_time()
        self.steps += int(module.env_steps.sum())
        self.parts = self.meter.take()
        self.parts["lightning"] = self.seconds - sum(self.parts.values())


@dataclass(frozen=True)
class Block:
    """``steps`` of any kind that took ``wall`` seconds and ``cpu`` seconds (of all threads)."""

    steps: int
    wall: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.steps / self.wall


@dataclass(frozen=True)
class Way:
    """Number of threads and matrix precision of torch while a contender runs."""

    threads: int
    precision: str = "highest"

    @property
    def name(self) -> str:
        return f"{self.threads}t" + (f"_{self.precision}" if self.precision != "highest" else "")

    def block(self, work: Callable[[int], Any], unit_steps: int, count: int) -> Block:
        """Time ``work(count)``, which makes ``unit_steps`` steps ``count`` times."""
        configure_torch(self.threads, self.precision)
        wall, cpu = time.perf_counter(), time.process_time()
        work(count)
        return Block(unit_steps * count, time.perf_counter() - wall, time.process_time() - cpu)

    def contender(self, work: Callable[[int], Any], unit_steps: int, seconds: float) -> Callable[[], Block]:
        """Return a function that times a block of about ``seconds``. First warm ``work`` up and calibrate its count."""
        work(2)
        count, block = 1, self.block(work, unit_steps, 1)
        while block.wall < seconds / 4:
            count *= 2
            block = self.block(work, unit_steps, count)
        return partial(self.block, work, unit_steps, max(1, round(count * seconds / block.wall)))


def bf16_units() -> list[str]:
    """Return the processor's flags for bfloat16 products, as in /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    flags = set(path.read_text(encoding="ascii", errors="replace").split()) if path.exists() else set()
    return sorted({"avx512_bf16", "amx_bf16"} & flags)


def cpu_seconds(work: Callable[[], Any]) -> float:
    """Return the CPU seconds of one call, over all threads of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def interleave(contenders: Mapping[str, Callable[[], T]], repeats: int) -> dict[str, list[T]]:
    """Call every contender in ``repeats`` rounds and return the results by name. A first round is discarded.

    The order reverses every round, so that a machine that slows down affects all contenders.
    """
    gathered: dict[str, list[T]] = {name: [] for name in contenders}
    for round_ in range(repeats + 1):
        for name in list(contenders)[:: 1 if round_ % 2 else -1]:
            outcome = contenders[name]()
            if round_:
                gathered[name].append(outcome)
    return gathered


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Return the median over rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def ratio_interval(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, float, float]:
    """Return median, least and largest ratio over rounds. The true median lies between the extremes of n rounds with a
    probability of 1 - 2^(1 - n): 97 % for six."""
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def verdict(least: float, largest: float) -> str:
    """Return in words what an interval of a ratio of costs, theirs to ours, says of this project."""
    return "faster" if least > 1 else "slower" if largest < 1 else "no clear difference"


def products(n: int, members: int, threads: Sequence[int], seconds: float, rounds: int) -> dict[str, Result]:
    """Measure the machine's float32 matrix products: two squares of side ``n``, and a layer of 200 units for
    ``members`` batches of 320. Blocks take about ``seconds``, ``rounds`` times."""
    import torch

    layer = (torch.randn(members, 320, 200), torch.randn(members, 200, 200))
    pairs = {"square": (torch.randn(n, n), torch.randn(n, n)), "layer": layer}
    flop = {"square": 2 * n**3, "layer": 2 * members * 320 * 200 * 200}
    shapes = {"square": f"[{n},{n}] x [{n},{n}]", "layer": f"[{members},320,200] x [{members},200,200]"}

    def multiply(kind: str, count: int) -> None:
        a, b = pairs[kind]
        for _ in range(count):
            torch.matmul(a, b)

    contenders = {
        f"products_{kind}_{thread_count}t": Way(thread_count).contender(partial(multiply, kind), flop[kind], seconds)
        for thread_count in threads
        for kind in pairs
    }
    blocks = interleave(contenders, rounds)
    return {
        key: Result(
            max(block.rate for block in case_blocks) / 1e9, "GFLOP/s", f"float32, {shapes[key.split('_')[1]]}, best"
        )
        for key, case_blocks in blocks.items()
    }


def parser(description: str) -> argparse.ArgumentParser:
    """Return an argument parser with ``--json`` and ``--quick``."""
    flags = argparse.ArgumentParser(description=description, allow_abbrev=False)
    flags.add_argument("--json", action="store_true", help="one JSON object on stdout; the table goes to stderr")
    flags.add_argument("--quick", action="store_true", help="shows that it runs; its numbers mean nothing")
    return flags


@functools.cache
def has_baseline() -> bool:
    """Return whether stable-baselines3 is installed; at the first call, print a line if it is not."""
    found = importlib.util.find_spec("stable_baselines3") is not None
    if not found:
        print("stable-baselines3 is not installed (extra `bench`); its rows and the ratios are left out")
    return found


def run(title: str, description: str, parts: Sequence[Callable[[S], dict[str, Result]]], full: S, quick: S) -> None:
    """Run the command of a benchmark: call all ``parts`` with the amount of work, ``quick`` with ``--quick``, on one
    thread, and report their rows. ``description`` begins with the help. What is printed meanwhile goes to stderr."""
    options = parser(description.splitlines()[0]).parse_args()
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the results alone
        results = measure(parts, quick if options.quick else full)
    report(title, results, options.json)


def measure(parts: Sequence[Callable[[S], dict[str, Result]]], size: S) -> dict[str, Result]:
    """Return the rows of all ``parts`` on one thread."""
    import torch

    configure_process(RunConfig())
    torch.manual_seed(0)
    results: dict[str, Result] = {}
    for part in parts:
        results |= part(size)
    return results


def speedup(
    name: str, plain: Sequence[float], ours: Sequence[float], unit: str, against: str, work: str, least: float
) -> dict[str, Result]:
    """Return three rows: seconds of the plain loop, of ours, and the ratio, which is to be ``least`` at least."""
    return {
        f"{name}_plain": Result(statistics.median(plain), unit, against),
        name: Result(statistics.median(ours), unit, work),
        f"{name}_speedup": Result(median_ratio(plain, ours), "times", against, (">=", least)),
    }


def machine(timing: str | None = None) -> str:
    """Return date, machine and versions as one line, with the method of timing. ``timing`` replaces the default method,
    CPU time on torch's threads."""
    import torch

    return (
        f"{datetime.date.today()}: {os.cpu_count()} {platform.machine()} cores, load average {os.getloadavg()[0]:.1f}, "
        f"{platform.system()}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"{timing or f'{torch.get_num_threads()} thread; seconds are CPU time'}"
    )


def report(title: str, results: Mapping[str, Result], as_json: bool, timing: str | None = None) -> None:
    """Print the table on stdout; with ``as_json`` the table on stderr and ``{name: {value, unit, against}}`` on stdout.
    ``timing`` is as in `machine`."""
    out = sys.stderr if as_json else sys.stdout
    rows = [
        (name, f"{r.value:.4g}" if abs(r.value) < 100 else f"{r.value:,.0f}", r.unit, r.verdict, r.against or "")
        for name, r in results.items()
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    print(f"{title}\n{machine(timing)}", file=out)
    for name, value, unit, verdict, against in rows:
        line = f"{name:<{widths[0]}}  {value:>{widths[1]}} {unit:<{widths[2]}}  {verdict:<{widths[3]}}  {against}"
        print(line.rstrip(), file=out)
    if as_json:
        plain = {name: {"value": r.value, "unit": r.unit, "against": _against(r)} for name, r in results.items()}
        print(json.dumps(plain, indent=1))


def _against(result: Result) -> str | None:
    """Return the comparison in words, with the target in front."""
    if result.target is None:
        return result.against
    return f"{result.target[0]} {result.target[1]:g}: {result.against}"
