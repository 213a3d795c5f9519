"""One HTTP exchange under one deadline, and the knowledge whether the request had left when it failed.

The time-outs of sockets hold for one operation each, so a peer that sends a byte now and then holds its caller
for ever. Here the name look-up, the connection, TLS, a proxy, every write and every read share one instant, by a clock
that goes on while the machine is suspended. Nothing is ever sent twice, and no redirect is followed (it would carry the
token elsewhere). After a whole answer the connection waits for the next exchange; without one it is reset: closed in
the usual way, the kernel would go on for minutes to deliver what the peer has not acknowledged yet.

The server may close a kept connection at any moment. One whose end has arrived is not used. Where the first write
fails, nothing has left, and the exchange goes on over another connection. Where an end in order arrives after the write
and the kernel shows that not a byte was acknowledged, the server had closed before it could read any:
``connection_closed``, certainly not posted. Everything else is with an unknown delivery status.
"""

from __future__ import annotations

import io
import os
import queue
import socket
import ssl
import struct
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from ipaddress import ip_address
from typing import Any, Final, cast
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass
from weakref import WeakSet, finalize

from dispatcher.core.states import boottime_s
from dispatcher.errors import ConfigError

MAX_REPLY_BYTES: Final = 1024 * 1024

_CHUNK: Final = 64 * 1024
_RECORD: Final = 16 * 1024  # so much one record of TLS holds
_BYTES_ACKED: Final = slice(120, 128)  # tcpi_bytes_acked in struct tcp_info of linux/tcp.h, since Linux 4.1
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s
_USUAL_CLOSE: Final = struct.pack("ii", 0, 0)

IDLE_S: Final = 3.0
"""An idle connection is closed after this time. Servers wait longer (5 s and more), so they rarely close one first."""

MAX_AGE_S: Final = 60.0
"""A connection is replaced after this time, so that a name that leads elsewhere by now is looked up again."""

MOST_IDLE: Final = 16

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
"""By the scheme of the URL."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ExchangeFailed(Exception):
    """No answer came; ``code`` is a cause of the taxonomy and says whether the request had begun to leave."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


@dataclass(slots=True)
class Connection:
    """An open connection, through TLS where the server's URL asks for it. Instants are those of the pool's clock."""

    sock: socket.socket
    opened_at: float
    is_kept: bool = False
    """Whether it has been idle after an earlier exchange."""
    idle_since: float = 0.0


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
            if is_young and now < connection.idle_since + self._idle_s and _is_silent(connection.sock):
                return connection
            connection.sock.close()

    def keep(self, connection: Connection) -> None:
        """Have it wait for its next exchange."""
        connection.is_kept = True
        with self._lock:
            connection.idle_since = self._clock()  # within the lock: the list is in order of it
            self._idle.append(connection)
            surplus, self._idle = self._idle[: -self._most], self._idle[-self._most :]
            starts_closer, self._has_closer = not self._has_closer, True
        for each in surplus:
            each.sock.close()
        if starts_closer:
            self._start_closer()

    def close(self) -> None:
        """Close those that are idle now."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.sock.close()

    def leave_to_parent(self) -> None:
        """In a forked child: the connections are the parent's, and so may be the lock."""
        self._lock = threading.Lock()
        self._has_closer = False
        self.close()  # of the child's descriptors only: nothing is sent

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
                each.sock.close()
            if first is None:
                return
            time.sleep(first + self._idle_s - now)


_pools: WeakSet[IdleConnections] = WeakSet()


def _leave_all_to_parent() -> None:
    for pool in _pools:
        pool.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)


