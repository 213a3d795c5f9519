"""Starts the embedded server again when it is gone: what keeps a machine going after a kill -9 of its server."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dispatcher.errors import DispatcherError
from dispatcher.server.embedded import EmbeddedServer
from dispatcher.server.embedded.data_dir import DataDir
from dispatcher.worker.supervisor import backoff_s, crashes_now


def keep_server(data_dir: Path, tell: Callable[..., None]) -> None:
    """From now on, and as long as this process lives, join the server in ``data_dir`` again whenever it has ended.

    It comes back at the same address. Of all processes that do this one starts it; what keeps it from starting is told,
    and tried again after a pause.
    """
    threading.Thread(target=_keep, args=(data_dir, tell), daemon=True, name="keeper").start()


def _keep(data_dir: Path, tell: Callable[..., None]) -> None:
    hold: EmbeddedServer | None = None
    crashes = 0
    while True:
        since = time.monotonic()
        fault = None
        try:
            before, hold = hold, EmbeddedServer.join(data_dir)
            if before is not None:
                before.close()
            _await_end(hold)
        except DispatcherError as error:
            fault = str(error)
        crashes = crashes_now(crashes, time.monotonic() - since)
        pause_s = backoff_s(crashes - 1) if crashes > 1 else 0.0
        if fault is not None:
            tell("server.failed", detail=fault, retry_s=pause_s)
        time.sleep(pause_s)


def _await_end(server: EmbeddedServer) -> None:
    """Return when the server is gone: it would keep this connection for ever, and never says anything on it."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.fspath(DataDir(server.data_dir).socket))
        connection.recv(1)
