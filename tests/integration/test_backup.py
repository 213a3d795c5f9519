"""A snapshot of the server, restored as docs/operations.md says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dispatcher.data_files import data_file
from dispatcher.producer.blocking import Producer
from tests.support.commands import Result, run
from tests.support.processes import until
from tests.support.servers import RedisServer

LIMITS = """
global: {limits: [4/1h]}
categories:
  errors: {limits: [2/1h], on_limit: defer}
  disks: {limits: [1/1h], on_limit: dead-letter}
"""


def ask(server: RedisServer, *arguments: str) -> Result:
    return run(*arguments, DISPATCHER_REDIS_URL=server.url, DISPATCHER_SINK="console")


@pytest.mark.usefixtures("tmp_path")
def test_a_restored_snapshot_balances_holds_the_limits_and_goes_on(own_server: RedisServer) -> None:
    Path("config").mkdir()
    Path("config", "limits.yaml").write_text(LIMITS, encoding="utf-8")
    with own_server.client() as client:
        producer = Producer(client)
        producer.send_many({"category": name, "text": "early"} for name in ("errors", "disks") for _ in range(3))
        assert ask(own_server, "worker", "--burst").code == 0
        producer.send("deploys", "late", id="late")
        client.save()
        producer.send("deploys", "later", id="later")
    with restored(own_server.directory / "dump.rdb") as server:
        assert ask(server, "status", "--check").code == 0
        assert counts(server) == {"waiting": 1, "in_flight": 0, "parked": 1, "dead_letters": 2, "used": 3}
        with server.client() as client:
            Producer(client).send("deploys", "one too many", id="too-many")
        posted = ask(server, "worker", "--burst").out
        assert posted.split() == ["#notifications", "late"]
        assert "Dropped" in ask(server, "explain", "too-many").out
        assert ask(server, "explain", "later").code == 1
        assert ask(server, "status", "--check").code == 0
        assert counts(server) == {"waiting": 0, "in_flight": 0, "parked": 1, "dead_letters": 2, "used": 4}


def counts(server: RedisServer) -> dict[str, int]:
    """What waits, what is dead, and how much of the global limit is used."""
    status = json.loads(ask(server, "status", "--json").out)
    [together] = status["global"]["limits"]
    return {**status["queue"], "dead_letters": status["dead_letters"], "used": together["used"]}


@contextmanager
def restored(snapshot: Path) -> Iterator[RedisServer]:
    """A server with the shipped configuration that holds what the snapshot does."""
    reading, serving = RedisServer(), RedisServer(config=data_file("config", "redis.conf"))
    shutil.copy(snapshot, reading.directory / "dump.rdb")
    with reading, reading.client() as client:
        client.config_set("appendonly", "yes")
        until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0, "the append-only file")
        written = client.info("persistence")
        assert (written["aof_enabled"], written["aof_last_bgrewrite_status"]) == (1, "ok")
        reading.stop()
        shutil.copytree(reading.directory / "appendonlydir", serving.directory / "appendonlydir")
    with serving:
        yield serving
