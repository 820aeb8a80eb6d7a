"""Distributes members over several threads of this process, for work that does not hold Python's global lock."""

import functools
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

Memory = TypeVar("Memory")
TOGETHER = 16  # maximum number of members per call


@functools.cache
def _helpers(count: int) -> ThreadPoolExecutor:
    """Return a pool of threads that flush denormal numbers to zero, as `configure_torch` does in the calling thread.
    Otherwise a member's numbers could depend on its thread."""
    return ThreadPoolExecutor(count, "members", torch.set_flush_denormal, (True,))


os.register_at_fork(after_in_child=_helpers.cache_clear)  # threads do not survive a fork


def for_members(
    work: Callable[[Memory, int, int], object],
    members: int,
    memories: Sequence[Memory],
    background_task: Callable[[], object] | None = None,
    max_members: int = TOGETHER,
) -> None:
    """Call ``work(memory, first, last)`` for all members, in pieces from ``first`` to ``last - 1`` of at most
    ``max_members`` members, so that signals are handled between pieces. There is one thread per item of ``memories``,
    including the current thread. Another thread first runs ``background_task``; a single thread runs it last.

    All threads have finished or stopped when it returns or raises.
    """
    threads = len(memories)
    remaining, front, tail = range(members), list[range](), list[range]()
    while remaining:  # pieces become smaller, so that all threads end at about the same time
        count = min(max_members, -(-len(remaining) // (2 * threads if threads > 1 else 1)))
        front.append(remaining[:count])
        tail.insert(0, remaining[count:][-count:])
        remaining = remaining[count:-count]
    turns: deque[Callable[[Memory], object]] = deque(
        lambda memory, piece=piece: work(memory, piece.start, piece.stop)  # type: ignore[misc]
        for piece in front + tail
        if piece
    )
    if background_task is not None:
        turns.append(lambda memory: background_task())

    def take_turns(memory: Memory, take: Callable[[], Callable[[Memory], object]]) -> None:
        while True:
            try:
                turn = take()
            except IndexError:  # none is left
                return
            turn(memory)

    tasks = [_helpers(threads - 1).submit(take_turns, memory, turns.pop) for memory in memories[1:]]
    try:
        take_turns(memories[0], turns.popleft)  # from opposite ends, so that a core finds its members in its cache
    finally:
        turns.clear()
        wait(tasks)
        for task in tasks:
            task.result()
