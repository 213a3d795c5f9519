"""A terminal that a test watches while something is drawn on it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from tests.support.processes import PATIENCE_S

HOME: Final = "\x1b[H"
"""What a program sends before it draws the screen anew."""


class Screen:
    """A pseudo terminal of ``columns`` x ``rows``; hand ``stream`` to a process as its stdout."""

    def __init__(self, columns: int = 100, rows: int = 30) -> None:
        self._ours, self.stream = pty.openpty()
        fcntl.ioctl(self.stream, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._drawn = bytearray()
        self._reader = threading.Thread(target=self._collect)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.stream)
        self._reader.join(PATIENCE_S)
        os.close(self._ours)

    def text(self) -> str:
        """Everything that was written so far."""
        return self._drawn.decode(errors="replace")

    def latest(self) -> str:
        """What was drawn last and is complete; empty if nothing was."""
        frames = self.text().split(HOME)
        return frames[-2] if len(frames) > 2 else ""

    def _collect(self) -> None:
        with suppress(OSError):  # how a terminal ends
            while piece := os.read(self._ours, 65_536):
                self._drawn.extend(piece)
