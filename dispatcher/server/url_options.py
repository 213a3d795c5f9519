"""The options behind the ``?`` of a server's URL: those that say how to connect, and no others that redis-py takes."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from dispatcher.server.sentinel_url import OF_TLS

_SPANS: Final = frozenset({"socket_timeout", "socket_connect_timeout"})
_OF_ALL: Final = _SPANS | {"client_name", "db", "health_check_interval", "password", "protocol", "username"}
_OF_HOST: Final = _OF_ALL | {"socket_keepalive"}
_TLS: Final = OF_TLS | {"ssl_check_hostname", "ssl_password"}
_KNOWN: Final = {"unix": _OF_ALL, "redis": _OF_HOST, "rediss": _OF_HOST | _TLS}
_LONGEST_S: Final = 86_400.0


def check_options(scheme: str, query: str) -> None:
    """Raises ``ValueError`` whose text says what was expected and repeats no value.

    The others would change how answers are read, or repeat commands, or let a worker wait for a connection for ever.
    """
    known = _KNOWN.get(scheme, _OF_HOST)
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _TLS - known:
            raise ValueError("expected rediss:// beside the options of TLS")
        if name not in known:
            raise ValueError(f"expected of the options behind the ? only {', '.join(sorted(known))}")
        if name in _SPANS and not _is_span(value):
            raise ValueError(f"expected for {name} a number of seconds above 0, and at most a day")


def _is_span(value: str) -> bool:
    try:
        return 0 < float(value) <= _LONGEST_S
    except ValueError:
        return False
