"""The server's clock is stepped: whoever calls first notices, nothing waits much longer, nothing is posted twice."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest

from dispatcher.core.posts import Ambiguous, Paused, RateLimitedBySlack, Receipt, Retryable
from dispatcher.core.states import GRACE_US, LAST_SCAN, MARGIN_US, Absent, ScanResult, Search
from dispatcher.core.units import US
from dispatcher.worker.post_pool import Standby
from tests.support.doubles import START_US
from tests.support.extent import slow_unless
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, LEASE_US, UNPACED, Stage, Worker, policy_of

BACK_US: Final = 600 * US
LOST: Final = Ambiguous("reply_timeout", "no complete answer within 10 s")

CALLS: Final = pytest.mark.parametrize("call", ["take", "heartbeat"])


@pytest.fixture
def stage(redis: Database) -> Stage:
    return Stage(redis, policy_of("", "50/30m", pace="1/1s"))


def step(stage: Stage, by_us: int, call: str = "take") -> None:
    """The clock is stepped, and a worker beside is the first to call, if by its heartbeat then by its next take too."""
    bob = stage.worker("bob")
    bob.renew()
    stage.clock.now_us += by_us
    if call == "heartbeat":
        bob.renew()
    bob.take(0, 0)


def beat_for_a_lease(stage: Stage) -> None:
    for _ in range(3):
        stage.clock.now_us += LEASE_US // 3
        stage.worker("bob").renew()


def ahead(stage: Stage, key: str, member: str) -> float | None:
    """By how much an instant that is stored lies ahead of now."""
    score: float | None = stage.redis.zscore(key, member)
    return None if score is None else score - stage.clock.now_us


@CALLS
def test_after_a_step_back_a_dead_workers_lease_ends_within_a_lease(stage: Stage, call: str) -> None:
    stage.send("x")
    stage.worker("dead").taken()
    step(stage, -BACK_US, call)
    assert ahead(stage, stage.keys.leases, "dead") == LEASE_US
    beat_for_a_lease(stage)
    assert stage.worker("bob").taken() == ["x"]


@CALLS
def test_after_a_step_back_a_longer_lease_keeps_what_is_left_of_it(stage: Stage, call: str) -> None:
    stage.worker("patient", lease_us=10 * LEASE_US).renew()
    step(stage, -BACK_US, call)
    assert ahead(stage, stage.keys.leases, "patient") == 10 * LEASE_US


@CALLS
def test_after_a_step_back_a_cool_down_ends_when_it_was_to(stage: Stage, ann: Worker, call: str) -> None:
    stage.send("x", channel="#a")
    ann.answer(ann.go()[0], RateLimitedBySlack(7 * US, "ratelimited"))
    step(stage, -BACK_US, call)
    assert ahead(stage, stage.keys.cooldowns, "#a") == 7 * US


def test_a_cool_down_that_begins_after_a_step_back_nobody_has_noticed_ends_no_sooner(stage: Stage, ann: Worker) -> None:
    stage.send("x", channel="#a")
    (started,) = ann.go()
    stage.clock.now_us -= BACK_US
    ann.answer(started, RateLimitedBySlack(7 * US, "ratelimited"))
    ann.take()
    assert ahead(stage, stage.keys.cooldowns, "#a") == 7 * US


def test_after_a_step_forward_an_event_that_stood_by_takes_no_room_of_others(stage: Stage, ann: Worker) -> None:
    """Its slot has left the window, and the gate has given the room to others."""
    stage.policy = policy_of("", "2/30m")
    standby = Standby(size=2, senders=1)
    standby.open("", 0.0)
    stage.send("e1", channel=UNPACED)
    stage.send("e2", channel=UNPACED)
    assert ann.dispatch(ann.take().batch, free=0, standby=standby) == []
    stage.clock.now_us += 1_801 * US
    stage.send("f1", channel=UNPACED)
    stage.send("f2", channel=UNPACED)
    assert len(stage.worker("bob").go()) == 2
    assert ann.start_standby(standby.all(), free=2) == []
    assert stage.snapshot().parked == 2


@CALLS
def test_after_a_step_back_a_pause_is_probed_when_it_was_to_be(stage: Stage, ann: Worker, call: str) -> None:
    stage.send("x", channel="#a")
    ann.answer(ann.go()[0], Paused("invalid_auth", "the token is not valid"))
    probe_us = int(stage.redis.hget(stage.keys.pause, "probe") or 0) - stage.clock.now_us
    step(stage, -BACK_US, call)
    assert int(stage.redis.hget(stage.keys.pause, "probe") or 0) - stage.clock.now_us == probe_us > 0


@CALLS
def test_after_a_step_back_a_retry_is_made_when_it_was_to_be(stage: Stage, ann: Worker, call: str) -> None:
    stage.send("x", channel="#a")
    ann.answer(ann.go()[0], Retryable("refused", "connection refused"))
    step(stage, -BACK_US, call)
    assert ahead(stage, stage.keys.timers, "x") == BACKOFF_US


def test_two_steps_back_between_two_takes_bring_a_timer_back_by_both(stage: Stage, ann: Worker) -> None:
    stage.send("x", channel="#a")
    ann.answer(ann.go()[0], Retryable("refused", "connection refused"))
    for _ in range(2):
        ann.renew()
        stage.clock.now_us -= BACK_US
    ann.renew()
    ann.take(0, 0)
    assert ahead(stage, stage.keys.timers, "x") == BACKOFF_US


@CALLS
def test_after_a_step_back_a_paced_channel_waits_for_its_window_at_most(stage: Stage, ann: Worker, call: str) -> None:
    stage.send("a", "b", channel="#a")
    ann.run()
    step(stage, -BACK_US, call)
    ann.run()
    assert ahead(stage, stage.keys.lines, "channel:#a") == US
    stage.clock.forward(1)
    ann.run()
    assert stage.total("sent") == 2


def test_a_post_marked_before_a_step_back_is_reconciled_a_grace_after_it_failed(stage: Stage, ann: Worker) -> None:
    stage.send("x", channel=UNPACED)
    (started,) = ann.go()
    step(stage, -BACK_US)
    ann.answer(started, LOST)
    assert ahead(stage, stage.keys.timers, "x") == GRACE_US


def test_a_dead_workers_post_from_before_a_step_back_is_reconciled_a_grace_after_its_lease(stage: Stage) -> None:
    stage.send("x", channel=UNPACED)
    stage.worker("dead").go()
    step(stage, -BACK_US)
    beat_for_a_lease(stage)
    assert stage.worker("bob").taken() == []
    assert ahead(stage, stage.keys.timers, "x") == GRACE_US


def test_after_a_step_back_a_history_scan_begins_before_the_post_by_the_clock_of_now(stage: Stage, ann: Worker) -> None:
    """The clock was ahead when the post was made: Slack's history has it under an earlier instant."""
    stage.send("x", channel=UNPACED)
    ann.answer(ann.go()[0], LOST)
    posted_us = stage.clock.now_us - BACK_US
    step(stage, -BACK_US)
    searches: list[Search] = []

    def shows(search: Search) -> ScanResult:
        searches.append(search)
        return ScanResult({"x": Receipt(UNPACED, "1.1")} if search.since_us <= posted_us else {}, Absent())

    ann.desk.shows = shows
    stage.clock.now_us += GRACE_US
    ann.run()
    assert stage.total("sent") == 1
    assert [search.since_us for search in searches] == [posted_us - MARGIN_US]


