"""The producers' side: one call hands an event over.

from dispatcher import Producer

producer = Producer.from_env()
producer.send("errors", "disk full on db1", channel="#ops")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Literal, Self

from dispatcher.connection import Client, accepted, connect
from dispatcher.embedded import EmbeddedServer
from dispatcher.errors import DuplicateEvent, GateUnavailable, InvalidEvent, QueueFull, QueueUnavailable
from dispatcher.event import Event, encode_event, job_id_for, new_event_id
from dispatcher.keys import Keys, QueueKeys
from dispatcher.settings import load_settings
from dispatcher.store.intake import Enqueued, Intake

ANSWER_TIMEOUT_S: Final = 2.0
"""``QueueUnavailable`` comes within this time."""

CHUNK: Final = 500
"""Events per round trip of ``send_many``."""


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
        self._client = client
        self._embedded: EmbeddedServer | None = None
        self._intake = Intake(client, Keys(namespace), QueueKeys(queue), max_waiting=max_waiting)

    @classmethod
    def from_env(cls) -> Self:
        """A producer as the environment says (``DISPATCHER_REDIS_URL`` and the others).

        Never starts a server: without a URL it uses the embedded one that runs in the data dir. Raises ``ConfigError``.
        """
        settings, _ = load_settings()
        if settings.redis_url is not None:
            embedded, url = None, settings.redis_url.get_secret_value()
        else:
            embedded = EmbeddedServer.join(settings.data_dir, start=False)
            url = embedded.url
        producer = cls(
            connect(url, timeout_s=ANSWER_TIMEOUT_S),
            namespace=settings.namespace,
            queue=settings.queue,
            max_waiting=settings.max_waiting,
        )
        producer._embedded = embedded
        return producer

    def send(
        self,
        category: str,
        text: str = "",
        *,
        id: str | None = None,  # noqa: A002 - the field's name on the wire
        on_duplicate: Literal["ignore", "raise"] = "ignore",
        **fields: Any,  # noqa: ANN401 - the other fields of an Event, checked by it
    ) -> str:
        """Enqueue one event; returns its id, of a duplicate too unless ``on_duplicate="raise"``.

        ``fields`` are those of ``Event``: channel, blocks, thread_ts, priority, labels, created_at, max_age, mrkdwn.
        Raises ``InvalidEvent``, ``QueueFull``, ``QueueUnavailable`` (within 2 s), ``DuplicateEvent``; ``ConfigError``
        where the server answers and will not have it (another namespace's queue, no permission, a wrong password).
        """
        event = _event({"category": category, "text": text, "id": id, **fields})
        ((event_id, result),) = self._enqueue([event])
        if result is Enqueued.FULL:
            raise QueueFull("the queue is full: DISPATCHER_MAX_WAITING events are waiting")
        if result is Enqueued.DUPLICATE and on_duplicate == "raise":
            raise DuplicateEvent(f"id {event_id!r} is already present or was settled not long ago")
        return event_id

    def send_many(self, events: Iterable[Event | Mapping[str, Any]]) -> list[str]:
        """Enqueue many, in order, streamed in chunks; returns their ids, of duplicates too.

        An invalid event raises ``InvalidEvent`` that tells its position; a full queue raises ``QueueFull``. Both leave
        the chunks before it enqueued.
        """
        ids: list[str] = []
        for results in self.enqueue_chunks(events):
            for event_id, result in results:
                if result is Enqueued.FULL:
                    raise QueueFull(f"the queue is full after {len(ids)} events")
                ids.append(event_id)
        return ids

    def enqueue_chunks(self, events: Iterable[Event | Mapping[str, Any]]) -> Iterator[list[tuple[str, Enqueued]]]:
        """As ``send_many``, yielding what became of each event of each chunk; a full queue does not raise."""
        position = 0
        source = iter(events)
        while chunk := list(islice(source, CHUNK)):
            yield self._enqueue([_numbered(each, position + n) for n, each in enumerate(chunk)])
            position += len(chunk)

    def _enqueue(self, events: list[Event]) -> list[tuple[str, Enqueued]]:
        ids = [event.id or new_event_id() for event in events]
        rows = [(job_id_for(id_), event) for id_, event in zip(ids, events, strict=True)]
        try:
            with accepted(self._client):
                return list(zip(ids, self._intake.enqueue(rows), strict=True))
        except GateUnavailable as error:
            raise QueueUnavailable(str(error)) from error


def _event(fields: Mapping[str, Any]) -> Event:
    event = Event.from_payload(dict(fields))
    encode_event(event)
    return event


def _numbered(source: Event | Mapping[str, Any], position: int) -> Event:
    try:
        return source if isinstance(source, Event) else _event(source)
    except InvalidEvent as error:
        raise InvalidEvent(f"event {position}: {error}") from error
