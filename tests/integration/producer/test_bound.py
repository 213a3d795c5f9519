"""``QueueUnavailable`` comes within two seconds, whatever a server does, or what stands before it."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from traceback import walk_stack
from typing import Any, Final

import pytest
import redis.asyncio
from redis import Redis

import dispatcher.server.connection
from dispatcher import AsyncProducer, Producer, QueueUnavailable
from dispatcher.producer.blocking import CHUNK
from dispatcher.server.clients import connect, connect_async
from dispatcher.server.within import Within
from tests.support.hung_servers import HUNG, RESETTING, dripping, listening, silent, swallowing
from tests.support.processes import until
from tests.support.servers import RedisServer, free_port

WITHIN_S: Final = 2.0
BUSY_S: Final = 1.5
"""What a busy machine may add; less than what a second wait would."""

GIVEN_UP_S: Final = 12.0

Call = Callable[[Any], Any]


def send(producer: Any) -> Any:  # noqa: ANN401 - of one kind or the other
    return producer.send("errors", "x")


def send_many(producer: Any) -> Any:  # noqa: ANN401 - of one kind or the other
    return producer.send_many([{"category": "errors", "text": "x"}] * (CHUNK + 1))


def explain(producer: Any) -> Any:  # noqa: ANN401 - of one kind or the other
    return producer.explain("x")


def plain(call: Call, url: str, *, own: bool) -> float:
    """How long the call of a producer took to raise ``QueueUnavailable``, on a client of ours or of the user."""
    taken: list[float] = []
    client = connect(url, timeout_s=2) if own else Redis.from_url(url)

    def run() -> None:
        begun = time.monotonic()
        try:
            call(Producer(client))
        except QueueUnavailable:
            taken.append(time.monotonic() - begun)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(GIVEN_UP_S)
    assert taken, f"it neither returned nor raised within {GIVEN_UP_S:g} s"
    client.close()
    return taken[0]


def concurrent(call: Call, url: str, *, own: bool) -> float:
    async def main() -> float:
        client = connect_async(url, timeout_s=2) if own else redis.asyncio.Redis.from_url(url)
        begun = time.monotonic()
        async with asyncio.timeout(GIVEN_UP_S):
            with pytest.raises(QueueUnavailable):
                await call(AsyncProducer(client))
        taken_s = time.monotonic() - begun
        await client.aclose()
        return taken_s

    return asyncio.run(main())


Taken = Callable[..., float]
KINDS: Final = pytest.mark.parametrize("taken", [plain, concurrent], ids=["Producer", "AsyncProducer"])
OURS: Final = {"of the environment": True, "the user's client": False}


def late(calls: Iterable[Call], urls: Mapping[str, str], clients: Mapping[str, bool]) -> dict[str, float]:
    """What took too long, of every call of both producers at each address: all of them wait at the same time."""
    waits = {
        f"{call.__name__} of {taken.__name__}, {client}, {name}": partial(taken, call, url, own=own)
        for call in calls
        for taken in (plain, concurrent)
        for client, own in clients.items()
        for name, url in urls.items()
    }
    with ThreadPoolExecutor(len(waits)) as threads:
        waiting = {words: threads.submit(wait) for words, wait in waits.items()}
        found = {words: each.result() for words, each in waiting.items()}
    return {words: taken_s for words, taken_s in found.items() if taken_s >= WITHIN_S + BUSY_S}


def test_a_server_that_hangs_or_resets_connections_is_unavailable_within_two_seconds() -> None:
    with ExitStack() as servers:
        ports = {serve.__name__: servers.enter_context(listening(serve)) for serve in (*HUNG, *RESETTING)}
        ports["swallowing"] = servers.enter_context(swallowing())
        assert not late([send], {name: f"redis://127.0.0.1:{port}/0" for name, port in ports.items()}, OURS)


def test_every_call_keeps_to_the_two_seconds() -> None:
    with ExitStack() as servers:
        ports = {serve.__name__: servers.enter_context(listening(serve)) for serve in HUNG}
        urls = {name: f"redis://127.0.0.1:{port}/0" for name, port in ports.items()}
        assert not late([send_many, explain], urls, {"the user's client": False})


def test_tls_and_sentinels_that_hang_are_unavailable_within_two_seconds() -> None:
    with listening(silent) as one, listening(silent) as other, listening(dripping) as third:
        urls = {
            "TLS": f"rediss://127.0.0.1:{one}/0",
            "silent": f"sentinel://127.0.0.1:{one},127.0.0.1:{other}/main/0",
            "dripping": f"sentinel://127.0.0.1:{third},127.0.0.1:{other}/main/0",
        }
        assert not late([send], urls, {"of the environment": True})


@contextmanager
def stuck_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No name is found until the event is set."""
    found, look_up = threading.Event(), socket.getaddrinfo

    def stuck(host: str, *arguments: Any, **options: Any) -> Sequence[Any]:  # noqa: ANN401 - as of the real one
        found.wait(GIVEN_UP_S)
        return look_up("127.0.0.1" if host == "redis.test" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", stuck)
    try:
        yield found
    finally:
        found.set()


@KINDS
def test_a_name_that_is_not_found_in_time_is_unavailable_within_two_seconds(
    monkeypatch: pytest.MonkeyPatch, taken: Taken
) -> None:
    async def send_and_let_go(producer: AsyncProducer) -> None:
        try:
            await producer.send("errors", "x")
        finally:
            found.set()  # asyncio.run waits for the thread that looks the name up

    with stuck_names(monkeypatch) as found:
        call = send_and_let_go if taken is concurrent else send
        assert taken(call, "redis://redis.test:1/0", own=True) < WITHIN_S + BUSY_S


def connecting() -> int:
    """Threads that open a connection."""
    stacks = sys._current_frames().values()  # noqa: SLF001 - nothing else knows of all threads
    return sum(any(frame.f_code.co_name == "_open" for frame, _ in walk_stack(stack)) for stack in stacks)


def test_a_call_after_one_that_timed_out_waits_for_the_same_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each call before a name server that hangs would leave one more thread behind."""
    with (
        RedisServer(port=free_port()) as server,
        connect(server.url.replace("127.0.0.1", "redis.test"), timeout_s=2) as client,
    ):
        producer = Producer(client)
        with stuck_names(monkeypatch) as found:
            for _ in range(2):
                with pytest.raises(QueueUnavailable, match="Timeout connecting to server"):
                    producer.send("errors", "x")
            assert connecting() == 1
            threading.Timer(0.3, found.set).start()
            assert producer.send("errors", "y", id="y") == "y"
        until(lambda: connecting() == 0, "the end of the thread")


@pytest.mark.parametrize("trusted_s", [GIVEN_UP_S, 0.0], ids=["used as it is", "looked at before"])
def test_an_open_connection_to_a_server_that_hangs_is_waited_for_once(
    own_server: RedisServer, trusted_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher.server.connection, "TRUSTED_S", trusted_s)
    with connect(own_server.url, timeout_s=2) as client:
        producer = Producer(client)
        producer.send("errors", "x")
        own_server.freeze()
        begun = time.monotonic()
        with pytest.raises(QueueUnavailable):
            producer.send("errors", "y", id="y")
        assert 1.9 < time.monotonic() - begun < WITHIN_S + BUSY_S
        own_server.cont()
        assert producer.send("errors", "y", id="y") == "y"


def test_hundreds_of_threads_may_send_at_once(own_server: RedisServer) -> None:
    """More than a pool of redis-py has connections."""
    failed: list[BaseException] = []
    with own_server.client() as client:
        producer, ready = Producer(client), threading.Barrier(150)

        def run() -> None:
            ready.wait()
            try:
                producer.send("errors", "x")
            except BaseException as error:  # noqa: BLE001 - none is expected
                failed.append(error)

        threads = [threading.Thread(target=run) for _ in range(150)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert client.llen("rq:queue:notifications") == 150


def test_hundreds_of_tasks_may_send_at_once(own_server: RedisServer) -> None:
    async def main() -> None:
        async with redis.asyncio.Redis.from_url(own_server.url) as client:
            producer = AsyncProducer(client)
            sends: list[Awaitable[str]] = [producer.send("errors", "x") for _ in range(300)]
            assert len(set(await asyncio.gather(*sends))) == 300

    asyncio.run(main())


def test_tasks_that_wait_for_a_connection_to_a_server_that_hangs_keep_to_the_two_seconds() -> None:
    async def taken_s(producer: AsyncProducer) -> float:
        begun = time.monotonic()
        with pytest.raises(QueueUnavailable):
            await producer.send("errors", "x")
        return time.monotonic() - begun

    async def slept_s() -> float:
        begun = time.monotonic()
        await asyncio.sleep(WITHIN_S)
        return time.monotonic() - begun

    async def main(port: int) -> list[float]:
        client = connect_async(f"redis://127.0.0.1:{port}/0", timeout_s=2)
        producer = AsyncProducer(client)
        taken = await asyncio.gather(slept_s(), *(taken_s(producer) for _ in range(200)))
        await client.aclose()
        return taken

    with listening(silent) as port:
        asleep_s, *taken = asyncio.run(main(port))  # what the machine adds, it adds to both
    assert max(taken) < asleep_s + BUSY_S


def test_what_swallows_cancellations_is_cancelled_until_it_ends() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await swallow_within()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    async def swallow_within() -> None:
        async with Within(0.01):
            for _ in range(3):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)
            await asyncio.sleep(60)

    asyncio.run(main())


def test_a_task_that_somebody_else_cancels_ends_as_cancelled() -> None:
    async def main() -> None:
        task = asyncio.create_task(sleep())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def sleep() -> None:
        async with Within(60):
            await asyncio.sleep(60)

    asyncio.run(main())
