"""Starts the embedded server again when it is gone: what keeps a machine going after a kill -9 of its server."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dispatcher.errors import DispatcherError
from dispatcher.server.embedded import EmbeddedServer
from dispatcher.server.embedded.data_dir import DataDir
from dispatcher.worker.supervisor import backoff_s, crashes_now


@contextmanager
def kept(data_dir: Path, tell: Callable[..., None]) -> Iterator[None]:
    """While the context lasts, join the server in ``data_dir`` again whenever it has ended.

    It comes back at the same address. Of all processes that do this one starts it; what keeps it from starting is told,
    and tried again after a pause.
    """
    keeper = _Keeper(data_dir, tell)
    threading.Thread(target=keeper.keep, daemon=True, name="keeper").start()
    try:
        yield
    finally:
        keeper.stop()


class _Keeper:
    """``keep`` runs in a thread of its own, and ``stop`` gives up what it holds."""

    def __init__(self, data_dir: Path, tell: Callable[..., None]) -> None:
        self._data_dir = data_dir
        self._tell = tell
        self._held: EmbeddedServer | None = None
        self._holding = threading.Lock()
        self._is_over = threading.Event()

    def keep(self) -> None:
        crashes = 0
        while not self._is_over.is_set():
            since = time.monotonic()
            fault = None
            try:
                server = EmbeddedServer.join(self._data_dir)
                self._hold(server)
                _await_end(server)
            except DispatcherError as error:
                fault = str(error)
            if self._is_over.is_set():
                return
            crashes = crashes_now(crashes, time.monotonic() - since)
            pause_s = backoff_s(crashes - 1) if crashes > 1 else 0.0
            if fault is not None:
                self._tell("server.failed", detail=fault, retry_s=pause_s)
            self._is_over.wait(pause_s)

    def stop(self) -> None:
        with self._holding:
            self._is_over.set()
            if self._held is not None:
                self._held.close()

    def _hold(self, server: EmbeddedServer) -> None:
        """Hold it in place of the one before; not after ``stop``."""
        with self._holding:
            before, self._held = self._held, server
            if before is not None:
                before.close()
            if self._is_over.is_set():
                server.close()


def _await_end(server: EmbeddedServer) -> None:
    """Return when the server is gone: it would keep this connection for ever, and never says anything on it."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.fspath(DataDir(server.data_dir).socket))
        connection.recv(1)
