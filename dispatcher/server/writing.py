"""Whether a server takes writes now: one that is full, or whose disk is, still lets itself be read."""

from __future__ import annotations

from typing import Final, NamedTuple

from redis.exceptions import NoPermissionError, ResponseError

from dispatcher.server.connection import Client, translate_outages
from dispatcher.server.error_words import error_code


class WriteRefusal(NamedTuple):
    """Why a server takes no writes, and what to do about it."""

    said: str
    remedy: str


FULL: Final = WriteRefusal(
    "its memory is full (maxmemory), and it refuses every write that adds data",
    "raise maxmemory, or remove dead letters with 'dispatcher dead purge'",
)
"""The only one under which workers go on: they empty it."""

FORBIDDEN: Final = WriteRefusal(
    "its ACL does not let the user of DISPATCHER_REDIS_URL write",
    "give the user the rights that docs/operations.md names",
)

_REFUSALS: Final = {
    "MISCONF": WriteRefusal(
        "it cannot save its data to its disk, and refuses every write",
        "free space on the server's disk; the server's log says what failed",
    ),
    "OOM": FULL,
    "READONLY": WriteRefusal("it is a read-only replica", "set DISPATCHER_REDIS_URL to its primary"),
    "NOREPLICAS": WriteRefusal(
        "too few replicas are connected, and it refuses every write",
        "bring the replicas back, or lower the server's min-replicas-to-write",
    ),
}


def write_refusal(client: Client, key: str, forbidden: WriteRefusal | None = None) -> WriteRefusal | None:
    """Why the server takes no writes; None where it takes them, ``forbidden`` where it does not let us ask.

    Asks with a write that changes nothing: SETRANGE of no bytes. It does not make a key that is not there.
    Raises ``GateUnavailable`` where the server does not answer.
    """
    with translate_outages():
        try:
            client.setrange(key, 0, "")
        except NoPermissionError:
            return forbidden
        except ResponseError as failure:
            if (refusal := _REFUSALS.get(error_code(failure))) is None:
                raise
            return refusal
    return None
