"""What an error of the server means, in our words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import redis
import redis.asyncio
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterCrossSlotError,
    InvalidResponse,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)

from dispatcher.server.clients import SentinelsRefuse

# Compiled where they are needed: each start would pay for it.
_IN_SCRIPT: Final = (
    r"^(?:ERR )?Error running script \(call to f_[0-9a-f]+\): @user_script:\s*\d+: (?:@user_script: \d+: )?-?"
)
"""What Redis 6.2 puts before the error of a command that a script has called."""

_IN_PIPELINE: Final = r"(?s)^Command # \d+ \(.*?\) of pipeline caused error: "
"""What redis-py puts before the error of a command in a pipeline."""

_SCRIPT_PLACE: Final = r"[. ]*\bscript: (?:\S+, )?on @\S+$"

_ACL_WORDS: Final = ("ACL failure", "The user executing the script")
"""How servers of different versions say within a script what is NOPERM elsewhere."""


_MEANINGS: Final = {
    "OOM": "Redis is full (maxmemory) and refuses to write",
    "READONLY": "Redis is a read-only replica",
    "MISCONF": "Redis cannot write to its disk and refuses to write",
    "LOADING": "Redis is still loading its data",
    "NOREPLICAS": "Redis has too few replicas and refuses to write",
}


def error_code(failure: Exception) -> str:
    """The first word of the server's error, which redis-py takes off where it has a class for it."""
    if isinstance(failure, OutOfMemoryError):
        return "OOM"
    if isinstance(failure, ReadOnlyError):
        return "READONLY"
    return plain_error(failure).split(" ", 1)[0]


def plain_error(failure: Exception) -> str:
    """The server's error as every version says it: the code, then the words, without where in a script it arose."""
    return re.sub(_SCRIPT_PLACE, "", re.sub(_IN_SCRIPT, "", error_text(failure)))


def error_text(failure: BaseException) -> str:
    """The server's error, wherever the command stood."""
    return re.sub(_IN_PIPELINE, "", str(failure))


def refused_login(error: BaseException | None) -> AuthenticationError | None:
    """The refused login behind an error, which redis-py's asyncio wraps once more."""
    while error is not None and not isinstance(error, AuthenticationError):
        error = error.__cause__
    return error


def outage_words(failure: Exception) -> str:
    """Why the server cannot do anything now."""
    meaning = _MEANINGS.get(error_code(failure), "Redis did not answer")
    return f"{meaning}: {plain_error(failure).removesuffix('.')}"


def refusal_words(failure: RedisError, client: redis.Redis | redis.asyncio.Redis | None) -> str:
    """What the server of ``client`` will not do for us, and what to do about it; none of its secrets."""
    text = plain_error(failure)
    facts: Mapping[str, Any] = {} if client is None else client.connection_pool.connection_kwargs
    place = _place(facts)
    server = f"the server at {place}" if place else "the server"
    if isinstance(failure, AuthenticationError):
        return text if isinstance(failure, SentinelsRefuse) else f"{server} {_login(text)}"
    if (words := _other_server(failure, server, place)) is not None:
        return words
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


def _other_server(failure: RedisError, server: str, place: str) -> str | None:
    """What to do where the server is none that the dispatcher works with; None where the failure does not say so."""
    if isinstance(failure, InvalidResponse):
        return (
            f"what answers at {place or 'that address'} is no Redis: "
            "set DISPATCHER_REDIS_URL to the host and port of a Redis or Valkey server"
        )
    if isinstance(failure, (AskError, ClusterCrossSlotError)):  # MOVED is an AskError, too
        return (
            f"{server} is a node of a cluster, which is not supported: "
            "set DISPATCHER_REDIS_URL to a server that stands alone, or to Sentinels"
        )
    return None


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
