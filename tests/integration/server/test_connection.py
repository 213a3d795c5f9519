"""Connections of our own beside a user's pool; commands to a server that hangs, and the last ones before an end."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import redis.asyncio
from redis import BlockingConnectionPool, ConnectionPool, Redis, UnixDomainSocketConnection
from redis.exceptions import TimeoutError as Unanswered

import dispatcher.server.connection
from dispatcher.limiter import AsyncLimiter, Limit, Limiter, Scope
from dispatcher.server.clients import connect
from dispatcher.server.connection import Pinned, pinned, shorten_timeout
from tests.support.hung_servers import dripping_after_the_handshake, listening
from tests.support.processes import until
from tests.support.servers import Database, RedisServer, free_port

PATIENCE_S: Final = 20
USER: Final = Scope("user", (Limit.parse("1000000/1m"),))


def in_threads(count: int, call: Callable[[], object]) -> list[BaseException]:
    """Call in so many threads that begin together, each as often; returns what they raised."""
    failed: list[BaseException] = []
    ready = threading.Barrier(count)

    def run() -> None:
        ready.wait()
        try:
            for _ in range(50):
                call()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test has to see it
            failed.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    return failed


def connections(watcher: Database) -> int:
    """How many there are beside the watcher's."""
    return len(watcher.client_list()) - 1


@pytest.fixture(params=[ConnectionPool, BlockingConnectionPool])
def pool(request: pytest.FixtureRequest, own_server: RedisServer) -> ConnectionPool:
    """A user's pool of four."""
    options = {"timeout": 1} if request.param is BlockingConnectionPool else {}
    made: ConnectionPool = request.param(
        connection_class=UnixDomainSocketConnection, path=str(own_server.socket), max_connections=4, **options
    )
    return made


def test_a_users_bounded_pool_is_left_to_the_user(pool: ConnectionPool, own_server: RedisServer) -> None:
    with Redis.from_pool(pool) as client, own_server.client() as watcher:
        limiter = Limiter(client, namespace="shop")
        taken = [pool.get_connection() for _ in range(4)]  # by the application, all there are
        assert in_threads(20, lambda: limiter.try_acquire(USER)) == []
        assert 5 <= connections(watcher) <= 8, "the limiter's are bounded like the pool"
        for each in taken:
            pool.release(each)
        assert in_threads(4, lambda: client.get("x")) == []


def test_closing_a_client_closes_the_connections_beside_its_pool(own_server: RedisServer) -> None:
    client = own_server.client()
    limiter = Limiter(client, namespace="shop")
    with own_server.client() as watcher:
        assert in_threads(5, lambda: limiter.try_acquire(USER)) == []
        assert connections(watcher) >= 1
        client.close()
        until(lambda: connections(watcher) == 0, "the end of the connections")
        assert limiter.try_acquire(USER), "as redis-py's, a client that was closed opens anew"
        client.close()
        until(lambda: connections(watcher) == 0, "the end of the connection")


def test_clients_that_share_a_pool_share_the_connections_beside_it(own_server: RedisServer) -> None:
    with own_server.client() as first, own_server.client() as watcher:
        for _ in range(20):  # as a web application may do it, a client for each request
            Limiter(Redis(connection_pool=first.connection_pool), namespace="shop").try_acquire(USER)
        assert connections(watcher) == 1


