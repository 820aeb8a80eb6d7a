"""Members in several threads of this process, for work that does not hold Python's lock."""

import functools
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

Memory = TypeVar("Memory")
TOGETHER = 16  # members in a call, at most


@functools.cache
def _helpers(count: int) -> ThreadPoolExecutor:
    """Threads that round denormal numbers to zero, as `configure_torch` has the thread do that asks them; else the
    same member would come out differently in one of them."""
    return ThreadPoolExecutor(count, "members", torch.set_flush_denormal, (True,))


os.register_at_fork(after_in_child=_helpers.cache_clear)  # in which no thread survives


def for_members(
    work: Callable[[Memory, int, int], object],
    members: int,
    memories: Sequence[Memory],
    background_task: Callable[[], object] | None = None,
    max_members: int = TOGETHER,
) -> None:
    """Call ``work(memory, first, last)`` for all members, in pieces from ``first`` to before ``last`` of at most
    ``max_members`` members, so that signals are handled between pieces. There are as many threads as ``memories``,
    including the current one. Another thread first runs ``background_task``.

    All threads have finished or stopped when it returns or raises.
    """
    threads = len(memories)
    remaining, front, tail = range(members), list[range](), list[range]()
    while remaining:  # fewer and fewer at a time, so that all threads end together
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
        take_turns(memories[0], turns.popleft)  # from either end, so that a core meets the members that it knows
    finally:
        turns.clear()
        wait(tasks)
        for task in tasks:
            task.result()