def _is_silent(sock: socket.socket) -> bool:
    """Whether the other side has neither ended the connection nor sent what nobody asked for.

    What TLS says by itself (session tickets) is read on the way.
    """
    try:
        sock.settimeout(0)
        sock.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    return False


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
        deadline: _Deadline = getattr(self._shared, "deadline", None) or self._deadline()
        if deadline.left_s() <= 0:
            raise _too_late(deadline)
        target = urlsplit(url)
        path = target.path + (f"?{target.query}" if target.query else "")
        if self._proxy is not None and self._tls is None:
            path = f"http://{target.netloc}{path}"
            headers = {**headers, **self._proxy.headers}
        while (kept := self._idle.take()) is not None:
            with suppress(_NothingSent):
                return self._exchange(kept, path, headers, body, deadline)
        try:
            return self._exchange(self._connect(deadline), path, headers, body, deadline)
        except _NothingSent as error:
            raise ExchangeFailed("connect_failed", error.detail) from error

    def _exchange(
        self, connection: Connection, path: str, headers: Mapping[str, str], body: bytes, deadline: _Deadline
    ) -> Reply:
        """One request and its answer; the connection is kept or closed afterwards."""
        timed = _TimedSocket(connection.sock, deadline)
        http = HTTPConnection(self._host, self._port)
        http.sock = cast("socket.socket", timed)
        is_usable = False
        try:
            timed.reset_at_close(on=True)
            http.request("POST", path, body, dict(headers))
            timed.send()
            with closing(http.getresponse()) as response:
                reply = _read(response)
                if response.isclosed() and not response.length:
                    timed.reset_at_close(on=False)
                    # After an interim answer (1xx) the next bytes would be taken for those of another exchange.
                    is_usable = not response.will_close and reply.status >= HTTPStatus.OK and not timed.has_more
                return reply
        except TimeoutError as error:
            if not timed.has_begun:
                raise _too_late(deadline) from error
            raise ExchangeFailed("reply_timeout", f"no complete answer within {deadline}") from error
        except (OSError, HTTPException) as error:
            if not timed.has_sent:
                raise _NothingSent(_reason(error)) from error
            if connection.is_kept and timed.is_unread():
                self._idle.close()  # they may end in the same moment, and another attempt should find a new one
                raise ExchangeFailed("connection_closed", _reason(error)) from error
            raise ExchangeFailed("connection_lost", _reason(error)) from error
        finally:
            if is_usable:
                self._idle.keep(connection)
            else:
                connection.sock.close()

    def _deadline(self, by_s: float | None = None) -> _Deadline:
        return _Deadline(self._timeout_s, by_s, self._clock)

    def _connect(self, deadline: _Deadline) -> Connection:
        """A new connection; nothing of the request has left yet."""
        try:
            sock = self._open(deadline)
        except TimeoutError as error:
            raise ExchangeFailed("connect_timeout", f"no connection within {deadline}") from error
        except ConnectionRefusedError as error:
            raise ExchangeFailed("connection_refused", _reason(error)) from error
        except OSError as error:
            raise ExchangeFailed("connect_failed", _reason(error)) from error
        try:
            if self._tls is not None:
                if self._proxy is not None:
                    self._tunnel(sock, self._proxy, deadline)
                sock.settimeout(deadline.remaining_s())
                sock = self._tls.wrap_socket(sock, server_hostname=self._host, suppress_ragged_eofs=False)
            return Connection(sock, self._clock())
        except BaseException as error:
            sock.close()
            match error:
                case TimeoutError():
                    raise ExchangeFailed("connect_timeout", f"no connection within {deadline}") from error
                case ssl.SSLError():
                    raise ExchangeFailed("tls_failed", _reason(error)) from error
                case OSError():
                    raise ExchangeFailed("connect_failed", _reason(error)) from error
                case _:
                    raise

    def _open(self, deadline: _Deadline) -> socket.socket:
        """A TCP connection to the server or its proxy, by the first address that answers."""
        host, port = (self._host, self._port) if self._proxy is None else (self._proxy.host, self._proxy.port)
        addresses = self._addresses(host, port, deadline)
        failure: OSError | None = None
        for left, (family, kind, protocol, _, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(deadline.remaining_s() / left)  # one dead address must not use up all the time
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                sock.close()
                failure = error
            else:
                return sock
        raise failure if failure is not None else OSError("the name has no address")

    def _addresses(self, host: str, port: int, deadline: _Deadline) -> list[Any]:
        """The look-up of a name obeys no time-out, so it has a thread that is left behind when it takes too long."""
        if is_address(host):
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        found: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

        def look_up() -> None:
            try:
                found.put(self._resolve(host, port, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError) as error:  # UnicodeError: a label that is empty or too long
                found.put(error if isinstance(error, OSError) else OSError(str(error)))

        threading.Thread(target=look_up, name="dispatcher-dns", daemon=True).start()
        try:
            answer = found.get(timeout=deadline.remaining_s())
        except queue.Empty:
            raise ExchangeFailed("dns_failed", f"{host} was not resolved within {deadline}") from None
        if isinstance(answer, OSError):
            raise ExchangeFailed("dns_failed", f"{host}: {_reason(answer)}") from answer
        return answer

    def _tunnel(self, sock: socket.socket, proxy: Proxy, deadline: _Deadline) -> None:
        """Have the proxy connect us to the server; nothing of the request has left yet."""
        timed = _TimedSocket(sock, deadline)
        connection = HTTPConnection(proxy.host, proxy.port)
        connection.sock = cast("socket.socket", timed)
        server = f"[{self._host}]" if ":" in self._host else self._host
        try:
            headers = {"Host": f"{server}:{self._port}", **proxy.headers}
            connection.request("CONNECT", f"{server}:{self._port}", headers=headers)
            timed.send()
            with closing(connection.getresponse()) as response:
                status = response.status
        except HTTPException as error:
            raise ExchangeFailed("proxy_failed", _reason(error)) from error
        if status != HTTPStatus.OK:
            raise ExchangeFailed("proxy_failed", f"the proxy answered HTTP {status}")


class _Deadline:
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


def _too_late(deadline: _Deadline) -> ExchangeFailed:
    return ExchangeFailed("too_late", f"its time ended {-deadline.left_s():.1f} s ago")


class _NothingSent(Exception):
    """The connection had ended before the system took a byte of the request."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class _TimedSocket:
    """The part of a socket that ``http.client`` uses, each operation bounded by what is left of the deadline.

    What it writes is gathered and leaves with ``send``: in one piece, where a record of TLS holds it.
    """

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock = sock
        self._deadline = deadline
        self._request = bytearray()
        self._acknowledged = 0
        self._answer: _Answer | None = None
        self.has_begun = False
        """Whether a byte may have left."""
        self.has_sent = False
        """Whether the system has taken bytes of the request to be sent, or of TLS a whole record."""

    def sendall(self, data: bytes) -> None:
        self._request += data

    def send(self) -> None:
        rest = memoryview(self._request)
        self._acknowledged = _acknowledged_bytes(self._sock)
        while rest:
            self._sock.settimeout(self._deadline.remaining_s())
            self.has_begun = True
            rest = rest[self._sock.send(rest[:_RECORD]) :]
            self.has_sent = True

    def makefile(self, _mode: str) -> io.BufferedReader:
        self._answer = _Answer(self._sock, self._deadline)
        return self._answer

    @property
    def has_more(self) -> bool:
        """Whether something came behind the answer; known once ``http.client`` has closed its file."""
        return self._answer is None or self._answer.has_more

    def is_unread(self) -> bool:
        """Whether the peer has certainly ended the connection before it could read a byte of the request.

        An end in order comes with the acknowledgement of all that had arrived before it. A reset says nothing of that.
        """
        return (
            self._answer is not None
            and self._answer.is_ended
            and 0 < self._acknowledged == _acknowledged_bytes(self._sock)
        )

    def reset_at_close(self, *, on: bool) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE if on else _USUAL_CLOSE)

    def close(self) -> None:
        """Leaves the socket open: the exchange decides what becomes of it, after the answer was read."""


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock = sock
        self._deadline = deadline
        self._reads = 0
        self.is_stopped = False
        """Whether nothing more is to be read from the socket."""
        self.is_ended = False
        """Whether the connection ended in order before the first byte: by a FIN, within TLS by its close_notify."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - the base class takes any buffer
        if self.is_stopped:
            return 0
        self._sock.settimeout(self._deadline.remaining_s())
        self._reads += 1
        try:
            count = self._sock.recv_into(buffer)
        except ssl.SSLEOFError:  # by a reset, or in order and without a word of TLS: it does not say which
            return 0
        self.is_ended = count == 0 and self._reads == 1
        return count


class _Answer(io.BufferedReader):
    """What ``http.client`` reads an answer from; it closes this at the answer's end."""

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._reader = _TimedReader(sock, deadline)
        super().__init__(self._reader)
        self.has_more = False
        """Whether bytes that do not belong to the answer were read with it."""

    @property
    def is_ended(self) -> bool:
        """Whether the connection ended in order in place of an answer."""
        return self._reader.is_ended

    def close(self) -> None:
        if not self.closed:
            self._reader.is_stopped = True
            self.has_more = bool(self.read(1))
        super().close()


def _acknowledged_bytes(sock: socket.socket) -> int:
    """How many bytes the peer's system has acknowledged so far; 0 where ours does not say (all but Linux)."""
    if not hasattr(socket, "TCP_INFO"):
        return 0
    facts = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.stop)
    return int.from_bytes(facts[_BYTES_ACKED], sys.byteorder)


def _read(response: HTTPResponse) -> Reply:
    headers = {name.lower(): value for name, value in response.getheaders()}
    try:
        body = _body(response)
    except (OSError, HTTPException):
        if response.status == HTTPStatus.OK:
            raise
        body = b""  # any other status says all there is to know, for example how long to wait after a 429
    return Reply(response.status, headers, body)


def _body(response: HTTPResponse) -> bytes:
    body = bytearray()
    while len(body) <= MAX_REPLY_BYTES and (part := response.read(_CHUNK)):
        body += part
    if response.length:  # http.client takes what came before the end for the whole
        raise HTTPException(f"the answer was cut off after {len(body)} bytes")
    return bytes(body[:MAX_REPLY_BYTES])


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


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be this machine."""
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    """Whether a host is an IP address and needs no look-up."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
