"""Dead letters made at once, and what is left of them, in the namespace and queue that settings have by default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dispatcher.core.event import Event
from dispatcher.core.limits import Denied, Limit, Reason
from dispatcher.core.states import DeadLettered, Leased, Settlement, Terms
from dispatcher.core.transitions import undecodable
from dispatcher.core.units import US
from dispatcher.producer.blocking import Producer
from dispatcher.server.keys import Keys
from dispatcher.store.leases import Outbox
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books
from tests.support.servers import Database

KEYS: Final = Keys("dispatcher")
QUEUE: Final = QueueKeys("notifications")

REJECTED: Final = DeadLettered(Reason.REJECTED, "there is no such channel", "channel_not_found")
EXHAUSTED: Final = DeadLettered(Reason.EXHAUSTED, "connection refused", "connection")
DENIED: Final = DeadLettered(
    Reason.LIMIT_CATEGORY,
    "category:errors had used its 10/30m",
    denied=Denied("category:errors", Limit.parse("10/30m"), 90 * US),
)

_DAY_US: Final = 86_400 * US


def bury(
    redis: Database,
    events: Iterable[Event | Mapping[str, Any]] = (),
    end: DeadLettered = REJECTED,
    *,
    ago_s: float = 0,
    attempts: int = 0,
) -> None:
    """Enqueue the events, and let whatever waits on the lanes end so, ``ago_s`` ago."""
    Producer(redis).send_many(events)
    seconds, rest_us = redis.time()
    at_us = seconds * US + rest_us - round(ago_s * US)
    outbox = Outbox(redis, KEYS, QUEUE, owner="gravedigger", lease_us=_DAY_US, remember_us=_DAY_US, clock=lambda: at_us)
    terms = Terms("#general", None, (), at_us + _DAY_US, configured=True)
    while batch := outbox.take(500, 0).batch:
        outbox.settle(
            [
                Settlement(each, terms, end, attempt=attempts) if isinstance(each, Leased) else undecodable(each)
                for each in batch
            ]
        )
    outbox.give_back()


def numbered(count: int) -> list[dict[str, str]]:
    """As many events, ``e0`` and so on."""
    return [{"category": "errors", "text": f"text {n}", "id": f"e{n}"} for n in range(count)]


def buried(redis: Database) -> list[str]:
    """The ids on the queue of all dead letters, the oldest first; each has its entry in the index."""
    rows = redis.xrange(KEYS.dead)
    ids = [fields[b"id"].decode() for _, fields in rows]
    assert int(redis.get(KEYS.dead_bytes) or 0) == sum(int(fields[b"bytes"]) for _, fields in rows)
    assert redis.hgetall(KEYS.dead_ids) == {fields[b"id"]: entry for entry, fields in rows}
    return ids


def on_lanes(redis: Database) -> list[str]:
    """The ids that wait, the most urgent lane first."""
    return [id_.decode() for lane in QUEUE.lanes for id_ in redis.lrange(lane, 0, -1)]


def balanced(redis: Database) -> dict[str, int]:
    """The totals, of books that balance."""
    snapshot = Books(redis, KEYS, QUEUE).snapshot()
    assert snapshot.imbalances() == []
    return snapshot.overall()


def everything(redis: Database) -> dict[str, bytes]:
    """All that is stored, key by key."""
    return {key.decode(): redis.dump(key) for key in redis.scan_iter(count=1_000)}


def twice(ids: Iterable[str]) -> list[str]:
    """Those that occur more than once."""
    return [id_ for id_, count in Counter(ids).items() if count > 1]
