"""Workers on made-up time: the real scripts and the real core in one process, and a sink that posts at once.

Time passes only when nobody has anything to do, and then to the next instant at which somebody may. Workers take turns,
one step each: what one has taken the next one does not find, and they decide and post at the same instant.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from dispatcher import Producer
from dispatcher.core.leased_event import Started
from dispatcher.core.limits import US, Admitted, Scope
from dispatcher.core.outcomes import ScanResult, Search, Settlement
from dispatcher.core.pipeline import Dispatcher
from dispatcher.core.policy import Policy
from dispatcher.core.ports import Admitting, Asking, Gate
from dispatcher.core.posts import Message, PostResult, Receipt
from dispatcher.server.keys import Keys
from dispatcher.store.admission import Admission
from dispatcher.store.leases import Outbox, Taken
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books
from tests.support.doubles import Clock, Told
from tests.support.servers import Database

BATCH: Final = 16
"""Small, so that all workers have a share."""

SEED: Final = 20
_LEASE_US: Final = 30 * US
_REMEMBER_US: Final = 86_400 * US


class CountingGate:
    """The gate, and how many decisions it was asked for; to move a slot that is owned already is none."""

    def __init__(self) -> None:
        self._owned: set[str] = set()
        self.decisions = 0

    def admit(self, gate: Gate, asking: Sequence[Asking], ahead: Sequence[Scope]) -> Admitting:
        """Ask a worker's gate, and count."""
        self.decisions += sum(each.candidate.leased.slot not in self._owned for each in asking)
        answer = gate.admit(asking, ahead=ahead)
        self._owned.update(
            each.candidate.leased.slot
            for each, verdict in zip(asking, answer.verdicts, strict=True)
            if type(verdict) is Admitted
        )
        return answer


class CountedGate:
    """A worker's gate, as ``ports.Gate`` says."""

    def __init__(self, gate: Gate, counting: CountingGate) -> None:
        self._gate = gate
        self._counting = counting

    def admit(self, asking: Sequence[Asking], *, ahead: Sequence[Scope]) -> Admitting:
        """As ``ports.Gate`` says."""
        return self._counting.admit(self._gate, asking, ahead)


@dataclass(slots=True)
class Board:
    """The sink: keeps what was posted, and when."""

    clock: Clock
    posts: list[tuple[int, str]] = field(default_factory=list)

    can_update = False

    def update(self, channel: str, ts: str, message: Message, *, by_s: float | None = None) -> PostResult:
        """Never called."""
        raise NotImplementedError

    def post(self, message: Message, *, by_s: float | None = None) -> PostResult:
        """As ``ports.Sink`` says; arrives at once."""
        del by_s
        self.posts.append((self.clock.now_us, message.event_id))
        return Receipt(message.channel, "1.000001")

    def scan(self, search: Search) -> ScanResult:
        """Never called: every post is answered."""
        raise NotImplementedError


class Simulation:
    """One namespace with so many workers, on an empty server."""

    def __init__(self, client: Database, policy: Policy, workers: int) -> None:
        self.keys, queue = Keys("simulation"), QueueKeys("simulation")
        self.clock = Clock()
        self.board = Board(self.clock)
        self.gate = CountingGate()
        self.books = Books(client, self.keys, queue, clock=self.clock)
        self._producer = Producer(client, namespace=self.keys.namespace, queue=queue.queue)
        self._chance = random.Random(SEED)  # noqa: S311 - whose turn it is, no cryptography
        self._workers = [_Worker(self, client, queue, policy, f"worker-{n}") for n in range(workers)]

    def send(self, count: int, category: str) -> list[str]:
        """Hand over so many events; their ids in order."""
        return list(self._producer.send_many({"category": category, "text": text_of(n)} for n in range(count)))

    def run(self, *, until_us: int | None = None) -> None:
        """Work until nothing is left, or until nothing is left to do at ``until_us``."""
        while True:
            self._chance.shuffle(self._workers)
            instants = [worker.step() for worker in self._workers]
            if None in instants:
                continue
            ahead = min((at for at in instants if at), default=None)
            if ahead is None or self._is_empty() or (until_us is not None and ahead > until_us):
                return
            self.clock.now_us = max(self.clock.now_us + 1, ahead)

    def _is_empty(self) -> bool:
        look = self.books.snapshot()
        return look.waiting + look.in_flight + look.parked == 0


def text_of(n: int) -> str:
    """Of the n-th event."""
    return f"disk {n} of 100,000 is nearly full on db1"


class _Worker:
    """One owner: takes, decides, posts, settles, each in a step of its own."""

    def __init__(self, simulation: Simulation, client: Database, queue: QueueKeys, policy: Policy, owner: str) -> None:
        self._outbox = Outbox(
            client,
            simulation.keys,
            queue,
            owner=owner,
            lease_us=_LEASE_US,
            remember_us=_REMEMBER_US,
            clock=simulation.clock,
        )
        admission = Admission(
            client,
            simulation.keys,
            self._outbox.leased_key,
            remember_us=_REMEMBER_US,
            clock=simulation.clock,
        )
        gate = CountedGate(admission, simulation.gate)
        self._dispatcher = Dispatcher(
            policy, gate, self._outbox, simulation.board, Told(), lambda attempt: attempt * US
        )
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
            self._started = self._dispatcher.dispatch(taken.batch, taken.now_us, BATCH)
            return None
        taken = self._outbox.take(BATCH, BATCH)
        if taken.batch:
            self._taken = taken
            return None
        return None if taken.more else taken.next_us or 0
