"""Servers on 127.0.0.1 that take connections and let down whoever waits for an answer, each in another way."""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeAlias

_RESET: Final = struct.pack("ii", 1, 0)
"""Linger for no time: closing resets the connection."""

_COMMAND: Final = re.compile(rb"\*\d+\r\n\$\d+\r\n([A-Z]+)\r\n")
_DRIP_S: Final = 0.2

Serve: TypeAlias = Callable[[socket.socket, threading.Event], None]
"""What is done with a connection, until the event says that the test is over."""


def silent(_connection: socket.socket, over: threading.Event) -> None:
    """Answers nothing."""
    over.wait()


def dripping(connection: socket.socket, over: threading.Event) -> None:
    """Sends one byte after another of an answer that never ends."""
    while not over.wait(_DRIP_S):
        connection.sendall(b"+")


def resetting(connection: socket.socket, _over: threading.Event) -> None:
    """Resets the connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


def silent_after_the_handshake(connection: socket.socket, over: threading.Event) -> None:
    """Answers what comes with a new connection, and no script."""
    _shake_hands(connection, over, 0)
    silent(connection, over)


def dripping_after_the_handshake(connection: socket.socket, over: threading.Event) -> None:
    """Answers what comes with a new connection, and drips when a script is called."""
    _shake_hands(connection, over, 0)
    dripping(connection, over)


def resetting_after_the_handshake(connection: socket.socket, over: threading.Event) -> None:
    """Answers what comes with a new connection, and resets it when a script is called."""
    _shake_hands(connection, over, 0)
    resetting(connection, over)


def slow_at_each_step(connection: socket.socket, over: threading.Event) -> None:
    """Takes a second and a half for each answer: each alone is in time."""
    _shake_hands(connection, over, 1.5)
    silent(connection, over)


def slow_to_know_no_script(connection: socket.socket, over: threading.Event) -> None:
    """Takes a second and a half to say that it does not know the script, and does not answer when it is given."""
    _shake_hands(connection, over, 0)
    over.wait(1.5)
    connection.sendall(b"-NOSCRIPT No matching script.\r\n")
    silent(connection, over)


HUNG: Final[tuple[Serve, ...]] = (
    silent,
    dripping,
    silent_after_the_handshake,
    dripping_after_the_handshake,
    slow_at_each_step,
    slow_to_know_no_script,
)
RESETTING: Final[tuple[Serve, ...]] = (resetting, resetting_after_the_handshake)


def _shake_hands(connection: socket.socket, over: threading.Event, each_s: float) -> None:
    """Say OK to each command, until a script is called."""
    received = b""
    while not over.is_set():
        piece = connection.recv(65_536)
        if not piece:
            return
        received += piece
        names = _COMMAND.findall(received)
        for name in names:
            if name.startswith(b"EVAL"):
                return
            over.wait(each_s)
            connection.sendall(b"+OK\r\n")
        if names:
            received = b""


@contextmanager
def listening(serve: Serve) -> Iterator[int]:
    """A port whose connections are served so, each in a thread of its own."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the caller went away
            serve(connection, over)

    def accept() -> None:
        with suppress(OSError):  # the test is over
            while True:
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=one, args=(connection,)))
                connection.settimeout(20)
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads.append(threading.Thread(target=accept))
        threads[0].start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()


@contextmanager
def swallowing() -> Iterator[int]:
    """A port that answers no request to connect: its queue of connections is full, and nobody takes any."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.settimeout(0)
            with suppress(BlockingIOError):
                each.connect(listener.getsockname())
        try:
            yield listener.getsockname()[1]
        finally:
            for each in waiting:
                each.close()
