"""Shared parts of all benchmarks: one thread, CPU time, interleaved repeats, a table, JSON. Import it first.

A contender is a function that does a fixed amount of work and returns a measured number. To compare contenders fairly
on a machine whose speed varies, `interleave` calls them in turns, and ratios are taken within a round.
"""

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
    """One measured number. ``against`` says what it is compared with. ``target`` is a limit such as ``(">=", 5)``."""

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
        """Replace ``owner.method`` by a function that also adds the time of each call to ``name``."""
        original = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds[name] += time.process_time() - start

        setattr(owner, method, timed)

    def take(self) -> dict[str, float]:
        """Return the seconds by name since the last call, and start from zero."""
        elapsed, self.seconds = dict(self.seconds), defaultdict(float)
        return elapsed


class LightningClock(pl.Callback):
    """Measure how many CPU ``seconds`` and environment ``steps`` all epochs after the first take, and split the seconds
    into ``parts``: ``"own"`` are the module's training and validation steps, ``"lightning"`` is Lightning, and the
    other parts are callbacks. ``part_of(callback)`` is the name of the part that a callback belongs to.
    """

    def __init__(self, part_of: Callable[[pl.Callback], str]) -> None:
        self.part_of, self.meter = part_of, Meter()
        self.seconds, self.steps = 0.0, 0
        self.parts: dict[str, float] = {}

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        for step in ("training_step", "validation_step"):
            self.meter.wrap(module, step, "own")
        for callback in trainer.callbacks:  # type: ignore[attr-defined]  # the trainer's type lacks it
            if callback is not self:
                self.meter.wrap(callback, "on_train_epoch_end", self.part_of(callback))

    def on_train_epoch_start(self, trainer: pl.Trainer, module: Any) -> None:
        if trainer.current_epoch == 1:
            self.meter.take()
            self.steps = -int(module.env_steps.sum())  # `on_train_end` adds the numbers at the end
            self.seconds = -time.process_time()

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        self.seconds += time.process_time()
        self.steps += int(module.env_steps.sum())
        self.parts = self.meter.take()
        self.parts["lightning"] = self.seconds - sum(self.parts.values())


@dataclass(frozen=True)
class Block:
    """Timed work: a number of ``steps`` that took ``wall`` seconds, and ``cpu`` seconds of all threads."""

    steps: int
    wall: float
    cpu: float

    @property
    def rate(self) -> float:
        """Steps per second of wall-clock time."""
        return self.steps / self.wall


@dataclass(frozen=True)
class TorchSetup:
    """Number of threads and matrix precision of torch while a contender runs."""

    threads: int
    precision: str = "highest"

    @property
    def name(self) -> str:
        """Text such as ``2t``, or ``2t_medium`` for another precision than the highest."""
        return f"{self.threads}t" if self.precision == "highest" else f"{self.threads}t_{self.precision}"

    def time_block(self, work: Callable[[int], Any], unit_steps: int, count: int) -> Block:
        """Time ``work(count)``, which makes ``unit_steps`` steps ``count`` times."""
        configure_torch(self.threads, self.precision)
        wall, cpu = time.perf_counter(), time.process_time()
        work(count)
        return Block(unit_steps * count, time.perf_counter() - wall, time.process_time() - cpu)

    def contender(self, work: Callable[[int], Any], unit_steps: int, seconds: float) -> Callable[[], Block]:
        """Return a contender that times ``work(count)`` (`time_block`), with a count that takes about ``seconds``."""
        work(2)  # warm-up
        count, block = 1, self.time_block(work, unit_steps, 1)
        while block.wall < seconds / 4:
            count *= 2
            block = self.time_block(work, unit_steps, count)
        return partial(self.time_block, work, unit_steps, max(1, round(count * seconds / block.wall)))


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
    results: dict[str, list[T]] = {name: [] for name in contenders}
    names = list(contenders)
    for round_number in range(repeats + 1):
        names.reverse()
        for name in names:
            result = contenders[name]()
            if round_number > 0:
                results[name].append(result)
    return results


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Return the median over rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def ratio_interval(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, float, float]:
    """Return median, smallest and largest ratio of two costs over rounds. The true median lies between the extremes of
    n rounds with a probability of 1 - 2^(1 - n): 97 % for six."""
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def verdict(smallest: float, largest: float) -> str:
    """Return whether this project is faster, given the interval of a ratio of costs: another library's to ours."""
    if smallest > 1:
        return "faster"
    return "slower" if largest < 1 else "no clear difference"


