"""What goes to enqueue.lua and what comes back, as values: keys, arguments, and the answer read again.

Pure: the blocking and the asyncio intake differ in how they call, not in what they say. It stands apart from them so
that ``import dispatcher`` does not load redis-py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from dispatcher.core.event import Event, encode_event, is_remembered
from dispatcher.core.units import Lane
from dispatcher.errors import ConfigError
from dispatcher.jsonio import encode
from dispatcher.server.keys import LAYOUT_VERSION, Keys
from dispatcher.store.rq_keys import QueueKeys

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


def seal(event: Event) -> str:
    """The ``data`` of a job: function, instance, arguments and keywords in RQ's JSON form."""
    return f"{HEAD}{encode_event(event)}{TAIL}"


def shown_of(event: Event, chars: int = SHOWN_CHARS) -> str:
    """The text, labels and, unless it is normal, priority of an event as the decision record keeps them.

    It is JSON without brackets.

    Of the text ``chars`` characters at most, 0 or ``SHOWN_CHARS``. Long labels are left out.
    """
    text = " ".join((event.text or _words_of(event))[: 4 * chars].split()) if chars else ""
    labels = dict(event.labels)
    if sum(len(name) + len(value) for name, value in labels.items()) > _MOST_LABELS:
        labels = {}
    priority = () if event.priority is Lane.NORMAL else (event.priority.value,)
    parts = [text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…", labels, *priority]
    return encode(parts).decode()[1:-1]


def _about(event: Event) -> str:
    """What the event is about, for the pre-check of repeats: what the name of its scope ends with."""
    key = event.once_key or event.dedup_key
    if key is None:
        return ""
    from dispatcher.core.once import BY_KEY, digest_of  # few events name a key

    return f"#{digest_of(event.category, BY_KEY, key)}"


def _words_of(event: Event) -> str:
    from dispatcher.core.rendering import text_of as words_of  # few events have blocks alone

    return words_of(event)


class Enqueued(IntEnum):
    """What became of one event that was handed over."""

    FULL = -1
    DUPLICATE = 0
    DONE = 1


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
        self._facts: Arguments = [LAYOUT_VERSION, keys.namespace, max_waiting]
        self._job_prefix = queue.job("")

    def job(self, job_id: str, event: Event, *, is_generated: bool = False) -> Job:
        """The event as a job; ``is_generated`` says of its id that nobody has chosen it.

        Raises ``InvalidEvent`` when the event is too large or cannot be written as JSON.
        """
        event = event.sent_at(time.time()) if event.delay is not None else event
        remembered = "0" if is_generated or not is_remembered(event, job_id) else "1"
        text = event.text[:_DESCRIBED].replace("\n", " ")
        has_mark = (event.id is None or event.id == job_id) and not (event.is_scheduled or event.is_resolved)
        mark = f"{event.category} {remembered}{_about(event)}\n{shown_of(event)}" if has_mark else "\n"
        row = f"{_LANES[event.priority]}{remembered}{mark}\n{event.category}: {text}\n{seal(event)}"
        return Job(self._job_prefix + job_id, row)

    def enqueue(
        self, jobs: Sequence[Job], now_us: int | None, *, all_or_nothing: bool = False, fold: str | None = None
    ) -> tuple[list[str], Arguments]:
        """Keys and arguments; ``now_us`` replaces the server's clock.

        A call with the ``fold`` of an earlier one is a repeat of it, for ``FOLD_MS``.
        """
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
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
            return [_RESULTS[result] for result in text_of(answer)]
        kind, found = map(text_of, answer)
        if kind == "layout":
            raise wrong_layout(found, self._keys.namespace)
        raise foreign_queue(found, self._keys, self._queue)


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


def text_of(answer: bytes | str) -> str:
    """An answer of the server as text, whatever the client makes of it."""
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
