"""Connections to one server: what is written and read on one under a deadline, and those that wait for another use.

The time-outs of sockets hold for one operation each, so a peer that sends a byte now and then holds its caller for
ever. Here every write and every read share one instant. No socket blocks: what cannot go on at once waits in ``poll``.

The only module that imports httptools, which reads HTTP.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from weakref import WeakSet

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MAX_ANSWER_BYTES: Final = 1024 * 1024
"""Of one whole answer, headers and all."""

IDLE_S: Final = 3.0
"""An idle connection is closed after this time. Servers wait longer (5 s and more), so they rarely close one first."""

MAX_AGE_S: Final = 60.0
"""A connection is replaced after this time, so that a name that leads elsewhere by now is looked up again."""

MOST_IDLE: Final = 16

_RECORD: Final = 16 * 1024
"""So much one record of TLS holds. A read takes all of one: what TLS had kept of it, ``poll`` would not see."""

_BYTES_ACKED: Final = slice(120, 128)  # tcpi_bytes_acked in struct tcp_info of linux/tcp.h, since Linux 4.1
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s
_USUAL_CLOSE: Final = struct.pack("ii", 0, 0)


class Deadline:
    """``timeout_s`` from now on, ``by_s`` at the latest; by a clock that goes on while the machine is suspended."""

    __slots__ = ("_clock", "_ends_at", "_span_s")

    def __init__(self, timeout_s: float, by_s: float | None, clock: Callable[[], float]) -> None:
        now_s = clock()
        self._clock = clock
        self._ends_at = now_s + timeout_s if by_s is None else min(now_s + timeout_s, by_s)
        self._span_s = self._ends_at - now_s

    def __str__(self) -> str:
        return f"{self._span_s:.3g} s"

    def left_s(self) -> float:
        """Seconds left; 0 or less when there are none."""
        return self._ends_at - self._clock()

    def remaining_s(self) -> float:
        """Seconds left, above 0; raises ``TimeoutError`` when there are none."""
        left = self.left_s()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        return left


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class NoAnswer(ConnectionError):
    """What came is no answer in HTTP, or not the whole of one."""


class _Answers:
    """Reads the answers that come on one connection, one after another. An interim answer (1xx) is passed over."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self.expect()

    def expect(self) -> None:
        """Nothing has come yet of the next one."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.size = 0
        self.is_headed = False
        """Whether all of its headers have come."""
        self.is_whole = False
        self.is_last = True
        """Whether nothing is to follow it on the connection: it says so, or more has come than was asked for."""

    def take(self, data: bytes) -> None:
        """What has come, nothing at the connection's end. Raises ``NoAnswer`` where it cannot become an answer."""
        self.size += len(data)
        if not data:
            self._end()
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self.is_whole:
                raise NoAnswer(f"no answer in HTTP: {error}") from error
        if self.size > MAX_ANSWER_BYTES and not self.is_whole:
            raise self._cut_off()

    def _end(self) -> None:
        if not self.size:
            raise NoAnswer("the connection ended without an answer")
        ends_with_connection = not {"content-length", "transfer-encoding"} & self.headers.keys()
        if not (self.is_headed and ends_with_connection):
            raise self._cut_off()
        self.is_whole = True

    def _cut_off(self) -> NoAnswer:
        return NoAnswer(f"the answer was cut off after {len(self.body)} bytes")

    # What the parser calls

    def on_message_begin(self) -> None:
        self.is_last = self.is_whole

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.is_headed = self.status >= HTTPStatus.OK
        self.is_last = not self._parser.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.is_whole = self.is_headed
        if not self.is_whole:
            self.headers.clear()


