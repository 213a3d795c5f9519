"""The decision record: what became of an event, and why, for as long as it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, assert_never

from dispatcher.core.explain import Decision
from dispatcher.core.leased_event import Leased, Undecodable
from dispatcher.core.limits import Denied, Limit, Reason, Scope
from dispatcher.core.outcomes import DeadLettered, Dropped, Parked, Sent, Settlement, Told
from dispatcher.core.policy import limit_reason
from dispatcher.jsonio import decode, encode
from dispatcher.server.connection import Client, translate_outages
from dispatcher.server.keys import Keys

_LIMITS: Final = frozenset(
    {Reason.LIMIT_GLOBAL, Reason.LIMIT_CATEGORY, Reason.LIMIT_LABEL, Reason.OVERFLOW, Reason.MUTED}
)


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


def why_of(settlement: Settlement) -> str | None:
    """What the record says of a settlement, without its instant; None for what only waits."""
    subject = settlement.subject
    category = None if isinstance(subject, Undecodable) else subject.event.category
    match settlement.outcome:
        case Sent(receipt):
            copies = settlement.perhaps_posted
            channel = receipt.channel if settlement.terms is None else settlement.terms.channel
            said: dict[str, Any] = {"channel": channel, "ts": receipt.ts}
            said |= {"copies": copies} if copies else {}
            said |= {"shadow": subject.shadowed} if isinstance(subject, Leased) and subject.shadowed else {}
            return _text("sent", Reason.OK, category, None, said)
        case Dropped(denied, reason, detail, until_us):
            return _text("dropped", reason, category, denied, _said(settlement, detail, until_us))
        case DeadLettered(reason, detail, code, denied, until_us, _, since_us):
            said = _said(settlement, detail, until_us, code=code, since_us=since_us)
            return _text("dead", reason, category, denied, said)
        case Parked() | Told():
            return None
        case _:
            assert_never(settlement.outcome)


def is_limited(settlement: Settlement) -> bool:
    """Whether the event was suppressed, by a limit or by hand."""
    outcome = settlement.outcome
    return isinstance(outcome, Dropped) or (isinstance(outcome, DeadLettered) and outcome.reason in _LIMITS)


def _said(
    settlement: Settlement,
    detail: str | None,
    until_us: int | None,
    *,
    code: str | None = None,
    since_us: int | None = None,
) -> dict[str, Any]:
    said = {
        "detail": detail and detail[:200],
        "code": code,
        "fits_at_us": until_us,
        "since_us": since_us,
        "copies": settlement.perhaps_posted,
    }
    return {name: value for name, value in said.items() if value}


def refusal_text(outcome: str, reason: Reason, category: str, denied: Denied) -> str:
    """What the record, or a tally, says of a refusal."""
    return _text(outcome, reason, category, denied, {})


@lru_cache(maxsize=4096)
def told_of(scope: Scope, known: tuple[str, Limit] | None = None) -> list[str]:
    """What the decision record says of a refusal by each limit of the scope, up to the time until there is room.

    ``known`` is how people know a scope that keeps the slot of a digest apart.
    """
    said = [(scope.name, limit) for limit in scope.limits] if known is None else [known] * len(scope.limits)
    return [encode([limit_reason(name).value, [name, str(limit)]]).decode()[1:-2] + "," for name, limit in said]


def _text(outcome: str, reason: Reason, category: str | None, denied: Denied | None, said: dict[str, Any]) -> str:
    refusal = None if denied is None else [denied.scope, str(denied.limit), denied.retry_after_us]
    return encode([outcome, category, reason.value, refusal, said]).decode()
