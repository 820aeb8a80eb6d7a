"""Says when an environment does not answer. It cannot be stopped from within its own process; see `envs.workers`."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

SECONDS = 60.0


class Watch:
    """The ``call`` of an environment that this process is in, None outside: a function that says where it is, and
    anything, in a fresh tuple. A thread looks now and then whether both are still the same."""

    def __init__(self) -> None:
        self.call: tuple[Callable[[], str], Any] | None = None
        self._thread: threading.Thread | None = None

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():  # a process forked from ours has no threads
            self._thread = threading.Thread(target=self._look, name="watch of environments", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        known, where, looks = None, "", 0
        while True:
            time.sleep(SECONDS / 4)
            call = self.call
            place = call[0]() if call else ""
            looks = looks + 1 if call is not None and call is known and place == where else 0
            known, where = call, place
            if looks == 4:
                text = f"no answer for {SECONDS:.0f} s; with --step_timeout SECONDS a run ends that waits for longer"
                print(f"note: {place}: {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def over(self, place: Callable[[], str]) -> Iterator[None]:
        """Watch what is called here."""
        self._start()
        self.call = place, None
        try:
            yield
        finally:
            self.call = None


WATCH = Watch()
