"""A fleet on made-up time (``dispatcher.simulate.fleet``) with what benchmarks look at: each post, each question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from dispatcher import Producer
from dispatcher.core.limits import Admitted, Scope
from dispatcher.core.policy import Policy
from dispatcher.core.ports import Admitting, Asking, Gate
from dispatcher.core.posts import Message, PostResult, Receipt
from dispatcher.core.states import Prefiltered, ScanResult, Search
from dispatcher.simulate.fleet import Clock, Fleet
from tests.support.doubles import Told
from tests.support.servers import Database

BATCH: Final = 16
"""Small, so that all workers have a share."""


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


@dataclass(slots=True)
class Unheard(Told):
    """The observer: nobody asks what it was told."""

    def prefiltered(self, groups: Sequence[Prefiltered]) -> None:
        """See ``FleetObserver``."""

    def duplicates(self, ids: Sequence[str]) -> None:
        """See ``FleetObserver``."""


class Simulation:
    """One namespace with so many workers, on an empty server."""

    def __init__(self, client: Database, policy: Policy, workers: int) -> None:
        clock = Clock()
        self.board = Board(clock)
        self.gate = CountingGate()
        self._fleet = Fleet(
            client,
            policy,
            sink=self.board,
            observer=Unheard(),
            clock=clock,
            workers=workers,
            batch=BATCH,
            senders=BATCH,
            watch=lambda gate: CountedGate(gate, self.gate),
        )
        self.books, self.clock, self.keys = self._fleet.books, clock, self._fleet.keys
        self._producer = Producer(client, namespace=self._fleet.keys.namespace, queue=self._fleet.queue.queue)

    def send(self, count: int, category: str) -> list[str]:
        """Hand over so many events; their ids in order."""
        return list(self._producer.send_many({"category": category, "text": text_of(n)} for n in range(count)))

    def run(self, *, until_us: int | None = None) -> None:
        """Work and let time pass until nothing is left, or until nothing is left to do at ``until_us``."""
        while (ahead := self._fleet.work()) is not None and not self._is_empty():
            if until_us is not None and ahead > until_us:
                return
            self.clock.now_us = max(self.clock.now_us + 1, ahead)

    def _is_empty(self) -> bool:
        look = self.books.snapshot()
        return look.waiting + look.in_flight + look.parked == 0


def text_of(n: int) -> str:
    """Of the n-th event."""
    return f"disk {n} of 100,000 is nearly full on db1"
