"""Works off a full queue and measures it: the same for everybody who has workers.

The events are put where no worker sees them, the workers are started, and when they are ready and idle all events
appear at once. The clock runs from the last look at which none was done to the first at which all are, so neither the
start of processes nor the sleep of those who poll counts for anybody.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from benchmarks.figures import Proofs, Unproven
from benchmarks.processes import Process, cpu_s
from benchmarks.storms import Storm
from tests.support.servers import Database

US: Final = 1_000_000
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


def server_cpu_s(client: Database) -> float:
    """What the server has used since it began."""
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])
