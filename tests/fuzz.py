#!/usr/bin/env python
"""Seeded fuzzing: thousands of command lines, files and environments that are wrong in every way, each of which must
end with status 0, 2 or 130, one line about what is wrong, and no number that is silently another one.

    python tests/fuzz.py                    # everything: hours
    python tests/fuzz.py flags files        # some kinds
    python tests/fuzz.py flags 100:200      # some cases
    python tests/fuzz.py checkpoints 17     # one case, with what it printed

FUZZ_SEED chooses other cases (0), FUZZ_CASES how many of each kind. A case is a function of seed, kind and number.
"""

import hashlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # before the package, which imports the project
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

from fuzzing import files, flag_lines
from fuzzing.sandbox import Ended, call, complaints, shell_command

if TYPE_CHECKING:
    from fuzzing.sound import SoundProxy, SoundRun

CASES = {"flags": 5000, "files": 2000, "checkpoints": 500, "proxies": 500, "environments": 100}
Complaint = tuple[str, str]
"""What was asked and what is wrong with how it ended."""


class Fuzzer:
    """Cases of one kind after another in a folder of their own. ``echo`` prints what each call printed. ``quick`` does
    less in a case: runs are not started, and only one checkpoint is damaged."""

    def __init__(self, folder: Path, seed: int = 0, echo: bool = False, quick: bool = False):
        _without_torch()
        self.folder, self.seed, self.echo, self.quick, self.draws = folder, seed, echo, quick, True
        self.stock = folder / "stock"
        self._cache: dict[str, object] = {}

    def case(self, kind: str, number: int) -> list[Complaint]:
        """Try one case. Returns what is wrong, nothing where it held."""
        rng, scratch = random.Random(f"{self.seed} {kind} {number}"), self.folder / f"{kind}-{number}"
        scratch.mkdir(parents=True)
        self.draws = number % 8 == 0
        try:
            return list(getattr(self, kind)(rng, scratch))
        finally:
            _remove(scratch)

    def call(self, argv: list[str], folder: Path, **kwargs: object) -> Ended:
        setup_hooks = kwargs.pop("setup_hooks", ())
        result = call(argv, folder, setup_hooks=setup_hooks if self.draws else (_blank, *setup_hooks), **kwargs)
        if self.echo:
            print(f"$ trainer.py {shell_command(argv)}\n{result.out}{result.err}-> {result.status}", flush=True)
        return result

    # -- the kinds -----------------------------------------------------------------------------------------------------

    def flags(self, rng: random.Random, scratch: Path) -> Iterator[Complaint]:
        argv, names = flag_lines.draw(rng, self.shelf())
        yield from self.one_line(argv, names, scratch)

    def files(self, rng: random.Random, scratch: Path) -> Iterator[Complaint]:
        folder = scratch / "read"
        folder.mkdir()
        argv, names, implementation = files.draw(rng, folder)
        (content,) = (path for path in folder.iterdir() if path.suffix != ".py")
        request = f"{shell_command(argv)} with {content.read_bytes()[:300]!r}"
        read = self.call(argv, folder, parse_only=True, cpu=4, setup_hooks=(_with_own_modules,))
        yield from ((request, complaint) for complaint in complaints(read, names))
        if (
            read.accepted
            and read.out.endswith("READY\n")
            and not self.quick
            and ("--use_tune" in argv or rng.random() < 0.2)
        ):
            _with_torch()
            argv = flag_lines.shortened(argv, implementation)
            done = self.call(argv, folder, setup_hooks=(_with_own_modules, _without_ray))
            yield from ((request, complaint) for complaint in complaints(done, names))
        if (folder / "EXECUTED").exists():
            yield request, "the file had code executed"

    def checkpoints(self, rng: random.Random, scratch: Path) -> Iterator[Complaint]:
        from fuzzing import checkpoints

        name = "UDRL" if self.quick else rng.choice([*checkpoints.RUNS])
        change, data, sealed = checkpoints.draw(rng, self.run_of(name).last)
        for mode in ("eval_agent", "resume") if self.quick or name == "SE" else ("eval_agent", "reload", "resume"):
            yield from self.as_sound(f"{change} of {name}", name, mode, data, sealed, scratch / mode)

    def as_sound(
        self, description: str, name: str, mode: str, data: bytes, sealed: bool, folder: Path
    ) -> Iterator[Complaint]:
        """A checkpoint with that content is refused, and nothing changed, or accepted; ``sealed``, with the numbers of
        the sound one."""
        run = self.run_of(name)
        argv = run.prepare(folder, mode, data)
        old_contents = _contents(folder)
        result = self.call(argv, folder, setup_hooks=(_with_own_modules,))
        request = f"{description}: {shell_command(argv)}"
        yield from (
            (request, complaint) for complaint in complaints(result, ["checkpoint", "damaged.ckpt", "last.ckpt"])
        )
        if (folder / "EXECUTED").exists():
            yield request, "the file had code executed"
        if result.interrupted and sealed:
            yield request, "took longer than the sound one"
        elif result.accepted and sealed:
            different = run.different(mode, result, folder)
            yield from ((request, f"accepted, but other numbers: {complaint}") for complaint in different[:1])
        elif sealed and result.status == 2 and _contents(folder) != old_contents:
            changed = {path for path, _ in _contents(folder).items() ^ old_contents.items()}
            yield request, f"refused, but changed {sorted(changed)[:3]}"

    def proxies(self, rng: random.Random, scratch: Path) -> Iterator[Complaint]:
        from fuzzing import stand_ins

        file = self.proxy_of(rng.choice(["mdp", "bandit", "reward"]))
        change, data, sealed = stand_ins.draw(rng, file.data, file.header, file.tensors)
        argv, folder = file.prepare(scratch / "run", data), scratch / "run"
        old_contents = _contents(folder)
        result = self.call(argv, folder, setup_hooks=(_with_own_modules,))
        request = f"{change}: {shell_command(argv)} with {data[8:300]!r}"
        yield from ((request, complaint) for complaint in complaints(result, ["proxy", "gamename", "module"]))
        if _contents(folder) != old_contents:
            yield request, f"changed {_contents(folder).keys() - old_contents.keys()}"
        if result.accepted and sealed and (different := file.different(result)):
            yield request, f"accepted, but other numbers: {different}"

    def environments(self, rng: random.Random, scratch: Path) -> Iterator[Complaint]:
        from fuzzing import environments

        _with_torch()
        folder = scratch / "run"
        folder.mkdir()
        fault, argv = environments.draw(rng, folder)
        result = self.call(argv, folder, setup_hooks=(_for_environments,), wall=30 if "sleep" in fault else 90)
        names = ["faulty", "environment", "module", "time_limit", "num_workers", "record"]
        yield from ((f"{fault}: {shell_command(argv)}", complaint) for complaint in complaints(result, names))

    def proxy_of(self, kind: str) -> "SoundProxy":
        if kind not in self._cache:
            _with_torch()
            from fuzzing.sound import SoundProxy

            self._cache[kind] = SoundProxy(kind, self.folder / "sound" / kind, self.call, searched=not self.quick)
        return self._cache[kind]

    def run_of(self, name: str) -> "SoundRun":
        if name not in self._cache:
            _with_torch()
            from fuzzing.sound import SoundRun

            self._cache[name] = SoundRun(name, self.folder / "sound" / name.replace(" ", "-"), self.call)
        return self._cache[name]

    def one_line(self, argv: list[str], names: list[str], scratch: Path) -> Iterator[Complaint]:
        """A line is read; what it then starts is made short."""
        old_listing = _listing(self.stock)
        read = self.call(argv, scratch / "read", parse_only=True, cpu=4)
        yield from (
            (shell_command(argv), complaint)
            for complaint in complaints(read, [*names, *argv, "checkpoint"] if names else ())
        )
        if read.accepted and read.out.endswith("READY\n") and not self.quick:
            _with_torch()
            argv = flag_lines.shortened(argv, _flag_value(argv, "implementation", "UDRL"))
            done = self.call(argv, scratch / "run", setup_hooks=(_without_ray,))
            setting_names = [
                word.removeprefix("--") for word in [*names, *argv, "module", "checkpoint", "search_space"] if word
            ]
            yield from (
                (shell_command(argv), complaint) for complaint in complaints(done, setting_names if names else ())
            )
        if _listing(self.stock) != old_listing:
            yield shell_command(argv), "changed a file that was there"
            _remove(self.stock)
            self._cache.pop("shelf")

    # -- what cases start from -----------------------------------------------------------------------------------------

    def shelf(self) -> Path:
        """A folder of things that paths may name."""
        if "shelf" not in self._cache:
            self._cache["shelf"] = self.stock
            (self.stock / "folder" / "version_0").mkdir(parents=True)
            for name, content in SHELF.items():
                (self.stock / name).write_bytes(content)
            (self.stock / "dangling").symlink_to("nowhere")
            (self.stock / "round").symlink_to("round")
        return self.stock


