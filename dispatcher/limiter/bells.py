"""How those who wait in ``acquire`` are woken before their instant: a channel each, heard before they join."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any, Final, Self
from weakref import WeakSet

from redis import BlockingConnectionPool, ConnectionPool, Redis

from dispatcher.connection import Client, answered

HEARD_S: Final = 5.0
"""How long the server may take to confirm a subscription."""


class Bell:
    """One waiter's channel; a context manager, subscribed to once it is entered."""

    def __init__(self, client: Client, channel: str) -> None:
        self._channel = channel
        self._pool = _own_pool(client)
        listener: Any = client if self._pool is None else Redis(connection_pool=self._pool)
        self._listener = listener.pubsub()  # redis-py leaves it untyped

    def __enter__(self) -> Self:
        with answered():
            self._listener.subscribe(self._channel)
            ends = time.monotonic() + HEARD_S
            while self._listener.get_message(timeout=HEARD_S) is None and time.monotonic() < ends:
                continue
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        if self._pool is not None:
            self._pool.disconnect()

    def wait(self, seconds: float) -> None:
        """Return when it rings, and after ``seconds`` at the latest, never before without a ring."""
        ends = time.monotonic() + seconds
        with answered():
            while (left_s := ends - time.monotonic()) > 0:
                if self._listener.get_message(timeout=left_s) is not None:
                    return


def _own_pool(client: Client) -> ConnectionPool | None:
    """A pool of one like the client's, so that those who wait use up none of its connections.

    None where a connection is chosen in another way than by its settings (Sentinel, cluster).
    """
    pool: Any = getattr(client, "connection_pool", None)
    if type(pool) not in {ConnectionPool, BlockingConnectionPool}:
        return None
    return ConnectionPool(connection_class=pool.connection_class, max_connections=1, **pool.connection_kwargs)


class AsyncBells:
    """The bells of all tasks of one asyncio limiter: one subscription, for as long as somebody waits."""

    def __init__(self, client: Any, channel: str) -> None:  # noqa: ANN401 - redis.asyncio's client or cluster client
        self._client = client
        self._channel = channel
        self._rung: dict[str, asyncio.Event] = {}
        self._listening: asyncio.Task[None] | None = None
        self._ending: WeakSet[asyncio.Task[Any] | None] = WeakSet()
        self._heard = asyncio.Event()

    async def join(self, token: str) -> None:
        """Hear the bell of this waiter from now on; again after a lost connection. Raises what the server says."""
        self._rung.setdefault(token, asyncio.Event())
        if self._listening is None or self._listening.done():
            self._heard = asyncio.Event()
            self._listening = asyncio.create_task(self._listen(self._heard))
        if self._heard.is_set():
            return
        listening = self._listening
        heard = asyncio.create_task(self._heard.wait())
        try:
            await asyncio.wait({heard, listening}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            heard.cancel()
        if listening.done():
            self._rung.pop(token, None)
            listening.result()

    async def wait(self, token: str, seconds: float | None) -> None:
        """Return when the waiter's bell rings, after ``seconds`` at the latest."""
        event = self._rung[token]
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return
        event.clear()

    async def leave(self, token: str) -> None:
        """Hear it no more; the last one ends the subscription."""
        self._rung.pop(token, None)
        if not self._rung and self._listening is not None:
            listening, self._listening = self._listening, None
            while not listening.done():
                if listening not in self._ending:  # asyncio.wait_for may swallow one that comes as a send ends
                    listening.cancel()
                await asyncio.wait({listening}, timeout=0.05)
            self._ending.discard(listening)
            if not listening.cancelled():
                listening.exception()  # the subscription had ended by itself

    async def _listen(self, heard: asyncio.Event) -> None:
        with answered():
            listener = self._client.pubsub()
            try:
                await listener.subscribe(self._channel)
                async for message in listener.listen():
                    if message["type"] == "subscribe":
                        heard.set()
                    elif (event := self._rung.get(_text(message["data"]))) is not None:
                        event.set()
            finally:
                self._ending.add(asyncio.current_task())
                await listener.aclose()


def _text(data: bytes | str) -> str:
    return data.decode() if isinstance(data, bytes) else data
