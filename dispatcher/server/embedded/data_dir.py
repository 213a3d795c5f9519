"""The embedded server's data directory: what lies in it, whose it must be, and its locks.

    server.lock       held by the server and its guard, and by whoever is starting them; free: no server runs
    clients.lock      shared by all clients; the guard takes it alone to end the server
    up.lock           held by ``dispatcher up``, with its process id
    server.json       where the socket is, and which server wrote the data
    server.sock       the socket, unless its path would be too long
    server.log        the server's log of this run; server.log.1 of the run before
    appendonlydir/    the data

All of them are ``flock`` locks: the kernel frees them with the last process that holds them, however it ended.
The lock files themselves are never removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import stat
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dispatcher.errors import ConfigError

LONGEST_SOCKET_PATH: Final = 100
"""Bytes; the kernel's own bound is 107 on Linux and 103 on macOS."""

_QUOTED_LINES: Final = 5
_QUOTED_LENGTH: Final = 300


@dataclass(frozen=True, slots=True)
class Record:
    """What ``server.json`` says.

    ``socket`` is relative to the data directory, or absolute where it lies elsewhere. ``flavour`` and
    ``version`` name the server that wrote the data; empty when there is no data yet, or nobody knows.
    """

    socket: str = "server.sock"
    flavour: str = ""
    version: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DataDir:
    """A data directory that exists, is ours, and that nobody else can write in; ``path`` is absolute."""

    path: Path

    @classmethod
    def open(cls, path: Path, *, create: bool) -> DataDir:
        """Check the directory; make it (mode 700), and its parents, if ``create``.

        Raises ``ConfigError`` when it is not fit for our data, ``OSError`` when it cannot be reached or made.
        """
        real = Path(os.path.realpath(path))
        try:
            status = real.stat()
        except FileNotFoundError:
            if not create:
                raise
            real.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = real.stat()
        fault = _unfit(real, status)
        if fault:
            raise ConfigError(f"data directory {real} {fault} (DISPATCHER_DATA_DIR)")
        return cls(real)

    @property
    def server_lock(self) -> Path:
        """Held as long as a server runs here, or is being started."""
        return self.path / "server.lock"

    @property
    def clients_lock(self) -> Path:
        """Shared by all clients."""
        return self.path / "clients.lock"

    @property
    def log(self) -> Path:
        """What the server of this run, or of the last one, wrote."""
        return self.path / "server.log"

    @property
    def socket(self) -> Path:
        """The socket of the server that runs here, or ran last."""
        return self.path / self.record().socket

    def record(self) -> Record:
        """What is known of the server; the plain ``Record`` where ``server.json`` is missing or spoilt."""
        try:
            said = json.loads(self._record_file.read_bytes())
            return Record(str(said["socket"]), str(said["flavour"]), tuple(int(part) for part in said["version"]))
        except (OSError, ValueError, KeyError, TypeError):
            return Record()

    def write_record(self, record: Record) -> None:
        """Replace ``server.json`` in one step. For whoever starts the server, and nobody else."""
        draft = self._record_file.with_suffix(".new")
        draft.write_text(json.dumps(asdict(record)) + "\n", encoding="utf-8")
        draft.replace(self._record_file)

    def choose_socket(self) -> str:
        """Where the next server is to listen, as ``Record.socket``: beside the data if the path is short enough.

        Else in a new directory of our own under the system's temporary one, with a name nobody can foresee.
        The one from the last run is taken again if it still is ours alone, so that clients of a server that
        was killed find the next one.
        """
        beside = Record().socket
        if _fits(self.path / beside):
            return beside
        last = Path(self.record().socket)
        if last.is_absolute() and _is_private(last.parent):
            return str(last)
        wanted = Path(tempfile.gettempdir(), "dispatcher-XXXXXXXX", beside)
        parent = None if _fits(wanted) else "/tmp"  # noqa: S108 - mkdtemp makes a private directory in it
        return str(Path(tempfile.mkdtemp(prefix="dispatcher-", dir=parent), beside))

    def log_tail(self) -> str:
        """The last words of the server, on one line, without control characters; empty if it said nothing."""
        try:
            lines = self.log.read_text("utf-8", "replace").splitlines()[-_QUOTED_LINES:]
        except OSError:
            return ""
        printable = ("".join(char for char in line if char.isprintable()).strip() for line in lines)
        return " | ".join(line[:_QUOTED_LENGTH] for line in printable if line)

    @property
    def _record_file(self) -> Path:
        return self.path / "server.json"


def open_lock(path: Path, *, create: bool) -> int:
    """A descriptor to lock by, not inherited by programs this process runs; the lock goes with its last copy.

    Raises ``FileNotFoundError`` where there is no such file and ``create`` is false.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    return os.open(path, flags, 0o600)


def try_lock(lock: int, *, shared: bool) -> bool:
    """Take the lock if nobody is in the way; does not wait. A lock held before is lost when this fails."""
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock alone. A lock file that is gone is not held."""
    try:
        lock = open_lock(path, create=False)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(lock, shared=True)
    finally:
        os.close(lock)


def is_trusted(socket: Path, data: DataDir) -> bool:
    """Whether only we can have made the socket: it lies with the data, or in a private directory of ours."""
    return socket.parent == data.path or _is_private(socket.parent)


def _unfit(path: Path, status: os.stat_result) -> str | None:
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory: name a directory, or a path where one can be made"
    if status.st_uid != os.geteuid():
        return (
            f"belongs to user id {status.st_uid}, and this process runs as user id {os.geteuid()}: "
            "name a directory of your own, for example a new one inside it"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        who = "everyone" if status.st_mode & stat.S_IWOTH else f"the members of group id {status.st_gid}"
        return (
            f"can be written by {who} (mode {stat.S_IMODE(status.st_mode):o}), and who writes in it can take the place "
            f"of the server: run chmod 700 {shlex.quote(str(path))}, or name a new directory inside it"
        )
    return None


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= LONGEST_SOCKET_PATH


def _is_private(directory: Path) -> bool:
    with suppress(OSError):
        status = directory.lstat()
        return (
            stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & 0o077 == 0
        )
    return False
