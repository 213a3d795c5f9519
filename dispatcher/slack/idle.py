"""Connections that wait for their next exchange: a few, for a few seconds, and only while the other side is silent."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from weakref import WeakSet

IDLE_S: Final = 3.0
"""An idle connection is closed after this time. Servers wait longer (5 s and more), so they rarely close one first."""

MAX_AGE_S: Final = 60.0
"""A connection is replaced after this time, so that a name that leads elsewhere by now is looked up again."""

MOST_IDLE: Final = 16


@dataclass(slots=True)
class Connection:
    """An open connection, through TLS where the server's URL asks for it. Instants are those of the pool's clock."""

    sock: socket.socket
    opened_at: float
    is_kept: bool = False
    """Whether it has been idle after an earlier exchange."""
    idle_since: float = 0.0


class IdleConnections:
    """The idle connections to one server. May be used by several threads at once.

    ``idle_s`` seconds after its last exchange a connection is closed, by a thread that lives as long as there are any.
    At most ``most`` are idle; the one that has waited longest goes first. A forked child begins with none.
    """

    def __init__(self, clock: Callable[[], float], *, idle_s: float = IDLE_S, most: int = MOST_IDLE) -> None:
        self._clock = clock
        self._idle_s = idle_s
        self._most = most
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._has_closer = False
        _pools.add(self)

    def take(self) -> Connection | None:
        """The connection that was used last of those that may be used again; it is the caller's from now on."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            now = self._clock()
            is_young = now < connection.opened_at + MAX_AGE_S
            if is_young and now < connection.idle_since + self._idle_s and _is_silent(connection.sock):
                return connection
            connection.sock.close()

    def keep(self, connection: Connection) -> None:
        """Have it wait for its next exchange."""
        connection.is_kept = True
        with self._lock:
            connection.idle_since = self._clock()  # within the lock: the list is in order of it
            self._idle.append(connection)
            surplus, self._idle = self._idle[: -self._most], self._idle[-self._most :]
            starts_closer, self._has_closer = not self._has_closer, True
        for each in surplus:
            each.sock.close()
        if starts_closer:
            self._start_closer()

    def close(self) -> None:
        """Close those that are idle now."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.sock.close()

    def leave_to_parent(self) -> None:
        """In a forked child: the connections are the parent's, and so may be the lock."""
        self._lock = threading.Lock()
        self._has_closer = False
        self.close()  # of the child's descriptors only: nothing is sent

    def _start_closer(self) -> None:
        try:
            threading.Thread(target=self._close_in_time, name="dispatcher-idle", daemon=True).start()
        except RuntimeError:  # the interpreter ends, or the system has no room for a thread
            with self._lock:
                self._has_closer = False
            self.close()

    def _close_in_time(self) -> None:
        while True:
            now = self._clock()
            with self._lock:
                due = [each for each in self._idle if each.idle_since + self._idle_s <= now]
                self._idle = self._idle[len(due) :]
                first = self._idle[0].idle_since if self._idle else None
                self._has_closer = first is not None
            for each in due:
                each.sock.close()
            if first is None:
                return
            time.sleep(first + self._idle_s - now)


_pools: WeakSet[IdleConnections] = WeakSet()


def _leave_all_to_parent() -> None:
    for pool in _pools:
        pool.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)


def _is_silent(sock: socket.socket) -> bool:
    """Whether the other side has neither ended the connection nor sent what nobody asked for.

    What TLS says by itself (session tickets) is read on the way.
    """
    try:
        sock.settimeout(0)
        sock.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    return False
