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
from fuzzing.sandbox import Ended, call, complaints, shown

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
        self._made: dict[str, object] = {}

    def case(self, kind: str, number: int) -> list[Complaint]:
        """Try one case. Returns what is wrong, nothing where it held."""
        rng, scratch = random.Random(f"{self.seed} {kind} {number}"), self.folder / f"{kind}-{number}"
        scratch.mkdir(parents=True)
        self.draws = number % 8 == 0
        try:
            return list(getattr(self, kind)(rng, scratch))
        finally:
            _remove(scratch)

    def call(self, argv: list[str], folder: Path, **how: object) -> Ended:
        before = how.pop("before", ())
        ended = call(argv, folder, before=before if self.draws else (_blank, *before), **how)
        if self.echo:
            print(f"$ trainer.py {shown(argv)}\n{ended.out}{ended.err}-> {ended.status}", flush=True)
        return ended

    # -- the kinds -----------------------------------------------------------------------------------------------------

    def flags(self, rng: random.Random, scratch: Path) -> Iterator[Complaint]:
        argv, names = flag_lines.draw(rng, self.shelf())
        yield from self.one_line(argv, names, scratch)

    def files(self, rng: random.Random, scratch: Path) -> Iterator[Complaint]:
        folder = scratch / "read"
        folder.mkdir()
        argv, names, implementation = files.draw(rng, folder)
        (content,) = (path for path in folder.iterdir() if path.suffix != ".py")
        asked = f"{shown(argv)} with {content.read_bytes()[:300]!r}"
        read = self.call(argv, folder, parse_only=True, cpu=4, before=(_with_own_modules,))
        yield from ((asked, what) for what in complaints(read, names))
        if (
            read.accepted
            and read.out.endswith("READY\n")
            and not self.quick
            and ("--use_tune" in argv or rng.random() < 0.2)
        ):
            _with_torch()
            argv = flag_lines.shortened(argv, implementation)
            done = self.call(argv, folder, before=(_with_own_modules, _without_ray))
            yield from ((asked, what) for what in complaints(done, names))
        if (folder / "EXECUTED").exists():
            yield asked, "the file had code executed"

    def checkpoints(self, rng: random.Random, scratch: Path) -> Iterator[Complaint]:
        from fuzzing import checkpoints

        name = "UDRL" if self.quick else rng.choice([*checkpoints.RUNS])
        how, data, sealed = checkpoints.draw(rng, self.run_of(name).last)
        for mode in ("eval_agent", "resume") if self.quick or name == "SE" else ("eval_agent", "reload", "resume"):
            yield from self.as_sound(f"{how} of {name}", name, mode, data, sealed, scratch / mode)

    def as_sound(self, what: str, name: str, mode: str, data: bytes, sealed: bool, folder: Path) -> Iterator[Complaint]:
        """A checkpoint with that content is refused, and nothing changed, or accepted; ``sealed``, with the numbers of
        the sound one."""
        run = self.run_of(name)
        argv = run.prepare(folder, mode, data)
        before = _contents(folder)
        ended = self.call(argv, folder, before=(_with_own_modules,))
        asked = f"{what}: {shown(argv)}"
        yield from ((asked, each) for each in complaints(ended, ["checkpoint", "damaged.ckpt", "last.ckpt"]))
        if (folder / "EXECUTED").exists():
            yield asked, "the file had code executed"
        if ended.interrupted and sealed:
            yield asked, "took longer than the sound one"
        elif ended.accepted and sealed:
            different = run.different(mode, ended, folder)
            yield from ((asked, f"accepted, but other numbers: {each}") for each in different[:1])
        elif sealed and ended.status == 2 and _contents(folder) != before:
            changed = {path for path, _ in _contents(folder).items() ^ before.items()}
            yield asked, f"refused, but changed {sorted(changed)[:3]}"

    def proxies(self, rng: random.Random, scratch: Path) -> Iterator[Complaint]:
        from fuzzing import stand_ins

        file = self.proxy_of(rng.choice(["mdp", "bandit", "reward"]))
        how, data, sealed = stand_ins.draw(rng, file.data, file.header, file.tensors)
        argv, folder = file.prepare(scratch / "run", data), scratch / "run"
        before = _contents(folder)
        ended = self.call(argv, folder, before=(_with_own_modules,))
        asked = f"{how}: {shown(argv)} with {data[8:300]!r}"
        yield from ((asked, each) for each in complaints(ended, ["proxy", "gamename", "module"]))
        if _contents(folder) != before:
            yield asked, f"changed {_contents(folder).keys() - before.keys()}"
        if ended.accepted and sealed and (different := file.different(ended)):
            yield asked, f"accepted, but other numbers: {different}"

    def environments(self, rng: random.Random, scratch: Path) -> Iterator[Complaint]:
        from fuzzing import environments

        _with_torch()
        folder = scratch / "run"
        folder.mkdir()
        fault, argv = environments.draw(rng, folder)
        ended = self.call(argv, folder, before=(_for_environments,), wall=30 if "sleep" in fault else 90)
        names = ["faulty", "environment", "module", "time_limit", "num_workers", "record"]
        yield from ((f"{fault}: {shown(argv)}", each) for each in complaints(ended, names))

    def proxy_of(self, kind: str) -> "SoundProxy":
        if kind not in self._made:
            _with_torch()
            from fuzzing.sound import SoundProxy

            self._made[kind] = SoundProxy(kind, self.folder / "sound" / kind, self.call, searched=not self.quick)
        return self._made[kind]

    def run_of(self, name: str) -> "SoundRun":
        if name not in self._made:
            _with_torch()
            from fuzzing.sound import SoundRun

            self._made[name] = SoundRun(name, self.folder / "sound" / name.replace(" ", "-"), self.call)
        return self._made[name]

    def one_line(self, argv: list[str], names: list[str], scratch: Path) -> Iterator[Complaint]:
        """A line is read; what it then starts is made short."""
        before = _listing(self.stock)
        read = self.call(argv, scratch / "read", parse_only=True, cpu=4)
        yield from ((shown(argv), what) for what in complaints(read, [*names, *argv, "checkpoint"] if names else ()))
        if read.accepted and read.out.endswith("READY\n") and not self.quick:
            _with_torch()
            argv = flag_lines.shortened(argv, _given(argv, "implementation", "UDRL"))
            done = self.call(argv, scratch / "run", before=(_without_ray,))
            known = [
                word.removeprefix("--") for word in [*names, *argv, "module", "checkpoint", "search_space"] if word
            ]
            yield from ((shown(argv), what) for what in complaints(done, known if names else ()))
        if _listing(self.stock) != before:
            yield shown(argv), "changed a file that was there"
            _remove(self.stock)
            self._made.pop("shelf")

    # -- what cases start from -----------------------------------------------------------------------------------------

    def shelf(self) -> Path:
        """A folder of things that paths may name."""
        if "shelf" not in self._made:
            self._made["shelf"] = self.stock
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


