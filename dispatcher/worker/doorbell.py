"""Sleeping without polling: one blocking command per lane and one for the wake list, all awaited at once.

``BLMOVE lane lane LEFT LEFT`` is answered as soon as the lane holds a job and changes nothing; ``BLPOP`` on the wake
list takes a token that a script leaves for one sleeper when an earlier instant was set. A pipe lets this process wake
itself.

One job wakes every worker that listens to its lane, and one of them gets it. So a worker that came too late listens to
the lanes again only after a pause, which doubles each time: a job then wakes few of many idle workers. A worker that
gets something listens again at once.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from redis.exceptions import OutOfMemoryError

from dispatcher.server.connection import Client, translate_outages

FULL_S: Final = 1.0
"""How long to sleep without a look at the lanes after a full server has refused it."""

FIRST_PAUSE_S: Final = 0.01
LONGEST_PAUSE_S: Final = 1.0
"""How long a worker does not listen to the lanes after it came too late: at first, and at most."""


class Doorbell:
    """Wakes the worker's loop. Not thread-safe but for ``ring``, which also signal handlers may call."""

    def __init__(
        self, client: Client, lanes: Sequence[str], wake: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool = client.connection_pool
        self._clock = clock
        self._commands: list[tuple[Any, ...]] = [("BLMOVE", lane, lane, "LEFT", "LEFT", 0) for lane in lanes]
        self._commands.append(("BLPOP", wake, 0))
        self._lanes = len(lanes)
        self._connections: dict[int, Any] = {}
        self._armed: set[int] = set()
        self._full_until = 0.0
        self._pause_until = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._woken_by_lane = False
        self._inner, self._outer = os.pipe()
        os.set_blocking(self._inner, False)
        os.set_blocking(self._outer, False)

    def ring(self) -> None:
        """Wake the loop of this process; rings before it sleeps are not lost."""
        try:
            os.write(self._outer, b"!")
        except BlockingIOError:
            return  # the pipe is full of rings already

    def after_take(self, *, has_brought: bool) -> None:
        """Tell whether the take after a sleep brought anything. If a lane rang for nothing, a pause begins."""
        if has_brought:
            self._pause_s, self._pause_until = FIRST_PAUSE_S, 0.0
        elif self._woken_by_lane:
            self._pause_until = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._woken_by_lane = False

    def sleep(self, seconds: float, *, lanes: bool = True, wake: bool = True, server: bool = True) -> bool:
        """Return after ``seconds``, or as soon as something rings; whether the server rang.

        ``lanes=False`` sleeps through new jobs (suspended), ``wake=False`` leaves the tokens to others (it could post
        nothing), ``server=False`` listens to this process alone. Raises ``GateUnavailable`` when the server goes away.
        """
        now = self._clock()
        if self._full_until > now:
            lanes, seconds = False, min(seconds, self._full_until - now)
        pause_s = self._pause_until - now
        if server and lanes and pause_s > 0:
            rang = self._listen(min(pause_s, seconds), lanes=False, wake=wake)
            if rang or seconds <= pause_s:
                return bool(rang - {self._inner})
            seconds -= pause_s
        return bool(self._listen(seconds, lanes=lanes, wake=wake, server=server) - {self._inner})

    def _listen(self, seconds: float, *, lanes: bool, wake: bool, server: bool = True) -> set[int]:
        """Which descriptors rang within ``seconds``."""
        waiting: dict[int, int] = {}
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
        return set(ready)

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
        self._woken_by_lane = self._woken_by_lane or index < self._lanes
        with translate_outages():
            try:
                self._connections[index].read_response()
            except OutOfMemoryError:  # BLMOVE might need memory; nobody can enqueue meanwhile
                self._full_until = self._clock() + FULL_S

    def _drain(self) -> None:
        try:
            while os.read(self._inner, 4096):
                pass
        except BlockingIOError:
            return
