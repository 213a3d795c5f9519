"""The posts in flight: bounded, by a deadline, each concluded once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import pytest

from dispatcher.core.event import Event
from dispatcher.core.limits import Reason
from dispatcher.core.pipeline import LATE
from dispatcher.core.posts import PostResult, Receipt
from dispatcher.core.reconciliation import after_scan
from dispatcher.core.states import (
    GRACE_US,
    Absent,
    Candidate,
    HistoryScan,
    Leased,
    Parked,
    ScanResult,
    Search,
    Sent,
    Settlement,
    Started,
    Terms,
    Unconfirmed,
)
from dispatcher.core.transitions import after_post
from dispatcher.core.units import US
from dispatcher.worker.post_pool import TOGETHER_S, PostPool, Task
from tests.support.processes import until
from tests.support.stage import policy_of

POLICY = policy_of()
TERMS = Terms("#x", None, (), 10**18, configured=True)


def started(event_id: str) -> Started:
    return Started(Candidate(Leased(event_id, Event("errors", "x"), 1, 0), TERMS), 1)


def conclude(post: Started, result: PostResult) -> Settlement:
    return after_post(post, result, lambda attempt: attempt, GRACE_US)


class Wire:
    """Stands for the core and Slack: tasks wait until they are let through."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.ts = "1.1"

    def deliver(self, post: Started) -> Settlement:
        ts, gate = self.ts, self.open
        self.entered.set()
        assert gate.wait(10)
        return conclude(post, Receipt("#x", ts))

    def conclude(self, post: Started, result: PostResult) -> Settlement:
        return conclude(post, result)

    def not_made(self, post: Started) -> Settlement:
        return conclude(post, LATE)

    def scan(self, scan: HistoryScan) -> list[Settlement]:
        self.entered.set()
        assert self.open.wait(10)
        return self.conclude_scan(scan, ScanResult({"b": Receipt("#x", "1.2")}, Absent()))

    def conclude_scan(self, scan: HistoryScan, result: ScanResult) -> list[Settlement]:
        return after_scan(scan, result, POLICY, lambda _: 1000, GRACE_US)


class Broken(Wire):
    """A core with a defect."""

    def deliver(self, post: Started) -> Settlement:
        raise RuntimeError(f"no idea what to do with {post.candidate.leased.id}")

    def scan(self, scan: HistoryScan) -> list[Settlement]:
        raise RuntimeError(f"no idea what to do with {len(scan.candidates)} events")


DEADLINE_S = 10.0


