"""What lets us post: a bot token or a webhook's URL. Their values are shown nowhere, not even in a ``repr``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NoReturn
from urllib.parse import SplitResult, quote, urlsplit

from dispatcher.errors import ConfigError

_PRINTABLE: Final = re.compile(r"[\x21-\x7e]+")
_SHORTEST_SECRET: Final = 8  # a shorter part of a URL would mask ordinary words


@dataclass(frozen=True, slots=True)
class BotToken:
    """A Slack bot token; surrounding white space (a file's last newline) is taken off."""

    value: str = field(repr=False)
    forms: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """How it may stand in a text."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", self.value.strip())
        object.__setattr__(self, "forms", _forms_of(self.value))
        if not _PRINTABLE.fullmatch(self.value) or '"' in self.value or "'" in self.value:
            raise ConfigError(
                "the Slack token (DISPATCHER_SLACK_TOKEN) is empty or holds white space, quotes or special characters, "
                "expected one such as xoxb-..."
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Slack token is not written anywhere")


@dataclass(frozen=True, slots=True)
class Webhook:
    """The URL of an incoming webhook, which is a secret as a whole."""

    url: str = field(repr=False)
    forms: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """How it may stand in a text, and how its path and the path's last part may."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", self.url.strip())
        parts = checked_url(
            self.url,
            "the Slack webhook URL (DISPATCHER_SLACK_WEBHOOK_URL)",
            "https://hooks.slack.com/services/...",
            show=False,
        )
        if parts.path in ("", "/"):
            raise ConfigError(
                "the Slack webhook URL (DISPATCHER_SLACK_WEBHOOK_URL) has no path, expected https://hooks.slack.com/services/..."
            )
        key = parts.path.rstrip("/").rpartition("/")[2]
        object.__setattr__(self, "forms", _forms_of(self.url, parts.path, key))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Slack webhook's URL is not written anywhere")


def fingerprint(credential: BotToken | Webhook, base_url: str) -> str:
    """16 bits that change when the credential or the address does: too few to find out what the credential is."""
    secret = credential.value if isinstance(credential, BotToken) else credential.url
    return blake2b(f"{base_url}\n{secret}".encode(), digest_size=2).hexdigest()


def checked_url(url: str, name: str, example: str, *, show: bool = True) -> SplitResult:
    """The parts of an http or https URL; raises ``ConfigError`` that names it, and shows it only if told to."""
    shown = f"{name} is {url!r}" if show else f"{name} is no usable URL"
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        raise ConfigError(f"{shown}, expected a URL such as {example}") from None
    if "@" in parts.netloc:
        raise ConfigError(f"{name} holds a user name or password, expected one such as {example}")
    if not (_PRINTABLE.fullmatch(url) and parts.scheme in ("http", "https") and parts.hostname and port_is_valid):
        raise ConfigError(f"{shown}, expected a URL such as {example}")
    return parts


def _forms_of(*secrets: str) -> tuple[str, ...]:
    """How a secret may stand in a text: as it is, and as a part of a URL."""
    long = [each for each in secrets if len(each) >= _SHORTEST_SECRET]
    return tuple(dict.fromkeys(form for each in long for form in (each, quote(each, safe=""))))
