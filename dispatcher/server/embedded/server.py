"""A client's hold on the embedded server: join the one in a data directory, or start it, and leave it again.

Every process that uses the server joins it. The first one starts a guard (``guard.py``), which runs the
server; both outlive the process that started them, and end when the last client has left or died.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

from dispatcher.errors import ConfigError, GateUnavailable
from dispatcher.server.embedded.alive import LOOK_EVERY_S, await_answer, await_end
from dispatcher.server.embedded.binary import ServerBinary, find_server
from dispatcher.server.embedded.data_dir import DataDir, Record, open_lock, try_lock
from dispatcher.server.embedded.launch import launch

_END_TIMEOUT_S: Final = 15.0  # more than the guard gives its server


class EmbeddedServer:
    """One process's hold on the server of a data directory: made by ``join``, given up by ``close``.

    ``url`` is for redis-py. ``warning`` is a sentence for the operator, or ``None``.

    The hold is an open file. A child made by ``os.fork`` shares it and keeps the server alive until it ends
    or closes as well, whatever its parent does; a program that is executed does not inherit it, and joins
    for itself.
    """

    def __init__(self, data: DataDir, hold: int, warning: str | None) -> None:
        self.data_dir = data.path
        self.url = "unix://" + quote(os.fsencode(data.socket))
        self.warning = warning
        self._data = data
        self._hold: int | None = hold

    @classmethod
    def join(cls, data_dir: Path, *, start: bool = True, timeout_s: float = 10.0, is_in_all: bool = False) -> Self:
        """Join the server that runs in ``data_dir``; where none runs, start it, or refuse if not ``start``.

        Returns when the server answers and its data is loaded. Of any number of processes that do this at
        once exactly one starts it. After the server was killed, joining again starts the next one, at the
        same socket. ``timeout_s`` is how long to wait for a sign of life; that it is loading is one. Where it
        ``is_in_all``, a call that does not ``start`` one waits no longer, whatever the sign.

        Raises ``ConfigError`` that says what to mend, and ``GateUnavailable`` where the time was not enough. A server
        that a failed call started ends by itself.
        """
        try:
            return cls._join(data_dir, start=start, timeout_s=timeout_s, is_in_all=is_in_all)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not start:
                raise _not_running(data_dir) from None
            where = f" ({error.filename})" if error.filename else ""
            raise ConfigError(
                f"data directory {data_dir} cannot be used: {error.strerror or error}{where}; "
                "set DISPATCHER_DATA_DIR to a directory on a local disk that this user can write, "
                "or DISPATCHER_REDIS_URL to a server"
            ) from error

    @classmethod
    def _join(cls, path: Path, *, start: bool, timeout_s: float, is_in_all: bool) -> Self:
        end = time.monotonic() + timeout_s if is_in_all else None
        data = DataDir.open(path, create=start)
        hold = open_lock(data.clients_lock, create=start)
        try:
            _become_client(data, hold, timeout_s)
            return cls(data, hold, _ensure_running(data, start=start, timeout_s=timeout_s, end=end))
        except BaseException:
            os.close(hold)
            raise

    def close(self) -> None:
        """Give up the hold; as the last client, wait until the server has written everything and is gone.

        The wait is bounded (15 s); beyond it the guard finishes alone. Closing twice is harmless.
        """
        hold, self._hold = self._hold, None
        if hold is None:
            return
        os.close(hold)  # not unlocked: forked children share the lock
        await_end(self._data, _END_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _become_client(data: DataDir, hold: int, timeout_s: float) -> None:
    """Share the clients' lock. Waits while the guard has it alone: it is ending the last server."""
    deadline = time.monotonic() + timeout_s
    while not try_lock(hold, shared=True):
        if time.monotonic() > deadline:
            raise GateUnavailable(
                f"the embedded server in {data.path} has been ending for more than {timeout_s:g} s: "
                f"try again later, or see {data.log}"
            )
        time.sleep(LOOK_EVERY_S)


def _ensure_running(data: DataDir, *, start: bool, timeout_s: float, end: float | None) -> str | None:
    """Return when the server serves; with the warning about changed data if it was started here."""
    while True:
        last = data.record()
        started = _start_unless_running(data, start=start, timeout_s=timeout_s)
        serves = await_answer(data, timeout_s, end)
        if serves and started is None:
            return None
        if started is None:
            continue  # the server that others had, or were starting, is gone: look again
        warning = _changed(data, last, started)
        if not serves:
            raise ConfigError(
                f"{started} ({started.path}) ended at its start in data directory {data.path}"
                f"{f' ({warning})' if warning else ''}; its last words: {data.log_tail()}"
            )
        data.write_record(Record(data.record().socket, started.flavour, started.version))
        return warning


def _start_unless_running(data: DataDir, *, start: bool, timeout_s: float) -> ServerBinary | None:
    """Start a server and return its program; ``None`` if somebody runs one, or is starting it."""
    lock = open_lock(data.server_lock, create=start)
    try:
        if not try_lock(lock, shared=False):
            return None
        if not start:
            raise _not_running(data.path)
        binary = find_server()
        last = data.record()
        # Where it listens must be known before it does; the data is its own only once it has read it.
        data.write_record(Record(data.choose_socket(), last.flavour, last.version))
        launch(data, binary, lock, timeout_s)
        return binary
    finally:
        os.close(lock)


def _not_running(data_dir: Path) -> ConfigError:
    return ConfigError(
        f"no embedded server is running in {data_dir}: "
        "start one with 'dispatcher up' or 'dispatcher worker', "
        "or set DISPATCHER_DATA_DIR to the directory of one that runs, or DISPATCHER_REDIS_URL to a server"
    )


def _changed(data: DataDir, last: Record, now: ServerBinary) -> str | None:
    is_same = last.flavour == now.flavour and last.version[:1] == now.version[:1]
    if not last.flavour or (is_same and last.version <= now.version):
        return None
    before = f"{last.flavour} {'.'.join(map(str, last.version))}"
    return (
        f"the data in {data.path} was written by {before} and is now read by {now}: "
        f"if anything is missing, stop everything and go back to {before}"
    )
