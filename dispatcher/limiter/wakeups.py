"""How those who wait in ``acquire`` are woken before their instant: one subscription for all who wait over a client.

It is a connection of its own, beside the client's pool, and lasts as long as somebody waits. A waiter's token is
"BELL:NUMBER"; who wakes it publishes the token on the channel of its bell. Where the connection breaks, all who wait
are woken to ask again, and it is opened anew; meanwhile they come at the instants that they were promised.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from dispatcher.errors import GateUnavailable
from dispatcher.jsonio import answer_text
from dispatcher.limiter.arguments import new_id
from dispatcher.server.connection import Pin, settings_of

HEARD_S: Final = 5.0
"""How long the server may take to confirm a subscription."""

_UNCONFIRMED: Final = f"Redis did not confirm a subscription within {HEARD_S:g} s"

IDLE_S: Final = 1.0
"""How long a thread goes on listening for nobody: the next to wait is often the one who waited."""

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0
"""Between two attempts to hear again."""


class Waiter:
    """One who waits: ``token`` is its name in the lines."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.rung = threading.Event()

    def wait(self, seconds: float) -> None:
        """Return when it is woken, after ``seconds`` at the latest."""
        self.rung.wait(min(seconds, threading.TIMEOUT_MAX))
        self.rung.clear()


class Bells:
    """The bells of all threads that wait over one server's pool: one thread listens for them."""

    def __init__(self) -> None:
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        self._name = new_id()
        self._changed = threading.Condition()
        self._waiters: dict[str, Waiter] = {}
        self._channels: set[str] = set()
        self._heard: set[str] = set()
        self._failures = 0
        self._failure: Exception | None = None
        self._listener: _Listener | None = None

    def begin_in_child(self) -> None:
        """Close the parent's connection in this child: while it is open, the server believes that the parent lives."""
        if self._listener is not None:
            self._listener.close()
        self._begin()

    @contextmanager
    def waiter(self, pool: Any, prefix: str, ends_s: float | None) -> Generator[Waiter | None, None, None]:  # noqa: ANN401 - untyped in redis-py
        """One more who waits, heard on the channel of this bell; None where it cannot be heard before the end.

        Raises what redis-py raises, and ``GateUnavailable`` where nothing is confirmed in time.
        """
        with self._changed:
            waiter = Waiter(f"{self._name}:{new_id()}")
            self._waiters[waiter.token] = waiter
        try:
            yield waiter if self._hear(pool, prefix + self._name, ends_s) else None
        finally:
            with self._changed:
                del self._waiters[waiter.token]
                if not self._waiters and self._listener is not None:
                    self._listener.poke()

    def _hear(self, pool: Any, channel: str, ends_s: float | None) -> bool:  # noqa: ANN401 - untyped in redis-py
        latest_s = time.monotonic() + HEARD_S
        with self._changed:
            if channel in self._heard:
                return True
            self._channels.add(channel)
            if self._listener is None:
                listener = _Listener(self, pool)
                listener.start()
                self._listener = listener
            else:
                self._listener.poke()
            failures = self._failures
            while channel not in self._heard:
                if self._failure is not None and self._failures > failures:
                    raise self._failure
                now_s = time.monotonic()
                if ends_s is not None and now_s >= ends_s:
                    return False
                if now_s >= latest_s:
                    raise GateUnavailable(_UNCONFIRMED)
                self._changed.wait(min(latest_s, latest_s if ends_s is None else ends_s) - now_s)
        return True

    # What the thread calls.

    def channels(self) -> set[str]:
        """What is to be heard."""
        with self._changed:
            return set(self._channels)

    def is_needed(self) -> bool:
        """Whether anybody waits."""
        with self._changed:
            return bool(self._waiters)

    def heard(self, channel: str) -> None:
        """A subscription was confirmed. When all are confirmed after a failure, all waiters are woken to join again."""
        with self._changed:
            self._heard.add(channel)
            if self._failure is not None and self._heard >= self._channels:
                self._failure = None
                self._ring_all()
            self._changed.notify_all()

    def ring(self, token: str) -> None:
        """Wake one, if it still waits."""
        with self._changed:
            if (waiter := self._waiters.get(token)) is not None:
                waiter.rung.set()

    def failed(self, error: Exception) -> None:
        """Nothing is heard any more; who waits asks the server itself, once."""
        with self._changed:
            self._heard.clear()
            self._failures += 1
            if self._failure is None:
                self._ring_all()
            self._failure = error
            self._changed.notify_all()

    def ended(self) -> bool:
        """Whether the thread may end, because nobody waits; who comes next begins another one."""
        with self._changed:
            if self._waiters:
                return False
            self._listener, self._failure = None, None
            self._heard.clear()
            self._channels.clear()
            return True

    def _ring_all(self) -> None:
        for waiter in self._waiters.values():
            waiter.rung.set()


