"""What all viewers share: one look at the namespace in a second, and the history, of which only the end changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dispatcher.app.documents.facts import Status, read_status
from dispatcher.app.limits import LoadedLimits
from dispatcher.app.operating import Desk
from dispatcher.errors import ConfigError
from dispatcher.store.counts import MINUTE_US, OUTCOMES
from dispatcher.store.snapshot import Snapshot

FRESH_S: Final = 1.0
HISTORY: Final = 48 * 60
"""Minutes of the history."""

_SETTLED: Final = 2
"""So many of the newest minutes may still change: what ended in the last one may be counted in it a moment later."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look, and the limits that it was taken by."""

    status: Status
    limits: LoadedLimits


@dataclass(frozen=True, slots=True)
class Minute:
    """How many were received, and how many ended, by outcome, in one minute of ``lua/include/accounting.lua``."""

    received: int
    ended: dict[str, int]


class Looks:
    """Looks at the namespace for any number of viewers; threads may share it. Raises as ``Desk.check`` does."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._lock = threading.Lock()
        self._look: Look | None = None
        self._looked_s = 0.0
        self._minutes: dict[int, Minute] = {}

    def look(self) -> Look:
        """What is there, not older than a second."""
        with self._lock:
            if self._look is None or time.monotonic() - self._looked_s > FRESH_S:
                self._desk.check()
                limits = self._desk.limits()
                self._look = Look(read_status(self._desk, limits.policy), limits)
                self._looked_s = time.monotonic()
            return self._look

    def snapshot(self) -> Snapshot:
        """That of the look; one of its own where none can be taken, as of limits that this program cannot read."""
        try:
            return self.look().status.snapshot
        except ConfigError:
            self._desk.check()
            return self._desk.books.snapshot()

    def history(self, now_us: int) -> list[Minute]:
        """The last 48 hours, the oldest minute first, that of ``now_us`` last."""
        newest = now_us // MINUTE_US
        wanted = range(newest - HISTORY + 1, newest + 1)
        with self._lock:
            missing = [number for number in wanted if number not in self._minutes]
            read = map(_minute, self._desk.books.totals_of(missing))
            minutes = self._minutes | dict(zip(missing, read, strict=True))
            self._minutes = {number: minutes[number] for number in wanted if number <= newest - _SETTLED}
            return [minutes[number] for number in wanted]


def _minute(counts: Sequence[int]) -> Minute:
    received, *ended = counts
    return Minute(received, dict(zip(OUTCOMES, ended, strict=True)))
