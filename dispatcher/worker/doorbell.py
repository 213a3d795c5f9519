"""Sleeping without polling: one blocking command per lane and one for the wake list, all awaited at once.

``BLMOVE lane lane LEFT LEFT`` is answered as soon as the lane holds a job and changes nothing; ``BLPOP`` on the wake
list takes a token that a script leaves for one sleeper when an earlier instant was set. A pipe lets this process wake
itself.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from typing import Any, Final, cast

from redis.exceptions import OutOfMemoryError

from dispatcher.server.connection import Client, translate_outages

FULL_S: Final = 1.0
"""How long to sleep without a look at the lanes after a full server has refused it."""


class Doorbell:
    """Wakes the worker's loop. Not thread-safe but for ``ring``, which also signal handlers may call."""

    def __init__(self, client: Client, lanes: Sequence[str], wake: str) -> None:
        self._pool = client.connection_pool
        self._commands: list[tuple[Any, ...]] = [("BLMOVE", lane, lane, "LEFT", "LEFT", 0) for lane in lanes]
        self._commands.append(("BLPOP", wake, 0))
        self._lanes = len(lanes)
        self._connections: dict[int, Any] = {}
        self._armed: set[int] = set()
        self._full_until = 0.0
        self._inner, self._outer = os.pipe()
        os.set_blocking(self._inner, False)
        os.set_blocking(self._outer, False)

    def ring(self) -> None:
        """Wake the loop of this process; rings before it sleeps are not lost."""
        try:
            os.write(self._outer, b"!")
        except BlockingIOError:
            return  # the pipe is full of rings already

    def sleep(self, seconds: float, *, lanes: bool = True, wake: bool = True, server: bool = True) -> None:
        """Return after ``seconds``, or as soon as something rings.

        ``lanes=False`` sleeps through new jobs (suspended), ``wake=False`` leaves the tokens to others (it could post
        nothing), ``server=False`` listens to this process alone. Raises ``GateUnavailable`` when the server goes away.
        """
        waiting: dict[int, int] = {}
        full_s = self._full_until - time.monotonic()
        if full_s > 0:
            lanes, seconds = False, min(seconds, full_s)
        if server:
            with translate_outages():
                for index in range(len(self._commands)):
                    if (lanes if index < self._lanes else wake) or index in self._armed:
                        waiting[self._arm(index)] = index
        ready, _, _ = select.select([self._inner, *waiting], [], [], max(0.0, seconds))
        for descriptor in ready:
            if descriptor == self._inner:
                self._drain()
            else:
                self._hear(waiting[descriptor])

    def close(self) -> None:
        """Drop the blocking connections; the next sleep opens them again. The pool counts each of them once."""
        for connection in self._connections.values():
            connection.disconnect()
        self._armed.clear()

    def _arm(self, index: int) -> int:
        connection = self._connections.get(index)
        if connection is None:
            connection = self._connections[index] = cast("Any", self._pool.make_connection())
        if index not in self._armed:
            connection.connect()
            connection.send_command(*self._commands[index])
            self._armed.add(index)
        return int(connection._sock.fileno())  # noqa: SLF001 - redis-py has no public way to wait for several

    def _hear(self, index: int) -> None:
        self._armed.discard(index)
        with translate_outages():
            try:
                self._connections[index].read_response()
            except OutOfMemoryError:  # BLMOVE might need memory; nobody can enqueue meanwhile
                self._full_until = time.monotonic() + FULL_S

    def _drain(self) -> None:
        try:
            while os.read(self._inner, 4096):
                pass
        except BlockingIOError:
            return
