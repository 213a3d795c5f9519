"""A server that refuses to write, since its disk or its memory is full: what only reads works, and says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from dispatcher.producer.blocking import Producer
from dispatcher.server.keys import Keys
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books
from tests.support.commands import Result, run
from tests.support.doubles import START_US
from tests.support.processes import until
from tests.support.servers import RedisServer
from tests.support.topologies import SERVERS

SAID = {
    "disk": "it cannot save its data to its disk, and refuses every write",
    "memory": "its memory is full (maxmemory), and it refuses every write that adds data",
}


def fill_disk(server: RedisServer, client: Redis) -> None:
    gone = server.directory / "gone"
    gone.mkdir()
    client.config_set("dir", str(gone))
    gone.rmdir()
    client.bgsave()
    until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "the save that fails")


@pytest.fixture(scope="module", params=SAID)
def full(request: pytest.FixtureRequest) -> Iterator[tuple[RedisServer, str]]:
    """A server with one event, which takes no more, and what is said of it."""
    with (
        RedisServer(options=("--save", "3600 1", "--enable-protected-configs", "yes")) as server,
        server.client() as client,
    ):
        Producer(client).send("errors", "disk full")
        if request.param == "disk":
            fill_disk(server, client)
        else:
            client.config_set("maxmemory", "1mb")
        yield server, SAID[request.param]


def look(full: tuple[RedisServer, str], *command: str) -> Result:
    return run(*command, DISPATCHER_REDIS_URL=full[0].url, DISPATCHER_SINK="console", COLUMNS="160")


def test_status_shows_what_waits_and_that_nothing_can_be_written(full: tuple[RedisServer, str]) -> None:
    shown = look(full, "status")
    assert shown.code == 0
    assert f"can only be read: {full[1]}" in shown.out
    assert "1 waiting" in shown.out
    assert json.loads(look(full, "status", "--json").out)["writes_refused"] == full[1]


def test_the_books_are_checked_with_a_warning(full: tuple[RedisServer, str]) -> None:
    checked = look(full, "status", "--check")
    assert (checked.code, checked.out) == (0, "the books balance: 0 received = 0 sent\n")
    assert f"warning: the server can only be read: {full[1]}; to do: " in checked.err


def test_doctor_names_it_an_error_and_looks_at_everything_else(full: tuple[RedisServer, str]) -> None:
    examined = look(full, "doctor", "--json")
    assert examined.code == 1
    found = {each["about"]: each for each in json.loads(examined.out)["findings"]}
    assert found["writes"]["level"] == "error"
    assert full[1] in found["writes"]["said"]
    assert found["waiting"]["said"].startswith("1 waiting")


def test_to_ask_whether_a_server_takes_writes_changes_nothing(redis: Redis, redis_url: str) -> None:
    assert json.loads(run("status", "--json", DISPATCHER_REDIS_URL=redis_url).out)["writes_refused"] is None
    assert redis.keys() == []


@pytest.mark.parametrize("binary", SERVERS.values(), ids=SERVERS)
def test_a_full_server_that_takes_no_command_into_a_transaction_is_looked_at(binary: Path) -> None:
    keys = Keys("dispatcher")
    with RedisServer(binary=binary) as server, server.client() as client:
        Producer(client).send("errors", "disk full")
        client.hset(keys.totals, mapping={"received": 1, "sent": 1, "sent errors": 1})
        client.hset(keys.shadowed, "errors 1/h", 2)
        books = Books(client, keys, QueueKeys("notifications"), clock=lambda: START_US)
        before = books.snapshot(), books.measure(10)
        client.config_set("maxmemory", 1)
        assert (books.snapshot(), books.measure(10)) == before
        assert before[0].counts.total("sent") == 1
