"""Puts events on the lanes, as RQ jobs, and binds a queue to its namespace."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import redis.asyncio

from dispatcher.core.event import Event
from dispatcher.server.connection import AsyncScript, Client, Script, translate_refusals
from dispatcher.server.keys import LAYOUT_VERSION, Keys
from dispatcher.store.enqueue import Arguments, EnqueueCalls, Enqueued, Job, foreign_queue, text_of, wrong_layout
from dispatcher.store.rq_keys import QueueKeys

__all__ = ["AsyncIntake", "Enqueued", "Intake", "claim_namespace", "wrong_layout"]


class Intake:
    """The producers' side of the queue; one round trip for each call. Raises ``GateUnavailable`` when Redis is away."""

    def __init__(  # noqa: PLR0913 - what may differ between callers, each by its name
        self,
        client: Client,
        keys: Keys,
        queue: QueueKeys,
        *,
        max_waiting: int,
        within_s: float | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        """``within_s`` bounds each call as a whole."""
        self.calls = EnqueueCalls(keys, queue, max_waiting=max_waiting)
        self._client = client
        self._clock = clock
        self._script = Script(client, "enqueue", within_s=within_s)

    def enqueue(self, events: Sequence[tuple[str, Event]]) -> list[Enqueued]:
        """Enqueue each ``(job id, event)``; raises ``InvalidEvent`` before any, else as ``enqueue_jobs`` does."""
        return self.enqueue_jobs([self.calls.job(job_id, event) for job_id, event in events])

    def enqueue_jobs(self, jobs: Sequence[Job]) -> list[Enqueued]:
        """Enqueue each of up to 1,000 jobs.

        Raises ``ConfigError`` when the namespace has another layout, the queue belongs to another namespace, or the
        server refuses us.
        """
        now_us = None if self._clock is None else self._clock()
        with translate_refusals(self._client):
            return self.calls.read(self._script(*self.calls.enqueue(jobs, now_us)))


class AsyncIntake:
    """``Intake`` for asyncio."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys, queue: QueueKeys, *, max_waiting: int) -> None:
        self.calls = EnqueueCalls(keys, queue, max_waiting=max_waiting)
        self._client = client
        self._script = AsyncScript(client, "enqueue")

    async def enqueue_jobs(self, jobs: Sequence[Job]) -> list[Enqueued]:
        """As ``Intake.enqueue_jobs``."""
        return await self._call(self.calls.enqueue(jobs, None))

    async def enqueue_whole(self, jobs: Sequence[Job]) -> list[Enqueued]:
        """As ``enqueue_jobs``, but where one is ``FULL``, none is enqueued; the rest says what would have become."""
        return await self._call(self.calls.enqueue(jobs, None, all_or_nothing=True))

    async def _call(self, call: tuple[list[str], Arguments]) -> list[Enqueued]:
        with translate_refusals(self._client):
            return self.calls.read(await self._script(*call))


def claim_namespace(client: Client, keys: Keys, queue: QueueKeys) -> None:
    """What a worker does before it takes anything: write the layout where there is none, bind the queue.

    Raises ``ConfigError`` where the layout is another one or the queue belongs to another namespace.
    """
    answer = Script(client, "claim")([keys.layout, queue.binding], [LAYOUT_VERSION, keys.namespace])
    layout, bound = map(text_of, answer)
    if layout != LAYOUT_VERSION:
        raise wrong_layout(layout, keys.namespace)
    if bound != keys.namespace:
        raise foreign_queue(bound, keys, queue)
