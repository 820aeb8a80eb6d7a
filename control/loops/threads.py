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
    beside: Callable[[], object] | None = None,
    most: int = TOGETHER,
) -> None:
    """Call ``work(memory, first, last)`` for all members, in pieces from ``first`` to before ``last`` of at most
    ``most`` members, so that signals are handled between pieces. There are as many threads as ``memories``, including
    the current one. Another thread first runs ``beside``.

    All threads have finished or stopped when it returns or raises.
    """
    threads = len(memories)
    left, front, back = range(members), list[range](), list[range]()
    while left:  # fewer and fewer at a time, so that all threads end together
        count = min(most, -(-len(left) // (2 * threads if threads > 1 else 1)))
        front.append(left[:count])
        back.insert(0, left[count:][-count:])
        left = left[count:-count]
    turns: deque[Callable[[Memory], object]] = deque(
        lambda memory, some=some: work(memory, some.start, some.stop)  # type: ignore[misc]
        for some in front + back if some
    )  # fmt: skip
    if beside is not None:
        turns.append(lambda memory: beside())

    def take_turns(memory: Memory, take: Callable[[], Callable[[Memory], object]]) -> None:
        while True:
            try:
                turn = take()
            except IndexError:  # none is left
                return
            turn(memory)

    others = [_helpers(threads - 1).submit(take_turns, memory, turns.pop) for memory in memories[1:]]
    try:
        take_turns(memories[0], turns.popleft)  # from either end, so that a core meets the members that it knows
    finally:
        turns.clear()
        wait(others)
        for each in others:
            each.result()
