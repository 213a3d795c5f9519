"""Makes redis-py's clients, blocking and asyncio, for a server's address or for that of Sentinels."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import TimeoutError as Unanswered
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from dispatcher.errors import ConfigError
from dispatcher.server.urls import SENTINEL, SentinelAddress, check_options

ANSWER_TIMEOUT_S: Final = 5.0
"""How long a command may take; a server that is slower counts as away."""

_CONNECT_S: Final = 2.0
_NAMED: Final = {"driver_info": redis.DriverInfo(lib_version=redis.__version__)} if hasattr(redis, "DriverInfo") else {}
"""How a connection names its library: else redis-py reads its own package data anew for each, in about 2 ms."""

_CA_CERTS, _CA_PATH, _CERTIFICATE, _KEY = _TLS_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")


class SentinelsRefuse(AuthenticationError):
    """Sentinels answer and will not say where the primary is, for a reason that does not pass by itself.

    A kind of ``AuthenticationError`` since redis-py's callers treat it alike: what is wrong is who asks, or for what.
    """


def connect(url: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> redis.Redis:
    """A client of the server at ``url``, or of the primary that Sentinels name; connects with the first command.

    It never repeats a command by itself: after a lost reply only the caller knows what may be said twice.
    Raises ``ConfigError`` for a URL that cannot be read; the message does not hold the URL.
    """
    client: redis.Redis = _checked(url, timeout_s, _Sentinels, redis.Redis.from_url, Retry(NoBackoff(), 0))
    return client


def connect_async(url: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> redis.asyncio.Redis:
    """``connect`` for asyncio."""
    client: redis.asyncio.Redis = _checked(
        url, timeout_s, _AsyncSentinels, redis.asyncio.Redis.from_url, AsyncRetry(NoBackoff(), 0)
    )
    return client


def _checked(
    url: str, timeout_s: float, sentinels: Callable[..., Any], of_server: Callable[..., Any], retry: object
) -> Any:  # noqa: ANN401 - the two kinds of client have no common type
    options: dict[str, Any] = {"retry": retry, "protocol": 2, **_NAMED}
    if not url.startswith("unix://"):
        options["socket_keepalive"] = True
    try:
        if url.startswith(SENTINEL):
            address = SentinelAddress.parse(url)
            asking, answering = _spans(address, timeout_s, options)
            client = sentinels(address, asking).master_for(address.service, **answering)
        else:
            scheme, _, rest = url.partition("://")
            check_options(scheme, rest.partition("?")[2])
            spans = {"socket_timeout": timeout_s, "socket_connect_timeout": min(timeout_s, _CONNECT_S)}
            client = of_server(url, **options, **spans)
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # else an option would be found wrong at the first command
        _check_tls_files(pool.connection_kwargs)
    except (ValueError, RedisError) as error:
        raise ConfigError(f"DISPATCHER_REDIS_URL cannot be used: {error}") from error
    return client


def _check_tls_files(options: Mapping[str, Any]) -> None:
    """Load the files of TLS once: redis-py would report one that it cannot use as a server that does not answer.

    Raises ``ValueError``.
    """
    named = {name: str(options[name]) for name in _TLS_FILES if options.get(name)}
    for name, path in named.items():
        try:
            os.scandir(path).close() if name == _CA_PATH else Path(path).open("rb").close()
        except OSError as error:
            raise ValueError(f"{name} names {path}, which cannot be read: {error.strerror}") from None
    if authorities := named.get(_CA_CERTS):
        try:
            ssl.create_default_context(cafile=authorities)
        except ssl.SSLError:
            raise ValueError(f"{_CA_CERTS} names {authorities}, expected a file of certificates (PEM)") from None
    certificate, key = named.get(_CERTIFICATE), named.get(_KEY)
    if certificate:
        password = options.get("ssl_password") or ""  # without one OpenSSL would ask the terminal for it
        try:
            ssl.create_default_context().load_cert_chain(certificate, key, password)
        except ssl.SSLError:
            of_key = f"{_KEY} names {key}" if key else f"no {_KEY} is named"
            raise ValueError(
                f"{_CERTIFICATE} names {certificate}, and {of_key}, expected a certificate and its key (PEM), and "
                "ssl_password if the key is encrypted"
            ) from None
    elif key:
        raise ValueError(f"expected {_CERTIFICATE} beside {_KEY}")


def _spans(
    address: SentinelAddress, timeout_s: float, options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options for the Sentinels' connections and for the primary's.

    Together they keep to the time-out: half of it for the answer, a quarter to connect, a quarter to ask all Sentinels.
    """
    each_s = timeout_s / 4 / len(address.hosts) / 2
    tls = {} if address.tls is None else {"ssl": True, **address.tls}
    asking = {"socket_timeout": each_s, "socket_connect_timeout": each_s}
    answering = {"socket_timeout": timeout_s / 2, "socket_connect_timeout": timeout_s / 4, "db": address.database}
    return {**options, **asking, **address.sentinel_login, **tls}, {**options, **answering, **address.login, **tls}


