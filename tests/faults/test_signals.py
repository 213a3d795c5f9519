"""A worker that is told to stop, whatever it is doing: it ends in time with 0, and others go on where it stopped."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import ANSWER_TIMEOUT_S, connect
from dispatcher.stand_in import Hang, Held, Hold, StandIn, landed
from dispatcher.store.snapshot import Books, Snapshot
from dispatcher.worker.child_process import SAME_SIGNAL_S
from dispatcher.worker.worker import STOP_GRACE_S
from tests.support.delay_proxy import DelayProxy
from tests.support.extent import slow_except
from tests.support.kill_points import KillPoint
from tests.support.kill_round import KEYS, QUEUE
from tests.support.killable_workers import KillableWorker, KillableWorkers
from tests.support.processes import PATIENCE_S, environment, until
from tests.support.servers import RedisServer
from tests.support.snapshots import is_drained, watch

SLACK_TIMEOUT_S: Final = 1.0
LIMITS: Final = """\
global: {limits: []}
channels: {default: {pace: 1000/1s}}
defaults: {limits: [], channel: "#one"}
"""


@dataclass(frozen=True, slots=True)
class Shop:
    """A server, a Slack, and workers born when they are needed."""

    killable: KillableWorkers
    slack: StandIn
    books: Books
    producer: Producer
    env: dict[str, str]

    def send(self, count: int) -> list[str]:
        """Send events of one channel, numbered."""
        return self.producer.send_many({"category": "news", "text": str(n)} for n in range(count))

    def start(self, kill_point: KillPoint | None = None) -> KillableWorker:
        """A worker."""
        return self.killable.start(self.env, kill_point)

    def ended(self, worker: KillableWorker, within_s: float = SLACK_TIMEOUT_S + STOP_GRACE_S) -> int:
        """The exit code of a worker that ends within the time that a stop may take."""
        end = time.monotonic() + within_s
        while worker.code is None:
            assert time.monotonic() < end, f"still running after {within_s} s: {worker.said()[-500:]}"
            self.killable.poll(0.05)
        return worker.code

    def snapshot(self) -> Snapshot:
        """The books, which balance."""
        snapshot = self.books.snapshot()
        assert snapshot.imbalances() == []
        return snapshot

    def posted(self) -> list[int]:
        """The numbers that arrived, in order."""
        return [int(posted.text) for posted in self.slack.ledger.posted()]


@pytest.fixture
def shop(killable: KillableWorkers, own_server: RedisServer, tmp_path: Path) -> Iterator[Shop]:
    path = tmp_path / "limits.yaml"
    path.write_text(LIMITS, encoding="utf-8")
    client = connect(own_server.url)
    with StandIn() as slack:
        env = environment(
            own_server.url,
            slack.base_url,
            slack.token,
            path,
            DISPATCHER_SLACK_TIMEOUT=str(SLACK_TIMEOUT_S),
            DISPATCHER_LEASE="1.5",
            DISPATCHER_BATCH="16",
        )
        yield Shop(killable, slack, Books(client, KEYS, QUEUE), Producer(client), env)
        killable.clear()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_an_idle_worker_ends(shop: Shop, number: signal.Signals) -> None:
    worker = shop.start()
    shop.send(3)
    watch(shop.books, is_drained, 10)
    worker.signal(number)
    assert shop.ended(worker) == 0
    assert [line["given_back"] for line in worker.lines("worker.stopped")] == [0]
    assert shop.snapshot().leases == {}


@pytest.mark.parametrize(
    "workers", [pytest.param(12, id="12 workers"), pytest.param(1000, id="1,000 workers", marks=pytest.mark.slow)]
)
def test_told_to_stop_at_any_instant_of_its_start_a_worker_ends(shop: Shop, workers: int) -> None:
    chance = random.Random(workers)
    for _ in range(workers):
        worker = shop.start()
        shop.killable.poll(chance.uniform(0.0, 0.15))
        worker.signal(signal.SIGTERM)
        assert shop.ended(worker) == 0, worker.said()
        assert len(worker.lines("worker.stopped")) == len(worker.lines("worker.started"))
    assert shop.snapshot().leases == {}


@pytest.mark.parametrize(
    ("step", "moment"),
    [
        *slow_except(
            [
                ("ask for more", "middle"),
                ("settle", "middle"),
                ("take", "after"),
                ("start", "after"),
                ("post", "after"),
            ],
            [
                *product(("ask for more", "gate", "start", "settle"), ("before", "middle")),
                *product(("take", "start", "settle"), ("after",)),
                *product(("post",), ("before", "after")),
            ],
        )
    ],
)
def test_a_worker_stopped_in_the_middle_of_a_batch_leaves_the_rest_in_order(shop: Shop, step: str, moment: str) -> None:
    ids = shop.send(40)
    first = shop.start(KillPoint(step, moment, 2, signal.SIGTERM))
    assert shop.ended(first) == 0
    snapshot = shop.snapshot()
    assert (snapshot.leased, snapshot.leases) == (0, {})
    assert snapshot.waiting + snapshot.requeued + snapshot.parked == 40 - len(first.lines("event.settled"))
    assert len(first.lines("worker.stopped")) == 1
    second = shop.start()
    watch(shop.books, is_drained, 10)
    second.signal(signal.SIGTERM)
    assert shop.ended(second) == 0
    settled = [line["event_id"] for worker in (first, second) for line in worker.lines("event.settled")]
    assert sorted(settled) == sorted(ids)
    unconfirmed = {  # a post that takes longer than the time-out: the others go on meanwhile
        line["event_id"]
        for worker in (first, second)
        for line in worker.lines("event.parked")
        if line["reason"] == "reconcile"
    }
    assert [id_ for id_ in settled if id_ not in unconfirmed] == [id_ for id_ in ids if id_ not in unconfirmed]
    assert shop.posted() == list(range(40))


def test_a_worker_stopped_while_a_post_is_never_answered_parks_it(shop: Shop) -> None:
    shop.slack.faults.add(landed(Hang()))
    shop.send(2)
    worker = shop.start()
    until(lambda: shop.slack.faults.played, "the post")
    worker.signal(signal.SIGTERM)
    assert shop.ended(worker) == 0
    snapshot = shop.snapshot()
    assert (snapshot.in_flight, snapshot.timers, snapshot.leases) == (0, 1, {})
    assert [line["reason"] for line in worker.lines("event.parked")][-1] == "reconcile"


@pytest.mark.slow  # the server's answer takes almost as long as a worker waits for it
def test_a_post_that_is_in_flight_when_a_stop_is_over_arrives_once(
    shop: Shop, own_server: RedisServer, tmp_path: Path
) -> None:
    """The server is slow: the post begins when the time of the stop is nearly over."""
    (tmp_path / "limits.yaml").write_text(LIMITS.replace("[]", "[1000/30m]"), encoding="utf-8")
    shop.slack.faults.add(landed(Hang()))
    decided, goes_on = threading.Event(), threading.Event()

    def hold_the_gates_answer(piece: bytes) -> None:
        if b'"verdicts"' in piece and not decided.is_set():
            decided.set()
            assert goes_on.wait(PATIENCE_S)

    with DelayProxy(own_server.socket) as proxy:
        proxy.on_reply = hold_the_gates_answer
        worker = shop.killable.start(shop.env | {"DISPATCHER_REDIS_URL": proxy.url})
        until(lambda: worker.lines("worker.started"), "the worker")
        shop.send(1)
        assert decided.wait(PATIENCE_S)
        worker.signal(signal.SIGTERM)
        asked = time.monotonic()
        until(lambda: time.monotonic() - asked > ANSWER_TIMEOUT_S - 0.4, "an answer that is nearly too late")
        goes_on.set()
        until(lambda: shop.posted() == [0], "the post")
        assert shop.ended(worker) == 0
    assert worker.lines("event.parked") == [], "the post was still in flight at the end"
    other = shop.start()
    watch(shop.books, is_drained, 20)
    other.signal(signal.SIGTERM)
    assert shop.ended(other) == 0
    assert [line.get("found") for line in other.lines("event.settled")] == [True]
    assert shop.posted() == [0]


def test_a_second_signal_ends_it_at_once_and_the_post_is_made_again(shop: Shop) -> None:
    hold = Hold()
    shop.slack.faults.add(landed(Held(hold)))
    shop.send(1)
    env = shop.env | {"DISPATCHER_SLACK_TIMEOUT": "60", "DISPATCHER_LEASE": "61"}
    stubborn = shop.killable.start(env)
    hold.wait_for_arrival()
    stubborn.signal(signal.SIGTERM)
    asked = time.monotonic()
    until(lambda: time.monotonic() - asked > 2 * SAME_SIGNAL_S, "a signal of its own")
    shop.killable.poll()
    assert stubborn.code is None, "the first signal waits for the post"
    stubborn.signal(signal.SIGTERM)
    assert shop.ended(stubborn, 2.0) == 128 + signal.SIGTERM
    hold.release()
    snapshot = shop.snapshot()
    assert snapshot.leased == 1
    assert [f".{stubborn.pid}." in owner for owner in snapshot.leases] == [True]


def test_a_worker_stopped_while_its_server_is_away_ends(shop: Shop, own_server: RedisServer) -> None:
    worker = shop.start()
    shop.send(3)
    watch(shop.books, is_drained, 10)
    own_server.kill()
    until(lambda: worker.lines("redis.lost"), "redis.lost")
    worker.signal(signal.SIGTERM)
    assert shop.ended(worker) == 0
    own_server.start()
    assert shop.snapshot().in_flight == 0


def test_a_worker_stopped_with_a_post_that_cannot_be_settled_ends_in_time(shop: Shop, own_server: RedisServer) -> None:
    hold = Hold()
    shop.slack.faults.add(landed(Held(hold)))
    shop.send(40)
    worker = shop.start()
    hold.wait_for_arrival()
    own_server.kill()
    hold.release()
    until(lambda: worker.lines("redis.lost"), "redis.lost")
    worker.signal(signal.SIGTERM)
    assert shop.ended(worker) == 0
    own_server.start()
    _finish(shop, worker)


@pytest.mark.slow  # a command waits 5 s for its answer
def test_a_worker_stopped_while_its_server_hangs_ends_in_time(shop: Shop, own_server: RedisServer) -> None:
    shop.send(40)
    worker = shop.start()
    until(lambda: len(shop.posted()) >= 5, "some posts")
    own_server.freeze()
    worker.signal(signal.SIGTERM)
    try:
        assert shop.ended(worker) == 0
    finally:
        own_server.cont()
    _finish(shop, worker)


def _finish(shop: Shop, stopped: KillableWorker) -> None:
    """Another worker settles what is left; each event once, and posts are doubled only where one was in flight."""
    shop.snapshot()
    other = shop.start()
    watch(shop.books, is_drained, 20)
    other.signal(signal.SIGTERM)
    assert shop.ended(other) == 0
    told = [line["event_id"] for each in (stopped, other) for line in each.lines("event.settled")]
    assert len(told) == len(set(told))
    assert set(shop.posted()) == set(range(40))
    assert 40 <= len(shop.posted()) <= 41
