"""Waiting for a slot: at the instant it is free, in the order of arrival, without asking in between.

What happened when is read from the server: a second scope of each request keeps the instant of every admission.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Final

import pytest
from redis import BlockingConnectionPool, ConnectionPool, Redis

from dispatcher.core.limits import Admitted, Scope
from dispatcher.core.units import US
from dispatcher.errors import GateRefused, GateUnavailable, RateLimited
from dispatcher.limiter import Limiter
from dispatcher.limiter.wire import Calls, WaitingRequest, read_turns
from dispatcher.server.clients import connect
from dispatcher.server.keys import Keys
from dispatcher.server.scripts import read_script
from tests.support.credentials import Credentials
from tests.support.limiters import KEYS, PATIENCE_S, bells, script_calls
from tests.support.processes import until
from tests.support.servers import Database, RedisServer

RECORD: Final = Scope("record", "1000/1h")
"""Keeps the instants of all admissions."""

ANSWER_S: Final = 1
INTERRUPTED: Final = 42


def scope(limit: str) -> Scope:
    return Scope("user", limit)


def admissions(redis: Database) -> dict[str, int]:
    """Id -> instant of its admission, the first one first."""
    return {id_.decode(): int(at_us) for id_, at_us in redis.zrange(KEYS.scope("record"), 0, -1, withscores=True)}


def await_line(redis: Database, length: int) -> None:
    until(lambda: redis.zcard(KEYS.waiters("user")) == length or None, f"{length} in the line", PATIENCE_S)


def in_thread(run: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread | BaseProcess) -> None:
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def wait_in_process(url: str, user: Scope, id_: str) -> None:
    with Redis.from_url(url) as client:
        try:
            Limiter(client, namespace="shop").acquire((user, RECORD), id_)
        except KeyboardInterrupt:
            sys.stderr.close()
            os._exit(INTERRUPTED)
    os._exit(0)


@contextmanager
def process(url: str, user: Scope, id_: str) -> Iterator[BaseProcess]:
    """A process of its own that waits."""
    child = get_context("fork").Process(target=wait_in_process, args=(url, user, id_))
    child.start()
    try:
        yield child
    finally:
        child.kill()
        child.join()


def test_a_waiter_is_admitted_at_the_instant_at_which_there_is_room(limiter: Limiter, redis: Database) -> None:
    user = scope("1/400ms")
    limiter.acquire((user, RECORD), "first")
    redis.config_resetstat()
    assert limiter.acquire((user, RECORD), "second") == Admitted("second")
    instants = admissions(redis)
    assert 0 <= instants["second"] - instants["first"] - 400_000 < US
    # It asked, joined the line, and came at its instant; two clocks may be a few microseconds apart.
    assert 3 <= script_calls(redis) <= 4


def test_a_caller_that_finds_room_does_not_stand_in_line(limiter: Limiter, redis: Database) -> None:
    limiter.try_acquire(scope("2/1h"))
    redis.config_resetstat()
    limiter.acquire(scope("2/1h"))
    assert script_calls(redis) == 1
    assert redis.keys() == [KEYS.scope("user").encode()]
    assert "cmdstat_subscribe" not in redis.info("commandstats")


def test_at_the_timeout_a_waiter_is_told_and_leaves_the_line(limiter: Limiter, redis: Database) -> None:
    limiter.acquire(scope("1/1h"))
    with pytest.raises(RateLimited) as caught:
        limiter.acquire(scope("1/1h"), timeout=0.2)
    assert (caught.value.scope, caught.value.limit) == ("user", "1/1h")
    assert 3_500 < caught.value.retry_after < 3_600
    assert redis.keys() == [KEYS.scope("user").encode()]
    assert redis.zcard(KEYS.scope("user")) == 1


@pytest.mark.parametrize("timeout", [PATIENCE_S, 10**400], ids=["seconds", "1e400"])
def test_a_timeout_that_is_longer_than_the_wait_changes_nothing(limiter: Limiter, timeout: int) -> None:
    limiter.acquire(scope("1/200ms"))
    assert limiter.acquire(scope("1/200ms"), timeout=timeout) == Admitted()


def test_the_guard_waits_as_long_as_it_is_told(limiter: Limiter, redis: Database) -> None:
    limiter.acquire(scope("1/200ms"))
    with limiter.ensure(scope("1/200ms"), "a", timeout=PATIENCE_S):
        assert redis.zrange(KEYS.scope("user"), 0, -1)[-1] == b"a"


def test_a_waiter_whose_client_sends_its_first_call_twice_is_not_behind_itself(redis: Database) -> None:
    """As the client of a cluster may."""
    user, script = scope("1/1h"), redis.register_script(read_script("wait"))
    Limiter(redis, namespace="shop").acquire(user, "a")
    call = Calls("shop").wait([WaitingRequest(("b", (user,)), "bell:1", "join")])
    with redis.pubsub() as bell:
        bell.subscribe(KEYS.bells + "bell")
        until(lambda: bell.get_message(timeout=ANSWER_S), "a subscription", PATIENCE_S)
        first, second = (read_turns(script(call.keys, call.arguments(None)), call)[0] for _ in range(2))
    assert first.denied is not None
    assert second.denied is not None
    assert second.arrived == first.arrived
    assert second.denied.retry_after_us <= first.denied.retry_after_us


def test_a_release_wakes_the_first_of_the_line(limiter: Limiter, redis: Database) -> None:
    user = scope("2/1h")
    limiter.acquire((user, RECORD), "a")
    limiter.acquire((user, RECORD), "b")
    waiting = []
    for n in range(4):
        waiting.append(in_thread(lambda n=n: limiter.acquire((user, RECORD), f"waiter{n}")))  # type: ignore[misc] # mypy on defaults of lambdas
        await_line(redis, n + 1)
    for n, id_ in enumerate(("a", "b", "waiter1", "waiter0")):
        assert limiter.release(user, id_)
        until(lambda n=n: f"waiter{n}" in admissions(redis), f"waiter{n}", PATIENCE_S)  # type: ignore[misc] # as above
    for thread in waiting:
        ended(thread)
    assert list(admissions(redis)) == ["a", "b", "waiter0", "waiter1", "waiter2", "waiter3"]
    assert redis.exists(KEYS.waiters("user"), KEYS.promises("user")) == 0


def test_a_waiter_for_several_slots_is_woken_when_the_last_of_these_is_given_back(
    limiter: Limiter, redis: Database
) -> None:
    user = scope("3/1h")
    for id_ in "abc":
        limiter.acquire(user, id_)
    thread = in_thread(lambda: limiter.acquire(user, "several", cost=2))
    await_line(redis, 1)
    assert limiter.release(user, "a")
    with pytest.raises(RateLimited):
        limiter.acquire(user, timeout=0)
    assert limiter.release(user, "b")
    ended(thread)
    assert redis.zcard(KEYS.scope("user")) == 3
    assert limiter.release(user, "several", cost=2)
    assert redis.zrange(KEYS.scope("user"), 0, -1) == [b"c"]


def test_a_reset_wakes_who_waits(limiter: Limiter, redis: Database) -> None:
    user = scope("2/1h")
    for id_ in "ab":
        limiter.acquire(user, id_)
    waiting = []
    for n in range(2):
        waiting.append(in_thread(lambda n=n: limiter.acquire((user, RECORD), f"waiter{n}")))  # type: ignore[misc] # mypy on defaults of lambdas
        await_line(redis, n + 1)
    assert limiter.reset(user) == 1
    for thread in waiting:
        ended(thread)
    assert sorted(admissions(redis)) == ["waiter0", "waiter1"], "there is room for both at once"


def test_a_wait_of_months_is_slept_through_and_cut_short_by_a_release(limiter: Limiter, redis: Database) -> None:
    """Longer than a socket can wait at once."""
    limiter.acquire(scope("1/60d"), "a")
    thread = in_thread(lambda: limiter.acquire(scope("1/60d"), "b"))
    await_line(redis, 1)
    assert limiter.release(scope("1/60d"), "a")
    ended(thread)
    assert redis.zrange(KEYS.scope("user"), 0, -1) == [b"b"]


def test_a_newcomer_stands_behind_who_waits_and_one_who_only_tries_does_not(limiter: Limiter, redis: Database) -> None:
    user = scope("1/1h")
    limiter.acquire(user, "a")
    thread = in_thread(lambda: limiter.acquire((user, RECORD), "waiter"))
    await_line(redis, 1)
    with pytest.raises(RateLimited):
        limiter.acquire((user, RECORD), "newcomer", timeout=0)
    assert limiter.release(user, "a")
    ended(thread)
    assert list(admissions(redis)) == ["waiter"]


@pytest.mark.parametrize("count", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_waiting_processes_get_their_turn_with_four_calls_each(redis_url: str, redis: Database, count: int) -> None:
    user = scope(f"{count}/2s")
    limiter = Limiter(redis, namespace="shop")
    assert limiter.try_acquire_many([(user, RECORD)] * count).count(Admitted()) == count
    first = min(admissions(redis).values())
    redis.connection_pool.disconnect()
    redis.config_resetstat()
    context = get_context("fork")
    children = [context.Process(target=wait_in_process, args=(redis_url, user, f"id{n}")) for n in range(count)]
    for child in children:
        child.start()
    for child in children:
        ended(child)
        assert child.exitcode == 0
    instants = [at_us for id_, at_us in admissions(redis).items() if id_.startswith("id")]
    assert len(instants) == count
    assert min(instants) >= first + 2 * US
    assert script_calls(redis) <= 4 * count
    assert redis.exists(KEYS.waiters("user"), KEYS.promises("user")) == 0


def test_many_waiters_for_few_slots_keep_the_limit_and_their_order(limiter: Limiter, redis: Database) -> None:
    user, threads = scope("5/300ms"), []
    for n in range(25):
        threads.append(in_thread(lambda n=n: limiter.acquire((user, RECORD), f"id{n:02}")))  # type: ignore[misc] # mypy on defaults of lambdas
        until(
            lambda n=n: redis.zcard(KEYS.waiters("user")) + redis.zcard(KEYS.scope("record")) > n or None,  # type: ignore[misc] # as above
            f"waiter {n}",
            PATIENCE_S,
        )
    for thread in threads:
        ended(thread)
    instants = admissions(redis)
    assert len(instants) == 25
    for id_, at_us in instants.items():
        held = sum(at_us - 300_000 < other_us <= at_us for other_us in instants.values())
        assert held <= 5
        waiting = sum(other < id_ and other_us > at_us for other, other_us in instants.items())
        assert held + waiting <= 5, f"{id_} took the slot of one who came earlier: {instants}"


def test_a_waiter_that_is_killed_does_not_keep_what_is_given_back(
    redis_url: str, limiter: Limiter, redis: Database
) -> None:
    user = scope("1/1h")
    limiter.acquire(user, "a")
    with process(redis_url, user, "victim") as victim:
        await_line(redis, 1)
        thread = in_thread(lambda: limiter.acquire((user, RECORD), "next"))
        await_line(redis, 2)
        victim.kill()
        victim.join()
        assert limiter.release(user, "a")
        ended(thread)
    assert list(admissions(redis)) == ["next"]


def enter_dead(redis: Database, count: int) -> None:
    """So many callers stand in the line whose process was killed."""
    seconds, micros = redis.time()
    arrived_us = seconds * US + micros
    tokens = {f"killed:{n}": arrived_us + n for n in range(count)}
    redis.zadd(KEYS.waiters("user"), tokens)
    redis.zadd(KEYS.promises("user"), dict.fromkeys(tokens, arrived_us + 3600 * US))


def test_a_slot_that_is_given_back_goes_past_a_thousand_who_were_killed(limiter: Limiter, redis: Database) -> None:
    user = scope("1/1h")
    bell = KEYS.bells + "killed"
    limiter.acquire(user, "a")
    with redis.pubsub() as killed:
        killed.subscribe(bell)
        until(lambda: killed.get_message(timeout=ANSWER_S), "a subscription", PATIENCE_S)
        enter_dead(redis, 1000)
        thread = in_thread(lambda: limiter.acquire((user, RECORD), "next"))
        await_line(redis, 1001)
    until(lambda: dict(redis.pubsub_numsub(bell))[bell.encode()] == 0 or None, "nobody at the bell", PATIENCE_S)
    assert limiter.release(user, "a")
    ended(thread)
    assert list(admissions(redis)) == ["next"]


def test_one_call_takes_a_bounded_number_of_killed_waiters_out(limiter: Limiter, redis: Database) -> None:
    user = scope("1/1h")
    limiter.acquire(user, "a")
    enter_dead(redis, 1000)
    with pytest.raises(RateLimited) as refused:
        limiter.acquire(user, "b", timeout=0)
    assert 3500 < refused.value.retry_after <= 3600, "nobody alive is before it"
    assert redis.zcard(KEYS.waiters("user")) == 900


def test_very_many_killed_waiters_keep_no_room_from_who_does_not_wait(limiter: Limiter, redis: Database) -> None:
    enter_dead(redis, 6000)
    assert limiter.acquire(scope("1/1h"), "a", timeout=0) == Admitted("a")


def test_a_timeout_ends_the_wait_behind_very_many_killed_waiters(limiter: Limiter, redis: Database) -> None:
    enter_dead(redis, 20_000)
    with pytest.raises(RateLimited):
        limiter.acquire(scope("1/1h"), "a", timeout=0.000_001)
    assert redis.zcard(KEYS.waiters("user")) == 19_900, "one call was made"


def test_a_waiter_that_does_not_come_holds_up_the_next_for_a_second(
    redis_url: str, limiter: Limiter, redis: Database
) -> None:
    user = scope("1/3s")
    limiter.acquire((user, RECORD), "a")
    with process(redis_url, user, "frozen") as frozen:
        await_line(redis, 1)
        os.kill(frozen.pid or 0, signal.SIGSTOP)
        thread = in_thread(lambda: limiter.acquire((user, RECORD), "next"))
        ended(thread)
        instants = admissions(redis)
        assert 4 * US <= instants["next"] - instants["a"] < 6 * US, "its own turn would have been after six seconds"


def test_a_waiter_that_is_frozen_keeps_a_slot_that_is_given_back_for_a_second(
    redis_url: str, limiter: Limiter, redis: Database
) -> None:
    user = scope("1/1h")
    limiter.acquire(user, "a")
    with process(redis_url, user, "frozen") as frozen:
        await_line(redis, 1)
        os.kill(frozen.pid or 0, signal.SIGSTOP)
        thread = in_thread(lambda: limiter.acquire((user, RECORD), "next"))
        await_line(redis, 2)
        seconds, micros = redis.time()
        assert limiter.release(user, "a")
        ended(thread)
        assert US <= admissions(redis)["next"] - seconds * US - micros < 3 * US


def test_an_interrupted_waiter_leaves_the_line(redis_url: str, limiter: Limiter, redis: Database) -> None:
    user = scope("1/1h")
    limiter.acquire(user, "a")
    with process(redis_url, user, "b") as child:
        await_line(redis, 1)
        os.kill(child.pid or 0, signal.SIGINT)
        ended(child)
        assert child.exitcode == INTERRUPTED
    assert redis.keys() == [KEYS.scope("user").encode()]


def test_an_interrupt_stays_one_when_the_server_does_not_answer(own_server: RedisServer) -> None:
    user = scope("1/1h")

    def wait() -> None:
        with connect(own_server.url, timeout_s=0.3) as client:
            try:
                Limiter(client, namespace="shop").acquire(user)
            except BaseException as error:  # noqa: BLE001 - which it is, is the question
                os._exit(INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1)

    with connect(own_server.url) as client:
        Limiter(client, namespace="shop").acquire(user, "a")
        child = get_context("fork").Process(target=wait)
        child.start()
        await_line(client, 1)
        own_server.freeze()
        os.kill(child.pid or 0, signal.SIGINT)
        ended(child)
        own_server.cont()
    assert child.exitcode == INTERRUPTED


def test_a_waiter_is_told_that_the_server_has_gone(own_server: RedisServer) -> None:
    user, raised = scope("1/1h"), list[BaseException]()

    def wait() -> None:
        with connect(own_server.url, timeout_s=1) as client:
            try:
                Limiter(client, namespace="shop").acquire(user)
            except GateUnavailable as error:
                raised.append(error)

    with connect(own_server.url) as client:
        Limiter(client, namespace="shop").acquire(user)
        thread = in_thread(wait)
        await_line(client, 1)
    own_server.kill()
    ended(thread)
    assert len(raised) == 1


def test_callers_can_wait_again_after_the_listener_met_an_error_of_the_application(own_server: RedisServer) -> None:
    user, credentials = scope("1/200ms"), Credentials()
    with Redis.from_url(own_server.url, credential_provider=credentials) as client:
        limiter = Limiter(client, namespace="shop")
        limiter.acquire(user)
        credentials.fails = True
        with pytest.raises(LookupError, match="the vault is away"):
            limiter.acquire(scope("1/1h"))
        credentials.fails = False
        for _ in range(2):
            limiter.acquire(user, timeout=PATIENCE_S)


def test_callers_can_wait_again_after_the_listener_could_not_start(redis_url: str) -> None:
    user = scope("1/200ms")
    with Redis.from_url(redis_url) as client:
        limiter = Limiter(client, namespace="shop")
        limiter.acquire(user)
        threading.stack_size(2**60)
        try:
            with pytest.raises(RuntimeError, match="can't start new thread"):
                limiter.acquire(user)
        finally:
            threading.stack_size(0)
        for _ in range(2):
            limiter.acquire(user, timeout=PATIENCE_S)


@pytest.fixture
def silence(redis: Database) -> None:
    """Nobody listens any more for waiters of the test before."""
    until(lambda: bells(redis) == [], "the end of earlier connections", PATIENCE_S)


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("kind", [ConnectionPool, BlockingConnectionPool])
def test_a_hundred_waiting_threads_need_one_connection_and_none_of_the_pool(
    redis_url: str, redis: Database, kind: type[ConnectionPool]
) -> None:
    """A pool of two, both of which the application has taken."""
    options = {"timeout": 1} if kind is BlockingConnectionPool else {}
    pool = kind.from_url(redis_url, max_connections=2, **options)
    taken = [pool.get_connection() for _ in range(2)]
    user, admitted, limiter = scope("50/30m"), list[Admitted](), Limiter(redis, namespace="shop")
    limiter.try_acquire_many([user] * 50)
    limiters = [Limiter(Redis(connection_pool=pool), namespace="shop") for _ in range(2)]
    threads = [in_thread(lambda n=n: admitted.append(limiters[n % 2].acquire(user))) for n in range(100)]  # type: ignore[misc] # mypy on defaults of lambdas
    until(lambda: redis.zcard(KEYS.waiters("user")) == 100, "all in the line", PATIENCE_S)
    assert len(bells(redis)) == 1
    for number in (50, 100):
        limiter.reset(user)
        until(lambda number=number: len(admitted) == number, "all that the limit allows", PATIENCE_S)  # type: ignore[misc] # as above
    for thread in threads:
        ended(thread)
    until(lambda: bells(redis) == [], "the end of the last connection")
    for each in taken:
        pool.release(each)
    pool.disconnect()


@pytest.mark.usefixtures("silence")
def test_waiters_of_several_namespaces_are_heard_over_one_connection(redis: Database) -> None:
    user = scope("1/1h")
    limiters = {name: Limiter(redis, namespace=name) for name in ("shop", "other")}
    for limiter in limiters.values():
        limiter.acquire(user, "a")
    threads = [in_thread(lambda limiter=limiter: limiter.acquire(user, "b")) for limiter in limiters.values()]  # type: ignore[misc] # mypy on defaults of lambdas
    for name in limiters:
        until(lambda name=name: redis.zcard(Keys(name).waiters("user")), name, PATIENCE_S)  # type: ignore[misc] # as above
    assert len(bells(redis)) == 1
    for limiter in limiters.values():
        assert limiter.release(user, "a")
    for thread in threads:
        ended(thread)


def test_a_caller_that_waits_again_and_again_listens_on_one_connection(limiter: Limiter, redis: Database) -> None:
    before = redis.info("stats")["total_connections_received"]
    for _ in range(6):
        limiter.acquire(scope("1/50ms"))
    assert redis.info("stats")["total_connections_received"] <= before + 2  # one asks, one listens


def test_waiters_come_at_their_instants_though_nobody_can_be_heard_any_more(own_server: RedisServer) -> None:
    """A connection that broke cannot be opened anew: the server has no room for another one."""
    user = scope("1/3s")
    with own_server.client() as redis, own_server.client() as client:
        limiter = Limiter(client, namespace="shop")
        limiter.acquire((user, RECORD), "a")
        thread = in_thread(lambda: limiter.acquire((user, RECORD), "b"))
        await_line(redis, 1)
        redis.config_set("maxclients", len(redis.client_list()) - 1)
        asked = script_calls(redis)
        assert redis.client_kill_filter(_type="pubsub") == 1
        ended(thread)
        assert script_calls(redis) <= asked + 3, "it asked once as the bell broke, and at its instant"
        instants = admissions(redis)
        assert 3 * US <= instants["b"] - instants["a"] < 4 * US
        redis.config_set("maxclients", 100)


@pytest.mark.usefixtures("silence")
def test_a_waiter_whose_bell_is_cut_off_is_heard_again(limiter: Limiter, redis: Database) -> None:
    user = scope("1/1h")
    limiter.acquire(user, "a")
    thread = in_thread(lambda: limiter.acquire(user, "b"))
    await_line(redis, 1)
    (cut,) = bells(redis)
    asked = script_calls(redis)
    assert redis.client_kill_filter(_id=cut) == 1
    until(lambda: bells(redis) not in ([], [cut]), "another connection", PATIENCE_S)
    until(lambda: script_calls(redis) >= asked + 2, "the waiter to take its place again", PATIENCE_S)
    assert limiter.release(user, "a")
    ended(thread)


def test_a_waiter_before_a_server_that_does_not_confirm_its_bell_is_told(redis_url: str, redis: Database) -> None:
    user = scope("1/1h")
    redis.acl_setuser("deaf", enabled=True, nopass=True, commands=["+@all"], keys=["*"], reset_channels=True)
    try:
        with Redis.from_url(redis_url, username="deaf", password="any") as client:
            limiter = Limiter(client, namespace="shop")
            limiter.acquire(user)
            with pytest.raises(GateRefused, match=r"^Redis refused the limiter's call: .*channel"):
                limiter.acquire(user)
            assert redis.exists(KEYS.waiters("user")) == 0
    finally:
        redis.acl_deluser("deaf")


@pytest.mark.usefixtures("silence")
def test_a_child_does_not_sound_as_if_its_parent_lived(redis_url: str, redis: Database) -> None:
    """The child of a waiting process, made without exec, has its open files."""
    user = scope("1/1h")
    Limiter(redis, namespace="shop").acquire(user, "a")
    reads, writes = os.pipe()
    stays, goes = os.pipe()

    def wait() -> None:
        os.close(goes)
        with Redis.from_url(redis_url) as client:
            in_thread(lambda: Limiter(client, namespace="shop").acquire(user, "b"))
            await_line(client, 1)
            if os.fork() == 0:
                os.read(stays, 1)  # until the test is over
                os._exit(0)
            os.write(writes, b"!")
            signal.pause()

    parent = get_context("fork").Process(target=wait)
    parent.start()
    try:
        assert os.read(reads, 1) == b"!"
        assert len(bells(redis)) == 1
        parent.kill()
        parent.join()
        until(lambda: bells(redis) == [], "the end of the connection", PATIENCE_S)
    finally:
        for each in (reads, writes, stays, goes):
            os.close(each)


@pytest.mark.usefixtures("silence")
def test_a_child_waits_by_itself(limiter: Limiter, redis: Database) -> None:
    user = scope("1/1h")
    limiter.acquire(user, "a")
    thread = in_thread(lambda: limiter.acquire(user, "b"))
    await_line(redis, 1)
    child = get_context("fork").Process(target=lambda: os._exit(limiter.acquire((user, RECORD), "c").id != "c"))
    child.start()
    await_line(redis, 2)
    assert len(bells(redis)) == 2
    assert limiter.release(user, "a")
    ended(thread)
    assert limiter.release(user, "b")
    ended(child)
    assert (child.exitcode, list(admissions(redis))) == (0, ["c"])
