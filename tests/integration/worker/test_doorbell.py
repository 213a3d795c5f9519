"""Sleeping without polling: what wakes a worker, and what does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.errors import GateUnavailable
from dispatcher.server.clients import connect
from dispatcher.worker.worker import FIRST_PAUSE_S, Doorbell
from tests.support.servers import Database, RedisServer

LANES = ("rq:queue:q:high", "rq:queue:q", "rq:queue:q:low")
LONG_S = 20.0


def unheard() -> None:
    """No worker of these tests passes on a token, but for one."""
    raise AssertionError("a token was passed on")


@pytest.fixture
def doorbell(redis: Database) -> Iterator[Doorbell]:
    bell = Doorbell(redis, LANES, "{d}:wake", unheard)
    yield bell
    bell.close()


def slept(bell: Doorbell, seconds: float = LONG_S, **how: bool) -> float:
    begin = time.monotonic()
    bell.sleep(seconds, **how)
    return time.monotonic() - begin


def asleep(redis: Database, count: int) -> None:
    """Return when that many connections block on the server."""
    end = time.monotonic() + 10
    while redis.info("clients")["blocked_clients"] != count:
        assert time.monotonic() < end


@pytest.mark.parametrize("lane", LANES)
def test_a_job_on_any_lane_wakes_and_stays_where_it_is(doorbell: Doorbell, redis: Database, lane: str) -> None:
    def push() -> None:
        asleep(redis, 4)
        redis.rpush(lane, "job")

    pusher = threading.Thread(target=push)
    pusher.start()
    assert slept(doorbell) < LONG_S
    pusher.join(10)
    assert redis.lrange(lane, 0, -1) == [b"job"]


def test_a_token_wakes_one_sleeper_of_two(redis: Database) -> None:
    bells = [Doorbell(redis, LANES, "{d}:wake", unheard) for _ in range(2)]
    woken: list[int] = []

    def sleep(n: int) -> None:
        bells[n].sleep(LONG_S)
        woken.append(n)

    threads = [threading.Thread(target=sleep, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    asleep(redis, 8)
    redis.rpush("{d}:wake", "1")
    asleep(redis, 7)
    assert redis.llen("{d}:wake") == 0
    for bell in bells:
        bell.ring()
    for thread in threads:
        thread.join(10)
    assert sorted(woken) == [0, 1]
    for bell in bells:
        bell.close()


def test_a_token_for_which_a_worker_still_waits_that_can_post_nothing_is_passed_on(redis: Database) -> None:
    passed_on: list[str] = []
    bell = Doorbell(redis, LANES, "{d}:wake", lambda: passed_on.append("token"))
    bell.sleep(0)  # now the server holds its BLPOP
    redis.rpush("{d}:wake", "1")
    assert redis.llen("{d}:wake") == 0
    assert not bell.sleep(LONG_S, wake=False)
    assert passed_on == ["token"]
    bell.close()


def test_a_ring_before_the_sleep_is_not_lost(doorbell: Doorbell) -> None:
    doorbell.ring()
    assert slept(doorbell) < LONG_S
    assert slept(doorbell, 0.01) < LONG_S


def test_any_number_of_rings_is_taken_in(doorbell: Doorbell) -> None:
    for _ in range(100_000):
        doorbell.ring()
    assert slept(doorbell) < LONG_S
    assert slept(doorbell, 0.05) >= 0.05


def test_a_suspended_worker_sleeps_through_jobs(doorbell: Doorbell, redis: Database) -> None:
    redis.rpush(LANES[0], "job")
    assert slept(doorbell, 0.05, lanes=False) >= 0.05


def test_a_full_server_that_refuses_to_wait_for_jobs_is_not_asked_again_at_once(
    doorbell: Doorbell, redis: Database
) -> None:
    redis.config_set("maxmemory", "1")
    try:
        assert any(slept(doorbell, 0.05) >= 0.05 for _ in range(2 * len(LANES)))
    finally:
        redis.config_set("maxmemory", "0")


def test_who_came_too_late_pauses_twice_as_long_each_time(doorbell: Doorbell, redis: Database) -> None:
    redis.rpush(LANES[0], "job")
    assert slept(doorbell) < LONG_S
    for pause_s in (FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S):
        begin = time.monotonic()
        doorbell.after_take(has_brought=False)
        doorbell.sleep(LONG_S)
        assert pause_s <= time.monotonic() - begin < LONG_S


def test_who_came_too_late_sleeps_through_a_job_that_another_takes_at_once(redis: Database) -> None:
    now = [1.0]
    bell = Doorbell(redis, LANES, "{d}:wake", unheard, clock=lambda: now[0])
    redis.rpush(LANES[0], "first job")
    bell.sleep(LONG_S)
    redis.delete(LANES[0])
    bell.after_take(has_brought=False)
    now[0] += FIRST_PAUSE_S
    woken = threading.Event()

    def sleep() -> None:
        bell.sleep(LONG_S)
        woken.set()

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    asleep(redis, 4)
    other = threading.Thread(target=lambda: redis.blpop([LANES[0]], 10))
    other.start()
    asleep(redis, 5)
    redis.rpush(LANES[0], "second job")
    other.join(10)
    end = time.monotonic() + 10
    while redis.info("clients")["blocked_clients"] != 4:  # it listens to all lanes again
        now[0] += FIRST_PAUSE_S  # its pause ends, whenever it began
        assert time.monotonic() < end
    assert not woken.is_set()
    redis.rpush(LANES[0], "third job")
    sleeper.join(10)
    assert woken.is_set()
    bell.close()


def test_in_the_pause_all_but_the_lane_is_heard_and_who_gets_something_listens_again(redis: Database) -> None:
    bell = Doorbell(redis, LANES, "{d}:wake", unheard, clock=lambda: 1.0)  # the pause does not end
    redis.rpush(LANES[0], "job")
    bell.sleep(LONG_S)
    bell.after_take(has_brought=False)
    bell.sleep(FIRST_PAUSE_S / 2)
    asleep(redis, 3)
    redis.rpush("{d}:wake", "1")
    bell.sleep(FIRST_PAUSE_S / 2)
    assert redis.llen("{d}:wake") == 0
    redis.delete(LANES[0])
    bell.after_take(has_brought=True)
    bell.sleep(0)
    asleep(redis, 4)
    bell.close()


def test_who_was_woken_by_a_token_or_slept_to_the_end_does_not_pause(doorbell: Doorbell, redis: Database) -> None:
    redis.rpush("{d}:wake", "1")
    for seconds in (LONG_S, 0):
        doorbell.sleep(seconds)
        doorbell.after_take(has_brought=False)
    doorbell.sleep(0)
    asleep(redis, 4)


def test_a_sleep_says_whether_the_server_rang(doorbell: Doorbell, redis: Database) -> None:
    doorbell.ring()
    assert not doorbell.sleep(LONG_S)
    assert not doorbell.sleep(0)
    redis.rpush(LANES[0], "job")
    assert doorbell.sleep(LONG_S)


def test_without_the_server_only_this_process_is_heard(doorbell: Doorbell, redis: Database) -> None:
    redis.rpush(LANES[0], "job")
    assert slept(doorbell, 0.05, server=False) >= 0.05


def test_the_servers_end_wakes_and_the_next_sleep_connects_again(own_server: RedisServer) -> None:
    client: Database = connect(own_server.url)
    bell = Doorbell(client, LANES, "{d}:wake", unheard)

    def kill() -> None:
        asleep(client, 4)
        own_server.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(GateUnavailable):
        bell.sleep(LONG_S)
    killer.join()
    bell.close()
    with pytest.raises(GateUnavailable):
        bell.sleep(LONG_S)
    bell.close()
    own_server.start()
    client.rpush(LANES[1], "job")
    assert slept(bell) < LONG_S
    bell.close()


def test_sleeping_leaves_no_descriptor_behind(redis: Database) -> None:
    bell = Doorbell(redis, LANES, "{d}:wake", unheard)
    bell.sleep(0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        bell.close()
        bell.sleep(0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    bell.close()
