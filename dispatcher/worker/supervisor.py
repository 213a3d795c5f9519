"""Several worker processes under one parent: forked once everything costly is loaded, respawned when they crash.

A child ends with its parent, also when that is killed: it reads from a pipe that only the parent holds open.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

RESPAWN_FROM_S: Final = 0.5
RESPAWN_TO_S: Final = 30.0
STEADY_S: Final = 60.0
"""A worker that has run this long starts its back-off anew."""


class Supervisor:
    """Runs ``count`` children that each call ``run`` and exit with what it returns.

    ``tell`` gets the log lines. A child that exits with other than 0 is started again, after a pause that doubles from
    0.5 s to 30 s with each crash in a row; one that exits with 0 is done, and so is one that says its configuration is
    wrong (78). SIGTERM and SIGINT are passed on once each.
    """

    def __init__(
        self, run: Callable[[int], int], count: int, tell: Callable[..., None], *, fatal: frozenset[int]
    ) -> None:
        self._run = run
        self._count = count
        self._tell = tell
        self._fatal = fatal
        self._children: dict[int, tuple[int, float]] = {}
        self._due: dict[int, float] = {}
        self._crashes = dict.fromkeys(range(count), 0)
        self._stopping = False
        self._exit_code = 0
        self._inner, self._outer = os.pipe()
        self._life, self._alive = os.pipe()

    def supervise(self) -> int:
        """Start the children and wait for all; returns 0, or the first fatal exit code."""
        os.set_blocking(self._outer, False)
        signal.set_wakeup_fd(self._outer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        signal.signal(signal.SIGHUP, self._pass_on_quietly)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for place in range(self._count):
            self._spawn(place)
        while self._children or (self._due and not self._stopping):
            now = time.monotonic()
            for place in [place for place, at in self._due.items() if at <= now and not self._stopping]:
                del self._due[place]
                self._spawn(place)
            pause = min((at - now for at in self._due.values()), default=60.0)
            select.select([self._inner], [], [], max(0.0, pause))
            if select.select([self._inner], [], [], 0)[0]:
                os.read(self._inner, 4096)
            self._reap()
        return self._exit_code

    def _spawn(self, place: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become_child(place)
        self._children[pid] = (place, time.monotonic())

    def _become_child(self, place: int) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, 0)  # the terminal's Ctrl-C goes to the parent alone, which passes it on
        os.close(self._alive)
        _end_with_parent(self._life)
        code = 70
        try:
            code = self._run(place)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in self._children:
                place, since = self._children.pop(pid)
                self._ended(place, os.waitstatus_to_exitcode(status), time.monotonic() - since, pid)

    def _ended(self, place: int, code: int, ran_s: float, pid: int) -> None:
        if code == 0 or self._stopping:
            return
        if code in self._fatal:
            self._exit_code = self._exit_code or code
            return
        if ran_s >= STEADY_S:
            self._crashes[place] = 0
        pause = min(RESPAWN_FROM_S * 2 ** self._crashes[place], RESPAWN_TO_S)
        self._crashes[place] += 1
        self._due[place] = time.monotonic() + pause
        self._tell("worker.crashed", pid=pid, code=code, respawn_s=pause)

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        self._stopping = True
        self._pass_on_quietly(signum, frame)

    def _pass_on_quietly(self, signum: int, frame: FrameType | None) -> None:
        del frame
        for pid in self._children:
            os.kill(pid, signum)


def _end_with_parent(life: int) -> None:
    """SIGTERM for this process as soon as the pipe ends that only the parent holds open."""

    def watch() -> None:
        os.read(life, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="parent").start()
