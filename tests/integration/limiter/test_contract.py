"""What a fake limiter decides is what the real one decides, over random walks; and it has the same calls."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.core.limits import Admitted, Demand, FirstOf, Limit, Scope, all_scopes
from dispatcher.core.units import US
from dispatcher.errors import GateUnavailable, RateLimited, StaleLimits
from dispatcher.limiter import AsyncLimiter, Limiter
from dispatcher.testing import AsyncFakeLimiter, FakeLimiter
from tests.support.gate_walk import fixed_limits, limits
from tests.support.servers import Database

NAMES: Final = ("a", "b", "c", "d", "log", "quota")
CHOICES: Final[tuple[tuple[int | tuple[int, ...], ...], ...]] = (
    (0,), (0, 1), (0, 1, 2), ((2, 3),), (0, (3, 2, 1)), (4,), (0, 4), (5,), (1, (4, 5)),
)  # fmt: skip
steps = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 4), st.sampled_from(CHOICES)),
    st.tuples(st.just("ask"), st.none(), st.sampled_from(CHOICES)),
    st.tuples(st.just("several"), st.integers(0, 9), st.sampled_from(CHOICES)),
    st.tuples(st.just("several"), st.integers(0, 9), st.sampled_from(CHOICES)),
    st.tuples(st.just("peek"), st.integers(0, 4), st.sampled_from(CHOICES)),
    st.tuples(st.just("release"), st.integers(0, 4), st.sampled_from([(0,), (1, 2), (0, 1, 2, 3)])),
    st.tuples(st.just("reset"), st.none(), st.sampled_from([(0,), (4,), (5, 3)])),
    st.tuples(st.just("pass"), st.sampled_from([1, US, 29 * US, 61 * US, 400 * US]), st.none()),
    st.tuples(st.just("retry"), st.sampled_from([-1, 0]), st.none()),
)


def _walk(redis: Database, all_limits: tuple[tuple[Limit, ...], ...], walk: list[tuple[str, Any, Any]]) -> None:
    redis.flushall()
    fake = FakeLimiter()
    real = Limiter(redis, namespace="shop", clock=lambda: fake.now_us)
    scopes = [Scope(name, each, len(name) == 1) for name, each in zip(NAMES, all_limits, strict=True)]
    retry_us = 0
    for step, number, wanted in walk:
        asked = tuple(_demand(scopes, each) for each in wanted or ())
        id_ = None if number is None else f"id{number}"
        cost = 1
        if step == "several":
            cost = min(3, *(limit.max for scope in all_scopes(asked) for limit in scope.limits))
            id_ = f"id{number % 5}" if number < 5 else None
        match step:
            case "pass":
                fake.forward(number / US)
            case "retry":
                fake.forward(max(0, retry_us + number - fake.now_us) / US)
            case "reset":
                assert fake.reset(asked) == real.reset(asked)
            case "release":
                for cost in (1, 3):
                    assert fake.release(asked, str(id_), cost=cost) == real.release(asked, str(id_), cost=cost)
            case "peek":
                assert fake.peek(asked, id_) == real.peek(asked, id_)
            case _:
                assert fake.peek(asked, id_, cost=cost) == real.peek(asked, id_, cost=cost)
                ours, theirs = (each.try_acquire(asked, id_, cost=cost, with_left=True) for each in (fake, real))
                assert ours == theirs
                if isinstance(ours, Admitted):
                    assert ours.left == cast("Admitted", theirs).left
                else:
                    retry_us = fake.now_us + ours.retry_after_us
        assert fake.usage_many(scopes) == real.usage_many(scopes)


def explore(redis: Database, walks: int) -> None:
    @settings(max_examples=walks, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.tuples(*[limits] * 5, fixed_limits), st.lists(steps, min_size=20, max_size=60))
    def decide_alike(all_limits: tuple[tuple[Limit, ...], ...], walk: list[tuple[str, Any, Any]]) -> None:
        _walk(redis, all_limits, walk)

    search: Callable[[], None] = decide_alike
    search()


@pytest.mark.parametrize("walks", [10, pytest.param(600, marks=pytest.mark.slow)])
def test_over_random_walks_both_decide_alike(redis: Database, walks: int) -> None:
    explore(redis, walks)


def test_what_no_limit_counts_any_more_is_neither_released_nor_reset(redis: Database) -> None:
    fake = FakeLimiter()
    for limiter in (fake, Limiter(redis, namespace="shop", clock=lambda: fake.now_us)):
        begun_us, scope = fake.now_us, Scope("a", (Limit(2, window_us=US), Limit(9, window_us=2 * US)))
        for id_ in ("x", "y"):
            limiter.try_acquire(scope, id_)
        fake.forward(2 - 1 / US)
        assert limiter.release(scope, "x")
        fake.forward(1 / US)
        assert (limiter.release(scope, "y"), limiter.reset(scope)) == (False, 0)
        fake.forward((begun_us - fake.now_us) / US)


def _demand(scopes: list[Scope], wanted: int | tuple[int, ...]) -> Demand:
    return scopes[wanted] if isinstance(wanted, int) else FirstOf(tuple(scopes[each] for each in wanted))


def test_a_fake_waits_by_moving_its_clock() -> None:
    limiter, user = FakeLimiter(), Scope("user", "2/1m")
    began_us = limiter.now_us
    assert limiter.try_acquire_many([user] * 3).count(Admitted()) == 2
    with (
        pytest.raises(RateLimited, match=r"user has used its 2/1m; there is room in 60\.000000 s"),
        limiter.ensure(user),
    ):
        pytest.fail("there was no room")
    with pytest.raises(RateLimited):
        limiter.acquire(user, timeout=10)
    assert limiter.now_us == began_us + 10 * US
    assert limiter.acquire(user, "a").id == "a"
    assert limiter.now_us == began_us + 60 * US


def test_a_fake_is_away_and_refuses_as_it_is_told() -> None:
    limiter, user = FakeLimiter(), Scope("user", "2/1m")
    limiter.enforce("7")
    with pytest.raises(StaleLimits):
        limiter.try_acquire(user, version="6")
    with pytest.raises(TypeError, match="scopes 'user', expected a Scope"):
        limiter.try_acquire(cast("Any", "user"))
    limiter.is_away = True
    calls: list[Callable[[], object]] = [
        lambda: limiter.try_acquire(user),
        lambda: limiter.try_acquire_many([user]),
        lambda: limiter.peek(user),
        lambda: limiter.acquire(user),
        lambda: limiter.release(user, "a"),
        lambda: limiter.reset(user),
        lambda: limiter.usage(user),
        lambda: limiter.enforce("8"),
    ]
    for call in calls:
        with pytest.raises(GateUnavailable):
            call()


def test_threads_may_share_a_fake() -> None:
    limiter, user, before_s = FakeLimiter(), Scope("user", "1000/1m"), sys.getswitchinterval()

    def ask() -> list[bool]:
        verdicts = []
        for _ in range(300):
            verdicts.append(bool(limiter.try_acquire(user)))
            limiter.forward(0.001)
            limiter.usage(user)
        return verdicts

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            asked = [threads.submit(ask) for _ in range(4)]
            verdicts = [verdict for each in asked for verdict in each.result()]
    finally:
        sys.setswitchinterval(before_s)
    assert verdicts.count(True) == 1000
    assert limiter.now_us == FakeLimiter().now_us + 1200 * 1000


def test_the_fake_for_asyncio_decides_as_the_other_one() -> None:
    async def body() -> None:
        limiter, user = AsyncFakeLimiter(), Scope("user", "2/1m")
        assert (await limiter.try_acquire_many([user] * 3)).count(Admitted()) == 2
        assert not await limiter.peek(user)
        assert not await limiter.try_acquire(user)
        with pytest.raises(RateLimited):
            async with limiter.ensure(user):
                pytest.fail("there was no room")
        assert (await limiter.acquire(user, "a")).id == "a"
        assert await limiter.release(user, "a")
        assert (await limiter.usage(user))[0].used == 0
        await limiter.try_acquire(user)
        assert await limiter.reset(user) == 1
        await limiter.enforce("7")
        with pytest.raises(StaleLimits):
            await limiter.try_acquire(user, version="6")
        later_us, one = limiter.blocking.now_us + 60 * US, Scope("one", "1/1m")
        assert await limiter.try_acquire(one)
        assert await limiter.peek(one, now_us=later_us)
        assert await limiter.try_acquire(one, now_us=later_us)

    asyncio.run(body())


@pytest.mark.parametrize("other", [Scope("a", "3/1m"), Scope("a", "2/1m", ids=False)], ids=["limits", "ids"])
def test_a_fake_refuses_a_batch_with_two_lists_of_limits_for_one_scope(other: Scope) -> None:
    limiter, scope = FakeLimiter(), Scope("a", "2/1m")
    with pytest.raises(ValueError, match="scope 'a' stands in one call with different limits or ids"):
        limiter.try_acquire_many([scope, other])
    assert limiter.usage(scope)[0].used == 0


@pytest.mark.parametrize(
    ("limiter", "model", "inherited"),
    [
        (FakeLimiter, Limiter, {"usage", "ensure"}),
        (AsyncFakeLimiter, AsyncLimiter, {"usage", "ensure"}),
        (AsyncLimiter, Limiter, set()),
    ],
    ids=["fake", "fake for asyncio", "asyncio"],
)
def test_each_limiter_has_the_calls_of_its_model_with_the_same_arguments(
    limiter: type[Any], model: type[Any], inherited: set[str]
) -> None:
    def calls(of: type[Any]) -> dict[str, list[inspect.Parameter]]:
        found = inspect.getmembers(of, inspect.isfunction)
        return {
            name: list(inspect.signature(call).parameters.values()) for name, call in found if not name.startswith("_")
        }

    assert {name: each for name, each in calls(limiter).items() if name in calls(model)} == calls(model)
    assert calls(model).keys() - vars(limiter).keys() == inherited
