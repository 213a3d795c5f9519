"""A failover by Sentinels under busy and idle workers: told once, at work again soon, what was replicated is kept."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.store.decisions import Decisions
from tests.support.fleets import Fleet, fleet_of
from tests.support.kill_round import KEYS, mixed
from tests.support.killable_workers import KillableWorkers
from tests.support.sentinels import Watched, watched_primary
from tests.support.snapshots import is_settled, watch


@pytest.fixture
def watched() -> Iterator[Watched]:
    with watched_primary() as servers:
        yield servers


@pytest.fixture
def fleet(killable: KillableWorkers, watched: Watched, tmp_path: Path) -> Iterator[Fleet]:
    with connect(watched.url) as client, fleet_of(killable, client, watched.url, tmp_path) as found:
        yield found


@pytest.mark.slow
def test_idle_workers_go_on_at_the_new_primary(fleet: Fleet, watched: Watched) -> None:
    fleet.work("idle")
    watched.await_sync()
    watched.primary.kill()
    watched.await_promotion()
    returned = time.time()
    fleet.await_told("redis.found")
    fleet.come_back()
    fleet.check_told(times=1, returned=returned)
    fleet.check_everything()


def test_busy_workers_go_on_at_the_new_primary(fleet: Fleet, watched: Watched) -> None:
    """Replication is asynchronous: the last outcomes may be lost, and come about again.

    What was handed over is replicated before the primary dies. An event whose outcome was lost is told and perhaps
    posted twice; every event has one outcome that counts.
    """
    fleet.work("busy")
    watched.await_sync()
    watched.primary.kill()
    watched.await_promotion()
    returned = time.time()
    fleet.await_told("redis.found")
    watch(fleet.books, is_settled, 30)
    fleet.check_told(times=1, returned=returned)

    decided = {each.id: each for each in Decisions(fleet.round.client, KEYS).newest()}
    snapshot = fleet.books.snapshot()
    assert decided.keys() == set(fleet.round.ids)
    assert {name: snapshot.overall()[name] for name in ("sent", "dropped", "dead")} == Counter(
        each.outcome for each in decided.values()
    )
    fresh = Producer(fleet.round.client).send_many(mixed(10_000, 5))
    watch(fleet.books, is_settled, 10)
    fleet.round.killable.stop()
    assert [worker.code for worker in fleet.workers] == [0, 0]
    told = Counter(line["event_id"] for worker in fleet.workers for line in worker.lines("event.settled"))
    assert {id_ for id_ in fresh if told[id_] != 1} == set()
    late = {id_ for id_, count in told.items() if count > 1}
    assert max(told.values()) <= 2, "an outcome was lost more than once"
    assert len(late) < len(fleet.round.ids) // 2, "more was lost than the last writes"