class _Sentinels(Sentinel):
    """redis-py's Sentinel, which says in our words why there is no primary."""

    def __init__(self, address: SentinelAddress, options: dict[str, Any]) -> None:
        super().__init__(address.hosts, sentinel_kwargs=options)  # type: ignore[no-untyped-call] # redis-py's
        self._address = address
        self.begin_in_child()
        _ALL_SENTINELS.add(self)

    def begin_in_child(self) -> None:
        """In a forked child: a thread that is the parent's alone may hold the lock."""
        self._asking = threading.Lock()  # threads ask over the same connections

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """The primary's address, of the first Sentinel that knows it; raises ``MasterNotFoundError``."""
        with self._asking:
            return self._ask(service_name)

    def _ask(self, service_name: str) -> tuple[str, int]:
        answers: list[object] = []
        for sentinel in self.sentinels:
            try:
                states: Any = sentinel.sentinel_masters()
            except RedisError as failure:
                answers.append(failure)
                continue
            finally:
                sentinel.close()  # the next question comes with the next failover
            answers.append(states)
            state = states.get(service_name)
            if state and self.check_master_state(state, service_name):  # type: ignore[no-untyped-call] # redis-py's
                return str(state["ip"]), int(state["port"])
        raise _no_primary(self._address, answers)


_ALL_SENTINELS: Final[WeakSet[_Sentinels]] = WeakSet()


def _begin_in_child() -> None:
    for sentinels in list(_ALL_SENTINELS):
        sentinels.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)


class _AsyncSentinels(AsyncSentinel):
    """``_Sentinels`` for asyncio."""

    def __init__(self, address: SentinelAddress, options: dict[str, Any]) -> None:
        super().__init__(address.hosts, sentinel_kwargs=options)  # type: ignore[no-untyped-call] # redis-py's
        self._address = address
        self._loop: asyncio.AbstractEventLoop | None = None

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """As ``_Sentinels.discover_master``."""
        if (loop := asyncio.get_running_loop()) is not self._loop:
            self._loop, self._asking = loop, asyncio.Lock()  # tasks ask over the same connections
        async with self._asking:
            return await self._ask(service_name)

    async def _ask(self, service_name: str) -> tuple[str, int]:
        answers: list[object] = []
        for sentinel in self.sentinels:
            try:
                states: Any = await sentinel.sentinel_masters()
            except RedisError as failure:
                answers.append(failure)
                continue
            finally:
                await sentinel.aclose()
            answers.append(states)
            state = states.get(service_name)
            if state and self.check_master_state(state, service_name):
                return str(state["ip"]), int(state["port"])
        raise _no_primary(self._address, answers)


def _no_primary(address: SentinelAddress, answers: Sequence[object]) -> Unreachable:
    """Why nobody named a primary: it is down, somebody who may know it cannot be reached, or the question is wrong."""
    known = [answer for answer in answers if isinstance(answer, Mapping)]
    refused = [answer for answer in answers if isinstance(answer, AuthenticationError)]
    if any(address.service in states for states in known):
        return MasterNotFoundError(f"the Sentinels at {address} see no primary of {address.service!r} that is up")
    said = "; ".join(f"{place}: {_said(answer)}" for place, answer in zip(address.places(), answers, strict=True))
    away = sum(map(_is_away, answers))
    if away:
        why = "can be reached" if away == len(answers) else f"that can be reached names {address.service!r}"
        return MasterNotFoundError(f"no Sentinel at {address} {why} ({said})")
    if known:
        names = sorted({str(name) for states in known for name in states})
        return SentinelsRefuse(
            f"the Sentinels at {address} know no service {address.service!r}: in DISPATCHER_REDIS_URL, name one that "
            f"they watch, which {'is' if len(names) == 1 else 'are'} {', '.join(names) or 'none'}"
        )
    if refused:
        return SentinelsRefuse(
            f"the Sentinels at {address} refuse us ({refused[0]}): in DISPATCHER_REDIS_URL, put their own password "
            "behind the database as in ?sentinel_password=PASSWORD, and ?sentinel_username=NAME where there is one"
        )
    if any("unknown command" in str(answer) for answer in answers):
        return SentinelsRefuse(
            f"not all at {address} are Sentinels, and none names the primary ({said}): in DISPATCHER_REDIS_URL, name "
            "the Sentinels and their ports, or the server itself as in redis://HOST:PORT/DB"
        )
    return SentinelsRefuse(
        f"no Sentinel at {address} names the primary ({said}): in DISPATCHER_REDIS_URL, name Sentinels, and a user "
        "whom they let run SENTINEL MASTERS"
    )


def _is_away(answer: object) -> bool:
    return isinstance(answer, (Unreachable, Unanswered)) and not isinstance(answer, AuthenticationError)


def _said(answer: object) -> str:
    return f"watches {', '.join(sorted(map(str, answer))) or 'none'}" if isinstance(answer, Mapping) else str(answer)
