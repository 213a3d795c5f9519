"""A server on 127.0.0.1 whose every byte a test decides: HTTP that no library would write, and TLS."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

# Made for these tests and trusted by nobody: a certificate for 127.0.0.1 and slack.test, valid until 2099.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgnY1OdjtXLnBb/285
Lc3mJ1yHl4J7FFoQsZeDv6v03cehRANCAAToLCaShzIpbHcV09nOr8CKgYT49oNg
juQJPe1tfiS4BYHUBIwQPlUOG1NDX+i+eW+f//YEm3/PwDCU+BTHyGyv
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBezCCASCgAwIBAgIBATAKBggqhkjOPQQDAjAVMRMwEQYDVQQDDApzbGFjay50
ZXN0MCAXDTIwMDEwMTAwMDAwMFoYDzIwOTkxMjMxMjM1OTU5WjAVMRMwEQYDVQQD
DApzbGFjay50ZXN0MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE6CwmkocyKWx3
FdPZzq/AioGE+PaDYI7kCT3tbX4kuAWB1ASMED5VDhtTQ1/ovnlvn//2BJt/z8Aw
lPgUx8hsr6NfMF0wDwYDVR0TAQH/BAUwAwEB/zAbBgNVHREEFDASggpzbGFjay50
ZXN0hwR/AAABMB0GA1UdDgQWBBSTcjfAkZt4WVIKuCjT0WmN60Q/AjAOBgNVHQ8B
Af8EBAMCAoQwCgYIKoZIzj0EAwIDSQAwRgIhAIxf50FVgix6fhjl6NzCyr9nPdte
zaT8WVfHz+r+JekVAiEAu3/wQAHPDWdNj85Ks7Z9n30f4c+vr+MZgp3Xx4ZAK/w=
-----END CERTIFICATE-----
"""


class RawServer:
    """Listens on 127.0.0.1 and hands each connection to a function, in one thread.

    ``window`` is how many bytes the kernel takes in that the function has not read yet, where it is given.
    """

    def __init__(self, serve: Callable[[socket.socket], None], window: int | None = None) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        if window is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self._listener.settimeout(5)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept)

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    self._serve(connection)
                except OSError:
                    continue  # the caller went away, which is what these tests are about

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def read_request(connection: socket.socket) -> bytes:
    """One whole HTTP request; empty where the connection ended before."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65_536)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    while len(body) < length:
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body


def trusted_tls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's side of TLS; clients made after this trust its certificate."""
    path = folder / "slack.pem"
    path.write_text(CERTIFICATE)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def kept_reply(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """An answer after which the connection stays open."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def http_reply(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """An answer after which the connection ends."""
    return kept_reply(body, status, "Connection: close", *headers)


_OK = b'{"ok": true, "channel": "C1", "ts": "1.000001"}'
POSTED = http_reply(_OK)
POSTED_AND_KEPT = kept_reply(_OK)


def cut(connection: socket.socket) -> None:
    """Ends a connection that another thread serves; TLS is left alone, for an object of TLS is of one thread."""
    socket.socket.shutdown(connection, socket.SHUT_RDWR)


class KeepingServer:
    """Listens on 127.0.0.1 and serves each connection in a thread of its own, through TLS with ``tls``.

    ``answer`` gets each request and returns what is written, or nothing to end the connection. ``patience_s`` says how
    long a connection may be idle before this side ends it. ``requests`` holds the requests of each connection, ``open``
    counts the connections that have not ended.
    """

    def __init__(
        self,
        answer: Callable[[bytes], bytes] | None = None,
        tls: ssl.SSLContext | None = None,
        patience_s: Callable[[], float] = lambda: 120.0,
    ) -> None:
        self._answer = answer or (lambda _request: POSTED_AND_KEPT)
        self._tls = tls
        self._patience_s = patience_s
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.requests: list[list[bytes]] = []
        self.connections: list[socket.socket] = []
        self.open = 0
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept)]

    def url(self, path: str = "/api/") -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}{path}"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for connection in self.connections:
            with suppress(OSError):
                cut(connection)
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            self.open += 1
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(10)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            spoken = self._tls.wrap_socket(connection, server_side=True) if self._tls else connection
            with spoken:
                requests: list[bytes] = []
                with self._lock:
                    self.requests.append(requests)
                    self.connections.append(spoken)
                while answer := self._next(spoken, requests):
                    spoken.sendall(answer)
                    spoken.settimeout(self._patience_s())
        except OSError:
            connection.close()  # the caller went away, or a test has closed it
        with self._lock:
            self.open -= 1

    def _next(self, connection: socket.socket, requests: list[bytes]) -> bytes:
        request = read_request(connection)
        if not request:
            return b""
        requests.append(request)
        return self._answer(request)
