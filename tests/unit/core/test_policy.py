"""What the policy makes of denials and of Slack's answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatcher.core.event import Event
from dispatcher.core.limits import Denied, Limit, Reason, Scope, all_scopes
from dispatcher.core.policy import CategoryRule, OnLimit, Policy, limit_reason
from dispatcher.core.posts import Ambiguous, Paused, PostResult, RateLimitedBySlack, Receipt, Rejected, Retryable
from dispatcher.core.states import (
    GRACE_US,
    Candidate,
    DeadLettered,
    Dropped,
    Leased,
    Parked,
    Place,
    Sent,
    Settlement,
    Slots,
    Started,
)
from dispatcher.core.transitions import MAX_ATTEMPTS, after_post, denied, refused_unseen
from dispatcher.core.units import US

RULE = CategoryRule((Limit.parse("10/30m"),), "#errors", OnLimit.DROP, 3600 * US)
POLICY = Policy(
    global_limits=(Limit.parse("100/30m"),),
    defaults=replace(RULE, channel="#other", limits=()),
    categories={"errors": RULE, "kept": replace(RULE, on_limit=OnLimit.DEAD_LETTER)},
    default_pace=Limit.parse("10/10s"),
    channels={"#fast": None},
)
LEASED = Leased("e1", Event("errors", "x"), 1, seen_us=1_000_000)


def candidate(leased: Leased = LEASED) -> Candidate:
    return Candidate(leased, POLICY.terms(leased))


def backoff(attempt: int) -> int:
    return attempt * 1000


def test_the_terms_of_an_event_come_from_its_category() -> None:
    terms = POLICY.terms(LEASED)
    assert terms.channel == "#errors"
    assert terms.pace == Limit(10, window_us=10 * US)
    assert [scope.name for scope in all_scopes(terms.scopes)] == ["global", "category:errors"]
    assert terms.deadline_us == 1_000_000 + 3600 * US
    assert terms.configured


def test_an_unnamed_category_follows_the_defaults_and_a_scope_without_limits_is_left_out() -> None:
    terms = POLICY.terms(LEASED._replace(event=Event("news", "x", channel="#fast", max_age=1)))
    assert terms.scopes == (Scope("global", (Limit.parse("100/30m"),)),)
    assert (terms.channel, terms.pace, terms.configured) == ("#fast", None, False)
    assert terms.deadline_us == 1_000_000 + US


def test_an_events_own_max_age_only_shortens() -> None:
    assert POLICY.max_age_us(Event("errors", "x", max_age=366 * 86_400)) == 3600 * US


@pytest.mark.parametrize(
    ("scope", "reason"),
    [
        ("global", Reason.LIMIT_GLOBAL),
        ("category:errors", Reason.LIMIT_CATEGORY),
        ("label:host=db1", Reason.LIMIT_LABEL),
    ],
)
def test_a_denial_is_named_after_its_scope(scope: str, reason: Reason) -> None:
    assert limit_reason(scope) is reason


VERDICT = Denied("category:errors", Limit.parse("10/30m"), 5_000_000)


def test_a_denied_event_is_dropped_or_kept_as_its_category_says() -> None:
    dropped = denied(candidate(), VERDICT, POLICY)
    assert isinstance(dropped, Settlement)
    assert dropped.outcome == Dropped(VERDICT, Reason.LIMIT_CATEGORY)
    kept = denied(candidate(LEASED._replace(event=Event("kept", "x"))), VERDICT, POLICY)
    assert isinstance(kept, Settlement)
    assert isinstance(kept.outcome, DeadLettered)
    assert (kept.outcome.reason, kept.outcome.denied) == (Reason.LIMIT_CATEGORY, VERDICT)


@pytest.mark.parametrize("change", [{"held": True}, {"attempt": 1}, {"unknown": 1}], ids=str)
def test_an_event_once_admitted_is_never_dropped_by_a_limit(change: dict[str, int]) -> None:
    settlement = denied(candidate(LEASED._replace(**change)), VERDICT, POLICY)  # type: ignore[arg-type]  # one field
    assert isinstance(settlement, Settlement)
    assert settlement.outcome == Parked(Place.TIMER, Reason.LIMIT_CATEGORY, 5_000_000, denied=VERDICT)
    assert settlement.slots is Slots.HOLD


def test_an_event_expires_at_its_deadline_and_not_before() -> None:
    deadline = POLICY.terms(LEASED).deadline_us
    assert refused_unseen(candidate(), POLICY, deadline - 1) is None
    refusal = refused_unseen(candidate(), POLICY, deadline)
    assert refusal is not None
    assert isinstance(refusal.outcome, DeadLettered)
    assert (refusal.outcome.reason, refusal.slots) == (Reason.EXPIRED, Slots.RELEASE)


def test_an_event_that_three_workers_died_with_is_a_dead_letter() -> None:
    assert refused_unseen(candidate(LEASED._replace(deaths=2)), POLICY, 0) is None
    refusal = refused_unseen(candidate(LEASED._replace(deaths=3)), POLICY, 0)
    assert refusal is not None
    assert isinstance(refusal.outcome, DeadLettered)
    assert refusal.outcome.reason is Reason.EXHAUSTED


@pytest.mark.parametrize(
    ("change", "slots"),
    [
        ({}, Slots.RELEASE),
        ({"held": True}, Slots.RELEASE),
        ({"held": True, "attempt": 1, "unknown": 1}, Slots.RELEASE),
        ({"attempt": 1, "unknown": 1}, Slots.KEEP),
        ({"attempt": 1}, Slots.KEEP),
    ],
    ids=str,
)
@pytest.mark.parametrize("end", ["deaths", "deadline"])
def test_of_what_ends_unseen_a_slot_stays_that_may_have_been_used(
    change: dict[str, int], slots: Slots, end: str
) -> None:
    leased = LEASED._replace(**change, deaths=3 if end == "deaths" else 0)  # type: ignore[arg-type]  # by name
    now_us = 0 if end == "deaths" else POLICY.terms(LEASED).deadline_us
    refusal = refused_unseen(candidate(leased), POLICY, now_us)
    assert refusal is not None
    assert refusal.slots is slots


def test_an_unknown_category_is_a_dead_letter_where_that_is_asked_for() -> None:
    strict = replace(POLICY, reject_unknown=True)
    assert refused_unseen(candidate(), strict, 0) is None
    refusal = refused_unseen(candidate(LEASED._replace(event=Event("erors", "x"))), strict, 0)
    assert refusal is not None
    assert isinstance(refusal.outcome, DeadLettered)
    assert (refusal.outcome.reason, refusal.outcome.code) == (Reason.REJECTED, "unknown_category")


@pytest.mark.parametrize(
    ("result", "outcome", "slots", "attempt", "unknown"),
    [
        (Receipt("C1", "1.1"), Sent(Receipt("C1", "1.1")), Slots.KEEP, 1, 0),
        (
            RateLimitedBySlack(7, "ratelimited", "d"),
            Parked(Place.LINE, Reason.COOLDOWN, 7, "ratelimited", detail="d"),
            Slots.HOLD,
            0,
            0,
        ),
        (Retryable("refused", "d"), Parked(Place.TIMER, Reason.RETRY, 1000, "refused", detail="d"), Slots.HOLD, 1, 0),
        (
            Retryable("team", "d", uses_attempt=False),
            Parked(Place.TIMER, Reason.RETRY, 1000, "team", detail="d"),
            Slots.HOLD,
            0,
            0,
        ),
        (Rejected("no_text", "d"), DeadLettered(Reason.REJECTED, "d", "no_text"), Slots.RELEASE, 1, 0),
        (
            Ambiguous("http_500", "d"),
            Parked(Place.SCAN, Reason.RECONCILE, GRACE_US, "http_500", detail="d"),
            Slots.KEEP,
            1,
            0,
        ),
        (
            Paused("invalid_auth", "d"),
            Parked(Place.TIMER, Reason.PAUSED, 1000, "invalid_auth", detail="d"),
            Slots.HOLD,
            1,
            0,
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int | Slots) else str(value),
)
def test_each_result_of_a_first_post_has_its_outcome_slots_and_counts(
    result: PostResult, outcome: object, slots: Slots, attempt: int, unknown: int
) -> None:
    settlement = after_post(Started(candidate(), 1), result, backoff, GRACE_US)
    assert settlement.outcome == outcome
    assert (settlement.slots, settlement.attempt, settlement.unknown) == (slots, attempt, unknown)


def test_the_last_attempt_ends_in_a_dead_letter() -> None:
    last = Started(candidate(), MAX_ATTEMPTS)
    refused = after_post(last, Retryable("refused", "d"), backoff, GRACE_US)
    assert refused.outcome == DeadLettered(Reason.EXHAUSTED, "d", "refused")
    assert refused.slots is Slots.RELEASE
    unconfirmed = after_post(last, Ambiguous("http_500", "d"), backoff, GRACE_US)
    assert unconfirmed.outcome == Parked(Place.SCAN, Reason.RECONCILE, GRACE_US, "http_500", detail="d")
    assert unconfirmed.slots is Slots.KEEP


def test_a_post_result_says_whether_the_channel_replied_and_posting_goes_on() -> None:
    started = Started(candidate(), 1)
    sent = after_post(started, Receipt("C1", None), backoff, GRACE_US)
    assert (sent.replied, sent.resume, sent.pause, sent.cooldown_us) == (True, True, None, None)
    limited = after_post(started, RateLimitedBySlack(9, "ratelimited"), backoff, GRACE_US)
    assert (limited.replied, limited.cooldown_us) == (False, 9)
    paused = Paused("token_revoked", "d")
    assert after_post(started, paused, backoff, GRACE_US).pause == paused
    assert not after_post(started, Retryable("refused", "d"), backoff, GRACE_US).replied
