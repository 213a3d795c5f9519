"""What one post costs a worker, and how long it takes: straight, and over TLS behind a slow link."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.effort import Effort
from benchmarks.figures import Cell, Goal, Proofs, Report, Spread, Table
from benchmarks.latency import LIMITS
from benchmarks.link import link
from benchmarks.ours import await_sleep, settled, worker
from benchmarks.processes import Process, cpu_s
from benchmarks.slack import Slack
from benchmarks.stage import stage_with_slack
from dispatcher import Producer
from tests.support.raw_server import CERTIFICATE
from tests.support.servers import Database, RedisServer

ROUND_TRIP_MS: Final = 40
CPU_MS: Final = 0.5
"""Goal: the processor time of a worker for one event that it posts."""

_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Way:
    """How a worker reaches Slack."""

    name: str
    round_trip_ms: int = 0
    has_tls: bool = False


WAYS: Final = (
    Way("HTTP, no link"),
    Way(f"TLS, a link of {ROUND_TRIP_MS} ms", ROUND_TRIP_MS, has_tls=True),
)


@dataclass(frozen=True, slots=True)
class Lap:
    """One new worker: milliseconds from ``send`` to the arrival of its first and its second event.

    The connections that it opened for each; for a burst, its connections, and its processor time for one event.
    """

    first_ms: float
    second_ms: float
    first_opened: int
    second_opened: int
    burst_opened: int
    cpu_ms: float


def run(effort: Effort) -> Report:
    """In each round a new worker for each way: an event, another one, then many at once."""
    burst, proofs = effort.of(1_000, quick=20), Proofs()
    laps: dict[str, list[Lap]] = {way.name: [] for way in WAYS}
    with stage_with_slack(effort.cores) as (server, client, posted, folder):
        runner = _Runner(server, client, posted, folder, proofs)
        for _ in range(effort.rounds):
            for way in WAYS:
                laps[way.name].append(runner.lap(way, burst))
    return Report((_table(laps, burst),), tuple(_goals(laps)), proofs.collected(), _NOTES)


_NOTES: Final = (
    "The first two posts: from before the call of send to the arrival at the stand-in.",
    "Both ways pass a proxy that counts connections.",
    f"The link delays each byte by {ROUND_TRIP_MS // 2} ms in both directions, the handshake of TCP too.",
    "Processor time: all that the worker does for an event that it posts, divided by the events of the burst.",
)


class _Runner:
    """Starts workers, one after another, on an empty server."""

    def __init__(self, server: RedisServer, client: Database, posted: Slack, folder: Path, proofs: Proofs) -> None:
        self._server, self._client, self._posted, self._folder, self._proofs = server, client, posted, folder, proofs
        self._limits, self._certificate = folder / "limits.yaml", folder / "slack.pem"
        self._limits.write_text(LIMITS, encoding="utf-8")
        self._certificate.write_text(CERTIFICATE, encoding="utf-8")
        self._producer = Producer(client)

    def lap(self, way: Way, burst: int) -> Lap:
        """One worker's life."""
        self._client.flushall()
        self._posted.reset()
        certificate = self._certificate if way.has_tls else None
        with (
            link(self._posted, way.round_trip_ms, self._folder, certificate) as between,
            worker(self._server.url, between.slack, self._limits, SSL_CERT_FILE=str(self._certificate)) as process,
        ):
            await_sleep(self._client, process, 1)
            at_start = between.opened()
            first_ms = self._send(process)
            after_first = between.opened()
            second_ms = self._send(process)
            after_second = between.opened()
            before_s = cpu_s(process.pid)
            self._producer.send_many({"category": "disks", "text": f"disk {n} is nearly full"} for n in range(burst))
            self._await_settled(process, burst + 2)
            cpu_ms = (cpu_s(process.pid) - before_s) * _MS / burst
            self._proofs.add(f"settled, {way.name}", settled(self._client), burst + 2)
            self._proofs.add(f"landed at the stand-in, {way.name}", len(self._posted.landed()), burst + 2)
            opened = between.opened()
        return Lap(
            first_ms, second_ms, after_first - at_start, after_second - after_first, opened - after_second, cpu_ms
        )

    def _send(self, process: Process) -> float:
        """One event; how long it took to arrive, in milliseconds. Returns when it is settled."""
        already = settled(self._client)
        begun = time.monotonic()
        self._producer.send("disks", f"disk {already} is nearly full on db1")
        self._await_settled(process, already + 1)
        return (self._posted.landed()[-1]["arrived_at"] - begun) * _MS  # type: ignore[no-any-return]  # JSON

    def _await_settled(self, process: Process, events: int) -> None:
        process.until(lambda: settled(self._client) == events, f"{events:,} settled events")


def _table(laps: dict[str, list[Lap]], burst: int) -> Table:
    figures: tuple[tuple[str, Callable[[Lap], float]], ...] = (
        ("first post, ms", lambda lap: lap.first_ms),
        ("its connections", lambda lap: lap.first_opened),
        ("second post, ms", lambda lap: lap.second_ms),
        ("its connections", lambda lap: lap.second_opened),
        (f"{burst:,} posts: connections", lambda lap: lap.burst_opened),
        ("processor time for one, ms", lambda lap: lap.cpu_ms),
    )
    rows: list[tuple[Cell, ...]] = [
        (name, *(Spread.of(figure(lap) for lap in each) for _, figure in figures)) for name, each in laps.items()
    ]
    return Table("one worker posts", ("", *(column for column, _ in figures)), tuple(rows))


def _goals(laps: dict[str, list[Lap]]) -> list[Goal]:
    goals = []
    for name, each in laps.items():
        opened = Spread.of(lap.second_opened for lap in each)
        goals += [
            Goal(f"{name}: processor time for one post, ms", Spread.of(lap.cpu_ms for lap in each), at_most=CPU_MS),
            Goal(f"{name}: connections that the second post opened", opened, at_most=0),
        ]
    return goals
