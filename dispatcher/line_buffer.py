"""Log lines on their way to a reader that may stall: they wait in memory, and a thread of its own writes them."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TextIO

MOST_BYTES: Final = 4 * 1024 * 1024
"""Some 15,000 lines: the reader may stall for as long as that takes, and nothing is left out."""

_PIECE: Final = 64 * 1024


class LineBuffer:
    """Takes whole lines, as UTF-8, and never makes their writer wait; a thread writes them to ``stream``.

    While the reader stalls, ``most_bytes`` are kept. What comes then is left out and counted, until all that was kept
    is written: then ``tell`` is called with the count, and the lines it puts stand in the place of those left out. What
    cannot be written (a disk that is full) is left out as well, and told of once a line can be written again. In a
    process that was forked it begins empty: what was not written by then is the parent's to write.
    """

    def __init__(self, stream: TextIO, *, most_bytes: int = MOST_BYTES) -> None:
        self._stream = stream
        self._file = _file_of(stream)
        self._most_bytes = most_bytes
        self.tell: Callable[[int], None] = lambda _count: None
        self._queue = _Queue()

    def put(self, lines: bytes) -> None:
        """Have these written; returns at once."""
        queue = self._own_queue()
        with queue.lock:
            if queue.thread is threading.current_thread():
                queue.lines.appendleft(lines)
            elif queue.left_out or queue.size + len(lines) > self._most_bytes or not self._is_writing(queue):
                queue.left_out += lines.count(b"\n")
                return
            else:
                queue.lines.append(lines)
            queue.size += len(lines)
            queue.changed.notify_all()

    def drain(self, within_s: float) -> bool:
        """Wait until all is written, no longer than ``within_s``; whether it is."""
        queue = self._own_queue()
        with queue.lock:
            return queue.changed.wait_for(lambda: not queue.size, within_s)

    def _own_queue(self) -> _Queue:
        if self._queue.pid != os.getpid():
            self._queue = _Queue()
        return self._queue

    def _is_writing(self, queue: _Queue) -> bool:
        """Whether there is a thread that writes; where the system has no room for one, the next line tries again."""
        if queue.thread is None:
            thread = threading.Thread(target=self._write_all, args=(queue,), daemon=True, name="log")
            try:
                thread.start()
            except RuntimeError:
                return False
            queue.thread = thread
        return True

    def _write_all(self, queue: _Queue) -> None:
        missing = 0
        while True:
            with queue.lock:
                queue.changed.wait_for(lambda: queue.size or queue.left_out)
                piece, left_out = queue.take()
            missing += left_out
            if not self._write(piece):
                missing += piece.count(b"\n")
            elif missing:
                self.tell(missing)
                missing = 0
            with queue.lock:
                queue.size -= len(piece)
                queue.changed.notify_all()

    def _write(self, piece: bytes) -> bool:
        try:
            if self._file is None:
                self._stream.write(piece.decode())
                self._stream.flush()
            else:
                _write_to(self._file, _recoded(piece, self._stream.encoding))
        except (OSError, ValueError):
            return False
        return True


class _Queue:
    """What one process has to write; ``size`` counts the bytes, with those that are being written."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.lines: deque[bytes] = deque()
        self.size = 0
        self.left_out = 0
        self.thread: threading.Thread | None = None

    def take(self) -> tuple[bytes, int]:
        """What is written next, and how many lines were left out behind it."""
        pieces: list[bytes] = []
        size = 0
        while self.lines and size < _PIECE:
            pieces.append(self.lines.popleft())
            size += len(pieces[-1])
        left_out = 0
        if not self.lines:
            left_out, self.left_out = self.left_out, 0
        return b"".join(pieces), left_out


def _file_of(stream: TextIO) -> int | None:
    """The file below a stream: written directly, so that no lock of the stream is held while its reader stalls."""
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _recoded(piece: bytes, encoding: str | None) -> bytes:
    if encoding is None or encoding.lower().replace("_", "-") in {"utf-8", "utf8"}:
        return piece
    return piece.decode().encode(encoding, "backslashreplace")


def _write_to(file: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        try:
            rest = rest[os.write(file, rest) :]
        except BlockingIOError:  # who gave us the file has made it non-blocking
            select.select([], [file], [])
