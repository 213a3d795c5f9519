"""Runs the events of a trace by some limits, on made-up time, and returns what became of them."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from dispatcher.core.event import Event, Status, job_id_for
from dispatcher.core.policy import OnLimit, Policy
from dispatcher.core.units import US, Lane
from dispatcher.server.clients import connect
from dispatcher.server.connection import Client
from dispatcher.server.embedded import EmbeddedServer
from dispatcher.simulate.arrivals import Arrival, Details
from dispatcher.simulate.course import Course, OnEnd
from dispatcher.simulate.figures import Bars
from dispatcher.simulate.fleet import REMEMBER_US, SEED, Clock, Fleet
from dispatcher.simulate.refused import Refused
from dispatcher.simulate.sink import SimulatedSlack
from dispatcher.store.intake import Enqueued, Job

INSTANT_US: Final = US
"""Arrivals of one second come together, in their order."""

MOST_TOGETHER: Final = 1_000
"""Events that are enqueued in one call."""

_BATCH: Final = 512
_ADVANCE: Final = 100
_TEXT: Final = "simulated"
_MIXED: Final = "mixed"
"""Several priorities."""

_REMEMBERED: Final = 4_096
"""Jobs that differ in their id alone are made once; so many are kept."""

_EPOCH_US: Final = 7 * 86_400 * 2_600 * US
"""Added to traces that count from 0: a whole number of weeks, so that fixed windows stay where they are."""

_LEAST_US: Final = 10 * 366 * 86_400 * US
"""A trace that begins earlier than this counts from 0."""


class Trace(Protocol):
    """Arrivals in order of time."""

    first_us: int
    last_us: int

    def __iter__(self) -> Iterator[Arrival]: ...

    def __len__(self) -> int: ...


@contextmanager
def private_server() -> Iterator[Client]:
    """A client of an empty server that is nobody else's and keeps nothing; gone at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="dispatcher-simulate-") as directory,
        EmbeddedServer.join(Path(directory)) as server,
        connect(server.url, timeout_s=60.0) as client,
    ):
        client.config_set("appendonly", "no")
        yield client


@dataclass(frozen=True, slots=True)
class Simulated:
    """The result: the ``course``, and the ``slack`` that was posted to.

    Made-up time is ``shift_us`` after the trace's. ``untold`` counts, by category, the events whose text the trace does
    not say though it decides which of them are repeats: none of them was taken for one.
    """

    policy: Policy
    course: Course
    slack: SimulatedSlack
    shift_us: int
    untold: Counter[str] = field(default_factory=Counter)


def simulate(  # noqa: PLR0913 - what may differ between runs, by name
    client: Client,
    trace: Trace,
    policy: Policy,
    *,
    ended: OnEnd | None = None,
    advance: Callable[[int], None] = lambda _: None,
    seed: int = SEED,
    remember_us: int = REMEMBER_US,
    instant_us: int = INSTANT_US,
    merges: bool = True,
) -> Simulated:
    """Run a trace on an empty server, which is empty again afterwards; ``advance`` is told how many events came.

    It ends when nothing that a limit admitted is still to be posted, at the end of the trace or later: what limits
    defer then is left waiting. An id is remembered for ``remember_us`` after its event has ended. Arrivals of the same
    ``instant_us`` come together, at its beginning. ``merges=False`` takes each event at its own instant, also where a
    limit refuses it for certain: that changes nothing but the time it takes.
    """
    client.flushall()
    shift_us = _EPOCH_US if trace.first_us < _LEAST_US else 0
    first_us = trace.first_us + shift_us
    clock = Clock(first_us - first_us % instant_us)
    slack = SimulatedSlack(clock, can_update=not policy.by_webhook)
    course = Course(policy, clock, Bars(first_us, trace.last_us + shift_us), ended)
    fleet = Fleet(
        client, policy, sink=slack, observer=course, clock=clock, batch=_BATCH, seed=seed, remember_us=remember_us
    )
    run = _Run(fleet, course, Refused(policy, fleet.workers[0].prefilter, clock, course.has_line), merges=merges)
    run.play(trace, shift_us, instant_us, advance)
    client.flushall()
    return Simulated(policy, course, slack, shift_us, run.untold)


