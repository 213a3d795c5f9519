"""Log lines on their way to a reader that may stall: what it does not take at once waits, and a thread writes it."""

from __future__ import annotations

import os
import select
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, Protocol, TextIO

MOST_BYTES: Final = 4 * 1024 * 1024
"""Some 15,000 lines: the reader may stall for as long as that takes, and nothing is left out."""

_PIECE: Final = 64 * 1024


class LineBuffer:
    """Takes whole lines, as UTF-8, and never makes their writer wait for who reads ``stream``.

    Lines are written at once as long as the reader takes them. While it stalls, ``most_bytes`` are kept, and a thread
    writes them when it goes on. What finds no room is left out and counted, until all that was kept is written: then
    ``tell`` is called with the count, and the lines it puts stand in the place of those left out. What cannot be
    written (a disk that is full) is left out as well, and told of once a line can be written again; a line of which
    only a part could be written is ended before that one. In a process that was forked the buffer begins empty: what
    was not written by then is the parent's to write.
    """

    def __init__(self, stream: TextIO, *, most_bytes: int = MOST_BYTES) -> None:
        self._out = _output_of(stream)
        self._encoding = None if isinstance(self._out, _Stream) else _other_encoding(stream)
        self._most_bytes = most_bytes
        self.tell: Callable[[int], None] = lambda _count: None
        self._queue = _Queue()

    def put(self, lines: bytes) -> None:
        """Have these written; returns at once."""
        if self._encoding is not None:
            lines = lines.decode().encode(self._encoding, "backslashreplace")
        queue = self._own_queue()
        with queue.lock:
            missed = self._keep(queue, lines) if queue.size or queue.left_out else self._write_now(queue, lines)
        if missed:
            self.tell(missed)

    def drain(self, within_s: float) -> bool:
        """Wait until all is written, no longer than ``within_s``; whether it is."""
        queue = self._own_queue()
        with queue.lock:
            return queue.changed.wait_for(lambda: not queue.size, within_s)

    def close(self) -> None:
        """Give back what it has opened, and end its thread once all is written.

        The stream stays as it is, and nothing is to be put any more.
        """
        queue = self._own_queue()
        with queue.lock:
            queue.is_closed = True
            queue.changed.notify_all()
        self._out.close()

    def _own_queue(self) -> _Queue:
        if self._queue.pid != os.getpid():
            self._queue = _Queue()
        return self._queue

    def _write_now(self, queue: _Queue, lines: bytes) -> int:
        """Write what the reader takes, and keep the rest; returns how many lines are to be told of as left out."""
        taken = self._write(queue, lines, self._out.write_now)
        if taken is None:
            return 0
        if taken < len(lines):
            return self._keep(queue, lines[taken:])
        missed, queue.missed = queue.missed, 0
        return missed

    def _write(self, queue: _Queue, lines: bytes, write: Callable[[bytes], int]) -> int | None:
        """Write lines, behind the end of one that was torn. Returns how many bytes were taken.

        Where the rest cannot be written, its lines are missed, and None is returned.
        """
        end = b"\n" if queue.is_torn else b""
        is_refused = False
        try:
            taken = write(end + lines)
        except (OSError, ValueError) as error:
            taken, is_refused = error.taken if isinstance(error, Refused) else 0, True
        if taken:
            queue.is_torn, queue.is_within = False, not (end + lines).endswith(b"\n", 0, taken)
        of_lines = max(0, taken - len(end))
        if not is_refused:
            return of_lines
        queue.is_torn = queue.is_within
        queue.missed += lines.count(b"\n", of_lines)
        return None

    def _keep(self, queue: _Queue, lines: bytes) -> int:
        if queue.thread is threading.current_thread():
            queue.lines.appendleft(lines)
        elif queue.left_out or (queue.size and queue.size + len(lines) > self._most_bytes):
            queue.left_out += lines.count(b"\n")
            return 0
        else:
            queue.lines.append(lines)
        queue.size += len(lines)
        queue.changed.notify_all()
        if queue.thread is None:
            thread = threading.Thread(target=self._write_later, args=(queue,), daemon=True, name="log")
            with suppress(RuntimeError):  # no room for a thread: the next line tries again
                thread.start()
                queue.thread = thread
        return 0

    def _write_later(self, queue: _Queue) -> None:
        while True:
            with queue.lock:
                queue.changed.wait_for(lambda: queue.lines or queue.left_out or queue.is_closed)
                if not (queue.lines or queue.left_out):
                    queue.thread = None
                    return
                piece, left_out = queue.take()
            queue.missed += left_out
            if not piece or self._write(queue, piece, self._out.write) is not None:
                missed, queue.missed = queue.missed, 0
                if missed:
                    self.tell(missed)
            with queue.lock:
                queue.size -= len(piece)
                queue.changed.notify_all()


