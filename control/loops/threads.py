"""Distributes members (independent agents that are trained together) over several threads of this process, for work
that does not hold Python's global lock."""

import functools
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
    """Return a pool of threads that flush denormal numbers to zero, as `configure_torch` does in the calling thread.
    Otherwise a member's numbers could depend on its thread."""
    return ThreadPoolExecutor(count, "members", torch.set_flush_denormal, (True,))


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def for_members(
    work: Callable[[Memory, int, int], object],
    members: int,
    memories: Sequence[Memory],
    background_task: Callable[[], object] | None = None,
) -> None:
    """Call ``work(memory, first, last)`` for all members, in pieces of at most `MOST_PER_CALL` members, ``first`` to
    ``last - 1``. Signals are handled between pieces.

    There is one thread for each item of ``memories``, and it passes this item as ``memory``. The current thread has the
    first item. Another thread begins with ``background_task``; if there is only one thread, it runs the task last. All
    threads have finished or stopped when this function returns or raises.
    """
    threads = len(memories)
    if threads == 1:  # without a queue, which would take longer than a step of few members
        for first in range(0, members, MOST_PER_CALL):
            work(memories[0], first, min(first + MOST_PER_CALL, members))
        if background_task is not None:
            background_task()
        return
    # Several pieces for each thread, so that all threads end at about the same time.
    size = min(MOST_PER_CALL, -(-members // (4 * threads)))  # rounded up
    jobs: deque[Callable[[Memory], object]] = deque(
        lambda memory, first=first: work(memory, first, min(first + size, members))  # type: ignore[misc]
        for first in range(0, members, size)
    )
    if background_task is not None:
        jobs.append(lambda memory: background_task())  # the other threads take jobs from the end of the queue

    def run_jobs(memory: Memory, take_job: Callable[[], Callable[[Memory], object]]) -> None:
        while True:
            try:
                job = take_job()
            except IndexError:  # the queue is empty
                return
            job(memory)

    tasks = [_pool(threads - 1).submit(run_jobs, memory, jobs.pop) for memory in memories[1:]]
    try:
        run_jobs(memories[0], jobs.popleft)  # from the other end, so that a core finds its members in its cache
    finally:
        jobs.clear()
        wait(tasks)
        for task in tasks:
            task.result()  # raises the thread's exception
