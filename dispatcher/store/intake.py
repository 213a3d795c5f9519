"""The intake: events as RQ jobs. Producers seal them and put them on the lanes; workers open them.

Nothing a job names is ever imported or called, and nothing is unpickled: the one function a job may name is a constant.
The blocking and the asyncio intake differ in how they call, not in what they say (``EnqueueCalls``). redis-py is loaded
with the first of them, so that ``import dispatcher`` does not load it.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from dispatcher.core.event import MAX_EVENT_BYTES, Event, check_size, encode_event, is_remembered, job_id_for
from dispatcher.core.units import CATEGORY, Lane
from dispatcher.errors import ConfigError, InvalidEvent
from dispatcher.jsonio import NotPlain, answer_text, decode, encode
from dispatcher.server.keys import LAYOUT_VERSION, Keys
from dispatcher.store.rq_keys import QueueKeys

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from dispatcher.server.connection import Client

Arguments: TypeAlias = list[str | int]

FUNCTION: Final = "dispatcher.jobs.dispatch"

FOLD_MS: Final = 5 * 60 * 1_000
"""How long a repeat of a notification is recognised: by whoever delivers it again, and by the other one of a pair."""

HEAD: Final = f'["{FUNCTION}", null, ['

TAIL: Final = "], {}]"
_LANES: Final = {lane: str(place) for place, lane in enumerate(Lane, start=1)}
_DESCRIBED: Final = 60

SHOWN_CHARS: Final = 80
"""Characters of a text in the decision record."""

_MOST_LABELS: Final = 512

_SMALL: Final = MAX_EVENT_BYTES + len((HEAD + TAIL).replace(" ", ""))
"""Bytes of data that hold no event that is too large."""

_MOST_READ: Final = 1024 * 1024 - 1
"""Bytes of data that are read. Of more, one byte more is kept. JSON in ASCII takes up to three times those of UTF-8."""

_ZLIB: Final = 0x78
_PICKLE: Final = 0x80


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
        from dispatcher.server.connection import Script

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
        return self.ask_jobs(jobs)()

    def ask_jobs(self, jobs: Sequence[Job]) -> Callable[[], list[Enqueued]]:
        """Send what ``enqueue_jobs`` sends. What is returned waits for the answer, once; both raise as it does."""
        from dispatcher.server.connection import translate_refusals

        now_us = None if self._clock is None else self._clock()
        with translate_refusals(self._client):
            wait = self._script.ask(*self.calls.enqueue(jobs, now_us))

        def answer() -> list[Enqueued]:
            with translate_refusals(self._client):
                return self.calls.read(wait())

        return answer


class AsyncIntake:
    """``Intake`` for asyncio."""

    def __init__(self, client: Redis, keys: Keys, queue: QueueKeys, *, max_waiting: int) -> None:
        from dispatcher.server.async_connection import AsyncScript

        self.calls = EnqueueCalls(keys, queue, max_waiting=max_waiting)
        self._client = client
        self._script = AsyncScript(client, "enqueue")

    async def enqueue_jobs(self, jobs: Sequence[Job]) -> list[Enqueued]:
        """As ``Intake.enqueue_jobs``."""
        return await self._call(self.calls.enqueue(jobs, None))

    async def enqueue_whole(self, jobs: Sequence[Job], *, fold: str | None = None) -> list[Enqueued]:
        """As ``enqueue_jobs``, but where one is ``FULL``, none is enqueued; the rest says what would have become.

        All are duplicates if a call with the same ``fold`` was enqueued not long ago.
        """
        return await self._call(self.calls.enqueue(jobs, None, all_or_nothing=True, fold=fold))

    async def _call(self, call: tuple[list[str], Arguments]) -> list[Enqueued]:
        from dispatcher.server.connection import translate_refusals

        with translate_refusals(self._client):
            return self.calls.read(await self._script(*call))


def claim_namespace(client: Client, keys: Keys, queue: QueueKeys) -> None:
    """What a worker does before it takes anything: write the layout where there is none, bind the queue.

    Raises ``ConfigError`` where the layout is another one or the queue belongs to another namespace.
    """
    from dispatcher.server.connection import Script

    answer = Script(client, "claim")([keys.layout, queue.binding], [LAYOUT_VERSION, keys.namespace])
    if (refusal := namespace_refusal(keys, queue, *answer)) is not None:
        raise refusal


class Enqueued(IntEnum):
    """What became of one event that was handed over."""

    FULL = -1
    DUPLICATE = 0
    DONE = 1


def queue_is_full(max_waiting: int) -> str:
    """What is said where an event was ``FULL``."""
    held = "1 event waits, is in flight" if max_waiting == 1 else f"{max_waiting} events wait, are in flight"
    return f"the queue is full: at least {held} or parked, and DISPATCHER_MAX_WAITING is {max_waiting}"


_RESULTS: Final = {"1": Enqueued.DONE, "0": Enqueued.DUPLICATE, "-": Enqueued.FULL}


class Job(NamedTuple):
    """An event as it goes to the server: the key of its job, and all that enqueue.lua has to know."""

    key: str
    row: str


class EnqueueCalls:
    """Builds the calls of one namespace and queue."""

    def __init__(self, keys: Keys, queue: QueueKeys, *, max_waiting: int) -> None:
        self._keys = keys
        self._queue = queue
        self._head = [
            *queue.lanes,
            queue.queues,
            keys.events,
            keys.seen,
            keys.dead_ids,
            keys.layout,
            queue.binding,
            keys.enqueued,
        ]
        self.max_waiting = max_waiting
        self._facts: Arguments = [LAYOUT_VERSION, keys.namespace, max_waiting]
        self._job_prefix = queue.job("")

    def job(self, job_id: str, event: Event, *, is_generated: bool = False) -> Job:
        """The event as a job; ``is_generated`` says of its id that nobody has chosen it.

        Raises ``InvalidEvent`` when the event is too large or cannot be written as JSON.
        """
        event = event.sent_at(time.time()) if event.delay is not None else event
        is_known_again = not is_generated and is_remembered(event, job_id)
        text = event.text[:_DESCRIBED].replace("\n", " ")
        mark, shown = mark_of(job_id, event, is_generated=is_generated) or ("", "")
        row = f"{_LANES[event.priority]}{is_known_again:d}{mark}\n{shown}\n{event.category}: {text}\n{seal(event)}"
        return Job(self._job_prefix + job_id, row)

    def enqueue(
        self, jobs: Sequence[Job], now_us: int | None, *, all_or_nothing: bool = False, fold: str | None = None
    ) -> tuple[list[str], Arguments]:
        """Keys and arguments; ``now_us`` replaces the server's clock.

        A call with the ``fold`` of an earlier one is a repeat of it, for ``FOLD_MS``.
        """
        now = rq_now()
        keys = [*self._head, self._keys.fold(fold or ""), *[job.key for job in jobs]]
        given = "" if now_us is None else now_us
        return keys, [
            *self._facts,
            now,
            given,
            int(all_or_nothing),
            "" if fold is None else FOLD_MS,
            *[job.row for job in jobs],
        ]

    def read(self, answer: bytes | str | Sequence[bytes | str]) -> list[Enqueued]:
        """What became of each job.

        Raises ``ConfigError`` when the namespace has another layout, or the queue belongs to another namespace.
        """
        if isinstance(answer, bytes | str):
            return [_RESULTS[result] for result in answer_text(answer)]
        kind, found = map(answer_text, answer)
        if kind == "layout":
            raise wrong_layout(found, self._keys.namespace)
        raise foreign_queue(found, self._keys, self._queue)


def namespace_refusal(
    keys: Keys, queue: QueueKeys, layout: bytes | str | None, bound: bytes | str | None
) -> ConfigError | None:
    """Why a namespace and a queue with this layout and binding cannot be used. None where they can, or hold nothing."""
    if layout is not None and (found := answer_text(layout)) != LAYOUT_VERSION:
        return wrong_layout(found, keys.namespace)
    if bound is not None and (other := answer_text(bound)) != keys.namespace:
        return foreign_queue(other, keys, queue)
    return None


def wrong_layout(found: str, namespace: str) -> ConfigError:
    """The refusal of a namespace that another version wrote."""
    return ConfigError(
        f"namespace {namespace!r} holds key layout {found!r}, this version reads layout {LAYOUT_VERSION!r}: let "
        "workers of the version that wrote it drain the namespace, or set DISPATCHER_NAMESPACE to a new one"
    )


def foreign_queue(bound: str, keys: Keys, queue: QueueKeys) -> ConfigError:
    """The refusal of a queue that is bound to another namespace."""
    return ConfigError(
        f"queue {queue.queue!r} belongs to namespace {bound!r}, not to {keys.namespace!r}: "
        "set DISPATCHER_NAMESPACE to it, or DISPATCHER_QUEUE to another queue"
    )


def rq_now() -> str:
    """The present instant as RQ writes one: ISO 8601 in UTC, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def seal(event: Event) -> str:
    """The ``data`` of a job: function, instance, arguments and keywords in RQ's JSON form."""
    return f"{HEAD}{encode_event(event)}{TAIL}"


