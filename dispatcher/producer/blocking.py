"""The producer for threads and plain code, and what it shares with the one for asyncio: chunks, results, the target."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, TypedDict, Unpack

from dispatcher.core.event import Event, in_words, job_id_for, new_event_id
from dispatcher.core.units import plain
from dispatcher.errors import (
    DuplicateEvent,
    GateUnavailable,
    InvalidEvent,
    QueueFull,
    QueueUnavailable,
    SendStopped,
)
from dispatcher.jsonio import encode
from dispatcher.server.keys import Keys
from dispatcher.store.intake import EnqueueCalls, Enqueued, Job, queue_is_full
from dispatcher.store.rq_keys import QueueKeys

if TYPE_CHECKING:
    from dispatcher.core.explain import Explanation
    from dispatcher.server.connection import Client
    from dispatcher.server.embedded import EmbeddedServer

Source: TypeAlias = Event | Mapping[str, Any]
OnDuplicate: TypeAlias = Literal["ignore", "raise"]

CHUNK: Final = 500
"""Events that go to the server in one call."""

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""A call is sent when it holds so much: the server does nothing else while it reads and runs one."""

ANSWER_TIMEOUT_S: Final = 2.0
"""``QueueUnavailable`` comes within this time."""


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


class ResolvedFields(PlainFields, total=False):
    """Those of an event that tells of a recovery, but category, dedup_key, text and status."""

    id: str | None
    on_duplicate: OnDuplicate


