"""What a log line says of an event, by the keys it has there. Pure."""

from __future__ import annotations

from typing import Final, assert_never

from dispatcher.core.leased_event import Leased, Undecodable, Waiting
from dispatcher.core.limits import US, Denied, LeftOut, Reason
from dispatcher.core.outcomes import DeadLettered, Dropped, Parked, Sent, Settlement, Step, Told
from dispatcher.core.tally import Tally

DIGEST_LINES: Final = frozenset(
    {
        "digest.posted",
        "digest.edited",
        "digest.parked",
        "digest.failed",
        "notice.posted",
        "notice.parked",
        "notice.failed",
    }
)
"""The lines about digest messages."""


def subject_facts(subject: Leased | Undecodable) -> dict[str, object]:
    """Which event it is."""
    if isinstance(subject, Undecodable):
        return {"event_id": subject.id}
    return {"event_id": subject.name, "category": subject.event.category}


def waiting_facts(waiting: Waiting) -> dict[str, object]:
    """An event that waits in a line, and for what."""
    facts: dict[str, object] = {"outcome": "parked", "reason": waiting.reason.value}
    if waiting.scope is not None:
        facts["scope"] = waiting.scope
    if waiting.wait_us is not None:
        facts["retry_after_s"] = waiting.wait_us / US
    return {**subject_facts(waiting.candidate.leased), **facts, "channel": waiting.candidate.terms.channel}


def facts_of(settlement: Settlement) -> dict[str, object]:
    """What became of an event, and why; ``perhaps_copies`` messages of it may stand in Slack."""
    facts = _facts_of(settlement)
    if settlement.perhaps_posted and not isinstance(settlement.outcome, Parked | Told):
        facts["perhaps_copies"] = settlement.perhaps_posted
    return facts


def _facts_of(settlement: Settlement) -> dict[str, object]:
    channel = {} if settlement.terms is None else {"channel": settlement.terms.channel}
    match settlement.outcome:
        case Sent(receipt, found):
            facts: dict[str, object] = {"outcome": "sent", "reason": Reason.OK.value, **channel}
            if receipt.channel not in channel.values():
                facts["channel_id"] = receipt.channel
            if found:
                facts["found"] = True
            if receipt.ts is not None:
                facts["ts"] = receipt.ts
            return {**facts, **_left_out(receipt.left_out)}
        case Dropped(denied, reason, detail, until_us):
            return {**dropped_facts(denied, reason), **_by_hand(detail, until_us)}
        case DeadLettered(reason, detail, code, denied, until_us, _, since_us):
            where = channel if denied is None and until_us is None else {}
            facts = {"outcome": "dead", "reason": reason.value, **_denial(denied), **where}
            facts |= _by_hand(detail, until_us)
            if since_us is not None:
                facts["since"] = since_us / US
            return facts if code is None else {**facts, "code": code}
        case Parked(_, reason, wait_us, code, denied, detail):
            facts = {"outcome": "parked", "reason": reason.value, **_denial(denied), "retry_after_s": wait_us / US}
            facts |= channel
            said = {"code": code, "detail": detail}
            return {**facts, **{name: words for name, words in said.items() if words}}
        case Told(step):
            return {"outcome": step.value}
        case _:
            assert_never(settlement.outcome)


def _left_out(parts: tuple[LeftOut, ...]) -> dict[str, object]:
    """What a message was posted without, and what Slack said to the last of it."""
    if not parts:
        return {}
    return {"left_out": ",".join(each.part for each in parts), "code": parts[-1].code, "detail": parts[-1].detail}


def dropped_facts(denied: Denied | None, reason: Reason, outcome: str = "dropped") -> dict[str, object]:
    """An event that was dropped, or digested."""
    return {"outcome": outcome, "reason": reason.value, **_denial(denied)}


def digest_line(tally: Tally, settlement: Settlement) -> tuple[str, dict[str, object]] | None:
    """The line about what a digest message has done, or None. That it cannot be posted is told once."""
    facts: dict[str, object] = {"category": tally.category, "count": tally.count}
    if settlement.terms is not None:
        facts["channel"] = settlement.terms.channel
    match settlement.outcome:
        case Told(Step.FAILED, code=code, detail=detail) if not tally.failed:
            return f"{tally.telling}.failed", {**facts, "code": code, "detail": detail}
        case Told(Step.POSTED | Step.EDITED as step, ends=ends):
            return f"{tally.telling}.{step}", {**facts, "ends": ends}
        case Parked(_, reason, wait_us):
            return f"{tally.telling}.parked", {**facts, "reason": reason.value, "retry_after_s": wait_us / US}
        case _:
            return None


def _by_hand(detail: str | None, until_us: int | None) -> dict[str, object]:
    facts = {"detail": detail, "until": None if until_us is None else until_us / US}
    return {name: value for name, value in facts.items() if value is not None}


def _denial(denied: Denied | None) -> dict[str, object]:
    if denied is None:
        return {}
    return {"scope": denied.scope, "limit": str(denied.limit), "retry_after_s": denied.retry_after_us / US}
