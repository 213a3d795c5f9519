"""Runs the application on a socket until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette

from dispatcher.web.bounds import ANSWER_S, BODY_S, KEEP_ALIVE_S, MOST_HEAD, BoundedProtocol

STOP_S: Final = round(BODY_S + ANSWER_S) + 1
"""What is in hand at a stop is finished: a body that has begun, and its answer."""

_SWITCH_S: Final = 0.0005
"""How long a thread computes until another gets its turn. Python's 5 ms add up where limits are read beside views."""


def run(
    build: Callable[[], Starlette],
    listening: socket.socket,
    *,
    begun: Callable[[], None],
    hung_up: Callable[[], bool],
    beside: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Serve until SIGTERM or SIGINT; then what is in hand is finished.

    ``build`` makes the application in the event loop; ``begun`` is called when signals are heard. ``hung_up`` is
    called at SIGHUP, and says whether that ends the run as well. ``beside`` runs until the end.
    """
    sys.setswitchinterval(_SWITCH_S)
    asyncio.run(_run(build, listening, begun, hung_up, beside))


async def _run(
    build: Callable[[], Starlette],
    listening: socket.socket,
    begun: Callable[[], None],
    hung_up: Callable[[], bool],
    beside: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    server = server_of(build())
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True

    def hangup() -> None:
        if hung_up():
            stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, hangup)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # a parent that forked us has blocked it until now
    begun()
    task = loop.create_task(beside())
    try:
        await server.serve([listening])
    finally:
        task.cancel()


def server_of(app: Starlette) -> uvicorn.Server:
    """The server of an application, within our bounds; ``should_exit`` stops it in order."""
    _quiet()
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MOST_HEAD,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """uvicorn's server without its own way with signals, which ends the process by them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn; the loop hears signals."""
        yield


def _quiet() -> None:
    """What uvicorn has to say is told by answers, and a defect by the log."""
    log: Any = logging.getLogger("uvicorn")
    log.propagate = False
    if not log.handlers:
        log.addHandler(logging.NullHandler())
