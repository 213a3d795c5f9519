"""Which proxy leads to Slack, by the environment's usual variables."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from dispatcher.errors import ConfigError

DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Proxy:
    """A plain HTTP proxy; ``headers`` carry its login and are not shown."""

    host: str
    port: int
    headers: Mapping[str, str] = field(repr=False)


def proxy_for(target: SplitResult) -> Proxy | None:
    """The proxy to a URL: ``HTTPS_PROXY`` or ``HTTP_PROXY`` by its scheme, less ``NO_PROXY``; never to this machine.

    Raises ``ConfigError`` for a proxy that does not speak plain HTTP; its value, which may hold a password,
    is not shown.
    """
    host = target.hostname or ""
    url = getproxies_environment().get(target.scheme, "").strip()
    if not url or is_loopback(host) or proxy_bypass(host):
        return None
    name = f"{target.scheme.upper()}_PROXY"
    try:
        proxy = urlsplit(url if "://" in url else f"http://{url}")
        port = proxy.port or DEFAULT_PORTS["http"]
    except ValueError:
        raise ConfigError(f"{name} is not a URL, expected http://HOST:PORT") from None
    if proxy.scheme != "http" or not proxy.hostname:
        raise ConfigError(f"{name} begins with {proxy.scheme}://, expected http://HOST:PORT")
    if proxy.username is None:
        return Proxy(proxy.hostname, port, {})
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return Proxy(proxy.hostname, port, {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode()}"})


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be this machine."""
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    """Whether a host is an IP address and needs no look-up."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
