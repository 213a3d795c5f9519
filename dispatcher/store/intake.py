"""Puts events on the lanes, as RQ jobs, and binds a queue to its namespace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import Final

from dispatcher.connection import Client, Script, answered
from dispatcher.errors import ConfigError
from dispatcher.event import Event, is_remembered
from dispatcher.keys import LAYOUT_VERSION, Keys, QueueKeys
from dispatcher.model import Lane
from dispatcher.store.envelope import seal

_LANES: Final = tuple(Lane)


class Enqueued(IntEnum):
    """What became of one event that was handed over."""

    FULL = -1
    DUPLICATE = 0
    DONE = 1


class Intake:
    """The producers' side of the queue; one round trip for each call. Raises ``GateUnavailable`` when Redis is away."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        queue: QueueKeys,
        *,
        max_waiting: int,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._clock = clock
        self._keys = keys
        self._queue = queue
        self._max_waiting = max_waiting
        self._client = client
        self._enqueue = Script(client, "enqueue")
        self._is_bound = False

    def enqueue(self, events: Sequence[tuple[str, Event]]) -> list[Enqueued]:
        """Enqueue each ``(job id, event)``.

        Raises ``ConfigError`` when the namespace has another layout, or the queue belongs to another namespace.
        """
        keys, queue = self._keys, self._queue
        self._check_binding()
        names = [*queue.lanes, queue.queues, keys.events, keys.seen, keys.dead_ids, keys.layout]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        args: list[str | int] = [LAYOUT_VERSION, self._max_waiting, now, self._clock() if self._clock else ""]
        for job_id, event in events:
            names.append(queue.job(job_id))
            args += [
                _LANES.index(event.priority) + 1,
                job_id,
                seal(event),
                f"{event.category}: {event.text[:60]}",
                "1" if is_remembered(event, job_id) else "",
            ]
        answer = self._enqueue(names, args)
        if isinstance(answer, bytes):
            raise wrong_layout(answer.decode(), keys.namespace)
        return [Enqueued(row) for row in answer]

    def _check_binding(self) -> None:
        """Once it is known who takes from the queue, it is not asked again: the binding is for good."""
        if self._is_bound:
            return
        with answered():
            bound = self._client.get(self._queue.binding)
        if bound is not None:
            _refuse_foreign(_text(bound), self._keys, self._queue)
            self._is_bound = True


def wrong_layout(found: str, namespace: str) -> ConfigError:
    """The refusal of a namespace that another version wrote."""
    return ConfigError(
        f"namespace {namespace!r} holds key layout {found!r}, this version reads layout {LAYOUT_VERSION!r}: let "
        "workers of the version that wrote it drain the namespace, or set DISPATCHER_NAMESPACE to a new one"
    )


def claim_namespace(client: Client, keys: Keys, queue: QueueKeys) -> None:
    """What a worker does before it takes anything: write the layout where there is none, bind the queue.

    Raises ``ConfigError`` where the layout is another one or the queue belongs to another namespace.
    """
    answer = Script(client, "claim")([keys.layout, queue.binding], [LAYOUT_VERSION, keys.namespace])
    layout, bound = (_text(value) for value in answer)
    if layout != LAYOUT_VERSION:
        raise wrong_layout(layout, keys.namespace)
    _refuse_foreign(bound, keys, queue)


def _refuse_foreign(bound: str, keys: Keys, queue: QueueKeys) -> None:
    if bound != keys.namespace:
        raise ConfigError(
            f"queue {queue.queue!r} belongs to namespace {bound!r}, not to {keys.namespace!r}: "
            "set DISPATCHER_NAMESPACE to it, or DISPATCHER_QUEUE to another queue"
        )


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
