"""Where Redis is reached: clients without hidden retries, scripts, and redis-py's errors in our words."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha1
from typing import Any, Final, TypeAlias

import redis
import redis.asyncio
from redis.cluster import RedisCluster
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from dispatcher.errors import ConfigError, DispatcherError, GateUnavailable
from dispatcher.jsonio import encode
from dispatcher.server.clients import SentinelsRefuse, build, build_async
from dispatcher.server.connections import async_pinned, pinned
from dispatcher.server.scripts import read_script

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
    ClusterDownError,
    RedisClusterException,
)
# Compiled where they are needed: each start would pay for it.
_IN_SCRIPT: Final = (
    r"^(?:ERR )?Error running script \(call to f_[0-9a-f]+\): @user_script:\s*\d+: (?:@user_script: \d+: )?-?"
)
"""What Redis 6.2 puts before the error of a command that a script has called."""

_AWAY_CODES: Final = ("MISCONF", "BUSY", "NOREPLICAS", "UNBLOCKED", "OOM", "READONLY", "LOADING", "CLUSTERDOWN")


def connect(url: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Client:
    """A client of the server at ``url``, or of the primary that Sentinels name; connects with the first command.

    It never repeats a command by itself: after a lost reply only the caller knows what may be said twice.
    Raises ``ConfigError`` for a URL that cannot be read; the message does not hold the URL.
    """
    return build(url, timeout_s)


def connect_async(url: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> redis.asyncio.Redis:
    """``connect`` for asyncio."""
    return build_async(url, timeout_s)


def shorten_timeout(client: Client, timeout_s: float) -> None:
    """From now on a script of this client waits no longer than this for its answer; for the last steps of a stop."""
    pinned(client).shorten_timeout(timeout_s)


@contextmanager
def translate_outages(error: type[DispatcherError] = GateUnavailable) -> Iterator[None]:
    """Translates what means that the server is away, full or read-only into ``error``; everything else passes."""
    try:
        yield
    except _AWAY as failure:
        raise error(_words(failure)) from failure
    except ResponseError as failure:
        if error_code(failure) in _AWAY_CODES:
            raise error(_words(failure)) from failure
        raise


def ping(client: Client) -> None:
    """Return where the server can be read: one whose disk is full refuses PING, and answers what only reads."""
    try:
        client.ping()
    except ResponseError as failure:
        if error_code(failure) != "MISCONF":
            raise


def error_code(failure: Exception) -> str:
    """The first word of the server's error, which redis-py takes off where it has a class for it."""
    if isinstance(failure, OutOfMemoryError):
        return "OOM"
    if isinstance(failure, ReadOnlyError):
        return "READONLY"
    return plain_error(failure).split(" ", 1)[0]


def is_full(error: BaseException) -> bool:
    """Whether a server without room in its memory is behind a ``GateUnavailable`` or ``ConfigError``."""
    return isinstance(error.__cause__, RedisError) and error_code(error.__cause__) == "OOM"


def plain_error(failure: Exception) -> str:
    """The server's error as every version says it: the code, then the words, without where in a script it arose."""
    return re.sub(_SCRIPT_PLACE, "", re.sub(_IN_SCRIPT, "", str(failure)))


@contextmanager
def translate_refusals(client: Client | redis.asyncio.Redis | None = None) -> Iterator[None]:
    """Translates what a server that answers will not do for us into ``ConfigError``; a defect in a script passes.

    The message names the server of ``client``, and none of its secrets.
    """
    try:
        yield
    except RedisError as failure:
        if str(failure).startswith(_DEFECTS):
            raise
        raise ConfigError(_refusal(failure, client)) from failure
    except GateUnavailable as error:
        if (login := _refused_login(error)) is not None:
            raise ConfigError(_refusal(login, client)) from error
        raise


def _refused_login(error: BaseException | None) -> AuthenticationError | None:
    """The refused login behind an error, which redis-py's asyncio wraps once more."""
    while error is not None and not isinstance(error, AuthenticationError):
        error = error.__cause__
    return error


_ACL_WORDS: Final = ("ACL failure", "The user executing the script")
"""How servers of different versions say within a script what is NOPERM elsewhere."""

_DEFECTS: Final = ("user_script:", "Error compiling script", "Error running script")
_SCRIPT_PLACE: Final = r"[. ]*\bscript: (?:\S+, )?on @\S+$"


def _refusal(failure: RedisError, client: Client | redis.asyncio.Redis | None) -> str:
    text = plain_error(failure)
    facts: Mapping[str, Any] = {} if client is None else client.connection_pool.connection_kwargs
    place = _place(facts)
    server = f"the server at {place}" if place else "the server"
    if isinstance(failure, AuthenticationError):
        return text if isinstance(failure, SentinelsRefuse) else f"{server} {_login(text)}"
    if isinstance(failure, InvalidResponse):
        return (
            f"what answers at {place or 'that address'} is no Redis: "
            "set DISPATCHER_REDIS_URL to the host and port of a Redis or Valkey server"
        )
    if text.startswith("DB index is out of range"):
        return (
            f"{server} has no database {facts.get('db', 'of that number')}: in DISPATCHER_REDIS_URL, name one that it "
            "has, such as 0 (its setting 'databases' says how many)"
        )
    if text.startswith("WRONGTYPE"):
        return (
            "a key of the dispatcher holds another type of data (WRONGTYPE), so another program uses its name: "
            "set DISPATCHER_NAMESPACE and DISPATCHER_QUEUE to names of their own"
        )
    if isinstance(failure, NoPermissionError) or any(words in text for words in _ACL_WORDS):
        return f"the server's ACL does not let the user of DISPATCHER_REDIS_URL do what the dispatcher needs: {text}"
    return f"{server} refuses a command: {text}"


