"""Distributes members (independent agents that are trained together) over several threads of this process, for work
that does not hold Python's global lock."""

import functools
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

Memory = TypeVar("Memory")
MOST_PER_CALL = 16  # maximum number of members in a call of ``work``


@functools.cache
def _pool(count: int) -> ThreadPoolExecutor:
    """Return a pool of ``count`` threads, which round denormal numbers to zero, as the main thread does
    (`configure_torch`). Otherwise a member's numbers could depend on its thread."""
    return ThreadPoolExecutor(count, "members", initializer=torch.set_flush_denormal, initargs=(True,))


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def for_members(
    work: Callable[[Memory, int, int], object],
    members: int,
    memories: Sequence[Memory],
    background_task: Callable[[], object] | None = None,
) -> None:
    """Divide work on M members among threads, and return when all of it is done.

    Args:
        work: ``work(memory, first, last)`` works on the members ``first`` to ``last - 1``, at most `MOST_PER_CALL`.
            Signals are handled between such calls.
        members: number of members M.
        memories: scratch memory of each thread, which it passes to all its calls of ``work``. So their number is the
            number of threads. The first one is for the current thread.
        background_task: function that another thread calls first. It requires two or more threads.
    """
    threads = len(memories)
    # Several pieces for each of several threads, so that all end at about the same time.
    num_pieces = 4 * threads if threads > 1 else 1
    size = min(MOST_PER_CALL, math.ceil(members / num_pieces))
    pieces = deque(range(0, members, size))  # the first member of each piece that no thread has taken yet

    def run_thread(memory: Memory, take_piece: Callable[[], int]) -> None:
        """Work on pieces until no piece is left. ``take_piece`` removes a piece and returns its first member."""
        while True:
            try:
                first = take_piece()
            except IndexError:  # no piece is left
                return
            work(memory, first, min(first + size, members))

    if threads == 1:  # the code below would take longer than a step of a small agent
        run_thread(memories[0], pieces.popleft)
        return
    pool = _pool(threads - 1)
    futures = [pool.submit(background_task)] if background_task else []
    futures += [pool.submit(run_thread, memory, pieces.pop) for memory in memories[1:]]
    try:
        # The current thread takes pieces from the front, and the others from the back. So in most calls, a core works
        # on the members that it computed in the call before, which are still in its cache.
        run_thread(memories[0], pieces.popleft)
    finally:
        pieces.clear()  # after an exception, the other threads stop too
        wait(futures)
        for future in futures:
            future.result()  # raises the thread's exception
