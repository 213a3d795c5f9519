"""What happened to an event in one sentence: from facts alone, with instants in the zone of the reader."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Final

import pytest

from dispatcher.core import explain
from dispatcher.core.explain import Decision, clock_of, ended, limit_words, scope_words
from dispatcher.core.limits import Denied, Kind, Limit, all_scopes
from dispatcher.core.units import US
from tests.support.stage import policy_from

ZONE: Final = timezone(timedelta(hours=5, minutes=30))


def us(text: str) -> int:
    """An instant of a day in that zone."""
    return round(datetime.fromisoformat(text).replace(tzinfo=ZONE).timestamp()) * US


NOW_US: Final = us("2026-11-20 12:10:00")
AT: Final = clock_of(NOW_US, ZONE)
DROPPED: Final = Decision(
    "disk-1",
    us("2026-11-20 12:03:11"),
    "dropped",
    "limit:category",
    "errors",
    "category:errors",
    "10/30m",
    us("2026-11-20 12:21:40"),
)
REPEAT: Final = replace(
    DROPPED,
    reason="repeat",
    scope="once:1",
    limit="1/1h once",
    fits_at_us=us("2026-11-20 13:00:00"),
    detail="first",
)
DEAD: Final = Decision("disk-1", us("2026-11-20 12:03:11"), "dead", "rejected", "errors", detail="no such channel.")


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (
            replace(DEAD, reason="invalid", detail="'txt' is not a key of an event; did you mean text?"),
            "Dead letter at 12:03:11, invalid: 'txt' is not a key of an event; did you mean text?",
        ),
        (
            DROPPED,
            "Dropped at 12:03:11: category errors had used 10 of 10 in 30 min; it would have fitted at 12:21:40.",
        ),
        (
            replace(DROPPED, reason="limit:label", scope="label:deploys:host=db1:5432", limit="3/10s"),
            (
                "Dropped at 12:03:11: host=db1:5432 of category deploys had used 3 of 3 in 10 s; "
                "its room was held by admitted events that were not posted yet."
            ),
        ),
        (
            replace(DROPPED, outcome="dead"),
            "Dead letter at 12:03:11: category errors had used 10 of 10 in 30 min; it would have fitted at 12:21:40.",
        ),
        (
            replace(DROPPED, outcome="digested"),
            (
                "Counted into a digest at 12:03:11: category errors had used 10 of 10 in 30 min; "
                "it would have fitted at 12:21:40."
            ),
        ),
        (
            replace(DROPPED, outcome="dead", reason="overflow", detail="5 of category errors wait already"),
            "Dead letter at 12:03:11, overflow: 5 of category errors wait already.",
        ),
        (DEAD, "Dead letter at 12:03:11, rejected: no such channel."),
        (
            replace(DEAD, code="channel_not_found"),
            "Dead letter at 12:03:11, rejected (channel_not_found): no such channel.",
        ),
        (replace(DEAD, reason="expired", detail=None), "Dead letter at 12:03:11, expired."),
        (replace(DEAD, outcome="sent", reason="ok", channel="#ops"), "Sent to #ops at 12:03:11."),
        (
            replace(DEAD, outcome="sent", reason="ok", channel="#ops", copies=1),
            "Sent to #ops at 12:03:11; 1 copy may stand beside it.",
        ),
        (
            replace(DEAD, outcome="duplicate", reason="duplicate"),
            "Duplicate at 12:03:11: an event of this id came before.",
        ),
        (
            replace(DEAD, outcome="dropped", reason="cancelled", detail="by ops@db1"),
            "Cancelled at 12:03:11 by ops@db1.",
        ),
        (
            replace(REPEAT, since_us=us("2026-11-20 12:00:00")),
            (
                "Dropped at 12:03:11: a repeat of first, whose window was then from 12:00:00 until 13:00:00; "
                "it ends earlier if first ends unposted or is resolved."
            ),
        ),
        (REPEAT, "Dropped at 12:03:11: a repeat of first, which waited to be posted then."),
        (
            replace(REPEAT, outcome="digested"),
            "Counted in the message that it repeats at 12:03:11: a repeat of first, which waited to be posted then.",
        ),
        (
            replace(DROPPED, scope="shared", limit="5/1h"),
            (
                "Dropped at 12:03:11: of what the guarantees leave for all, 5 of 5 in 1 h were used; "
                "it would have fitted at 12:21:40."
            ),
        ),
        (replace(REPEAT, detail=None), "Dropped at 12:03:11: a repeat of another event about the same thing."),
        (
            replace(REPEAT, outcome="dead", detail="a repeat of first; one is posted in any 1h"),
            "Dead letter at 12:03:11: a repeat of first; one is posted in any 1h.",
        ),
        (
            replace(REPEAT, outcome="dead", detail=""),
            "Dead letter at 12:03:11: a repeat of another event about the same thing.",
        ),
        (
            replace(
                DEAD, reason="resolved", detail="what it is about was over before", since_us=us("2026-11-20 12:00:00")
            ),
            "Dead letter at 12:03:11: what it is about was over at 12:00:00 before it was posted.",
        ),
        (
            replace(DEAD, outcome="dropped", reason="resolved", detail="r"),
            "Dropped at 12:03:11: what it is about was over before it was posted, as r says.",
        ),
        (
            replace(DEAD, outcome="digested", reason="resolved", detail="first"),
            "Told by an edit at 12:03:11: the message of first says that it is over.",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_how_an_event_ended_is_one_sentence(decision: Decision, said: str) -> None:
    assert ended(decision, AT) == said


@pytest.mark.parametrize("wait_s", [0, 90, 1_800, 1_801])
def test_the_quick_sentence_of_a_dropped_event_is_that_of_its_decision(wait_s: int) -> None:
    denied = Denied("label:errors:host=db1", Limit.parse("10/30m"), wait_s * US)
    one = Decision("x", NOW_US, "dropped", "limit:label", "errors", denied.scope, "10/30m", NOW_US + wait_s * US)
    assert explain.dropped(denied, NOW_US, AT) == ended(one, AT)


def test_a_log_line_of_a_repeat_says_nothing_that_it_does_not_know_of_the_first_event() -> None:
    denied = Denied("once:1", Limit(1, window_us=3_600 * US, kind=Kind.ONCE), 60 * US)
    for outcome, what in (("dropped", "Dropped"), ("digested", "Counted in the message that it repeats")):
        said = f"{what} at 12:10:00: a repeat of another event about the same thing."
        assert explain.dropped(denied, NOW_US, AT, outcome) == said
        facts = {"outcome": outcome, "reason": "repeat", "scope": "once:1", "limit": "1/1h", "detail": "first"}
        assert explain.sentence_of(facts, NOW_US, AT) == said


@pytest.mark.parametrize(
    ("deadline", "expires"),
    [("12:21:40", True), ("12:21:41", False), ("12:10:00", True)],
)
def test_an_event_expires_in_line_if_its_deadline_comes_no_later_than_the_room(deadline: str, *, expires: bool) -> None:
    room = explain.Room("category:errors", Limit.parse("10/30m"), 10, us("2026-11-20 12:21:40"))
    said = explain.expires_in_line(room, 1, NOW_US, us(f"2026-11-20 {deadline}"), AT)
    assert (said is not None) == expires
    assert explain.expires_in_line(replace(room, at_us=None), 1, NOW_US, us(f"2026-11-20 {deadline}"), AT) is None


POLICY: Final = """
global: {limits: [100/30m]}
categories: {f: {limits: [2/10s], on_limit: defer, notice: true, guarantee: 5, per_label: {host: [3/1m]}}}
"""


def test_a_category_with_a_colon_is_told_apart_from_its_label() -> None:
    assert scope_words("label:svc:a:host=db1:80") == "host=db1:80 of category svc:a"


def test_each_scope_that_an_event_may_wait_for_has_words() -> None:
    policy = policy_from(POLICY)
    labels = {"host": "db1"}
    demands = (*policy.scopes("f", labels), *policy.scopes("f", labels, tells=True), *policy.scopes("news"))
    assert {scope.name: scope_words(scope.name) for scope in all_scopes(demands)} == {
        "global": "all events together",
        "shared": "what the guarantees leave for all",
        "guarantee:f": "the guarantee of f",
        "kept:f": "what the guarantee of f keeps for its notice or digest",
        "category:f": "category f",
        "category:news": "category news",
        "singles:f": "category f (one more is kept for its notice or digest)",
        "digest:f": "what category f keeps for its notice or digest",
        "label:f:host=db1": "host=db1 of category f",
    }


def test_an_instant_of_another_day_has_its_date() -> None:
    old = replace(DROPPED, at_us=us("2026-11-19 23:59:59"), fits_at_us=us("2026-11-20 00:00:00"))
    assert ended(old, AT).startswith("Dropped at 2026-11-19 23:59:59: ")
    assert ended(old, AT).endswith(" fitted at 00:00:00.")


def test_an_instant_that_is_today_in_another_zone_has_its_date_here() -> None:
    assert clock_of(us("2026-11-20 02:00:00"), ZONE)(us("2026-11-19 23:00:00")) == "2026-11-19 23:00:00"


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("10/30m", "10 of 10 in 30 min"),
        ("1/250ms", "1 of 1 in 250 ms"),
        ("7/1d", "7 of 7 in 1 d"),
        ("5/1h fixed", "5 of 5 in 1 h (fixed)"),
        ("ten", "ten"),
    ],
)
def test_a_limit_that_is_used_up_is_said_in_words(limit: str, said: str) -> None:
    assert limit_words(limit) == said


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            explain.deferred("category:errors", 0, us("2026-11-20 12:21:40"), AT),
            "Waits for room: category errors had used up a limit; as the next of its line it is expected at 12:21:40.",
        ),
        (
            explain.deferred("global", 0, None, AT),
            "Waits for room: all events together had used up a limit; as the next of its line it is expected now.",
        ),
        (
            explain.deferred("silence:1", 0, None, AT),
            "Waits: it was silenced (silence 1); as the next of its line it is expected now.",
        ),
        (
            explain.deferred("global", 3, NOW_US, AT),
            "Waits for room: all events together had used up a limit; it is behind 3 others.",
        ),
        (
            explain.for_channel("#ops", 0, explain.cooling(us("2026-11-20 12:12:00"), AT)),
            (
                "Admitted, and waits for channel #ops: after Slack's 429, or posts without a clear answer, "
                "nobody posts there until 12:12:00; it is the next."
            ),
        ),
        (
            explain.for_channel("#ops", 1, explain.paced(us("2026-11-20 12:10:05"), NOW_US, AT)),
            "Admitted, and waits for channel #ops: its pace lets the next go at 12:10:05; it is behind 1 other.",
        ),
        (
            explain.for_channel("#ops", 1, explain.paced(NOW_US, NOW_US, AT)),
            "Admitted, and waits for channel #ops: the next goes when a worker is free; it is behind 1 other.",
        ),
        (
            explain.for_channel("#ops", 0, explain.paced(None, NOW_US, AT)),
            "Admitted, and waits for channel #ops: another post to it is in flight; it is the next.",
        ),
        (
            explain.for_edit(0, explain.paced(None, NOW_US, AT, edits=True)),
            "Admitted, and waits to edit the message: another edit is in flight; it is the next.",
        ),
        (
            explain.for_edit(1, explain.paced(us("2026-11-20 12:10:05"), NOW_US, AT, edits=True)),
            (
                "Admitted, and waits to edit the message: the pace of edits lets the next go at 12:10:05; "
                "it is behind 1 other."
            ),
        ),
        (
            explain.for_edit(0, explain.cooling(us("2026-11-20 12:12:00"), AT, edits=True)),
            (
                "Admitted, and waits to edit the message: after Slack's 429, or edits without a clear answer, "
                "nobody edits until 12:12:00; it is the next."
            ),
        ),
        (
            explain.for_edit(0, explain.failing(2, us("2026-11-20 12:12:00"), AT, edits=True)),
            (
                "Admitted, and waits to edit the message: the last 2 edits had no clear answer, "
                "so the next one tries at 12:12:00; it is the next."
            ),
        ),
        (
            explain.on_timer("retry: http_502", 2, 8, AT(us("2026-11-20 12:10:05"))),
            "Admitted, 2 of 8 attempts used (retry: http_502); it goes on at 12:10:05.",
        ),
        (
            explain.in_hands("h.7.abc", 1, 8, is_sending=True),
            "In flight: worker h.7.abc is posting it, attempt 1 of 8.",
        ),
        (explain.in_hands("h.7.abc", 0, 8, is_sending=False), "In flight: worker h.7.abc is deciding about it."),
        (
            explain.on_lane("high", 0, "queued"),
            "Waits on the queue, on lane high, as the next; no worker has taken it yet.",
        ),
        (
            explain.on_lane("low", 12, "queued"),
            "Waits on the queue, on lane low, behind 12 others; no worker has taken it yet.",
        ),
        (
            explain.on_lane("low", None, "queued"),
            "Waits on the queue, on lane low; no worker has taken it yet.",
        ),
        (
            explain.on_lane("low", None, "deferred", is_replayed=True),
            (
                "Replayed, and waits on the queue: no worker of ours has taken it since, "
                "RQ says of its job that it is deferred."
            ),
        ),
        (
            explain.on_lane("low", None, "deferred"),
            "Waits on the queue: no worker of ours has taken it, RQ says of its job that it is deferred.",
        ),
    ],
    ids=lambda value: value,
)
def test_the_state_of_an_event_is_one_sentence(said: str, expected: str) -> None:
    assert said == expected
