"""One HTTP exchange under one deadline, and the knowledge whether the request had left when it failed.

The time-outs of sockets hold for one operation each, so a peer that sends a byte now and then holds its caller
for ever. Here the name look-up, the connection, TLS, a proxy, every write and every read share one instant, by a clock
that goes on while the machine is suspended. Nothing is ever sent twice, no redirect is followed (it would carry the
token elsewhere) and every exchange has a connection of its own. That connection is reset unless the answer came whole:
closed in the usual way, the kernel would go on for minutes to deliver what the peer has not acknowledged yet.
"""

from __future__ import annotations

import io
import queue
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Final, cast
from urllib.parse import urlsplit

from dispatcher.core.boottime import boottime_s
from dispatcher.slack.proxy import DEFAULT_PORTS, Proxy, is_address, proxy_for

MAX_REPLY_BYTES: Final = 1024 * 1024

_CHUNK: Final = 64 * 1024
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s
_USUAL_CLOSE: Final = struct.pack("ii", 0, 0)


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


class Transport:
    """Exchanges with the server of one URL. May be used by several threads at once.

    The proxy of the environment is used (``HTTPS_PROXY`` or ``HTTP_PROXY`` by the URL's scheme, less
    ``NO_PROXY``), never for a loopback address. Certificates are those of the system, or of ``SSL_CERT_FILE``.
    Raises ``ConfigError`` for a proxy it cannot use. ``clock`` is that of ``boottime_s``.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        *,
        resolve: Callable[..., list[Any]] = socket.getaddrinfo,
        clock: Callable[[], float] = boottime_s,
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
        self._tls = _tls_context() if target.scheme == "https" else None  # 20 ms of CPU: once, not per exchange

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
        extra = {"Connection": "close"}
        if self._proxy is not None and self._tls is None:
            path = f"http://{target.netloc}{path}"
            extra |= self._proxy.headers
        with self._connect(deadline) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            timed = _TimedSocket(sock, deadline)
            connection = HTTPConnection(self._host, self._port)
            connection.sock = cast("socket.socket", timed)
            try:
                connection.request("POST", path, body, {**headers, **extra})
                with closing(connection.getresponse()) as response:
                    reply = _read(response)
                    if response.isclosed() and not response.length:
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _USUAL_CLOSE)
                    return reply
            except TimeoutError as error:
                if not timed.has_sent:
                    raise _too_late(deadline) from error
                raise ExchangeFailed("reply_timeout", f"no complete answer within {deadline}") from error
            except (OSError, HTTPException) as error:
                raise ExchangeFailed("connection_lost", _reason(error)) from error

    def _deadline(self, by_s: float | None = None) -> _Deadline:
        return _Deadline(self._timeout_s, by_s, self._clock)

    def _connect(self, deadline: _Deadline) -> socket.socket:
        try:
            sock = self._open(deadline)
        except TimeoutError as error:
            raise ExchangeFailed("connect_timeout", f"no connection within {deadline}") from error
        except ConnectionRefusedError as error:
            raise ExchangeFailed("connection_refused", _reason(error)) from error
        except OSError as error:
            raise ExchangeFailed("connect_failed", _reason(error)) from error
        try:
            if self._tls is None:
                return sock
            if self._proxy is not None:
                self._tunnel(sock, self._proxy, deadline)
            sock.settimeout(deadline.remaining_s())
            return self._tls.wrap_socket(sock, server_hostname=self._host)
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
        connection = HTTPConnection(proxy.host, proxy.port)
        connection.sock = cast("socket.socket", _TimedSocket(sock, deadline))
        server = f"[{self._host}]" if ":" in self._host else self._host
        try:
            headers = {"Host": f"{server}:{self._port}", **proxy.headers}
            connection.request("CONNECT", f"{server}:{self._port}", headers=headers)
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


class _TimedSocket:
    """The part of a socket that ``http.client`` uses, each operation bounded by what is left of the deadline."""

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock = sock
        self._deadline = deadline
        self.has_sent = False
        """Whether a byte may have left."""

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._sock.settimeout(self._deadline.remaining_s())
            self.has_sent = True
            rest = rest[self._sock.send(rest[:_CHUNK]) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self._sock, self._deadline))

    def close(self) -> None:
        """Leaves the socket open: who opened it closes it, after the answer was read."""


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - the base class takes any buffer
        self._sock.settimeout(self._deadline.remaining_s())
        return self._sock.recv_into(buffer)


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
