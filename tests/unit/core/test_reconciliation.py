"""What a history scan means for each event, by values alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from dispatcher.core.event import Event
from dispatcher.core.limits import Reason
from dispatcher.core.policy import OnAmbiguous, Policy, again_after_us
from dispatcher.core.posts import Paused, Receipt
from dispatcher.core.reconciliation import MAX_RESENT, after_scan, scans
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
    Rest,
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
from dispatcher.core.transitions import MAX_ATTEMPTS
from dispatcher.core.units import US
from tests.support.stage import policy_of

GRACE_US: Final = 10 * US
POLICY: Final = policy_of()
DEADLINE_US: Final = POLICY.defaults.max_age_us
NEVER: Final = Unreadable("missing_scope", "conversations.history: the token lacks a scope")


def unconfirmed(id_: str = "x", *, sent_us: int = 0, first_us: int = 0, failed_scans: int = 0, **facts: Any) -> Leased:  # noqa: ANN401 - fields
    fields: dict[str, Any] = {"attempt": 1, "unconfirmed": Unconfirmed(sent_us, first_us, failed_scans), **facts}
    return Leased(id_, Event("errors", "x", id=id_), 1, 0)._replace(**fields)


def concluded(leased: Leased, rest: Rest, now_us: int = 0, policy: Policy = POLICY) -> Settlement:
    """What a history scan at ``now_us`` that found nothing means."""
    candidate = Candidate(leased, policy.terms(leased))
    scan = HistoryScan((candidate,), Search("#general", (leased.id,), 0, now_us))
    (settlement,) = after_scan(scan, ScanResult({}, rest), policy, lambda n: n * US, GRACE_US)
    return settlement


@pytest.mark.parametrize(
    ("now_us", "place"), [(LAST_SCAN * GRACE_US - 1, Place.SCAN), (LAST_SCAN * GRACE_US, Place.TIMER)]
)
def test_absent_is_final_at_the_last_look_to_the_microsecond(now_us: int, place: Place) -> None:
    settlement = concluded(unconfirmed(), Absent(), now_us)
    assert isinstance(settlement.outcome, Parked)
    assert settlement.outcome.place is place
    assert settlement.slots is (Slots.HOLD if place is Place.TIMER else Slots.KEEP)
    assert settlement.failed_scans == (0 if place is Place.SCAN else None)


def test_the_last_scan_counts_from_the_last_post_and_a_history_scan_begins_at_the_first() -> None:
    leased = unconfirmed(sent_us=100 * US, first_us=0)
    assert concluded(leased, Absent(), 100 * US).failed_scans == 0
    ((scan,), ended) = scans([leased], POLICY, 100 * US)
    assert (scan.search.since_us, ended) == (-MARGIN_US, [])


@pytest.mark.parametrize(
    ("resent", "attempt", "ends"), [(MAX_RESENT - 1, 2, False), (MAX_RESENT, 3, True), (0, MAX_ATTEMPTS, True)]
)
def test_the_posts_made_again_have_an_end(resent: int, attempt: int, *, ends: bool) -> None:
    settlement = concluded(unconfirmed(resent=resent, attempt=attempt), Absent(), LAST_SCAN * GRACE_US)
    assert isinstance(settlement.outcome, DeadLettered) is ends
    assert settlement.resent == (resent if ends else resent + 1)
    assert settlement.attempt == attempt


@pytest.mark.parametrize(("now_us", "ends"), [(DEADLINE_US - 1, False), (DEADLINE_US, True)])
def test_a_failed_scan_is_repeated_until_the_deadline(now_us: int, *, ends: bool) -> None:
    settlement = concluded(unconfirmed(failed_scans=3), ScanLater("http_503", "no answer"), now_us)
    assert (settlement.failed_scans, settlement.reached) == (4, False)
    if ends:
        assert isinstance(settlement.outcome, DeadLettered)
        assert (settlement.outcome.reason, settlement.slots) == (Reason.AMBIGUOUS, Slots.KEEP)
    else:
        assert settlement.outcome == Parked(Place.TIMER, Reason.RECONCILE, 4 * US, "http_503", detail="no answer")


def test_slacks_own_wish_goes_before_our_back_off_and_holds_for_all() -> None:
    settlement = concluded(unconfirmed(failed_scans=3), ScanLater("ratelimited", "", 60 * US, reached=True))
    assert isinstance(settlement.outcome, Parked)
    assert (settlement.outcome.wait_us, settlement.scan_wait_us, settlement.reached) == (60 * US, 60 * US, True)


def test_a_pause_that_a_history_scan_met_is_handed_on() -> None:
    pause = Paused("invalid_auth", "Slack does not accept the token")
    assert concluded(unconfirmed(), ScanLater("invalid_auth", "", reached=True, pause=pause)).pause == pause


@pytest.mark.parametrize(
    ("rule", "attempt", "unknown", "ends"),
    [
        (OnAmbiguous.RESEND, MAX_ATTEMPTS - 1, 2, False),
        (OnAmbiguous.RESEND, MAX_ATTEMPTS, 2, True),
        (OnAmbiguous.RESEND, 1, MAX_ATTEMPTS - 2, False),
        (OnAmbiguous.RESEND, 1, MAX_ATTEMPTS - 1, True),
        (OnAmbiguous.DEAD_LETTER, 1, 2, True),
    ],
)
def test_the_category_decides_what_follows_when_the_history_cannot_be_read(
    rule: OnAmbiguous, attempt: int, unknown: int, *, ends: bool
) -> None:
    defaults = replace(POLICY.defaults, on_ambiguous=rule)
    policy = replace(POLICY, defaults=defaults, categories={"errors": defaults})
    settlement = concluded(unconfirmed(attempt=attempt, unknown=unknown), NEVER, policy=policy)
    assert settlement.slots is Slots.KEEP
    if ends:
        assert isinstance(settlement.outcome, DeadLettered)
        assert (settlement.outcome.reason, settlement.outcome.code) == (Reason.AMBIGUOUS, "missing_scope")
        assert settlement.unknown == unknown
    else:
        assert isinstance(settlement.outcome, Parked)
        assert (settlement.unknown, settlement.failed_scans) == (unknown + 1, None)
        assert settlement.outcome.wait_us == again_after_us("x", unknown + 1)


@pytest.mark.parametrize(
    ("resent", "attempt", "trouble", "outcome"),
    [
        (MAX_RESENT, 3, None, "ends"),
        (MAX_RESENT, 3, Trouble.CHANNEL, "waits long"),
        (0, MAX_ATTEMPTS - 1, Trouble.CHANNEL, "waits long"),
        (0, MAX_ATTEMPTS, Trouble.CHANNEL, "ends"),
        (MAX_RESENT, MAX_ATTEMPTS, Trouble.OUTAGE, "goes on"),
    ],
)
def test_an_event_not_found_is_given_up_later_while_posts_fail_elsewhere(
    resent: int, attempt: int, trouble: Trouble | None, outcome: str
) -> None:
    post = Unconfirmed(0, 0, trouble=trouble)
    settlement = concluded(
        unconfirmed(resent=resent, attempt=attempt, unconfirmed=post), Absent(), LAST_SCAN * GRACE_US
    )
    assert settlement.resent == resent
    if outcome == "ends":
        assert isinstance(settlement.outcome, DeadLettered)
    else:
        assert isinstance(settlement.outcome, Parked)
        assert settlement.outcome.wait_us == (again_after_us("x", attempt) if outcome == "waits long" else 0)


@pytest.mark.parametrize(("nth", "whole_s"), [(1, 1), (2, 5), (3, 25), (6, 3_125), (7, 3_600), (40, 3_600)])
def test_each_wait_after_an_ambiguous_post_is_half_to_all_of_five_times_the_last(nth: int, whole_s: int) -> None:
    waits = [again_after_us(f"event-{n}", nth) for n in range(200)]
    assert whole_s * US / 2 <= min(waits) < 0.55 * whole_s * US
    assert 0.95 * whole_s * US < max(waits) <= whole_s * US


def test_an_event_that_is_found_is_sent_whatever_the_history_scan_says_of_the_rest() -> None:
    found, lost = unconfirmed("found", unknown=1), unconfirmed("lost")
    candidates = tuple(Candidate(each, POLICY.terms(each)) for each in (found, lost))
    result = ScanResult({"found": Receipt("C0123456", "1.1")}, NEVER)
    scan = HistoryScan(candidates, Search("#general", ("found", "lost"), 0, 0))
    one, two = after_scan(scan, result, POLICY, lambda _: US, GRACE_US)
    assert one.outcome == Sent(Receipt("C0123456", "1.1"), found=True)
    assert (one.perhaps_posted, one.slots, one.reached) == (1, Slots.KEEP, True)
    assert isinstance(two.outcome, Parked)


def test_an_event_with_known_delivery_status_is_not_looked_up() -> None:
    known = unconfirmed()._replace(unconfirmed=None)
    with pytest.raises(ValueError, match="x is reconciled, and its delivery status is known"):
        scans([known], POLICY, 0)
