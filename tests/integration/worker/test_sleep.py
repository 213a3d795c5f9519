"""When a worker that sleeps takes although nothing has rung: at the end of a lease, for a job of RQ's, after a step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final, cast

import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from dispatcher.app.limits import publish
from dispatcher.app.servers import keys_of
from dispatcher.core.posts import Message, Paused, RateLimitedBySlack, Receipt
from dispatcher.core.states import Candidate, Leased, Started, Waiting
from dispatcher.core.units import US
from dispatcher.producer.blocking import Producer
from dispatcher.settings.environment import Settings
from dispatcher.store.leases import Outbox
from dispatcher.store.operator_controls import Pausing
from dispatcher.store.versions import Unless, Versions
from tests.support.hand_driven_worker import HandDrivenWorker, send
from tests.support.processes import until
from tests.support.servers import Database
from tests.support.stage import handed_out

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


def test_rqs_entry_of_a_worker_with_a_long_lease_outlives_the_pause_between_its_heartbeats(
    redis: Database, tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HandDrivenWorker, "LEASE_S", 3_600.0)
    driven = HandDrivenWorker(redis, 8, tmp_path, clock=time.at_worker, limits=LIMITS, server_clock=time.at_server)
    send(driven, "a")
    assert driven.next() == ["a"]
    assert redis.ttl("rq:worker:ann") > 2 * 3_600 / 3 - 60
    driven.worker.sign_off()


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
    assert handed_out(expired) == ["second"]
    assert time.now_s == pytest.approx(MAX_AGE_S, abs=0.5)


def test_what_expires_after_newer_limits_have_refused_it_is_taken_at_that_instant(
    driven: HandDrivenWorker, redis: Database, time: Time
) -> None:
    """It stood by when they came in force. The token of that has gone to another worker."""
    keys, _ = keys_of(Settings.isolated())
    send(driven, *(f"e{n}" for n in range(6)))
    send(driven, "x", category="brief")
    taken = driven.take()
    driven.worker.dispatch(taken)
    newer = LIMITS.replace("global: {limits: []}", "global: {limits: [2/1h]}")
    publish(Versions(redis, keys), driven.file(newer), "bob", Unless.SAME, lambda *_, **__: None)
    redis.delete(WAKE)
    pass_time(driven, time, 0.5, lambda: redis.delete(WAKE))
    asked_again = driven.worker.next_batch(taken)  # since it holds its slots now
    assert asked_again is not None
    assert (handed_out(asked_again), time.now_s) == (["x"], 0)
    driven.worker.dispatch(asked_again)
    expired = driven.worker.next_batch(asked_again)
    assert expired is not None
    assert handed_out(expired) == ["x"]
    assert time.now_s == pytest.approx(MAX_AGE_S, abs=1)


def test_what_expires_is_taken_at_that_instant_also_after_a_look_for_parked_events_that_others_have_taken(
    redis: Database, tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody sleeps by the instants of such a look."""
    driven = HandDrivenWorker(redis, 16, tmp_path, clock=time.at_worker, limits=LIMITS, server_clock=time.at_server)
    bob = neighbour(redis, time)
    bob.take(0, 0)

    def start_and_wake_bob(
        candidates: Sequence[Candidate], free: int, *, is_last: bool = False, stood_by: bool = False
    ) -> list[Started | Waiting | None]:
        answers = start(candidates, free, is_last=is_last, stood_by=stood_by)
        monkeypatch.setattr(driven.outbox, "start", start)
        assert bob.take(0, 5).batch
        return answers

    Producer(redis).send("news", "x", id="urgent", priority="high", thread="t")  # in a thread, so it does not stand by
    send(driven, *(f"e{n}" for n in range(4)))
    send(driven, "first", "second", category="brief")
    send(driven, *(f"f{n}" for n in range(6)))
    taken = driven.take()
    cast("list[Leased]", taken.batch).sort(key=lambda each: 5 if each.id == "urgent" else int(each.id[0] != "e") * 9)
    driven.worker.dispatch(taken)
    start = driven.outbox.start
    monkeypatch.setattr(driven.outbox, "start", start_and_wake_bob)
    pass_time(driven, time, 0.5, lambda: (bob.renew(), redis.delete(WAKE)))
    pool = driven.worker._post_pool  # noqa: SLF001 - as above
    until(lambda: len(pool._done) == len(pool._in_flight), "the end of the posts")  # noqa: SLF001 - as above
    redis.delete(WAKE)
    expired = driven.worker.next_batch(taken)
    assert expired is not None
    assert handed_out(expired) == ["second"]
    assert time.now_s == pytest.approx(MAX_AGE_S, abs=1)
    driven.bell.meanwhile = lambda: None
    driven.worker.sign_off()


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


