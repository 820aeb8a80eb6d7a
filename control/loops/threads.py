"""Members in several threads of this process, for work that does not hold Python's lock."""

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

Memory = TypeVar("Memory")
_TOGETHER = 16  # members in a call


@functools.cache
def _helpers(count: int) -> ThreadPoolExecutor:
    """Threads that round denormal numbers to zero, as `configure_torch` has the thread do that asks them; else the
    same member would come out differently in one of them."""
    return ThreadPoolExecutor(count, "members", torch.set_flush_denormal, (True,))


os.register_at_fork(after_in_child=_helpers.cache_clear)  # where none of them lives on


def for_members(work: Callable[[Memory, int, int], object], members: int, memories: Sequence[Memory]) -> None:
    """``work(memory, first, last)`` for all members: some from the ``first`` to before the ``last`` at a time, so that
    a signal is heard between, in as many threads as there are ``memories``. This thread is one of them.

    All are done, or have stopped, when it returns or raises.
    """
    threads = len(memories)
    # Several turns each, for no two threads are equally quick.
    count = min(_TOGETHER, -(-members // (4 * threads))) if threads > 1 else _TOGETHER
    turns = iter(range(0, members, count))

    def take_turns(memory: Memory) -> None:
        for first in turns:
            work(memory, first, min(first + count, members))

    others = [_helpers(threads - 1).submit(take_turns, memory) for memory in memories[1:]]
    try:
        take_turns(memories[0])
    finally:
        for _ in turns:
            pass
        wait(others)
        for each in others:
            each.result()
