"""A child process that is forked to run one function, begins when its parent says so, and ends with it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

HEARD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""What the parent has handlers for, which are not for its children."""

SAME_SIGNAL_S: Final = 0.1
"""Signals this close together are one: a wrapper such as ``timeout`` signals its child, and then its whole group."""

SAME_FROM_PARENT_S: Final = 1.0
"""The same for a child. A service manager may signal both it and its parent, and the parent then signals it, too."""

_DEFECT: Final = 70


class ParentLink:
    """What ties children to the process that forks them: two pipes that end with it, in whatever way it ends.

    A child gets SIGTERM at the parent's end, and is killed when it still runs ``patience_s`` later.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._life, self._alive = os.pipe()
        self._held_back, self._gate = os.pipe()
        self._is_released = False

    def fork(self, run: Callable[[], int]) -> int:
        """Fork a child that exits with what ``run`` returns, with 70 if it raises; returns its process id.

        SIGHUP is blocked in it until ``run`` has a handler and unblocks it, so that none is lost. Raises ``OSError``
        when the system has no room for one.
        """
        _flush()
        # A signal that reached the child before it has handlers of its own would be heard by its parent's, and lost.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        try:
            pid = os.fork()
            if pid == 0:
                self._become_child(run, mask)
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def release(self) -> None:
        """Let the children begin, these and all to come."""
        if not self._is_released:
            self._is_released = True
            os.close(self._gate)

    def close(self) -> None:
        """Part with the children as the parent's end would."""
        self.release()
        for end in (self._life, self._alive, self._held_back):
            os.close(end)

    def _become_child(self, run: Callable[[], int], mask: set[int]) -> NoReturn:
        code = _DEFECT
        try:
            signal.set_wakeup_fd(-1)
            for number in HEARD:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a terminal may stop who writes from the background
            os.setpgid(0, 0)  # the background: Ctrl-C is the parent's alone, which passes it on
            os.close(self._alive)
            self.release()
            signal.pthread_sigmask(signal.SIG_SETMASK, {*mask, signal.SIGHUP})
            os.read(self._held_back, 1)
            threading.Thread(target=self._end_with_parent, daemon=True, name="parent").start()
            code = run()
        except BaseException as error:  # noqa: BLE001 - a forked process must not go on as its parent
            with suppress(OSError):
                os.write(2, f"process {os.getpid()} ends: {type(error).__name__}\n".encode())
        finally:
            _flush()
            os._exit(code)

    def _end_with_parent(self) -> None:
        os.read(self._life, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._patience_s)
        os.kill(os.getpid(), signal.SIGKILL)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # full or gone, closed, never there
            stream.flush()
