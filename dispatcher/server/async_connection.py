"""``connection`` for asyncio: scripts, and connections of our own."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

import redis.asyncio
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as Unanswered

from dispatcher.server.connection import (
    KEPT_S,
    TRUSTED_S,
    Pin,
    digest_of,
    is_answer,
    pack,
    settings_of,
    translate_outages,
)
from dispatcher.server.scripts import read_script
from dispatcher.server.within import Within

_MOST: Final = 16
"""More would not be faster: a loop sends fewer than one connection carries, unless the server is far away."""


class AsyncScript:
    """``Script`` for asyncio, on a client or cluster client of ``redis.asyncio``."""

    def __init__(self, client: Any, name: str) -> None:  # noqa: ANN401 - the two have no common type
        self._text = read_script(name)
        self._digest = digest_of(self._text)
        self._client = client  # as of Script
        self.once = isinstance(client, redis.asyncio.Redis)
        """Whether a call is sent once at most; a cluster's client may repeat it by itself."""
        self._execute = async_pinned(client).execute if self.once else None
        self._script = client.register_script(self._text)

    async def __call__(self, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:  # noqa: ANN401 - what Lua returns
        """Run it; raises ``GateUnavailable`` when the server is away."""
        with translate_outages():
            if self._execute is None:
                return await self._script(keys, args)
            try:
                return await self._execute("EVALSHA", self._digest, len(keys), *keys, *args)
            except NoScriptError:
                return await self._execute("EVAL", self._text, len(keys), *keys, *args)


class AsyncPinned:
    """``Pinned`` for a client of ``redis.asyncio``; at most 16 commands are on their way at once.

    In one event loop at a time: in the next one it begins anew, and the connections of the loop that ended are left.
    """

    def __init__(self, pool: Any) -> None:  # noqa: ANN401 - untyped in redis-py
        self._pool = ref(pool)
        self._most = min(_MOST, pool.max_connections)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._generation = 0

    def _enter_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._room = asyncio.Semaphore(self._most)
            self._idle: deque[Pin] = deque()
            self._generation += 1

    async def execute(self, *command: str | bytes | int) -> Any:  # noqa: ANN401 - whatever the server answers
        """The answer to one command; raises as ``redis.asyncio.Redis.execute_command`` does."""
        packed = pack(command)
        self._enter_loop()
        async with self._room:
            pin = await self._take()
            connection = pin.connection
            try:
                await connection.connect()
                try:
                    await connection.send_packed_command(packed, check_health=False)
                except Unreachable:
                    await connection.connect()
                    await connection.send_packed_command(packed, check_health=False)
                answer = await _answer(connection)
            except BaseException as error:
                if is_answer(error):
                    await self._put_back(pin)
                else:  # half an answer may be left on it, also when the task was cancelled
                    await connection.disconnect(nowait=True)
                    await self._drop_idle()  # see Pinned
                raise
            await self._put_back(pin)
            return answer

    async def close(self) -> None:
        """As ``Pinned.close``."""
        self._enter_loop()
        self._generation += 1
        await self._drop_idle(nowait=False)

    async def _take(self) -> Pin:
        while self._idle:
            pin = self._idle.pop()
            if time.monotonic() - pin.used_s <= TRUSTED_S:
                return pin
            with suppress(Unreachable, Unanswered, OSError):
                if not await _can_read(pin.connection):
                    return pin
            await pin.connection.disconnect(nowait=True)
        pool: Any = self._pool()
        if pool is None:
            raise Unreachable("the client of this connection is gone")
        return Pin(pool.connection_class(**settings_of(pool)), self._generation)

    async def _put_back(self, pin: Pin) -> None:
        if pin.generation != self._generation:
            await pin.connection.disconnect(nowait=True)
            return
        pin.used_s = time.monotonic()
        self._idle.append(pin)
        if self._idle[0].used_s < pin.used_s - KEPT_S:
            await self._idle.popleft().connection.disconnect(nowait=True)

    async def _drop_idle(self, *, nowait: bool = True) -> None:
        while self._idle:
            await self._idle.pop().connection.disconnect(nowait=nowait)


async def _answer(connection: Any) -> Any:  # noqa: ANN401 - redis-py's, and whatever the server answers
    """What is read within the connection's time-out. redis-py's own way loses what came while the loop stood still."""
    timeout_s = connection.socket_timeout
    try:
        async with Within(math.inf if timeout_s is None else timeout_s):
            return await connection.read_response(timeout=math.inf)
    except TimeoutError as error:
        raise Unanswered("Timeout reading from socket") from error


async def _can_read(connection: Any) -> bool:  # noqa: ANN401 - redis-py's, of whatever class the pool makes
    """Whether something is there to be read, which may be lost by the look: redis-py before 8.0 says so in the name."""
    look = connection.can_read if hasattr(connection, "can_read") else connection.can_read_destructive
    there: bool = await look()
    return there


_PINNED: Final[WeakKeyDictionary[Any, AsyncPinned]] = WeakKeyDictionary()


def async_pinned(client: redis.asyncio.Redis) -> AsyncPinned:
    """``pinned`` for a client of ``redis.asyncio``."""
    pool: Any = client.connection_pool  # untyped in redis-py
    found = _PINNED.get(pool)
    if found is None:
        found = _PINNED[pool] = AsyncPinned(pool)
        kind, that = type(pool), ref(pool)

        async def disconnect(*arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as of the pool
            if (pool := that()) is not None:
                await kind.disconnect(pool, *arguments, **options)
                await _PINNED[pool].close()

        pool.disconnect = disconnect
    return found