class _Run:
    """One run. Events that a limit refuses for certain wait in ``_pending`` until others are to be decided."""

    def __init__(self, fleet: Fleet, course: Course, refused: Refused, *, merges: bool) -> None:
        self._fleet = fleet
        self._clock = fleet.clock
        self._course = course
        self._refused = refused
        self._merges = merges
        self._jobs = _Jobs(fleet)
        self._pending: list[tuple[str, Job, Arrival, int]] = []
        self._deferred: str | None = None
        """The priority of those that are pending and will be deferred for certain."""
        self._certain_us = 0
        """Until when all that is pending is refused for certain; 0 if some of it is not."""
        self._next_us: int | None = fleet.work()

    @property
    def untold(self) -> Counter[str]:
        """See ``Simulated``."""
        return self._jobs.untold

    def play(self, trace: Iterable[Arrival], shift_us: int, instant_us: int, advance: Callable[[int], None]) -> None:
        """Offer all events, each at its instant, and let time pass until what was admitted is posted."""
        offered = 0
        for arrival in trace:
            at_us = arrival.at_us + shift_us
            self._go_to(at_us - at_us % instant_us)
            self._keep_order(arrival)
            self._offer(arrival)
            offered += 1
            if offered == _ADVANCE:
                advance(offered)
                offered = 0
        self._flush()
        while self._next_us is not None and not (self._course.is_over or self._fleet.books.is_drained()):
            self._wake(self._next_us)
        self._course.finish()
        advance(offered)

    def _keep_order(self, arrival: Arrival) -> None:
        """Of those that are taken together the higher priority goes first: what came earlier is to go before."""
        if self._deferred not in {None, arrival.details.priority} and self._defers(arrival):
            now_us = self._clock.now_us
            same = [each for each in self._pending if each[-1] == now_us]
            self._pending = [each for each in self._pending if each[-1] < now_us]
            self._flush()
            self._pending = same
            self._deferred = _MIXED if same else None

    def _defers(self, arrival: Arrival) -> bool:
        return self._fleet.policy.rule(arrival.category).on_limit is OnLimit.DEFER

    def _go_to(self, now_us: int) -> None:
        """Let time pass, and work whenever there is something to do in between."""
        if now_us <= self._clock.now_us:
            return
        if self._pending and now_us >= self._certain_us:
            self._flush()
        while self._next_us is not None and self._next_us <= now_us:
            self._flush()
            if self._next_us is not None and self._next_us <= now_us:
                self._wake(self._next_us)
        self._clock.now_us = max(self._clock.now_us, now_us)

    def _wake(self, at_us: int) -> None:
        self._clock.now_us = max(self._clock.now_us + 1, at_us)
        self._work()

    def _offer(self, arrival: Arrival) -> None:
        if not arrival.category:
            self._course.repeat(arrival, self._clock.now_us)
            return
        arrival = self._jobs.told(arrival)
        certain_us = self._refused.until_us(arrival) if self._merges else 0
        if not self._pending:
            self._certain_us = certain_us
        id_, job = self._jobs.make(arrival)
        self._certain_us = min(self._certain_us, certain_us)
        self._pending.append((id_, job, arrival, self._clock.now_us))
        if certain_us and self._defers(arrival):
            priority = arrival.details.priority
            self._deferred = priority if self._deferred in {None, priority} else _MIXED
        if len(self._pending) == MOST_TOGETHER:
            self._flush()

    def _flush(self) -> None:
        """Enqueue what is pending, and work."""
        if not self._pending:
            return
        pending, self._pending, self._deferred = self._pending, [], None
        results = self._fleet.enqueue([self._jobs.aged(each, self._clock.now_us) for each in pending])
        for (id_, _, arrival, at_us), result in zip(pending, results, strict=True):
            if result is Enqueued.DONE:
                self._course.offer(id_, arrival, at_us)
            else:
                self._course.repeat(arrival, at_us)
        self._work()

    def _work(self) -> None:
        self._next_us = self._fleet.work()
        if self._course.has_released:
            self._refused.forget()
            self._course.has_released = False
        else:
            for denied in self._course.denials:
                self._refused.learn(denied)
        self._course.denials.clear()


class _Jobs:
    """Makes the job of each event. Ids that the simulation makes have the form of those that nobody chose."""

    def __init__(self, fleet: Fleet) -> None:
        self._calls = fleet.calls
        self._policy = fleet.policy
        self._prefix = fleet.queue.job("")
        self._rows: dict[tuple[str, Details], str] = {}
        self._count = 0
        self._texts = 0
        self.untold: Counter[str] = Counter()
        """See ``Simulated``."""

    def id_of(self, job: Job) -> str:
        """The id of a job."""
        return job.key.removeprefix(self._prefix)

    def told(self, arrival: Arrival) -> Arrival:
        """The event with the text by which it is a repeat or not: one of its own where the trace does not say it."""
        text = arrival.details.text
        if not self._policy.rule(arrival.category).repeats_by_text:
            return arrival if text is None else arrival._replace(details=arrival.details._replace(text=None))
        if text:
            return arrival
        self._texts += 1
        if text is None:
            self.untold[arrival.category] += 1
        return arrival._replace(details=arrival.details._replace(text=f"{_TEXT}{self._texts}"))

    def aged(self, pending: tuple[str, Job, Arrival, int], now_us: int) -> Job:
        """The job of an event that came earlier than now: what waits too long ends as if it had been taken then."""
        _, job, arrival, at_us = pending
        rule = self._policy.rule(arrival.category)
        if at_us == now_us or rule.on_limit is not OnLimit.DEFER:
            return job
        bound_s, own_s = rule.max_age_us / US, arrival.details.max_age
        age_s = bound_s if own_s is None else min(bound_s, own_s)
        younger = arrival._replace(details=arrival.details._replace(max_age=age_s - (now_us - at_us) / US))
        return Job(job.key, self._calls.job(self.id_of(job), _event(younger), is_generated=True).row)

    def make(self, arrival: Arrival) -> tuple[str, Job]:
        """The event's name, by which the observer is told of it, and its job."""
        details = arrival.details
        if details.id is not None:
            return details.id, self._calls.job(job_id_for(details.id), _event(arrival))
        self._count += 1
        id_ = f"00000000-0000-0000-0000-{self._count:012x}"
        row = self._rows.get((arrival.category, details))
        if row is None:
            if len(self._rows) >= _REMEMBERED:
                self._rows.clear()
            row = self._rows[arrival.category, details] = self._calls.job(id_, _event(arrival), is_generated=True).row
        return id_, Job(self._prefix + id_, row)


def _event(arrival: Arrival) -> Event:
    details = arrival.details
    return Event(
        arrival.category,
        details.text or _TEXT,
        id=details.id,
        channel=details.channel,
        priority=Lane(details.priority),
        labels=dict(details.labels),
        max_age=details.max_age,
        dedup_key=details.dedup_key,
        status=Status(details.status or Status.FIRING),
    )
