"""The events under one worker's lease: take, start, settle, renew, give back. Each is one script and one round trip."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from dispatcher.connection import Client, JsonScript
from dispatcher.event import is_remembered
from dispatcher.keys import Keys, QueueKeys
from dispatcher.model import Reason, all_scopes
from dispatcher.outcome import (
    DEFAULT_BOUNDS,
    NO_CATEGORY,
    Bounds,
    Candidate,
    DeadLettered,
    Dropped,
    Leased,
    Outcome,
    Parked,
    Sent,
    Settlement,
    Spoiled,
    Started,
    Terms,
    Waiting,
)
from dispatcher.store.envelope import read


@dataclass(frozen=True, slots=True)
class Taken:
    """What one ``take`` brought. ``next_us`` is the next instant at which there may be something to take."""

    batch: list[Leased | Spoiled]
    now_us: int
    next_us: int | None
    more: bool
    suspended: bool
    interrupted: bool
    duplicates: list[str]


class Outbox:
    """One owner's view of a namespace.

    Every method raises ``GateUnavailable`` when the server is away; whether the script ran is then unknown, and
    ``keep_only`` puts things right: what this worker does not hold goes back.
    """

    def __init__(  # noqa: PLR0913 - collaborators first, figures by name
        self,
        client: Client,
        keys: Keys,
        queue: QueueKeys,
        *,
        owner: str,
        lease_us: int,
        remember_us: int,
        bounds: Bounds = DEFAULT_BOUNDS,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.owner = owner
        self._keys = keys
        self._queue = queue
        self._lease_us = lease_us
        self._remember_us = remember_us
        self._bounds = bounds
        self._leased = keys.leased(owner)
        self.trimmed = 0
        """Dead letters lost to their bounds so far; whoever tells of them sets it back."""
        self._take, self._pace, self._settle, self._renew = (
            JsonScript(client, name, clock) for name in ("take", "pace", "settle", "renew")
        )
        self._waiting_keys = [
            keys.events, self._leased, keys.parked, keys.lines, keys.timers, keys.posting, keys.cooldowns,
            keys.pause, keys.totals, keys.names, keys.wake,
        ]  # fmt: skip

    def take(self, new: int, due: int) -> Taken:
        """Up to ``due`` waiting events whose time has come, what dead workers left, and new ones up to ``new``."""
        return self._taken({"new": new, "due": due})

    def adopt(self, job_id: str, payload: str) -> Taken:
        """Enter one event that a stock RQ worker is running, as if it had been taken from its lane."""
        return self._taken({"new": 0, "due": 0, "adopt": {"id": job_id, "payload": payload}})

    def start(self, candidates: Sequence[Candidate], free: int) -> list[Started | Waiting | None]:
        """See ``dispatch.Outbox.start``."""
        table = _Table(self._keys, self._waiting_keys)
        events = [
            {
                **table.subject(each.leased, each.terms),
                "attempt": each.leased.attempt + 1,
                "deadline": str(each.terms.deadline_us),
            }
            for each in candidates
        ]
        call = {"free": free, "channels": table.channels, "events": events}
        answer = json.loads(self._pace(table.keys, call))
        return [_started(each, row) for each, row in zip(candidates, answer["events"], strict=True)]

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """See ``dispatch.Outbox.settle``."""
        table = _Table(self._keys, [*self._waiting_keys, self._keys.seen, self._keys.dead, self._keys.dead_ids])
        events = [_settled(each, table) for each in settlements]
        call = {
            "remember_us": self._remember_us,
            "dead": {"max": self._bounds.max, "max_age_us": self._bounds.max_age_us},
            "channels": table.channels,
            "events": events,
        }
        answer = json.loads(self._settle(table.keys, call))
        self.trimmed += answer["trimmed"]
        return [bool(done) for done in answer["settled"]]

    def renew(self) -> None:
        """Keep the lease."""
        self._renewed({"lease_us": self._lease_us})

    def keep_only(self, ids: Iterable[str]) -> int:
        """Renew, and give back everything but ``ids``: after an answer of the server was lost. Returns how many."""
        return self._renewed({"lease_us": self._lease_us, "keep": list(ids)})

    def give_back(self, keep: Iterable[str] = ()) -> int:
        """End the lease: all but ``keep`` are the next to be taken, in order. Returns how many."""
        return self._renewed({"lease_us": 0, "keep": list(keep)})

    def _taken(self, call: dict[str, Any]) -> Taken:
        keys = self._keys
        names = [
            keys.events, keys.leases, self._leased, keys.orphans, keys.parked, keys.lines, keys.timers, keys.posting,
            keys.pause, keys.beat, keys.seq, keys.totals, keys.seen, keys.dead_ids, self._queue.suspended,
            *self._queue.lanes,
        ]  # fmt: skip
        call |= {
            "owner": self.owner,
            "lease_us": self._lease_us,
            "leased": keys.leased_prefix,
            "line": keys.line_prefix,
        }
        head, *rows = self._take(names, call)
        facts = json.loads(head)
        return Taken(
            batch=[read(rows[i].decode(), rows[i + 1]) for i in range(0, len(rows), 2)],
            now_us=int(facts["now"]),
            next_us=int(facts["next"]) if facts["next"] else None,
            more=facts["more"],
            suspended=facts["suspended"],
            interrupted=facts["interrupted"],
            duplicates=facts["duplicates"] or [],
        )

    def _renewed(self, call: dict[str, Any]) -> int:
        keys = self._keys
        names = [keys.events, keys.leases, self._leased, keys.orphans, keys.beat, keys.wake]
        return int(self._renew(names, {"owner": self.owner, **call}))


class _Table:
    """Collects the keys of a call, each once, and the channels that point to them."""

    def __init__(self, keys: Keys, fixed: Sequence[str]) -> None:
        self.keys = list(fixed)
        self.channels: list[dict[str, Any]] = []
        self._names = keys
        self._positions: dict[str, int] = {}
        self._channel_positions: dict[str, int] = {}

    def subject(self, leased: Leased, terms: Terms) -> dict[str, Any]:
        """What every script is told of an event."""
        return {
            "id": leased.id,
            "category": leased.event.category,
            "configured": terms.configured,
            "channel": self._channel(terms),
            "slot": leased.slot,
            "scopes": [self._position(self._names.scope(scope.name)) for scope in all_scopes(terms.scopes)],
        }

    def _channel(self, terms: Terms) -> int:
        known = self._channel_positions.get(terms.channel)
        if known is not None:
            return known
        channel: dict[str, Any] = {
            "name": terms.channel,
            "line": self._position(self._names.line(f"channel:{terms.channel}")),
        }
        if terms.pace is not None:
            pace = self._position(self._names.scope(f"pace:{terms.channel}"))
            channel |= {"pace": pace, "max": terms.pace.max, "window_us": terms.pace.window_us}
        self.channels.append(channel)
        self._channel_positions[terms.channel] = len(self.channels)
        return len(self.channels)

    def _position(self, key: str) -> int:
        if key not in self._positions:
            self.keys.append(key)
            self._positions[key] = len(self.keys)
        return self._positions[key]


def _started(candidate: Candidate, row: Any) -> Started | Waiting | None:  # noqa: ANN401 - a row of pace.lua
    if row == "go":
        return Started(candidate, candidate.leased.attempt + 1)
    if row == "lost":
        return None
    reason, wait_us = row
    return Waiting(candidate, Reason(reason), wait_us)


def _settled(settlement: Settlement, table: _Table) -> dict[str, Any]:
    subject, terms = settlement.subject, settlement.terms
    row: dict[str, Any]
    if isinstance(subject, Spoiled) or terms is None:
        row = {"id": subject.id, "category": NO_CATEGORY, "configured": True, "scopes": []}
    else:
        row = table.subject(subject, terms)
        row["deadline"] = str(terms.deadline_us)
        if not isinstance(settlement.outcome, Parked) and is_remembered(subject.event, subject.id):
            row["remember"] = True
    row["slots"] = settlement.slots.value
    row |= _ended(settlement.outcome, settlement)
    if isinstance(settlement.outcome, Dropped):
        del row["channel"]  # it never had a turn or a place in a line
    if settlement.replied:
        row["replied"] = True
    if settlement.resume:
        row["resume"] = True
    if settlement.cooldown_us is not None:
        row["cooldown_us"] = settlement.cooldown_us
    if settlement.pause is not None:
        row["pause"] = {"code": settlement.pause.code, "detail": settlement.pause.detail}
    return row


def _ended(outcome: Outcome, settlement: Settlement) -> dict[str, Any]:
    match outcome:
        case Sent():
            return {"outcome": "sent"}
        case Dropped():
            return {"outcome": "dropped"}
        case DeadLettered():
            return {"outcome": "dead", "letter": _letter(outcome, settlement)}
        case Parked(place, _, wait_us):
            return {
                "outcome": "parked",
                "place": place.value,
                "wait_us": wait_us,
                "attempt": settlement.attempt,
                "unknown": settlement.unknown,
            }
        case _:
            assert_never(outcome)


def _letter(outcome: DeadLettered, settlement: Settlement) -> dict[str, str]:
    letter = {"reason": outcome.reason.value, "detail": outcome.detail, "attempts": str(settlement.attempt)}
    if settlement.subject.replays:
        letter["replays"] = str(settlement.subject.replays)
    if outcome.code is not None:
        letter["code"] = outcome.code
    if outcome.denied is not None:
        letter |= {
            "scope": outcome.denied.scope,
            "limit": str(outcome.denied.limit),
            "retry_after_us": str(outcome.denied.retry_after_us),
        }
    if isinstance(settlement.subject, Leased):
        letter |= {"category": settlement.subject.event.category, "seen": str(settlement.subject.seen_us)}
    return letter
