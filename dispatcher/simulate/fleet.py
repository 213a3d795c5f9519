"""Workers on made-up time: the real scripts and the real core in one process, on an empty server of their own.

Time passes only when nobody has anything to do, and then to the next instant at which somebody may. Workers take turns,
one step each: what one has taken the next one does not find, and they decide and post at the same instant.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from dispatcher.core.pipeline import POST_S, Capacity, Dispatcher
from dispatcher.core.policy import Policy
from dispatcher.core.ports import Gate, Observer, Sink
from dispatcher.core.states import GRACE_US, Prefiltered, Settlement, Started
from dispatcher.core.units import US
from dispatcher.server.connection import Client
from dispatcher.server.keys import Keys
from dispatcher.simulate.lifetimes import Lifetimes, shortest_us
from dispatcher.store.admission import Admission, Prefilter
from dispatcher.store.intake import EnqueueCalls, Enqueued, Intake, Job
from dispatcher.store.leases import Outbox, Taken
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books
from dispatcher.store.versions import Unless, Versions

START_US: Final = 1_732_100_000 * US
"""Where made-up time begins unless somebody says otherwise."""

SEED: Final = 20
NAMESPACE: Final = "simulation"
_LEASE_US: Final = 3_650 * 86_400 * US
"""Longer than any trace: nobody here dies."""

REMEMBER_US: Final = 86_400 * US
"""How long an id is remembered unless the settings say otherwise."""

_MOST_WAITING: Final = 2**53
_KEPT: Final = 1_000
"""Dead letters and decisions: nobody looks at them, and memory is bounded."""

_MINUTE_US: Final = 60 * US
_MINUTES: Final = 1_000
"""Minutes of made-up time whose counts are kept. They live two days of real time, in which years are made up."""


class Clock:
    """The instant that all scripts are told, in microseconds."""

    def __init__(self, now_us: int = START_US) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        """Now."""
        return self.now_us


class FleetObserver(Observer, Protocol):
    """The core's observer, that is also told what ended as it was taken."""

    def prefiltered(self, groups: Sequence[Prefiltered]) -> None:
        """New events that ``take`` has dropped, since a limit refuses them."""
        ...

    def duplicates(self, ids: Sequence[str]) -> None:
        """Ids that were taken and are present or remembered already."""
        ...


