"""kill -9 of workers and of the server, in the middle of work: nothing is lost, the books balance at every look."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher.connection import connect
from dispatcher.event import Event
from dispatcher.keys import Keys, QueueKeys
from dispatcher.producer import Producer
from dispatcher.slack.sink import event_mark
from dispatcher.slack.stand_in import StandIn
from dispatcher.store.snapshot import Books, Snapshot
from tests.support.processes import Command, environment, settled, until
from tests.support.servers import RedisServer

KEYS, QUEUE = Keys("dispatcher"), QueueKeys("notifications")
LIMITS = """\
global: {limits: [600/30m]}
channels: {default: {pace: none}}
defaults: {limits: [50/30m], channel: "#n"}
"""
LEASE_S = 3


@pytest.fixture
def limits(tmp_path: Path) -> Path:
    path = tmp_path / "limits.yaml"
    path.write_text(LIMITS, encoding="utf-8")
    return path


def storm(count: int) -> list[Event]:
    return [Event(f"type{n % 20}", f"message {n}", id=f"event-{n}", channel=f"#type{n % 20}") for n in range(count)]


def watch(books: Books, done: Callable[[Snapshot], bool], timeout_s: float) -> Snapshot:
    """Look at the books again and again until ``done``; they balance at every look."""
    end = time.monotonic() + timeout_s
    while True:
        snapshot = books.snapshot()
        assert snapshot.imbalances() == []
        if done(snapshot):
            return snapshot
        assert time.monotonic() < end, f"not done after {timeout_s} s: {snapshot}"


def test_a_worker_killed_in_the_middle_loses_nothing(redis_url: str, limits: Path, tmp_path: Path) -> None:
    client = connect(redis_url)
    books = Books(client, KEYS, QUEUE)
    ids = Producer(client).send_many(storm(5000))
    with StandIn() as slack:
        env = environment(
            redis_url,
            slack.base_url,
            slack.token,
            limits,
            DISPATCHER_LEASE=str(LEASE_S),
            DISPATCHER_SLACK_TIMEOUT="1",
            DISPATCHER_BATCH="32",
        )
        workers = [Command("worker", env=env, cwd=tmp_path, name=f"worker{n}") for n in range(3)]
        try:
            watch(books, lambda look: look.received >= 1000 and look.leased > 0, 20)
            workers[0].signal(signal.SIGKILL)
            end = watch(books, lambda look: look.waiting + look.events == 0, LEASE_S + 10)
            for worker in workers[1:]:
                worker.signal(signal.SIGTERM)
            assert [worker.wait() for worker in workers[1:]] == [0, 0]
            lines = settled(workers)
        finally:
            for worker in workers:
                worker.__exit__(None, None, None)

    assert end.received == 5000
    assert end.overall()["sent"] == 600
    assert end.overall()["dropped"] == 4400
    assert max(end.by_category("sent").values()) <= 50
    # A line may be missing where the kill came between settle and log; none is there twice.
    assert lines.keys() <= set(ids)
    assert all(len(each) == 1 for each in lines.values())
    assert len(ids) - len(lines) <= 32 + 8
    # At the gate nothing is over a limit: every attempt owns a slot of its own.
    assert client.zcard(KEYS.scope("global")) <= 601
    marks = Counter(posted.mark for posted in slack.ledger.posted())
    twice = [mark for mark, count in marks.items() if count > 1]
    sent = {event_mark(event_id) for event_id, (line,) in lines.items() if line["outcome"] == "sent"}
    assert sent <= set(marks)
    assert len(twice) <= 8, "more posts arrived twice than could be under way at the kill"


def test_the_server_killed_and_restarted_in_the_middle(own_server: RedisServer, limits: Path, tmp_path: Path) -> None:
    client = connect(own_server.url)
    client.config_set("appendfsync", "always")
    books = Books(client, KEYS, QUEUE)
    Producer(client).send_many(storm(3000))
    with StandIn() as slack:
        env = environment(own_server.url, slack.base_url, slack.token, limits, DISPATCHER_BATCH="16")
        with Command("worker", env=env, cwd=tmp_path) as worker:
            watch(books, lambda look: look.received >= 300, 20)
            own_server.kill()
            worker.await_line("redis.lost")
            own_server.start()
            worker.await_line("redis.found")
            end = watch(books, lambda look: look.waiting + look.events == 0, 30)
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
            assert len(worker.named("redis.lost")) == 1
            assert len(worker.named("redis.found")) == 1
            lines = settled([worker])
    assert end.overall()["received"] == 3000
    assert end.overall()["sent"] <= 600
    assert end.overall()["sent"] + end.overall()["dropped"] == 3000
    assert all(len(each) == 1 for each in lines.values())


def test_a_frozen_worker_that_wakes_after_its_lease_changes_nothing(
    redis_url: str, limits: Path, tmp_path: Path
) -> None:
    client = connect(redis_url)
    books = Books(client, KEYS, QUEUE)
    with StandIn() as slack:
        env = environment(
            redis_url, slack.base_url, slack.token, limits, DISPATCHER_LEASE="1", DISPATCHER_SLACK_TIMEOUT="0.5"
        )
        with (
            Command("worker", env=env, cwd=tmp_path, name="frozen") as frozen,
            Command("worker", env=env, cwd=tmp_path, name="other") as other,
        ):
            for worker in (frozen, other):
                worker.await_line("worker.started")
            Producer(client).send_many(storm(2000))
            frozen.signal(signal.SIGSTOP)
            watch(books, lambda look: look.waiting + look.events == 0, 20)
            frozen.signal(signal.SIGCONT)
            for worker in (frozen, other):
                worker.signal(signal.SIGTERM)
            assert [frozen.wait(), other.wait()] == [0, 0]
            lines = settled([frozen, other])
    end = books.snapshot()
    assert end.imbalances() == []
    assert end.overall()["received"] == 2000
    assert end.overall()["sent"] == 600
    assert all(len(each) == 1 for each in lines.values())


def test_workers_end_when_their_parent_is_killed(redis_url: str, limits: Path, tmp_path: Path) -> None:
    client = connect(redis_url)
    with StandIn() as slack:
        env = environment(redis_url, slack.base_url, slack.token, limits)
        with Command("worker", "--processes", "2", env=env, cwd=tmp_path) as parent:
            until(lambda: client.scard("rq:workers") == 2, "two workers")
            parent.signal(signal.SIGKILL)
            until(lambda: client.scard("rq:workers") == 0, "no worker")


def test_a_worker_that_crashes_is_started_again(redis_url: str, limits: Path, tmp_path: Path) -> None:
    client = connect(redis_url)
    with StandIn() as slack:
        env = environment(redis_url, slack.base_url, slack.token, limits)
        with Command("worker", "--processes", "2", env=env, cwd=tmp_path) as parent:
            until(lambda: len(parent.named("worker.started")) == 2, "two workers")
            victim = int(parent.named("worker.started")[0]["worker"].rsplit(".", 2)[1])
            assert victim != parent.pid
            os.kill(victim, signal.SIGKILL)
            until(lambda: len(parent.named("worker.started")) == 3, "a third worker")
            assert [line["pid"] for line in parent.named("worker.crashed")] == [victim]
            Producer(client).send("errors", "still served")
            until(lambda: len(slack.ledger) == 1, "the post")
            parent.signal(signal.SIGTERM)
            assert parent.wait() == 0
