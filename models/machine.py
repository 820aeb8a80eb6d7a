"""Decorators that compile functions with Numba, and the cache of their machine code. Importing this requires Numba.

Functions call each other across files, and Numba's cache does not notice a change in another file. So the cache has a
separate folder for each version of the code.
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
# Names of the files with compiled functions or their constants, and the number of versions to keep in the cache.
_COMPILED, _KEPT = ("compiled.py", "machine.py", "replay.py", "synthetic.py", "tiles.py", "vectors.py"), 8
# Counting references to arrays would take most of the time, so compiled functions neither count nor create arrays.
EXACT: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
INLINE: dict[str, Any] = {"forceinline": True}
# Sums may be reordered, to use vector instructions. NaN and infinities are preserved: they mark diverged members.
FAST: dict[str, Any] = EXACT | {"fastmath": {"reassoc", "contract", "arcp", "nsz"}}


@functools.cache
def cache_folder() -> Path:
    """Return the cache folder for this version of the sources. It is in the user's cache folder; if that is not
    writable, it is a temporary folder of this process."""
    sources = []
    for room in ("models", "envs", "control"):  # separately, because Ray gives its workers a folder for each
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
    with contextlib.suppress(OSError):  # another process may remove folders at the same time
        os.utime(folder)  # the folders used last are kept
        for old in sorted(base.iterdir(), key=lambda path: path.lstat().st_mtime)[:-_KEPT]:
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)
    return folder


class FolderOfModule(UserProvidedCacheLocator):  # type: ignore[misc]
    """Locates Numba's cache of a function in a folder named after its module. Numba's default is the path of the
    source. Ray changes that path at every start, so its workers would recompile everything each time."""

    def __init__(self, function: Callable[..., Any], source: str):
        super().__init__(function, source)
        self._cache_path = str(cache_folder() / function.__module__)


class _Closed(JITCodeLibrary):  # type: ignore[misc]
    """Machine code with private copies of the functions it calls. Otherwise a call would run the copy that this process
    loaded first. Each copy is optimized differently, and so rounds differently."""

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if function.linkage.name == "linkonce_odr":
                function.linkage = "internal"
        super()._optimize_final_module()


class _Whole(Compiler):  # type: ignore[misc]
    """Numba's compiler with `_Closed` machine code."""

    def define_pipelines(self) -> Any:
        self.state.library = _Closed(self.state.targetctx.codegen(), "kernel")
        self.state.library.enable_object_caching()
        return super().define_pipelines()


def kernel(function: F) -> F:
    """Compile like `exact`, for functions that Python calls. The results do not depend on whether this process compiled
    or loaded the function, nor on the other functions it has loaded."""
    return _compile(function, EXACT | {"pipeline_class": _Whole})


def exact(function: F) -> F:
    """Compile a function at its first call, and cache it on disk. Operations are neither reordered nor fused."""
    return _compile(function, EXACT)


def exact_inlined(function: F) -> F:
    """Compile like `exact` and inline into the caller: passing a `World` or `Members` takes longer than a short
    function."""
    return _compile(function, EXACT | INLINE)


def compiled(function: F) -> F:
    """Compile like `exact`, but allow reordered sums and fused multiply-add."""
    return _compile(function, FAST)


def inlined(function: F) -> F:
    """Compile like `compiled` and inline into the caller."""
    return _compile(function, FAST | INLINE)


def _save(save: Callable[..., None], signature: Any, code: Any) -> None:
    """Save the ``code`` of a ``signature`` under a lock. Two processes at once would use one file for two signatures,
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
    """Return a function that compiled code can call to test whether an argument is of the named tuple class ``kind``.
    The result is a constant at compile time."""

    def predicate(x: Any) -> None: ...

    options: Any = EXACT | INLINE
    overload(predicate, jit_options=options)(
        lambda x: (lambda x: True) if x.instance_class is kind else lambda x: False
    )
    return predicate
