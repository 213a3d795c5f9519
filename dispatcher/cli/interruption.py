"""Ctrl-C, SIGTERM and a closed terminal for commands that must not be cut off just anywhere."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self

from dispatcher.cli.first_signals import FirstSignals, Interrupted
from dispatcher.worker.child_process import SAME_FROM_PARENT_S
from dispatcher.worker.hangup import Hangup

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """While its context lasts, SIGINT, SIGTERM and SIGHUP raise ``Interrupted``; where held back, later.

    With ``has_limits`` SIGHUP means to read these again, unless the terminal is gone; see ``hand_over``. It stays
    ignored where it was (nohup). ``asked`` says whether an interruption has come. Another one within a second changes
    nothing.

    What a handler raises can get lost: in a callback of the garbage collector, or in a library that takes it for an
    error of its own. ``raise_if_asked`` and ``outranks_errors`` raise it again.
    """

    def __init__(self, *, has_limits: bool = False) -> None:
        self.asked = False
        self.hangup = Hangup()
        self._has_limits = has_limits
        self._rereads = False
        self._asked_at = 0.0
        self._held_back = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        if self._before[signal.SIGHUP] is signal.SIG_IGN:
            del self._before[signal.SIGHUP]
        for number in self._before:
            signal.signal(number, self._handle)
        first = self._before[signal.SIGTERM]
        if isinstance(first, FirstSignals):
            self.hangup = first.hangup
            self._rereads |= first.rereads
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Finish what is done in here first. An error in here is more important than the interruption."""
        self.raise_if_asked()
        self._held_back += 1
        try:
            yield
        finally:
            self._held_back -= 1
        self.raise_if_asked()

    def raise_if_asked(self) -> None:
        """Raise ``Interrupted`` if an interruption has come, unless held back further out."""
        if self.asked and not self._held_back:
            raise Interrupted

    def hand_over(self) -> None:
        """Let those who have handlers of their own now hear what came before: ``raise_if_asked``, or SIGHUP again."""
        self.raise_if_asked()
        if self._rereads:
            self._rereads = False
            signal.raise_signal(signal.SIGHUP)

    @contextmanager
    def outranks_errors(self) -> Iterator[None]:
        """An error in here that comes after an interruption is taken for its consequence."""
        try:
            yield
        except Exception:
            self.raise_if_asked()
            raise

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        del frame
        if signum == signal.SIGHUP and self._has_limits and not self.hangup.is_end():
            self._rereads = True
        elif not self.asked:
            self.asked = True
            self._asked_at = time.monotonic()
            self.raise_if_asked()
        elif time.monotonic() - self._asked_at > SAME_FROM_PARENT_S:
            self.raise_if_asked()
