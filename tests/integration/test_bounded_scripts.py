"""Scripts where very much waits: each looks at a bounded number of things in one call, and the next call goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pytest

from benchmarks.backlog import LIMITS, Size, build
from benchmarks.ours import KEYS, QUEUE
from dispatcher.app.documents.facts import read_status
from dispatcher.app.operating import Desk
from dispatcher.app.servers import Server
from dispatcher.core.limits import Bounds
from dispatcher.errors import ConfigError
from dispatcher.server.connection import translate_refusals
from dispatcher.settings.environment import Settings
from dispatcher.settings.limits_file import read_limits
from dispatcher.store.dead_letters import DeadLetters, Filter, Replayed
from dispatcher.store.explanations import Explanations
from dispatcher.store.snapshot import Books
from tests.support.servers import Database, RedisServer

SIZE: Final = Size(
    lines_of_labels=900,
    lines_of_category=700,
    lines_of_channels=600,
    in_channel=2,
    timers=300,
    letters=1_300,
    names=450,
)
DEFERRED: Final = 900 * 10 + 700 * 10 + 2
FOR_CHANNELS: Final = 600 * 2 + 1


@pytest.fixture(scope="module")
def crowded() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def crowd(crowded: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A server with more of everything than one call looks at."""
    with crowded.client() as client:
        build(client, crowded.url, tmp_path_factory.mktemp("backlog"), SIZE)
        yield client


@dataclass(slots=True)
class Effort:
    """How many scripts the server ran, and how many commands, those inside scripts among them."""

    scripts: int = 0
    commands: int = 0


@contextmanager
def counted(client: Database) -> Iterator[Effort]:
    client.config_resetstat()
    effort = Effort()
    yield effort
    stats = client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
    effort.scripts = calls.get("evalsha", 0) + calls.get("eval", 0)
    effort.commands = sum(count for name, count in calls.items() if not name.startswith("config"))


def test_a_snapshot_of_very_many_lines_names_the_soonest_and_balances(crowd: Database) -> None:
    with counted(crowd) as effort:
        snapshot = Books(crowd, KEYS, QUEUE).snapshot()
    assert effort.commands < 1_000
    assert snapshot.imbalances() == []
    waiting = {
        is_deferred: [line.waiting for line in snapshot.lines.values() if (line.scope is not None) is is_deferred]
        for is_deferred in (True, False)
    }
    assert len(waiting[True]) == 200
    assert 0 < len(waiting[False]) <= 200
    assert (snapshot.more_deferred, snapshot.more_for_channels) == (
        DEFERRED - sum(waiting[True]),
        FOR_CHANNELS - sum(waiting[False]),
    )
    assert min(line.next_us or 0 for line in snapshot.lines.values()) == snapshot.next_line_us


def test_the_use_of_very_many_limits_is_read_by_several_looks(crowd: Database, crowded: RedisServer) -> None:
    settings = Settings.isolated(namespace=KEYS.namespace, queue=QUEUE.queue)
    desk = Desk(settings, Server(crowded.url, "here"))
    with counted(crowd) as effort:
        status = read_status(desk, read_limits(LIMITS, "limits.yaml").policy)
    assert {len(used) for name, used in status.categories.items() if name.startswith("unknown-")} == {1}
    assert len(status.categories) > 450
    assert effort.scripts >= 1 + 3
    assert status.together[0].used >= FOR_CHANNELS


def test_very_many_letters_are_found_replayed_and_removed_page_by_page(crowd: Database) -> None:
    letters = DeadLetters(crowd, KEYS, QUEUE)
    with counted(crowd) as effort:
        found = list(letters.find(Filter()))
    assert len(found) == 1_301
    assert effort.scripts >= 1_301 / 50
    with counted(crowd) as effort:
        assert letters.replay(found[:600]) == [Replayed.DONE] * 600
    assert effort.scripts >= 600 / 50
    assert effort.commands / effort.scripts < 1_000
    with counted(crowd) as effort:
        assert letters.purge(found) == 701
    assert effort.scripts >= 1_301 / 500
    assert effort.commands / effort.scripts < 3_000
    assert (letters.count(), crowd.hlen(KEYS.dead_ids), crowd.exists(KEYS.dead_bytes)) == (0, 0, 0)
    assert Books(crowd, KEYS, QUEUE).snapshot().imbalances() == []


def test_dead_letters_beyond_the_bounds_are_removed_page_by_page(redis: Database) -> None:
    letters = DeadLetters(redis, KEYS, QUEUE)
    bury_numbered(redis, 1_200, "x")
    with counted(redis) as effort:
        assert letters.trim(Bounds(max=10)) == 1_190
    assert effort.scripts >= 1_190 / 500
    assert [letter.id for letter in letters.find(Filter())] == [f"e{n}" for n in range(1_190, 1_200)]
    assert redis.hlen(KEYS.dead_ids) == 10