class Hands:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Paused(Hands):
    """The same; the sender's thread stands still as soon as it has looked at the time."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = threading.Event()
        self.goes_on = threading.Event()

    def __call__(self) -> float:
        now = self.now
        if threading.current_thread().name == "sender":
            self.looked.set()
            assert self.goes_on.wait(10)
        return now


def build(
    wire: Wire, *, size: int = 2, clock: Callable[[], float] = time.monotonic
) -> tuple[PostPool, threading.Event]:
    rung = threading.Event()
    return PostPool(lambda: wire, size=size, deadline_s=DEADLINE_S, wake=rung.set, clock=clock), rung


def unconfirmed(*ids: str) -> HistoryScan:
    """A history scan of posts that were marked at 0, begun a second later."""
    candidates = tuple(
        Candidate(each.leased._replace(attempt=1, unconfirmed=Unconfirmed(0, 0)), each.terms)
        for each in (started(id_).candidate for id_ in ids)
    )
    return HistoryScan(candidates, Search("#x", ids, 0, US))


def test_a_post_that_ends_rings_and_is_collected_once() -> None:
    wire = Wire()
    pool, rung = build(wire)
    pool.start(started("a"))
    assert (pool.free, pool.ids) == (1, ["a"])
    assert pool.collect() == []
    wire.open.set()
    assert rung.wait(10)
    (settlement,) = pool.collect()
    assert isinstance(settlement.outcome, Sent)
    assert pool.collect() == []
    assert pool.free == 2


def test_the_first_result_rings_and_the_one_after_which_most_have_ended() -> None:
    wire, rings = Wire(), list[None]()
    pool = PostPool(lambda: wire, size=8, deadline_s=DEADLINE_S, wake=lambda: rings.append(None), clock=Hands())
    slow = wire.open
    for id_ in ("s1", "s2", "s3"):
        wire.entered = threading.Event()
        pool.start(started(id_))
        assert wire.entered.wait(10)
    wire.open = threading.Event()
    wire.open.set()
    for id_, expected in {"a": 1, "b": 1, "c": 1, "d": 2}.items():
        pool.start(started(id_))
        until(lambda: bool(pool._idle), "the thread to be done with it")  # noqa: SLF001 - nothing else tells
        assert len(rings) == expected
        assert pool.others_end_soon == (expected < 2)
    assert len(pool.collect()) == 4
    slow.set()
    until(lambda: len(rings) > 2, "a ring for the others")


def test_posts_that_began_before_are_not_waited_for() -> None:
    wire, hands = Wire(), Hands()
    pool, _ = build(wire, size=8, clock=hands)
    for id_ in ("s1", "s2", "s3"):
        wire.entered = threading.Event()
        pool.start(started(id_))
        assert wire.entered.wait(10)
    hands.now = 2 * TOGETHER_S
    slow, wire.open = wire.open, threading.Event()
    wire.open.set()
    assert not pool.has_result
    pool.start(started("quick"))
    until(lambda: pool.has_result, "the end of the quick post")
    assert not pool.others_end_soon
    slow.set()


def test_a_post_beyond_its_deadline_is_ambiguous_and_its_late_answer_is_left_alone() -> None:
    wire, hands = Wire(), Hands()
    pool, rung = build(wire, clock=hands)
    pool.start(started("a"))
    assert wire.entered.wait(10)
    assert pool.overdue_in_s() == DEADLINE_S
    assert pool.collect() == []
    hands.now = DEADLINE_S
    (settlement,) = pool.collect()
    assert isinstance(settlement.outcome, Parked)
    assert settlement.outcome.code == "deadline"
    assert settlement.failed_scans == 0
    wire.open.set()
    assert rung.wait(10)
    assert pool.collect() == []


def test_a_late_answer_does_not_end_the_next_attempt_of_the_same_event() -> None:
    wire, hands = Wire(), Hands()
    pool, rung = build(wire, clock=hands)
    pool.start(started("a"))
    assert wire.entered.wait(10)
    hands.now = DEADLINE_S
    assert len(pool.collect()) == 1
    first, wire.open, wire.ts = wire.open, threading.Event(), "2.2"
    pool.start(started("a"))
    first.set()
    assert rung.wait(10)
    assert pool.collect() == []
    assert pool.ids == ["a"]
    wire.open.set()


EITHER: Final = pytest.mark.parametrize("task", [started("a"), unconfirmed("a")], ids=["post", "history scan"])


@EITHER
def test_a_task_that_no_thread_began_before_its_deadline_is_not_begun(task: Task) -> None:
    """The process stood still meanwhile (SIGSTOP, a host that was suspended): another worker may have the event."""
    wire, instants = Wire(), iter([0.0])
    pool, _ = build(wire, clock=lambda: next(instants, DEADLINE_S))
    pool.start(task)
    until(lambda: bool(pool._idle), "the thread to be done with it")  # noqa: SLF001 - nothing else tells
    assert not wire.entered.is_set()
    (settlement,) = pool.collect()
    assert isinstance(settlement.outcome, Parked)
    assert settlement.outcome.code == "too_late"


def test_a_thread_that_wakes_after_its_post_was_given_up_as_not_made_does_not_make_it() -> None:
    wire, hands = Wire(), Paused()
    pool, _ = build(wire, clock=hands)
    pool.start(started("a"))
    assert hands.looked.wait(10), "the thread has found that there is time"
    hands.now = DEADLINE_S
    (settlement,) = pool.collect()
    assert isinstance(settlement.outcome, Parked)
    assert settlement.outcome.code == "too_late"
    hands.goes_on.set()
    until(lambda: bool(pool._idle), "the thread to be done with it")  # noqa: SLF001 - nothing else tells
    assert not wire.entered.is_set()


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_room)


def test_a_post_for_which_no_thread_can_be_made_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire()
    pool, _ = build(wire)
    pool.start(started("a"))
    assert wire.entered.wait(10)
    with monkeypatch.context() as crowded:
        refuse_threads(crowded)
        pool.start(started("b"))
    wire.open.set()
    until(lambda: len(pool._done) == 2, "both results")  # noqa: SLF001 - to collect is to forget
    assert len(pool.collect()) == 2
    until(lambda: bool(pool._idle), "the thread to be done with it")  # noqa: SLF001 - nothing else tells
    wire.open = threading.Event()
    for id_ in ("c", "d"):
        wire.entered = threading.Event()
        pool.start(started(id_))
        assert wire.entered.wait(10), "it has a thread for itself again"
    wire.open.set()


@EITHER
def test_a_task_that_gets_no_thread_by_its_deadline_is_not_begun(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    wire, hands = Wire(), Hands()
    pool, _ = build(wire, clock=hands)
    refuse_threads(monkeypatch)
    pool.start(task)
    hands.now = DEADLINE_S
    (settlement,) = pool.collect()
    assert isinstance(settlement.outcome, Parked)
    assert (settlement.outcome.code, settlement.outcome.detail) == ("too_late", "its time had passed before it began")


def test_a_defect_in_delivery_leaves_the_fate_open_and_loses_nothing() -> None:
    pool, rung = build(Broken())
    pool.start(started("a"))
    assert rung.wait(10)
    (settlement,) = pool.collect()
    assert isinstance(settlement.outcome, Parked)
    assert (settlement.outcome.reason, settlement.outcome.code) == (Reason.RECONCILE, "internal")


def test_a_history_scan_takes_one_sender_and_answers_for_each_of_its_events() -> None:
    wire = Wire()
    pool, rung = build(wire)
    pool.start(unconfirmed("a", "b"))
    assert (pool.free, pool.ids) == (1, ["a", "b"])
    wire.open.set()
    assert rung.wait(10)
    waits, sent = pool.collect()
    assert isinstance(waits.outcome, Parked)
    assert isinstance(sent.outcome, Sent)
    assert (pool.free, pool.ids) == (2, [])


@pytest.mark.parametrize(("wire", "code"), [(Wire(), "deadline"), (Broken(), "internal")], ids=["late", "broken"])
def test_a_history_scan_without_an_answer_is_made_again_later(wire: Wire, code: str) -> None:
    hands = Hands()
    pool, rung = build(wire, clock=hands)
    pool.start(unconfirmed("a", "b"))
    assert (rung if code == "internal" else wire.entered).wait(10)
    hands.now = DEADLINE_S
    settlements = pool.collect()
    assert [each.failed_scans for each in settlements] == [1, 1]
    assert [each.outcome.code for each in settlements if isinstance(each.outcome, Parked)] == [code, code]
    wire.open.set()
