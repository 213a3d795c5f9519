"""A million events, or in short fewer: memory stays what it was after the first of them, and no key is left over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Final

import pytest

from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.server.keys import Keys
from dispatcher.stand_in import StandIn
from dispatcher.store.snapshot import Books
from tests.support.kill_round import KEYS, QUEUE
from tests.support.processes import Command, environment
from tests.support.servers import Database, RedisServer
from tests.support.snapshots import watch

LONG: Final = (100_000, 1_000_000)
SHORT: Final = (12_000, 24_000)
"""After how many of them memory is looked at first, and how many in all."""

CHUNK: Final = 5_000
MOST_WAITING: Final = 20_000
GROWTH_BYTES: Final = 10 * 2**20
LIMITS: Final = """\
global: {limits: [20/1s]}
channels: {default: {pace: none}}
defaults: {limits: [5/1m]}
categories:
  later: {limits: [10/1s], on_limit: defer, max_parked: 100, guarantee: 10}
  kept: {limits: [1/1h], on_limit: dead-letter}
dead_letters: {max: 1000}
decisions: {max: 10000}
"""
LATER_S: Final = 30
"""Longer than what is deferred waits for its guarantee."""


@pytest.mark.parametrize(
    ("first", "events"),
    [pytest.param(*SHORT, id="short"), pytest.param(*LONG, id="long", marks=pytest.mark.slow)],
)
def test_a_million_events_leave_memory_as_it_was_and_no_key(
    own_server: RedisServer, tmp_path: Path, first: int, events: int
) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(LIMITS, encoding="utf-8")
    database: Database = connect(own_server.url)
    database.config_set("appendonly", "no")
    books = Books(database, KEYS, QUEUE)
    with StandIn() as slack, ExitStack() as stack:
        env = environment(own_server.url, slack.base_url, slack.token, path, DISPATCHER_LOG_LEVEL="warning")
        workers = [stack.enter_context(Command("worker", env=env, cwd=tmp_path)) for _ in range(2)]
        _send(database, books, first)
        before = [*(_resident(worker.pid) for worker in workers), _used(database)]
        _send(database, books, events - first)
        after = [*(_resident(worker.pid) for worker in workers), _used(database)]
        growth = [now - then for then, now in zip(before, after, strict=True)]
        end = watch(books, lambda snapshot: snapshot.events == 0, LATER_S)
        for worker in workers:
            worker.process.terminate()
        assert [worker.wait() for worker in workers] == [0, 0]
        posts = len(slack.ledger)

    assert end.received == events
    assert end.overall()["sent"] == posts > 0
    assert max(growth) < GROWTH_BYTES, growth
    forever = {name.decode() for name in database.scan_iter(count=1_000) if database.ttl(name) == -1}
    left = {KEYS.dead_ids, KEYS.dead_bytes, KEYS.wake}  # tokens of the workers that stopped
    assert forever <= {*_permanent(KEYS), *left, QUEUE.binding, QUEUE.queues}


def _send(database: Database, books: Books, count: int) -> None:
    """Send so many, never far ahead of the workers; return when none of them waits on a lane."""
    producer = Producer(database)
    for first in range(0, count, CHUNK):
        producer.send_many(_events(first, min(CHUNK, count - first)))
        watch(books, lambda snapshot: snapshot.waiting < MOST_WAITING, 60)
    watch(books, lambda snapshot: snapshot.waiting == 0 and snapshot.leased == 0, 60)


def _events(first: int, count: int) -> Iterator[dict[str, str]]:
    for n in range(first, first + count):
        category = "later" if n % 500 == 0 else "kept" if n % 500 == 1 else f"type{n % 50}"
        yield {"category": category, "text": f"message {n}"}


def _resident(pid: int) -> int:
    """The resident memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1_024 for line in status.splitlines() if line.startswith("VmRSS:"))


def _used(database: Database) -> int:
    """What the server's data takes, in bytes."""
    return int(database.info("memory")["used_memory"])


def _permanent(keys: Keys) -> set[str]:
    """The keys that are documented to stay."""
    found = set()
    for name, attribute in vars(Keys).items():
        if isinstance(attribute, cached_property) and "permanent" in (attribute.__doc__ or ""):
            named = getattr(keys, name)
            found |= {named} if isinstance(named, str) else set(named)
    return found
