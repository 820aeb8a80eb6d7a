"""Members in several threads."""

import threading

import numpy as np
import pytest

from control.loops.process import configure_torch
from control.loops.threads import for_members


def test_every_thread_rounds_denormal_numbers_to_zero() -> None:
    configure_torch()  # this one's settings
    all_at_once, records = threading.Barrier(3), []

    def work(memory: None, first: int, last: int) -> None:
        all_at_once.wait(10)
        records.append((threading.get_ident(), first, last, float(np.float32(1e-39) * np.float32(0.5))))

    for_members(work, 3, [None] * 3)
    assert len({thread for thread, *_ in records}) == 3
    assert sorted(record[1:] for record in records) == [(0, 1, 0.0), (1, 2, 0.0), (2, 3, 0.0)]


@pytest.mark.parametrize("in_caller", [True, False])
def test_what_a_thread_raises_comes_out_when_all_have_stopped(in_caller: bool) -> None:
    caller, barrier, stopped = threading.get_ident(), threading.Barrier(2), []

    def work(memory: None, first: int, last: int) -> None:
        if first in (0, 7):  # they begin at either end
            barrier.wait(10)
            if (threading.get_ident() == caller) == in_caller:
                raise ValueError("of a member")
            stopped.append(first)

    with pytest.raises(ValueError, match="of a member"):
        for_members(work, 8, [None] * 2)
    assert len(stopped) == 1


def test_another_thread_begins_with_what_is_done_beside() -> None:
    start_event = threading.Event()
    thread_ids: list[int] = []

    def side_task() -> None:
        thread_ids.append(threading.get_ident())
        start_event.set()

    for_members(lambda memory, first, last: start_event.wait(10), 8, [None] * 2, side_task)
    assert len(thread_ids) == 1 and thread_ids[0] != threading.get_ident()

    def fails() -> None:
        raise ValueError("beside")

    with pytest.raises(ValueError, match="beside"):
        for_members(lambda *_: None, 8, [None] * 2, fails)
