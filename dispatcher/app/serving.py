"""What ``dispatcher serve`` needs of Redis: the way in for events, and whether it can be used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, OutOfMemoryError, RedisError

from dispatcher.app.servers import Server, keys_of
from dispatcher.errors import ConfigError, GateUnavailable
from dispatcher.producer.blocking import ANSWER_TIMEOUT_S
from dispatcher.server.clients import connect, connect_async
from dispatcher.server.connection import translate_outages, translate_refusals
from dispatcher.settings.plain import AnySettings
from dispatcher.store.intake import AsyncIntake, namespace_refusal

LOOK_EVERY_S: Final = 10.0
"""Between two looks at a server that is well."""

LOOK_AGAIN_S: Final = 1.0
"""Between two looks at one that is not."""


def connect_ingest(server: Server) -> Redis:
    """A client for requests that must be answered soon."""
    return connect_async(server.url, timeout_s=ANSWER_TIMEOUT_S)


def open_intake(settings: AnySettings, client: Redis) -> AsyncIntake:
    """The way in for events."""
    return AsyncIntake(client, *keys_of(settings), max_waiting=settings.max_waiting)


def check_namespace(settings: AnySettings, server: Server) -> None:
    """Raise ``ConfigError`` where no waiting helps: another layout, or a queue of another namespace.

    What cannot be read now may be well later: it is nothing to stop for.
    """
    keys, queue = keys_of(settings)
    with suppress(RedisError), connect(server.url, timeout_s=ANSWER_TIMEOUT_S) as client:
        if (refusal := namespace_refusal(keys, queue, *client.mget(keys.layout, queue.binding))) is not None:
            raise refusal


async def tell_outages(readiness: Readiness, server: Server, say: Callable[..., None]) -> None:
    """Say once that Redis is away or refuses us, and once that it is well again; never ends by itself."""
    lost_s: float | None = None
    while True:
        try:
            await readiness.why_not()
        except (GateUnavailable, ConfigError) as error:
            if lost_s is None:
                lost_s = time.monotonic()
                say("redis.lost", server=server.shown, detail=str(error))
        else:
            if lost_s is not None:
                say("redis.found", away_s=round(time.monotonic() - lost_s, 3))
                lost_s = None
        await asyncio.sleep(LOOK_EVERY_S if lost_s is None else LOOK_AGAIN_S)


class Readiness:
    """Whether Redis answers and takes writes, and limits are in force there."""

    def __init__(self, settings: AnySettings, client: Redis) -> None:
        self._keys, self._queue = keys_of(settings)
        self._client = client

    async def why_not(self) -> str | None:
        """Why events should not be sent here now, in words; None where they may. Raises ``GateUnavailable``."""
        with translate_refusals(self._client), translate_outages():
            layout, bound, version = await self._client.mget(
                self._keys.layout, self._queue.binding, self._keys.limits_version
            )
            with suppress(NoPermissionError, OutOfMemoryError):  # a full server is emptied, and takes events again
                await self._client.setrange(self._keys.layout, 0, "")  # changes nothing, and fails where writes do
        if (refusal := namespace_refusal(self._keys, self._queue, layout, bound)) is not None:
            return str(refusal)
        if version is None:
            return "no limits are in force: the first worker that starts publishes its limits file"
        return None
