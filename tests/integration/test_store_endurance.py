"""What has to hold over stops, deaths, reconnections and changed limits: nobody waits for what is not so any more."""

from __future__ import annotations

import pytest

from dispatcher.errors import InvalidEvent
from dispatcher.event import Event
from dispatcher.model import US, Ambiguous, RateLimitedBySlack, Reason, Receipt, Retryable
from dispatcher.outcome import DeadLettered, Leased, Settlement
from dispatcher.policy import OnLimit, on_arrival
from tests.support.doubles import START_US
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, UNPACED, Stage, Worker, policy_of


def posted(stage: Stage) -> list[str]:
    return [started.candidate.leased.id for _, started in stage.attempts]


def pass_time(stage: Stage, seconds: int, *alive: str) -> None:
    """Those named renew their leases every ten seconds, as live workers do."""
    for _ in range(seconds // 10):
        stage.clock.forward(10)
        for owner in alive:
            stage.worker(owner).renew()


@pytest.fixture
def stage(redis: Database) -> Stage:
    return Stage(redis, policy_of("", "1/1m", on_limit=OnLimit.DEFER))


@pytest.fixture
def ann(stage: Stage) -> Worker:
    """A worker that has posted ``a`` in vain: it holds its slot, for which ``b`` was refused and waits."""
    ann = stage.worker("ann")
    stage.send("a", channel=UNPACED)
    (first,) = ann.go()
    ann.answer(first, Retryable("refused", "connection refused"))
    stage.send("b", channel=UNPACED)
    ann.run()
    assert stage.look().deferred == {"errors": 1}
    stage.clock.now_us += BACKOFF_US
    return ann


def test_who_waits_for_a_held_slot_goes_a_window_after_it_was_posted_by_a_worker_that_stops(
    stage: Stage, ann: Worker
) -> None:
    (again,) = ann.go()
    ann.keep_only("a")
    ann.answer(again, Receipt(UNPACED, "1.0"))
    ann.give_back()
    bob = stage.worker("bob")
    bob.run()
    pass_time(stage, 60, "bob")
    bob.run()
    assert posted(stage) == ["a", "a", "b"]


def test_who_waits_for_a_held_slot_goes_a_window_after_it_was_posted_by_a_worker_that_dies(
    stage: Stage, ann: Worker
) -> None:
    ann.go()
    bob = stage.worker("bob")
    pass_time(stage, 30, "bob")
    bob.run()
    assert posted(stage) == ["a", "a", "a"]
    pass_time(stage, 60, "bob")
    bob.run()
    assert posted(stage)[-1] == "b"


def test_a_retry_that_finds_only_held_slots_waits_no_longer_than_a_window(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/1m"))
    ann = stage.worker()
    stage.send("b", channel=UNPACED)
    (post,) = ann.go()
    ann.answer(post, Ambiguous("http_500", "no answer"))
    pass_time(stage, 60, "ann")
    stage.send("a", channel=UNPACED)
    (other,) = ann.go(due=0)
    ann.answer(other, RateLimitedBySlack(2 * US, "ratelimited"))
    ann.run()
    assert stage.redis.zscore(stage.keys.timers, "b") == stage.clock.now_us + 60 * US


def test_limits_that_were_raised_reach_what_waits_with_the_next_worker(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/12h", on_limit=OnLimit.DEFER))
    ann = stage.worker("ann")
    stage.send("a", "b", channel=UNPACED)
    ann.run()
    ann.give_back()
    stage.policy = policy_of("", "100/1m", on_limit=OnLimit.DEFER)
    stage.send("c", channel=UNPACED)
    stage.worker("bob").run()
    assert posted(stage) == ["a", "b", "c"]


def test_an_event_whose_terms_cannot_be_found_is_a_dead_letter_by_itself() -> None:
    with pytest.raises(InvalidEvent, match="well-formed"):
        Event("errors", "x", labels={"host": "\ud800"})
    event = Event("errors", "x")
    event.__dict__["max_age"] = "tomorrow"  # as a defect of ours might leave it
    end = on_arrival(Leased("e", event, 1, START_US), policy_of(), START_US)
    assert isinstance(end, Settlement)
    assert isinstance(end.outcome, DeadLettered)
    assert (end.outcome.reason, end.outcome.detail.split(":")[0]) == (Reason.INVALID, "cannot be handled")
