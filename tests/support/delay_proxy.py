"""A TCP proxy on 127.0.0.1 that a test may hold up: what a slow network, or a slow server, does to its clients."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

_PIECE: Final = 65_536

Meanwhile = Callable[[bytes], None]
"""Is given what is about to pass on; it passes when the function returns."""


def _at_once(_piece: bytes) -> None:
    pass


class DelayProxy:
    """Passes bytes on to the port or the unix socket ``target``; a context manager.

    ``on_call`` is called with each piece that a client sent, before the server gets it, and ``on_reply`` with each
    piece of an answer; both may be set anew at any time. Each direction of a connection has a thread of its own, so one
    that is held up does not hold up the others. What a client has sent is lost if it resets the connection before that
    passed on, or if it did not pass on within ``patience_s``: its kernel, which holds it as long as that, gives it up.
    """

    def __init__(self, target: int | Path, *, is_http: bool = False, patience_s: float = math.inf) -> None:
        """Requests of HTTP name the proxy as their host; the server is told its own name."""
        self._target = target
        self._patience_s = patience_s
        self.on_call: Meanwhile = _at_once
        self.on_reply: Meanwhile = _at_once
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        hosts = [f"Host: 127.0.0.1:{port}\r\n".encode() for port in (self.port, target)]
        self._hosts = hosts if is_http else [b"", b""]
        self._open: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, name="delay-proxy", daemon=True)

    @property
    def url(self) -> str:
        """Where a client of Redis goes instead."""
        return f"redis://127.0.0.1:{self.port}/0"

    def lose_answer_to(self, words: bytes) -> None:
        """Let the server get the next call that holds these words, and its client a broken connection.

        A script that the server does not know yet has not run: then the answer to the call with its text is lost.
        """
        is_asked = False

        def on_call(piece: bytes) -> None:
            nonlocal is_asked
            is_asked = is_asked or words in piece

        def on_reply(piece: bytes) -> None:
            nonlocal is_asked
            is_lost, is_asked = is_asked and not piece.startswith(b"-NOSCRIPT"), False
            if is_lost:
                self.on_call = self.on_reply = _at_once
                raise ConnectionAbortedError("the answer is lost")

        self.on_call, self.on_reply = on_call, on_reply

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        for each in (*self._open, self._listener):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = self._connect()
            except OSError:
                client.close()
                continue
            self._open += [client, server]
            for source, sink, is_reply in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._pass_on, args=(source, sink, is_reply), name="delay-proxy", daemon=True
                ).start()

    def _connect(self) -> socket.socket:
        if isinstance(self._target, int):
            return socket.create_connection(("127.0.0.1", self._target))
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._target))
        return server

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_reply: bool) -> None:  # noqa: FBT001 - a thread's
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                since = time.monotonic()
                (self.on_reply if is_reply else self.on_call)(piece)
                if not is_reply and (_was_reset(source) or time.monotonic() - since > self._patience_s):
                    break
                sink.sendall(piece if is_reply else self._named(piece))
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _named(self, piece: bytes) -> bytes:
        ours, theirs = self._hosts
        return piece.replace(ours, theirs, 1) if ours else piece


def _was_reset(source: socket.socket) -> bool:
    return source.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0  # OSError if the proxy has closed it meanwhile
