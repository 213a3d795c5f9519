"""Scripts where very much waits: each looks at a bounded number of things in one call, and the next call goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pytest

from benchmarks.backlog import Size, build
from benchmarks.ours import KEYS, QUEUE
from dispatcher.store.snapshot import Books
from tests.support.servers import Database, RedisServer

SIZE: Final = Size(
    lines_of_labels=1_900, lines_of_category=700, lines_of_channels=600, in_channel=2, timers=300, letters=300, names=20
)
DEFERRED: Final = 1_900 * 10 + 700 * 10 + 2
FOR_CHANNELS: Final = 600 * 2 + 1


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A server with more of everything than one call looks at."""
    with RedisServer() as server, server.client() as client:
        build(client, server.url, tmp_path_factory.mktemp("backlog"), SIZE)
        yield client


@dataclass(slots=True)
class Effort:
    """How many commands the server ran, those inside scripts among them."""

    commands: int = 0


@contextmanager
def counted(client: Database) -> Iterator[Effort]:
    client.config_resetstat()
    effort = Effort()
    yield effort
    stats = client.info("commandstats")
    effort.commands = sum(row["calls"] for name, row in stats.items() if not name.startswith("cmdstat_config"))


def test_a_look_at_very_many_lines_tells_of_those_that_may_go_soonest_and_the_books_balance(crowd: Database) -> None:
    with counted(crowd) as effort:
        look = Books(crowd, KEYS, QUEUE).snapshot()
    assert effort.commands < 1_000
    assert look.imbalances() == []
    waiting = {
        is_deferred: [line.waiting for line in look.lines.values() if (line.scope is not None) is is_deferred]
        for is_deferred in (True, False)
    }
    assert len(waiting[True]) == 200
    assert 0 < len(waiting[False]) <= 200
    assert (look.more_deferred, look.more_for_channels) == (
        DEFERRED - sum(waiting[True]),
        FOR_CHANNELS - sum(waiting[False]),
    )
    assert min(line.next_us or 0 for line in look.lines.values()) == look.next_line_us


def test_with_very_many_tallies_the_books_say_how_much_is_parked_and_in_flight(redis: Database) -> None:
    redis.sadd(KEYS.tallies, *(f"digest:category-{n}" for n in range(3_000)))
    redis.zadd(KEYS.parked, {"a": 1, "b": 2, "digest:category-0": 3})
    redis.zadd(KEYS.timers, {"a": 1, "b": 2, "digest:category-0": 3})
    redis.sadd(KEYS.leased("ann"), "c")
    redis.zadd(KEYS.leases, {"ann": 1})
    redis.hset(KEYS.events, mapping=dict.fromkeys(("a", "b", "c", "digest:category-0"), "{}\n"))
    redis.hset(KEYS.totals, mapping={"received": 4, "sent": 1, "sent errors": 1, "parked errors": 2})
    look = Books(redis, KEYS, QUEUE).snapshot()
    assert (look.parked, look.in_flight, look.imbalances()) == (2, 1, [])
    assert len(look.tallies) < look.all_tallies == 3_000
    redis.hincrby(KEYS.totals, "received", 2)
    (said,) = Books(redis, KEYS, QUEUE).snapshot().imbalances()
    assert said == "events of its own are -1, but tallies are 3000"
