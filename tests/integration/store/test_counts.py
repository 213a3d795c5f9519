"""The books by category and reason, and minute by minute. In made-up time."""

from __future__ import annotations

from typing import Final

import pytest

from dispatcher.core.posts import Rejected
from dispatcher.core.units import US, Lane
from dispatcher.store.counts import Counts, read_minutes
from dispatcher.store.parked_events import Cancelled, ParkedEvents, ParkedFilter
from tests.support.deferral import send
from tests.support.doubles import START_US
from tests.support.stage import UNPACED, Stage, Worker

MINUTE_S: Final = 60
THIS_MINUTE: Final = START_US // (MINUTE_S * US)
LIMITS: Final = f"""
global: {{limits: [8/30m]}}
defaults: {{limits: [3/30m], channel: "{UNPACED}"}}
channels: {{"{UNPACED}": {{pace: none}}}}
categories:
  hosts: {{limits: [], per_label: {{host: [1/30m]}}}}
  kept: {{limits: [1/30m], on_limit: dead-letter}}
  later: {{limits: [1/30m], on_limit: defer, max_parked: 1}}
  told: {{limits: [2/30m], on_limit: digest}}
"""


@pytest.fixture
def ann(stage: Stage) -> Worker:
    worker = stage.worker("ann")
    worker.follow(stage.put_in_force(LIMITS))
    return worker


def ended(stage: Stage, outcome: str) -> dict[tuple[str, str], int]:
    return stage.snapshot().counts.by_reason(outcome)


def received(stage: Stage) -> dict[str, int]:
    return stage.snapshot().counts.received_by_category()


def minutes(stage: Stage, most: int = 2) -> list[Counts]:
    """The minute of the stage's clock and those before it."""
    return read_minutes(stage.redis, stage.keys, stage.clock.now_us, most)


# Why


