"""One HTTP exchange under one deadline, and the knowledge whether the request had left when it failed.

The name look-up, the connection, TLS, a proxy, every write and every read share one instant, by a clock that goes on
while the machine is suspended. Nothing is ever sent twice, and no redirect is followed (it would carry the token
elsewhere). After a whole answer the connection waits for the next exchange; without one it is reset.

The server may close a kept connection at any moment. One whose end has arrived is not used. Where the first write
fails, nothing has left, and the exchange goes on over another connection. Where an end in order arrives after the write
and the kernel shows that not a byte was acknowledged, the server had closed before it could read any:
``connection_closed``, certainly not posted. In every other case the delivery status is unknown.

The time-outs of sockets hold for one operation each, so a peer that sends a byte now and then holds its caller for
ever. Here every write and every read share one instant. No socket blocks: what cannot go on at once waits in ``poll``.

The only module that imports httptools, which reads HTTP.
"""

from __future__ import annotations

import os
import queue
import select
import socket
import ssl
import struct
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass
from weakref import WeakSet, finalize

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from dispatcher.core.states import boottime_s
from dispatcher.core.units import is_loopback
from dispatcher.errors import ConfigError

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
"""By the scheme of the URL."""

_PLAIN: Final = {"Accept-Encoding": "identity"}

MAX_ANSWER_BYTES: Final = 1024 * 1024
"""Of one whole answer, headers and all."""

TOO_LARGE: Final = "answer_too_large"
"""The code of an answer of more than ``MAX_ANSWER_BYTES``. The request did leave."""

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