class Producer:
    """Hands events over to the queue. Thread-safe; one per process is enough.

    Once a call returns, its events are on the server and each will be accounted for. ``QueueUnavailable`` leaves open
    whether they arrived: send again with the same ``id``, a repeat is recognised.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str = "dispatcher",
        queue: str = "notifications",
        max_waiting: int = 1_000_000,
    ) -> None:
        from dispatcher.store.intake import Intake

        self._client = client
        self._target: Target | None = None
        self._keys = Keys(namespace), QueueKeys(queue)
        self._intake = Intake(client, *self._keys, max_waiting=max_waiting, within_s=ANSWER_TIMEOUT_S)

    @classmethod
    def from_env(cls) -> Self:
        """A producer as the environment says (``DISPATCHER_REDIS_URL`` and the others); ``close`` ends it.

        Never starts a server: without a URL it uses the embedded one that runs in the data dir. Raises ``ConfigError``,
        and ``QueueUnavailable`` where that one does not answer within 2 s, or is loading its data.
        """
        from dispatcher.server.clients import connect

        target = target_from_env()
        client = connect(target.url, timeout_s=ANSWER_TIMEOUT_S)
        producer = cls(client, namespace=target.namespace, queue=target.queue, max_waiting=target.max_waiting)
        producer._target = target
        return producer

    def send(
        self,
        category: str,
        text: str = "",
        *,
        id: str | None = None,  # noqa: A002 - the field's name on the wire
        on_duplicate: OnDuplicate = "ignore",
        **fields: Unpack[Fields],
    ) -> str:
        """Enqueue one event in one round trip; returns its id, of a duplicate too unless ``on_duplicate="raise"``.

        ``fields`` are those of ``Event``: channel, blocks, thread, thread_ts, priority, labels, created_at, max_age,
        not_before, delay, mrkdwn, dedup_key, status, once_key.
        Raises ``InvalidEvent``, ``QueueFull``, ``QueueUnavailable`` (within 2 s), ``DuplicateEvent``; ``ConfigError``
        where the server answers and will not have it (another namespace's queue, no permission, a wrong password);
        ``ValueError`` for an ``on_duplicate`` that is neither.
        """
        check_on_duplicate(on_duplicate)
        event = Event.from_payload({"category": category, "text": text, "id": id, **fields}, in_python=True)
        event_id = new_event_id() if event.id is None else event.id
        job = self._intake.calls.job(job_id_for(event_id), event, is_generated=event.id is None)
        (result,) = self._ask([job], [event])()
        return sent_one(event_id, result, on_duplicate, self._intake.calls.max_waiting)

    def resolve(self, category: str, dedup_key: str, text: str | None = None, **fields: Unpack[ResolvedFields]) -> str:
        """Tell that what ``dedup_key`` names in this category is over; returns the id of the event that says so.

        What still waits to be posted about it is not posted any more; its newest message is marked as resolved.
        ``text`` is posted where that message cannot be edited. ``fields`` and errors are those of ``send``.
        """
        return self.send(category, resolved_text(dedup_key, text), dedup_key=dedup_key, status="resolved", **fields)

    def send_many(self, events: Iterable[Source], *, on_duplicate: OnDuplicate = "ignore") -> list[str]:
        """Enqueue many, in order; returns their ids, of duplicates too.

        They are streamed in chunks of 500, or of 4 MB, each all or nothing but for a queue that fills. What ends the
        call early tells how to go on (``SendStopped``): ``InvalidEvent``, which names the position from 0, comes
        before anything of its chunk is enqueued; at ``QueueFull`` the events before the first that found no room are
        enqueued. ``on_duplicate="raise"`` raises ``DuplicateEvent`` at the end, when all others are enqueued. What the
        iterator itself raises comes when all that it gave before is enqueued.
        """
        check_on_duplicate(on_duplicate)
        tally = SendResult()
        try:
            for chunk, results in self._enqueue_many(events):
                tally.note(chunk, results)
        except SendStopped as error:
            tally.stopped(error)
            raise
        return tally.finished(on_duplicate)

    def enqueue_chunks(self, events: Iterable[Source]) -> Iterator[list[tuple[str, Enqueued]]]:
        """As ``send_many``, yielding what became of each event of each chunk; a full queue does not raise."""
        for chunk, results in self._enqueue_many(events):
            yield list(zip(chunk.ids, results, strict=True))

    def explain(self, event_id: str) -> Explanation:
        """What happened to an event: where it is, or how it ended. The id is what ``send`` returned, or the RQ job's.

        Of one that was never handed over, or whose decision is no longer kept, ``state`` is ``unknown``. Writes
        nothing. Raises ``QueueUnavailable``, and ``ConfigError`` as ``send`` does.
        """
        from dispatcher.server.connection import Script, translate_refusals
        from dispatcher.settings.content import policy_if_readable
        from dispatcher.store.explanations import ExplainCalls, ids_of, the_one
        from dispatcher.store.forecast import SCRIPT

        def ask(script: str, keys: list[str], call: dict[str, Any]) -> Any:  # noqa: ANN401 - what Lua returns
            return Script(self._client, script, within_s=ANSWER_TIMEOUT_S)(keys, [encode(call)])

        calls = ExplainCalls(*self._keys)
        try:
            with translate_refusals(self._client):
                findings = calls.read(ask("explain", *calls.call(ids_of(event_id), payloads=True, limits=True)))
                policy = policy_if_readable(findings.limits)
                if (forecast := findings.forecast(self._keys[0], policy)) is not None:
                    findings = findings.with_rooms(forecast.read(ask(SCRIPT, forecast.keys, forecast.call)))
        except GateUnavailable as error:
            raise QueueUnavailable(str(error)) from error
        return the_one(findings, event_id)

    def close(self) -> None:
        """Close the connections of a producer from ``from_env``; a client that was handed in is its owner's matter."""
        if self._target is not None:
            try:
                self._client.close()
            finally:
                self._target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enqueue_many(self, events: Iterable[Source]) -> Iterator[tuple[Chunk, list[Enqueued]]]:
        """Each chunk and what became of it. A chunk goes out when the one before it was answered.

        While the server works on a chunk, the next is made. Only of a list or a tuple: whatever else gives the events
        may wait for long, or use this producer, and an answer that is not read yet would wait for it.
        """
        is_ahead = isinstance(events, list | tuple)
        chunks = chunked(self._intake.calls, events)
        following = next(chunks, None)
        while (chunk := following) is not None:
            answer = self._ask(chunk.jobs, chunk.sources)
            failure: BaseException | None = None
            try:
                following = next(chunks, None) if is_ahead else None
            except BaseException as error:  # noqa: BLE001 - whatever it is, the answer is read first
                failure = error
            results = answer()
            del answer  # it holds what was sent
            yield chunk, results
            if failure is not None:
                raise failure
            chunk.clear()
            if not is_ahead:
                following = next(chunks, None)

    def _ask(self, jobs: list[Job], sources: list[Source]) -> Callable[[], list[Enqueued]]:
        """Send the jobs; what is returned waits for the answer, once. Both raise as ``send`` does."""
        try:
            wait = self._intake.ask_jobs(jobs)
        except GateUnavailable as error:
            raise unavailable(str(error), sources) from error

        def answer() -> list[Enqueued]:
            try:
                return wait()
            except GateUnavailable as error:
                raise unavailable(str(error), sources) from error

        return answer


def unavailable(said: str, sources: Sequence[Source]) -> QueueUnavailable:
    """The error that names the events whose outcome nobody knows."""
    error = QueueUnavailable(said)
    error.rest = tuple(sources)
    return error


class Chunk:
    """Events on their way to the server in one call; ``begin`` is the position of the first, from 0."""

    def __init__(self, calls: EnqueueCalls, begin: int = 0) -> None:
        self._calls = calls
        self._bytes = 0
        self.begin = begin
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

    @property
    def has_refused(self) -> bool:
        """Whether the event that was added last is not valid."""
        return len(self.sources) > len(self.jobs)

    def following(self) -> Chunk:
        """The next one, without any event yet."""
        return Chunk(self._calls, self.begin + len(self.jobs))

    def clear(self) -> None:
        """Let go of the events, wherever the lists of them are held."""
        for each in (self.sources, self.ids, self.jobs):
            each.clear()


def event_of(source: Source) -> Event:
    """The event that was given, or that the fields given make; raises ``InvalidEvent``."""
    if isinstance(source, Event):
        return source
    if isinstance(source, dict) or not isinstance(source, Mapping):
        return Event.from_payload(source, in_python=True)
    return Event.from_payload(dict(source), in_python=True)


def chunked(calls: EnqueueCalls, events: Iterable[Source]) -> Iterator[Chunk]:
    """The events in chunks. None is held here: who has handed one over clears it.

    What the iterator raises comes after the chunk of all that it gave.
    """
    chunk = Chunk(calls)
    try:
        for source in events:
            if chunk.add(source):
                full, chunk = chunk, chunk.following()
                yield full
                del full
    except Exception:
        if chunk.jobs and not chunk.has_refused:
            yield chunk
        raise
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


def check_on_duplicate(given: object) -> None:
    """Raises ``ValueError`` for what ``on_duplicate`` cannot be, before anything is handed over."""
    if given not in ("ignore", "raise"):
        raise ValueError(f"on_duplicate is {in_words(given, in_python=True)}, expected ignore or raise")


def sent_one(event_id: str, result: Enqueued, on_duplicate: OnDuplicate, max_waiting: int) -> str:
    """The id of the one event that ``send`` handed over; raises as ``send`` does."""
    if result is Enqueued.FULL:
        raise QueueFull(queue_is_full(max_waiting))
    if result is Enqueued.DUPLICATE and on_duplicate == "raise":
        error = DuplicateEvent(f"id {event_id!r} is already present or was settled not long ago")
        error.duplicates = (event_id,)
        raise error
    return event_id


def resolved_text(dedup_key: str, text: str | None) -> str:
    """What an event says that tells of a recovery."""
    return text if text is not None else f"Resolved: {plain(dedup_key)}"


@dataclass(frozen=True, slots=True)
class Target:
    """A server, namespace and queue; with the embedded server that is held for as long as it is used."""

    url: str
    namespace: str
    queue: str
    max_waiting: int
    embedded: EmbeddedServer | None

    def __repr__(self) -> str:
        return f"Target(namespace={self.namespace!r}, queue={self.queue!r})"

    def close(self) -> None:
        """Leave the embedded server, which ends with its last client."""
        if self.embedded is not None:
            self.embedded.close()


def target_from_env() -> Target:
    """The target of ``DISPATCHER_REDIS_URL`` and the others. Never starts a server; raises as ``from_env``."""
    from dispatcher.settings.plain import load_producer_settings

    settings, found = load_producer_settings()
    for warning in found:
        warnings.warn(warning, stacklevel=3)  # in the words of who called from_env
    embedded = None
    if settings.redis_url is not None:
        url = settings.redis_url.get_secret_value()
    else:
        from dispatcher.server.embedded import EmbeddedServer

        try:
            embedded = EmbeddedServer.join(settings.data_dir, start=False, timeout_s=ANSWER_TIMEOUT_S, is_in_all=True)
        except GateUnavailable as error:
            raise QueueUnavailable(str(error)) from error
        url = embedded.url
    return Target(url, settings.namespace, settings.queue, settings.max_waiting, embedded)