def _given(argv: list[str], name: str, default: str) -> str:
    for word, after in zip(argv, [*argv, ""][1:], strict=True):
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
        if word == f"--{name}":
            return after
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
    for name in [name for name, own in implementations().items() if own.learns_from != "evolution"]:
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
    found = [(str(path), path.lstat()) for path in sorted(folder.rglob("*"))] if folder.exists() else []
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found if not name.endswith((".lock", "version_0"))]


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


HEAD = f"{'kind':<14}{'cases':>7}{'held':>7}"


def row(kind: str, cases: int, found: list[str]) -> str:
    """A line of the table below `HEAD`."""
    return f"{kind:<14}{cases:>7}{cases - len({line.partition(':')[0] for line in found}):>7}"


def say(line: str) -> None:
    print(line, flush=True)


def run(kind: str, numbers: range, fuzzer: Fuzzer, say: Callable[[str], None] = lambda line: None) -> list[str]:
    """The complaints about those cases, one line each. ``say`` is told of them, and every half a minute how far it
    is."""
    found: list[str] = []
    started = told = time.monotonic()
    for done, number in enumerate(numbers, 1):
        for asked, what in fuzzer.case(kind, number):
            found.append(f"{kind} {number}: {what} | {asked}")
            say(found[-1])
        if time.monotonic() - told > 30:
            told = time.monotonic()
            say(f"{kind}: {done} of {len(numbers)} cases, {len(found)} complaints, {told - started:.0f} s")
    return found


def main(words: list[str]) -> int:
    seed, rows, failed = int(os.environ.get("FUZZ_SEED", 0)), [], False
    first, colon, last = next((word for word in words if word[0].isdigit()), "").partition(":")
    for kind in [word for word in words if word in CASES] or CASES:
        count = int(os.environ.get("FUZZ_CASES", CASES[kind]))
        cases = range(int(first), int(last) if colon else int(first) + 1) if first else range(count)
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            found = run(kind, cases, Fuzzer(Path(folder), seed, echo=len(cases) == 1), say)
        rows.append(row(kind, len(cases), found))
        failed = failed or bool(found)
    print(HEAD, *rows, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
