"""Whether the server of a data directory is alive: waiting for its first answer, and for its end."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from enum import Enum, auto
from typing import Final

from dispatcher.errors import GateUnavailable
from dispatcher.server.embedded.data_dir import DataDir, is_locked, is_trusted, open_lock, try_lock

LOOK_EVERY_S: Final = 0.005
_PING_TIMEOUT_S: Final = 1.0


def await_answer(data: DataDir, timeout_s: float, end: float | None = None) -> bool:
    """Wait until the server serves; false as soon as there is none any more.

    Raises ``GateUnavailable`` when it gives no sign of life for ``timeout_s``; that it is loading is one. With an
    ``end``, by the monotonic clock, it waits until then, whatever the sign.
    """
    deadline = time.monotonic() + timeout_s if end is None else end
    while True:
        left_s = timeout_s if end is None else max(LOOK_EVERY_S, end - time.monotonic())
        sign = _ping(data, min(left_s, _PING_TIMEOUT_S))
        if sign is _Sign.SERVES:
            return True
        if not is_locked(data.server_lock):
            return False
        now = time.monotonic()
        if sign is _Sign.LOADS and end is None:
            deadline = now + timeout_s
        if now > deadline:
            fault = "has been loading its data" if sign is _Sign.LOADS else "has not answered"
            raise GateUnavailable(
                f"the embedded server in {data.path} {fault} for {timeout_s:g} s at {data.socket}; "
                f"its last words: {data.log_tail()}"
            )
        time.sleep(LOOK_EVERY_S)


def await_end(data: DataDir, timeout_s: float) -> None:
    """After the last client, wait until the server is gone; return at once if it has other clients."""
    deadline = time.monotonic() + timeout_s
    try:
        clients = open_lock(data.clients_lock, create=False)
    except OSError:
        return  # the data directory was removed
    try:
        while is_locked(data.server_lock) and time.monotonic() < deadline:
            # Free to share but not to take alone: others have it. Not free to share: the guard is at work.
            if not try_lock(clients, shared=False) and try_lock(clients, shared=True):
                return
            fcntl.flock(clients, fcntl.LOCK_UN)
            time.sleep(LOOK_EVERY_S)
    finally:
        os.close(clients)


class _Sign(Enum):
    NONE = auto()
    LOADS = auto()
    SERVES = auto()


def _ping(data: DataDir, timeout_s: float) -> _Sign:
    # Not by redis-py: importing that takes longer than starting the server.
    path = data.socket
    if not is_trusted(path, data):
        return _Sign.NONE
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(os.fspath(path))
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
        except OSError:
            return _Sign.NONE
    if not answer:
        return _Sign.NONE
    # Any other error (busy with a script, too many connections) comes from a server that serves.
    return _Sign.LOADS if answer.startswith(b"-LOADING") else _Sign.SERVES