class _Listener(threading.Thread):
    """The thread: subscribes to the channels of the bells and rings them."""

    def __init__(self, bells: Bells, pool: Any) -> None:  # noqa: ANN401 - untyped in redis-py
        super().__init__(name="limiter-bells", daemon=True)
        self._bells = bells
        self._pool = pool
        self._pin: Pin | None = None
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)  # noqa: FBT003 - socket's own
        self._theirs.setblocking(False)  # noqa: FBT003 - as above

    def start(self) -> None:
        """As of a thread; raises ``RuntimeError`` where there can be no more threads."""
        try:
            super().start()
        except RuntimeError:
            self.close()
            raise

    def poke(self) -> None:
        """Have it look at what has changed."""
        with suppress(OSError):  # it was poked often already, or has ended
            self._theirs.send(b"!")

    def close(self) -> None:
        """Close all it has."""
        for each in self._ours, self._theirs:
            each.close()
        if self._pin is not None:
            self._pin.connection.disconnect()

    def run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                begun_s = time.monotonic()
                try:
                    self._listen()
                except Exception as error:  # noqa: BLE001 - also one of the application's, as from a credential provider
                    self._bells.failed(error)
                else:
                    return
                if self._bells.ended():
                    return
                if time.monotonic() - begun_s > _LONGEST_PAUSE_S:
                    pause_s = _FIRST_PAUSE_S
                self._await(None, pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            self.close()

    def _listen(self) -> None:
        """Until nobody has waited for a while and this has ended; raises what redis-py raises."""
        pin = self._pin = Pin.like(self._pool)
        sent: set[str] = set()
        idle_since_s: float | None = None
        try:
            pin.open(time.monotonic() + HEARD_S)
            while True:
                for channel in self._bells.channels() - sent:
                    pin.connection.send_command("SUBSCRIBE", channel, check_health=False)
                    sent.add(channel)
                if self._bells.is_needed():
                    idle_since_s = None
                    self._await(pin, None)
                elif idle_since_s is None:
                    idle_since_s = time.monotonic()
                elif (left_s := idle_since_s + IDLE_S - time.monotonic()) > 0:
                    self._await(pin, left_s)
                elif self._bells.ended():
                    return
                while pin.connection.can_read():
                    self._read(pin)
        finally:
            pin.connection.disconnect()

    def _await(self, pin: Pin | None, seconds: float | None) -> None:
        """Wait until it is poked, or something can be read."""
        poller = select.poll()
        poller.register(self._ours, select.POLLIN)
        if pin is not None and pin.bound.socket is not None:
            poller.register(pin.bound.socket, select.POLLIN)
        poller.poll(None if seconds is None else 1000 * seconds)
        with suppress(BlockingIOError):
            self._ours.recv(4096)

    def _read(self, pin: Pin) -> None:
        pin.bound.ends_s = time.monotonic() + HEARD_S
        kind, channel, data = pin.connection.read_response()
        pin.bound.ends_s = None
        if answer_text(kind) == "subscribe":
            self._bells.heard(answer_text(channel))
        else:
            self._bells.ring(answer_text(data))


class AsyncWaiter:
    """``Waiter`` for asyncio."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.rung = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """As ``Waiter.wait``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.rung.wait()
        self.rung.clear()


class AsyncBells:
    """``Bells`` for tasks of one event loop; the task that listens ends with the last one who waits."""

    def __init__(self) -> None:
        self._name = new_id()
        self._waiters: dict[str, AsyncWaiter] = {}
        self._channels: set[str] = set()
        self._heard: set[str] = set()
        self._changed = asyncio.Event()
        self._failures = 0
        self._failure: Exception | None = None
        self._connection: Any = None
        self._listening: asyncio.Task[None] | None = None
        self._ending: WeakSet[asyncio.Task[Any] | None] = WeakSet()
        self._sending: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def waiter(self, pool: Any, prefix: str, ends_s: float | None) -> AsyncGenerator[AsyncWaiter | None, None]:  # noqa: ANN401 - untyped in redis-py
        """As ``Bells.waiter``."""
        waiter = AsyncWaiter(f"{self._name}:{new_id()}")
        self._waiters[waiter.token] = waiter
        try:
            yield waiter if await self._hear(pool, prefix + self._name, ends_s) else None
        finally:
            del self._waiters[waiter.token]
            if not self._waiters:
                await self._end()

    async def _hear(self, pool: Any, channel: str, ends_s: float | None) -> bool:  # noqa: ANN401 - untyped in redis-py
        if channel not in self._channels:
            self._channels.add(channel)
            if self._connection is not None:
                self._subscribe(channel)
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen(pool))
        failures, failure = self._failures, None
        left_s = HEARD_S if ends_s is None else min(HEARD_S, ends_s - time.monotonic())
        try:
            async with asyncio.timeout(left_s):
                while failure is None and channel not in self._heard:
                    await self._changed.wait()
                    failure = self._failure if self._failures > failures else None
        except TimeoutError as error:
            if left_s < HEARD_S:
                return False
            raise GateUnavailable(_UNCONFIRMED) from error
        if failure is not None:
            raise failure
        return True

    async def _end(self) -> None:
        """Stop listening, and return when it has ended."""
        listening, self._listening, self._connection, self._failure = self._listening, None, None, None
        self._channels.clear()
        self._heard.clear()
        while listening is not None and not listening.done():
            if listening not in self._ending:  # asyncio.wait_for may swallow one that comes as a send ends
                listening.cancel()
            await asyncio.wait({listening}, timeout=0.05)
            self._ending.discard(listening)

    async def _listen(self, pool: Any) -> None:  # noqa: ANN401 - untyped in redis-py
        pause_s = _FIRST_PAUSE_S
        while True:
            connection = pool.connection_class(**{**settings_of(pool), "socket_timeout": None})
            try:
                await self._connect(connection)
                self._connection = connection
                for channel in self._channels:
                    self._subscribe(channel)
                while self._connection is connection:
                    self._read(await connection.read_response())
                    pause_s = _FIRST_PAUSE_S
            except Exception as error:  # noqa: BLE001 - as in _Listener
                self._failures += 1
                if self._failure is None:
                    self._ring_all()
                self._failure = error
            finally:
                if self._connection is connection:
                    self._connection = None
                    self._heard.clear()
                self._tell()
                self._ending.add(asyncio.current_task())
                await connection.disconnect(nowait=True)
                await asyncio.gather(*self._sending, return_exceptions=True)
                self._ending.discard(asyncio.current_task())
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _connect(self, connection: Any) -> None:  # noqa: ANN401 - untyped in redis-py
        bound = asyncio.timeout(HEARD_S)
        try:
            async with bound:
                await connection.connect()
        except TimeoutError as error:
            if bound.expired():
                raise GateUnavailable(_UNCONFIRMED) from error
            raise  # one of the application's

    def _subscribe(self, channel: str) -> None:
        """In a task, so that one who is cancelled while it joins breaks no command for the others."""
        sending = asyncio.create_task(self._connection.send_command("SUBSCRIBE", channel, check_health=False))
        self._sending.add(sending)
        sending.add_done_callback(self._sent)

    def _sent(self, sending: asyncio.Task[None]) -> None:
        self._sending.discard(sending)
        if not sending.cancelled():
            sending.exception()  # who reads meets the same

    def _read(self, message: Any) -> None:  # noqa: ANN401 - whatever the server sends
        kind, channel, data = message
        if answer_text(kind) == "subscribe":
            self._heard.add(answer_text(channel))
            if self._failure is not None and self._heard >= self._channels:
                self._failure = None
                self._ring_all()
            self._tell()
        elif (waiter := self._waiters.get(answer_text(data))) is not None:
            waiter.rung.set()

    def _ring_all(self) -> None:
        for waiter in self._waiters.values():
            waiter.rung.set()

    def _tell(self) -> None:
        """Wake who waits for a subscription."""
        self._changed.set()
        self._changed = asyncio.Event()


