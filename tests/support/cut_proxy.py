"""A TCP proxy on 127.0.0.1 in front of a server, which cuts connections and lets calls overtake when told to."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from typing import Final, Self

_PIECE: Final = 65_536
_RESET: Final = struct.pack("ii", 1, 0)
"""Linger for no time: closing resets the connection."""


class CutProxy:
    """Passes bytes on between clients of ``port`` and the server at ``target``; a context manager.

    ``cut_after(n)`` lets n more bytes of replies pass, of whatever connection, and then resets that one, its server's
    side too. ``cuts`` counts. ``hold_next`` holds the next call back. One thread does it all.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self._left: int | None = None
        self._holds = False
        self._held: tuple[socket.socket, bytes] | None = None
        self._lock = threading.Lock()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._servers: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._ours, self._theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="cut-proxy")

    def __enter__(self) -> Self:
        for each in (self._listener, self._theirs):
            self._selector.register(each, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.send(b"!")
        self._thread.join()
        for each in (*self._peers, self._listener, self._ours, self._theirs):
            each.close()
        self._selector.close()

    def cut_after(self, count: int) -> None:
        """Cut the next connection whose reply goes beyond so many bytes, counted over all from now on."""
        with self._lock:
            self._left = count

    def hold_next(self) -> None:
        """Let the next call wait until the server has answered one of another connection."""
        with self._lock:
            self._holds = True

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._theirs:
                    return
                if key.fileobj is self._listener:
                    self._join()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._peers:
                    self._pass_on(key.fileobj)

    def _join(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
        except OSError:
            client.close()
            return
        self._servers.add(server)
        for one, other in ((client, server), (server, client)):
            self._peers[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, source: socket.socket) -> None:
        try:
            piece = source.recv(_PIECE)
            if source not in self._servers and self._is_held(source, piece):
                return
            allowed = self._allowed(len(piece)) if source in self._servers else len(piece)
            self._peers[source].sendall(piece[:allowed])
            if source in self._servers:
                self._release()
        except OSError:
            piece, allowed = b"", 0
        if not piece or allowed < len(piece):
            self._part(source)

    def _is_held(self, source: socket.socket, piece: bytes) -> bool:
        with self._lock:
            is_held, self._holds = self._holds, False
        if is_held:
            self._held = (source, piece)
        return is_held

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._peers[held[0]].sendall(held[1])

    def _allowed(self, count: int) -> int:
        with self._lock:
            if self._left is None:
                return count
            if count <= self._left:
                self._left -= count
                return count
            allowed, self._left = self._left, None
            self.cuts += 1
            return allowed

    def _part(self, one: socket.socket) -> None:
        other = self._peers[one]
        for each in (one, other):
            self._selector.unregister(each)
            del self._peers[each]
            self._servers.discard(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            each.close()
