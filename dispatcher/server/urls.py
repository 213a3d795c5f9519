"""What the URL of a server may say: the options of one that names a server, and all of one that names Sentinels.

The second kind is ``sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT/SERVICE/DB``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import parse_qsl, unquote

SENTINEL: Final = "sentinel://"
SENTINEL_EXPECTED: Final = "sentinel://HOST:PORT,HOST:PORT/SERVICE/DB"

_OF_TLS: Final = frozenset({"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"})
_SPANS: Final = frozenset({"socket_timeout", "socket_connect_timeout"})
_OF_ALL: Final = _SPANS | {"client_name", "db", "health_check_interval", "password", "protocol", "username"}
_OF_HOST: Final = _OF_ALL | {"socket_keepalive"}
_TLS_OF_HOST: Final = _OF_TLS | {"ssl_check_hostname", "ssl_password"}
_KNOWN: Final = {"unix": _OF_ALL, "redis": _OF_HOST, "rediss": _OF_HOST | _TLS_OF_HOST}
_LONGEST_S: Final = 86_400.0

_PORT: Final = 26_379
_HIGHEST_PORT: Final = 65_535
# Compiled where they are needed: few servers have such an address, and each start would pay for it.
_HOST: Final = r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@]+)(?::([0-9]{1,5}))?"
_PLACE: Final = r"/([A-Za-z0-9._%-]{1,200})(?:/([0-9]{1,6}))?/?"
_OF_SENTINELS: Final = {"sentinel_username": "username", "sentinel_password": "password"}
_YES: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def check_options(scheme: str, query: str) -> None:
    """Raises ``ValueError`` whose text says what was expected and repeats no value.

    The others would change how answers are read, or repeat commands, or let a worker wait for a connection for ever.
    """
    known = _KNOWN.get(scheme, _OF_HOST)
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _TLS_OF_HOST - known:
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


@dataclass(frozen=True, slots=True)
class SentinelAddress:
    """Where the Sentinels are, what they call the service, and how to log in; no secret in its ``repr``.

    ``login`` is the user name and password of the primary, ``sentinel_login`` that of the Sentinels; ``tls`` the
    options of redis-py for TLS to both, or None without TLS.
    """

    hosts: tuple[tuple[str, int], ...]
    service: str
    database: int
    login: dict[str, str] = field(default_factory=dict, repr=False)
    sentinel_login: dict[str, str] = field(default_factory=dict, repr=False)
    tls: dict[str, str] | None = None

    def __str__(self) -> str:
        return ", ".join(self.places())

    def places(self) -> list[str]:
        """Each Sentinel's host and port, as messages name them."""
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts]

    @classmethod
    def parse(cls, url: str) -> Self:
        """The address in a URL; raises ``ValueError`` whose text says what was expected and repeats no part of it."""
        rest, _, query = url.removeprefix(SENTINEL).partition("?")
        credentials, _, rest = rest.rpartition("@")
        hosts, slash, place = rest.partition("/")
        match = re.fullmatch(_PLACE, slash + place)
        if match is None:
            raise ValueError(
                f"expected {SENTINEL_EXPECTED}: after the hosts the name that the Sentinels know the service by, and "
                "the number of a database; and / ? # @ in a password written as %2F %3F %23 %40"
            )
        options, tls = _options(query)
        return cls(
            tuple(_host(text) for text in hosts.split(",")),
            unquote(match[1]),
            int(match[2] or 0),
            _login(credentials),
            {_OF_SENTINELS[name]: value for name, value in options.items()},
            tls,
        )


def _host(text: str) -> tuple[str, int]:
    match = re.fullmatch(_HOST, text)
    port = int((match and match[2]) or _PORT)
    if match is None or not 1 <= port <= _HIGHEST_PORT:
        raise ValueError("expected hosts separated by commas, each with a port from 1 to 65535 where one is named")
    return match[1].strip("[]"), port


def _login(credentials: str) -> dict[str, str]:
    user, _, password = credentials.partition(":")
    return {name: unquote(text) for name, text in (("username", user), ("password", password)) if text}


def _options(query: str) -> tuple[dict[str, str], dict[str, str] | None]:
    """What stands behind the question mark: the login of the Sentinels, and the options of TLS."""
    login: dict[str, str] = {}
    tls: dict[str, str] = {}
    is_tls = False
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _OF_SENTINELS:
            login[name] = value
        elif name in _OF_TLS:
            tls[name] = value
        elif name == "ssl" and value.lower() in _YES:
            is_tls = _YES[value.lower()]
        else:
            known = ", ".join(sorted((*_OF_SENTINELS, *_OF_TLS, "ssl")))
            raise ValueError(f"expected of the options behind the ? only {known}, and ssl=true or ssl=false")
    if tls and not is_tls:
        raise ValueError("expected ssl=true beside the options of TLS")
    return login, tls if is_tls else None
