"""Runs the embedded server and ends it when its last client is gone: a program, not a module to import.

``python -I -S guard.py CLIENTS_LOCK SOCKET_DIR SERVER [ARGUMENT ...]``, with the server's lock as an
inherited descriptor. Standard library only, and as little of that as will do: it stays in memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
from typing import Final, NoReturn

_PR_SET_PDEATHSIG: Final = 1
_END_TIMEOUT_S: Final = 10


def main(clients_lock: str, socket_dir: str, *command: str) -> None:
    """Return at once in the calling process, and leave the guard and its server behind.

    The guard belongs to none of the clients, so any of them may end, in any way, in any order. It ends with
    its server: after the last client, when the server ends by itself, or on SIGTERM. While it ends the
    server it holds the clients' lock alone, so that nobody joins a server on its way out. ``socket_dir``,
    where not empty, is removed after the last client.
    """
    if os.fork():
        return
    # A client may have blocked or ignored signals; the server needs SIGTERM as it comes.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    clients = os.open(clients_lock, os.O_RDWR)
    guard = os.getpid()
    server = os.fork()
    if server == 0:
        os.close(clients)
        _become_server(guard, command)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(server, signal.SIGTERM))
    unused = threading.Event()
    threading.Thread(target=_end_after_last_client, args=(clients, server, unused), daemon=True).start()
    os.waitpid(server, 0)
    if unused.is_set() and socket_dir:
        _remove(socket_dir)
    # Past the thread, which may be waiting for a lock that clients of the next server hold.
    os._exit(0)


def _become_server(guard: int, command: tuple[str, ...]) -> NoReturn:
    try:
        _end_with(guard)
        os.execv(command[0], command)  # noqa: S606 - no shell: the arguments are ours, and final
    except OSError as error:
        # Standard error is the server's log, which whoever waits for the server quotes.
        os.write(2, f"{command[0]}: {error.strerror}\n".encode("utf-8", "replace"))
    finally:
        os._exit(127)


def _end_with(guard: int) -> None:
    """Have the kernel send SIGTERM to this process when the guard dies; only Linux has this.

    Elsewhere a guard killed with SIGKILL leaves its server running; the next client uses it as it is.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(ImportError):  # some builds of Python come without ctypes
        import ctypes  # needed in this short-lived process alone

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != guard:
        os._exit(0)


def _end_after_last_client(clients: int, server: int, unused: threading.Event) -> None:
    fcntl.flock(clients, fcntl.LOCK_EX)
    unused.set()
    os.kill(server, signal.SIGTERM)
    time.sleep(_END_TIMEOUT_S)
    # Still there: its disk hangs. What it has acknowledged is written, so that SIGKILL loses nothing.
    os.kill(server, signal.SIGKILL)


def _remove(socket_dir: str) -> None:
    with contextlib.suppress(OSError):
        for name in os.listdir(socket_dir):  # noqa: PTH208 - pathlib is not worth its memory here
            os.unlink(f"{socket_dir}/{name}")  # noqa: PTH108 - as above
        os.rmdir(socket_dir)  # noqa: PTH106 - as above


if __name__ == "__main__":
    main(*sys.argv[1:])
