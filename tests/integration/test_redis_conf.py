"""The redis.conf we ship, on the server under test."""

from __future__ import annotations

from dispatcher.data_files import data_file
from tests.support.servers import RedisServer


def test_the_shipped_redis_conf_sets_what_the_books_rely_on() -> None:
    expected = {
        "appendfsync": "everysec",
        "appendonly": "yes",
        "maxmemory-policy": "noeviction",
        "hash-max-listpack-value": "1024",
        "hash-max-listpack-entries": "64",
        "lazyfree-lazy-expire": "yes",
        "lazyfree-lazy-server-del": "yes",
        "no-appendfsync-on-rewrite": "no",
        "save": "",
        "timeout": "0",
    }
    conf = data_file("config", "redis.conf")
    with RedisServer(config=conf) as server, server.client(decode_responses=True) as client:
        assert client.config_get(*expected) == expected
