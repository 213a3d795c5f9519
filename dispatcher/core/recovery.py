"""Recoveries: an event tells that what its key names is over. What is still known of the failure decides what it does.

Pure: no I/O, no clock. The message about the failure is edited where it can be, outside all limits but Slack's own.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from dispatcher.core import transitions
from dispatcher.core.event import Event
from dispatcher.core.limits import ONCE_PREFIX, Reason, all_scopes, is_once
from dispatcher.core.once import BY_KEY, Once, digest_of
from dispatcher.core.policy import EDITS, EDITS_PACE, Backoff, OnResolved, Policy, WhileWaiting
from dispatcher.core.posts import Ambiguous, Message, Paused, PostResult, Receipt, Rejected, Retryable
from dispatcher.core.rendering import CUT_MARK, MAX_TEXT, cut
from dispatcher.core.states import (
    Candidate,
    Digested,
    Dropped,
    Leased,
    Parked,
    Place,
    Posted,
    Recovery,
    Settlement,
    Slots,
    Started,
)
from dispatcher.core.tally import Counting, Telling, repeats_of
from dispatcher.core.units import US

_OVER: Final = ":white_check_mark: "
_UNITS_US: Final = (("h", 3_600 * US), ("min", 60 * US), ("s", US))
_FEW: Final = 10


class Subject(NamedTuple):
    """What an event is about, as the scripts know it: its name, and when the event was created.

    If an event says a later instant than its first sight, the first sight counts: a producer's clock may be ahead.
    """

    name: str
    instant_us: int


def repeats_counted(candidate: Candidate, once: Once) -> Counting | None:
    """Where repeats of the event are counted, to be told in its message; None if it takes no slot of ``once``."""
    leased, terms = candidate
    (first, *_) = all_scopes(terms.scopes) or (None,)
    if first is None or not is_once(first):
        return None
    return repeats_of(tally_id(leased.event.category, first.name), leased.event.category, once.per_us, first.name)


def tally_id(category: str, once: str) -> str:
    """The tally of the repeats that a scope refuses."""
    return f"{Telling.REPEAT}:{category}:{once.removeprefix(ONCE_PREFIX)}"


def subject_of(leased: Leased) -> Subject | None:
    """What the event is about; None of one that does not say it."""
    event = leased.event
    if event.dedup_key is None:
        return None
    seen_us = leased.seen_us
    created_us = seen_us if event.created_at is None else min(seen_us, round(event.created_at * US))
    return Subject(subject_name(event), created_us)


def subject_name(event: Event) -> str:
    """A digest of the category and the key."""
    return digest_of("subject", event.category, event.dedup_key or "")


def scope_of_key(event: Event) -> str:
    """The scope that one event about the key takes, unless labels or another key decide about repeats."""
    return ONCE_PREFIX + digest_of(event.category, BY_KEY, event.dedup_key or "")


def recovery_of(candidate: Candidate, policy: Policy, *, can_edit: bool) -> Recovery:
    """What has to be found out about the failure."""
    event = candidate.leased.event
    rule = policy.rule(event.category)
    own = None if rule.once is None else rule.once.name(event.category, event)
    once = {scope_of_key(event), *([] if own is None else [own])}
    cancels = rule.resolved_while_waiting is WhileWaiting.DROP
    return Recovery(candidate, cancels, can_edit, tuple(once), rule.counts_repeats)


def asks(leased: Leased) -> bool:
    """Whether the store must say what this recovery does. One that is a message of its own already does not ask."""
    is_message = (leased.was_admitted and leased.channel != EDITS) or leased.line is not None
    return not is_message and leased.unconfirmed is None


def as_edit(candidate: Candidate, posted: Posted) -> Candidate:
    """The recovery as one that edits a message: it asks for no slot, and keeps the pace of edits."""
    leased, terms = candidate
    return Candidate(
        leased._replace(edits=posted), replace(terms, channel=EDITS, pace=EDITS_PACE, scopes=(), shadows=())
    )


def as_message(candidate: Candidate, policy: Policy) -> Candidate | Settlement:
    """The recovery as a message of its own, within the limits; or its end, where such messages are not wanted."""
    leased = candidate.leased
    if policy.rule(leased.event.category).resolved is OnResolved.IGNORE:
        return unposted(candidate, "the message about the failure cannot be edited")
    own = leased._replace(edits=None)
    if leased.channel == EDITS:
        own = own._replace(channel=None, held=leased.has_slots, attempt=0)  # what an edit held is none of them
    return Candidate(own, policy.terms(own))


def unposted(candidate: Candidate, detail: str = "") -> Settlement:
    """The end of a recovery that has nothing to tell."""
    leased, terms = candidate
    slots = Slots.RELEASE if leased.held or leased.may_own_slots else Slots.KEEP
    return Settlement(leased, terms, Dropped(None, Reason.UNPOSTED, detail or None), slots)


def recovery_text(posted: Posted, event: Event, seen_us: int) -> str:
    """The message about the failure, struck through, with how long it lasted."""
    until_us = seen_us if event.created_at is None else min(seen_us, round(event.created_at * US))
    counted = f"x{posted.times}, " if posted.times > 1 else ""
    ending = f"\n{counted}after {_span(max(0, until_us - posted.since_us))}"
    marks = len("~~") * len(posted.text.splitlines())
    text = cut(posted.text, max(len(CUT_MARK), MAX_TEXT - len(_OVER) - marks - len(ending)))
    lines = (f"~{line.strip()}~" if line.strip() else "" for line in text.splitlines())
    return _OVER + "\n".join(lines) + ending


def message_of(started: Started) -> Message:
    """What takes the place of the message about the failure."""
    leased = started.candidate.leased
    if leased.edits is None:
        raise TypeError(f"{leased.id} edits nothing")
    return Message(leased.name, leased.edits.channel, recovery_text(leased.edits, leased.event, leased.seen_us))


def after_edit(started: Started, result: PostResult, backoff: Backoff, grace_us: int) -> Settlement:
    """What becomes of a recovery after an edit. The same edit twice is one edit, so none is looked up."""
    leased, terms = started.candidate
    match result:
        case Receipt():
            name = None if leased.edits is None else leased.edits.name
            done = Digested(Reason.RESOLVED, name)
            return Settlement(leased, terms, done, Slots.KEEP, replied=True, arrived=True, resume=True, reached=True)
        case Rejected(code, detail) | Paused("unknown_method" as code, detail):  # then a message of its own tells it
            waits = Parked(Place.TIMER, Reason.RESOLVED, 0, code, detail=detail)
            return Settlement(
                leased, terms, waits, Slots.KEEP, replied=True, arrived=True, reached=True, uneditable=True
            )
        case Ambiguous(code, detail):
            unclear = Retryable(code, detail, uses_attempt=True, reached=False)
            return transitions.after_post(started, unclear, backoff, grace_us)._replace(arrived=True)
        case _:
            return transitions.after_post(started, result, backoff, grace_us)


def _span(span_us: int) -> str:
    """``14 min``, ``1 h 59 min``: below 10 of the largest unit with the next one; ``1 s`` of less than that."""
    for (unit, unit_us), (below, below_us) in pairwise(_UNITS_US):
        if span_us >= unit_us:
            count, rest_us = divmod(span_us, unit_us)
            rest = rest_us // below_us if count < _FEW else 0
            return f"{count} {unit} {rest} {below}" if rest else f"{count} {unit}"
    return f"{max(1, span_us // US)} s"
