"""What an event costs the server's memory where it waits, and whether a worker's own memory stays what it is."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from benchmarks.effort import Effort
from benchmarks.figures import Goal, Proofs, Report, Spread, Table
from benchmarks.ours import await_sleep, send, settled, told, worker
from benchmarks.processes import Process, rss_bytes
from benchmarks.simulation import Simulation
from benchmarks.slack import slack
from benchmarks.stage import server_bytes, stage
from benchmarks.storms import Storm
from dispatcher.core.limits import Limit
from dispatcher.core.policy import CategoryRule, OnLimit, Policy
from tests.support.servers import Database, RedisServer

MB: Final = 1_000_000
GROWTH_MB: Final = 10.0
CHANNEL: Final = "#disks"
_DAY_US: Final = 86_400_000_000


def run(effort: Effort) -> Report:
    """Memory is not a matter of luck: one round."""
    proofs = Proofs()
    with stage(effort.cores) as (server, client):
        waiting = _waiting(client, effort.of(20_000, quick=500), proofs)
        working, growth_mb = _working(server, client, effort, proofs)
    goals = () if growth_mb is None else (Goal("growth of a worker, MB", Spread.of([growth_mb]), at_most=GROWTH_MB),)
    return Report((waiting, working), goals, proofs.collected(), _NOTES)


_NOTES: Final = (
    "An event has a text of about 40 characters and a generated id. A parked one holds its slots in two scopes.",
    "The worker's log goes to a file; nearly all events of the second table are refused.",
)


def _waiting(client: Database, events: int, proofs: Proofs) -> Table:
    """Many events on the queue; then all but one of them in their channel's line."""
    unlimited = (Limit.parse("1000000/30m"),)
    policy = Policy(
        global_limits=unlimited,
        defaults=CategoryRule(unlimited, CHANNEL, OnLimit.DROP, _DAY_US),
        categories={},
        default_pace=Limit.parse("1/1h"),
    )
    _simulated(client, policy, 10)  # scripts and buffers are there
    client.flushall()
    empty = server_bytes(client)
    simulation = Simulation(client, policy, 1)
    simulation.send(events, "disks")
    queued = server_bytes(client) - empty
    simulation.run(until_us=simulation.clock.now_us)
    parked = server_bytes(client) - empty
    look = simulation.books.snapshot()
    proofs.add("parked", look.parked, events - 1)
    proofs.add("sent", look.totals["sent"], 1)
    scopes = [simulation.keys.scope(name) for name in ("global", "category:disks")]
    for scope in scopes:
        proofs.add("slots", client.zcard(scope), events)
    slot = sum(client.memory_usage(scope, samples=0) for scope in scopes) / len(scopes) / events
    client.execute_command("FLUSHALL", "SYNC")  # its memory is free before the next is measured
    rows = (
        ("an event on the queue (RQ's list and job)", queued / events),
        ("the same on a server with its default settings", _queued_by_default(client, policy, events) / events),
        ("an event that is parked, with its slots", parked / (events - 1)),
        ("of it, one slot", slot),
    )
    return Table(f"bytes of the server for one of {events:,}", ("", "bytes"), rows)


def _queued_by_default(client: Database, policy: Policy, events: int) -> int:
    """The memory of events on the queue where the server keeps small hashes as it does by default."""
    before = client.config_get("hash-max-listpack-value")
    client.config_set("hash-max-listpack-value", 64)
    empty = server_bytes(client)
    Simulation(client, policy, 1).send(events, "disks")
    queued = server_bytes(client) - empty
    client.execute_command("FLUSHALL", "SYNC")
    client.config_set("hash-max-listpack-value", before["hash-max-listpack-value"])
    return queued


def _simulated(client: Database, policy: Policy, events: int) -> None:
    simulation = Simulation(client, policy, 1)
    simulation.send(events, "disks")
    simulation.run(until_us=simulation.clock.now_us)


def _working(server: RedisServer, client: Database, effort: Effort, proofs: Proofs) -> tuple[Table, float | None]:
    """One worker process: asleep, after its first events, after all of them; nearly all are refused."""
    first, chunk, chunks = effort.of((10_000, 50_000, 20), quick=(500, 1_000, 2))
    storm, rows = Storm(chunk), []
    with tempfile.TemporaryDirectory(prefix="bench-") as made, slack(Path(made)) as posted:
        limits = Path(made) / "limits.yaml"
        limits.write_text(storm.limits_yaml(), encoding="utf-8")
        with worker(server.url, posted, limits) as process:
            await_sleep(client, process, 1)
            rows.append(("asleep, before the first event", rss_bytes(process.pid) / MB, server_bytes(client) / MB))
            sizes = (first, *(chunk for _ in range(chunks)))
            for n, size in enumerate(sizes):
                send(client, Storm(size))
                _await_settled(client, process, sum(sizes[: n + 1]))
                if n in {0, chunks}:
                    total = sum(sizes[: n + 1])
                    rows.append((f"after {total:,} events", rss_bytes(process.pid) / MB, server_bytes(client) / MB))
            process.until(lambda: told(process) == sum(sizes), "the last log lines")
            proofs.add("settled", settled(client), sum(sizes))
            proofs.add("log lines", told(process), sum(sizes))
            proofs.add("landed at the stand-in", len(posted.landed()), storm.admitted)
    table = Table("memory in MB", ("", "worker", "server"), tuple(rows))
    return table, rows[-1][1] - rows[0][1] if rows[0][1] else None


def _await_settled(client: Database, process: Process, events: int) -> None:
    process.until(lambda: settled(client) == events, f"{events:,} settled events", seconds=600.0)
