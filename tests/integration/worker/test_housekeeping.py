"""What a worker does for all of its fleet with its heartbeat."""

from __future__ import annotations

import io
import json

from dispatcher.core.limits import Bounds
from dispatcher.logs.event_log import build_event_log
from dispatcher.server.clients import connect
from dispatcher.store.dead_letters import DeadLetters
from dispatcher.store.removals import Removals
from dispatcher.store.rq_recovery import Sweep
from dispatcher.worker.housekeeping import Housekeeping
from tests.support.dead_letters import KEYS, QUEUE, buried, bury, numbered
from tests.support.servers import Database, RedisServer


def test_one_heartbeat_a_minute_trims_the_dead_letters_and_each_one_on_a_full_server(own_server: RedisServer) -> None:
    redis: Database = connect(own_server.url)
    said = io.StringIO()
    housekeeping = Housekeeping(
        Sweep(redis, KEYS, QUEUE, owner="ann"),
        Removals(redis, KEYS),
        DeadLetters(redis, KEYS, QUEUE),
        build_event_log(stream=said, style="json"),
    )
    bury(redis, numbered(6), ago_s=60)
    for most in (5, 4):
        housekeeping.keep_up(Bounds(max=most))
    assert buried(redis) == ["e1", "e2", "e3", "e4", "e5"]
    redis.config_set("maxmemory", "1")
    for most in (3, 2):
        housekeeping.keep_up(Bounds(max=most))
    redis.config_set("maxmemory", "0")
    assert buried(redis) == ["e4", "e5"]
    assert [json.loads(line)["count"] for line in said.getvalue().splitlines()] == [1, 2, 1]