def test_of_large_letters_a_page_holds_few(redis: Database) -> None:
    letters = DeadLetters(redis, KEYS, QUEUE)
    bury_numbered(redis, 30, "x" * 1_000_000)
    assert int(redis.get(KEYS.dead_bytes)) > 30_000_000
    with counted(redis) as effort:
        found = list(letters.find(Filter()))
    assert effort.scripts >= 15
    assert list(letters.find(Filter(), newest_first=True)) == found[::-1]
    with counted(redis) as effort:
        assert letters.replay(found[:12]) == [Replayed.DONE] * 12
    assert effort.scripts >= 2
    with counted(redis) as effort:
        assert letters.purge(found[12:24]) == 12
    assert effort.scripts >= 2
    assert letters.trim(Bounds(max_bytes=2_000_000)) == 5
    assert [letter.id for letter in letters.find(Filter())] == ["e29"]


def test_large_events_are_explained_page_by_page_and_two_names_of_one_at_once(redis: Database) -> None:
    header = {"seq": 1, "seen": "1", "state": "waiting", "timer": True, "category": "errors", "deadline": "9"}
    ids = [f"e{n}" for n in range(20)]
    for id_ in ids:
        redis.hset(KEYS.events, id_, json.dumps(header) + "\n" + "x" * 600_000)
    explanations = Explanations(redis, KEYS, QUEUE)
    with counted(redis) as effort:
        snapshot = explanations.find(ids, payloads=True)
    assert effort.scripts >= 10
    assert [(found.id, len(found.payload)) for found in snapshot.found] == [(id_, 600_000) for id_ in ids]
    with counted(redis) as effort:
        assert len(explanations.find(ids[:2]).found) == 2
    assert effort.scripts == 1


def test_where_very_many_ids_are_is_asked_page_by_page(crowd: Database) -> None:
    explanations = Explanations(crowd, KEYS, QUEUE)
    ids = [id_.decode() for id_ in crowd.zrange(KEYS.parked, 0, 399)] + [f"no id {n}" for n in range(100)]
    with counted(crowd) as effort:
        told = explanations.explain_each(ids)
    assert effort.scripts <= 3, "it is loaded at most once"
    assert [each.id for each in told] == ids
    assert [each.state for each in told] == [explanations.explain(id_).state for id_ in ids]


def test_when_events_behind_very_many_lines_find_room_is_told_by_two_short_scripts(crowd: Database) -> None:
    waiting = [id_ for id_ in crowd.zrange(KEYS.parked, 0, -1) if id_.startswith(b"audits-")][-64:]
    policy = read_limits(LIMITS, "limits.yaml").policy
    with counted(crowd) as effort:
        found = Explanations(crowd, KEYS, QUEUE, policy=policy).find([id_.decode() for id_ in waiting], payloads=True)
    assert len(found.rooms) == 64
    assert effort.scripts <= 2 * 2, "each is loaded at most once"
    assert effort.commands < 64 * 60


def test_explain_gives_a_lane_position_only_within_the_first_ten_thousand(redis: Database) -> None:
    ids = [f"e{n}" for n in range(12_000)]
    redis.rpush(QUEUE.lanes[1], *ids)
    for id_ in (ids[9_999], ids[10_000]):
        redis.hset(QUEUE.job(id_), mapping={"origin": "notifications", "status": "queued", "data": "x"})
    explanations = Explanations(redis, KEYS, QUEUE)
    assert [explanations.find([id_]).found[0].facts["job"].get("before") for id_ in (ids[9_999], ids[10_000])] == [
        9_999,
        None,
    ]
    among_many = explanations.find([ids[9_999], *(f"no-{n}" for n in range(99))]).found[0]
    assert "before" not in among_many.facts["job"]