def test_a_post_after_a_noticed_step_back_of_the_clock_is_searched_for_only_from_then_on(
    stage: Stage, ann: Worker
) -> None:
    step(stage, -BACK_US)
    stage.clock.now_us += BACK_US + US
    stage.send("x", channel=UNPACED)
    ann.answer(ann.go()[0], LOST)
    stage.clock.now_us += GRACE_US
    ann.run()
    assert [search.since_us for search in ann.desk.searches] == [START_US + US - MARGIN_US]


def test_a_step_forward_makes_no_post_under_way_a_lost_one(stage: Stage, ann: Worker) -> None:
    """All its graces have passed by the new clock, and none by any other."""
    stage.send("x", channel=UNPACED)
    ann.answer(ann.go()[0], LOST)
    step(stage, LAST_SCAN * GRACE_US)
    assert ann.go_on() == []
    assert ahead(stage, stage.keys.timers, "x") == LAST_SCAN * GRACE_US


def test_a_post_waits_for_one_interruption_and_not_for_each(stage: Stage, ann: Worker) -> None:
    stage.send("x", channel=UNPACED)
    ann.answer(ann.go()[0], LOST)
    step(stage, LAST_SCAN * GRACE_US)
    assert ann.go_on() == []
    step(stage, LAST_SCAN * GRACE_US)
    assert [each.candidate.leased.id for each in ann.go_on()] == ["x"]


@pytest.mark.parametrize(
    ("field", "value"),
    slow_unless(
        lambda case: case[0] == "grace" or case[1] == "nan",
        product(
            ["grace", "resumed", "earlier", "ahead", "by"], ["1e308", "-1e308", "inf", "nan", "9007199254740991", "x"]
        ),
    ),
)
def test_no_absurd_value_of_the_beat_stops_a_takeover_or_a_look(
    stage: Stage, ann: Worker, field: str, value: str
) -> None:
    stage.send("x", "y", channel=UNPACED)
    ann.answer(ann.go(new=1)[0], LOST)
    stage.worker("dead").taken()
    for _ in range(5):
        stage.clock.now_us += LEASE_US // 3
        stage.redis.hset(stage.keys.beat, field, value)
        ann.run()
    assert stage.total("sent") == 2
