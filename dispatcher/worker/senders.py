"""The posts in flight: a bounded number of threads, each posting one message at a time, by a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from dispatcher.model import Ambiguous, PostResult
from dispatcher.outcome import Settlement, Started


@dataclass(frozen=True, slots=True)
class _Flight:
    started: Started
    overdue_at: float


class Senders:
    """Runs up to ``size`` posts at once.

    The worker's loop starts posts and collects what they came to; a post that is not back by its deadline counts as
    ambiguous, and whatever its thread brings later is left alone.

    ``deliver`` posts and says what follows; ``conclude`` says what follows from a result that is known without it;
    ``wake`` tells the loop that something can be collected.
    """

    def __init__(
        self,
        deliver: Callable[[Started], Settlement],
        conclude: Callable[[Started, PostResult], Settlement],
        *,
        size: int,
        deadline_s: float,
        wake: Callable[[], None],
    ) -> None:
        self._deliver = deliver
        self._conclude = conclude
        self._size = size
        self._deadline_s = deadline_s
        self._wake = wake
        self._flights: dict[str, _Flight] = {}
        self._ready: SimpleQueue[_Flight] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        """Threads that wait for a post; one that a post keeps past its deadline is replaced by a new one."""
        self._landed: SimpleQueue[tuple[_Flight, Settlement]] = SimpleQueue()

    @property
    def free(self) -> int:
        """How many posts can be started now."""
        return max(0, self._size - len(self._flights))

    @property
    def ids(self) -> list[str]:
        """The events whose posts are in flight."""
        return list(self._flights)

    def start(self, started: Started) -> None:
        """Post one message in a thread that has nothing else to do."""
        flight = _Flight(started, time.monotonic() + self._deadline_s)
        self._flights[started.candidate.leased.id] = flight
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._fly_all, daemon=True, name="sender").start()
        self._ready.put(flight)

    def collect(self) -> list[Settlement]:
        """What the posts that ended, or whose deadline has passed, came to; each once."""
        settlements = []
        while not self._landed.empty():
            flight, settlement = self._landed.get()
            if self._forget(flight):
                settlements.append(settlement)
        now = time.monotonic()
        for flight in [each for each in self._flights.values() if each.overdue_at <= now]:
            self._forget(flight)
            late = Ambiguous("deadline", f"no answer within {self._deadline_s:g} s")
            settlements.append(self._conclude(flight.started, late))
        return settlements

    def next_deadline(self) -> float | None:
        """The earliest deadline of a post in flight, by ``time.monotonic``."""
        return min((flight.overdue_at for flight in self._flights.values()), default=None)

    def _forget(self, flight: _Flight) -> bool:
        key = flight.started.candidate.leased.id
        if self._flights.get(key) is not flight:
            return False
        del self._flights[key]
        return True

    def _fly_all(self) -> None:
        while True:
            self._fly(self._ready.get())
            self._idle.release()

    def _fly(self, flight: _Flight) -> None:
        try:
            settlement = self._deliver(flight.started)
        except Exception as error:  # noqa: BLE001 - a defect of ours must not lose the event: its fate is unknown
            settlement = self._conclude(flight.started, Ambiguous("internal", f"{type(error).__name__}: {error}"))
        self._landed.put((flight, settlement))
        self._wake()
