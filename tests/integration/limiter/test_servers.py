"""The limiter on every kind of server that it works with: old ones, clusters, Sentinel, a user with few rights."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
import redis.asyncio
from redis import Redis
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.cluster import RedisCluster
from redis.crc import key_slot
from redis.sentinel import Sentinel

from dispatcher.core.limits import Admitted, Denied, FirstOf, Scope
from dispatcher.errors import GateRefused, GateUnavailable, RateLimited, StaleLimits
from dispatcher.limiter import AsyncLimiter, Limiter
from tests.property.test_gate_model import explore
from tests.support.limiters import KEYS, PATIENCE_S, scope
from tests.support.processes import until
from tests.support.servers import Database, RedisServer, free_port
from tests.support.topologies import SERVERS, await_cluster, cluster_node, handed_over, sentinel_of, touched

AnyClient: TypeAlias = Any
"""Of one server or of a cluster, blocking or not."""


USER: Final = scope("user", "2/1h")
ALL_KINDS: Final = (
    USER,
    FirstOf((scope("share", "1/1h"), scope("shared", "5/1h fixed"))),
    scope("log", "5/1h", "9/1d fixed", ids=False),
    scope("quota", "5/1h fixed", ids=False),
)


def exercise(client: AnyClient, watcher: Database) -> None:
    """Everything a limiter does; ``watcher`` is a plain client of the same server."""
    limiter = Limiter(client, namespace="shop")
    assert limiter.try_acquire_many([ALL_KINDS] * 3, ["a", "b", "c"])[:2] == [Admitted()] * 2
    assert isinstance(limiter.peek(ALL_KINDS), Denied)
    assert [limiter.usage(each)[0].used for each in (USER, ALL_KINDS[2], ALL_KINDS[3]) if isinstance(each, Scope)] == [
        2,
        2,
        2,
    ]
    with pytest.raises(RateLimited), limiter.ensure(USER):
        pass
    waiting = threading.Thread(target=lambda: limiter.acquire(USER, "waiter", timeout=PATIENCE_S))
    waiting.start()
    until(lambda: watcher.zcard(KEYS.waiters("user")), "the waiter", PATIENCE_S)
    assert limiter.release(USER, "a")
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert limiter.release(USER, "waiter")
    limiter.enforce("7")
    with pytest.raises(StaleLimits):
        limiter.try_acquire(USER, version="6")
    assert limiter.try_acquire(USER) == Admitted()
    with pytest.raises(RateLimited):
        limiter.acquire(USER, timeout=0.05)


async def exercise_async(client: AnyClient, watcher: Database) -> None:
    limiter = AsyncLimiter(client, namespace="shop")
    assert (await asyncio.gather(*[limiter.try_acquire(ALL_KINDS, id_) for id_ in "abc"])).count(Admitted()) == 2
    assert isinstance(await limiter.peek(ALL_KINDS), Denied)
    assert (await limiter.usage(USER))[0].used == 2
    waiting = asyncio.create_task(limiter.acquire(USER, "waiter", timeout=PATIENCE_S))
    async with asyncio.timeout(PATIENCE_S):
        while not watcher.zcard(KEYS.waiters("user")):  # noqa: ASYNC110 - what is awaited is on the server
            await asyncio.sleep(0.005)
    assert await limiter.release(USER, "a")
    assert await waiting == Admitted("waiter")
    await limiter.enforce("7")
    with pytest.raises(StaleLimits):
        await limiter.try_acquire(USER, version="6")


@pytest.mark.parametrize("binary", SERVERS.values(), ids=SERVERS)
def test_everything_works_on_every_server_at_hand(binary: Path) -> None:
    with RedisServer(binary=binary) as server, server.client() as client:
        exercise(client, client)


@pytest.mark.parametrize("binary", SERVERS.values(), ids=SERVERS)
def test_everything_works_from_asyncio_on_every_server_at_hand(binary: Path) -> None:
    async def main(url: str, watcher: Database) -> None:
        async with redis.asyncio.Redis.from_url(url) as client:
            await exercise_async(client, watcher)

    with RedisServer(binary=binary) as server, server.client() as watcher:
        asyncio.run(main(server.url, watcher))


@pytest.mark.parametrize("binary", SERVERS.values(), ids=SERVERS)
def test_random_decisions_are_those_of_the_model_on_every_server_at_hand(binary: Path) -> None:
    with RedisServer(binary=binary) as server, server.client() as client:
        assert explore(client, 15) >= 350


@pytest.mark.parametrize("binary", SERVERS.values(), ids=SERVERS)
def test_every_server_says_what_it_refuses_in_the_same_words(binary: Path) -> None:
    with RedisServer(binary=binary) as server, server.client() as client:
        limiter, database = Limiter(client, namespace="shop"), client
        database.set(KEYS.scope("user"), "not ours")
        with pytest.raises(GateRefused, match=r"\{shop\}:scope:user holds a string, expected a zset"):
            limiter.try_acquire(USER)
        database.config_set("maxmemory", "1")
        with pytest.raises(GateUnavailable, match=r"Redis is full \(maxmemory\)"):
            limiter.try_acquire(scope("other", "1/1h"))
        database.config_set("maxmemory", "0")
        port = free_port()
        database.replicaof("127.0.0.1", str(port))
        with pytest.raises(GateUnavailable, match="Redis is a read-only replica"):
            limiter.try_acquire(scope("other", "1/1h"))


@pytest.fixture(scope="module")
def node() -> Iterator[RedisServer]:
    with cluster_node() as server:
        yield server


@pytest.fixture
def cluster(node: RedisServer) -> Iterator[tuple[RedisServer, Database]]:
    """An empty cluster, and a plain client of its node."""
    with node.client() as client:
        client.flushall()
        yield node, client


def test_everything_works_on_a_cluster(cluster: tuple[RedisServer, Database]) -> None:
    server, watcher = cluster
    with RedisCluster(host="127.0.0.1", port=server.port) as client:
        exercise(client, watcher)


def test_everything_works_from_asyncio_on_a_cluster(cluster: tuple[RedisServer, Database]) -> None:
    async def main(port: int, watcher: Database) -> None:
        async with AsyncRedisCluster(host="127.0.0.1", port=port) as client:
            await exercise_async(client, watcher)

    server, watcher = cluster
    asyncio.run(main(server.port, watcher))


def test_a_cluster_that_is_away_raises_gate_unavailable(cluster: tuple[RedisServer, Database]) -> None:
    async def ask(port: int) -> None:
        async with AsyncRedisCluster(host="127.0.0.1", port=port) as client:
            limiter = AsyncLimiter(client, namespace="shop")
            await limiter.try_acquire(USER)
            server.kill()
            with pytest.raises(GateUnavailable):
                await limiter.try_acquire(USER)

    server, watcher = cluster
    with RedisCluster(host="127.0.0.1", port=server.port) as client:
        limiter = Limiter(client, namespace="shop")
        limiter.try_acquire(USER)
        server.kill()
        with pytest.raises(GateUnavailable):
            limiter.try_acquire(USER)
        server.start()
        await_cluster(watcher)
        asyncio.run(ask(server.port))
        server.start()
        await_cluster(watcher)


def test_a_slot_of_a_cluster_that_is_handed_over_raises_gate_unavailable() -> None:
    """The keys of a call are at two nodes until it is over: a client tries again for a while, and gives up."""

    async def ask(port: int) -> None:
        async with AsyncRedisCluster(host="127.0.0.1", port=port) as client:
            limiter = AsyncLimiter(client, namespace="shop")
            assert isinstance(await limiter.try_acquire(USER), Admitted)
            with pytest.raises(GateUnavailable):
                await limiter.acquire(USER)

    with cluster_node() as server, RedisCluster(host="127.0.0.1", port=server.port) as client:
        limiter = Limiter(client, namespace="shop")
        assert limiter.try_acquire(USER) == Admitted()
        with handed_over(server, key_slot(KEYS.scope("user").encode())):
            with pytest.raises(GateUnavailable):
                limiter.acquire(USER)
            asyncio.run(ask(server.port))


def test_everything_works_behind_a_sentinel() -> None:
    async def main(port: int, watcher: Database) -> None:
        sentinel: AnyClient = AsyncSentinel([("127.0.0.1", port)])  # type: ignore[no-untyped-call] # redis-py
        async with sentinel.master_for("shop-primary") as client:
            await exercise_async(client, watcher)
        for each in sentinel.sentinels:
            await each.aclose()

    with (
        RedisServer(port=free_port()) as primary,
        primary.client() as watcher,
        sentinel_of(primary, "shop-primary") as port,
    ):
        sentinel: AnyClient = Sentinel([("127.0.0.1", port)])  # type: ignore[no-untyped-call] # redis-py
        with sentinel.master_for("shop-primary") as client:
            exercise(client, watcher)
        for each in sentinel.sentinels:
            each.close()
        watcher.flushall()
        asyncio.run(main(port, watcher))


def test_after_a_failover_the_limits_hold_on_the_new_primary() -> None:
    at_once = ("--repl-diskless-sync-delay", "0")
    with RedisServer(port=free_port(), options=at_once) as primary, primary.client() as writer:
        Limiter(writer, namespace="shop").try_acquire_many([USER, USER])
        replica_of = ("--replicaof", f"127.0.0.1 {primary.port}")
        with RedisServer(port=free_port(), options=replica_of) as replica, replica.client() as reader:
            until(lambda: reader.zcard(KEYS.scope("user")) == 2, "the replica to be in step")
            with sentinel_of(primary, "shop-primary") as port:
                sentinel: AnyClient = Sentinel([("127.0.0.1", port)])  # type: ignore[no-untyped-call] # redis-py
                until(lambda: sentinel.discover_slaves("shop-primary"), "the Sentinel to know the replica")
                with sentinel.master_for("shop-primary") as client:
                    limiter = Limiter(client, namespace="shop")
                    assert isinstance(limiter.try_acquire(USER), Denied)
                    primary.kill()
                    with pytest.raises(GateUnavailable):
                        limiter.try_acquire(USER)
                    until(lambda: is_served(limiter), "the new primary")
                    assert isinstance(limiter.try_acquire(USER), Denied)
                for each in sentinel.sentinels:
                    each.close()


def is_served(limiter: Limiter) -> bool:
    try:
        limiter.try_acquire(USER)
    except GateUnavailable:
        return False
    return True


@pytest.mark.parametrize(
    "options",
    [{}, {"decode_responses": True}, {"protocol": 2}, {"single_connection_client": True}, {"db": 3}],
    ids=["plain", "decoding", "old protocol", "one connection", "another database"],
)
def test_everything_works_over_a_unix_socket_with_every_kind_of_client(options: dict[str, Any]) -> None:
    with (
        RedisServer() as server,
        Redis(unix_socket_path=str(server.socket), **options) as client,
        Redis(unix_socket_path=str(server.socket), db=options.get("db", 0)) as watcher,
    ):
        exercise(client, watcher)


def test_scripts_touch_declared_keys_alone() -> None:
    with RedisServer() as server, server.client() as client, server.client() as observer:
        seen: list[dict[str, Any]] = []
        with observer.monitor() as monitor:
            exercise(client, client)
            client.set("the end", "")
            for command in iter(monitor.next_command, None):
                seen.append(command)
                if command["command"].startswith("SET the end"):
                    break
        declared, named = touched(seen)
        assert len(named) >= 8
        assert named <= declared
        assert all(key.startswith("{shop}:") for key in declared)


def test_a_user_with_the_rights_to_its_namespace_alone_can_do_everything() -> None:
    with RedisServer() as server, server.client() as client:
        client.acl_setuser(
            "shop",
            enabled=True,
            nopass=True,
            commands=["-@all", "+@read", "+@write", "+@scripting", "+@pubsub", "+@connection", "+time"],
            keys=["{shop}:*"],
            channels=["{shop}:bell:*"],
        )
        with Redis(unix_socket_path=str(server.socket), username="shop", password="any") as limited:
            exercise(limited, client)
            with pytest.raises(GateRefused, match="Redis refused the limiter's call"):
                Limiter(limited, namespace="other").try_acquire(USER)
