"""Calls of the command in a forked process with limits of time, memory and file access. Linux or macOS."""

import contextlib
import faulthandler
import math
import os
import re
import resource
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

GIB = 2**30
MEMORY = 4 * GIB  # in addition to the memory at the fork
LONGEST = 640  # characters in a line of error
CTRL_C_AGAIN = 3  # CPU seconds after the first
GRACE = 12  # CPU seconds to end after the second
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass
class Ended:
    """Result of a call: exit status (negative after a signal), output, and paths outside its folder that it tried to
    change."""

    argv: list[str]
    status: int
    out: str
    err: str
    strayed: list[str] = field(default_factory=list)
    interrupted: bool = False  # by the time limit
    parse_only: bool = False

    @property
    def accepted(self) -> bool:
        return self.status in (0, 1)  # 1 is the verdict that agents learned nothing


def call(
    argv: Sequence[str], folder: Path, *, cpu: float = 8, wall: float = 90, parse_only: bool = False,
    setup_hooks: Sequence[Callable[[], None]] = (),
) -> Ended:  # fmt: skip
    """Call ``trainer.main(argv)`` in ``folder``. After ``cpu`` seconds of CPU time or ``wall`` seconds the process gets
    two Ctrl-C, then SIGKILL. With ``parse_only`` it only reads the flags. ``setup_hooks`` run in the new process."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {name: folder.parent / f"{folder.name}.{name}" for name in ("out", "err", "strayed")}
    for path in names.values():
        path.write_bytes(b"")
    pid = os.fork()
    if not pid:
        _child(list(argv), folder, names, cpu, parse_only, setup_hooks)
    status, interrupted = _wait(pid, wall)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # remaining children
    out, err, event_text = (path.read_bytes().decode(errors="replace") for path in names.values())
    lines = event_text.splitlines()
    for path in names.values():
        path.unlink()
    return Ended(
        list(argv), status, out, err,
        [line[2:] for line in lines if line.startswith("w ")], interrupted or "c" in lines, parse_only,
    )  # fmt: skip


def _wait(pid: int, wall: float) -> tuple[int, bool]:
    """The status of a child, and whether it exceeded the time limit."""
    started, pause = time.monotonic(), 0.0005
    signals = [(wall, signal.SIGINT), (wall + 5, signal.SIGINT), (wall + 20, signal.SIGKILL)]
    while True:
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
        if ended_pid:
            return os.waitstatus_to_exitcode(status), len(signals) < 3
        if signals and time.monotonic() - started > signals[0][0]:
            os.kill(pid, signals.pop(0)[1])
        time.sleep(pause)
        pause = min(0.02, pause * 1.3)


def _child(argv, folder, names, cpu, parse_only, setup_hooks) -> None:
    status = 1
    try:
        os.setsid()
        faulthandler.disable()  # pytest's
        for name, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(names[name], os.O_WRONLY | os.O_APPEND), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin = open(0)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
        event_fd = os.open(names["strayed"], os.O_WRONLY | os.O_APPEND)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(folder)
        _limit(cpu, event_fd)
        _watch(folder.resolve(), event_fd)
        for prepare in setup_hooks:
            prepare()
        status = _main(argv, parse_only)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(status & 0xFF)


def _main(argv: list[str], parse_only: bool) -> int:
    import trainer

    if parse_only:
        trainer.run = lambda settings: print("READY") or 0
    return trainer.main(argv)


def _limit(cpu: float, event_fd: int) -> None:
    def on_timeout(*_: object) -> None:
        os.write(event_fd, b"c\n")
        os.kill(os.getpid(), signal.SIGINT)
        signal.setitimer(signal.ITIMER_PROF, CTRL_C_AGAIN if next(repeats) else 0)

    repeats = iter([True, False])
    signal.signal(signal.SIGPROF, on_timeout)
    signal.setitimer(signal.ITIMER_PROF, cpu)
    hard = math.ceil(cpu + CTRL_C_AGAIN + GRACE)
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard + 2))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (GIB, GIB))
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))


_CHANGES = {"os.mkdir": 0, "os.remove": 0, "os.rmdir": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1,
            "os.truncate": 0, "os.chmod": 0, "shutil.rmtree": 0}  # fmt: skip
_FREE = ("/dev/", "/proc/self/", "/proc/thread-self/")
# Caches of Python, libraries and machine code.
_KEPT = re.compile(r"__pycache__|/matplotlib(/|$)|\.pyc\b|/tmp/(pymp-|torch|ray-)|/understudy/[0-9a-f]{16}(/|$)")


def _watch(folder: Path, event_fd: int) -> None:
    """Record and forbid changes outside ``folder``."""
    root, writing = os.fspath(folder), os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    def strays(path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        real = os.path.realpath(os.fsdecode(path))
        return not (real == root or real.startswith((root + "/", *_FREE)) or _KEPT.search(real))

    def hook(event: str, args: tuple) -> None:
        if event == "open":
            path, mode, open_flags = args
            changes = (open_flags or 0) & writing if isinstance(open_flags, int) else set(mode or "") & set("wax+")
            if not changes or not strays(path):
                return
        elif event in _CHANGES:
            path = args[_CHANGES[event]]
            if not strays(path):
                return
        else:
            return
        os.write(event_fd, f"w {event} {path!r}\n".encode(errors="backslashreplace"))
        raise PermissionError(13, "kept from it by the fuzzer", os.fsdecode(path))

    sys.addaudithook(hook)


def complaints(result: Ended, names: Sequence[str] = ()) -> Iterator[str]:
    """Problems with the end of a call. An error must mention one of ``names``."""
    output = result.out + result.err
    if result.interrupted and result.parse_only:
        yield "takes too long to read"
    if result.status < 0:
        reason = "took too long" if -result.status in (signal.SIGXCPU, signal.SIGKILL) else "was killed"
        yield f"{reason}: {signal.Signals(-result.status).name}"
    elif result.status not in (0, 1, 2, 130):
        yield f"status {result.status}"
    for sign in ("Traceback (most", "Exception ignored", "terminate called", "Fatal Python"):
        if sign in output:
            last = [line for line in output.splitlines() if line.strip()][-1]
            yield f"{sign}: {last[:200]}"
            break
    if result.strayed:
        yield f"changed what is not its own: {result.strayed[0][:200]}"
    errors = [line for line in result.err.split("\n") if line.startswith("error: ")]
    if result.status == 2:
        if not errors or len({*errors}) < len(errors) or not result.err.endswith("\n".join([*errors, ""])):
            yield f"{len(errors)} lines of error, the last being {result.err[-200:]!r}"
        for line in errors:
            if len(line) > LONGEST:
                yield f"a line of {len(line)} characters: {line[:120]}..."
            if _CONTROL.search(line):
                yield f"control characters in {line[:200]!r}"
            if names and not any(name in line for name in names):
                yield f"names no setting: {line[:200]}"
    elif errors:
        yield f"status {result.status} and {errors[0][:200]}"


def shell_command(argv: Sequence[str]) -> str:
    """The command as a shell would take it."""
    line = shlex.join(f"{word[:150]}...({len(word)})" if len(word) > 200 else word for word in argv)
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in line)
