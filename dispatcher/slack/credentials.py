"""What lets us post: a bot token or a webhook's URL. Their values are shown nowhere, not even in a ``repr``.

The settings have checked them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NoReturn
from urllib.parse import quote, urlsplit

_SHORTEST_SECRET: Final = 8  # a shorter part of a URL would mask ordinary words


@dataclass(frozen=True, slots=True)
class BotToken:
    """A Slack bot token."""

    value: str = field(repr=False)
    forms: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """How it may stand in a text."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "forms", _forms_of(self.value))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Slack token is not written anywhere")


@dataclass(frozen=True, slots=True)
class Webhook:
    """The URL of an incoming webhook, which is a secret as a whole."""

    url: str = field(repr=False)
    forms: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """How it may stand in a text, and how its path and the path's last part may."""

    def __post_init__(self) -> None:
        path = urlsplit(self.url).path
        key = path.rstrip("/").rpartition("/")[2]
        object.__setattr__(self, "forms", _forms_of(self.url, path, key))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Slack webhook's URL is not written anywhere")


def fingerprint(credential: BotToken | Webhook, base_url: str) -> str:
    """16 bits that change when the credential or the address does: too few to find out what the credential is."""
    secret = credential.value if isinstance(credential, BotToken) else credential.url
    return blake2b(f"{base_url}\n{secret}".encode(), digest_size=2).hexdigest()


def _forms_of(*secrets: str) -> tuple[str, ...]:
    """How a secret may stand in a text: as it is, and as a part of a URL."""
    long = [each for each in secrets if len(each) >= _SHORTEST_SECRET]
    return tuple(dict.fromkeys(form for each in long for form in (each, quote(each, safe=""))))