def test_what_a_worker_that_stops_would_have_woken_for_is_taken_at_its_instant(
    driven: HandDrivenWorker, redis: Database, time: Time
) -> None:
    bob, due_s = neighbour(redis, time), LEASE_S + 5

    def happens() -> None:
        if time.now_s == 2:
            redis.zadd("{dispatcher}:scheduled", {"later": (START_S + due_s) * US})
            bob.take(0, 4)
        elif time.now_s == 5:
            assert bob.give_back() == 0

    Producer(redis).send("news", "x", id="later", not_before=START_S + 86_400)
    assert driven.next() == ["later"]
    redis.delete(WAKE)
    pass_time(driven, time, 1, happens)
    assert driven.next() == ["later"]
    assert time.now_s == due_s


def test_after_a_resume_by_hand_what_waits_is_taken_at_its_instant(
    driven: HandDrivenWorker, redis: Database, time: Time
) -> None:
    """A take in a pause names no instant at which an event may be posted."""
    pausing, cool_s = Pausing(redis, keys_of(Settings.isolated())[0], clock=time.at_server), 35

    def happens() -> None:
        match time.now_s:
            case 3:
                pausing.pause("*", "olga")
            case 5:
                redis.rpush(WAKE, "1")
            case 10:
                pausing.resume("*")

    driven.desk.reply = lambda _: RateLimitedBySlack(cool_s * US, "ratelimited")
    send(driven, "a")
    taken = driven.take()
    driven.worker.dispatch(taken)
    pass_time(driven, time, 1, happens)
    again = driven.worker.next_batch(taken)
    assert again is not None
    assert handed_out(again) == ["a"]
    assert time.now_s == cool_s + 1, "a second in which the post was answered"


def test_a_worker_that_can_post_nothing_when_an_event_may_go_wakes_another(
    driven: HandDrivenWorker, redis: Database, time: Time
) -> None:
    answered, due_s = threading.Event(), 2

    def reply(message: Message) -> Receipt:
        assert answered.wait(10)
        return Receipt(message.channel, "1.1")

    def happens() -> None:
        time.now_s += 1
        if time.now_s == due_s + 2:
            assert redis.llen(WAKE) == 1
            redis.delete("{dispatcher}:timers")
            answered.set()
            send(driven, "e")
        driven.bell.ring()

    driven.desk.reply = reply
    send(driven, "a", "b", "c", "d")
    taken = driven.take()
    redis.zadd("{dispatcher}:timers", {"another": (START_S + due_s) * US})
    driven.worker.dispatch(taken)
    redis.delete(WAKE)
    driven.bell.meanwhile = happens
    assert driven.next() == ["e"]
    assert time.now_s == due_s + 2


def test_a_ring_of_a_post_that_was_collected_makes_no_busy_worker_take(
    driven: HandDrivenWorker, asked: list[tuple[str, int, int]]
) -> None:
    answered, pool = threading.Event(), driven.worker._post_pool  # noqa: SLF001 - nothing else tells

    def reply(message: Message) -> Receipt:
        assert answered.wait(10)
        return Receipt(message.channel, "1.1")

    def happens() -> None:
        if driven.bell.sleeps == 3:
            answered.set()
            until(lambda: len(pool._done) == len(pool._in_flight), "the end of the posts")  # noqa: SLF001 - as above
            send(driven, "e")
        driven.bell.ring()

    driven.desk.reply = reply
    send(driven, "a", "b", "c", "d")
    taken = driven.take()
    driven.worker.dispatch(taken)
    driven.bell.meanwhile = happens
    following = driven.worker.next_batch(taken)
    assert following is not None
    assert (handed_out(following), driven.bell.sleeps) == (["e"], 3)
    assert len(asked) == 2


def test_a_full_server_takes_the_token_for_another_worker(redis: Database, time: Time) -> None:
    redis.config_set("maxmemory", "1")
    neighbour(redis, time).wake_another()
    redis.config_set("maxmemory", "0")
    assert redis.llen(WAKE) == 1
