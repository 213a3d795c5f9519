"""What lets us post: a bot token or a webhook's URL. Their values are shown nowhere, not even in a ``repr``.

The settings have checked them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NoReturn
from urllib.parse import quote, urlsplit

from dispatcher.core.units import HIDDEN

_SHORTEST_SECRET: Final = 8  # a shorter part of a URL would mask ordinary words
_LOOKS_SECRET: Final = re.compile(r"\b(?:xox[a-z]|xapp)-[\w-]{8,}|/services/T\w+/B\w+/\w+")
_PARTS_OF_SECRETS: Final = ("xox", "xapp", "/services/")


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


def masked(text: str, secrets: tuple[str, ...]) -> str:
    """Without the secrets, and without what looks like another one: a proxy's page may quote what we do not know."""
    for each in secrets:
        text = text.replace(each, HIDDEN)
    if any(part in text for part in _PARTS_OF_SECRETS):  # many times faster than the pattern
        text = _LOOKS_SECRET.sub(HIDDEN, text)
    return text


def _forms_of(*secrets: str) -> tuple[str, ...]:
    """How a secret may stand in a text: as it is, and as a part of a URL."""
    long = [each for each in secrets if len(each) >= _SHORTEST_SECRET]
    return tuple(dict.fromkeys(form for each in long for form in (each, quote(each, safe=""))))