def test_a_connection_that_the_server_closed_loses_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TCP a command can still be sent over it, and nothing answers."""
    monkeypatch.setattr(dispatcher.server.connection, "TRUSTED_S", 0.0)
    with RedisServer(port=free_port()) as server, connect(server.url) as client, server.client() as watcher:
        commands = pinned(client)
        watcher.client_kill_filter(_id=commands.execute("CLIENT", "ID"))
        assert commands.execute("PING") == b"PONG"


def test_connections_that_nobody_needs_any_more_are_closed(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_server.client() as client, own_server.client() as watcher:
        commands = pinned(client)
        for asked in [commands.send("PING") for _ in range(6)]:
            asked.answer()
        assert connections(watcher) == 6
        monkeypatch.setattr(dispatcher.server.connection, "KEPT_S", 0.0)
        for _ in range(10):
            commands.execute("PING")
        until(lambda: connections(watcher) == 1, "one connection")


def test_a_child_uses_no_connection_of_its_parent(own_server: RedisServer) -> None:
    with own_server.client() as client, own_server.client() as watcher:
        commands = pinned(client)
        mine = commands.execute("CLIENT", "ID")
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writes, b"%d" % commands.execute("CLIENT", "ID"))
            os._exit(0)
        os.close(writes)
        with os.fdopen(reads, "rb") as pipe:
            theirs = int(pipe.read())
        os.waitpid(child, 0)
        assert theirs != mine
        assert commands.execute("CLIENT", "ID") == mine, "the end of the child did not close it"
        until(lambda: connections(watcher) == 1, "the end of the child's connection")


def test_a_connection_that_is_in_use_at_the_fork_does_not_come_back_in_the_child(own_server: RedisServer) -> None:
    with own_server.client() as client:
        commands = pinned(client)
        asked = commands.send("CLIENT", "ID")
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writes, b"%d %d" % (asked.answer(), commands.execute("CLIENT", "ID")))
            os._exit(0)
        os.close(writes)
        with os.fdopen(reads, "rb") as pipe:
            mine, theirs = pipe.read().split()
        os.waitpid(child, 0)
        assert theirs != mine


def test_no_thread_of_a_child_uses_a_connection_of_the_parent(own_server: RedisServer) -> None:
    """While one looks for its first connection, another one sends a command: at any step of the former."""

    def used_in_child(commands: Pinned, step: int) -> tuple[bool, list[int]]:
        """Whether there was such a step, and the connections that the child's threads used."""
        used: list[int] = []
        left = step

        def use() -> None:
            used.append(commands.execute("CLIENT", "ID"))

        def trace(frame: Any, _event: str, _argument: object) -> Any:  # noqa: ANN401 - as of sys.settrace
            nonlocal left
            if frame.f_code.co_filename != dispatcher.server.connection.__file__:
                return None
            if frame.f_code.co_name == "_take":  # it holds no lock
                left -= 1
                if left == -1:
                    other = threading.Thread(target=use)
                    other.start()
                    other.join(PATIENCE_S)
            return trace

        sys.settrace(trace)
        use()
        sys.settrace(None)
        return left < 0, used

    with own_server.client() as client:
        commands = pinned(client)
        mine = commands.execute("CLIENT", "ID")
        step, is_step = 0, True
        while is_step:
            reads, writes = os.pipe()
            child = os.fork()
            if child == 0:
                is_step, used = used_in_child(commands, step)
                os.write(writes, bytes([is_step, mine in used]))
                os._exit(0)
            os.close(writes)
            with os.fdopen(reads, "rb") as pipe:
                is_step, is_shared = map(bool, pipe.read())
            os.waitpid(child, 0)
            assert not is_shared, f"at step {step}"
            step += 1
        assert step > 3


def test_an_interrupted_caller_leaves_its_place_to_others(own_server: RedisServer) -> None:
    with Redis(unix_socket_path=str(own_server.socket), max_connections=1) as client:
        commands = pinned(client)
        commands._take(None)  # noqa: SLF001 - as if a signal broke in before anything else was done with it
        assert commands.execute("PING") == b"PONG"


