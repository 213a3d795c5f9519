"""What one value of the environment must be beyond its type.

Each check returns the value in its final form or raises ``ValueError`` whose text continues the sentence
``NAME is VALUE, ...``; no text repeats the value, which may be a secret.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import timedelta
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from pydantic import SecretStr, ValidationInfo

from dispatcher.core.units import is_loopback, seconds_of
from dispatcher.server.urls import SENTINEL, SENTINEL_EXPECTED, SentinelAddress, check_options

REDIS_URL_EXPECTED: Final = f"redis://HOST:PORT/DB, rediss://HOST:PORT/DB, unix:///PATH or {SENTINEL_EXPECTED}"

_LANE_ENDINGS: Final = (":high", ":low", ":intermediate", ":namespace")
_HEADER_SAFE: Final = re.compile(r"[!-~]+")
_QUOTES: Final = ('"', "'")
_HOST: Final = re.compile(r"[A-Za-z0-9.:_-]{1,253}")
_TRUSTED: Final = re.compile(r"(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?")


def span(value: object) -> timedelta:
    """Seconds as a number or as text, or text with a unit; fractions of a microsecond are lost."""
    if isinstance(value, timedelta):
        return value
    text = str(value).strip()
    with suppress(ValueError, OverflowError):
        return timedelta(seconds=seconds_of(text))
    raise ValueError  # the caller says what was expected


def lower_case(value: object) -> object:
    """Words are read in either case."""
    return value.lower() if isinstance(value, str) else value


def home_expanded(path: Path | None) -> Path | None:
    """``~`` means the home folder, as it does in a shell; a ``.env`` file has no shell to replace it."""
    if path is None:
        return None
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("expected a path without ~, since the home folder is not known") from None


def queue_name(name: str) -> str:
    """A queue, not one of the keys that belong to another queue."""
    if name.endswith(_LANE_ENDINGS):
        raise ValueError(f"expected the queue itself, not a key that ends in {' or '.join(_LANE_ENDINGS)}")
    return name


def redis_url(secret: SecretStr | None) -> SecretStr | None:
    """A URL that the Redis client reads in one way only; it reads a wrong database number as 0, silently."""
    if secret is None:
        return None
    if (url := secret.get_secret_value()).startswith(SENTINEL):
        _check_blanks(url)
        SentinelAddress.parse(url)
        return secret
    parts = _split(secret)
    match parts.scheme:
        case "redis" | "rediss":
            _check_host(parts)
            if not re.fullmatch(r"/?|/[0-9]{1,6}", parts.path) or parts.fragment:
                raise ValueError(
                    "expected the number of a database after the host, "
                    "and / ? # @ in a password written as %2F %3F %23 %40"
                )
        case "unix":
            if parts.netloc.rpartition("@")[2] or not parts.path.startswith("/") or parts.path == "/":
                raise ValueError("expected an absolute path, as in unix:///run/redis.sock")
        case _:
            raise ValueError  # the caller says what was expected
    check_options(parts.scheme, parts.query)
    return secret


def slack_token(secret: SecretStr | None) -> SecretStr | None:
    """Something that can stand in an HTTP header and is no webhook; whether it is valid only Slack knows."""
    if secret is None:
        return None
    text = secret.get_secret_value()
    if "://" in text:
        raise ValueError("expected a bot token such as xoxb-...; a webhook is DISPATCHER_SLACK_WEBHOOK_URL")
    if text.startswith("xapp-"):
        raise ValueError("expected a bot token such as xoxb-..., not an app-level token")
    if any(quote in text for quote in _QUOTES):
        raise ValueError("expected a bot token such as xoxb-..., and it holds a quote: take the quotes off")
    if not _HEADER_SAFE.fullmatch(text):
        raise ValueError("expected a bot token such as xoxb-..., without blanks and special characters")
    return secret


def webhook_url(secret: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
    """A web address, and no token beside it: which of the two is meant must not be guessed.

    The address is the secret, so it travels encrypted; only to this machine, where the stand-in is, it need not.
    """
    if secret is None:
        return None
    if secret.get_secret_value().startswith(("xoxb-", "xoxe")):
        raise ValueError("expected the URL of a webhook; a token is DISPATCHER_SLACK_TOKEN")
    parts = _web_address(secret)
    if parts.path in {"", "/"}:
        raise ValueError("expected a path behind the host, as in https://hooks.slack.com/services/...")
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ValueError("expected https://, since http:// would show the secret to the network")
    if info.data.get("slack_token") is not None:
        raise ValueError("expected one way to post, and a token is set too: unset one of the two")
    return secret


def base_url(url: str | None) -> str | None:
    """A web address that ends in ``/``, so that a method's name can be put behind it."""
    if url is None:
        return None
    parts = _web_address(SecretStr(url))
    if parts.query or parts.fragment:
        raise ValueError  # the caller says what was expected
    return url if url.endswith("/") else f"{url}/"


def outlasts_a_post(lease: timedelta, info: ValidationInfo) -> timedelta:
    """A lease that ended during a post would hand the event to a second worker."""
    timeout = info.data.get("slack_timeout", timedelta(0))
    if lease <= timeout:
        raise ValueError(f"expected more than DISPATCHER_SLACK_TIMEOUT, which is {timeout.total_seconds():g}")
    return lease


def _web_address(secret: SecretStr) -> SplitResult:
    parts = _split(secret)
    if parts.scheme not in {"http", "https"}:
        raise ValueError  # the caller says what was expected
    if "@" in parts.netloc:
        raise ValueError("expected a URL without user name and password")
    if not _HEADER_SAFE.fullmatch(secret.get_secret_value()):
        raise ValueError("expected a URL without special characters, which are written as %XX")
    _check_host(parts)
    return parts


def _split(secret: SecretStr) -> SplitResult:
    text = secret.get_secret_value()
    _check_blanks(text)
    try:
        return urlsplit(text)
    except ValueError:
        raise ValueError("expected a well-formed URL") from None  # urlsplit's own words may quote a password


def _check_blanks(text: str) -> None:
    if any(char.isspace() for char in text):
        raise ValueError("expected a URL without blanks")


_LONGEST_LABEL: Final = 63
"""Characters between two dots of a name (RFC 1035, section 2.3.4)."""


def _check_host(parts: SplitResult) -> None:
    host = parts.netloc.rpartition("@")[2]
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@]+)(?::([0-9]{1,5}))?", host)
    if match is None or (match[2] is not None and not 1 <= int(match[2]) <= 65_535):  # noqa: PLR2004  highest port
        raise ValueError("expected a host, and a port from 1 to 65535 where one is named")
    labels = match[1].removesuffix(".").split(".")
    if not match[1].startswith("[") and not all(1 <= len(label) <= _LONGEST_LABEL for label in labels):
        raise ValueError("expected a host with 1 to 63 characters between two dots")


def host(value: str) -> str:
    """An address or the name of a host, as a socket takes it."""
    if not _HOST.fullmatch(value):
        raise ValueError("expected an address or the name of a host, without a port")
    return value


def hosts(value: object) -> object:
    """Names of hosts separated by commas, as a tuple; each as the header of a request may name it."""
    if not isinstance(value, str):
        return value
    found = tuple(filter(None, map(str.strip, value.lower().split(","))))
    if not all(_TRUSTED.fullmatch(each) or _is_ipv6(each) for each in found):
        raise ValueError("expected hosts separated by commas, such as ops.example.com or ops.example.com:8910")
    return found


def _is_ipv6(text: str) -> bool:
    """Whether it is an address without brackets: so it is named where the port does not count."""
    with suppress(ValueError):
        return bool(IPv6Address(text))
    return False
