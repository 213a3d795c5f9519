"""When a worker that sleeps takes although nothing has rung: at the end of a lease, for a job of RQ's, after a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from dispatcher.app.servers import keys_of
from dispatcher.core.limits import US
from dispatcher.core.posts import Paused
from dispatcher.producer.blocking import Producer
from dispatcher.settings.environment import Settings
from dispatcher.store.leases import Outbox
from dispatcher.store.operator_controls import Pausing
from tests.support.hand_driven_worker import HandDrivenWorker, send
from tests.support.processes import until
from tests.support.servers import Database

LEASE_S: Final = HandDrivenWorker.LEASE_S
BEAT_S: Final = LEASE_S / 3
START_S: Final = 1_732_100_000
WAKE: Final = "{dispatcher}:wake"
MAX_AGE_S: Final = 7
LIMITS: Final = f"""\
global: {{limits: []}}
channels: {{default: {{pace: none}}}}
defaults: {{limits: []}}
categories: {{brief: {{limits: [1/1h], on_limit: defer, max_age: {MAX_AGE_S}s}}}}
"""


@dataclass
class Time:
    """The worker's clock and the server's, both moved by the test."""

    now_s: float = 0.0
    stepped_s: float = 0.0

    def at_worker(self) -> float:
        return self.now_s

    def at_server(self) -> int:
        return round((START_S + self.now_s + self.stepped_s) * US)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def driven(redis: Database, tmp_path: Path, time: Time) -> Iterator[HandDrivenWorker]:
    built = HandDrivenWorker(redis, 8, tmp_path, clock=time.at_worker, limits=LIMITS, server_clock=time.at_server)
    redis.delete(WAKE)  # new limits have left a token
    yield built
    built.bell.meanwhile = lambda: None
    built.worker.sign_off()


def neighbour(redis: Database, time: Time) -> Outbox:
    """Another worker's view of the server."""
    keys, queue = keys_of(Settings.isolated())
    lease_us = round(LEASE_S * US)
    return Outbox(redis, keys, queue, owner="bob", lease_us=lease_us, remember_us=US, clock=time.at_server)


def pass_time(driven: HandDrivenWorker, time: Time, step_s: float, happens: Callable[[], object]) -> None:
    """With each sleep of the worker its posts end, so many seconds pass, and something happens."""
    pool = driven.worker._post_pool  # noqa: SLF001 - nothing else tells

    def step() -> None:
        until(lambda: len(pool._done) == len(pool._in_flight), "the end of the posts")  # noqa: SLF001 - as above
        time.now_s += step_s
        happens()
        driven.bell.ring()

    driven.bell.meanwhile = step


def test_the_events_of_a_worker_that_is_gone_are_taken_when_its_lease_ends(
    driven: HandDrivenWorker, redis: Database, time: Time, asked: list[tuple[str, int, int]]
) -> None:
    send(driven, "a")
    neighbour(redis, time).take(1, 0)
    pass_time(driven, time, BEAT_S / 2, lambda: None)
    assert driven.next() == ["a"]
    assert (time.now_s, len(asked)) == (LEASE_S, 2)


def test_while_all_workers_live_one_that_sleeps_takes_nothing(
    driven: HandDrivenWorker, redis: Database, time: Time, asked: list[tuple[str, int, int]]
) -> None:
    bob = neighbour(redis, time)
    bob.take(0, 0)

    def happens() -> None:
        bob.renew()
        if time.now_s >= 10 * LEASE_S:
            send(driven, "a")

    pass_time(driven, time, BEAT_S, happens)
    assert driven.next() == ["a"]
    assert len(asked) == 2, "the first take, and that of the event"


def test_a_job_that_rq_schedules_while_a_worker_sleeps_is_taken_in_its_second(
    driven: HandDrivenWorker, redis: Database, time: Time
) -> None:
    due_s = BEAT_S + 3
    queue = Queue("notifications", connection=redis, serializer=JSONSerializer)

    def happens() -> None:
        if time.now_s == 1:
            due = datetime.fromtimestamp(START_S + due_s, UTC)
            queue.enqueue_at(due, "dispatcher.jobs.dispatch", {"category": "news", "text": "x"}, job_id="later")

    pass_time(driven, time, 1, happens)
    assert driven.next() == ["later"]
    assert time.now_s == due_s


