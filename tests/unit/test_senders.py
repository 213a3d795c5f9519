"""The posts in flight: bounded, by a deadline, each concluded once."""

from __future__ import annotations

import threading

from dispatcher.consequences import after_post
from dispatcher.event import Event
from dispatcher.model import Ambiguous, PostResult, Receipt
from dispatcher.outcome import Candidate, DeadLettered, Leased, Parked, Sent, Settlement, Started, Terms
from dispatcher.worker.senders import Senders

TERMS = Terms("#x", None, (), 10**18, configured=True)


def started(event_id: str) -> Started:
    return Started(Candidate(Leased(event_id, Event("errors", "x"), 1, 0), TERMS), 1)


def conclude(post: Started, result: PostResult) -> Settlement:
    return after_post(post, result, lambda attempt: attempt)


class Wire:
    """Stands for Slack: posts wait until they are let through."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()

    def deliver(self, post: Started) -> Settlement:
        self.entered.set()
        assert self.open.wait(10)
        return conclude(post, Receipt("#x", "1.1"))


def build(deliver: object, *, deadline_s: float = 10, size: int = 2) -> tuple[Senders, threading.Event]:
    rung = threading.Event()
    senders = Senders(deliver, conclude, size=size, deadline_s=deadline_s, wake=rung.set)  # type: ignore[arg-type]  # a test's callable
    return senders, rung


def test_a_post_that_ends_rings_and_is_collected_once() -> None:
    wire = Wire()
    senders, rung = build(wire.deliver)
    senders.start(started("a"))
    assert (senders.free, senders.ids) == (1, ["a"])
    assert senders.collect() == []
    wire.open.set()
    assert rung.wait(10)
    (settlement,) = senders.collect()
    assert isinstance(settlement.outcome, Sent)
    assert senders.collect() == []
    assert senders.free == 2


def test_a_post_beyond_its_deadline_is_ambiguous_and_its_late_answer_is_left_alone() -> None:
    wire = Wire()
    senders, rung = build(wire.deliver, deadline_s=0)
    senders.start(started("a"))
    assert senders.next_deadline() is not None
    (settlement,) = senders.collect()
    assert isinstance(settlement.outcome, Parked)
    assert settlement.outcome.code == "deadline"
    assert settlement.unknown == 1
    wire.open.set()
    assert rung.wait(10)
    assert senders.collect() == []


def test_a_late_answer_does_not_end_the_next_attempt_of_the_same_event() -> None:
    wire = Wire()
    senders, rung = build(wire.deliver, deadline_s=0)
    senders.start(started("a"))
    assert wire.entered.wait(10)
    assert len(senders.collect()) == 1
    senders._deadline_s = 10  # noqa: SLF001 - the next attempt has time
    blocked = threading.Event()
    senders._deliver = lambda post: (blocked.wait(10), conclude(post, Receipt("#x", "2.2")))[1]  # noqa: SLF001 - as above
    senders.start(started("a"))
    wire.open.set()
    assert rung.wait(10)
    assert senders.collect() == []
    assert senders.ids == ["a"]
    blocked.set()


def test_a_defect_in_delivery_leaves_the_fate_open_and_loses_nothing() -> None:
    def broken(post: Started) -> Settlement:
        raise RuntimeError(f"no idea what to do with {post.candidate.leased.id}")

    senders, rung = build(broken)
    senders.start(started("a"))
    assert rung.wait(10)
    (settlement,) = senders.collect()
    assert isinstance(settlement.outcome, Parked)
    assert settlement.outcome.code == "internal"
    last = conclude(Started(started("a").candidate, 8), Ambiguous("internal", "x"))
    assert isinstance(last.outcome, DeadLettered)
