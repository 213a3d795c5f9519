"""The limiter for asyncio: the same answers, and one call for what is asked at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import pytest
import redis.asyncio

from dispatcher.core.limits import Admitted, Denied, FirstOf, Limit
from dispatcher.core.units import US
from dispatcher.errors import GateRefused, GateUnavailable, RateLimited, StaleLimits
from dispatcher.limiter import AsyncLimiter, Left, Usage
from tests.support.limiters import KEYS, Run, redis_asyncio, scope, script_calls
from tests.support.servers import Database, RedisServer
from tests.support.standstill import answered_meanwhile

USER: Final = scope("user", "5/1h")


def test_a_cost_takes_all_of_its_slots_or_none_from_asyncio_too(run: Run) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        assert [bool(await limiter.try_acquire(USER, id_, cost=2)) for id_ in "aabc"] == [True, True, True, False]
        assert not await limiter.peek(USER, cost=2)
        assert (await limiter.usage(USER))[0].used == 4
        waiting = asyncio.create_task(limiter.acquire(USER, "d", cost=3))
        with pytest.raises(RateLimited):
            async with limiter.ensure(USER, cost=2):
                pytest.fail("there was no room")
        assert await limiter.release(USER, "a", cost=2)
        assert await waiting == Admitted()
        assert (await limiter.usage(USER))[0].used == 5

    run(body)


def test_the_async_limiter_answers_as_the_blocking_one(run: Run) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        admitted = await limiter.try_acquire(USER, "a")
        assert isinstance(admitted, Admitted)
        assert admitted.id == "a"
        verdicts = await limiter.try_acquire_many([USER] * 300)
        assert verdicts.count(Admitted()) == 4
        denied = await limiter.try_acquire(USER)
        assert isinstance(denied, Denied)
        assert (denied.scope, denied.limit) == ("user", USER.limits[0])
        assert await limiter.try_acquire(USER, "a") == Admitted()
        assert isinstance(await limiter.peek(USER), Denied)
        assert await limiter.peek(USER, "a") == Admitted()
        assert (await limiter.usage(USER))[0].used == 5
        assert await limiter.usage_many([scope("none", "1/1m"), scope("free")]) == [
            [Usage(Limit.parse("1/1m"), 0, 0)],
            [],
        ]
        assert [each.used for [each] in await limiter.usage_many(each for each in (USER,))] == [5]
        assert await limiter.usage_many(iter(())) == []
        assert await limiter.release(USER, "a") is True
        assert await limiter.release(USER, "a") is False
        choice = FirstOf((scope("share", "1/1h"), scope("log", "1/1h", ids=False)))
        assert [await limiter.try_acquire(choice) for _ in range(2)] == [Admitted()] * 2
        assert isinstance(await limiter.try_acquire(choice), Denied)
        told = await limiter.try_acquire(USER, with_left=True)
        assert isinstance(told, Admitted)
        assert told.left == (Left("user", USER.limits[0], 0),)
        assert await limiter.reset([USER, scope("nothing", "1/1m")]) == 1
        assert (await limiter.usage(USER))[0].used == 0

    run(body)


def test_the_guard_raises_its_own_error(run: Run) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        ran = 0
        for _ in range(5):
            async with limiter.ensure(USER):
                ran += 1
        with pytest.raises(RateLimited) as caught:
            async with limiter.ensure(USER):
                ran += 1
        assert ran == 5
        assert (caught.value.scope, caught.value.limit) == ("user", "5/1h")
        assert 3_500 < caught.value.retry_after <= 3_600

    run(body)


# One call for many


@pytest.mark.parametrize(("tasks", "calls"), [(1, 1), (2, 2), (50, 2), (300, 4)])
def test_simultaneous_requests_go_in_few_calls(run: Run, redis: Database, tasks: int, calls: int) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        await limiter.usage(USER)  # a connection is open
        await limiter.try_acquire(scope("other", "1/1h"))
        redis.config_resetstat()
        verdicts = await asyncio.gather(*[limiter.try_acquire(USER) for _ in range(tasks)])
        assert verdicts.count(Admitted()) == min(tasks, 5)
        assert verdicts[:5] == [Admitted()] * min(tasks, 5), "who asked first goes first"

    run(body)
    assert script_calls(redis) <= calls


@pytest.mark.parametrize("cancelled", ["first", "both"])
def test_a_task_that_is_cancelled_before_its_question_has_left_is_not_charged(
    run: Run, redis: Database, cancelled: str
) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        await limiter.try_acquire(USER, "before")
        redis.config_resetstat()
        tasks = [asyncio.create_task(limiter.try_acquire(USER, id_)) for id_ in "ab"]
        await asyncio.sleep(0)
        for task in tasks if cancelled == "both" else tasks[:1]:
            task.cancel()
        await asyncio.wait(tasks)

    run(body)
    left = [b"before"] if cancelled == "both" else [b"before", b"b"]
    assert redis.zrange(KEYS.scope("user"), 0, -1) == left
    assert script_calls(redis) == len(left) - 1


def test_each_of_several_consecutive_requests_goes_at_once(run: Run, redis: Database) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        await limiter.try_acquire(USER)
        redis.config_resetstat()
        for _ in range(10):
            await limiter.try_acquire(USER)

    run(body)
    assert script_calls(redis) == 10


def test_each_task_gets_the_answer_to_its_own_question(run: Run) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        names = [f"user:{n % 10}" for n in range(60)]
        verdicts = await asyncio.gather(
            *[limiter.try_acquire(scope(each, "3/1h"), f"id{n}") for n, each in enumerate(names)]
        )
        assert verdicts.count(Admitted()) == 30
        for n, verdict in enumerate(verdicts):
            match verdict:
                case Admitted(id=id_):
                    assert id_ == f"id{n}"
                    assert n < 30
                case Denied(scope=name):
                    assert name == names[n]

    run(body)


def test_questions_by_two_lists_of_limits_are_both_answered(run: Run) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        asked = [scope("user", "2/1h" if n % 2 else "4/1h") for n in range(12)]
        verdicts = await asyncio.gather(*[limiter.try_acquire(each) for each in asked])
        assert verdicts.count(Admitted()) == 4
        assert all(isinstance(verdict, Admitted | Denied) for verdict in verdicts)

    run(body)


def test_questions_by_two_versions_are_told_apart(run: Run) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        await limiter.enforce("8")
        answers = await asyncio.gather(
            *[limiter.try_acquire(USER, version="8" if n % 3 else "7") for n in range(9)], return_exceptions=True
        )
        for n, answer in enumerate(answers):
            if n % 3:
                assert isinstance(answer, Admitted | Denied)
            else:
                assert isinstance(answer, StaleLimits)
        with pytest.raises(StaleLimits):
            await limiter.try_acquire_many([USER], version="7")
        with pytest.raises(StaleLimits):
            await limiter.try_acquire(USER, with_left=True, version="7")

    run(body)


def test_an_error_reaches_every_task_and_the_next_question_is_asked_again(run: Run, redis: Database) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        redis.set(KEYS.scope("user"), "not ours")
        answers = await asyncio.gather(*[limiter.try_acquire(USER) for _ in range(20)], return_exceptions=True)
        assert [type(answer) for answer in answers] == [GateRefused] * 20
        assert "{shop}:scope:user holds a string, expected a zset" in str(answers[19])
        redis.delete(KEYS.scope("user"))
        assert await limiter.try_acquire(USER) == Admitted()

    run(body)


def test_a_key_of_another_type_fails_only_the_tasks_that_use_it(run: Run, redis: Database) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        redis.set(KEYS.scope("bad"), "not ours")
        bad = scope("bad", "5/1h")
        asked = [limiter.try_acquire(each, id_) for each, id_ in ((USER, "a"), (bad, "b"), (USER, "c"))]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Admitted, GateRefused, Admitted]
        assert redis.zcard(KEYS.scope("user")) == 2

    run(body)


def test_an_argument_that_cannot_be_fails_its_own_task_alone(run: Run) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        asked: list[Coroutine[Any, Any, object]] = [
            limiter.try_acquire(USER),
            limiter.try_acquire(()),
            limiter.try_acquire(USER, ""),
            limiter.acquire(USER, timeout=float("nan")),
            limiter.try_acquire(USER),
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Admitted, ValueError, ValueError, ValueError, Admitted]

    run(body)


def test_a_server_that_is_away_is_told_to_every_task(own_server: RedisServer) -> None:
    async def main() -> None:
        async with redis.asyncio.Redis.from_url(own_server.url, retry=None) as client:
            limiter = AsyncLimiter(client, namespace="shop")
            assert await limiter.try_acquire(USER) == Admitted()
            own_server.kill()
            asked: list[Coroutine[Any, Any, object]] = [
                *[limiter.try_acquire(USER) for _ in range(5)],
                limiter.acquire(USER),
                limiter.release(USER, "a"),
                limiter.usage(USER),
            ]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(answer) for answer in answers] == [GateUnavailable] * 8
            own_server.start()
            assert isinstance(await limiter.try_acquire(USER), Admitted)

    asyncio.run(main())


def test_a_question_may_name_its_own_instant(run: Run) -> None:
    async def body(limiter: AsyncLimiter) -> None:
        user, now_us = scope("user", "1/1h"), 1_732_100_000 * US
        asked = [limiter.try_acquire(user, now_us=now_us + after_us) for after_us in (0, US, 3_600 * US)]
        denied = Denied("user", user.limits[0], 3_599 * US)
        assert [await each for each in asked] == [Admitted(), denied, Admitted()]
        assert await limiter.peek(user, now_us=now_us + 3_601 * US) == denied
        for call in (limiter.try_acquire, limiter.peek):
            with pytest.raises(ValueError, match="now_us -1, expected whole microseconds since 1970"):
                await call(user, now_us=-1)

    run(body)


def test_instants_may_be_made_up(redis_url: str) -> None:
    async def main() -> None:
        async with redis_asyncio(redis_url) as client:
            limiter = AsyncLimiter(client, namespace="shop", clock=lambda: 1_732_100_000_000_000)
            user = scope("user", "1/1h")
            assert await limiter.try_acquire(user) == Admitted()
            assert await limiter.try_acquire(user) == Denied("user", user.limits[0], 3_600 * US)

    asyncio.run(main())


def test_a_decision_that_came_while_the_loop_stood_still_is_read(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with redis_asyncio(own_server.url, socket_timeout=2) as client:
            limiter = AsyncLimiter(client)
            assert await limiter.try_acquire(USER, "a") == Admitted()
            late = limiter.try_acquire(USER, "b")
            assert await answered_meanwhile(late, own_server, monkeypatch) == Admitted()

    asyncio.run(main())
