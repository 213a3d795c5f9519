"""A terminal that a test watches while something is drawn on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from tests.support.processes import PATIENCE_S

HOME: Final = "\x1b[H"
"""What a program sends before it draws the screen anew."""


_CODE: Final = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])")


class Emulator:
    """What a person sees on a terminal of ``columns`` x ``rows``, and what has scrolled away above."""

    def __init__(self, columns: int, rows: int) -> None:
        self._columns = columns
        self._rows = rows
        self._lines = [""]
        self._at = (0, 0)

    @property
    def screen(self) -> list[str]:
        """The lines in sight."""
        return self._lines[-self._rows :]

    @property
    def everything(self) -> list[str]:
        """Also those that have scrolled away."""
        return self._lines

    def feed(self, text: str) -> None:
        """What a program writes: text, line breaks, and the codes of rich's live display."""
        at = 0
        while at < len(text):
            if code := _CODE.match(text, at):
                at = code.end()
                self._obey(code[1], code[2])
                continue
            self._put(text[at])
            at += 1

    def _obey(self, argument: str, letter: str) -> None:
        row, column = self._at
        match letter:
            case "A":
                self._at = (max(row - int(argument or 1), len(self._lines) - len(self.screen)), column)
            case "K":
                self._lines[row] = ""
            case "m" | "h" | "l":
                pass
            case _:
                raise AssertionError(f"this terminal does not know {argument}{letter}")

    def _put(self, char: str) -> None:
        row, column = self._at
        if char == "\r":
            self._at = (row, 0)
            return
        if char == "\n" or column == self._columns:
            self._at = row, column = row + 1, 0
            self._lines += [""] * (row + 1 - len(self._lines))
        if char != "\n":
            line = self._lines[row].ljust(column)
            self._lines[row] = f"{line[:column]}{char}{line[column + 1 :]}"
            self._at = (row, column + 1)


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
