"""One HTTP exchange under one deadline, and the knowledge whether the request had left when it failed.

The name look-up, the connection, TLS, a proxy, every write and every read share one instant, by a clock that goes on
while the machine is suspended. Nothing is ever sent twice, and no redirect is followed (it would carry the token
elsewhere). After a whole answer the connection waits for the next exchange; without one it is reset.

The server may close a kept connection at any moment. One whose end has arrived is not used. Where the first write
fails, nothing has left, and the exchange goes on over another connection. Where an end in order arrives after the write
and the kernel shows that not a byte was acknowledged, the server had closed before it could read any:
``connection_closed``, certainly not posted. Everything else is with an unknown delivery status.
"""

from __future__ import annotations

import queue
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass
from weakref import finalize

from dispatcher.core.states import boottime_s
from dispatcher.errors import ConfigError
from dispatcher.slack.connections import IDLE_S, Connection, Deadline, IdleConnections, NoAnswer, Reply

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
"""By the scheme of the URL."""

_PLAIN: Final = {"Accept-Encoding": "identity"}


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
            raise ExchangeFailed("connect_failed", error.detail) from error

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
            raise ExchangeFailed("connection_lost", _reason(error)) from error
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

    def _open(self, deadline: Deadline) -> socket.socket:
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

        threading.Thread(target=look_up, name="dispatcher-dns", daemon=True).start()
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
        except NoAnswer as error:
            raise ExchangeFailed("proxy_failed", _reason(error)) from error
        if status != HTTPStatus.OK:
            raise ExchangeFailed("proxy_failed", f"the proxy answered HTTP {status}")


def _request(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    lines = (f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", "")
    return "\r\n".join(lines).encode("latin-1")


def _too_late(deadline: Deadline) -> ExchangeFailed:
    return ExchangeFailed("too_late", f"its time ended {-deadline.left_s():.1f} s ago")


class _NothingSent(Exception):
    """The connection had ended before the system took a byte of the request."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


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
