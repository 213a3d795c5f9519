"""The redis.conf we ship, on the server under test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatcher.data_files import data_file
from tests.support.servers import RedisServer


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    with RedisServer(config=data_file("config", "redis.conf")) as server:
        yield server


def test_the_shipped_redis_conf_sets_what_the_books_rely_on(own_server: RedisServer) -> None:
    expected = {
        "appendfsync": "everysec",
        "appendonly": "yes",
        "maxmemory-policy": "noeviction",
        "hash-max-listpack-value": "1024",
        "hash-max-listpack-entries": "64",
        "no-appendfsync-on-rewrite": "no",
        "save": "",
        "timeout": "0",
    }
    with own_server.client(decode_responses=True) as client:
        assert client.config_get(*expected) == expected


def test_a_killed_server_has_its_data_again_after_the_start(own_server: RedisServer) -> None:
    with own_server.client() as client:
        client.set("event", "kept")
    own_server.kill()
    own_server.start()
    with own_server.client() as client:
        assert client.get("event") == b"kept"