def bury_numbered(redis: Database, count: int, payload: str) -> None:
    """So many letters as the scripts write them."""
    pipe = redis.pipeline()
    for n in range(count):
        size = len(f"e{n}") + len(payload)
        letter = {"id": f"e{n}", "at": time.time_ns() // 1_000, "bytes": size, "payload": payload}
        pipe.xadd(KEYS.dead, letter, id=f"1-{n}")
        pipe.hset(KEYS.dead_ids, f"e{n}", f"1-{n}")
        pipe.incrby(KEYS.dead_bytes, size)
    pipe.execute()


def test_with_very_many_tallies_the_books_say_how_much_is_parked_and_in_flight(redis: Database) -> None:
    redis.sadd(KEYS.tallies, *(f"digest:category-{n}" for n in range(3_000)))
    redis.zadd(KEYS.parked, {"a": 1, "b": 2, "digest:category-0": 3})
    redis.zadd(KEYS.timers, {"a": 1, "b": 2, "digest:category-0": 3})
    redis.sadd(KEYS.leased("ann"), "c")
    redis.zadd(KEYS.leases, {"ann": 1})
    redis.hset(KEYS.events, mapping=dict.fromkeys(("a", "b", "c", "digest:category-0"), "{}\n"))
    redis.hset(KEYS.totals, mapping={"received": 4, "sent": 1, "sent errors": 1, "parked errors": 2, "held errors": 3})
    snapshot = Books(redis, KEYS, QUEUE).snapshot()
    assert (snapshot.parked, snapshot.in_flight, snapshot.imbalances()) == (2, 1, [])
    assert len(snapshot.tallies) < snapshot.all_tallies == 3_000
    redis.hincrby(KEYS.totals, "received", 2)
    snapshot = Books(redis, KEYS, QUEUE).snapshot()
    assert snapshot.imbalances() == [
        "received is 6, but outcomes + parked + in flight is 4",
        "digest messages are -1, but tallies are 3000",
    ]
    assert snapshot.difference() == 3


def collecting(redis: Database) -> list[str]:
    """The ids of 1,500 digest messages that collect."""
    ids = [f"repeat:errors:{n:032x}" for n in range(1_500)]
    redis.sadd(KEYS.tallies, *ids)
    redis.zadd(KEYS.parked, dict.fromkeys(ids, 1))
    redis.zadd(KEYS.timers, dict.fromkeys(ids, 10**16))
    redis.hset(KEYS.events, mapping=dict.fromkeys(ids, "{}\n"))
    return ids


def test_a_digest_message_that_a_worker_holds_is_no_event_in_flight_beside_very_many_tallies(redis: Database) -> None:
    held, left, *_ = collecting(redis)
    redis.zrem(KEYS.parked, held, left)
    redis.zrem(KEYS.timers, held, left)
    redis.sadd(KEYS.leased("ann"), held, "c")
    redis.zadd(KEYS.leases, {"ann": 1})
    redis.zadd(KEYS.requeued, {left: 1, "d": 2})
    redis.hset(KEYS.events, mapping={"c": "{}\n", "d": "{}\n"})
    redis.hset(KEYS.totals, mapping={"received": 2})
    books = Books(redis, KEYS, QUEUE)
    snapshot = books.snapshot()
    assert (snapshot.in_flight, snapshot.pending, snapshot.imbalances()) == (2, 2, [])
    redis.srem(KEYS.leased("ann"), "c")
    redis.hdel(KEYS.events, "c")
    assert "received is 2, but outcomes + parked + in flight is 1" in books.snapshot().imbalances()


def test_a_burst_waits_for_what_is_to_be_posted_beside_very_many_tallies(redis: Database) -> None:
    collecting(redis)
    books = Books(redis, KEYS, QUEUE)
    assert books.is_drained(), "digests that collect may wait"
    redis.sadd(KEYS.tallies, "digest:errors")
    redis.hset(KEYS.tally("digest:errors"), mapping={"count": 1, "first": 1, "buffered": "single"})
    redis.zadd(KEYS.parked, {"single": 1})
    redis.zadd(KEYS.timers, {"single": 10**16})
    redis.hset(KEYS.events, "single", "{}\n")
    redis.hset(KEYS.totals, mapping={"received": 1, "parked errors": 1, "held errors": 1})
    snapshot = books.snapshot()
    assert (snapshot.set_aside, snapshot.imbalances()) == (1, [])
    assert books.is_drained(), "so may the buffered single"
    redis.zadd(KEYS.parked, {"retried": 1})
    redis.zadd(KEYS.timers, {"retried": 10**16})
    redis.hset(KEYS.events, "retried", "{}\n")
    redis.hset(KEYS.totals, mapping={"received": 2, "parked errors": 2, "held errors": 2})
    assert not books.is_drained()


def test_a_burst_waits_for_a_digest_message_in_a_line_beside_very_many_tallies(redis: Database) -> None:
    first, second, *_ = collecting(redis)
    redis.zrem(KEYS.timers, first)
    redis.zadd(KEYS.line("channel:#ops"), {first: 1})
    redis.zadd(KEYS.lines, {"channel:#ops": 10**16})
    books = Books(redis, KEYS, QUEUE)
    assert not books.is_drained()
    redis.delete(KEYS.line("channel:#ops"), KEYS.lines)
    redis.zadd(KEYS.timers, {first: 10**16})
    assert books.is_drained()
    redis.zrem(KEYS.parked, second)
    redis.zrem(KEYS.timers, second)
    redis.zadd(KEYS.requeued, {second: 1})
    assert not books.is_drained()


def test_no_script_hands_on_the_books_of_all_categories(crowd: Database) -> None:
    books = Books(crowd, KEYS, QUEUE)
    books.snapshot()
    readers: list[str] = []
    with crowd.monitor() as monitor:
        books.snapshot()
        books.measure(10)
        crowd.echo("done")
        for each in monitor.listen():
            if each["command"] == "ECHO done":
                break
            if each["command"] == f"HGETALL {KEYS.totals}":
                readers.append(each["client_type"])
    assert len(readers) == 2
    assert "lua" not in readers


@pytest.mark.parametrize("may", ["-evalsha", "-hgetall"])
def test_a_status_that_an_acl_refuses_says_so_in_the_words_of_the_server(own_server: RedisServer, may: str) -> None:
    with own_server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "on", "nopass", "~*", "&*", "+@all", may)
        client.execute_command("AUTH", "app", "x")
        with pytest.raises(ConfigError) as caught, translate_refusals(client):
            Books(client, KEYS, QUEUE).snapshot()
    assert str(caught.value).endswith(f"User app has no permissions to run the '{may[1:]}' command")
    assert "pipeline" not in str(caught.value)
