"""The decision record: what became of an event, and why, for as long as it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dispatcher.core.explain import Decision
from dispatcher.jsonio import decode
from dispatcher.server.connection import Client, translate_outages
from dispatcher.server.keys import Keys


class Decisions:
    """Reads the record. Raises ``GateUnavailable`` when the server is away."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._names = keys.decisions

    def find(self, event_id: str) -> Decision | None:
        """The last decision about an event, by its id on the queue; None where none is kept."""
        with translate_outages(), self._client.pipeline(transaction=False) as pipe:
            for name in self._names:
                pipe.hget(name, event_id)
            rows = pipe.execute()
        return latest([read_decision(event_id, row) for row in rows if row is not None])

    def all(self) -> list[Decision]:
        """Everything that is kept, in no order."""
        with translate_outages(), self._client.pipeline(transaction=False) as pipe:
            for name in self._names:
                pipe.hgetall(name)
            parts: list[dict[bytes, bytes]] = pipe.execute()
        return [read_decision(id_.decode(), row) for part in parts for id_, row in part.items()]


def latest(found: Sequence[Decision]) -> Decision | None:
    """The one that says what became of the event: of several the last, and none of a duplicate before any other."""
    return max(found, key=lambda decision: (decision.outcome != "duplicate", decision.at_us), default=None)


def read_decision(event_id: str, row: bytes) -> Decision:
    """A row of the record."""
    instant, _, why = row.partition(b" ")
    outcome, category, reason, denied, said = decode(why)
    more: dict[str, Any] = dict(said)
    if denied is not None:
        scope, limit, retry_after_us = denied
        more |= {"scope": scope, "limit": limit, "fits_at_us": int(instant) + retry_after_us}
    return Decision(event_id, int(instant), outcome, reason, category, **more)
