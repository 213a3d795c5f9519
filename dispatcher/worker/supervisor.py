"""Several worker processes under one parent: forked once everything costly is loaded, started again when they crash."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from dispatcher.worker.child_process import HEARD, SAME_SIGNAL_S, ParentLink

RESPAWN_FROM_S: Final = 0.5
RESPAWN_TO_S: Final = 30.0
STEADY_S: Final = 60.0
"""What ran this long before it crashed does not crash in a row."""

BESIDE: Final = -1
"""The place of the child that runs beside the others, where there is one."""


def crashes_now(before: int, ran_s: float) -> int:
    """How many crashes in a row it is with the one of now, which came after ``ran_s``."""
    return 1 if ran_s >= STEADY_S else before + 1


def backoff_s(crashes: int) -> float:
    """How long to wait after so many crashes in a row, from 1 on: 0.5 s, then doubled up to 30 s."""
    return min(RESPAWN_FROM_S * 2.0 ** min(crashes - 1, 16), RESPAWN_TO_S)


class Supervisor:
    """Runs ``count`` children that each call ``run`` with their place, from 0, and exit with what it returns.

    ``tell`` gets the log lines. A child that exits with 0 is done: nothing was left to do, or somebody told it to stop.
    One that exits with a code of ``fatal`` is given up, because it would do so again. Any other has crashed; its place
    is filled again after ``backoff_s``.

    The first SIGTERM or SIGINT is passed on, and who still runs ``patience_s`` later is killed. A second one, unless it
    came with the first, kills at once. SIGHUP is passed on, unless ``is_hung_up`` says that it is a SIGTERM: that the
    terminal is gone on which this process began. Children end with this process, however it ends.

    With ``beside`` there is one child more, at the place ``BESIDE``: what serves HTTP. It ends as soon as no other
    child is left. ``let_go`` is called, perhaps more than once, when no other will take its place: it closes what this
    process keeps for it.
    """

    def __init__(  # noqa: PLR0913 - collaborators first, figures by name
        self,
        run: Callable[[int], int],
        count: int,
        tell: Callable[..., None],
        *,
        fatal: frozenset[int],
        patience_s: float,
        is_hung_up: Callable[[], bool],
        beside: bool = False,
        let_go: Callable[[], None] = lambda: None,
    ) -> None:
        self._run = run
        self._tell = tell
        self._fatal = fatal
        self._patience_s = patience_s
        self._children: dict[int, tuple[int, float]] = {}
        places = [*range(count), *([BESIDE] if beside else [])]
        self._due = dict.fromkeys(places, 0.0)
        self._crashes = dict.fromkeys(places, 0)
        self._heard: list[int] = []
        self._told_at: float | None = None
        self._is_stopping = False
        self._kill_at: float | None = None
        self._exit_code = 0
        self._is_hung_up = is_hung_up
        self._let_go = let_go

    def supervise(self, begun: Callable[[Sequence[int]], None] = lambda _pids: None) -> int:
        """Start the children and return when all have ended; ``begun`` gets their process ids before any runs.

        It is not told of the child that runs beside the others.

        Returns 0, or the first fatal code if it was not told to stop, or 128 and the number of a second signal. If
        ``begun`` raises, the children end. To be called once, while this process has no threads but that of its log.
        """
        self._parent_link = ParentLink(self._patience_s)
        try:
            with self._signals_heard():
                self._fill_places()
                begun([pid for pid, (place, _) in self._children.items() if place != BESIDE])
                self._parent_link.release()
                while self._children or self._due:
                    self._sleep()
                    self._obey()
                    self._reap()
                    self._kill_if_late()
                    self._fill_places()
                    self._leave_none_alone()
        finally:
            self._parent_link.close()
        return self._exit_code

    @contextmanager
    def _signals_heard(self) -> Iterator[None]:
        """Handlers take note and wake the loop, nothing more: no step of it is ever cut in half."""
        self._woken, waker = os.pipe()
        os.set_blocking(waker, False)
        waker_before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        before = {number: signal.getsignal(number) for number in HEARD}
        if before[signal.SIGHUP] is signal.SIG_IGN:
            del before[signal.SIGHUP]  # nohup
        for number in before:
            signal.signal(number, lambda signum, _frame: self._heard.append(signum))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(waker_before)
            os.close(self._woken)
            os.close(waker)

    def _sleep(self) -> None:
        instants = [*self._due.values(), *([] if self._kill_at is None else [self._kill_at])]
        pause_s = max(0.0, min(instants) - time.monotonic()) if instants else None
        if select.select([self._woken], [], [], pause_s)[0]:
            os.read(self._woken, 4096)

    def _obey(self) -> None:
        while self._heard:
            number = self._heard.pop(0)
            if number == signal.SIGHUP and not self._is_hung_up():
                self._send(signal.SIGHUP)
            elif number != signal.SIGCHLD:
                self._stop(number)

    def _stop(self, number: int) -> None:
        now = time.monotonic()
        if self._told_at is not None:
            if now - self._told_at > SAME_SIGNAL_S:
                self._exit_code = 128 + number
                self._kill_at = now
            return
        self._told_at, self._exit_code = now, 0
        within_s = self._patience_s if self._kill_at is None else round(max(0.0, self._kill_at - now), 3)
        detail = "posts in flight are finished; a second signal stops at once"
        self._tell("stop.asked", signal=signal.Signals(number).name, within_s=within_s, detail=detail)
        if not self._is_stopping:
            self._end_children(now)

    def _leave_none_alone(self) -> None:
        """Without any other child, the one beside them has to end as well."""
        places = {*self._due, *(place for place, _ in self._children.values())}
        if not self._is_stopping and places == {BESIDE}:
            self._end_children(time.monotonic())

    def _end_children(self, now: float) -> None:
        self._is_stopping = True
        self._due.clear()
        self._kill_at = now + self._patience_s
        self._let_go()
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for pid in self._children:
            os.kill(pid, number)  # one that has ended is there until it is reaped

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in self._children:  # in a container we are everybody's parent, and reap strangers too
                place, since = self._children.pop(pid)
                if not self._is_stopping:
                    self._ended(place, pid, os.waitstatus_to_exitcode(status), time.monotonic() - since)

    def _ended(self, place: int, pid: int, code: int, ran_s: float) -> None:
        if code in self._fatal:
            self._exit_code = self._exit_code or code
            self._tell("serve.given_up" if place == BESIDE else "worker.given_up", pid=pid, code=code)
        elif code < 0:
            self._put_off(place, ran_s, pid=pid, code=code, detail=signal.strsignal(-code))
        elif code > 0:
            self._put_off(place, ran_s, pid=pid, code=code)
        if place == BESIDE and place not in self._due:
            self._let_go()

    def _kill_if_late(self) -> None:
        """Kill those who still run; who has ended was reaped before, also if this process stood still meanwhile."""
        if self._kill_at is not None and self._children and time.monotonic() >= self._kill_at:
            self._kill_at = None
            self._tell("workers.killed", pids=list(self._children))
            self._send(signal.SIGKILL)

    def _put_off(self, place: int, ran_s: float, **facts: object) -> None:
        crashes = self._crashes[place] = crashes_now(self._crashes[place], ran_s)
        pause_s = backoff_s(crashes)
        self._due[place] = time.monotonic() + pause_s
        name = "serve.crashed" if place == BESIDE else "worker.crashed"
        self._tell(name, **facts, in_a_row=crashes, respawn_s=pause_s)

    def _fill_places(self) -> None:
        now = time.monotonic()
        for place in [place for place, at in self._due.items() if at <= now]:
            del self._due[place]
            try:
                pid = self._parent_link.fork(partial(self._run, place))
            except OSError as error:
                self._put_off(place, 0.0, detail=f"no new process: {error.strerror}")
            else:
                self._children[pid] = (place, time.monotonic())
