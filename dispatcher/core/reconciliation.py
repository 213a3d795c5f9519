"""Reconciliation: find out whether posts without a clear answer arrived, by a scan of their channel's history. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, assert_never

from dispatcher.core.limits import Reason
from dispatcher.core.policy import Backoff, OnAmbiguous, Policy, again_after_us
from dispatcher.core.states import (
    LAST_SCAN,
    MARGIN_US,
    Absent,
    Candidate,
    DeadLettered,
    HistoryScan,
    Leased,
    Parked,
    Place,
    ScanLater,
    ScanResult,
    Search,
    Sent,
    Settlement,
    Slots,
    Trouble,
    Unconfirmed,
    Unreadable,
)
from dispatcher.core.transitions import MAX_ATTEMPTS, unhandled

MAX_RESENT: Final = 2
"""How often a post that never arrived is made again while others arrive; then it is a dead letter ``ambiguous``."""


def scans(unconfirmed: Sequence[Leased], policy: Policy, now_us: int) -> tuple[list[HistoryScan], list[Settlement]]:
    """One history scan for each channel (and thread) that such posts went to; and what cannot be handled."""
    places: dict[tuple[str, str | None], list[Candidate]] = {}
    ended: list[Settlement] = []
    for leased in unconfirmed:
        try:
            candidate = Candidate(leased, policy.terms(leased))
        except Exception as error:  # noqa: BLE001 - see unhandled
            ended.append(unhandled(leased, error))
            continue
        post = _unconfirmed(candidate)
        # Of its post: with another credential it goes elsewhere next.
        place = (post.channel or leased.channel or candidate.terms.channel, leased.thread_ts or post.root)
        places.setdefault(place, []).append(candidate)
    found = []
    for (channel, thread_ts), candidates in places.items():
        since_us = min(_unconfirmed(each).first_us for each in candidates) - MARGIN_US
        names = tuple(each.leased.name for each in candidates)
        found.append(HistoryScan(tuple(candidates), Search(channel, names, since_us, now_us, thread_ts)))
    return found, ended


def after_scan(
    scan: HistoryScan, result: ScanResult, policy: Policy, backoff: Backoff, grace_us: int
) -> list[Settlement]:
    """What a history scan means for each event it was made for.

    What is found was sent. What is absent is looked for again when ``LAST_SCAN`` graces have passed since its post, and
    then posted again, on the slot it has: ``MAX_RESENT`` times, where others are posted meanwhile. In an outage that
    does not count; where posts to the channel fail one after another, it is posted ``MAX_ATTEMPTS`` times in all, with
    long waits between. What cannot be read now is read later, until the event's deadline. Where nothing can be read,
    the category's ``on_ambiguous`` says: a post made again takes another slot, and there are ``MAX_ATTEMPTS`` in all,
    also in an outage.
    """
    settlements = []
    for candidate in scan.candidates:
        receipt = result.found.get(candidate.leased.name)
        if receipt is not None:
            settlements.append(_settlement(candidate, Sent(receipt, found=True), reached=True))
            continue
        match result.rest:
            case Absent():
                settlements.append(_absent(candidate, scan.search.now_us, grace_us))
            case ScanLater() as later:
                settlements.append(_later(candidate, later, scan.search.now_us, backoff))
            case Unreadable() as never:
                rule = policy.rule(candidate.leased.event.category)
                settlements.append(_unreadable(candidate, never, rule.on_ambiguous))
            case _:
                assert_never(result.rest)
    return settlements


def _absent(candidate: Candidate, now_us: int, grace_us: int) -> Settlement:
    leased, post = candidate.leased, _unconfirmed(candidate)
    if now_us < post.sent_us + LAST_SCAN * grace_us:
        waits = Parked(Place.SCAN, Reason.RECONCILE, LAST_SCAN * grace_us)
        return _settlement(candidate, waits, failed_scans=post.failed_scans, reached=True)
    again = Parked(Place.TIMER, Reason.RETRY, 0, "never_seen", detail="the channel does not show it: posted again")
    if post.trouble is Trouble.OUTAGE:
        return _settlement(candidate, again, Slots.HOLD, reached=True)
    if leased.attempt >= MAX_ATTEMPTS or (leased.resent >= MAX_RESENT and post.trouble is None):
        detail = f"{_posted(leased)}, and the channel never showed it"
        return _settlement(candidate, DeadLettered(Reason.AMBIGUOUS, detail, leased.code or again.code), reached=True)
    if post.trouble is Trouble.CHANNEL:
        again = replace(again, wait_us=again_after_us(leased.name, leased.attempt))
        return _settlement(candidate, again, Slots.HOLD, reached=True)
    return _settlement(candidate, again, Slots.HOLD, resent=leased.resent + 1, reached=True)


def _later(candidate: Candidate, later: ScanLater, now_us: int, backoff: Backoff) -> Settlement:
    post = _unconfirmed(candidate)
    facts: dict[str, Any] = {"reached": later.reached, "scan_wait_us": later.retry_after_us, "pause": later.pause}
    if now_us >= candidate.terms.deadline_us:
        posted = _posted(candidate.leased)
        detail = f"perhaps {posted}, and the channel's history could not be read before its max_age: {later.detail}"
        letter = DeadLettered(Reason.AMBIGUOUS, detail, candidate.leased.code or later.code)
        return _settlement(candidate, letter, failed_scans=post.failed_scans + 1, **facts)
    wait_us = backoff(post.failed_scans + 1) if later.retry_after_us is None else later.retry_after_us
    waits = Parked(Place.TIMER, Reason.RECONCILE, wait_us, later.code, detail=later.detail)
    return _settlement(candidate, waits, failed_scans=post.failed_scans + 1, **facts)


def _unreadable(candidate: Candidate, never: Unreadable, rule: OnAmbiguous) -> Settlement:
    leased = candidate.leased
    unknown = leased.unknown + 1
    if rule is OnAmbiguous.DEAD_LETTER or max(unknown, leased.attempt) >= MAX_ATTEMPTS:
        detail = f"perhaps {_posted(leased)}, and the channel's history cannot be read: {never.detail}"
        return _settlement(candidate, DeadLettered(Reason.AMBIGUOUS, detail, leased.code or never.code))
    detail = f"perhaps posted, and posted again since the channel's history cannot be read: {never.detail}"
    again = Parked(Place.TIMER, Reason.RETRY, again_after_us(leased.name, unknown), never.code, detail=detail)
    return _settlement(candidate, again, unknown=unknown)


def _posted(leased: Leased) -> str:
    return f"posted {'once' if leased.posts == 1 else f'{leased.posts} times'}"


def _settlement(
    candidate: Candidate, outcome: Sent | DeadLettered | Parked, slots: Slots = Slots.KEEP, **effects: object
) -> Settlement:
    leased = candidate.leased
    facts: dict[str, object] = {"attempt": leased.attempt, "unknown": leased.unknown, "resent": leased.resent}
    facts["is_scan"] = True
    return Settlement(leased, candidate.terms, outcome, slots, **(facts | effects))  # type: ignore[arg-type]  # fields by name


def _unconfirmed(candidate: Candidate) -> Unconfirmed:
    if candidate.leased.unconfirmed is None:
        raise ValueError(f"{candidate.leased.id} is reconciled, and its delivery status is known")
    return candidate.leased.unconfirmed