def _place(facts: Mapping[str, Any]) -> str:
    """Where a client's server is; of one that asks Sentinels the service; empty where the client does not say."""
    if (pool := facts.get("connection_pool")) is not None:
        return f"the Sentinels' {pool.service_name!r}"
    host = str(facts.get("host", ""))
    if not host:
        return str(facts.get("path", ""))
    return f"[{host}]:{facts.get('port')}" if ":" in host else f"{host}:{facts.get('port')}"


def _login(text: str) -> str:
    if text.startswith("Authentication required"):
        return (
            "asks for a password, and DISPATCHER_REDIS_URL has none: "
            "write it before the host, as in redis://:PASSWORD@HOST, behind the user name where there is one"
        )
    if "without any password" in text or "no password is set" in text:
        return "has no password set, and DISPATCHER_REDIS_URL has one: take it out, or set it at the server"
    return (
        "refuses the user name or password in DISPATCHER_REDIS_URL: correct them "
        "(/ ? # @ in a password are written as %2F %3F %23 %40)"
    )


_MEANINGS: Final = {
    "OOM": "Redis is full (maxmemory) and refuses to write",
    "READONLY": "Redis is a read-only replica",
    "MISCONF": "Redis cannot write to its disk and refuses to write",
    "LOADING": "Redis is still loading its data",
    "NOREPLICAS": "Redis has too few replicas and refuses to write",
}


def _words(failure: Exception) -> str:
    meaning = _MEANINGS.get(error_code(failure), "Redis did not answer")
    return f"{meaning}: {plain_error(failure)}"


class Script:
    """One Lua script on one server: EVALSHA, loaded again when the server forgot it."""

    def __init__(self, client: Client | RedisCluster, name: str, *, within_s: float | None = None) -> None:
        """``within_s`` bounds a call as a whole, whatever it waits for; without it the client's time-outs count."""
        text = read_script(name)
        # A cluster client has to find the node first: its own way, by the keys.
        self._run = (
            client.register_script(text) if isinstance(client, RedisCluster) else _Pinned(client, text, within_s)
        )

    def __call__(self, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:  # noqa: ANN401 - what Lua returns
        """Run it; raises ``GateUnavailable`` when the server is away."""
        with translate_outages():
            return self._run(keys, args)


@cache
def _digest(text: str) -> str:
    """By which a server knows a script."""
    return sha1(text.encode(), usedforsecurity=False).hexdigest()


class _Pinned:
    """A script over the pinned connections of a client."""

    def __init__(self, client: Client, text: str, within_s: float | None = None) -> None:
        self._client = client  # the connections last as long as it
        self._pinned = pinned(client)
        self._within_s = within_s
        self._text = text
        self._digest = _digest(text)

    def __call__(self, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:  # noqa: ANN401 - what Lua returns
        return self.ask(keys, args)()

    def ask(self, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Callable[[], Any]:
        """Send the call; what is returned waits for its answer."""
        ends_s = None if self._within_s is None else time.monotonic() + self._within_s
        asked = self._pinned.send("EVALSHA", self._digest, len(keys), *keys, *args, ends_s=ends_s)

        def answer() -> Any:  # noqa: ANN401 - what Lua returns
            try:
                return asked.answer()
            except NoScriptError:
                return self._pinned.execute("EVAL", self._text, len(keys), *keys, *args, ends_s=ends_s)

        return answer


class AsyncScript:
    """``Script`` for asyncio, on a client or cluster client of ``redis.asyncio``."""

    def __init__(self, client: Any, name: str) -> None:  # noqa: ANN401 - the two have no common type
        self._text = read_script(name)
        self._digest = _digest(self._text)
        self._client = client  # as of _Pinned
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


class JsonScript:
    """A script that takes one JSON object; ``clock`` gives its ``now`` in place of the server's (for tests)."""

    def __init__(self, client: Client, name: str, clock: Callable[[], int] | None = None) -> None:
        self._script = _Pinned(client, read_script(name))
        self._clock = clock

    def __call__(self, keys: Sequence[str], call: Mapping[str, Any]) -> Any:  # noqa: ANN401 - what Lua returns
        """Run it; raises ``GateUnavailable`` when the server is away."""
        return self.ask(keys, call)()

    def ask(self, keys: Sequence[str], call: Mapping[str, Any], *more: str) -> Callable[[], Any]:
        """Send the call, and ``more`` arguments. What is returned waits for its answer, once; both raise as a call."""
        facts = call if self._clock is None else {"now": self._clock(), **call}
        with translate_outages():
            wait = self._script.ask(keys, [encode(facts), *more])

        def answer() -> Any:  # noqa: ANN401 - what Lua returns
            with translate_outages():
                return wait()

        return answer
