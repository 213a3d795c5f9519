"""Quiet hours: what comes in them is dropped, digested into one message, or waits and then goes within the limits."""

from __future__ import annotations

from typing import Final

import pytest

from dispatcher.core.digests import slack_time_of
from dispatcher.core.limits import Reason
from dispatcher.core.matchers import parse_matchers
from dispatcher.core.posts import Rejected, Retryable
from dispatcher.core.states import Hushed
from dispatcher.core.units import US, Lane
from dispatcher.logs.event_log import facts_of
from dispatcher.store.dead_letters import Filter
from dispatcher.store.parked_events import ParkedFilter
from dispatcher.store.silences import Wanted
from tests.support.deferral import category_line, opens_at, send
from tests.support.digests import tally
from tests.support.doubles import START_US
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, UNPACED, Stage, Worker, policy_from, sentence

pytestmark = pytest.mark.usefixtures("in_utc")

LIMITS: Final = """\
global: {limits: []}
channels: {default: {pace: none}}
defaults: {limits: [3/30m], channel: "#free", max_age: 1d}
categories:
  drops: {}
  later: {on_limit: defer}
  kept: {on_limit: dead-letter}
  chatter: {on_limit: digest, digest_delay: 60s}
  folds: {on_limit: digest, digest_delay: 60s}
  noted: {on_limit: defer, notice: true, digest_delay: 60s}
  hosts: {limits: [], per_label: {host: [1/30m]}}
quiet:
  noon: {times: ["10:00-12:00"], zone: UTC, categories: [drops], unless: {priority: high, severity: crit*}, then: drop}
  siesta: {times: ["10:30-12:30"], zone: UTC, categories: [later, kept, hosts, errors, folds, noted], then: defer}
  tea: {times: ["10:00-12:00"], days: [mon-fri], zone: UTC, categories: [chatter, talk], then: digest}
"""
"""The stage begins on a Wednesday at 10:53:20, UTC."""

NOON_US: Final = START_US + 4_000 * US
HALF_PAST_US: Final = NOON_US + 1_800 * US


@pytest.fixture
def stage(redis: Database) -> Stage:
    return Stage(redis, policy_from(LIMITS))


def until(stage: Stage, at_us: int) -> None:
    stage.clock.now_us = at_us


# What is dropped