class Connection:
    """An open connection, through TLS where the server's URL asks for it. It carries one exchange at a time.

    Instants are those of the pool's clock. While an answer is missing its end is a reset: closed in the usual way, the
    kernel would go on for minutes to deliver what the peer has not acknowledged yet.
    """

    def __init__(self, sock: socket.socket, opened_at: float) -> None:
        self._sock = sock
        self._answers = _Answers()
        self._acknowledged = 0
        self._has_ended = False
        self.opened_at = opened_at
        self.idle_since = 0.0
        self.is_kept = False
        """Whether it has been idle after an earlier exchange."""
        self.has_begun = False
        """Whether a byte of the request may have left."""
        self.has_sent = False
        """Whether the system has taken bytes of the request to be sent, or of TLS a whole record."""
        sock.settimeout(0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)

    def send(self, request: bytes, deadline: Deadline) -> None:
        """Write a request: in one piece, where a record of TLS holds it. Raises ``OSError``."""
        self.has_begun = self.has_sent = False
        self._answers.expect()
        if self.is_kept:
            self._acknowledged = _acknowledged_bytes(self._sock)
        rest = memoryview(request)
        while rest:
            deadline.remaining_s()
            self.has_begun = True
            try:
                rest = rest[self._sock.send(rest[:_RECORD]) :]
                self.has_sent = True
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(select.POLLOUT, deadline)

    def read(self, deadline: Deadline) -> Reply:
        """The answer. At any status but 200 a body that did not come whole is empty. Raises ``OSError``."""
        answer = self._answers
        try:
            while not answer.is_whole:
                answer.take(self._receive(deadline))
        except OSError:
            if not answer.is_headed or answer.status == HTTPStatus.OK:
                raise
            answer.body.clear()  # another status says all there is to know, such as how long to wait after a 429
        return Reply(answer.status, answer.headers, bytes(answer.body))

    def read_status(self, deadline: Deadline) -> int:
        """The status of an answer that has only headers, such as that of a proxy to CONNECT. Raises ``OSError``."""
        while not self._answers.is_headed:
            self._answers.take(self._receive(deadline))
        return self._answers.status

    @property
    def can_be_kept(self) -> bool:
        """Whether another exchange may follow the one that it carried."""
        return self._answers.is_whole and not self._answers.is_last

    def is_silent(self) -> bool:
        """Whether the other side has neither ended the connection nor sent what nobody asked for.

        What TLS says by itself (session tickets) is read on the way.
        """
        try:
            self._sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def is_unread(self) -> bool:
        """Whether the peer has certainly ended it before it could read a byte of the request.

        An end in order comes with the acknowledgement of all that had arrived before it. A reset says nothing of that.
        """
        return self.is_kept and self._has_ended and 0 < self._acknowledged == _acknowledged_bytes(self._sock)

    def close(self) -> None:
        """Close it: in the usual way if no answer is missing, else by a reset."""
        if self._answers.is_whole:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _USUAL_CLOSE)
        self._sock.close()

    def leave_to_parent(self) -> None:
        """Close the descriptor of a forked child: nothing is sent, and the parent's connection stays as it is."""
        self._sock.close()

    def _receive(self, deadline: Deadline) -> bytes:
        """What comes next; nothing at the connection's end."""
        while True:
            self._wait(select.POLLIN, deadline)
            try:
                data = self._sock.recv(_RECORD)
            except (BlockingIOError, ssl.SSLWantReadError):
                continue
            except ssl.SSLEOFError:  # by a reset, or in order and without a word of TLS: it does not say which
                return b""
            self._has_ended = not data and not self._answers.size
            return data

    def _wait(self, event: int, deadline: Deadline) -> None:
        poll = select.poll()
        poll.register(self._sock, event)
        if not poll.poll(deadline.remaining_s() * 1_000):
            raise TimeoutError("the deadline has passed")


def _acknowledged_bytes(sock: socket.socket) -> int:
    """How many bytes the peer's system has acknowledged so far; 0 where ours does not say (all but Linux)."""
    if not hasattr(socket, "TCP_INFO"):
        return 0
    facts = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.stop)
    return int.from_bytes(facts[_BYTES_ACKED], sys.byteorder)


class IdleConnections:
    """The idle connections to one server. May be used by several threads at once.

    ``idle_s`` seconds after its last exchange a connection is closed, by a thread that lives as long as there are any.
    At most ``most`` are idle; the one that has waited longest goes first. A forked child begins with none.
    """

    def __init__(self, clock: Callable[[], float], *, idle_s: float = IDLE_S, most: int = MOST_IDLE) -> None:
        self._clock = clock
        self._idle_s = idle_s
        self._most = most
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._has_closer = False
        _pools.add(self)

    def take(self) -> Connection | None:
        """The connection that was used last of those that may be used again; it is the caller's from now on."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            now = self._clock()
            is_young = now < connection.opened_at + MAX_AGE_S
            if is_young and now < connection.idle_since + self._idle_s and connection.is_silent():
                return connection
            connection.close()

    def keep(self, connection: Connection) -> None:
        """Have it wait for its next exchange."""
        connection.is_kept = True
        with self._lock:
            connection.idle_since = self._clock()  # within the lock: the list is in order of it
            self._idle.append(connection)
            surplus = self._idle.pop(0) if len(self._idle) > self._most else None
            starts_closer, self._has_closer = not self._has_closer, True
        if surplus is not None:
            surplus.close()
        if starts_closer:
            self._start_closer()

    def close(self) -> None:
        """Close those that are idle now."""
        for each in self._emptied():
            each.close()

    def leave_to_parent(self) -> None:
        """In a forked child: the connections are the parent's, and so may be the lock."""
        self._lock = threading.Lock()
        self._has_closer = False
        for each in self._emptied():
            each.leave_to_parent()

    def _emptied(self) -> list[Connection]:
        with self._lock:
            idle, self._idle = self._idle, []
        return idle

    def _start_closer(self) -> None:
        try:
            threading.Thread(target=self._close_in_time, name="dispatcher-idle", daemon=True).start()
        except RuntimeError:  # the interpreter ends, or the system has no room for a thread
            with self._lock:
                self._has_closer = False
            self.close()

    def _close_in_time(self) -> None:
        while True:
            now = self._clock()
            with self._lock:
                due = [each for each in self._idle if each.idle_since + self._idle_s <= now]
                self._idle = self._idle[len(due) :]
                first = self._idle[0].idle_since if self._idle else None
                self._has_closer = first is not None
            for each in due:
                each.close()
            if first is None:
                return
            time.sleep(first + self._idle_s - now)


_pools: WeakSet[IdleConnections] = WeakSet()


def _leave_all_to_parent() -> None:
    for pool in _pools:
        pool.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)
