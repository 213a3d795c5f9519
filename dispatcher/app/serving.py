"""What ``dispatcher serve`` needs of Redis: the way in for events, and whether it can be used."""

from __future__ import annotations

from contextlib import suppress

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, OutOfMemoryError

from dispatcher.app.servers import Server, keys_of
from dispatcher.jsonio import answer_text
from dispatcher.producer.blocking import ANSWER_TIMEOUT_S
from dispatcher.server.clients import connect_async
from dispatcher.server.connection import translate_outages, translate_refusals
from dispatcher.server.keys import LAYOUT_VERSION
from dispatcher.settings.plain import AnySettings
from dispatcher.store.intake import AsyncIntake, wrong_layout


def connect_ingest(server: Server) -> Redis:
    """A client for requests that must be answered soon."""
    return connect_async(server.url, timeout_s=ANSWER_TIMEOUT_S)


def open_intake(settings: AnySettings, client: Redis) -> AsyncIntake:
    """The way in for events."""
    return AsyncIntake(client, *keys_of(settings), max_waiting=settings.max_waiting)


class Readiness:
    """Whether Redis answers and takes writes, and limits are in force there."""

    def __init__(self, settings: AnySettings, client: Redis) -> None:
        self._keys = keys_of(settings)[0]
        self._client = client

    async def why_not(self) -> str | None:
        """Why events should not be sent here now, in words; None where they may. Raises ``GateUnavailable``."""
        with translate_refusals(self._client), translate_outages():
            layout, version = await self._client.mget(self._keys.layout, self._keys.limits_version)
            with suppress(NoPermissionError, OutOfMemoryError):  # a full server is emptied, and takes events again
                await self._client.setrange(self._keys.layout, 0, "")  # changes nothing, and fails where writes do
        if layout is not None and (found := answer_text(layout)) != LAYOUT_VERSION:
            return str(wrong_layout(found, self._keys.namespace))
        if version is None:
            return "no limits are in force: the first worker that starts publishes its limits file"
        return None
