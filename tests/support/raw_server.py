"""A server on 127.0.0.1 whose every byte a test decides: HTTP that no library would write, and TLS."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Self

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
    """One whole HTTP request."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65_536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    while len(body) < length:
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body


def http_reply(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


POSTED = http_reply(b'{"ok": true, "channel": "C1", "ts": "1.000001"}')
