"""The server: at the URL of the settings or embedded, reached, claimed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from redis.exceptions import AuthenticationError, RedisError

from dispatcher.connection import Client, answered, connect
from dispatcher.embedded import EmbeddedServer
from dispatcher.errors import ConfigError, GateUnavailable
from dispatcher.keys import Keys, QueueKeys
from dispatcher.logs import EventLog
from dispatcher.settings import Settings, shown_url
from dispatcher.store.intake import claim_namespace

REACH_S: Final = 30.0
"""How long a worker keeps trying to reach Redis at its start."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that can be reached: its URL, how to name it without its password, doubts about it."""

    url: str
    shown: str
    warnings: tuple[str, ...] = ()


@contextmanager
def open_server(settings: Settings, *, start: bool) -> Iterator[Server]:
    """The server of the settings, held for as long as the context lasts.

    It is the one at the URL, else the embedded one in the data dir, started if need be and ``start``. Raises
    ``ConfigError``.
    """
    if settings.redis_url is not None:
        url = settings.redis_url.get_secret_value()
        yield Server(url, shown_url(url))
        return
    with EmbeddedServer.join(settings.data_dir, start=start) as embedded:
        warnings = (embedded.warning,) if embedded.warning else ()
        yield Server(embedded.url, f"embedded server in {settings.data_dir}", warnings)


def keys_of(settings: Settings) -> tuple[Keys, QueueKeys]:
    """The key names of a namespace and its queue."""
    return Keys(settings.namespace), QueueKeys(settings.queue)


def reach(client: Client, shown: str, seconds: float, events: EventLog | None = None) -> None:
    """Return when the server answers; keeps trying for ``seconds``.

    Raises ``GateUnavailable``, or ``ConfigError`` when the server answers that it will not have us.
    """
    end = time.monotonic() + seconds
    said = False
    while True:
        try:
            with answered():
                client.ping()
        except GateUnavailable as error:
            if isinstance(error.__cause__, AuthenticationError):
                raise ConfigError(f"{shown} refuses the user name or password in DISPATCHER_REDIS_URL") from error
            if time.monotonic() >= end:
                raise GateUnavailable(f"{shown} cannot be reached: {error}") from error
            if events is not None and not said:
                events.say("redis.lost", server=shown, detail=str(error))
                said = True
            time.sleep(min(0.25, max(0.0, end - time.monotonic())))
        except RedisError as error:
            raise ConfigError(f"{shown} refuses us: {error}") from error
        else:
            return


def greet_server(settings: Settings, server: Server, events: EventLog) -> None:
    """What several workers would each do at their start, once before they are forked; raises as ``run_worker`` does."""
    with connect(server.url) as client:
        reach(client, server.shown, REACH_S, events)
        claim_namespace(client, *keys_of(settings))
