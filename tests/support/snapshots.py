"""Looks at the books that never stop balancing."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Final

from dispatcher.core.units import US
from dispatcher.store.snapshot import Books, Snapshot

_PAUSE_S: Final = 0.01
_SOON_US: Final = 60 * US


def watch(books: Books, done: Callable[[Snapshot], bool], timeout_s: float) -> Snapshot:
    """Look at the books again and again until ``done``; they balance at every look. Returns the last one."""
    end = time.monotonic() + timeout_s
    while True:
        snapshot = books.snapshot()
        assert snapshot.imbalances() == []
        if done(snapshot):
            return snapshot
        assert time.monotonic() < end, f"not done after {timeout_s} s: {snapshot}"
        select.select([], [], [], _PAUSE_S)


def is_drained(snapshot: Snapshot) -> bool:
    """Whether every event has its outcome."""
    return snapshot.waiting + snapshot.events == 0


def is_settled(snapshot: Snapshot) -> bool:
    """``is_drained``, but for events that wait on timers for room that does not come soon.

    Such an event has a post with an unknown delivery status: the post keeps its slot, and its limit has no other.
    """
    next_us = snapshot.next_timer_us
    is_stuck = next_us is not None and next_us - snapshot.now_us > _SOON_US
    return is_drained(snapshot) or (snapshot.waiting == 0 and snapshot.events == snapshot.timers and is_stuck)