class Fleet:
    """One namespace with so many workers. ``enqueue`` events, then ``work``, and set ``clock`` in between.

    ``senders`` posts start in one batch of a worker. ``watch`` may put something between a worker and its gate.
    """

    def __init__(  # noqa: PLR0913 - what may differ between fleets, each by its name
        self,
        client: Client,
        policy: Policy,
        *,
        sink: Sink,
        observer: FleetObserver,
        clock: Clock | None = None,
        workers: int = 1,
        batch: int = 128,
        senders: int = 8,
        seed: int = SEED,
        remember_us: int = REMEMBER_US,
        watch: Callable[[Gate], Gate] = lambda gate: gate,
    ) -> None:
        self.clock = Clock() if clock is None else clock
        self.keys, self.queue = Keys(NAMESPACE), QueueKeys(NAMESPACE)
        self.policy = replace(policy, dead_letters=replace(policy.dead_letters, max=_KEPT, decisions=_KEPT, text=0))
        self.books = Books(client, self.keys, self.queue, clock=self.clock)
        self._client = client
        self._intake = Intake(client, self.keys, self.queue, max_waiting=_MOST_WAITING, clock=self.clock)
        versions = Versions(client, self.keys, self.clock)
        version = versions.publish("{}", "0", by="simulation", file="-", unless=Unless.SAME).version
        self._chance = random.Random(seed)  # noqa: S311 - whose turn it is, no cryptography
        self.workers = [
            Worker(self, client, version, f"worker-{n}", sink, observer, batch, senders, remember_us, watch)
            for n in range(workers)
        ]
        self._minutes: list[str] = []
        self._lifetimes = Lifetimes(client, self.keys.scope_prefix, shortest_us(policy), self.clock)

    @property
    def calls(self) -> EnqueueCalls:
        """Makes jobs of events."""
        return self._intake.calls

    def enqueue(self, jobs: Sequence[Job]) -> list[Enqueued]:
        """Put up to 1,000 jobs on their lanes; a repeat of an id is none."""
        self._let_minutes_go()
        return self._intake.enqueue_jobs(jobs)

    def work(self) -> int | None:
        """Have all workers do what is to be done at this instant.

        Returns the next instant at which there may be something to do, None if there is none.
        """
        while True:
            self._lifetimes.look()
            if len(self.workers) > 1:
                self._chance.shuffle(self.workers)
            instants = [worker.step() for worker in self.workers]
            if None not in instants:
                far_us = self.clock.now_us + _LEASE_US // 2
                return min((at for at in instants if at and at < far_us), default=None)

    def jitter_us(self, attempt: int) -> int:
        """The back-off of workers: a random time up to 2, 4, 8 ... s, at most five minutes."""
        return round(self._chance.uniform(0, min(US * 2**attempt, 300 * US)))

    def _let_minutes_go(self) -> None:
        """Remove the counts of minutes that are over: nobody here reads them."""
        minute = self.keys.minute(self.clock.now_us // _MINUTE_US)
        if not self._minutes or self._minutes[-1] != minute:
            self._minutes.append(minute)
            if len(self._minutes) > _MINUTES:
                self._client.unlink(*self._minutes[:-1])
                self._minutes = self._minutes[-1:]


class Worker:
    """One worker: takes, decides, posts, settles, each in a step of its own."""

    def __init__(  # noqa: PLR0913, PLR0917 - collaborators, given by the fleet
        self,
        fleet: Fleet,
        client: Client,
        version: str,
        owner: str,
        sink: Sink,
        observer: FleetObserver,
        batch: int,
        senders: int,
        remember_us: int,
        watch: Callable[[Gate], Gate],
    ) -> None:
        clock = fleet.clock
        self.prefilter = Prefilter(lambda: clock.now_us / US)
        self.outbox = Outbox(
            client,
            fleet.keys,
            fleet.queue,
            owner=owner,
            lease_us=_LEASE_US,
            remember_us=remember_us,
            prefilter=self.prefilter,
            clock=clock,
        )
        gate = Admission(
            client,
            fleet.keys,
            self.outbox.leased_key,
            remember_us=remember_us,
            prefilter=self.prefilter,
            clock=clock,
        )
        gate.follow(version, fleet.policy)
        self.outbox.follow(version, fleet.policy.dead_letters)
        self._dispatcher = Dispatcher(
            fleet.policy,
            watch(gate),
            self.outbox,
            sink,
            observer,
            fleet.jitter_us,
            GRACE_US,
            POST_S,
            clock=lambda: 0.0,
        )
        self._observer = observer
        self._batch = batch
        self._senders = senders
        self._taken: Taken | None = None
        self._started: list[Started] = []
        self._posted: list[Settlement] = []

    def step(self) -> int | None:
        """None when it had something to do, else the next instant at which there may be something, or 0."""
        if self._posted:
            posted, self._posted = self._posted, []
            self._dispatcher.settle(posted)
            return None
        if self._started:
            started, self._started = self._started, []
            self._posted = [self._dispatcher.deliver(each) for each in started]
            return None
        if self._taken is not None:
            taken, self._taken = self._taken, None
            self._started = self._dispatcher.dispatch(
                taken.batch, taken.now_us, Capacity(self._senders), taken.silences
            )
            return None
        taken = self.outbox.take(self._batch, self._senders)
        if taken.prefiltered:
            self._observer.prefiltered(taken.prefiltered)
        if taken.duplicates:
            self._observer.duplicates(taken.duplicates)
        if taken.batch:
            self._taken = taken
            return None
        return None if taken.more else taken.again_us()