def test_what_each_limit_and_each_mute_drops_is_counted_apart(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", "c", "d", category="errors")
    send(stage, "e", "f", category="hosts", labels={"host": "db1"})
    ann.run()
    send(stage, "g", category="errors")
    ann.run()  # the pre-check drops it
    stage.silencing.mute("quiet", US, "ed", "known")
    send(stage, "h", "i", category="quiet")
    send(stage, "x", "y", category="deploys")
    send(stage, "j", "k", "l", "m", category="news")
    ann.run()
    assert ended(stage, "dropped") == {
        ("errors", "limit:category"): 2,
        ("hosts", "limit:label"): 1,
        ("quiet", "silenced"): 2,
        ("news", "limit:global"): 2,
    }
    assert ended(stage, "sent") == {("errors", ""): 3, ("hosts", ""): 1, ("deploys", ""): 2, ("news", ""): 2}


def test_dead_letters_digests_and_what_was_cancelled_are_counted_by_reason(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", category="kept")
    send(stage, "c", "d", "e", category="later")
    send(stage, "f", "g", "h", "i", category="told")
    stage.redis.rpush(stage.queue.lane(Lane.NORMAL), "gone")
    ann.run()
    stage.send("j", category="errors", channel="#archived")
    (started,) = ann.go()
    ann.answer(started, Rejected("is_archived", "archived"))
    hands = ParkedEvents(stage.redis, stage.keys, stage.queue, ann.policy, remember_us=1, clock=stage.clock)
    ((result, _),) = hands.cancel(hands.find(ParkedFilter(category="later")), "ed")
    assert result is Cancelled.DONE
    assert ended(stage, "dead") == {
        ("kept", "limit:category"): 1,
        ("later", "overflow"): 1,
        ("-", "expired"): 1,
        ("errors", "rejected"): 1,
    }
    assert ended(stage, "digested") == {("told", "limit:category"): 3}
    assert ended(stage, "dropped") == {("later", "cancelled"): 1}


# What was received


def test_an_event_is_received_once_in_a_category_however_often_it_is_parked_and_taken(
    stage: Stage, ann: Worker
) -> None:
    send(stage, "first", "waits", category="later")
    send(stage, "scheduled", category="errors", not_before=(START_US / US) + MINUTE_S)
    ann.run()
    assert received(stage) == {"later": 2, "errors": 1}
    ann.give_back()
    stage.clock.forward(MINUTE_S)
    send(stage, "a", "b", "c", category="errors")
    batch = ann.take(new=0).batch
    ann.run()
    ann.deliver(ann.dispatch(batch))  # the scheduled event is refused now, in the step that decides about it
    assert (ended(stage, "dropped"), received(stage)) == ({("errors", "limit:category"): 1}, {"later": 2, "errors": 4})
    stage.clock.forward(1_800)
    ann.run()
    assert (ended(stage, "sent")["later", ""], received(stage)["later"]) == (2, 2)


def test_an_event_keeps_its_name_in_the_books_whatever_limits_follow(stage: Stage, ann: Worker) -> None:
    stage.redis.zadd(stage.keys.names, {f"name{n}": n for n in range(1_000)})
    instant = START_US / US + MINUTE_S
    send(stage, "a", "b", category="new", not_before=instant)
    ann.run()
    assert received(stage) == {"other": 2}
    ann.follow(stage.put_in_force(f"{LIMITS}  new: {{limits: [1/30m]}}\n"))
    stage.clock.forward(MINUTE_S)
    ann.run()
    send(stage, "c", category="new")
    ann.run()
    assert (ended(stage, "sent"), received(stage)) == ({("other", ""): 1}, {"other": 2, "new": 1})
    assert ended(stage, "dropped") == {("other", "limit:category"): 1, ("new", "limit:category"): 1}


# By the minute


def test_each_minute_counts_what_came_and_what_ended_in_it(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", "c", "d", category="errors")
    started = ann.go()
    stage.clock.forward(MINUTE_S)
    ann.deliver(started)
    send(stage, "e", category="errors")
    stage.redis.rpush(stage.queue.lane(Lane.NORMAL), "a")
    ann.run()
    now, before = minutes(stage)
    totals = ("received", "sent", "dropped", "duplicate")
    assert [before.total(each) for each in totals] == [4, 0, 1, 0]
    assert [now.total(each) for each in totals] == [2, 3, 1, 1]
    assert (before.received_by_category(), now.received_by_category()) == ({"errors": 4}, {"errors": 1})
    assert now.by_reason("dropped") == {("errors", "limit:category"): 1}


def test_after_a_step_back_of_the_clock_the_earlier_minute_goes_on(stage: Stage, ann: Worker) -> None:
    send(stage, "a", category="errors")
    ann.run()
    stage.clock.forward(3 * MINUTE_S)
    send(stage, "b", category="errors")
    ann.run()
    stage.clock.forward(-3 * MINUTE_S)
    send(stage, "c", category="errors")
    ann.run()
    stage.clock.forward(3 * MINUTE_S)
    assert [minute.total("sent") for minute in minutes(stage, 5)] == [1, 0, 0, 2, 0]


def test_a_minute_lives_for_two_days(stage: Stage, ann: Worker) -> None:
    send(stage, "a", category="errors")
    ann.run()
    hours = stage.redis.ttl(stage.keys.minute(THIS_MINUTE)) / 3_600
    assert 48 <= hours <= 49.1


# What does not fit


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("dropped errors limit:global", "dropped is 1, but dropped by category is 2"),
        ("sent errors", "sent is 3, but sent by category is 4"),
    ],
)
def test_the_books_do_not_balance_if_a_reason_counts_more_than_its_outcome(
    stage: Stage, ann: Worker, field: str, said: str
) -> None:
    send(stage, "a", "b", "c", "d", category="errors")
    ann.run()
    stage.redis.hincrby(stage.keys.totals, field, 1)
    assert (stage.snapshot().imbalances(), stage.snapshot().difference()) == ([said], 1)


def test_the_books_do_not_balance_if_fewer_events_are_held_than_are_parked(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", category="later")
    ann.run()
    stage.redis.hincrby(stage.keys.totals, "held later", -1)
    said = "held by category is 0, but parked is 1"
    assert (stage.snapshot().imbalances(), stage.snapshot().difference()) == ([said], 1)
