"""The console sink: prints what would have been posted. Must be asked for, never a fallback."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TextIO

from dispatcher.core.posts import Message, PostResult, Receipt
from dispatcher.core.rendering import one_line, unescape
from dispatcher.core.states import ScanResult, Search, Unreadable, boottime_s
from dispatcher.logs.line_buffer import Refused, encoding_of, file_of, write_all
from dispatcher.slack.taxonomy import problem


class ConsoleSink:
    """Prints one line per message, ``#channel  text``, neutralised and whole; may be used by several threads.

    ``when_closed`` is called, perhaps more than once, when nobody can read what is printed, now or later.
    """

    can_update: Final = True
    """What has changed is printed again."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.when_closed: Callable[[], None] = lambda: None
        self._stream = stream
        self._lock = threading.Lock()
        self._is_torn = False

    def update(self, channel: str, ts: str, message: Message, *, by_s: float | None = None) -> PostResult:
        """Print the message as it is now."""
        del ts
        return self.post(replace(message, channel=channel), by_s=by_s)

    def post(self, message: Message, *, by_s: float | None = None) -> PostResult:
        """Print the message; nothing is posted where the output is closed or full, or the message is too late."""
        if by_s is not None and boottime_s() >= by_s:
            return problem("too_late")
        line = f"{one_line(message.channel)}  {one_line(unescape(message.text), 4_000)}\n"
        stream = self._stream or sys.stdout
        encoding = encoding_of(stream)
        try:
            with self._lock:
                self._print(stream, line.encode(encoding, "backslashreplace"), encoding)
        except (BrokenPipeError, ValueError) as error:
            self.when_closed()
            return problem("console_closed", one_line(str(error)))
        except OSError as error:
            return problem("console_failed", one_line(str(error)))
        return Receipt(message.channel, None)

    def _print(self, stream: TextIO, line: bytes, encoding: str) -> None:
        """Print a line: to a file past the stream, which would keep what a full disk refuses and print it later, too.

        A line of which only a part could be printed is ended before the next one.
        """
        file = file_of(stream)
        if file is None:
            stream.write(line.decode(encoding))
            stream.flush()
            return
        stream.flush()
        rest = b"\n" + line if self._is_torn else line
        try:
            write_all(file, [memoryview(rest)])
        except Refused as error:
            if error.taken:
                self._is_torn = not rest.endswith(b"\n", 0, error.taken)
            raise error.cause from None
        self._is_torn = False

    def scan(self, search: Search) -> ScanResult:
        """What was printed cannot be read back."""
        del search
        return ScanResult({}, Unreadable("console", "what was printed cannot be read back"))
