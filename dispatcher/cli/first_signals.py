"""Signals to a command that has not begun anything yet; heard before anything else is loaded."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

from dispatcher.worker.hangup import Hangup


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or a signal that means the same.

    A class of its own, since CPython ends a process by SIGINT when a plain ``KeyboardInterrupt`` has passed through
    ``exec``, even where it was caught; and ``exec`` makes the data classes and named tuples of modules that are loaded.
    """


def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    """A handler in place of Python's own for SIGINT."""
    del signum, frame
    raise Interrupted


class FirstSignals:
    """Until ``Interruption`` takes over: SIGTERM and SIGINT end the process with 0, there is nothing to be finished.

    So does SIGHUP where the terminal is gone; any other is kept for later (``rereads``). It stays ignored where it was.
    """

    def __init__(self) -> None:
        self.hangup = Hangup()
        self.rereads = False

    def listen(self) -> None:
        """From now on hear them."""
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self)
        signal.signal(signal.SIGINT, self)
        signal.signal(signal.SIGTERM, self)

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """The handler of all three."""
        del frame
        if signum == signal.SIGHUP and not self.hangup.is_end():
            self.rereads = True
        else:
            os._exit(0)