def test_in_quiet_hours_that_drop_an_event_is_dropped_without_a_slot(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", category="drops")
    ann.run()
    assert stage.snapshot().by_category("dropped") == {"drops": 2}
    assert stage.slots("category:drops") == {}
    decision = stage.decision("a")
    assert decision is not None
    assert (decision.outcome, decision.reason, decision.detail, decision.since_us, decision.fits_at_us) == (
        "dropped", "quiet", "noon", NOON_US - 7_200 * US, NOON_US,
    )  # fmt: skip
    assert (decision.scope, decision.limit) == ("quiet:noon", None)
    assert sentence(stage, "a") == "Dropped at 10:53:20: quiet hours noon from 10:00:00 until 12:00:00."
    assert facts_of(ann.told.settlements[0]) == {
        "outcome": "dropped", "reason": "quiet", "detail": "noon",
        "since": NOON_US / US - 7_200, "until": NOON_US / US,
    }  # fmt: skip
    assert stage.redis.hexists(stage.keys.decisions[0], "a")


def test_an_event_that_the_hours_exempt_is_posted(stage: Stage, ann: Worker) -> None:
    send(stage, "high", category="drops", priority=Lane.HIGH)
    send(stage, "critical", category="drops", labels={"severity": "critical"})
    send(stage, "other", category="drops", labels={"severity": "low"})
    ann.run()
    assert ann.desk.posts == ["high", "critical"]
    assert stage.total("dropped") == 1


def test_quiet_hours_end_to_the_microsecond(stage: Stage, ann: Worker) -> None:
    until(stage, NOON_US - 1)
    send(stage, "a", category="drops")
    ann.run()
    until(stage, NOON_US)
    send(stage, "b", category="drops")
    ann.run()
    assert (ann.desk.posts, stage.total("dropped")) == (["b"], 1)


def test_an_event_admitted_before_is_posted_in_quiet_hours(stage: Stage, ann: Worker) -> None:
    until(stage, NOON_US - 7_200 * US - 1)
    send(stage, "a", category="drops")
    (a,) = ann.go()
    ann.answer(a, Retryable("http_502", "bad gateway"))
    stage.clock.forward(BACKOFF_US / US)
    ann.run()
    assert stage.total("sent") == 1


def test_a_replayed_dead_letter_becomes_one_again_where_others_are_dropped(stage: Stage, ann: Worker) -> None:
    until(stage, NOON_US)
    ann.desk.reply = lambda _: Rejected("no_text", "empty")
    send(stage, "a", category="drops")
    ann.run()
    until(stage, NOON_US + 79_200 * US)
    stage.dead_letters.replay(stage.dead_letters.find(Filter()))
    ann.run()
    (letter,) = stage.dead_letters.find(Filter())
    assert (letter.reason, letter.replays, stage.total("dropped")) == ("quiet", 1, 0)
    assert (
        sentence(stage, "a").startswith("Dead letter at 2024-11-21 10:00:00: quiet hours noon from")
        or sentence(stage, "a") == "Dead letter at 10:00:00: quiet hours noon from 10:00:00 until 12:00:00."
    )


# What waits


def test_in_quiet_hours_that_defer_an_event_waits_for_their_end_in_a_line_of_its_own(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", category="errors")
    ann.run()
    assert category_line(stage, "quiet:category:errors") == ["a", "b"]
    assert category_line(stage) == []
    assert opens_at(stage, "quiet:siesta") == HALF_PAST_US
    assert [(each.reason, each.scope) for each in ann.told.waits] == [(Reason.QUIET, "quiet:siesta")] * 2
    assert sentence(stage, "a") == "Waits: quiet hours siesta from 10:30:00 until 12:30:00."
    assert sentence(stage, "b").endswith("until 12:30:00; it is behind 1 other.")
    until(stage, HALF_PAST_US - 1)
    ann.run()
    assert stage.total("sent") == 0
    until(stage, HALF_PAST_US)
    ann.run()
    assert ann.desk.posts == ["a", "b"]
    assert stage.slots("category:errors").keys() == {"a", "b"}


@pytest.mark.parametrize("category", ["errors", "later", "kept"])
def test_after_the_end_what_waited_goes_within_the_limits_whatever_on_limit_says(
    stage: Stage, ann: Worker, category: str
) -> None:
    ids = [f"e{n}" for n in range(8)]
    send(stage, *ids, category=category)
    ann.run()
    until(stage, HALF_PAST_US)
    ann.run()
    assert ann.desk.posts == ids[:3]
    assert category_line(stage, f"quiet:category:{category}") == ids[3:]
    assert opens_at(stage, f"category:{category}") == HALF_PAST_US + 1_800 * US
    assert sentence(stage, "e3").startswith(
        f"Waits for room: category {category} has used 3 of 3 in 30 min; first in line"
    )
    until(stage, HALF_PAST_US + 1_800 * US)
    ann.run()
    assert ann.desk.posts == ids[:6]
    assert (stage.total("dropped"), stage.total("dead")) == (0, 0)


def test_a_notice_counts_once_what_waited_and_is_refused_after_the_end(stage: Stage, ann: Worker) -> None:
    send(stage, *(f"e{n}" for n in range(9)), category="noted")
    ann.run()
    until(stage, HALF_PAST_US)
    for _ in range(30):
        ann.run()
        stage.clock.forward(600)
    assert [each for each in ann.desk.posts if each.startswith("e")] == [f"e{n}" for n in range(9)]
    first, last = (each.text for each in ann.desk.messages if "over 3/30m" in each.text)
    assert first == f"*noted*: over 3/30m, events are being delayed from {slack_time_of(HALF_PAST_US)} on"
    assert last.endswith(": 7 delayed")


def test_a_notice_counts_no_second_time_what_was_refused_before_the_hours(stage: Stage, ann: Worker) -> None:
    until(stage, NOON_US - 5_400 * US - 600 * US)
    send(stage, *(f"e{n}" for n in range(6)), category="noted")
    ann.run()
    assert tally(stage, "notice:noted")["count"] == "4"
    until(stage, START_US)
    ann.run()
    assert category_line(stage, "quiet:category:noted") == ["e2", "e3", "e4", "e5"]
    until(stage, HALF_PAST_US)
    ann.run()
    assert category_line(stage, "quiet:category:noted") != []
    for _ in range(12):
        ann.run()
        stage.clock.forward(600)
    assert [each.text.rpartition(": ")[2] for each in ann.desk.messages if "ended" in each.text] == ["4 delayed"]


def waits_in_the_books(stage: Stage) -> dict[str, int]:
    found = stage.snapshot().counts.by_reason("parked")
    return {reason: number for (_, reason), number in found.items() if number}


def test_what_is_refused_after_the_end_waits_for_a_limit_in_the_books_too(stage: Stage, ann: Worker) -> None:
    send(stage, *(f"e{n}" for n in range(8)), category="errors")
    ann.run()
    assert waits_in_the_books(stage) == {"quiet": 8}
    until(stage, HALF_PAST_US)
    ann.run()
    assert waits_in_the_books(stage) == {"limit": 5}


def test_what_a_dead_worker_gives_back_still_waits_for_the_end_in_the_books(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    send(stage, "a", "b", category="errors")
    ann.run()
    until(stage, HALF_PAST_US)
    assert len(ann.take().batch) == 1
    stage.clock.forward(31)
    for _ in range(2):  # the first call after a long time takes nothing over
        bob.take(new=0, due=0)
        stage.clock.forward(3)
    assert waits_in_the_books(stage) == {"quiet": 2}


def test_after_the_end_what_waited_asks_in_few_takes(stage: Stage, ann: Worker) -> None:
    for n in range(50):
        send(stage, f"x{n}", f"y{n}", category="hosts", labels={"host": f"h{n}"})
    ann.run()
    until(stage, HALF_PAST_US)
    ann.run(takes=4)
    assert (len(ann.desk.posts), stage.total("sent")) == (50, 50)


@pytest.mark.parametrize(("category", "outcome"), [("errors", "dropped silenced"), ("kept", "dead silenced")])
def test_after_the_end_what_waited_and_is_silenced_meanwhile_follows_on_limit(
    stage: Stage, ann: Worker, category: str, outcome: str
) -> None:
    send(stage, "a", category=category)
    ann.run()
    wanted = Wanted(parse_matchers([f"category={category}"]), 86_400 * US, "anna", "x")
    stage.silencing.begin(wanted)
    until(stage, HALF_PAST_US)
    ann.run()
    told = stage.explanations.explain("a")
    assert f"{told.outcome} {told.reason}" == outcome


def test_after_the_end_what_waited_is_not_digested(stage: Stage, ann: Worker) -> None:
    ids = [f"e{n}" for n in range(5)]
    send(stage, *ids, category="folds")
    ann.run()
    until(stage, HALF_PAST_US)
    ann.run()
    assert ann.desk.posts == ids[:2]
    assert category_line(stage, "quiet:category:folds") == ids[2:]
    until(stage, HALF_PAST_US + 3_600 * US)
    ann.run()
    assert ann.desk.posts == ids[:4]
    assert stage.total("digested") == 0


def test_what_comes_after_the_end_follows_on_limit_while_others_still_wait(stage: Stage, ann: Worker) -> None:
    send(stage, *(f"e{n}" for n in range(5)), category="errors")
    ann.run()
    until(stage, HALF_PAST_US)
    ann.run()
    send(stage, "new", category="errors")
    ann.run()
    assert stage.snapshot().by_category("dropped") == {"errors": 1}
    assert category_line(stage, "quiet:category:errors") == ["e3", "e4"]


def test_what_waits_for_the_end_goes_by_priority(stage: Stage, ann: Worker) -> None:
    send(stage, "low", category="errors", priority=Lane.LOW)
    send(stage, "normal", category="errors")
    send(stage, "high", category="errors", priority=Lane.HIGH)
    ann.run()
    until(stage, HALF_PAST_US)
    ann.run()
    assert ann.desk.posts == ["high", "normal", "low"]


def test_of_limited_labels_none_waits_for_another_after_the_end(stage: Stage, ann: Worker) -> None:
    for host in ("x", "y"):
        send(stage, f"{host}1", f"{host}2", category="hosts", labels={"host": host})
    ann.run()
    assert category_line(stage, "quiet:label:hosts:host=x") == ["x1", "x2"]
    until(stage, HALF_PAST_US)
    ann.run()
    assert sorted(ann.desk.posts) == ["x1", "y1"]
    assert category_line(stage, "quiet:label:hosts:host=y") == ["y2"]


def test_an_event_deferred_before_waits_at_its_turn_for_the_end(stage: Stage, ann: Worker) -> None:
    until(stage, NOON_US - 5_400 * US - 600 * US)
    send(stage, *(f"e{n}" for n in range(5)), category="later")
    ann.run()
    assert category_line(stage, "category:later") == ["e3", "e4"]
    until(stage, NOON_US - 3_600 * US)
    ann.run()
    assert category_line(stage, "quiet:category:later") == ["e3", "e4"]
    until(stage, HALF_PAST_US)
    ann.run()
    assert ann.desk.posts == [f"e{n}" for n in range(5)]


HOURS_AT_ITS_TURN: Final = """\
channels: {{default: {{pace: none}}}}
defaults: {{limits: [1/1h], on_limit: defer, channel: "#free", max_age: 1d}}
quiet:
  break: {{times: ["{times}"], zone: UTC, unless: {{priority: high}}, then: {then}}}
"""
WAITS: Final = "Waits for room: category reports has used 1 of 1 in 1 h; first in line"


@pytest.mark.parametrize("then", ["drop", "digest", "defer"])
@pytest.mark.parametrize("after_s", [0, 600], ids=["before they begin", "while they hold"])
def test_what_is_to_find_room_in_quiet_hours_is_told_with_these_and_without_an_instant(
    redis: Database, then: str, after_s: int
) -> None:
    stage = Stage(redis, policy_from(HOURS_AT_ITS_TURN.format(times="11:00-12:30", then=then)))
    send(stage, "a", "b", category="reports")
    stage.worker("ann").run()
    stage.clock.forward(after_s)
    told = stage.explanations.explain("b")
    assert told.sentence == f"{WAITS}; quiet hours break from 11:00:00 until 12:30:00."
    assert (told.expected_at, told.next_at) == (None, None)


@pytest.mark.parametrize(("times", "priority"), [("11:00-11:50", Lane.NORMAL), ("11:00-12:30", Lane.HIGH)])
def test_quiet_hours_that_are_over_by_then_or_exempt_the_event_hinder_nothing(
    redis: Database, times: str, priority: Lane
) -> None:
    stage = Stage(redis, policy_from(HOURS_AT_ITS_TURN.format(times=times, then="drop")))
    send(stage, "a", "b", category="reports", priority=priority)
    stage.worker("ann").run()
    stage.clock.forward(600)
    told = stage.explanations.explain("b")
    assert told.sentence == f"{WAITS}, expected at 11:53:20 at the earliest."
    assert told.expected_at == told.next_at == (START_US + 3_600 * US) / US


def test_what_expires_before_there_is_room_is_told_to_expire_also_in_quiet_hours(redis: Database) -> None:
    stage = Stage(redis, policy_from(HOURS_AT_ITS_TURN.format(times="11:00-12:30", then="drop")))
    send(stage, "a", "b", category="reports", max_age=60)
    stage.worker("ann").run()
    assert "it will expire at 10:54:20" in sentence(stage, "b")


def test_an_event_that_is_too_old_before_the_end_expires(stage: Stage, ann: Worker) -> None:
    send(stage, "a", category="errors", max_age=60)
    ann.run()
    stage.clock.forward(60)
    ann.run()
    (letter,) = stage.letters()
    assert letter["reason"] == "expired"
    assert letter["detail"] == (
        "waited longer than its max_age, for the end of quiet hours, or room in a limit after it"
        " (in the line quiet:category:errors)"
    )
    assert category_line(stage, "quiet:category:errors") == []


def test_a_replayed_dead_letter_waits_where_others_do(stage: Stage, ann: Worker) -> None:
    until(stage, HALF_PAST_US)
    ann.desk.reply = lambda _: Rejected("no_text", "empty")
    send(stage, "a", category="errors")
    ann.run()
    until(stage, NOON_US + 84_600 * US)
    stage.dead_letters.replay(stage.dead_letters.find(Filter()))
    ann.run()
    assert category_line(stage, "quiet:category:errors") == ["a"]


def test_what_waits_for_the_end_can_be_seen_and_cancelled(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", category="errors")
    ann.run()
    found = list(stage.parked_events.find(ParkedFilter(reason="quiet")))
    assert [each.id for each in found] == ["a", "b"]
    stage.parked_events.cancel(found, "ed")
    stage.check()
    assert (stage.total("dropped"), category_line(stage, "quiet:category:errors")) == (2, [])


def test_a_worker_that_dies_with_a_head_leaves_it_in_its_line(stage: Stage, ann: Worker, bob: Worker) -> None:
    send(stage, *(f"e{n}" for n in range(5)), category="errors")
    ann.run()
    until(stage, HALF_PAST_US)
    ann.take()
    ann.give_back()
    bob.run()
    assert bob.desk.posts == ["e0", "e1", "e2"]
    assert category_line(stage, "quiet:category:errors") == ["e3", "e4"]


# What is digested


def digests(worker: Worker) -> list[tuple[str, list[str]]]:
    return [(each.channel, each.text.splitlines()) for each in worker.desk.messages if "quiet hours" in each.text]


@pytest.mark.parametrize("category", ["talk", "chatter"])
def test_what_quiet_hours_digest_is_told_in_one_message_at_their_end(stage: Stage, ann: Worker, category: str) -> None:
    send(stage, "a", "b", category=category)
    ann.run()
    stage.clock.forward(600)
    send(stage, "c", category=category)
    ann.run()
    assert stage.snapshot().by_category("digested") == {category: 3}
    assert isinstance(ann.told.settlements[0].outcome, Hushed)
    assert sentence(stage, "a") == "Counted into a digest at 10:53:20: quiet hours tea from 10:00:00 until 12:00:00."
    assert ann.desk.posts == []
    until(stage, NOON_US - 1)
    ann.run()
    assert digests(ann) == []
    until(stage, NOON_US)
    ann.run()
    span = f"from {slack_time_of(START_US)} to {slack_time_of(START_US + 600 * US)}"
    assert digests(ann) == [
        (
            UNPACED,
            [
                f"3 *{category}* in quiet hours (tea) {span}",
                "• text of a", "• text of b", "• text of c",
            ],
        )
    ]  # fmt: skip
    assert (stage.total("notices"), stage.snapshot().events, len(stage.snapshot().tallies)) == (1, 0, 0)
    until(stage, NOON_US + 3_600 * US)
    ann.run()
    assert len(digests(ann)) == 1


def test_it_tells_how_many_of_the_things_that_it_counts_are_over(stage: Stage, ann: Worker) -> None:
    for id_, key in (("a", "db1"), ("a2", "db1"), ("b", "db2"), ("c", "db3"), ("d", "db4")):
        send(stage, id_, category="talk", dedup_key=key)
        ann.run()
        stage.clock.forward(1)
    for id_, key in (("b-over", "db2"), ("c-over", "db3"), ("c-over-again", "db3"), ("x-over", "other")):
        send(stage, id_, category="talk", dedup_key=key, status="resolved")
        ann.run()
        stage.clock.forward(1)
    send(stage, "c2", category="talk", dedup_key="db3")
    ann.run()
    send(stage, "d-over", category="talk", dedup_key="db4", status="resolved")
    ann.run()
    until(stage, NOON_US)
    ann.run()
    ((_, lines),) = digests(ann)
    assert lines[0].startswith("6 *talk* in quiet hours (tea)")
    assert lines[0].endswith(", 2 resolved meanwhile")
    assert stage.snapshot().by_category("dropped") == {"talk": 5}


@pytest.mark.parametrize("can_update", [True, False])
def test_it_counts_as_over_what_a_message_about_an_earlier_failure_says(
    stage: Stage, ann: Worker, *, can_update: bool
) -> None:
    ann.desk.can_update = can_update
    until(stage, NOON_US - 7_200 * US - 60 * US)
    send(stage, "before", category="talk", dedup_key="db1")
    ann.run()
    until(stage, START_US)
    send(stage, "a", category="talk", dedup_key="db1")
    ann.run()
    send(stage, "a-over", category="talk", dedup_key="db1", status="resolved")
    ann.run()
    assert len(ann.desk.edits) == can_update
    until(stage, NOON_US)
    ann.run()
    ((_, lines),) = digests(ann)
    assert lines[0].startswith(f"{1 if can_update else 2} *talk* in quiet hours (tea)")
    assert lines[0].endswith(", 1 resolved meanwhile")


def test_an_older_recovery_makes_nothing_over_that_it_counts(stage: Stage, ann: Worker) -> None:
    send(stage, "a", category="talk", dedup_key="db1", created_at=START_US / US - 60)
    ann.run()
    send(stage, "old", category="talk", dedup_key="db1", created_at=START_US / US - 90)
    ann.run()
    send(stage, "over", category="talk", dedup_key="db1", status="resolved", created_at=START_US / US - 75)
    ann.run()
    until(stage, NOON_US)
    ann.run()
    ((_, lines),) = digests(ann)
    assert lines[0].startswith("2 *talk* in quiet hours (tea)")
    assert "resolved" not in lines[0]


def test_it_counts_as_over_what_was_counted_before_a_step_back_of_the_clock(stage: Stage, ann: Worker) -> None:
    until(stage, START_US + 1_800 * US)
    send(stage, "a", category="talk", dedup_key="db1")
    ann.run()
    ann.notice_step(-1_200 * US)
    send(stage, "over", category="talk", dedup_key="db1", status="resolved")
    ann.run()
    until(stage, NOON_US + 3_600 * US)
    ann.run()
    ((_, lines),) = digests(ann)
    assert lines[0].endswith(", 1 resolved meanwhile")


def test_what_waits_for_the_end_and_is_over_before_is_never_posted(stage: Stage, ann: Worker) -> None:
    send(stage, "a", category="errors", dedup_key="db1")
    send(stage, "b", category="errors", dedup_key="db2")
    ann.run()
    send(stage, "a-over", category="errors", dedup_key="db1", status="resolved")
    ann.run()
    assert category_line(stage, "quiet:category:errors") == ["b"]
    until(stage, HALF_PAST_US)
    ann.run()
    assert ann.desk.posts == ["b"]


def test_that_message_waits_for_room(stage: Stage, ann: Worker) -> None:
    send(stage, "a", category="talk")
    ann.run()
    until(stage, NOON_US)
    stage.gate.try_acquire_many([(f"x{n}", stage.policy.scopes("talk")) for n in range(3)])
    ann.run()
    assert digests(ann) == []
    until(stage, NOON_US + 1_800 * US)
    ann.run()
    assert len(digests(ann)) == 1


def test_each_span_has_a_message_of_its_own(stage: Stage, ann: Worker) -> None:
    for day in range(2):
        until(stage, START_US + day * 86_400 * US)
        send(stage, f"d{day}", category="talk")
        ann.run()
        until(stage, NOON_US + day * 86_400 * US)
        ann.run()
    assert [lines[1] for _, lines in digests(ann)] == ["• text of d0", "• text of d1"]


def test_a_worker_that_dies_with_that_message_leaves_it_to_be_posted_once(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    send(stage, "a", category="talk")
    ann.run()
    until(stage, NOON_US)
    ann.take()
    ann.give_back()
    bob.run()
    assert len(digests(bob)) == 1


def test_what_the_dispatcher_says_of_a_category_waits_for_the_end(stage: Stage, ann: Worker) -> None:
    until(stage, NOON_US - 7_200 * US - 30 * US)
    send(stage, *(f"e{n}" for n in range(5)), category="chatter")
    ann.run()
    assert stage.total("digested") == 3
    until(stage, NOON_US - 3_600 * US)
    ann.run()
    assert ann.desk.posts == ["e0", "e1"]
    until(stage, NOON_US)
    ann.run()
    assert len(ann.desk.posts) == 3


@pytest.mark.parametrize("then", ["drop", "digest"])
def test_what_waits_for_the_end_waits_on_in_hours_that_follow(redis: Database, then: str) -> None:
    text = f'{LIMITS}  after: {{times: ["12:30-14:00"], zone: UTC, categories: [errors], then: {then}}}\n'
    stage = Stage(redis, policy_from(text))
    ann = stage.worker("ann")
    send(stage, "a", category="errors")
    ann.run()
    until(stage, HALF_PAST_US)
    send(stage, "new", category="errors")
    ann.run()
    assert category_line(stage, "quiet:category:errors") == ["a"]
    assert sentence(stage, "a") == "Waits: quiet hours after from 12:30:00 until 14:00:00."
    until(stage, HALF_PAST_US + 5_400 * US)
    ann.run()
    assert "a" in ann.desk.posts
    assert stage.total("dropped") + stage.total("digested") == 1, "the new one"


# Beside other things


def test_of_several_quiet_hours_those_that_end_last_count(redis: Database) -> None:
    text = LIMITS + '  long: {times: ["10:00-13:00"], zone: UTC, categories: [drops], then: defer}\n'
    stage = Stage(redis, policy_from(text))
    ann = stage.worker("ann")
    send(stage, "a", category="drops")
    send(stage, "b", category="drops", priority=Lane.HIGH)
    ann.run()
    assert category_line(stage, "quiet:category:drops") == ["b", "a"]


def test_a_digest_of_quiet_hours_that_follow_each_other_names_the_last(redis: Database) -> None:
    text = LIMITS + '  long: {times: ["11:30-13:00"], zone: UTC, categories: [talk], then: digest}\n'
    stage = Stage(redis, policy_from(text))
    ann = stage.worker("ann")
    send(stage, "a", category="talk")
    ann.run()
    until(stage, NOON_US + 600 * US)
    send(stage, "b", "c", category="talk")
    ann.run()
    until(stage, NOON_US + 3_700 * US)
    ann.run()
    assert "3 *talk* in quiet hours (long)" in ann.desk.messages[-1].text


def test_the_pre_check_leaves_out_what_is_quiet(stage: Stage, ann: Worker) -> None:
    until(stage, NOON_US - 7_200 * US - 60 * US)
    version = stage.put_in_force(LIMITS)
    ann.follow(version)
    send(stage, *(f"e{n}" for n in range(5)), category="drops")
    ann.run()
    send(stage, "checked", category="drops")
    ann.run()
    assert [each.names for each in ann.prefiltered] == [["checked"]]
    until(stage, NOON_US - 7_200 * US)
    send(stage, "quiet", category="drops")
    send(stage, "exempt", category="drops", priority=Lane.HIGH)
    ann.run()
    send(stage, "quiet2", category="drops")
    ann.run()
    assert len(ann.prefiltered) == 1
    reasons = {id_: found.reason for id_ in ("checked", "quiet", "exempt", "quiet2") if (found := stage.decision(id_))}
    assert reasons == {"checked": "limit:category", "quiet": "quiet", "exempt": "limit:category", "quiet2": "quiet"}


def test_limits_without_quiet_hours_let_what_waits_go_at_once(stage: Stage, ann: Worker) -> None:
    ann.follow(stage.put_in_force(LIMITS))
    send(stage, "a", category="errors")
    ann.run()
    assert category_line(stage, "quiet:category:errors") == ["a"]
    ann.follow(stage.put_in_force(LIMITS.partition("quiet:")[0]))
    for _ in range(3):
        ann.run()
    assert ann.desk.posts == ["a"]


def test_limits_without_quiet_hours_let_the_message_about_what_they_digested_go_at_once(
    stage: Stage, ann: Worker
) -> None:
    ann.follow(stage.put_in_force(LIMITS))
    send(stage, "a", category="talk")
    ann.run()
    assert ann.desk.posts == []
    ann.follow(stage.put_in_force(LIMITS.partition("quiet:")[0]))
    for _ in range(3):
        ann.run()
    assert len(ann.desk.posts) == 1


def test_of_an_event_that_a_dead_worker_may_have_been_admitted_with_the_slots_go_back(
    stage: Stage, ann: Worker
) -> None:
    send(stage, "a", category="drops")
    send(stage, "b", category="errors")
    assert len(ann.take().batch) == 2
    stage.gate.try_acquire_many([("1", stage.policy.scopes("drops")), ("2", stage.policy.scopes("errors"))])
    ann.give_back()
    stage.worker("bob").run()
    assert (stage.slots("category:drops"), stage.slots("category:errors")) == ({}, {})
