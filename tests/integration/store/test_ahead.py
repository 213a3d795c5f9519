"""What a worker names as undecided while it takes one batch ahead after another, and what never comes ahead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dispatcher.core.policy import OnLimit
from dispatcher.core.posts import Rejected, Retryable
from dispatcher.core.states import Leased
from dispatcher.core.units import US, Lane
from dispatcher.errors import GateUnavailable
from dispatcher.server.clients import connect
from dispatcher.store.leases import Taken
from tests.support.cut_proxy import CutProxy
from tests.support.deferral import category_line, keep_beating, marks, opens_at, posted, send
from tests.support.doubles import START_US
from tests.support.servers import Database, RedisServer, free_port
from tests.support.stage import UNPACED, Stage, Worker, handed_out, policy_of


@pytest.fixture
def stage(redis: Database) -> Stage:
    return Stage(redis, policy_of("9999/30m", "9999/30m"))


def go_on(worker: Worker, taken: Taken, size: int = 2) -> Taken:
    """Decide the batch in hand, take the next, and ask for one ahead."""
    worker.deliver(worker.dispatch(taken.batch))
    after = worker.outbox.take(size, 0)
    worker.outbox.prefetch(after, size, 0)
    return after


# What others wait for


@pytest.mark.parametrize("waits_in", ["the line of a channel", "the line of a category"])
def test_an_event_waits_for_an_earlier_decision_only_until_it_is_made_despite_prefetches(
    stage: Stage, ann: Worker, bob: Worker, waits_in: str
) -> None:
    stage.policy = replace(
        stage.policy, categories={"later": replace(stage.policy.defaults, on_limit=OnLimit.DEFER, channel=UNPACED)}
    )
    stage.send(*(f"n{n}" for n in range(100)), category="news", channel=UNPACED)
    taken = ann.outbox.take(2, 0)
    for _ in range(2):
        ann.outbox.prefetch(taken, 2, 0)
    if waits_in == "the line of a channel":
        stage.send("p", category="others", channel="#paced", priority=Lane.HIGH)
    else:
        stage.send("p", category="later", priority=Lane.HIGH)
    assert bob.go(new=1, due=9) == []
    for _ in range(3):
        assert bob.outbox.take(0, 9).batch == []
        taken = go_on(ann, taken)
    assert handed_out(bob.outbox.take(0, 9)) == ["p"]
    assert ann.outbox.ahead == 2


def test_a_prefetch_brings_no_event_of_a_paced_channel_that_is_newer_than_what_is_undecided(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    stage.send("n0", "n1", category="news", channel=UNPACED)
    stage.send("early", "n2", "late", category="others", channel="#paced")
    stage.send(*(f"m{n}" for n in range(9)), category="news", channel=UNPACED)
    taken = ann.outbox.take(2, 9)
    ann.outbox.prefetch(taken, 2, 9)
    assert bob.go(new=1, due=9) == []
    ann.deliver(ann.dispatch(taken.batch))
    undecided = ann.outbox.take(2, 9)
    assert handed_out(undecided) == ["early", "n2"]
    ann.outbox.prefetch(undecided, 2, 9)
    (started,) = ann.dispatch(undecided.batch)
    assert started.candidate.leased.id == "early"
    assert "late" not in handed_out(ann.outbox.take(2, 9))


def test_a_slot_freed_before_a_batch_was_taken_does_not_reopen_a_scope_refused_in_it(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/30m", on_limit=OnLimit.DEFER))
    ann, bob = stage.worker("ann"), stage.worker("bob")
    send(stage, "first")
    (started,) = bob.go()
    bob.decided()
    for n in range(3):
        send(stage, f"other{n}", category=f"other{n}")
    send(stage, "a", "b")
    taken = ann.outbox.take(1, 0)
    for _ in range(2):
        ann.outbox.prefetch(taken, 1, 0)
    bob.answer(started, Rejected("channel_not_found", "no such channel"))
    while handed_out(taken) != ["b"]:
        taken = go_on(ann, taken, 1)
    ann.dispatch(taken.batch)
    assert (posted(stage)[-1], category_line(stage)) == ("a", ["b"])
    assert opens_at(stage, "category:errors") == START_US + 1_800 * US


# What is taken alone


@pytest.fixture
def candidate(stage: Stage, ann: Worker) -> str:
    """One with which two workers died while they posted it: it waits on its timer to be reconciled."""
    stage.send("x", channel=UNPACED)
    for owner in ("cid", "dan"):
        assert [each.candidate.leased.id for each in stage.worker(owner).go_on()] == ["x"]
        keep_beating(stage, 60, "ann")
    ann.take(0, 0)
    assert stage.header("x")["deaths"] == 2
    return "x"


@pytest.mark.parametrize("place", ["first", "later"])
def test_a_poison_candidate_is_not_prefetched_but_next(stage: Stage, ann: Worker, candidate: str, place: str) -> None:
    if place == "later":
        first_us = stage.redis.zscore(stage.keys.timers, candidate)
        assert first_us is not None
        stage.send("y", channel=UNPACED)
        (started,) = ann.go(due=0)
        ann.answer(started, Retryable("refused", "connection refused"))
        stage.redis.zadd(stage.keys.timers, {"y": first_us - 1})
    stage.send(*(f"n{n}" for n in range(20)), channel=UNPACED)
    taken = ann.outbox.take(2, 0)
    assert handed_out(taken) == ["n0", "n1"]
    for _ in range(2):
        ann.outbox.prefetch(taken, 2, 5)
    for ahead in (1, 0):
        taken = ann.outbox.take(1, 5)
        assert candidate not in handed_out(taken)
        ann.outbox.prefetch(taken, 2, 5)
        assert ann.outbox.ahead == ahead, "no more is asked for"
    assert handed_out(ann.outbox.take(2, 5)) == [candidate]
    ann.outbox.prefetch(ann.outbox.take(2, 0), 2, 0)
    assert ann.outbox.ahead == 1, "it goes on"


def test_a_poison_candidate_in_the_line_of_a_channel_is_not_prefetched_but_next(stage: Stage, ann: Worker) -> None:
    stage.send("first", "x", channel="#paced")
    (started,) = ann.go(new=1)
    for owner in ("cid", "dan"):
        assert stage.worker(owner).taken(1, 0) == ["x"]
        keep_beating(stage, 40, "ann")
    assert (ann.go(), stage.line("#paced")) == ([], ["x"])
    ann.deliver([started])
    stage.clock.forward(60)
    stage.send(*(f"n{n}" for n in range(20)), channel=UNPACED)
    taken = ann.outbox.take(2, 0)
    ann.outbox.prefetch(taken, 2, 5)
    assert handed_out(ann.outbox.take(2, 5)) == ["n2", "n3"]
    assert handed_out(ann.outbox.take(2, 5)) == ["x"]


# Which comes first


@pytest.fixture
def far() -> Iterator[tuple[CutProxy, Stage]]:
    """A server behind a network."""
    with (
        RedisServer(port=free_port()) as server,
        CutProxy(server.port) as proxy,
        connect(f"redis://127.0.0.1:{proxy.port}/0") as client,
    ):
        yield proxy, Stage(client, policy_of("100/30m", "100/30m"))


def asked_twice(worker: Worker, taken: Taken) -> None:
    for _ in range(2):
        worker.outbox.prefetch(taken, 1, 0)


def test_batches_asked_for_ahead_keep_their_order_though_one_call_overtakes_another(
    far: tuple[CutProxy, Stage],
) -> None:
    proxy, stage = far
    ann = stage.worker("ann")
    stage.send(*(f"e{n}" for n in range(20)), channel=UNPACED)
    got = [ann.outbox.take(1, 0)]
    asked_twice(ann, got[-1])  # both connections are open
    got += [ann.outbox.take(1, 0) for _ in range(2)]
    for overtaken in (["e3", "e4"], ["e6", "e7"]):
        proxy.hold_next()
        asked_twice(ann, got[-1])
        got.append(ann.outbox.take(1, 0))
        assert (handed_out(got[-1]), ann.outbox.ahead) == (overtaken, 0)
        assert got[-1].undecided is not None
        assert f"e{got[-1].undecided.seq - 1}" == overtaken[0]
        got.append(ann.outbox.take(1, 0))
    asked_twice(ann, got[-1])
    got += [ann.outbox.take(1, 0) for _ in range(2)]
    seqs = [each.seq for taken in got for each in taken.batch if isinstance(each, Leased)]
    assert seqs == list(range(1, 12))
    assert marks(stage) == {"ann"}


def test_a_batch_asked_for_ahead_goes_back_where_the_answer_with_an_earlier_one_is_lost(
    far: tuple[CutProxy, Stage],
) -> None:
    proxy, stage = far
    ann = stage.worker("ann")
    stage.send(*(f"e{n}" for n in range(9)), channel=UNPACED)
    taken = ann.outbox.take(1, 0)
    asked_twice(ann, taken)  # both connections are open
    for _ in range(2):
        taken = ann.outbox.take(1, 0)
    proxy.hold_next()
    proxy.cut_after(0)
    asked_twice(ann, taken)
    assert handed_out(ann.outbox.take(1, 0)) == []
    with pytest.raises(GateUnavailable):
        ann.outbox.take(1, 0)
    assert ann.outbox.keep_only([]) == 5
    assert ann.taken() == [f"e{n}" for n in range(9)]
