"""The server: at the URL of the settings or embedded, reached, claimed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from dispatcher.errors import ConfigError, GateUnavailable
from dispatcher.server.clients import connect
from dispatcher.server.connection import Client, ping, translate_outages, translate_refusals
from dispatcher.server.keys import Keys
from dispatcher.settings.plain import AnySettings
from dispatcher.settings.redaction import redacted_url
from dispatcher.store.rq_keys import QueueKeys

if TYPE_CHECKING:
    from dispatcher.logs.event_log import EventLog
    from dispatcher.settings.environment import Settings

OLDEST_SERVER: Final = 7

T = TypeVar("T")

REACH_S: Final = 30.0
"""How long a worker keeps trying to reach Redis at its start."""


_TO_TLS: Final = "; if it is a port for TLS, write rediss:// in DISPATCHER_REDIS_URL"
_OTHER_SCHEMES: Final = (
    ("redis://", "Connection closed by server", _TO_TLS),
    ("redis://", "Connection reset by peer", _TO_TLS),
    (
        "rediss://",
        "Timeout connecting to server",
        "; if it is a port without TLS, write redis:// in DISPATCHER_REDIS_URL",
    ),
)
"""How the address begins, what redis-py says of a port that expects the other beginning, and what to do."""


class _TakesNoWrites(GateUnavailable):
    """The server answers, and a worker could do nothing with it."""


class Server(NamedTuple):
    """A server that can be reached: its URL, how to name it without its password, warnings about it."""

    url: str
    shown: str
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Server(shown={self.shown!r}, warnings={self.warnings!r})"


@contextmanager
def open_server(settings: AnySettings, *, start: bool, within_s: float = 10.0) -> Iterator[Server]:
    """The server of the settings, held for as long as the context lasts.

    It is the one at the URL, else the embedded one in the data dir, started if need be and ``start``; that one is
    waited for, and ``within_s`` is how long to wait for a sign of life. Raises ``ConfigError``, ``GateUnavailable``.
    """
    if settings.redis_url is not None:
        url = settings.redis_url.get_secret_value()
        yield Server(url, redacted_url(url))
        return
    from dispatcher.server.embedded import EmbeddedServer

    with EmbeddedServer.join(settings.data_dir, start=start, timeout_s=within_s) as embedded:
        warnings = (embedded.warning,) if embedded.warning else ()
        yield Server(embedded.url, f"embedded server in {settings.data_dir}", warnings)


@contextmanager
def kept_server(settings: AnySettings, tell: Callable[..., None]) -> Iterator[None]:
    """While the context lasts, the embedded server is started again whenever it has ended; one at a URL is let be."""
    if settings.redis_url is not None:
        yield
        return
    from dispatcher.worker.keeper import kept

    with kept(settings.data_dir, tell):
        yield


def has_run(settings: AnySettings) -> bool:
    """Whether an embedded server has run in the data dir; also true of one that ``join`` will refuse."""
    from dispatcher.server.embedded.data_dir import DataDir

    path = settings.data_dir
    try:
        return DataDir(path).server_lock.exists() or (path.exists() and not path.is_dir())
    except OSError:
        return True


def keys_of(settings: AnySettings) -> tuple[Keys, QueueKeys]:
    """The key names of a namespace and its queue."""
    return Keys(settings.namespace), QueueKeys(settings.queue)


def reach(client: Client, shown: str) -> None:
    """Return where the server answers now; raises as ``keep_reaching``."""
    keep_reaching(client, shown, 0, lambda: None)


def keep_reaching(
    client: Client, shown: str, seconds: float, begin: Callable[[], T], events: EventLog | None = None
) -> T:
    """What ``begin`` returns once the server answers; keeps trying for ``seconds``, ``begin`` with it.

    Raises ``GateUnavailable``, or ``ConfigError`` when the server answers that it will not have us.
    """
    end = time.monotonic() + seconds
    said = False
    while True:
        try:
            with translate_refusals(client):
                with translate_outages():
                    ping(client)
                return begin()
        except GateUnavailable as error:
            if time.monotonic() >= end:
                fault = "takes no writes" if isinstance(error, _TakesNoWrites) else "cannot be reached"
                raise GateUnavailable(f"{shown} {fault}: {error}{_other_scheme(shown, str(error))}") from error
            if events is not None and not said:
                events.say("redis.lost", server=shown, detail=str(error))
                said = True
            time.sleep(min(0.25, max(0.0, end - time.monotonic())))


def _other_scheme(shown: str, said: str) -> str:
    for scheme, sign, hint in _OTHER_SCHEMES:
        if shown.startswith(scheme) and sign in said:
            return hint
    return ""


def inspect_server(client: Client, shown: str) -> str | None:
    """A warning about the server in one sentence, or None.

    Raises ``ConfigError`` for a server older than 7.0, whose commands do not do, and for one that evicts keys when it
    is full: events would be lost.
    """
    from redis.exceptions import NoPermissionError

    try:
        with translate_outages():
            facts: dict[str, Any] = {**client.info("server"), **client.info("memory")}
    except NoPermissionError:
        return (
            f"{shown} does not let us read INFO: make sure that it is 7.0 or later and its maxmemory-policy noeviction"
        )
    version = str(facts.get("valkey_version") or facts.get("redis_version", "0"))
    if int(version.split(".", maxsplit=1)[0]) < OLDEST_SERVER:
        raise ConfigError(f"{shown} is version {version}, expected 7.0 or later (Redis or Valkey)")
    policy = str(facts.get("maxmemory_policy", "noeviction"))
    if policy == "noeviction":
        return None
    if facts.get("maxmemory", 0):
        raise ConfigError(
            f"{shown} has maxmemory-policy {policy!r}: it would throw events away when it is full; "
            "set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in its configuration file)"
        )
    return f"{shown} has maxmemory-policy {policy!r}: harmless without a maxmemory, but set it to noeviction"


def check_writes(client: Client, keys: Keys) -> None:
    """Raise ``GateUnavailable`` where the server takes no writes, unless it is full: workers are what empties it."""
    from dispatcher.server.writing import FULL, write_refusal

    refusal = write_refusal(client, keys.layout)
    if refusal is not None and refusal is not FULL:
        raise _TakesNoWrites(f"{refusal.said}; to do: {refusal.remedy}")


def preflight(settings: Settings, server: Server, events: EventLog, begin: Callable[[], T]) -> T:
    """What ``begin`` returns, after what a worker asks of a server before it takes anything.

    All of it is done again where the server is lost meanwhile, for ``REACH_S``. Raises as ``run_worker`` does.
    """
    from dispatcher.store.intake import claim_namespace

    told: set[str] = set()

    def greet() -> T:
        if (warning := inspect_server(client, server.shown)) and warning not in told:
            told.add(warning)
            events.say("server.warning", detail=warning)
        keys, queue = keys_of(settings)
        with translate_outages():
            client.exists(queue.job("-"), *queue.lanes)  # what scripts will touch, and an ACL may refuse
        check_writes(client, keys)
        claim_namespace(client, keys, queue)
        return begin()

    with connect(server.url) as client:
        return keep_reaching(client, server.shown, REACH_S, greet, events)
