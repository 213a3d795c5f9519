"""A fleet in made-up time: it decides by the real scripts and posts over real HTTP, and nobody sleeps."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from dispatcher.core.pipeline import Capacity, Dispatcher
from dispatcher.core.posts import Message, PostResult
from dispatcher.core.states import Parked, ScanResult, Search, Settlement
from dispatcher.core.units import US
from tests.support.quiet_stage import QuietStage
from tests.support.stage import Stage, Worker

SENDERS: Final = 4
_BATCH: Final = 128
_LEASE_US: Final = 3_600 * US
_BEAT_US: Final = _LEASE_US // 3
_MOST_STEPS: Final = 1_000
"""At one instant; a fleet that takes more turns in a circle."""

_LOOK_EVERY: Final = 50
_MOST_BACKOFF_US: Final = 300 * US


class TimedSink(Protocol):
    """A sink that says how long its last post or history scan took."""

    took_us: int
    can_update: bool

    def post(self, message: Message, *, by_s: float | None = None) -> PostResult: ...
    def update(self, channel: str, ts: str, message: Message, *, by_s: float | None = None) -> PostResult: ...
    def scan(self, search: Search) -> ScanResult: ...


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event, and when its producer sends it: microseconds from the start."""

    at_us: int
    id: str
    channel: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Flight:
    lands_us: int
    settlements: list[Settlement]


@dataclass(slots=True)
class _Member:
    worker: Worker
    flights: list[_Flight] = field(default_factory=list)
    wakes_us: int = 0
    beats_us: int = 0


class VirtualFleet:
    """Workers with ``SENDERS`` pool each. They sleep until the instant that ``take`` named, or the bell wakes one.

    A post is made at the instant at which it starts, and its answer is there when ``sink.took_us`` have passed.
    """

    def __init__(self, stage: QuietStage, sink: TimedSink, *, workers: int = 2, seed: int = 1) -> None:
        self.stage = stage
        self.began_us = stage.clock.now_us
        self.sent: dict[str, Arrival] = {}
        self.steps = 0
        self._sink = sink
        self._dice = random.Random(seed)
        self._members = [_Member(stage.worker(f"worker{n}", _LEASE_US)) for n in range(workers)]
        for each in self._members:
            each.worker.desk = sink  # type: ignore[assignment]  # it takes the double's place

    @property
    def ended(self) -> dict[str, Settlement]:
        """What was told of the end of events, by all workers."""
        told = (each for member in self._members for each in member.worker.told.settlements)
        return {each.subject.id: each for each in told if not isinstance(each.outcome, Parked)}

    @property
    def now_us(self) -> int:
        """Microseconds since the start."""
        return self.stage.clock.now_us - self.began_us

    def run(self, arrivals: Iterable[Arrival], awaited: Collection[str], most_s: float) -> None:
        """Until those awaited have ended and nothing is left; ``arrivals``, in order, go on as long.

        Raises ``AssertionError`` where that takes longer than ``most_s``.
        """
        coming = iter(arrivals)
        following = next(coming, None)
        while True:
            while following is not None and following.at_us <= self.now_us:
                self.stage.send(following.id, channel=following.channel, **following.fields)
                self.sent[following.id] = following
                self._members[0].wakes_us = self.stage.clock.now_us
                following = next(coming, None)
            self._work_at_this_instant()
            if self.ended.keys() >= set(awaited) and self._is_idle():
                break
            wakes = [min(each.wakes_us, _lands_us(each)) for each in self._members]
            wakes += [] if following is None else [self.began_us + following.at_us]
            self.stage.clock.now_us = int(min(wakes))
            assert self.now_us <= most_s * US, f"not done after {most_s:g} s: {self.stage.snapshot()}"
        Stage.check(self.stage)

    def _is_idle(self) -> bool:
        snapshot = self.stage.snapshot()
        return not (snapshot.waiting or snapshot.parked or snapshot.in_flight)

    def _work_at_this_instant(self) -> None:
        for _ in range(_MOST_STEPS):
            now_us = self.stage.clock.now_us
            self.stage.collect_tokens()
            awake = [each for each in self._members if min(each.wakes_us, _lands_us(each)) <= now_us]
            listening = [each for each in self._members if _free(each)]
            if awake:
                self._work(awake[0])
            elif self.stage.tokens and listening:
                self.stage.tokens -= 1
                self._work(min(listening, key=lambda each: each.wakes_us))
            else:
                return
        raise AssertionError(f"no end at one instant: {self.stage.snapshot()}")

    def _work(self, member: _Member) -> None:
        now_us, worker = self.stage.clock.now_us, member.worker
        self.steps += 1
        if self.steps % _LOOK_EVERY == 0:
            assert self.stage.snapshot().imbalances() == []
        dispatcher = replace(worker.dispatcher, backoff=self._backoff)
        landed = [each for each in member.flights if each.lands_us <= now_us]
        member.flights = [each for each in member.flights if each.lands_us > now_us]
        dispatcher.settle([settlement for each in landed for settlement in each.settlements])
        if member.beats_us <= now_us:
            worker.outbox.renew()
            member.beats_us = now_us + _BEAT_US
        taken = worker.outbox.take(_BATCH, _free(member))
        self._dispatch(member, dispatcher, taken.batch)
        again_us = taken.again_us(can_post=_free(member) > 0)
        member.wakes_us = now_us if taken.batch or taken.more else min(again_us, member.beats_us)

    def _dispatch(self, member: _Member, dispatcher: Dispatcher, batch: Sequence[Any]) -> None:
        now_us = self.stage.clock.now_us
        for scan in dispatcher.scans(batch, now_us):
            self._fly(member, dispatcher.scan(scan))
        for started in dispatcher.dispatch(batch, now_us, Capacity(_free(member))):
            self._fly(member, [dispatcher.deliver(started)])

    def _fly(self, member: _Member, settlements: list[Settlement]) -> None:
        member.flights.append(_Flight(self.stage.clock.now_us + self._sink.took_us, settlements))

    def _backoff(self, attempt: int) -> int:
        """As workers wait: a random time up to 2, 4, 8 ... s, up to five minutes."""
        return round(self._dice.uniform(0, min(US * 2**attempt, _MOST_BACKOFF_US)))


def _lands_us(member: _Member) -> float:
    return min((each.lands_us for each in member.flights), default=float("inf"))


def _free(member: _Member) -> int:
    return max(0, SENDERS - len(member.flights))
