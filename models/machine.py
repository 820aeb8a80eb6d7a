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
from typing import Any

import numba
import numpy as np
from numba.core.caching import UserProvidedCacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import overload

Array = np.ndarray[Any, Any]
# Names of the files with compiled functions or their constants.
_COMPILED_FILES = (
    "compiled.py",
    "compiled_agent.py",
    "compiled_critics.py",
    "machine.py",
    "synthetic.py",
    "tiles.py",
    "vectors.py",
)
_TEMPORARY = "understudy-"  # first letters of a temporary cache folder
_MAX_VERSIONS = 8  # versions of the code that the cache keeps
# Counting references to arrays would take most of the time. So references are not counted, and compiled functions
# cannot create arrays.
EXACT: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
INLINE: dict[str, Any] = {"forceinline": True}
# Without the wrappers that let Python and C call a function, compiling takes about a sixth less time.
INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
EXACT_INLINED: Any = EXACT | INNER | INLINE
# Sums may be reordered, to use vector instructions. NaN and infinities are preserved: they mark diverged members.
FAST: dict[str, Any] = EXACT | {"fastmath": {"reassoc", "contract", "arcp", "nsz"}}


@functools.cache
def cache_folder() -> Path:
    """Return the folder for machine code of this version of the sources, and create it, a temporary folder if the
    user's cache folder is not writable. Remove folders of old versions except the last ``_MAX_VERSIONS`` used."""
    digest = _source_digest()
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "understudy"
        folder = base / digest
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # raises OSError if the folder is not writable
            pass
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        temporary_folder = tempfile.mkdtemp(prefix=_TEMPORARY)
        atexit.register(shutil.rmtree, temporary_folder, ignore_errors=True)
        return Path(temporary_folder)
    with contextlib.suppress(OSError):  # another process may remove folders at the same time
        os.utime(folder)  # marks it as used now
        oldest_first = sorted(base.iterdir(), key=lambda path: path.lstat().st_mtime)
        for old_folder in oldest_first[:-_MAX_VERSIONS]:
            if old_folder != folder:
                shutil.rmtree(old_folder, ignore_errors=True)
    return folder


def keeps_cache() -> bool:
    """Return whether later processes find the compiled functions of this process: their folder is not temporary."""
    return not cache_folder().name.startswith(_TEMPORARY)


def _source_digest() -> str:
    """Return a hash of the content of all ``_COMPILED_FILES``, as 16 hexadecimal digits."""
    sources: list[Path] = []
    for package in ("models", "envs", "control"):  # Ray's workers have these packages in separate folders
        spec = importlib.util.find_spec(package)
        folders = spec.submodule_search_locations if spec is not None else None
        for folder in folders or ():
            sources += [path for path in sorted(Path(folder).rglob("*.py")) if path.name in _COMPILED_FILES]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


class ModuleCacheLocator(UserProvidedCacheLocator):  # type: ignore[misc]
    """Tells Numba to cache a function in a folder named after its module. Numba's default is the path of the source.
    Ray changes that path at every start, so its workers would recompile everything each time."""

    def __init__(self, function: Callable[..., Any], source: str):
        super().__init__(function, source)
        self._cache_path = str(cache_folder() / function.__module__)


class _SelfContainedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Machine code with private copies of the functions it calls. Otherwise a call would run the copy that this process
    loaded first. Each copy is optimized differently, and so rounds differently."""

    def _optimize_final_module(self) -> None:
        """Make shared functions (linkage ``linkonce_odr``) private before Numba optimizes the module."""
        for function in self._final_module.functions:
            if function.linkage.name == "linkonce_odr":
                function.linkage = "internal"
        super()._optimize_final_module()


class _SelfContainedCompiler(Compiler):  # type: ignore[misc]
    """Numba's compiler with a `_SelfContainedLibrary`."""

    def define_pipelines(self) -> Any:
        """Return Numba's pipelines, after replacing the library into which they compile."""
        self.state.library = _SelfContainedLibrary(self.state.targetctx.codegen(), "kernel")
        self.state.library.enable_object_caching()
        return super().define_pipelines()


def _save_locked(save: Callable[..., None], signature: Any, code: Any) -> None:
    """Save the ``code`` of a function, compiled for the argument types ``signature``, in the cache by Numba's function
    ``save``, under a lock. Without the lock, two processes could write the code of two signatures to the same file, and
    a later process would call the wrong code."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)  # a process with other code may have removed it
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        save(signature, code)


def _compile(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Return a function that compiles ``function`` at its first call with the ``options`` of `numba.njit`, and caches
    it in `cache_folder`. Numba's global settings of the cache are changed only while Numba creates the function."""
    settings: Any = numba.core.config
    saved_settings = settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES
    settings.CACHE_DIR = str(cache_folder())
    settings.CACHE_LOCATOR_CLASSES = f"{__name__}.{ModuleCacheLocator.__name__}"
    try:
        dispatcher: Any = numba.njit(cache=True, **options)(function)
        save = dispatcher._cache.save_overload
        dispatcher._cache.save_overload = functools.partial(_save_locked, save)
        return dispatcher
    finally:
        settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = saved_settings


# Decorators of functions. With `exact`, operations are neither reordered nor fused. With `compiled`, sums may be
# reordered, and multiply-add may be fused. `exact_inlined` and `inlined` also inline a function into its callers. For a
# short function, passing a large named tuple (`World`, `Members`) takes longer than the work itself.
exact = functools.partial(_compile, options=EXACT | INNER)
exact_inlined = functools.partial(_compile, options=EXACT_INLINED)
compiled = functools.partial(_compile, options=FAST | INNER)
inlined = functools.partial(_compile, options=FAST | INNER | INLINE)
# `kernel` is `exact` for functions that Python calls. The results do not depend on whether this process compiled or
# loaded the function, nor on the other functions it has loaded.
kernel = functools.partial(_compile, options=EXACT | {"pipeline_class": _SelfContainedCompiler})


def type_predicate(kind: type) -> Any:
    """Return the function ``isinstance(x, kind)`` of compiled code, in which x is a named tuple and ``kind`` a class of
    named tuples. Its result is a constant at compile time, so that branches for other classes are not compiled."""

    def predicate(x: Any) -> None: ...  # a name for compiled code, which calls the implementation below

    @overload(predicate, jit_options=EXACT_INLINED)
    def implementation(x):  # type: ignore[no-untyped-def]
        """Return the function that Numba compiles for an argument of the Numba type ``x``."""
        if x.instance_class is kind:
            return lambda x: True
        return lambda x: False

    return predicate