def products(n: int, members: int, threads: Sequence[int], seconds: float, rounds: int) -> dict[str, Result]:
    """Measure the machine's float32 matrix products: two squares of side ``n``, and a layer of 200 units for
    ``members`` batches of 320. Blocks take about ``seconds``, ``rounds`` times."""
    import torch

    def multiply(a: torch.Tensor, b: torch.Tensor, count: int) -> None:
        for _ in range(count):
            torch.matmul(a, b)

    factors = {
        "square": (torch.randn(n, n), torch.randn(n, n)),
        "layer": (torch.randn(members, 320, 200), torch.randn(members, 200, 200)),
    }
    flop = {"square": 2 * n**3, "layer": 2 * members * 320 * 200 * 200}
    shapes = {"square": f"[{n},{n}] x [{n},{n}]", "layer": f"[{members},320,200] x [{members},200,200]"}
    contenders, descriptions = {}, {}
    for num_threads in threads:
        for kind, (a, b) in factors.items():
            key = f"products_{kind}_{num_threads}t"
            contenders[key] = TorchSetup(num_threads).contender(partial(multiply, a, b), flop[kind], seconds)
            descriptions[key] = f"float32, {shapes[kind]}, best"
    results = {}
    for key, blocks in interleave(contenders, rounds).items():
        results[key] = Result(max(block.rate for block in blocks) / 1e9, "GFLOP/s", descriptions[key])
    return results


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
    """Return three rows: the costs of the plain loop (``against``) and of ours (``work``), and the ratio, which should
    be at least ``least``. ``plain`` and ``ours`` have a cost in ``unit`` for each round."""
    return {
        f"{name}_plain": Result(statistics.median(plain), unit, against),
        name: Result(statistics.median(ours), unit, work),
        f"{name}_speedup": Result(median_ratio(plain, ours), "times", against, (">=", least)),
    }


def machine(timing: str | None = None) -> str:
    """Return date, machine, versions and method of ``timing`` (default: CPU time on torch's threads) as one line."""
    import torch

    return (
        f"{datetime.date.today()}: {os.cpu_count()} {platform.machine()} cores, load average {os.getloadavg()[0]:.1f}, "
        f"{platform.system()}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"{timing or f'{torch.get_num_threads()} thread; seconds are CPU time'}"
    )


def report(title: str, results: Mapping[str, Result], as_json: bool, timing: str | None = None) -> None:
    """Print the table (``timing`` as in `machine`) on stdout or, ``as_json``, on stderr, and the JSON on stdout."""
    out = sys.stderr if as_json else sys.stdout
    rows: list[tuple[str, ...]] = []
    data: dict[str, dict[str, Any]] = {}
    for name, result in results.items():
        value = f"{result.value:.4g}" if abs(result.value) < 100 else f"{result.value:,.0f}"
        rows.append((name, value, result.unit, result.verdict, result.against or ""))
        against = result.against
        if result.target is not None:
            against = f"{result.target[0]} {result.target[1]:g}: {against}"
        data[name] = {"value": result.value, "unit": result.unit, "against": against}
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"{title}\n{machine(timing)}", file=out)
    for name, value, unit, verdict, against in rows:
        line = f"{name:<{widths[0]}}  {value:>{widths[1]}} {unit:<{widths[2]}}  {verdict:<{widths[3]}}  {against}"
        print(line.rstrip(), file=out)
    if as_json:
        print(json.dumps(data, indent=1))