def test_a_caller_that_a_signal_interrupts_at_any_step_holds_nothing_that_others_need(own_server: RedisServer) -> None:
    class Interrupted(BaseException):
        """What a signal handler raises."""

    def interrupt_at(step: int) -> Callable[[Any, str, object], None]:
        """Raises where the interpreter lets a signal handler run: as a function begins, and as one of C has ended."""
        left = step

        def profile(frame: Any, event: str, _argument: object) -> None:  # noqa: ANN401 - as of sys.setprofile
            nonlocal left
            if event in {"call", "c_return"} and frame.f_code.co_filename in files:
                left -= 1
                if left < 0:
                    raise Interrupted

        return profile

    def is_interrupted(step: int) -> bool:
        with connect(own_server.url) as client:
            commands, others = pinned(client), list[BaseException]()
            sys.setprofile(interrupt_at(step))
            try:
                commands.execute("PING", ends_s=time.monotonic() + PATIENCE_S)
            except Interrupted:
                return True
            finally:
                sys.setprofile(None)
                others += in_threads(1, lambda: commands.execute("PING", ends_s=time.monotonic() + PATIENCE_S))
                assert others == [], f"after an interruption at step {step}"
            return False

    files = {dispatcher.server.connection.__file__, threading.__file__}
    steps = 0
    while is_interrupted(steps):
        steps += 1
    assert steps > 20


def test_an_answer_that_drips_ends_at_the_clients_timeout() -> None:
    with listening(dripping_after_the_handshake) as port, connect(f"redis://127.0.0.1:{port}/0", timeout_s=1) as client:
        begun = time.monotonic()
        with pytest.raises(Unanswered):
            pinned(client).execute("EVALSHA", "x", 0)
        assert time.monotonic() - begun < 2.5


def test_a_large_answer_that_is_read_late_is_read_whole(own_server: RedisServer) -> None:
    """More than a socket holds: its end is sent when its beginning is read."""
    with connect(own_server.url) as filling, connect(own_server.url, timeout_s=1) as client:
        filling.set("large", b"x" * 20_000_000)
        commands = pinned(client)
        early, late = commands.send("BLPOP", "nothing", "1.6"), commands.send("GET", "large")
        with pytest.raises(Unanswered):
            early.answer()
        assert len(late.answer()) == 20_000_000


def test_an_asyncio_pool_is_left_to_the_user_and_its_end_is_ours_too(own_server: RedisServer) -> None:
    async def main() -> None:
        client: Any = redis.asyncio.Redis.from_url(own_server.url, max_connections=1)
        limiter = AsyncLimiter(client, namespace="shop")
        taken = await client.connection_pool.get_connection()
        calls = [limiter.try_acquire_many([USER]) for _ in range(100)]
        assert len(await asyncio.gather(*calls)) == 100
        assert connections(watcher) == 2
        await client.connection_pool.release(taken)
        assert await client.get("x") is None
        await client.aclose()

    with own_server.client() as watcher:
        asyncio.run(main())
        until(lambda: connections(watcher) == 0, "the end of the connections")


@pytest.fixture
def commands(own_server: RedisServer) -> Iterator[Pinned]:
    """Three open connections, each of which waits two seconds, to a server that hangs."""
    with connect(own_server.url, timeout_s=2) as client:
        found = pinned(client)
        for asked in [found.send("PING") for _ in range(3)]:
            assert asked.answer() == b"PONG"
        own_server.freeze()
        yield found
        own_server.cont()


def test_commands_that_were_sent_together_are_given_up_together(commands: Pinned) -> None:
    sent = [commands.send("PING") for _ in range(3)]
    begun = time.monotonic()
    for asked in sent:
        with pytest.raises(Unanswered):
            asked.answer()
    assert 1.5 < time.monotonic() - begun < 3.5


def test_an_answer_that_is_read_late_was_there_in_time(own_server: RedisServer) -> None:
    with connect(own_server.url, timeout_s=1) as client:
        commands = pinned(client)
        early, late = commands.send("BLPOP", "nothing", "1.6"), commands.send("PING")
        with pytest.raises(Unanswered):
            early.answer()
        assert late.answer() == b"PONG"


def test_a_shortened_time_out_bounds_open_connections_too(own_server: RedisServer) -> None:
    with connect(own_server.url, timeout_s=60) as client:
        commands = pinned(client)
        assert commands.execute("PING") == b"PONG"
        own_server.freeze()
        shorten_timeout(client, 0.3)
        begun = time.monotonic()
        for _ in range(2):
            with pytest.raises(Unanswered):
                commands.execute("PING")
        assert time.monotonic() - begun < 10
        own_server.cont()
