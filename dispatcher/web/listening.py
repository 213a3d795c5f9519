"""The socket on which requests come. Loads none of the packages of the extra."""

from __future__ import annotations

import socket
from typing import Final

from dispatcher.errors import ConfigError

_BACKLOG: Final = 1024


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; raises ``ConfigError``."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server((address[0], port), family=family, backlog=_BACKLOG)
    except OSError as error:
        said, _, _ = (error.strerror or str(error)).partition(" (while")  # Python adds the address, which stands before
        raise ConfigError(f"{host} port {port} cannot be listened on: {said}") from None
    # Connections inherit it. asyncio sets it only where a socket names its protocol; without it, head and body of an
    # answer, two writes, are 40 ms apart.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def url_of(listening: socket.socket) -> str:
    """The address of a socket that listens."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
