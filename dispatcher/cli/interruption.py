"""Ctrl-C, SIGTERM and a closed terminal for commands that must not be cut off just anywhere."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """While its context lasts, SIGINT, SIGTERM and SIGHUP raise ``KeyboardInterrupt``; where held back, later.

    SIGHUP stays ignored where it was (nohup). ``asked`` says whether one has come. Further ones change nothing: what
    the first has set going is short.
    """

    def __init__(self) -> None:
        self.asked = False
        self._held_back = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        if self._before[signal.SIGHUP] is signal.SIG_IGN:
            del self._before[signal.SIGHUP]
        for number in self._before:
            signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Finish what is done in here first. An error in here is more important than the interruption."""
        self._held_back += 1
        try:
            yield
        finally:
            self._held_back -= 1
        self.raise_if_asked()

    def raise_if_asked(self) -> None:
        """Raise ``KeyboardInterrupt`` if an interruption has come, unless held back further out."""
        if self.asked and not self._held_back:
            raise KeyboardInterrupt

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        if not self.asked:
            self.asked = True
            self.raise_if_asked()
