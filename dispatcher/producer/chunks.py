"""What goes to the server in one call, and how far a ``send_many`` got. Pure: both producers share it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, TypedDict

from dispatcher.core.event import Event, job_id_for, new_event_id
from dispatcher.errors import DuplicateEvent, InvalidEvent, QueueFull, SendStopped
from dispatcher.store.enqueue import EnqueueCalls, Enqueued, Job

Source: TypeAlias = Event | Mapping[str, Any]
OnDuplicate: TypeAlias = Literal["ignore", "raise"]

CHUNK: Final = 500
"""Events that go to the server in one call."""

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""A call is sent when it holds so much: the server does nothing else while it reads and runs one."""


class Chunk:
    """Events on their way to the server in one call; ``begin`` is the position of the first, from 0."""

    def __init__(self, calls: EnqueueCalls) -> None:
        self._calls = calls
        self._bytes = 0
        self.begin = 0
        self.sources: list[Source] = []
        self.ids: list[str] = []
        self.jobs: list[Job] = []

    def add(self, source: Source) -> bool:
        """Take one more; returns whether the chunk is full.

        Raises ``InvalidEvent``, whose ``rest`` are the events of this chunk and this one.
        """
        self.sources.append(source)
        try:
            event = event_of(source)
            id_ = event.id
            if id_ is None:
                id_ = new_event_id()
                job = self._calls.job(id_, event, is_generated=True)
            else:
                job = self._calls.job(job_id_for(id_), event)
        except InvalidEvent as error:
            told = InvalidEvent(f"event {self.begin + len(self.jobs)}: {error}")
            told.rest = tuple(self.sources)
            raise told from error
        self.ids.append(id_)
        self.jobs.append(job)
        self._bytes += len(job.row) if job.row.isascii() else len(job.row.encode())
        return len(self.jobs) == CHUNK or self._bytes >= CHUNK_BYTES

    def clear(self) -> None:
        """Let go of the events: what follows is the next chunk."""
        self.begin += len(self.jobs)
        self._bytes = 0
        self.sources, self.ids, self.jobs = [], [], []


def event_of(source: Source) -> Event:
    """The event that was given, or that the fields given make; raises ``InvalidEvent``."""
    if isinstance(source, Event):
        return source
    if isinstance(source, dict) or not isinstance(source, Mapping):
        return Event.from_payload(source, in_python=True)
    return Event.from_payload(dict(source), in_python=True)


def chunked(calls: EnqueueCalls, events: Iterable[Source]) -> Iterator[Chunk]:
    """The events in chunks; each lasts until the next is asked for, so that no more than one is held."""
    chunk = Chunk(calls)
    for source in events:
        if chunk.add(source):
            yield chunk
            chunk.clear()
    if chunk.jobs:
        yield chunk


async def async_chunked(
    calls: EnqueueCalls, events: Iterable[Source] | AsyncIterable[Source]
) -> AsyncGenerator[Chunk, None]:
    """As ``chunked``, also of what comes asynchronously."""
    if not isinstance(events, AsyncIterable):
        for chunk in chunked(calls, events):
            yield chunk
        return
    chunk = Chunk(calls)
    async for source in events:
        if chunk.add(source):
            yield chunk
            chunk.clear()
    if chunk.jobs:
        yield chunk


class SendResult:
    """How far a ``send_many`` got."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.duplicates: list[str] = []

    def note(self, chunk: Chunk, results: Sequence[Enqueued]) -> None:
        """What became of a chunk; raises ``QueueFull`` where some of it was refused."""
        accepted = len(results)
        if Enqueued.FULL in results:
            accepted = results.index(Enqueued.FULL)
        self.ids += chunk.ids[:accepted]
        if Enqueued.DUPLICATE in results:
            pairs = zip(chunk.ids[:accepted], results[:accepted], strict=True)
            self.duplicates += [id_ for id_, result in pairs if result is Enqueued.DUPLICATE]
        if accepted < len(results):
            error = QueueFull(f"the queue is full after {len(self.ids)} events")
            error.rest = tuple(chunk.sources[accepted:])
            raise error

    def stopped(self, error: SendStopped) -> None:
        """Let the error that ends the call tell how far it got."""
        error.ids = tuple(self.ids)

    def finished(self, on_duplicate: OnDuplicate) -> list[str]:
        """The ids of all events; raises ``DuplicateEvent`` where that was asked for."""
        if on_duplicate == "raise" and self.duplicates:
            error = DuplicateEvent(
                f"{len(self.duplicates)} of {len(self.ids)} ids are already present or were settled not long ago, "
                f"the first is {self.duplicates[0]!r}"
            )
            error.ids, error.duplicates = tuple(self.ids), tuple(self.duplicates)
            raise error
        return self.ids


def sent_one(event_id: str, result: Enqueued, on_duplicate: OnDuplicate) -> str:
    """The id of the one event that ``send`` handed over; raises as ``send`` does."""
    if result is Enqueued.FULL:
        raise QueueFull("the queue is full: DISPATCHER_MAX_WAITING events wait, are in flight or parked")
    if result is Enqueued.DUPLICATE and on_duplicate == "raise":
        error = DuplicateEvent(f"id {event_id!r} is already present or was settled not long ago")
        error.duplicates = (event_id,)
        raise error
    return event_id


class PlainFields(TypedDict, total=False):
    """Those of ``Event`` but category, text and id, in the spellings that it takes; and but what it is about."""

    channel: str | None
    blocks: Sequence[dict[str, Any]]
    thread_ts: str | None
    priority: Literal["high", "normal", "low"]
    labels: Mapping[str, str | int | float]
    created_at: float | None
    max_age: float | str | None
    mrkdwn: bool
    thread: str | None
    not_before: float | str | datetime | None
    delay: float | str | None
    once_key: str | None


class Fields(PlainFields, total=False):
    """Those of ``Event`` but category, text and id."""

    dedup_key: str | None
    status: Literal["firing", "resolved"]


def resolved_text(dedup_key: str, text: str | None) -> str:
    """What an event says that tells of a recovery."""
    return text if text is not None else f"Resolved: {dedup_key}"


class ResolvedFields(PlainFields, total=False):
    """Those of an event that tells of a recovery, but category, dedup_key, text and status."""

    id: str | None
    on_duplicate: OnDuplicate
