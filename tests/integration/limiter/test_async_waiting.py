"""Tasks that wait for a slot: in their order, together in few calls, and gone from the line when they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import redis.asyncio

from dispatcher.core.limits import Admitted
from dispatcher.errors import GateRefused, GateUnavailable, RateLimited
from dispatcher.limiter import AsyncLimiter
from dispatcher.limiter.concurrent import QUIT_S
from dispatcher.server.keys import Keys
from tests.support.credentials import Credentials
from tests.support.limiters import KEYS, PATIENCE_S, Run, await_others, bells, redis_asyncio, scope, script_calls
from tests.support.servers import Database, RedisServer

USER: Final = scope("user", "5/1h")


async def in_line(redis: Database, length: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while redis.zcard(KEYS.waiters("user")) != length:  # noqa: ASYNC110 - what is awaited is on the server
            await asyncio.sleep(0.005)


def test_waiting_tasks_are_admitted_in_order_with_few_calls(run: Run, redis: Database) -> None:
    user, record = scope("user", "10/400ms"), scope("record", "1000/1h")

    async def body(limiter: AsyncLimiter) -> None:
        await limiter.acquire((user, record), "first")
        redis.config_resetstat()
        await asyncio.gather(*[limiter.acquire((user, record), f"id{n:02}") for n in range(50)])

    run(body)
    rows = [(id_.decode(), int(at_us)) for id_, at_us in redis.zrange(KEYS.scope("record"), 0, -1, withscores=True)]
    instants = [at_us for _, at_us in rows]
    assert len(rows) == 51
    assert all(later - earlier >= 400_000 for earlier, later in zip(instants, instants[10:], strict=False))
    waiting = sorted(id_ for id_, _ in rows[1:])
    for id_, at_us in rows[1:]:
        passed_by = waiting.index(id_)
        waiting.remove(id_)
        used = sum(at_us - 400_000 < each <= at_us for each in instants)
        assert used + passed_by <= 10, f"{id_} took a slot that belonged to one of {waiting[:passed_by]}"
    assert script_calls(redis) <= 60  # 50 tasks; each alone would have made three calls or four
    assert redis.exists(KEYS.waiters("user"), KEYS.promises("user")) == 0


def test_releases_wake_the_tasks_in_their_order(run: Run, redis: Database) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        user, admitted = scope("user", "1/1h"), list[int]()
        await limiter.acquire(user, "0")

        async def wait(n: int) -> None:
            await limiter.acquire(user, str(n))
            admitted.append(n)

        tasks = [asyncio.create_task(wait(n)) for n in range(1, 13)]  # all join in one call
        await in_line(redis, 12)
        for n in range(12):
            assert await limiter.release(user, str(n))
            await asyncio.wait(tasks[n : n + 1])
        assert admitted == list(range(1, 13))

    run(body)


def test_a_task_is_told_at_its_timeout_and_leaves_the_line(run: Run, redis: Database) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        await limiter.try_acquire_many([USER] * 5)
        for timeout in (0, 0.1):
            with pytest.raises(RateLimited):
                await limiter.acquire(USER, timeout=timeout)
        with pytest.raises(RateLimited):
            async with limiter.ensure(USER, timeout=0.1):
                pass

    run(body)
    assert redis.keys() == [KEYS.scope("user").encode()]


def test_a_timeout_ends_the_wait_of_a_task_behind_very_many_killed_waiters(run: Run, redis: Database) -> None:
    instants = {f"killed:{n}": (1 << 52) + n for n in range(20_000)}
    redis.zadd(KEYS.waiters("user"), instants)
    redis.zadd(KEYS.promises("user"), instants)

    async def body(limiter: AsyncLimiter) -> None:
        with pytest.raises(RateLimited):
            await limiter.acquire(USER, "a", timeout=0.000_001)

    run(body)
    assert redis.zcard(KEYS.waiters("user")) == 19_900, "one call was made"


def test_very_many_killed_waiters_keep_no_room_from_a_task_that_does_not_wait(run: Run, redis: Database) -> None:
    instants = {f"killed:{n}": (1 << 52) + n for n in range(6000)}
    arrivals = {token: n for n, token in enumerate(instants)}
    redis.zadd(KEYS.waiters("user"), arrivals)
    redis.zadd(KEYS.promises("user"), instants)

    async def body(limiter: AsyncLimiter) -> None:
        assert await limiter.acquire(USER, "a", timeout=0) == Admitted("a")

    run(body)


def test_a_line_of_another_type_is_met_before_anything_of_the_call_is_charged(run: Run, redis: Database) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        await limiter.acquire(USER, "a")
        redis.set(KEYS.waiters("strange"), "not ours")
        before = redis.dump(KEYS.scope("user"))
        answers = await asyncio.gather(limiter.acquire((USER, scope("strange", "5/1h"))), return_exceptions=True)
        assert [type(answer) for answer in answers] == [GateRefused]
        assert redis.dump(KEYS.scope("user")) == before

    run(body)


def test_a_cancelled_task_leaves_the_line_and_the_next_moves_up(run: Run, redis: Database) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        user = scope("user", "1/1h")
        await limiter.acquire(user, "a")
        first = asyncio.create_task(limiter.acquire(user, "b"))
        await in_line(redis, 1)
        second = asyncio.create_task(limiter.acquire(user, "c"))
        await in_line(redis, 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert redis.zcard(KEYS.waiters("user")) == 1
        assert await limiter.release(user, "a")
        assert await second == Admitted("c")

    run(body)
    assert redis.exists(KEYS.waiters("user"), KEYS.promises("user")) == 0


@pytest.mark.parametrize("turns", range(12))
def test_a_task_may_be_cancelled_at_any_point(run: Run, redis: Database, turns: int) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        user = scope("user", "1/1h")
        await limiter.acquire(user, "a")
        task = asyncio.create_task(limiter.acquire(user, "b"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await limiter.try_acquire(scope("other", "1/1h")) == Admitted(), "those who come later are served"
        await in_line(redis, 0)

    run(body)


ONE: Final = scope("user", "1/1h")


@asynccontextmanager
async def waiting_at_a_frozen_server(
    server: RedisServer,
) -> AsyncGenerator[tuple[AsyncLimiter, asyncio.Task[Admitted]], None]:
    """A limiter, and a task that waits in line for ``ONE``, when the server freezes; it goes on before the end."""
    async with redis_asyncio(server.url) as client:
        limiter = AsyncLimiter(client, namespace="shop")
        await limiter.acquire(ONE)
        waits = asyncio.create_task(limiter.acquire(ONE))
        with server.client() as watcher:
            await in_line(watcher, 1)
        server.freeze()
        yield limiter, waits
        server.cont()
        await await_others()


def test_a_cancelled_task_ends_though_the_task_that_sends_its_question_is_cancelled_too(
    own_server: RedisServer,
) -> None:
    """``asyncio.run`` cancels all tasks at its end, in any order."""

    async def main() -> None:
        async with waiting_at_a_frozen_server(own_server) as (limiter, leaves):
            asks = asyncio.create_task(limiter.acquire(ONE))
            await asyncio.sleep(0)
            others = asyncio.all_tasks() - {leaves, asyncio.current_task()}
            for task in (leaves, *others):
                task.cancel()
            await asyncio.sleep(0)
            own_server.cont()
            await asyncio.wait({leaves, asks}, timeout=QUIT_S / 2)
            assert leaves.cancelled()
            assert asks.cancelled()
            with own_server.client() as watcher:
                await in_line(watcher, 0)

    asyncio.run(main())


def test_a_task_is_cancelled_within_a_second_where_the_server_does_not_answer(own_server: RedisServer) -> None:
    async def main() -> None:
        async with waiting_at_a_frozen_server(own_server) as (_, waits):
            waits.cancel()
            done, _ = await asyncio.wait({waits}, timeout=2 * QUIT_S)
            assert done == {waits}

    asyncio.run(main())


def test_tasks_can_wait_again_after_the_listener_met_an_error_of_the_application(
    own_server: RedisServer,
) -> None:
    async def main() -> None:
        credentials, user = Credentials(), scope("user", "1/200ms")
        async with redis.asyncio.Redis.from_url(own_server.url, credential_provider=credentials) as client:
            limiter = AsyncLimiter(client, namespace="shop")
            await limiter.acquire(user)
            credentials.fails = True
            with pytest.raises((LookupError, GateUnavailable), match="the vault is away"):
                await limiter.acquire(scope("user", "1/1h"))
            credentials.fails = False
            for _ in range(2):
                await limiter.acquire(user, timeout=PATIENCE_S)
        await await_others()

    asyncio.run(main())


def test_a_task_is_told_that_its_bell_met_a_timeout_of_the_application(own_server: RedisServer) -> None:
    class OfTheApplication(redis.asyncio.UnixDomainSocketConnection):
        """What it needs for another one does not come in time, once it ``fails``."""

        fails = False

        async def connect(self) -> None:
            if self.fails and not self.is_connected:
                raise TimeoutError("the vault does not answer")
            await super().connect()  # type: ignore[no-untyped-call] # redis-py

    async def main() -> None:
        pool = redis.asyncio.ConnectionPool(OfTheApplication, path=str(own_server.socket))
        async with redis.asyncio.Redis.from_pool(pool) as client:
            limiter = AsyncLimiter(client, namespace="shop")
            await limiter.acquire(ONE)
            OfTheApplication.fails = True
            with pytest.raises(TimeoutError, match="the vault does not answer"):
                await limiter.acquire(ONE, timeout=1)
        await await_others()

    asyncio.run(main())


def test_a_waiting_task_asks_once_while_its_bell_cannot_be_heard_again(own_server: RedisServer) -> None:
    async def main() -> None:
        async with redis_asyncio(own_server.url) as client:
            limiter, user = AsyncLimiter(client, namespace="shop"), scope("user", "1/3s")
            await limiter.acquire(user)
            task = asyncio.create_task(limiter.acquire(user))
            await in_line(watcher, 1)
            watcher.config_set("maxclients", len(watcher.client_list()) - 1)
            asked = script_calls(watcher)
            assert watcher.client_kill_filter(_type="pubsub") == 1
            assert await task == Admitted()
            assert script_calls(watcher) <= asked + 3, "as the bell broke, and at its instant"
            watcher.config_set("maxclients", 100)

    with own_server.client() as watcher:
        asyncio.run(main())


def test_hundreds_of_cancelled_tasks_all_end(run: Run, redis: Database) -> None:
    """A cancellation may come at the very moment at which the subscription is written."""

    async def body(limiter: AsyncLimiter) -> None:
        await limiter.try_acquire_many([USER] * 5)
        for n in range(400):
            task = asyncio.create_task(limiter.acquire(USER))
            for _ in range(8 + n % 10):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await in_line(redis, 0)

    run(body)


def test_waiting_tasks_that_end_all_at_once_leave_no_place_in_the_line(run: Run, redis: Database) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        await limiter.try_acquire_many([USER] * 5)
        tasks = [asyncio.create_task(limiter.acquire(USER)) for _ in range(10)]
        await in_line(redis, 10)
        for task in tasks:  # as asyncio.run does at its end
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)

    run(body)
    assert redis.exists(KEYS.waiters("user"), KEYS.promises("user")) == 0


def test_waiters_whose_bell_is_cut_off_still_get_their_turn(run: Run, redis: Database) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        user = scope("user", "1/500ms")
        await limiter.acquire(user)
        task = asyncio.create_task(limiter.acquire(user))
        await in_line(redis, 1)
        redis.client_kill_filter(_type="pubsub")
        assert await task == Admitted()

    run(body)


def test_waiting_tasks_of_several_limiters_need_one_connection_and_none_of_the_pool(own_server: RedisServer) -> None:
    """A pool of one, which the application has taken."""

    async def main() -> None:
        client: Any = redis.asyncio.Redis.from_url(own_server.url, max_connections=1)
        taken = await client.connection_pool.get_connection()
        limiters = [AsyncLimiter(client, namespace=name) for name in ("shop", "shop", "other")]
        user = scope("user", "1/1h")
        await limiters[0].acquire(user, "a")
        await limiters[2].acquire(user, "a")
        waiting = [asyncio.create_task(limiter.acquire(user, f"b{n}")) for n, limiter in enumerate(limiters)]
        await in_line(watcher, 2)
        async with asyncio.timeout(PATIENCE_S):
            while not watcher.zcard(Keys("other").waiters("user")):  # noqa: ASYNC110 - what is awaited is on the server
                await asyncio.sleep(0.005)
        assert len(bells(watcher)) == 1
        for limiter in limiters[0], limiters[2]:
            assert await limiter.release(user, "a")
        admitted, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert await waiting[2] == Admitted("b2")
        first = 0 if waiting[0] in admitted else 1
        assert await limiters[0].release(user, f"b{first}")
        await asyncio.gather(*waiting)
        assert bells(watcher) == []
        await client.connection_pool.release(taken)
        await client.aclose()
        await await_others()

    with own_server.client() as watcher:
        asyncio.run(main())


def test_a_task_whose_bell_is_cut_off_is_heard_again(run: Run, redis: Database) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        user = scope("user", "1/1h")
        await limiter.acquire(user, "a")
        task = asyncio.create_task(limiter.acquire(user, "b"))
        await in_line(redis, 1)
        (cut,) = bells(redis)
        asked = script_calls(redis)
        assert redis.client_kill_filter(_id=cut) == 1
        async with asyncio.timeout(PATIENCE_S):
            while bells(redis) in ([], [cut]) or script_calls(redis) < asked + 2:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.005)
        assert await limiter.release(user, "a")
        assert await task == Admitted("b")

    run(body)


def test_a_task_is_told_that_the_server_has_gone(own_server: RedisServer) -> None:
    async def main() -> None:
        client = redis_asyncio(own_server.url)
        limiter = AsyncLimiter(client, namespace="shop")
        await limiter.acquire(USER, "a")
        narrow = scope("user", "1/1h")
        task = asyncio.create_task(limiter.acquire(narrow, "b"))
        with own_server.client() as watcher:
            await in_line(watcher, 1)
        own_server.kill()
        with pytest.raises(GateUnavailable):
            async with asyncio.timeout(PATIENCE_S):
                await task
        await client.aclose()
        await await_others()

    asyncio.run(main())
