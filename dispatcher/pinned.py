"""Connections that stay with who calls again and again: taking one from redis-py's pool costs more than the answer."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as Unanswered

_LATE_S: Final = 0.5
"""An answer that is read so late after its command was sent has had that much of its time already."""

TRUSTED_S: Final = 0.05
"""A connection that was idle for longer is looked at before it is used: the server may have closed it."""


@dataclass(slots=True)
class _Pin:
    connection: Any  # redis-py's connection, of whatever class the pool makes
    used_s: float
    is_trusted: bool = True


class Pinned:
    """Commands over connections of one client that never go back to its pool; as many as call at the same time.

    Only a command that could not even be handed over, on a connection that the server had closed, goes out again on a
    new one. A lost reply raises what redis-py raises, and the connection is opened anew for the next command. Threads
    may share it; after a fork the child opens its own.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._pool: Any = client.connection_pool  # untyped in redis-py
        self._idle: list[_Pin] = []
        self._pid = os.getpid()
        self._timeout_s: float | None = None

    def hurry(self, timeout_s: float) -> None:
        """From the next command on wait no longer than this, to connect and for each answer."""
        self._timeout_s = timeout_s
        self._distrust()  # a connection knows how long it waits when it is opened

    def execute(self, *command: str | bytes | int) -> Any:  # noqa: ANN401 - whatever the server answers
        """The answer to one command; raises as ``redis.Redis.execute_command`` does."""
        return self.send(*command).answer()

    def send(self, *command: str | bytes | int) -> Asked:
        """Send one command and leave its answer for later; raises as ``execute`` where it cannot be handed over."""
        pin = self._take()
        connection = pin.connection
        try:
            packed = _packed(command)
            if self._timeout_s is not None:
                connection.socket_timeout = connection.socket_connect_timeout = self._timeout_s
            connection.connect()  # where it is not: a Sentinel's connection asks for the primary here
            try:
                connection.send_packed_command(packed)
            except Unreachable:
                connection.connect()
                connection.send_packed_command(packed)
        except BaseException as error:
            self._fail(pin, error)
            raise
        return Asked(self, pin)

    def _fail(self, pin: _Pin, error: BaseException) -> None:
        if not _is_answer(error):  # half an answer may be left on it, also when a signal broke in
            pin.connection.disconnect()
            self._distrust()
        self._put_back(pin)

    def _put_back(self, pin: _Pin) -> None:
        pin.used_s = time.monotonic()
        self._idle.append(pin)

    def _distrust(self) -> None:
        """What one connection has met the others may meet: each is opened anew, a Sentinel's at the new primary."""
        for pin in list(self._idle):
            pin.is_trusted = False

    def _take(self) -> _Pin:
        if self._pid != os.getpid():
            self._idle, self._pid = [], os.getpid()
        try:
            pin = self._idle.pop()
        except IndexError:
            return _Pin(self._pool.get_connection(), time.monotonic())
        if not pin.is_trusted:
            pin.connection.disconnect()
            pin.is_trusted = True
        elif time.monotonic() - pin.used_s > TRUSTED_S:
            _refresh(pin.connection)
        return pin


def _packed(command: tuple[str | bytes | int, ...]) -> list[bytes]:
    """The command as it is sent, in one piece: redis-py's own way takes three times as long, and sends many pieces."""
    words = [
        word.encode() if isinstance(word, str) else word if isinstance(word, bytes) else b"%d" % word
        for word in command
    ]
    return [b"*%d\r\n%b" % (len(words), b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]))]


def _is_answer(error: BaseException) -> bool:
    """Whether the connection is as good as before; not when a primary was made a replica, which is another server."""
    return isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError)


class Asked:
    """A command that was sent over a pinned connection, which it keeps until it is answered. For one thread."""

    __slots__ = ("_pin", "_pinned", "_sent_s")

    def __init__(self, pinned: Pinned, pin: _Pin) -> None:
        self._pinned = pinned
        self._pin = pin
        self._sent_s = time.monotonic()

    def answer(self) -> Any:  # noqa: ANN401 - whatever the server answers
        """Wait for the answer, once; raises as ``Pinned.execute`` does. The time to wait began when it was sent."""
        try:
            self._give_up_late()
            answer = self._pin.connection.read_response()
        except BaseException as error:
            self._pinned._fail(self._pin, error)  # noqa: SLF001 - the two are one
            raise
        self._pinned._put_back(self._pin)  # noqa: SLF001 - as above
        return answer

    def _give_up_late(self) -> None:
        waited_s = time.monotonic() - self._sent_s
        timeout_s = self._pin.connection.socket_timeout
        if waited_s < _LATE_S or timeout_s is None:
            return
        if not self._pin.connection.can_read(max(0.0, timeout_s - waited_s)):
            raise Unanswered("Timeout reading from socket")


def _refresh(connection: Any) -> None:  # noqa: ANN401 - see _Pin
    try:
        stale = connection.can_read()
    except (Unreachable, Unanswered, OSError):
        stale = True
    if stale:  # closed by the server, or with an answer that nobody waits for
        connection.disconnect()


class AsyncPinned:
    """``Pinned`` for a client of ``redis.asyncio``, in one event loop."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._pool: Any = client.connection_pool  # untyped in redis-py
        self._idle: list[_Pin] = []

    async def execute(self, *command: str | bytes | int) -> Any:  # noqa: ANN401 - whatever the server answers
        """The answer to one command; raises as ``redis.asyncio.Redis.execute_command`` does."""
        pin = await self._take()
        connection = pin.connection
        try:
            packed = _packed(command)
            await connection.connect()
            try:
                await connection.send_packed_command(packed)
            except Unreachable:
                await connection.connect()
                await connection.send_packed_command(packed)
            return await connection.read_response()
        except BaseException as error:
            if not _is_answer(error):  # half an answer may be left on it, also when the task was cancelled
                await connection.disconnect(nowait=True)
                for each in self._idle:  # see Pinned
                    each.is_trusted = False
            raise
        finally:
            pin.used_s = time.monotonic()
            self._idle.append(pin)

    async def _take(self) -> _Pin:
        if not self._idle:
            return _Pin(await self._pool.get_connection(), time.monotonic())
        pin = self._idle.pop()
        if not pin.is_trusted:
            await pin.connection.disconnect(nowait=True)
            pin.is_trusted = True
        elif time.monotonic() - pin.used_s > TRUSTED_S:
            try:
                stale = await pin.connection.can_read()
            except (Unreachable, Unanswered, OSError):
                stale = True
            if stale:
                await pin.connection.disconnect(nowait=True)
        return pin


_PINNED: Final[WeakKeyDictionary[redis.Redis, Pinned]] = WeakKeyDictionary()


def pinned(client: redis.Redis) -> Pinned:
    """The connections of a client, the same for all who ask."""
    found = _PINNED.get(client)
    if found is None:
        found = _PINNED[client] = Pinned(client)
    return found


_ASYNC_PINNED: Final[WeakKeyDictionary[redis.asyncio.Redis, AsyncPinned]] = WeakKeyDictionary()


def async_pinned(client: redis.asyncio.Redis) -> AsyncPinned:
    """The connections of a client of ``redis.asyncio``, the same for all who ask."""
    found = _ASYNC_PINNED.get(client)
    if found is None:
        found = _ASYNC_PINNED[client] = AsyncPinned(client)
    return found
