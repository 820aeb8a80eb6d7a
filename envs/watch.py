"""Says when an environment does not answer, so that nobody waits for a run that hangs.

An environment that does cannot be stopped from within its own process, so this only tells; see `envs.workers`.
"""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SECONDS = 60.0


class Watch:
    """What this process's environments are doing. Whoever calls one sets ``place`` and ``row``, then ``call``, a fresh
    object, and None afterwards: that is all it costs. A thread looks now and then whether it is still the same call."""

    def __init__(self) -> None:
        self.call: Any = None
        self.row: int | None = None
        self.place: Callable[[int | None], str] = str
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None or not self._thread.is_alive():  # a process forked from ours has no threads
            self._thread = threading.Thread(target=self._look, name="watch of environments", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        known: tuple[Any, int | None] = (None, None)
        looks = 0
        while True:
            time.sleep(SECONDS / 4)
            now = (self.call, self.row)
            same = now[0] is not None and now[0] is known[0] and now[1] == known[1]
            known, looks = now, looks + 1 if same else 0
            if looks == 4:
                text = f"no answer for {SECONDS:.0f} s; with --step_timeout SECONDS a run ends that waits for longer"
                print(f"note: {self.place(now[1])}: {text}", file=sys.stderr, flush=True)


WATCH = Watch()
