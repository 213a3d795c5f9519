"""``AsyncProducer``: the same calls, answers and errors as ``Producer``."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from dispatcher import (
    AsyncProducer,
    ConfigError,
    Event,
    InvalidEvent,
    Producer,
    QueueFull,
    QueueUnavailable,
)
from dispatcher.producer.blocking import CHUNK
from dispatcher.server.clients import connect, connect_async
from dispatcher.server.embedded import EmbeddedServer
from dispatcher.server.keys import Keys
from dispatcher.store.intake import claim_namespace
from dispatcher.store.rq_keys import QueueKeys
from tests.support.servers import Database, RedisServer
from tests.support.standstill import answered_meanwhile

LANE = QueueKeys("notifications").lanes[1]

Run = Callable[..., None]


@pytest.fixture
def run(redis_url: str) -> Run:
    """Runs what is given a producer of an empty database."""

    def runner(main: Callable[[AsyncProducer], Awaitable[None]], **options: Any) -> None:  # noqa: ANN401 - the producer's
        async def whole() -> None:
            async with redis.asyncio.Redis.from_url(redis_url) as client, asyncio.timeout(20):
                await main(AsyncProducer(client, **options))

        asyncio.run(whole())

    return runner


def queued(database: Database) -> list[str]:
    return [id_.decode() for id_ in database.lrange(LANE, 0, -1)]


def events(count: int) -> list[dict[str, str]]:
    return [{"category": "errors", "text": f"text {n}", "id": f"e{n}"} for n in range(count)]


async def streamed(given: list[dict[str, str]]) -> AsyncIterator[dict[str, str]]:
    for each in given:
        await asyncio.sleep(0)
        yield each


def test_the_async_producer_has_the_calls_of_the_producer() -> None:
    calls = {name for name in vars(Producer) if not name.startswith("_")} - {"close", "enqueue_chunks"}
    assert {name for name in vars(AsyncProducer) if not name.startswith("_")} == {*calls, "aclose"}


def test_the_async_producer_sends_the_same_jobs_as_the_producer(run: Run, redis: Database) -> None:
    async def main(producer: AsyncProducer) -> None:
        fields: dict[str, Any] = {"channel": "#ops", "labels": {"host": "db1"}, "created_at": 1.5}
        assert await producer.send("errors", "text", id="async", **fields) == "async"
        assert len(await producer.send("errors", "text")) == 36

    run(main)
    Producer(redis).send("errors", "text", id="plain", channel="#ops", labels={"host": "db1"}, created_at=1.5)
    jobs = [redis.hgetall(f"rq:job:{name}") for name in ("async", "plain")]
    for job, name in zip(jobs, (b"async", b"plain"), strict=True):
        del job[b"created_at"], job[b"enqueued_at"]
        job[b"data"] = job[b"data"].replace(name, b"ID")
    assert jobs[0] == jobs[1]


def test_events_of_an_async_iterable_are_sent_in_order_and_in_chunks(run: Run, redis: Database) -> None:
    async def main(producer: AsyncProducer) -> None:
        given = events(2 * CHUNK + 1)
        assert await producer.send_many(streamed(given)) == [each["id"] for each in given]

    run(main)
    assert queued(redis) == [f"e{n}" for n in range(2 * CHUNK + 1)]


def test_an_invalid_event_of_an_async_iterable_stops_it_before_its_chunk(run: Run, redis: Database) -> None:
    async def main(producer: AsyncProducer) -> None:
        given: list[dict[str, str]] = [*events(CHUNK + 1), {"category": "errors"}]
        with pytest.raises(InvalidEvent, match=f"^event {CHUNK + 1}: text is missing") as caught:
            await producer.send_many(streamed(given))
        assert len(caught.value.ids) == CHUNK
        assert list(caught.value.rest) == given[CHUNK:]

    run(main)
    assert len(queued(redis)) == CHUNK


def test_a_full_queue_tells_where_to_go_on_with_an_async_iterable(run: Run, redis: Database) -> None:
    async def main(producer: AsyncProducer) -> None:
        given = events(9)
        with pytest.raises(QueueFull, match="the queue is full after 7 events") as caught:
            await producer.send_many(streamed(given))
        assert list(caught.value.rest) == given[7:]

    run(main, max_waiting=7)
    assert len(queued(redis)) == 7


def test_a_queue_of_another_namespace_is_refused(run: Run, redis: Database) -> None:
    async def main(producer: AsyncProducer) -> None:
        with pytest.raises(ConfigError, match="queue 'notifications' belongs to namespace 'shop', not to 'dispatcher'"):
            await producer.send("errors", "x")

    claim_namespace(redis, Keys("shop"), QueueKeys("notifications"))
    run(main)


def test_a_server_that_is_away_or_frozen_is_unavailable_within_two_seconds(own_server: RedisServer) -> None:
    async def main() -> None:
        client = connect_async(own_server.url)  # which would wait for five
        producer = AsyncProducer(client)
        await producer.send("errors", "x")
        own_server.freeze()
        begun = time.monotonic()
        with pytest.raises(QueueUnavailable, match="did not answer within 2 s") as caught:
            await producer.send_many([Event("errors", "y", id="y")])
        assert 1.5 < time.monotonic() - begun < 8
        assert len(caught.value.rest) == 1
        own_server.cont()
        assert await producer.send("errors", "y", id="y") == "y"
        own_server.kill()
        with pytest.raises(QueueUnavailable):
            await producer.send("errors", "z")
        await client.aclose()

    asyncio.run(main())


def test_an_answer_that_came_while_the_loop_stood_still_is_read(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with AsyncProducer.from_env() as producer:
            await producer.send("errors", "x")
            late = producer.send("errors", "x", id="late")
            assert await answered_meanwhile(late, own_server, monkeypatch) == "late"

    monkeypatch.setenv("DISPATCHER_REDIS_URL", own_server.url)
    asyncio.run(main())


def test_a_shorter_time_out_in_the_url_counts(own_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with AsyncProducer.from_env() as producer:
            await producer.send("errors", "x")
            own_server.freeze()
            with pytest.raises(QueueUnavailable, match="Timeout reading from socket"):
                await producer.send("errors", "y")
            own_server.cont()

    monkeypatch.setenv(
        "DISPATCHER_REDIS_URL", f"{own_server.url}{'&' if '?' in own_server.url else '?'}socket_timeout=0.2"
    )
    asyncio.run(main())


def test_a_wrong_password_is_a_fault_of_the_configuration(own_server: RedisServer) -> None:
    async def main() -> None:
        client = connect_async(own_server.url)
        with pytest.raises(ConfigError, match="asks for a password, and DISPATCHER_REDIS_URL has none"):
            await AsyncProducer(client).send("errors", "x")
        await client.aclose()

    with own_server.client() as client:
        client.config_set("requirepass", "other")
    asyncio.run(main())


def test_an_async_producer_from_the_environment_closes_what_it_opened(
    redis_url: str, redis: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with AsyncProducer.from_env() as producer:
            await producer.send("errors", "x", id="x")

    with EmbeddedServer.join(tmp_path / ".dispatcher"):
        asyncio.run(main())
    monkeypatch.setenv("DISPATCHER_REDIS_URL", redis_url)
    asyncio.run(main())
    assert queued(redis) == ["x"]


def test_the_loop_goes_on_while_the_server_that_is_left_ends(tmp_path: Path) -> None:
    async def main() -> None:
        with EmbeddedServer.join(tmp_path / ".dispatcher") as server, connect(server.url) as client:
            pid = int(client.info("server")["process_id"])
            producer = AsyncProducer.from_env()
        os.kill(pid, signal.SIGSTOP)
        closing = asyncio.create_task(producer.aclose())
        done, _ = await asyncio.wait({closing}, timeout=0.2)
        os.kill(pid, signal.SIGCONT)
        assert not done
        await closing

    asyncio.run(main())


@pytest.mark.parametrize("is_embedded", [False, True], ids=["url", "embedded"])
def test_a_producer_can_be_closed_where_no_thread_begins_any_more(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_embedded: bool
) -> None:
    async def main() -> None:
        with EmbeddedServer.join(tmp_path / ".dispatcher"):
            if not is_embedded:
                monkeypatch.setenv("DISPATCHER_REDIS_URL", redis_url)
            producer = AsyncProducer.from_env()
        await asyncio.get_running_loop().shutdown_default_executor()
        await producer.aclose()
        monkeypatch.delenv("DISPATCHER_REDIS_URL", raising=False)
        with pytest.raises(ConfigError, match="no embedded server"):
            AsyncProducer.from_env()

    asyncio.run(main())


def test_the_server_is_left_though_the_connections_cannot_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_client: redis.asyncio.Redis) -> None:
        raise OSError("no")

    async def main() -> None:
        with EmbeddedServer.join(tmp_path / ".dispatcher"):
            producer = AsyncProducer.from_env()
        with pytest.raises(OSError, match="no"):
            await producer.aclose()

    monkeypatch.setattr(redis.asyncio.Redis, "aclose", fail)
    asyncio.run(main())
    with pytest.raises(ConfigError, match="no embedded server"):
        AsyncProducer.from_env()


def test_without_a_server_it_starts_none() -> None:
    with pytest.raises(ConfigError, match="no embedded server"):
        AsyncProducer.from_env()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # what the loops that ended have left open
def test_one_producer_serves_one_event_loop_after_another(
    redis: Database, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_REDIS_URL", redis_url)
    producer = AsyncProducer.from_env()

    async def send_many_at_once(loop: int) -> None:
        await asyncio.gather(*(producer.send("errors", "text", id=f"{loop}-{n}") for n in range(40)))

    for loop in range(3):
        asyncio.run(send_many_at_once(loop))
    asyncio.run(producer.aclose())
    assert len(queued(redis)) == 120
    gc.collect()