_ALL: Final[WeakSet[Bells]] = WeakSet()
_BELLS: Final[WeakKeyDictionary[Any, Bells]] = WeakKeyDictionary()
_ASYNC_BELLS: Final[WeakKeyDictionary[Any, dict[str, AsyncBells]]] = WeakKeyDictionary()


def _begin_in_child() -> None:
    for bells in list(_ALL):
        bells.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)


def bells_of(client: Any, key: str) -> tuple[Bells, Any]:  # noqa: ANN401 - redis.Redis or RedisCluster
    """The bells of a client, and the pool that their connection is like; of a cluster, of the node that has the key."""
    if not isinstance(client, Redis):
        client = client.get_redis_connection(client.get_node_from_key(key))
    pool: Any = client.connection_pool
    if pool not in _BELLS:
        _BELLS.setdefault(pool, Bells())  # in one step: threads ask
    return _BELLS[pool], pool


def async_bells_of(client: Any, key: str) -> tuple[AsyncBells, Any]:  # noqa: ANN401 - of redis.asyncio
    """``bells_of`` for a client of ``redis.asyncio``; a node of a cluster holds what a pool holds."""
    pool: Any = client.connection_pool if isinstance(client, AsyncRedis) else client.get_node_from_key(key)
    known = _ASYNC_BELLS.setdefault(client, {})
    name = "" if isinstance(client, AsyncRedis) else pool.name
    if name not in known:
        known[name] = AsyncBells()
    return known[name], pool
