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
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as Unanswered

TRUSTED_S: Final = 0.05
"""A connection that was idle for longer is looked at before it is used: the server may have closed it."""


@dataclass(slots=True)
class _Pin:
    connection: Any  # redis-py's connection, of whatever class the pool makes
    used_s: float


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

    def execute(self, *command: str | bytes | int) -> Any:  # noqa: ANN401 - whatever the server answers
        """The answer to one command; raises as ``redis.Redis.execute_command`` does."""
        pin = self._take()
        connection = pin.connection
        try:
            packed = connection.pack_command(*command)
            connection.connect()  # where it is not: a Sentinel's connection asks for the primary here
            try:
                connection.send_packed_command(packed)
            except Unreachable:
                connection.connect()
                connection.send_packed_command(packed)
            return connection.read_response()
        except ResponseError:
            raise
        except BaseException:  # half an answer may be left on it, also when a signal broke in
            connection.disconnect()
            raise
        finally:
            pin.used_s = time.monotonic()
            self._idle.append(pin)

    def _take(self) -> _Pin:
        if self._pid != os.getpid():
            self._idle, self._pid = [], os.getpid()
        try:
            pin = self._idle.pop()
        except IndexError:
            return _Pin(self._pool.get_connection(), time.monotonic())
        if time.monotonic() - pin.used_s > TRUSTED_S:
            _refresh(pin.connection)
        return pin


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
            packed = connection.pack_command(*command)
            await connection.connect()
            try:
                await connection.send_packed_command(packed)
            except Unreachable:
                await connection.connect()
                await connection.send_packed_command(packed)
            return await connection.read_response()
        except ResponseError:
            raise
        except BaseException:  # half an answer may be left on it, also when the task was cancelled
            await connection.disconnect(nowait=True)
            raise
        finally:
            pin.used_s = time.monotonic()
            self._idle.append(pin)

    async def _take(self) -> _Pin:
        if not self._idle:
            return _Pin(await self._pool.get_connection(), time.monotonic())
        pin = self._idle.pop()
        if time.monotonic() - pin.used_s > TRUSTED_S:
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
