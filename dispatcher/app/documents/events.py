"""Events as JSON has them: explained, parked, dead; instants are seconds since 1970."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dispatcher.core.event import Event
from dispatcher.core.explain import Decision, Explanation, clock_of, ended
from dispatcher.core.rendering import text_of
from dispatcher.core.units import US
from dispatcher.store.dead_letters import DeadLetter
from dispatcher.store.parked_events import ParkedEvent


def explained_document(explanation: Explanation) -> dict[str, Any]:
    """An explanation as JSON has it: every field, null where nothing is known; instants are seconds since 1970."""
    return {**asdict(explanation), "state": explanation.state.value}


def decision_document(decision: Decision) -> dict[str, Any]:
    """What became of an event as JSON has it; instants are seconds since 1970."""
    return {
        "id": decision.id,
        "at": decision.at_us / US,
        "category": decision.category,
        "outcome": decision.outcome,
        "reason": decision.reason,
        "code": decision.code,
        "detail": decision.detail,
        "scope": decision.scope,
        "limit": decision.limit,
        "channel": decision.channel,
        "ts": decision.ts,
        "text": decision.text,
        "labels": dict(decision.labels),
    }


def decisions_document(found: Sequence[Decision], kept_since_us: int | None, *, more: bool) -> dict[str, Any]:
    """A list of ended events as JSON has it, with whether there are more, and since when none is missing."""
    return {
        "events": [decision_document(each) for each in found],
        "more": more,
        "kept_since": None if kept_since_us is None else kept_since_us / US,
    }


def parked_document(parked_event: ParkedEvent) -> dict[str, Any]:
    """A parked event as JSON has it: what ``explain`` says, when it expires, and what it says."""
    expires_at = parked_event.deadline_us / US
    return {
        **explained_document(parked_event.explanation),
        "expires_at": expires_at,
        **_said_document(parked_event.event),
    }


def parked_events_document(found: Sequence[ParkedEvent], total: int, *, more: bool) -> dict[str, Any]:
    """A list of parked events as JSON has it, with whether there are more, and how many are parked in all."""
    return {"parked": [parked_document(each) for each in found], "more": more, "total": total}


def letter_document(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as JSON has it, but its payload; instants are seconds since 1970."""
    return {
        "id": letter.name,
        "job_id": letter.id,
        "at": letter.at_us / US,
        "category": letter.category,
        "channel": letter.channel,
        "reason": letter.reason,
        "code": letter.code,
        "detail": letter.detail,
        "sentence": ended(letter.decision(), clock_of(time.time_ns() // 1_000)),
        "scope": letter.scope,
        "limit": letter.limit,
        "fits_at": letter.fits_at_us and letter.fits_at_us / US,
        "attempts": letter.attempts,
        "replays": letter.replays,
        "repeats": letter.repeats,
        "first_seen": letter.seen_us and letter.seen_us / US,
        "payload_bytes": len(letter.payload),
        **_said_document(letter.event()),
    }


def letters_document(found: Sequence[DeadLetter], kept: int, *, more: bool) -> dict[str, Any]:
    """A list of dead letters as JSON has it, with whether there are more, and how many are kept in all."""
    return {"dead_letters": [letter_document(each) for each in found], "more": more, "kept": kept}


def _said_document(event: Event | None) -> dict[str, Any]:
    """What an event says, and its labels; both None where there is no event."""
    if event is None:
        return {"text": None, "labels": None}
    return {"text": text_of(event), "labels": dict(event.labels)}


def payload_document(letter: DeadLetter) -> dict[str, Any]:
    """The event as an object, None where the payload is none, and the payload as it lay on the queue.

    A number that JSON has no form for is None in the object.
    """
    event = letter.event()
    found = None if event is None else json.loads(json.dumps(event.to_payload()), parse_constant=lambda _: None)
    try:
        payload, encoding = letter.payload.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        payload, encoding = b64encode(letter.payload).decode("ascii"), "base64"
    return {"event": found, "payload": payload, "payload_encoding": encoding}