class ExchangeFailed(Exception):
    """No answer came; ``code`` is a cause of the taxonomy and says whether the request had begun to leave."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class _NoThread(ExchangeFailed):
    """There is no room for a thread on this system: no fault of a server, nor of a proxy."""


class Transport:
    """Exchanges with the server of one URL. May be used by several threads at once.

    The proxy of the environment is used (``HTTPS_PROXY`` or ``HTTP_PROXY`` by the URL's scheme, less
    ``NO_PROXY``), never for a loopback address. Certificates are those of the system, or of ``SSL_CERT_FILE``.
    Raises ``ConfigError`` for a proxy it cannot use. ``clock`` is that of ``boottime_s``. A connection that is idle for
    ``idle_s`` seconds is closed.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        *,
        resolve: Callable[..., list[Any]] = socket.getaddrinfo,
        clock: Callable[[], float] = boottime_s,
        idle_s: float = IDLE_S,
    ) -> None:
        target = urlsplit(url)
        self._scheme = target.scheme
        self._host = target.hostname or ""
        self._port = target.port or DEFAULT_PORTS[target.scheme]
        self._timeout_s = timeout_s
        self._resolve = resolve
        self._clock = clock
        self._shared = threading.local()
        self._proxy = proxy_for(target)
        self._tls = _tls_context() if target.scheme == "https" else None  # 20 ms of CPU: once, not per connection
        self._idle = IdleConnections(clock, idle_s=idle_s)
        finalize(self, self._idle.close)

    @contextmanager
    def one_deadline(self, by_s: float | None = None) -> Iterator[None]:
        """What this thread sends within it shares one deadline: the time-out from now on, ``by_s`` at the latest."""
        self._shared.deadline = self._deadline(by_s)
        try:
            yield
        finally:
            del self._shared.deadline

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Send ``body`` to a URL of this server; ends within the deadline whatever the peer does.

        Raises ``ExchangeFailed``: ``too_late`` where the deadline had passed before the first byte left, and then none
        does. At any status but 200 a body that did not arrive whole is empty.
        """
        deadline: Deadline = getattr(self._shared, "deadline", None) or self._deadline()
        if deadline.left_s() <= 0:
            raise _too_late(deadline)
        target = urlsplit(url)
        path = (target.path or "/") + (f"?{target.query}" if target.query else "")
        if self._proxy is not None and self._tls is None:
            path = f"http://{target.netloc}{path}"
            headers = {**headers, **self._proxy.headers}
        sent = {"Host": target.netloc, **_PLAIN, **headers, "Content-Length": str(len(body))}
        request = _request("POST", path, sent) + body
        while (kept := self._idle.take()) is not None:
            with suppress(_NothingSent):
                return self._exchange(kept, request, deadline)
        try:
            return self._exchange(self._connect(deadline), request, deadline)
        except _NothingSent as error:
            raise ExchangeFailed("connect_failed", str(error)) from error

    def _exchange(self, connection: Connection, request: bytes, deadline: Deadline) -> Reply:
        """One request and its answer; the connection is kept or closed afterwards."""
        try:
            connection.send(request, deadline)
            return connection.read(deadline)
        except TimeoutError as error:
            if not connection.has_begun:
                raise _too_late(deadline) from error
            raise ExchangeFailed("reply_timeout", f"no complete answer within {deadline}") from error
        except OSError as error:
            if not connection.has_sent:
                raise _NothingSent(_reason(error)) from error
            if connection.is_unread():
                self._idle.close()  # they may end in the same moment, and another attempt should find a new one
                raise ExchangeFailed("connection_closed", _reason(error)) from error
            code = TOO_LARGE if isinstance(error, AnswerTooLarge) else "connection_lost"
            raise ExchangeFailed(code, _reason(error)) from error
        finally:
            if connection.can_be_kept:
                self._idle.keep(connection)
            else:
                connection.close()

    def _deadline(self, by_s: float | None = None) -> Deadline:
        return Deadline(self._timeout_s, by_s, self._clock)

    def _connect(self, deadline: Deadline) -> Connection:
        """A new connection; nothing of the request has left yet."""
        try:
            sock = self._reach(deadline)
        except ExchangeFailed as error:
            if self._proxy is None or isinstance(error, _NoThread):
                raise
            raise self._proxy.failed(error.detail) from error
        try:
            if self._tls is not None:
                if self._proxy is not None:
                    self._tunnel(sock, self._proxy, deadline)
                sock.settimeout(deadline.remaining_s())
                sock = self._tls.wrap_socket(sock, server_hostname=self._host, suppress_ragged_eofs=False)
            return Connection(sock, self._clock())
        except BaseException as error:
            sock.close()
            if isinstance(error, OSError):
                raise _not_connected(error, deadline) from error
            raise

    def _reach(self, deadline: Deadline) -> socket.socket:
        """As ``_open``; raises ``ExchangeFailed``."""
        try:
            return self._open(deadline)
        except OSError as error:
            raise _not_connected(error, deadline) from error

    def _open(self, deadline: Deadline) -> socket.socket:
        """A TCP connection to the server or its proxy, by the first address that answers."""
        host, port = (self._host, self._port) if self._proxy is None else (self._proxy.host, self._proxy.port)
        addresses = self._addresses(host, port, deadline)
        failure: OSError | None = None
        for left, (family, kind, protocol, _, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
            try:
                with ExitStack() as opened:
                    sock = opened.enter_context(socket.socket(family, kind, protocol))
                    sock.settimeout(deadline.remaining_s() / left)  # one dead address must not use up all the time
                    sock.connect(address)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    opened.pop_all()
                    return sock
            except OSError as error:
                failure = error
        raise failure if failure is not None else OSError("the name has no address")

    def _addresses(self, host: str, port: int, deadline: Deadline) -> list[Any]:
        """The look-up of a name obeys no time-out, so it has a thread that is left behind when it takes too long."""
        if is_address(host):
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        found: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

        def look_up() -> None:
            try:
                found.put(self._resolve(host, port, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError) as error:  # UnicodeError: a label that is empty or too long
                found.put(error if isinstance(error, OSError) else OSError(str(error)))

        try:
            threading.Thread(target=look_up, name="dispatcher-dns", daemon=True).start()
        except RuntimeError as error:
            raise _NoThread("connect_failed", f"{host} cannot be looked up: {error}") from error
        try:
            answer = found.get(timeout=deadline.remaining_s())
        except queue.Empty:
            raise ExchangeFailed("dns_failed", f"{host} was not resolved within {deadline}") from None
        if isinstance(answer, OSError):
            raise ExchangeFailed("dns_failed", f"{host}: {_reason(answer)}") from answer
        return answer

    def _tunnel(self, sock: socket.socket, proxy: Proxy, deadline: Deadline) -> None:
        """Have the proxy connect us to the server; nothing of the request has left yet."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        server = f"{host}:{self._port}"
        connection = Connection(sock, self._clock())
        try:
            connection.send(_request("CONNECT", server, {"Host": server, **proxy.headers}), deadline)
            status = connection.read_status(deadline)
        except TimeoutError as error:
            raise proxy.failed(f"no answer within {deadline}") from error
        except OSError as error:
            raise proxy.failed(_reason(error)) from error
        if status != HTTPStatus.OK:
            raise proxy.failed(f"its answer was HTTP {status}")


