"""What follows for events whose posts had no clear answer: they are looked up in what their channel shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, assert_never

from dispatcher.category_rule import OnAmbiguous
from dispatcher.consequences import MAX_ATTEMPTS, as_candidate
from dispatcher.leased import Candidate, Doubt, Leased
from dispatcher.model import Reason
from dispatcher.outcome import DeadLettered, Lookup, Parked, Place, Sent, Settlement, Slots
from dispatcher.policy import Backoff, Policy
from dispatcher.reading import (
    LAST_LOOK,
    MARGIN_US,
    Absent,
    Reading,
    ReadLater,
    Search,
    Unreadable,
)

MAX_RESENT: Final = 2
"""How often a post that never arrived is made again; then the event is a dead letter ``ambiguous``."""


def lookups(doubtful: Sequence[Leased], policy: Policy, now_us: int) -> tuple[list[Lookup], list[Settlement]]:
    """One look-up for each channel (and thread) that posts of unknown fate went to; and what cannot be handled."""
    places: dict[tuple[str, str | None], list[Candidate]] = {}
    ended: list[Settlement] = []
    for leased in doubtful:
        match as_candidate(leased, policy):
            case Settlement() as settlement:
                ended.append(settlement)
            case candidate:
                doubt = _doubt(candidate)
                place = (doubt.channel or candidate.terms.channel, leased.event.thread_ts or doubt.root)
                places.setdefault(place, []).append(candidate)
    found = []
    for (channel, thread_ts), candidates in places.items():
        since_us = min(_doubt(each).first_us for each in candidates) - MARGIN_US
        names = tuple(each.leased.name for each in candidates)
        found.append(Lookup(tuple(candidates), Search(channel, names, since_us, thread_ts, now_us), now_us))
    return found, ended


def after_look(lookup: Lookup, reading: Reading, policy: Policy, backoff: Backoff, grace_us: int) -> list[Settlement]:
    """What a reading means for each event it was made for.

    What is found was sent. What is absent is looked for again when ``LAST_LOOK`` graces have passed since its post, and
    then posted again, on the slot it has. What cannot be read now is read later, until the event's deadline. Where
    nothing can be read, the category's ``on_ambiguous`` says: a post made again takes another slot.
    """
    settlements = []
    for candidate in lookup.candidates:
        receipt = reading.found.get(candidate.leased.name)
        if receipt is not None:
            sent = Sent(receipt, found=True, copies=candidate.leased.unknown)
            settlements.append(_settlement(candidate, sent, reached=True))
            continue
        match reading.rest:
            case Absent():
                settlements.append(_absent(candidate, lookup.now_us, grace_us))
            case ReadLater() as later:
                settlements.append(_later(candidate, later, lookup.now_us, backoff))
            case Unreadable() as never:
                rule = policy.rule(candidate.leased.event.category)
                settlements.append(_unreadable(candidate, never, rule.on_ambiguous, backoff))
            case _:
                assert_never(reading.rest)
    return settlements


def _absent(candidate: Candidate, now_us: int, grace_us: int) -> Settlement:
    leased, doubt = candidate.leased, _doubt(candidate)
    if now_us < doubt.sent_us + LAST_LOOK * grace_us:
        waits = Parked(Place.LOOK, Reason.RECONCILE, LAST_LOOK * grace_us)
        return _settlement(candidate, waits, looks=doubt.looks, reached=True)
    if leased.resent >= MAX_RESENT or leased.attempt >= MAX_ATTEMPTS:
        detail = f"posted {leased.attempt} times, and the channel never showed it"
        return _settlement(candidate, DeadLettered(Reason.AMBIGUOUS, detail, "never_seen"), reached=True)
    again = Parked(Place.TIMER, Reason.RETRY, 0, "never_seen", detail="the channel does not show it: posted again")
    return _settlement(candidate, again, Slots.HOLD, resent=leased.resent + 1, reached=True)


def _later(candidate: Candidate, later: ReadLater, now_us: int, backoff: Backoff) -> Settlement:
    doubt = _doubt(candidate)
    facts: dict[str, Any] = {"reached": later.reached, "reading_us": later.retry_after_us, "pause": later.pause}
    if now_us >= candidate.terms.deadline_us:
        detail = f"perhaps posted, and not to be looked up before its max_age: {later.detail}"
        return _settlement(
            candidate, DeadLettered(Reason.AMBIGUOUS, detail, later.code), looks=doubt.looks + 1, **facts
        )
    wait_us = backoff(doubt.looks + 1) if later.retry_after_us is None else later.retry_after_us
    waits = Parked(Place.TIMER, Reason.RECONCILE, wait_us, later.code, detail=later.detail)
    return _settlement(candidate, waits, looks=doubt.looks + 1, **facts)


def _unreadable(candidate: Candidate, never: Unreadable, rule: OnAmbiguous, backoff: Backoff) -> Settlement:
    leased = candidate.leased
    if rule is OnAmbiguous.DEAD_LETTER or leased.attempt >= MAX_ATTEMPTS:
        detail = f"perhaps posted ({leased.attempt} attempts), and it cannot be looked up: {never.detail}"
        return _settlement(candidate, DeadLettered(Reason.AMBIGUOUS, detail, never.code))
    detail = f"perhaps posted, and posted again since it cannot be looked up: {never.detail}"
    again = Parked(Place.TIMER, Reason.RETRY, backoff(leased.attempt), never.code, detail=detail)
    return _settlement(candidate, again, unknown=leased.unknown + 1)


def _settlement(
    candidate: Candidate, outcome: Sent | DeadLettered | Parked, slots: Slots = Slots.KEEP, **effects: object
) -> Settlement:
    leased = candidate.leased
    facts: dict[str, object] = {"attempt": leased.attempt, "unknown": leased.unknown, "resent": leased.resent}
    return Settlement(leased, candidate.terms, outcome, slots, **(facts | effects))  # type: ignore[arg-type]  # fields by name


def _doubt(candidate: Candidate) -> Doubt:
    if candidate.leased.doubt is None:
        raise ValueError(f"{candidate.leased.id} is looked up, and its fate is known")
    return candidate.leased.doubt