SHELF = {
    "empty": b"", "text.yaml": b"lr: 0.01\n", "text.json": b'{"lr": 0.01}', "list.yaml": b"- 1\n",
    "bytes": b"\xff\xfe\x00",
    "bytes.yaml": b"\xff\xfe\x00", "empty.ckpt": b"", "zip.ckpt": b"PK\x03\x04", "empty.safetensors": b"",
    "bytes.safetensors": b"\xff" * 64, "space.yaml": b"lr: {uniform: [0.1, 0.2]}\n",
    "metrics.csv": b"epoch,env_steps,seed\n",
}  # fmt: skip


def _contents(folder: Path) -> dict[str, str]:
    """What every file holds, apart from locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _flag_value(argv: list[str], name: str, default: str) -> str:
    for word, next_word in zip(argv, [*argv, ""][1:], strict=True):
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
        if word == f"--{name}":
            return next_word
    return default


def _with_torch() -> None:
    """All that a run imports, once for all forks."""
    import matplotlib.backends.backend_agg  # noqa: F401
    import PIL.Image
    import tensorboard.plugins.hparams.api_pb2  # noqa: F401

    import control.commands.evaluate
    import control.commands.tune  # noqa: F401
    import envs.cartpole
    import envs.procmaze
    import envs.synthetic  # noqa: F401
    from models.registry import agent_class, implementations

    PIL.Image.preinit()
    for name in [
        name
        for name, implementation_family in implementations().items()
        if implementation_family.learns_from != "evolution"
    ]:
        agent_class(name)


def _without_torch() -> None:
    """What reading a line or a file imports and caches."""
    import yaml  # noqa: F401

    import envs.registration  # noqa: F401
    from control.cli.parse import parse
    from models.registry import implementations

    for name in implementations():
        parse(["--implementation", name, *(["--gamename", "cartpole"] if name == "SE" else [])])


def _blank() -> None:
    """Drawing would take most of the time of a short run."""
    if "matplotlib.figure" in sys.modules:
        sys.modules["matplotlib.figure"].Figure.draw = lambda self, renderer: None  # type: ignore[attr-defined]


def _with_own_modules() -> None:
    sys.path.insert(0, os.getcwd())


def _for_environments() -> None:
    """What imports the module by its name, workers included."""
    _with_own_modules()
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), *sys.path])


def _without_ray() -> None:
    """Searches end where Ray would start, which takes ten seconds."""
    sys.modules["ray"] = None  # type: ignore[assignment]


def _listing(folder: Path) -> list[tuple[str, int, int]]:
    entries = [(str(path), path.lstat()) for path in sorted(folder.rglob("*"))] if folder.exists() else []
    return [
        (name, stat.st_size, stat.st_mtime_ns) for name, stat in entries if not name.endswith((".lock", "version_0"))
    ]


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


HEAD = f"{'kind':<14}{'cases':>7}{'held':>7}"


def row(kind: str, cases: int, complaint_lines: list[str]) -> str:
    """A line of the table below `HEAD`."""
    return f"{kind:<14}{cases:>7}{cases - len({line.partition(':')[0] for line in complaint_lines}):>7}"


def say(line: str) -> None:
    print(line, flush=True)


def run(kind: str, numbers: range, fuzzer: Fuzzer, say: Callable[[str], None] = lambda line: None) -> list[str]:
    """The complaints about those cases, one line each. ``say`` is told of them, and every half a minute how far it
    is."""
    complaint_lines: list[str] = []
    started = last_report = time.monotonic()
    for done, number in enumerate(numbers, 1):
        for request, complaint in fuzzer.case(kind, number):
            complaint_lines.append(f"{kind} {number}: {complaint} | {request}")
            say(complaint_lines[-1])
        if time.monotonic() - last_report > 30:
            last_report = time.monotonic()
            say(
                f"{kind}: {done} of {len(numbers)} cases, {len(complaint_lines)} complaints, "
                f"{last_report - started:.0f} s"
            )
    return complaint_lines


def main(words: list[str]) -> int:
    seed, rows, failed = int(os.environ.get("FUZZ_SEED", 0)), [], False
    first, colon, last = next((word for word in words if word[0].isdigit()), "").partition(":")
    for kind in [word for word in words if word in CASES] or CASES:
        count = int(os.environ.get("FUZZ_CASES", CASES[kind]))
        cases = range(int(first), int(last) if colon else int(first) + 1) if first else range(count)
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            complaint_lines = run(kind, cases, Fuzzer(Path(folder), seed, echo=len(cases) == 1), say)
        rows.append(row(kind, len(cases), complaint_lines))
        failed = failed or bool(complaint_lines)
    print(HEAD, *rows, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