def _request(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    lines = (f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", "")
    return "\r\n".join(lines).encode("latin-1")


def _not_connected(error: OSError, deadline: Deadline) -> ExchangeFailed:
    match error:
        case TimeoutError():
            return ExchangeFailed("connect_timeout", f"no connection within {deadline}")
        case ConnectionRefusedError():
            return ExchangeFailed("connection_refused", _reason(error))
        case ssl.SSLError():
            return ExchangeFailed("tls_failed", _reason(error))
        case _:
            return ExchangeFailed("connect_failed", _reason(error))


def _too_late(deadline: Deadline) -> ExchangeFailed:
    return ExchangeFailed("too_late", f"its time ended {-deadline.left_s():.1f} s ago")


class _NothingSent(Exception):
    """The connection had ended before the system took a byte of the request."""


def _tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@dataclass(frozen=True, slots=True)
class Proxy:
    """A plain HTTP proxy; ``headers`` carry its login and are not shown."""

    host: str
    port: int
    headers: Mapping[str, str] = field(repr=False)

    def failed(self, detail: str) -> ExchangeFailed:
        """What is raised where it makes no connection."""
        return ExchangeFailed("proxy_failed", f"the proxy at {self.host}, port {self.port}: {detail}")


def proxy_for(target: SplitResult) -> Proxy | None:
    """The proxy to a URL: ``HTTPS_PROXY`` or ``HTTP_PROXY`` by its scheme, less ``NO_PROXY``; never to this machine.

    Raises ``ConfigError`` for a proxy that does not speak plain HTTP; its value, which may hold a password,
    is not shown.
    """
    host = target.hostname or ""
    url = getproxies_environment().get(target.scheme, "").strip()
    if not url or is_loopback(host) or proxy_bypass(host):
        return None
    name = f"{target.scheme.upper()}_PROXY"
    try:
        proxy = urlsplit(url if "://" in url else f"http://{url}")
        port = proxy.port or DEFAULT_PORTS["http"]
    except ValueError:
        raise ConfigError(f"{name} is not a URL, expected http://HOST:PORT") from None
    if proxy.scheme != "http" or not proxy.hostname:
        raise ConfigError(f"{name} begins with {proxy.scheme}://, expected http://HOST:PORT")
    if proxy.username is None:
        return Proxy(proxy.hostname, port, {})
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return Proxy(proxy.hostname, port, {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode()}"})


def is_address(host: str) -> bool:
    """Whether a host is an IP address and needs no look-up."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


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


class AnswerTooLarge(NoAnswer):
    """The answer has more bytes than are read."""


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
            raise AnswerTooLarge(f"the answer has more than {MAX_ANSWER_BYTES} bytes")

    def _end(self) -> None:
        if not self.size:
            raise NoAnswer("the connection ended without an answer")
        ends_with_connection = not {"content-length", "transfer-encoding"} & self.headers.keys()
        if not (self.is_headed and ends_with_connection):
            raise NoAnswer(f"the answer was cut off after {len(self.body)} bytes")
        self.is_whole = True

    # What the parser calls; what follows a whole answer is no part of it

    def on_message_begin(self) -> None:
        self.is_last = self.is_whole

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.is_whole:
            return
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        if self.is_whole:
            return
        self.status = self._parser.get_status_code()
        self.is_headed = self.status >= HTTPStatus.OK
        self.is_last = not self._parser.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        if not self.is_whole:
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
        self.has_begun: bool
        """Whether a byte of the request may have left."""
        self.has_sent: bool
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
    At most ``MOST_IDLE`` are idle; the one that has waited longest goes first. A forked child begins with none.
    """

    def __init__(self, clock: Callable[[], float], *, idle_s: float) -> None:
        self._clock = clock
        self._idle_s = idle_s
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
            surplus = self._idle.pop(0) if len(self._idle) > MOST_IDLE else None
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