def test_after_a_step_of_the_servers_clock_a_worker_takes_with_its_next_heartbeat(
    driven: HandDrivenWorker, time: Time
) -> None:
    Producer(driven.client).send("news", "x", id="later", not_before=START_S + 86_400)
    assert driven.next() == ["later"]
    time.stepped_s = 86_400
    pass_time(driven, time, 1, lambda: None)
    assert driven.next() == ["later"]
    assert time.now_s <= BEAT_S + 3, "two seconds in which no worker is taken for dead, and one of this test"


def test_while_posting_is_paused_an_event_tries_at_each_instant_though_others_wait_since_before(
    driven: HandDrivenWorker, time: Time
) -> None:
    """What waits is due, and may not be posted. So no instant that is set then is the first, and nothing rings."""
    driven.desk.reply = lambda _: Paused("invalid_auth", "the token is not valid")
    send(driven, "a", "b")
    assert driven.next() == ["a", "b"]
    pass_time(driven, time, 0.25, lambda: None)
    tries = []
    for _ in range(4):
        assert len(driven.next()) == 1
        tries.append(time.now_s)
    gaps_s = [later - earlier for earlier, later in pairwise(tries)]
    assert gaps_s == pytest.approx([2, 4, 8], abs=0.5)


def test_what_expires_while_it_waits_is_taken_at_that_instant(driven: HandDrivenWorker, time: Time) -> None:
    """Its room comes much later. The worker has put it there itself, and sleeps."""
    send(driven, "first", "second", category="brief")
    taken = driven.take()
    driven.worker.dispatch(taken)
    driven.client.delete(WAKE)
    pass_time(driven, time, 0.5, lambda: None)
    expired = driven.worker.next_batch(taken)
    assert expired is not None
    assert driven.ids_of(expired) == ["second"]
    assert time.now_s == pytest.approx(MAX_AGE_S, abs=0.5)


@pytest.mark.parametrize("happening", ["it is scheduled", "it expires", "it is given back"])
def test_what_another_was_woken_for_that_hangs_is_taken_after_a_heartbeat(
    driven: HandDrivenWorker, time: Time, happening: str
) -> None:
    bob = neighbour(driven.client, time)
    send(driven, "a")
    assert len(bob.take(1, 0).batch) == 1

    def happens() -> None:
        if time.now_s == 5:
            match happening:
                case "it is scheduled":
                    driven.client.zadd("{dispatcher}:scheduled", {"later": time.at_server()})
                case "it expires":
                    driven.client.zadd("{dispatcher}:parked", {"later": time.at_server()})
                case _:
                    bob.give_back()

    Producer(driven.client).send("news", "x", id="later", not_before=START_S + 86_400)
    assert driven.next() == ["later"]
    driven.client.delete(WAKE)
    hangs = driven.client.connection_pool.make_connection()
    hangs.connect()
    hangs.send_command("BLPOP", WAKE, 0)
    pass_time(driven, time, 1, happens)
    assert driven.next() == ["a" if happening == "it is given back" else "later"]
    assert time.now_s == pytest.approx(BEAT_S, abs=1)
    hangs.disconnect()


def test_a_heartbeat_takes_nothing_for_what_may_not_be_posted(
    driven: HandDrivenWorker, redis: Database, time: Time, asked: list[tuple[str, int, int]]
) -> None:
    """All that waits is due, while everything is paused by hand."""

    def happens() -> None:
        if time.now_s == BEAT_S:
            asked.clear()
        elif time.now_s == 10 * LEASE_S:
            send(driven, "b")

    keys, _ = keys_of(Settings.isolated())
    send(driven, "a")
    taken = driven.take()
    assert Pausing(redis, keys).pause("*", "olga")
    driven.worker.dispatch(taken)
    driven.client.delete(WAKE)
    pass_time(driven, time, BEAT_S, happens)
    assert driven.next() == ["b"]
    assert [call for call, *_ in asked] == ["take"]