def mark_of(job_id: str, event: Event, *, is_generated: bool = False) -> tuple[str, str] | None:
    """The mark by which the pre-check can drop the event, and what the decision record then shows of it.

    None where the event has to be read: it may be a recovery, or not be due, or go by another id than the job.
    """
    if (event.id is not None and event.id != job_id) or event.is_scheduled or event.is_resolved:
        return None
    remembered = not is_generated and is_remembered(event, job_id)
    return f"{event.category} {remembered:d}{_about(event)}", shown_of(event)


def shown_of(event: Event, chars: int = SHOWN_CHARS) -> str:
    """The text, labels and, unless it is normal, priority of an event as the decision record keeps them.

    It is JSON without brackets.

    Of the text ``chars`` characters at most, 0 or ``SHOWN_CHARS``. Long labels are left out.
    """
    text = " ".join((event.text or _words_of(event))[: 4 * chars].split()) if chars else ""
    labels = event.labels
    if labels and sum(len(name) + len(value) for name, value in labels.items()) > _MOST_LABELS:
        labels = {}
    parts: list[Any] = [text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…", dict(labels)]
    if event.priority is not Lane.NORMAL:
        parts.append(event.priority.value)
    return encode(parts).decode()[1:-1]


def _about(event: Event) -> str:
    """What the event is about, for the pre-check of repeats: what the name of its scope ends with."""
    key = event.once_key or event.dedup_key
    if key is None:
        return ""
    from dispatcher.core.once import BY_KEY, digest_of  # few events name a key

    return f"#{digest_of(event.category, BY_KEY, key)}"


def _words_of(event: Event) -> str:
    from dispatcher.core.rendering import text_of  # few events have blocks alone

    return text_of(event)


def open_envelope(job_id: str, data: bytes) -> Event:
    """The event in a job's ``data``, compressed or not; raises ``InvalidEvent`` saying what is wrong with it."""
    try:
        call = decode(data)
    except NotPlain:
        data = _plain(data)
        call = _decode(data)
    if not isinstance(call, list) or len(call) != len(("function", "instance", "arguments", "keywords")):
        raise InvalidEvent("job data is not RQ's list of function, instance, arguments and keywords")
    function, instance, arguments, keywords = call
    if function != FUNCTION:
        raise InvalidEvent(f"job names the function {str(function)[:100]!r}; this worker runs only {FUNCTION}")
    if instance is not None or not isinstance(arguments, list) or len(arguments) != 1 or keywords:
        raise InvalidEvent("job carries other arguments than one event")
    event = Event.from_payload(arguments[0])
    if len(data) > _SMALL:
        check_size(arguments[0])
    if event.id is not None and job_id_for(event.id) != job_id:
        raise InvalidEvent(
            f"id is {event.id!r}, but the job's id is {job_id!r}; pass job_id={job_id_for(event.id)!r} to enqueue"
        )
    return event


def names_us(data: bytes) -> bool:
    """Whether a job names our function, whatever arguments it has for it."""
    begin = data[: len(HEAD)]
    if begin[:1] and begin[0] == _ZLIB:
        try:
            begin = zlib.decompressobj().decompress(data, len(HEAD))
        except zlib.error:
            return False
    return begin.startswith(f'["{FUNCTION}",'.encode())


def shown_category(payload: bytes) -> str | None:
    """The category of what is no valid event: where an event has it, or where a call by keywords would have it."""
    try:
        call = json.loads(_plain(payload))
    except (ValueError, RecursionError, InvalidEvent):
        return None
    match call:
        case (
            {"category": str(category)}
            | [_, _, [{"category": str(category)}, *_], _]
            | [_, _, _, {"category": str(category)}]
        ):
            return category if CATEGORY.fullmatch(category) else None
        case _:
            return None


def _plain(data: bytes) -> bytes:
    """The data, inflated if it is compressed; raises ``InvalidEvent``, also where it is larger than ``_MOST_READ``."""
    if data[:1] and data[0] == _ZLIB:
        inflater = zlib.decompressobj()
        try:
            data = inflater.decompress(data, _MOST_READ + 1)
        except zlib.error as error:
            raise InvalidEvent("job data begins like zlib's, but cannot be decompressed; expected JSON") from error
    if len(data) > _MOST_READ:
        raise InvalidEvent(f"event is larger than {MAX_EVENT_BYTES} bytes")
    return data


def _decode(data: bytes) -> object:
    if data[:1] and data[0] == _PICKLE:
        raise InvalidEvent("job data is pickled, expected JSON (pass serializer=JSONSerializer to the queue)")
    try:
        return json.loads(data)
    except UnicodeDecodeError as error:  # a ValueError; its words depend on the encoding that JSON's rules guess
        raise InvalidEvent("job data is not UTF-8, expected JSON") from error
    except json.JSONDecodeError as error:
        raise InvalidEvent(f"job data is not JSON at character {error.pos + 1}: {error.msg}") from error
    except RecursionError as error:
        raise InvalidEvent("job data is nested too deeply") from error
    except ValueError as error:
        raise InvalidEvent(f"job data holds a number of more than {sys.get_int_max_str_digits()} digits") from error
