"""Producers without a server: the real ones, with a queue in memory where they have one in Redis.

So they check, number, refuse and raise as the real ones do, because it is their code.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from dispatcher.core.event import Event
from dispatcher.core.units import Lane
from dispatcher.errors import GateUnavailable, QueueUnavailable
from dispatcher.producer.blocking import Producer
from dispatcher.producer.concurrent import AsyncProducer
from dispatcher.server.keys import Keys
from dispatcher.store.intake import AsyncIntake, EnqueueCalls, Enqueued, Intake, Job, open_envelope
from dispatcher.store.rq_keys import QueueKeys

if TYPE_CHECKING:
    from dispatcher.core.explain import Explanation
    from dispatcher.store.explanations import Found

_AWAY = "Redis did not answer: the fake producer was told so"
_MAX_WAITING = 1_000_000


class _Queue:
    """What enqueue.lua does, in memory: ids that were chosen are recognised, and no more than so many are held."""

    def __init__(self, max_waiting: int) -> None:
        queue = QueueKeys("fake")
        self.calls = EnqueueCalls(Keys("fake"), queue, max_waiting=max_waiting)
        self.is_away = False
        self.events: list[Event] = []
        self.waiting: list[Event] = []
        self.lanes: dict[str, Lane] = {}
        self.ids: set[str] = set()
        self._max_waiting = max_waiting
        self._prefix = queue.job("")
        self._lock = threading.Lock()

    def enqueue(self, jobs: Sequence[Job]) -> list[Enqueued]:
        with self._lock:
            if self.is_away:
                raise GateUnavailable(_AWAY)
            return [self._enqueue(job) for job in jobs]

    def take(self) -> list[Event]:
        with self._lock:
            taken, self.waiting, self.lanes = self.waiting, [], {}
            return taken

    def clear(self) -> None:
        with self._lock:
            self.events, self.waiting, self.lanes, self.ids = [], [], {}, set()

    def explain(self, event_id: str) -> Explanation:
        from dispatcher.core.silences import Silences
        from dispatcher.store.explanations import Findings, ids_of, the_one

        with self._lock:
            if self.is_away:
                raise QueueUnavailable(_AWAY)
            found = [self._found(each) for each in ids_of(event_id)]
        return the_one(Findings(time.time_ns() // 1000, None, {}, Silences(()), found), event_id)

    def _found(self, job_id: str) -> Found:
        """What explain.lua finds."""
        from dispatcher.store.explanations import Found

        if (lane := self.lanes.get(job_id)) is None:
            return Found(job_id, None, {}, b"")
        before = [each for each, of in self.lanes.items() if of is lane].index(job_id)
        job = {"lane": list(Lane).index(lane) + 1, "status": "queued", "before": before}
        return Found(job_id, None, {"job": job}, b"")

    def _enqueue(self, job: Job) -> Enqueued:
        job_id = job.key.removeprefix(self._prefix)
        head, _, _, data = job.row.split("\n", 3)
        is_remembered = head[1] == "1"
        if is_remembered and job_id in self.ids:
            return Enqueued.DUPLICATE
        if len(self.waiting) >= self._max_waiting:
            return Enqueued.FULL
        event = open_envelope(job_id, data.encode())
        event = event if event.id is not None else replace(event, id=job_id)
        self.ids.add(job_id)
        self.events.append(event)
        self.waiting.append(event)
        self.lanes[job_id] = event.priority
        return Enqueued.DONE


class _Intake(Intake):
    def __init__(self, queue: _Queue) -> None:
        self.calls = queue.calls
        self._queue = queue

    def ask_jobs(self, jobs: Sequence[Job]) -> Callable[[], list[Enqueued]]:
        results = self._queue.enqueue(jobs)
        return lambda: results


class _AsyncIntake(AsyncIntake):
    def __init__(self, queue: _Queue) -> None:
        self.calls = queue.calls
        self._queue = queue

    async def enqueue_jobs(self, jobs: Sequence[Job]) -> list[Enqueued]:
        return self._queue.enqueue(jobs)


class _Kept:
    """What a test asks a fake producer."""

    _queue: _Queue

    @property
    def events(self) -> tuple[Event, ...]:
        """All that was accepted, in order, each with its id and as a worker would read it."""
        return tuple(self._queue.events)

    @property
    def is_away(self) -> bool:
        """Whether calls raise ``QueueUnavailable``, as if there were no server; may be set."""
        return self._queue.is_away

    @is_away.setter
    def is_away(self, value: bool) -> None:
        self._queue.is_away = value

    def take(self) -> list[Event]:
        """What waits, which then waits no longer, as if workers had taken and ended it: there is room again.

        Ids that were chosen stay known: a repeat is a duplicate.
        """
        return self._queue.take()

    def clear(self) -> None:
        """Forget everything, ids too."""
        self._queue.clear()


class FakeProducer(_Kept, Producer):
    """A ``Producer`` that keeps its events instead of handing them over. Thread-safe.

    The same calls, arguments, answers and errors: ``InvalidEvent``, ``DuplicateEvent``, ``QueueFull`` beyond
    ``max_waiting`` and, where a test sets ``is_away``, ``QueueUnavailable``. An id stays known until ``clear``.
    """

    def __init__(self, *, max_waiting: int = _MAX_WAITING) -> None:
        self._queue = _Queue(max_waiting)
        self._target = None
        self._intake = _Intake(self._queue)

    @classmethod
    def from_env(cls) -> Self:
        """A new one; nothing of the environment matters."""
        return cls()

    def explain(self, event_id: str) -> Explanation:
        """As ``Producer.explain``, of what waits; of all else nothing is known."""
        return self._queue.explain(event_id)


class AsyncFakeProducer(_Kept, AsyncProducer):
    """``FakeProducer`` for asyncio."""

    def __init__(self, *, max_waiting: int = _MAX_WAITING) -> None:
        self._queue = _Queue(max_waiting)
        self._target = None
        self._intake = _AsyncIntake(self._queue)

    @classmethod
    def from_env(cls) -> Self:
        """A new one; nothing of the environment matters."""
        return cls()

    async def explain(self, event_id: str) -> Explanation:
        """As ``FakeProducer.explain``."""
        return self._queue.explain(event_id)
