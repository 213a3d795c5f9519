"""What the limiter refuses: arguments that cannot be, keys that are not its own, servers that do not write.

Each is told with the thing and its value, before anything is written.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final, TypeAlias, cast

import pytest
from redis import Redis

from dispatcher.core.limits import MAX_LIMIT, Admitted, Denied, FirstOf, Limit, Scope
from dispatcher.core.units import US
from dispatcher.errors import GateRefused, GateUnavailable
from dispatcher.limiter import AsyncLimiter, Limiter
from dispatcher.testing import FakeLimiter
from tests.support.limiters import KEYS, contents, redis_asyncio, scope
from tests.support.processes import until
from tests.support.servers import Database, RedisServer, free_port

Wrong: TypeAlias = Any
"""What no type checker would let pass."""


USER: Final = scope("user:42", "2/1m")


def test_a_limit_is_the_same_in_each_way_to_write_it() -> None:
    written = [Limit(3, timedelta(minutes=1)), Limit(3, "1m"), Limit(3, "60s"), Limit(3, window_us=60_000_000)]
    assert written == [Limit.parse("3/1m")] * 4
    several = (Limit.parse("3/1m"), Limit.parse("9/1h fixed"))
    for limits in (several, list(several), ["3/1m", "9/1h fixed"], ("3/1m", several[1])):
        assert Scope("u", limits).limits == several
    assert Scope("u", "3/1m") == Scope("u", several[0]) == Scope("u", several[:1])


# What cannot be asked


@pytest.mark.parametrize("most", [0, -1, 2**60, MAX_LIMIT + 1, 1.5, math.nan, math.inf, True, "5", None], ids=repr)
def test_a_limit_of_nothing_or_of_no_number_is_refused(most: Wrong) -> None:
    with pytest.raises(ValueError, match=r"limit max .*, expected a whole number from 1 to 10000000"):
        Limit(most, window_us=60 * US)


@pytest.mark.parametrize("window_us", [0, -1, 2**60, 0.5, math.nan, True, "60"], ids=repr)
def test_a_window_of_no_length_is_refused(window_us: Wrong) -> None:
    with pytest.raises(
        ValueError, match=r"limit window .* us, expected a whole number from 1 to 31622400000000 \(366d\)"
    ):
        Limit(5, window_us=window_us)


@pytest.mark.parametrize("kind", ["rolling", "sliding", "", None, 7])
def test_a_kind_that_is_none_is_refused(kind: Wrong) -> None:
    with pytest.raises(ValueError, match=r"limit kind .*, expected a Kind"):
        Limit(5, window_us=60 * US, kind=kind)


@pytest.mark.parametrize(
    "text",
    ["", "5", "5/", "/1m", "0/1m", "-5/1m", "5/0s", "5/-1s", "nan/1m", "5/nan", "1e3/1m", "5/1w", "5/1m rolling"],
)
def test_a_limit_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Limit.parse(text)


SCOPES: Final[list[tuple[str, Any, str]]] = [
    ("no scopes", (), "scopes are empty, expected at least one"),
    ("an empty list", [], "scopes are empty, expected at least one"),
    ("None", None, "scopes None, expected a Scope"),
    ("a name alone", "user:42", "scopes 'user:42', expected a Scope"),
    ("names", ["user:42"], "scope 'user:42', expected a Scope or a FirstOf"),
    ("two of one name", (USER, USER), "scope 'user:42' stands twice in one request"),
    ("two of one name with other limits", (USER, scope("user:42", "1/1s")), "scope 'user:42' stands twice"),
    ("two of one name in a choice", FirstOf((USER, USER)), "scope 'user:42' stands twice"),
    ("one of a choice again", (FirstOf((USER, scope("b", "1/1s"))), USER), "scope 'user:42' stands twice"),
]

MADE: Final[list[tuple[Callable[[], object], str]]] = [
    (lambda: FirstOf((USER,)), "FirstOf.*, expected a tuple of at least two scopes"),
    (lambda: FirstOf(()), "FirstOf.*, expected a tuple of at least two scopes"),
    (lambda: FirstOf(cast("Wrong", USER)), "FirstOf.*, expected a tuple of at least two scopes"),
    (lambda: FirstOf(cast("Wrong", (USER, "user:42"))), "FirstOf holds 'user:42', expected a Scope"),
    (lambda: Scope("", USER.limits), "scope name '', expected a text of 1 to 512 characters"),
    (lambda: Scope("x" * 10_000, USER.limits), "scope name 'xxx.* of 10002 characters, expected a text of 1 to 512"),
    (lambda: Scope("\ud800", USER.limits), r"scope name '\\ud800', .* without half of a surrogate pair"),
    (lambda: Scope(cast("Wrong", 42), USER.limits), "scope name 42, expected a text of 1 to 512 characters"),
    (lambda: Scope("u", cast("Wrong", 5)), "scope 'u' has the limits 5, expected a Limit, a text such as '100/30m'"),
    (lambda: Scope("u", cast("Wrong", ("5/1m", 5))), "scope 'u' has the limits .*, expected a Limit, a text such as"),
    (lambda: Scope("u", "5 per minute"), "'5 per minute', expected MAX/WINDOW, for example 100/30m"),
    (lambda: Limit(3, cast("Wrong", 60)), r"Limit\(3, 60\) has a window without a unit, expected a timedelta, a text"),
    (lambda: Limit(3, "1m", window_us=1), r"Limit\(3, '1m', window_us=1\) has two windows, expected one"),
    (lambda: Limit(3, "60"), "'60', expected a number and a unit of ms, s, m, h or d"),
]

IDS: Final[list[tuple[str, Any]]] = [
    ("no characters", ""),
    ("10 kB", "x" * 10_000),
    ("513 characters", "x" * 513),
    ("a number", 42),
    ("bytes", b"a"),
    ("half a character", "\ud800"),
]


@pytest.mark.parametrize(("make", "said"), MADE, ids=[said for _, said in MADE])
def test_a_scope_that_cannot_be_is_refused_when_it_is_made(make: Callable[[], object], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        make()


CALLS: Final[dict[str, Callable[[Limiter, Any, Any], object]]] = {
    "try_acquire": lambda limiter, scopes, id_: limiter.try_acquire(scopes, id_),
    "try_acquire_many": lambda limiter, scopes, id_: limiter.try_acquire_many([USER, scopes], ["a", id_]),
    "peek": lambda limiter, scopes, id_: limiter.peek(scopes, id_),
    "acquire": lambda limiter, scopes, id_: limiter.acquire(scopes, id_),
    "ensure": lambda limiter, scopes, id_: limiter.ensure(scopes, id_).__enter__(),
    "release": lambda limiter, scopes, id_: limiter.release(scopes, id_),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(("scopes", "message"), [each[1:] for each in SCOPES], ids=[each[0] for each in SCOPES])
def test_scopes_that_cannot_be_are_refused_before_anything_is_written(
    limiter: Limiter, redis: Database, call: Callable[[Limiter, Any, Any], object], scopes: Wrong, message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call(limiter, scopes, "a")
    assert not redis.keys()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("id_", [each[1] for each in IDS], ids=[each[0] for each in IDS])
def test_an_id_that_cannot_be_is_refused_before_anything_is_written(
    limiter: Limiter, redis: Database, call: Callable[[Limiter, Any, Any], object], id_: Wrong
) -> None:
    with pytest.raises(
        ValueError, match=r"id .*, expected a text of 1 to 512 characters, without half of a surrogate pair"
    ):
        call(limiter, USER, id_)
    assert not redis.keys()


def test_nothing_is_given_back_without_an_id(limiter: Limiter) -> None:
    with pytest.raises(ValueError, match="id None, expected a text"):
        limiter.release(USER, cast("Any", None))


COST_CALLS: Final[dict[str, Callable[[Limiter, Any], object]]] = {
    "try_acquire": lambda limiter, cost: limiter.try_acquire(USER, cost=cost),
    "peek": lambda limiter, cost: limiter.peek(USER, cost=cost),
    "acquire": lambda limiter, cost: limiter.acquire(USER, cost=cost),
    "ensure": lambda limiter, cost: limiter.ensure(USER, cost=cost).__enter__(),
    "release": lambda limiter, cost: limiter.release(USER, "a", cost=cost),
}


@pytest.mark.parametrize("call", COST_CALLS.values(), ids=COST_CALLS)
@pytest.mark.parametrize("cost", [0, 1_001, 2.0, True, "2"])
def test_a_cost_that_cannot_be_is_refused_before_anything_is_written(
    limiter: Limiter, redis: Database, call: Callable[[Limiter, Any], object], cost: Wrong
) -> None:
    with pytest.raises(ValueError, match=rf"cost {cost!r}, expected a whole number from 1 to 1000"):
        call(limiter, cost)
    assert not redis.keys()


@pytest.mark.parametrize("name", [name for name in COST_CALLS if name != "release"])
def test_a_cost_that_a_limit_can_never_hold_is_refused_and_names_the_limit(
    limiter: Limiter, redis: Database, name: str
) -> None:
    with pytest.raises(ValueError, match=r"cost 3, expected at most 2: scope 'user:42' has the limit 2/1m"):
        COST_CALLS[name](limiter, 3)
    assert not redis.keys()


@pytest.mark.parametrize("timeout", [math.nan, -1, "5", -(10**400)], ids=["nan", "-1", "text", "-1e400"])
def test_a_timeout_that_is_no_number_is_refused(limiter: Limiter, redis: Database, timeout: Wrong) -> None:
    with pytest.raises(ValueError, match=r"timeout .*, expected seconds from 0 on, or None"):
        limiter.acquire(USER, timeout=timeout)
    assert not redis.keys()


@pytest.mark.parametrize("version", [7, "", b"7", "\ud800"])
def test_a_version_that_is_no_text_is_refused(limiter: Limiter, redis: Database, version: Wrong) -> None:
    for call in (lambda: limiter.enforce(version), lambda: limiter.try_acquire(USER, version=version)):
        with pytest.raises(ValueError, match=r"version .*, expected a text such as '7'"):
            call()
    assert not redis.keys()


def test_enforcing_none_is_refused(limiter: Limiter, redis: Database) -> None:
    nothing: Any = None
    for each in (limiter, FakeLimiter()):
        with pytest.raises(ValueError, match="version None, expected a text such as '7'"):
            each.enforce(nothing)
        assert each.try_acquire(USER, version="7")
    assert not redis.exists(KEYS.limits_version)


@pytest.mark.parametrize("now_us", [math.nan, -1, 1.5, "1", 2**60, True])
def test_an_instant_that_is_none_is_refused(limiter: Limiter, redis: Database, now_us: Wrong) -> None:
    with pytest.raises(ValueError, match=r"now_us .*, expected whole microseconds since 1970"):
        limiter.try_acquire(USER, now_us=now_us)
    assert not redis.keys()


def test_usage_of_what_is_no_scope_is_refused(limiter: Limiter) -> None:
    not_a_scope: Any = "user:42"
    with pytest.raises(TypeError, match="scope 'user:42', expected a Scope"):
        limiter.usage(not_a_scope)


def test_as_many_ids_as_requests_are_expected(limiter: Limiter, redis: Database) -> None:
    with pytest.raises(ValueError, match="2 requests and 1 ids, expected one id for each"):
        limiter.try_acquire_many([USER, USER], ["a"])
    assert not redis.keys()


def test_a_batch_with_two_lists_of_limits_for_one_scope_charges_nothing_however_long_it_is(
    limiter: Limiter, redis: Database
) -> None:
    batch = [scope("c", "1/1m"), *[scope("long", "500/1m")] * 200, scope("c", "2/1m")]
    with pytest.raises(ValueError, match="scope 'c' stands in one call with different limits or ids"):
        limiter.try_acquire_many(batch)
    assert not redis.keys()


@pytest.mark.parametrize("namespace", ["", "a b", "{a}", "a\nb", "a\tb"])
def test_a_namespace_that_cannot_be_is_refused(redis: Database, namespace: str) -> None:
    with pytest.raises(ValueError, match="expected a name without braces or white space"):
        Limiter(redis, namespace=namespace)


# Servers that refuse


@pytest.mark.parametrize(
    ("key", "asked", "expected"),
    [
        (KEYS.scope("second"), scope("second", "5/1m"), "zset"),
        (KEYS.log("second"), scope("second", "5/1m", ids=False), "list"),
        (KEYS.quota("second"), scope("second", "5/1m fixed", ids=False), "string"),
    ],
    ids=["scope", "log", "quota"],
)
def test_a_key_of_another_type_is_named_and_nothing_is_written(
    limiter: Limiter, redis: Database, key: str, asked: Scope, expected: str
) -> None:
    redis.hset(key, "not", "ours")
    before = contents(redis)
    first = scope("first", "5/1m")
    calls: list[Callable[[], object]] = [
        lambda: limiter.try_acquire((first, asked)),
        lambda: limiter.peek((first, asked)),
        lambda: limiter.acquire((first, asked)),
        lambda: limiter.usage(asked),
    ]
    if asked.ids:
        calls.append(lambda: limiter.release((first, asked), "a"))
    for call in calls:
        with pytest.raises(GateRefused) as caught:
            call()
        assert f"{key} holds a hash, expected a {expected}" in str(caught.value)
        assert "give it another namespace" in str(caught.value)
    assert contents(redis) == before


def test_a_key_of_another_type_of_a_scope_without_limits_is_met_before_anything_is_charged(
    limiter: Limiter, redis: Database
) -> None:
    bare = scope("bare")
    redis.set(KEYS.scope("bare"), "not ours")
    for ids in (None, ["a"]):
        with pytest.raises(GateRefused, match="bare holds a string, expected a zset"):
            limiter.try_acquire_many([[USER, bare]], ids)
    assert redis.keys() == [KEYS.scope("bare").encode()]


def test_a_version_of_another_type_is_named(limiter: Limiter, redis: Database) -> None:
    redis.hset(KEYS.limits_version, "not", "ours")
    with pytest.raises(GateRefused, match="holds a hash, expected a string"):
        limiter.try_acquire(USER, version="7")
    assert redis.keys() == [KEYS.limits_version.encode()]


@pytest.mark.parametrize("key", [KEYS.waiters("user:42"), KEYS.promises("user:42")], ids=["waiters", "promises"])
def test_a_line_of_another_type_is_named_and_nothing_is_written(limiter: Limiter, redis: Database, key: str) -> None:
    limiter.try_acquire(USER, "a")
    redis.set(key, "not ours")
    before = contents(redis)
    for call in (lambda: limiter.acquire(USER), lambda: limiter.release(USER, "a")):
        with pytest.raises(GateRefused) as caught:
            call()
        assert f"{key} holds a string, expected a zset" in str(caught.value)
    assert contents(redis) == before


def test_a_full_server_charges_nothing_and_says_so(own_server: RedisServer) -> None:
    client: Database = own_server.client()
    limiter = Limiter(client, namespace="shop")
    full = scope("full", "1/10m")
    limiter.try_acquire(full)
    before = contents(client)
    client.config_set("maxmemory", "1")
    kinds = [USER, scope("log", "2/1m", ids=False), scope("quota", "2/1m fixed", ids=False)]
    for each in kinds:
        with pytest.raises(GateUnavailable, match=r"Redis is full \(maxmemory\)"):
            limiter.try_acquire((scope("other", "5/1m"), each))
        with pytest.raises(GateUnavailable, match=r"Redis is full \(maxmemory\)"):
            limiter.acquire(each)
    with pytest.raises(GateUnavailable, match=r"Redis is full \(maxmemory\)"):
        limiter.acquire(full, timeout=60)  # a place in the line takes memory too
    assert isinstance(limiter.try_acquire((full, USER)), Denied), "who is refused writes nothing"
    assert limiter.peek(kinds) == Admitted()
    assert limiter.usage(full)[0].used == 1
    client.config_set("maxmemory", "0")
    assert contents(client) == before
    client.close()


def test_a_read_only_replica_charges_nothing_and_says_so() -> None:
    at_once = ("--repl-diskless-sync-delay", "0")
    with RedisServer(port=free_port(), options=at_once) as primary, primary.client() as writer:
        replica_of = ("--replicaof", f"127.0.0.1 {primary.port}")
        full = scope("full", "1/10m")
        Limiter(writer, namespace="shop").try_acquire(full)
        with RedisServer(options=replica_of) as replica, replica.client() as reader:
            until(lambda: reader.exists(KEYS.scope("full")), "the replica to be in step")
            limiter = Limiter(reader, namespace="shop")
            before = contents(reader)
            for each in (USER, scope("log", "2/1m", ids=False), scope("quota", "2/1m fixed", ids=False)):
                with pytest.raises(GateUnavailable, match="Redis is a read-only replica"):
                    limiter.try_acquire((scope("other", "5/1m"), each))
            with pytest.raises(GateUnavailable, match="Redis is a read-only replica"):
                limiter.enforce("7")
            assert isinstance(limiter.try_acquire(full), Denied)
            assert limiter.peek(USER) == Admitted()
            assert contents(reader) == before


def test_a_client_of_the_other_kind_is_refused_when_the_limiter_is_made(redis: Database, redis_url: str) -> None:
    with pytest.raises(TypeError, match=r"client redis\.client\.Redis, expected redis\.asyncio\.Redis or"):
        AsyncLimiter(redis)
    with pytest.raises(TypeError, match=r"client builtins\.str, expected redis\.Redis or redis\.RedisCluster"):
        Limiter(cast("Wrong", redis_url))
    with pytest.raises(ValueError, match="namespace 5, expected a name"):
        Limiter(redis, namespace=cast("Wrong", 5))


LOGINS: Final = pytest.mark.parametrize(
    ("login", "protocol"),
    [
        ({}, 2),  # Authentication required.
        ({}, 3),  # HELLO must be called with the client already authenticated, ...
        ({"password": "another"}, 2),
        ({"password": "another"}, 3),
        ({"username": "shop", "password": "another"}, 2),
        ({"username": "nobody", "password": "another"}, 2),
    ],
)
"""Logins that a server refuses which wants a password, each in other words."""


@pytest.fixture
def closed(redis: Database, shared_server: RedisServer) -> Iterator[str]:
    """A server that wants a password, or that of its user ``shop``."""
    redis.acl_setuser("shop", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all"])
    yield f"unix://{shared_server.socket}"
    redis.acl_deluser("shop")


@LOGINS
def test_a_refused_login_is_no_outage(closed: str, login: dict[str, str], protocol: int) -> None:
    with Redis.from_url(closed, protocol=protocol, retry=None, **cast("Wrong", login)) as client:
        limiter = Limiter(client)
        for call in (lambda: limiter.try_acquire(USER), lambda: limiter.enforce("7")):
            with pytest.raises(GateRefused, match="refuses the user name or password"):
                call()


@LOGINS
def test_a_refused_login_is_no_outage_for_tasks_either(closed: str, login: dict[str, str], protocol: int) -> None:
    async def main() -> None:
        async with redis_asyncio(closed, protocol=protocol, retry=None, **login) as client:
            limiter = AsyncLimiter(client)
            with pytest.raises(GateRefused, match="refuses the user name or password"):
                await limiter.try_acquire(USER)
            with pytest.raises(GateRefused, match="refuses the user name or password"):
                await limiter.enforce("7")

    asyncio.run(main())


def test_a_version_that_the_server_does_not_let_be_set_is_refused(redis_url: str, redis: Database) -> None:
    async def enforce() -> None:
        async with redis_asyncio(redis_url, username="reader", password="any") as client:
            await AsyncLimiter(client, namespace="shop").enforce("7")

    redis.acl_setuser("reader", enabled=True, nopass=True, commands=["+@all", "-set"], keys=["*"])
    try:
        with Redis.from_url(redis_url, username="reader", password="any") as client:
            limiter = Limiter(client, namespace="shop")
            with pytest.raises(GateRefused, match=r"^Redis refused the limiter's call: .*set"):
                limiter.enforce("7")
        with pytest.raises(GateRefused, match=r"^Redis refused the limiter's call: .*set"):
            asyncio.run(enforce())
    finally:
        redis.acl_deluser("reader")


def test_where_the_server_does_not_tell_a_type_the_refusal_says_so(redis_url: str, redis: Database) -> None:
    async def acquire() -> None:
        async with redis_asyncio(redis_url, username="reader", password="any") as client:
            await AsyncLimiter(client, namespace="shop").try_acquire(USER)

    redis.set("{shop}:scope:" + USER.name, "a text")
    redis.acl_setuser("reader", enabled=True, nopass=True, commands=["+@all", "-type"], keys=["*"])
    try:
        with (
            Redis.from_url(redis_url, username="reader", password="any") as client,
            pytest.raises(GateRefused, match=r"^Redis refused the limiter's call: .*type"),
        ):
            Limiter(client, namespace="shop").try_acquire(USER)
        with pytest.raises(GateRefused, match=r"^Redis refused the limiter's call: .*type"):
            asyncio.run(acquire())
    finally:
        redis.acl_deluser("reader")


@pytest.mark.parametrize("requests", [None, USER, "user:42", 5], ids=repr)
def test_requests_that_are_no_list_are_refused(limiter: Limiter, requests: Wrong) -> None:
    with pytest.raises(TypeError, match=r"requests .*, expected a list with what each request asks for"):
        limiter.try_acquire_many(requests)
