"""A channel's line goes by class; none is starved, and what was tried in vain holds up nobody."""

from __future__ import annotations

from typing import Final

import pytest

from dispatcher.core.posts import Ambiguous, PostResult, RateLimitedBySlack, Receipt
from dispatcher.core.states import GRACE_US, LAST_SCAN, Started
from dispatcher.core.transitions import MAX_ATTEMPTS
from dispatcher.core.units import US
from dispatcher.settings.limits_file import read_limits
from tests.support.servers import Database
from tests.support.stage import UNPACED, Stage, Worker

OPS: Final = "#ops"
LIMITS: Final = """\
global: {limits: [100/30m]}
channels: {default: {pace: 1/1s}, "#free": {pace: none}}
defaults: {limits: [], channel: "#ops"}
categories:
  alerts: {limits: [], channel: "#ops", guarantee: 10}
"""
LOUD: Final = 25
OLDEST_EVERY: Final = 16
"""Every turn of this number is that of the line's oldest event."""

ARRIVED: Final = Receipt(OPS, "1.1")
LOST: Final = Ambiguous("http_503", "no answer of Slack's own came back")
COOL: Final = RateLimitedBySlack(US, "ratelimited")


@pytest.fixture
def stage(redis: Database) -> Stage:
    policy = read_limits(LIMITS, "limits.yaml").policy
    return Stage(redis, policy)


def id_of(started: Started) -> str:
    return started.candidate.leased.id


def turn(worker: Worker, result: PostResult = ARRIVED, *, due: int = 100) -> str:
    """The next post of the channel, a second after the one before; what it comes to."""
    worker.stage.clock.forward(1)
    (started,) = worker.go(due=due)
    worker.answer(started, result)
    return id_of(started)


def line_up(worker: Worker, *ids: str, **fields: str) -> None:
    """They are admitted, and wait while another post is under way."""
    worker.stage.send(*ids, **fields)
    assert worker.go(due=0) == []


def under_way(worker: Worker) -> Started:
    worker.stage.send("first")
    (started,) = worker.go()
    return started


# By class


def test_behind_many_loud_events_the_next_turn_is_that_of_what_is_guaranteed_and_urgent(
    stage: Stage, ann: Worker
) -> None:
    stage.send(*(f"loud{n}" for n in range(LOUD)))
    (started,) = ann.go()
    assert len(stage.line(OPS)) == LOUD - 1
    line_up(ann, "alert", category="alerts", priority="high")
    ann.answer(started, ARRIVED)
    assert [turn(ann) for _ in range(3)] == ["alert", "loud1", "loud2"]


def test_a_line_goes_by_priority_then_by_guarantee_then_by_first_sight(ann: Worker) -> None:
    started = under_way(ann)
    for priority in ("low", "normal", "high"):
        line_up(ann, f"{priority}-1", f"{priority}-2", priority=priority)
        line_up(ann, f"{priority}-kept", category="alerts", priority=priority)
    ann.answer(started, ARRIVED)
    expected = [f"{priority}-{what}" for priority in ("high", "normal", "low") for what in ("kept", "1", "2")]
    assert [turn(ann) for _ in expected] == expected


# None is starved


def test_every_sixteenth_turn_of_a_line_is_that_of_its_oldest_event(stage: Stage, ann: Worker) -> None:
    started = under_way(ann)
    line_up(ann, "low0", "low1", "low2", priority="low")
    line_up(ann, "kept", category="alerts", priority="high")
    ann.answer(started, ARRIVED)
    posted = []
    for n in range(3 * OLDEST_EVERY):
        stage.clock.forward(1)
        (started,) = ann.go(new=0)
        line_up(ann, f"kept{n}", category="alerts", priority="high")
        ann.answer(started, ARRIVED)
        posted.append(id_of(started))
    turns = {id_: nth for nth, id_ in enumerate(posted, 1) if id_.startswith("low")}
    assert turns == {f"low{n}": (n + 1) * OLDEST_EVERY for n in range(3)}


def test_new_events_overtake_a_channels_line_fifteen_times_at_most(stage: Stage, ann: Worker) -> None:
    started = under_way(ann)
    line_up(ann, "low", priority="low")
    ann.answer(started, ARRIVED)
    for n in range(OLDEST_EVERY - 1):
        stage.send(f"high{n}", priority="high")
        assert turn(ann, due=0) == f"high{n}"
    stage.clock.forward(1)
    line_up(ann, "late", priority="high")
    (started,) = ann.go(new=0)
    assert id_of(started) == "low"


def test_the_sixteenth_turn_is_that_of_an_older_event_that_is_in_no_line(stage: Stage, ann: Worker) -> None:
    """A worker that holds many events does not park all of them because a later one is in the line."""
    bob = stage.worker("bob")
    stage.send("old0", "old1", channel=UNPACED)
    old = ann.take().batch
    stage.send("low", priority="low", channel=UNPACED)
    assert bob.go(free=0) == []
    stage.send(*(f"high{n}" for n in range(OLDEST_EVERY - 1)), priority="high", channel=UNPACED)
    assert len(bob.go(due=0)) == OLDEST_EVERY - 1
    assert [id_of(started) for started in ann.dispatch(old)] == ["old0", "old1"]


# What was tried in vain


def fail(worker: Worker, *ids: str) -> None:
    """Posts to the channel that have no answer, each when it may be made."""
    stage = worker.stage
    stage.send(*ids)
    for id_ in ids:
        (started,) = worker.go()
        assert id_of(started) == id_
        worker.answer(started, LOST)
        stage.clock.now_us = max(stage.clock.now_us + US, int(stage.snapshot().cooldowns.get(OPS, 0)))


def come_again(worker: Worker) -> None:
    """Time passes until those that failed were reconciled and are to be posted again; the server is not interrupted."""
    for _ in range(LAST_SCAN * GRACE_US // US + 1):
        worker.stage.clock.forward(1)
        assert worker.go_on() == []


def test_an_event_tried_in_vain_goes_behind_untried_events_of_its_priority(stage: Stage, ann: Worker) -> None:
    fail(ann, "bad0", "bad1", "bad2")
    stage.send("mate0", "mate1")
    (mate,) = ann.go()
    come_again(ann)
    assert stage.line(OPS) == ["mate1", "bad0", "bad1", "bad2"]
    ann.answer(mate, ARRIVED)
    assert turn(ann) == "mate1"


def test_an_event_tried_in_vain_goes_before_events_of_a_lower_class(stage: Stage, ann: Worker) -> None:
    fail(ann, "bad0", "bad1")
    stage.send("mate")
    assert len(ann.go()) == 1
    line_up(ann, "low", priority="low")
    come_again(ann)
    assert stage.line(OPS) == ["bad0", "bad1", "low"]


def test_an_event_keeps_its_place_for_eight_answers_of_429(stage: Stage, ann: Worker) -> None:
    stage.send("bad", "mate")
    posted = [id_of(started) for started in ann.go()]
    (started,) = stage.attempts[-1][1:]
    ann.answer(started, COOL)
    posted += [turn(ann, COOL) for _ in range(MAX_ATTEMPTS - 1)]
    assert posted == ["bad"] * MAX_ATTEMPTS
    assert [turn(ann), turn(ann)] == ["mate", "bad"]
    assert stage.letters() == []
