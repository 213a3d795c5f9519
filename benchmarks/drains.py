"""Works off a full queue and measures it: the same for everybody who has workers.

The events are put where no worker sees them, the workers are started, and when they are ready and idle all events
appear at once. The clock runs from the last look at which none was done to the first at which all are, so neither the
start of processes nor the sleep of those who poll counts for anybody.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from benchmarks.figures import Proofs, Spread, Unproven
from benchmarks.processes import Process, cpu_s
from benchmarks.stage import server_cpu_s
from benchmarks.storms import Storm
from dispatcher.core.units import US
from tests.support.servers import Database

LOOK_S: Final = 0.01
"""Between two looks, each of one small command."""

BOUND_S: Final = 120.0
SLOWEST: Final = 100
"""Events a second: a queue that is slower is given up."""


class Queue(Protocol):
    """One way to queue events and have processes work on them. ``client`` is one of an empty server at ``fill``."""

    @property
    def name(self) -> str:
        """As it stands in the table."""
        ...

    @property
    def storm(self) -> Storm:
        """What it works off."""
        ...

    def fill(self, client: Database) -> None:
        """Put the storm's events where no worker sees them."""
        ...

    def workers(self, client: Database) -> AbstractContextManager[Process]:
        """Processes that are ready and idle."""
        ...

    def release(self, client: Database, workers: Process) -> None:
        """Let the workers see all events, at once."""
        ...

    def done(self, client: Database) -> int:
        """How many are worked off; one command."""
        ...

    def prove(self, client: Database, workers: Process, proofs: Proofs) -> None:
        """Count what was admitted, and whatever else there is to count."""
        ...


@dataclass(frozen=True, slots=True)
class Drain:
    """What it took, in microseconds for one event: on the clock, and of CPU time, the workers' and the server's."""

    wall_us: float
    workers_us: float
    server_us: float

    @property
    def cpu_us(self) -> float:
        """Both."""
        return self.workers_us + self.server_us


def drain(queue: Queue, client: Database, proofs: Proofs) -> Drain:
    """One full queue, from an empty server on; raises ``Unproven`` when not all of it was done."""
    client.flushall()
    queue.fill(client)
    with queue.workers(client) as workers:
        workers_s, server_s = cpu_s(workers.pid), server_cpu_s(client)
        queue.release(client, workers)
        seconds = watch(queue, client, workers)
        workers_s, server_s = cpu_s(workers.pid) - workers_s, server_cpu_s(client) - server_s
        proofs.add(f"done by {queue.name}", queue.done(client), queue.storm.events)
        queue.prove(client, workers, proofs)
    each = US / queue.storm.events
    return Drain(seconds * each, workers_s * each, server_s * each)


def watch(queue: Queue, client: Database, workers: Process) -> float:
    """Return when all is done; the seconds since the last look at which nothing was."""
    asked_at = begun = time.monotonic()
    patience_s = BOUND_S + queue.storm.events / SLOWEST
    while (done := queue.done(client)) < queue.storm.events:
        now = time.monotonic()
        if done == 0:
            begun = now
        if now - asked_at > patience_s:
            raise Unproven(f"{queue.name}: {done:,} of {queue.storm.events:,} done in {now - asked_at:.0f} s")
        workers.check()
        time.sleep(LOOK_S)
    return time.monotonic() - begun


def drain_in_turn(queues: Sequence[Queue], client: Database, rounds: int, proofs: Proofs) -> dict[str, list[Drain]]:
    """One drain of each in each round, one after another; by the names of the queues."""
    drains: dict[str, list[Drain]] = {queue.name: [] for queue in queues}
    for _ in range(rounds):
        for queue in queues:
            drains[queue.name].append(drain(queue, client, proofs))
    return drains


def costs(drains: Sequence[Drain]) -> tuple[Spread, Spread, Spread]:
    """Events a second; microseconds of CPU time for one, of the workers and of the server."""
    return (
        Spread.of(US / each.wall_us for each in drains),
        Spread.of(each.workers_us for each in drains),
        Spread.of(each.server_us for each in drains),
    )


def times_as_fast(drains: dict[str, list[Drain]], ours: str, theirs: str) -> Spread:
    """How many times as fast ours is, taken inside each round."""
    return Spread.of(b.wall_us / a.wall_us for a, b in zip(drains[ours], drains[theirs], strict=True))
