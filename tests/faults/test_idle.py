"""Workers with nothing to do ask the server nothing but what keeps their leases."""

from __future__ import annotations

import select
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from dispatcher.core.units import US
from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.stand_in import StandIn
from dispatcher.store.snapshot import Books
from tests.support.kill_round import KEYS, QUEUE
from tests.support.killable_workers import KillableWorkers
from tests.support.processes import environment, until
from tests.support.servers import Database, RedisServer
from tests.support.snapshots import watch

WORKERS: Final = 4
A_BEAT: Final = {"EVALSHA": 1, "HSET": 1, "EXPIRE": 1, "SADD": 4, "SET": 1}
"""What one heartbeat comes to: the lease; RQ's entry of the worker, and who sweeps."""
PARKED: Final = 1_000
LIMITS: Final = """\
global: {limits: []}
channels: {default: {pace: 1/1h}}
defaults: {limits: [], channel: "#slow"}
"""


@pytest.mark.parametrize(
    ("lease_s", "window_s"), [pytest.param(3, 3.0), pytest.param(12, 10.0, marks=pytest.mark.slow)]
)
def test_idle_workers_beside_a_thousand_parked_events_only_beat(
    killable: KillableWorkers, own_server: RedisServer, tmp_path: Path, lease_s: int, window_s: float
) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(LIMITS, encoding="utf-8")
    database: Database = connect(own_server.url)
    books = Books(database, KEYS, QUEUE)
    with StandIn() as slack:
        env = environment(
            own_server.url,
            slack.base_url,
            slack.token,
            path,
            DISPATCHER_LEASE=str(lease_s),
            DISPATCHER_SLACK_TIMEOUT="1",
        )
        for _ in range(WORKERS):
            killable.start(env)
        Producer(database).send_many({"category": "news", "text": str(n)} for n in range(PARKED + 1))
        watch(
            books,
            lambda snapshot: snapshot.parked == PARKED and snapshot.in_flight == 0 and len(snapshot.leases) == WORKERS,
            20,
        )
        ends = books.snapshot().leases
        beat_us = lease_s * US // 3
        # After its first heartbeat a worker has all the connections that it needs.
        watch(books, lambda snapshot: all(snapshot.leases[name] >= end + beat_us for name, end in ends.items()), 20)
        _await_rest(database)
        began = time.monotonic()
        commands = _commands_within(database, window_s)
        beats = (time.monotonic() - began) / (lease_s / 3) + 1
    assert commands.keys() == A_BEAT.keys()
    assert commands["HSET"] >= WORKERS * (window_s // (lease_s / 3) - 1)
    for name, count in A_BEAT.items():
        assert commands[name] <= WORKERS * beats * count, f"more than heartbeats: {commands}"


def _commands_within(database: Database, seconds: float) -> Counter[str]:
    """How often each command was called by clients, not by scripts."""
    found: Counter[str] = Counter()
    with database.client() as other:
        other.ping()
        with database.monitor() as monitor:
            select.select([], [], [], seconds)
            other.echo("the end")
            for each in monitor.listen():
                name = each["command"].split(" ", 1)[0].upper()
                if name == "ECHO":
                    break
                if each["client_type"] != "lua":
                    found[name] += 1
    return found


def _await_rest(database: Database) -> None:
    """Return when nobody has called a script for a while."""

    def is_at_rest() -> bool:
        before = database.info("commandstats")["cmdstat_evalsha"]["calls"]
        select.select([], [], [], 0.3)
        return bool(before == database.info("commandstats")["cmdstat_evalsha"]["calls"])

    until(is_at_rest, "workers at rest")
