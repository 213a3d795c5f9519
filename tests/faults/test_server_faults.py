"""What happens to the server while workers are busy or idle: they come back, say so once, and lose nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dispatcher.errors import QueueUnavailable
from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.server.connection import Client
from tests.support.cut_proxy import CutProxy
from tests.support.fleets import BUSY, Fleet, fleet_of
from tests.support.killable_workers import KillableWorkers
from tests.support.processes import until
from tests.support.servers import Database, RedisServer, free_port
from tests.support.snapshots import is_settled, watch

at_work = pytest.mark.parametrize("load", ["busy", pytest.param("idle", marks=pytest.mark.slow)])


def client_of(server: RedisServer) -> Client:
    """A client of a server that loses nothing that it has acknowledged."""
    client = connect(server.url)
    client.config_set("appendfsync", "always")
    return client


@pytest.fixture
def fleet(killable: KillableWorkers, own_server: RedisServer, tmp_path: Path) -> Iterator[Fleet]:
    with client_of(own_server) as client, fleet_of(killable, client, own_server.url, tmp_path) as found:
        yield found


@at_work
def test_a_server_that_is_killed_and_started_again(fleet: Fleet, own_server: RedisServer, load: str) -> None:
    fleet.work(load)
    own_server.kill()
    fleet.await_told("redis.lost")
    own_server.start()
    returned = time.time()
    fleet.come_back()
    fleet.check_told(times=1, returned=returned)
    fleet.check_everything()


@at_work
@pytest.mark.slow  # a command waits 5 s for its answer
def test_a_server_that_freezes_for_longer_than_a_command_waits(
    fleet: Fleet, own_server: RedisServer, load: str
) -> None:
    fleet.work(load)
    own_server.freeze()
    try:
        fleet.await_told("redis.lost")
    finally:
        own_server.cont()
    returned = time.time()
    fleet.come_back()
    fleet.check_told(times=1, returned=returned)
    fleet.check_everything()


@at_work
def test_a_server_that_freezes_for_less_than_a_command_waits(fleet: Fleet, own_server: RedisServer, load: str) -> None:
    """Longer than a lease: who lives renews first, nobody is taken over."""
    fleet.work(load)
    own_server.freeze()
    frozen = time.monotonic()
    try:
        until(lambda: time.monotonic() - frozen > 2, "the end of every lease")
    finally:
        own_server.cont()
    fleet.come_back()
    fleet.check_told(times=0, returned=time.time())
    fleet.check_everything()


def test_a_full_server_is_emptied_and_refuses_producers(fleet: Fleet) -> None:
    database: Database = fleet.round.client
    fleet.work("busy")
    database.config_set("maxmemory", "1")
    with pytest.raises(QueueUnavailable):
        Producer(fleet.round.client).send("loud1", "no room")
    watch(fleet.books, is_settled, 30)
    database.config_set("maxmemory", "0")
    returned = time.time()
    fleet.come_back()
    fleet.check_told(times=0, returned=returned)
    fleet.check_everything()


def test_idle_workers_of_a_full_server_go_on_when_there_is_room(fleet: Fleet) -> None:
    database: Database = fleet.round.client
    fleet.work("idle")
    database.config_set("maxmemory", "1")
    with pytest.raises(QueueUnavailable):
        Producer(fleet.round.client).send("loud1", "no room")
    beat = fleet.books.snapshot().leases
    until(lambda: all(fleet.books.snapshot().leases[owner] > end for owner, end in beat.items()), "a heartbeat of each")
    database.config_set("maxmemory", "0")
    returned = time.time()
    fleet.come_back()
    fleet.check_told(times=0, returned=returned)
    fleet.check_everything()


@at_work
def test_a_server_that_forgets_its_scripts(fleet: Fleet, load: str) -> None:
    fleet.work(load)
    fleet.round.client.script_flush()
    fleet.come_back()
    fleet.check_told(times=0, returned=time.time())
    fleet.check_everything()


@at_work
def test_a_server_that_closes_every_connection(fleet: Fleet, load: str) -> None:
    database: Database = fleet.round.client
    fleet.work(load)
    for kind in ("normal", "pubsub"):
        database.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    returned = time.time()
    fleet.come_back()
    fleet.check_told(times=None, returned=returned)
    fleet.check_everything()


@pytest.mark.parametrize("cuts", [pytest.param(8), pytest.param(200, marks=pytest.mark.slow)])
def test_connections_that_are_cut_in_the_middle_of_a_reply(
    killable: KillableWorkers, tmp_path: Path, cuts: int
) -> None:
    """Whether the script of a lost answer ran nobody knows; either way every event has its outcome once."""
    chance = random.Random(cuts)
    with (
        RedisServer(append_only=True, port=free_port()) as server,
        CutProxy(server.port) as proxy,
        client_of(server) as client,
        fleet_of(killable, client, f"redis://127.0.0.1:{proxy.port}/0", tmp_path) as fleet,
    ):
        for n in range(cuts):
            fleet.send(40)
            proxy.cut_after(chance.randrange(20_000))
            _keep_busy_until(fleet, lambda: proxy.cuts > n)  # noqa: B023 - called at once
        fleet.come_back()
        fleet.round.killable.stop()
        lost = sum(len(worker.lines("redis.lost")) for worker in fleet.workers)
        assert 0 < lost <= proxy.cuts == cuts
        assert lost == sum(len(worker.lines("redis.found")) for worker in fleet.workers)
        fleet.check_everything()


def _keep_busy_until(fleet: Fleet, is_done: Callable[[], bool]) -> None:
    def is_done_while_busy() -> bool:
        seen = fleet.books.snapshot()
        if seen.waiting == 0 and seen.events < BUSY:  # what waits for room has to pass before the end
            fleet.send(20)
        return is_done()

    until(is_done_while_busy, "a cut")
