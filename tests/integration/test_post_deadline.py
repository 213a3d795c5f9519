"""Until when a post may leave: its time counts from before its mark, and past it nothing is sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from dispatcher.app.building import build_outbox
from dispatcher.app.servers import keys_of
from dispatcher.core.limits import Reason
from dispatcher.core.pipeline import Capacity, Dispatcher
from dispatcher.core.states import Candidate, Leased, Parked, Started, Waiting
from dispatcher.core.units import US
from dispatcher.producer.blocking import Producer
from dispatcher.settings.environment import Settings
from tests.support.servers import Database
from tests.support.stage import Stage, WatchedOutbox, Worker, policy_of

POST_S: Final = 4.0


@dataclass(slots=True)
class Seconds:
    """A clock that only a test moves."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class SlowOutbox(WatchedOutbox):
    """The outbox of a server whose answer to ``start`` takes its time."""

    def __init__(self, worker: Worker, clock: Seconds) -> None:
        super().__init__(worker.stage, worker.outbox)
        self._clock = clock
        self.takes_s = 0.0

    def start(
        self, candidates: Sequence[Candidate], free: int, *, is_last: bool = False, stood_by: bool = False
    ) -> list[Started | Waiting | None]:
        answers = super().start(candidates, free, is_last=is_last, stood_by=stood_by)
        self._clock.now += self.takes_s
        return answers


@pytest.fixture
def stage(redis: Database) -> Stage:
    return Stage(redis, policy_of(limits="50/30m", pace="50/1s"))


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture
def slow(ann: Worker, clock: Seconds) -> SlowOutbox:
    return SlowOutbox(ann, clock)


@pytest.fixture
def core(ann: Worker, slow: SlowOutbox, clock: Seconds) -> Dispatcher:
    return replace(ann.dispatcher, outbox=slow, post_s=POST_S, clock=clock)


def start(stage: Stage, ann: Worker, core: Dispatcher) -> Started:
    """An event on its way as far as its mark."""
    stage.send("e1")
    (started,) = core.dispatch(ann.take().batch, stage.clock.now_us, Capacity(1))
    return started


def test_the_time_of_a_post_counts_from_before_its_mark_was_asked_for(
    stage: Stage, ann: Worker, core: Dispatcher, slow: SlowOutbox
) -> None:
    slow.takes_s = 3.0
    started = start(stage, ann, core)
    core.settle([core.deliver(started)])
    assert ann.desk.posts == ["e1"]
    assert ann.desk.deadlines == [100.0 + POST_S]


def test_a_post_that_is_begun_too_late_is_not_made_and_uses_no_attempt(
    stage: Stage, ann: Worker, core: Dispatcher, clock: Seconds
) -> None:
    started = start(stage, ann, core)
    clock.now += POST_S
    settlement = core.deliver(started)
    assert ann.desk.posts == []
    assert isinstance(settlement.outcome, Parked)
    assert (settlement.outcome.reason, settlement.outcome.code) == (Reason.RETRY, "too_late")
    assert (settlement.attempt, settlement.reached) == (0, None)
    core.settle([settlement])
    stage.check()
    assert stage.books.snapshot().timers == 1


def test_a_post_that_was_not_made_is_made_once_when_its_timer_ends(
    stage: Stage, ann: Worker, core: Dispatcher, clock: Seconds
) -> None:
    started = start(stage, ann, core)
    clock.now += POST_S
    core.settle([core.deliver(started)])
    stage.clock.forward(600)
    again = core.dispatch(ann.take().batch, stage.clock.now_us, Capacity(1))
    core.settle([core.deliver(each) for each in again])
    assert ann.desk.posts == ["e1"]
    assert stage.books.snapshot().overall()["sent"] == 1


def test_a_post_begins_before_anything_is_told_of_the_events_beside_it(stage: Stage, ann: Worker) -> None:
    stage.policy = policy_of(pace="1/1s")
    stage.send("e1", "e2", "e3")
    told_before: list[int] = []
    taken = ann.take()
    senders = Capacity(1, begin=lambda _: told_before.append(len(ann.told.waits) + len(ann.told.losses)))
    ann.dispatcher.dispatch(taken.batch, taken.now_us, senders)
    assert told_before == [0]
    assert len(ann.told.waits) == 2


@pytest.mark.parametrize(
    ("grace_s", "looked_up_after_s"), [("0", 7), ("6.9", 7), ("20", 20)], ids=["none", "shorter", "longer"]
)
def test_an_event_that_a_worker_left_is_reconciled_only_when_its_post_can_no_longer_leave(
    redis: Database, grace_s: str, looked_up_after_s: int
) -> None:
    """A mark may be set at the very end of a lease; the post may leave for 6 s from then on."""
    settings = Settings.isolated(slack_timeout="6", reconcile_grace=grace_s)
    keys, _ = keys_of(settings)
    Producer(redis).send("errors", "x", id="e1")
    ann = build_outbox(settings, redis, "ann")
    (leased,) = ann.take(1, 1).batch
    assert isinstance(leased, Leased)
    assert isinstance(ann.start([Candidate(leased, policy_of().terms(leased))], 1)[0], Started)
    marked_us = int(header_of(redis, keys.events, "e1")["sent"])
    redis.zadd(keys.leases, {"ann": 0})
    build_outbox(settings, redis, "bob").take(0, 0)
    looked_up_us = redis.zscore(keys.timers, "e1")
    assert looked_up_us == marked_us + looked_up_after_s * US


def header_of(redis: Database, events: str, id_: str) -> dict[str, str]:
    record: Any = redis.hget(events, id_)
    header: dict[str, str] = json.loads(record.partition(b"\n")[0])
    return header
