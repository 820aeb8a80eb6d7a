"""How functions become machine code, and where it is kept. Importing this takes Numba.

Functions call each other across files, which Numba's cache does not notice. So the cache has a folder for each state of
the code.
"""

import atexit
import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import UserProvidedCacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import overload

F = TypeVar("F", bound=Callable[..., Any])
# Files that compiled functions, or constants in them, stand in; and how many states of them stay compiled.
_COMPILED, _KEPT = ("compiled.py", "machine.py", "replay.py", "synthetic.py", "tiles.py", "vectors.py"), 8
# Counting references to arrays would take most of the time, so compiled functions neither count nor make any.
EXACT: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
INLINE: dict[str, Any] = {"forceinline": True}
# Sums may be reordered for the processor's vectors. NaN and infinities stay what they are: members are judged by them.
FAST: dict[str, Any] = EXACT | {"fastmath": {"reassoc", "contract", "arcp", "nsz"}}


@functools.cache
def cache_folder() -> Path:
    """Where compiled code of this state of the sources is kept: in the user's cache, or in a folder of this process
    alone where that cannot be written."""
    sources = []
    for room in ("models", "envs", "control"):  # each by itself, for Ray gives its workers a folder for each
        spec = importlib.util.find_spec(room)
        for place in spec.submodule_search_locations or () if spec else ():
            sources += [path for path in sorted(Path(place).rglob("*.py")) if path.name in _COMPILED]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "understudy"
        folder = base / digest
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError):
        alone = tempfile.mkdtemp(prefix="understudy-")
        atexit.register(shutil.rmtree, alone, ignore_errors=True)
        return Path(alone)
    with contextlib.suppress(OSError):  # another process may remove folders meanwhile
        os.utime(folder)  # the last use decides which are kept
        for old in sorted(base.iterdir(), key=lambda path: path.lstat().st_mtime)[:-_KEPT]:
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)
    return folder


class FolderOfModule(UserProvidedCacheLocator):  # type: ignore[misc]
    """Numba's cache of one function, in a folder called after its module. Numba's default is the path of the source,
    which Ray changes at every start, so its workers would compile everything anew each time."""

    def __init__(self, function: Callable[..., Any], source: str):
        super().__init__(function, source)
        self._cache_path = str(cache_folder() / function.__module__)


class _Closed(JITCodeLibrary):  # type: ignore[misc]
    """Machine code that keeps its copies of the functions it calls to itself. Else a call would go to whichever copy
    this process has met first, and each is optimized, and so rounds, in its own way."""

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if function.linkage.name == "linkonce_odr":
                function.linkage = "internal"
        super()._optimize_final_module()


class _Whole(Compiler):  # type: ignore[misc]
    """Numba's compiler, whose machine code is `_Closed`."""

    def define_pipelines(self) -> Any:
        self.state.library = _Closed(self.state.targetctx.codegen(), "kernel")
        self.state.library.enable_object_caching()
        return super().define_pipelines()


def kernel(function: F) -> F:
    """As `exact`, for what Python calls: it gives the same numbers whether this process compiled it or loaded it, and
    whatever else it has loaded."""
    return _compile(function, EXACT | {"pipeline_class": _Whole})


def exact(function: F) -> F:
    """The function in machine code, which rounds as it is written; compiled at its first call, then kept on disk."""
    return _compile(function, EXACT)


def within(function: F) -> F:
    """As `exact`, put into its caller: handing over a `World` or `Members` takes longer than a short function does."""
    return _compile(function, EXACT | INLINE)


def compiled(function: F) -> F:
    """As `exact`, but sums may be reordered, and a product and a sum rounded once."""
    return _compile(function, FAST)


def inlined(function: F) -> F:
    """As `compiled`, put into its caller."""
    return _compile(function, FAST | INLINE)


def _save(save: Callable[..., None], signature: Any, code: Any) -> None:
    """Save the ``code`` of a ``signature``, one process at a time. Two at once would give one file to two signatures,
    and a later process would call the wrong code."""
    with open(cache_folder() / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        save(signature, code)


def _compile(function: F, options: dict[str, Any]) -> F:
    settings: Any = numba.core.config
    saved_settings = settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES
    settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = str(cache_folder()), f"{__name__}.{FolderOfModule.__name__}"
    try:
        dispatcher: Any = numba.njit(cache=True, **options)(function)
        dispatcher._cache.save_overload = functools.partial(_save, dispatcher._cache.save_overload)
        return dispatcher  # type: ignore[no-any-return]
    finally:
        settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = saved_settings


def type_predicate(kind: type) -> Any:
    """A function by which compiled code knows, before it runs, whether an argument is of this very class of tuples."""

    def predicate(x: Any) -> None: ...

    options: Any = EXACT | INLINE
    overload(predicate, jit_options=options)(
        lambda x: (lambda x: True) if x.instance_class is kind else lambda x: False
    )
    return predicate
