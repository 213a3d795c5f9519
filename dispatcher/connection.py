"""The one module that builds Redis clients: time-outs, no hidden retries, and its errors in our words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    BusyLoadingError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry

from dispatcher.errors import ConfigError, DispatcherError, GateUnavailable
from dispatcher.scripts import read_script

Client: TypeAlias = redis.Redis

ANSWER_TIMEOUT_S: Final = 5.0
"""How long a command may take; a server that is slower counts as away."""

_AWAY: Final = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    BusyLoadingError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)
_AWAY_CODES: Final = ("MISCONF", "BUSY", "NOREPLICAS", "UNBLOCKED", "OOM", "READONLY", "LOADING", "CLUSTERDOWN")


def connect(url: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Client:
    """A client of the server at ``url``; connects with the first command.

    It never repeats a command by itself: after a lost reply only the caller knows what may be said twice.
    Raises ``ConfigError`` for a URL that cannot be read; the message does not hold the URL.
    """
    tcp = {} if url.startswith("unix://") else {"socket_keepalive": True}
    try:
        client: Client = redis.Redis.from_url(
            url,
            **tcp,
            socket_timeout=timeout_s,
            socket_connect_timeout=min(timeout_s, 2.0),
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
    except ValueError as error:
        raise ConfigError(f"DISPATCHER_REDIS_URL cannot be used: {error}") from error
    return client


@contextmanager
def answered(error: type[DispatcherError] = GateUnavailable) -> Iterator[None]:
    """Translates what means that the server is away, full or read-only into ``error``; everything else passes."""
    try:
        yield
    except _AWAY as failure:
        raise error(_words(failure)) from failure
    except ResponseError as failure:
        if str(failure).split(" ", 1)[0] in _AWAY_CODES:
            raise error(_words(failure)) from failure
        raise


_MEANINGS: Final = {
    "OOM": "Redis is full (maxmemory) and refuses to write",
    "READONLY": "Redis is a read-only replica",
    "MISCONF": "Redis cannot write to its disk and refuses to write",
    "LOADING": "Redis is still loading its data",
    "NOREPLICAS": "Redis has too few replicas and refuses to write",
}


def _words(failure: RedisError) -> str:
    text = str(failure)
    if isinstance(failure, OutOfMemoryError):
        return f"{_MEANINGS['OOM']}: {text}"
    if isinstance(failure, ReadOnlyError):
        return f"{_MEANINGS['READONLY']}: {text}"
    meaning = _MEANINGS.get(text.split(" ", 1)[0], "Redis did not answer")
    return f"{meaning}: {text}"


class Script:
    """One Lua script on one server: EVALSHA, loaded again when the server forgot it."""

    def __init__(self, client: Client, name: str) -> None:
        self._script = client.register_script(read_script(name))

    def __call__(self, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:  # noqa: ANN401 - what Lua returns
        """Run it; raises ``GateUnavailable`` when the server is away."""
        with answered():
            return self._script(keys=keys, args=args)


class JsonScript:
    """A script that takes one JSON object; ``clock`` gives its ``now`` in place of the server's (for tests)."""

    def __init__(self, client: Client, name: str, clock: Callable[[], int] | None = None) -> None:
        self._script = Script(client, name)
        self._clock = clock

    def __call__(self, keys: Sequence[str], call: Mapping[str, Any]) -> Any:  # noqa: ANN401 - what Lua returns
        """Run it; raises ``GateUnavailable`` when the server is away."""
        facts = dict(call) if self._clock is None else {"now": self._clock(), **call}
        return self._script(keys, [json.dumps(facts)])