class _Queue:
    """What one process has still to write; ``size`` counts the bytes, with those that are being written.

    ``left_out`` lines found no room behind what is kept, ``missed`` could not be written. ``is_within``: what was
    written last ends within a line; ``is_torn``: the rest of that line could not be written.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.lines: deque[bytes] = deque()
        self.size = 0
        self.left_out = 0
        self.missed = 0
        self.is_within = False
        self.is_torn = False
        self.is_closed = False
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


class Refused(OSError):
    """Nothing more can be written now, for this ``cause``; ``taken`` bytes were."""

    def __init__(self, taken: int, cause: OSError) -> None:
        super().__init__()
        self.taken = taken
        self.cause = cause


class _Output(Protocol):
    """Raises ``OSError`` or ``ValueError`` for what cannot be written: ``Refused`` where a part was."""

    def write_now(self, lines: bytes) -> int:
        """Write as much as the reader takes without a wait; returns how many bytes."""
        ...

    def write(self, lines: bytes) -> int:
        """Write all, and wait for the reader; returns how many bytes."""
        ...

    def close(self) -> None: ...


def _output_of(stream: TextIO) -> _Output:
    """How to write to what lies below a stream. No lock of the stream is held while its reader stalls."""
    file = file_of(stream)
    if file is None:
        return _Stream(stream)
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return _File(file)
    if stat.S_ISSOCK(mode):
        return _Socket(file)
    try:
        # What is opened anew can be made non-blocking without a change for others who hold the same file.
        return _Pipe(file, os.open(f"/proc/self/fd/{file}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError:  # no Linux, no right to
        return _Pipe(file, None)


def file_of(stream: TextIO) -> int | None:
    """The file below a stream; None where there is none, as below what a program puts in the place of one."""
    try:
        file = stream.fileno()
        os.fstat(file)
    except (OSError, ValueError, TypeError, AttributeError):  # without such a method, or one that returns None
        return None
    return file


def encoding_of(stream: TextIO) -> str:
    """The encoding of a stream, or of what a program puts in the place of one."""
    return getattr(stream, "encoding", None) or "utf-8"


def _other_encoding(stream: TextIO) -> str | None:
    """The stream's encoding, where it is not that of the lines."""
    encoding = encoding_of(stream)
    return None if encoding.lower().replace("-", "").replace("_", "") == "utf8" else encoding


class _Stream:
    """A stream without a file: nobody stalls."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write_now(self, lines: bytes) -> int:
        return self.write(lines)

    def write(self, lines: bytes) -> int:
        self._stream.write(lines.decode())
        self._stream.flush()
        return len(lines)

    def close(self) -> None:
        pass


class _File:
    """A file on a disk: it has no reader to wait for."""

    def __init__(self, file: int) -> None:
        self._file = file

    def write_now(self, lines: bytes) -> int:
        return self.write(lines)

    def write(self, lines: bytes) -> int:
        return write_all(self._file, [memoryview(lines)])

    def close(self) -> None:
        pass


class _Socket:
    """A socket, as systemd gives one for its journal."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._socket = socket.socket(fileno=os.dup(file))

    def write_now(self, lines: bytes) -> int:
        try:
            return self._socket.send(lines, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def write(self, lines: bytes) -> int:
        return write_all(self._file, [memoryview(lines)])

    def close(self) -> None:
        self._socket.close()


class _Pipe:
    """A pipe or a terminal; ``quick`` is the same, and never blocks."""

    def __init__(self, file: int, quick: int | None) -> None:
        self._file = file
        self._quick = quick

    def write_now(self, lines: bytes) -> int:
        taken = 0
        if self._quick is not None:
            for piece in _pieces(lines):
                try:
                    written = os.write(self._quick, piece)
                except BlockingIOError:
                    break
                except OSError as error:
                    raise Refused(taken, error) from error
                taken += written
                if written < len(piece):
                    break
        return taken

    def write(self, lines: bytes) -> int:
        return write_all(self._file, _pieces(lines))

    def close(self) -> None:
        if self._quick is not None:
            os.close(self._quick)
            self._quick = None


def _pieces(lines: bytes) -> Iterator[memoryview]:
    """The lines in pieces that a pipe takes whole, so that those of several processes do not mix."""
    view, first = memoryview(lines), 0
    while first < len(lines):
        last = len(lines)
        if last - first > select.PIPE_BUF:
            last = lines.rfind(b"\n", first, first + select.PIPE_BUF) + 1 or lines.find(b"\n", first) + 1 or last
        yield view[first:last]
        first = last


def write_all(file: int, pieces: Iterable[memoryview]) -> int:
    """Write all, and wait for the reader; returns how many bytes. Raises ``Refused`` where not all can be written."""
    taken = 0
    for piece in pieces:
        rest = piece
        while rest:
            try:
                written = os.write(file, rest)
            except BlockingIOError:  # who gave us the file has made it non-blocking
                select.select([], [file], [])
            except OSError as error:
                raise Refused(taken, error) from error
            else:
                taken, rest = taken + written, rest[written:]
    return taken
