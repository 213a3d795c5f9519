"""Spans of time, lanes, names and text: what is needed of the core before there is a limit."""

from __future__ import annotations

import re
from enum import StrEnum
from ipaddress import ip_address
from typing import Any, Final

US: Final = 1_000_000
"""Microseconds in a second."""

DAY_US: Final = 86_400 * US
_UNITS_US: Final = {"ms": 1_000, "s": US, "m": 60 * US, "h": 3_600 * US, "d": DAY_US}
_DURATION: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)")
_SECONDS: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")

_JOINERS: Final = "\u200c\u200d"

HIDDEN: Final = "***"
"""What stands in the place of a secret."""

MOST_WORDS: Final = 200
"""Characters of a reason, which stands in every line about an event that it suppresses."""

CATEGORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
CATEGORY_WORDS: Final = "1 to 64 of A-Z a-z 0-9 _ . : - beginning with a letter or digit"
"""What is expected of a category, for messages."""

CHANNEL_NAME: Final = re.compile(r"[^\s#@<>&|,]{1,80}")
CHANNEL_ID: Final = re.compile(r"[CGDUW][A-Z0-9]{5,20}")
"""Slack's id of a channel, a group, a conversation or a person."""

CONVERSATION_ID: Final = re.compile(r"[CGD][A-Z0-9]{5,20}")
"""The same without persons: what Slack answers with, and keeps a history of."""


def plain(value: Any) -> Any:  # noqa: ANN401 - of any type
    """A text of a kind of its own as a ``str``: a member of ``(str, Enum)`` shows its name else. All else as it is."""
    return str.__str__(value) if isinstance(value, str) else value


def normal_channel(channel: str) -> str:
    """A channel in the one spelling that its pace and its line go by: ``ops`` is ``#ops``, an id stays."""
    if CHANNEL_ID.fullmatch(channel) or not CHANNEL_NAME.fullmatch(channel):
        return channel
    return f"#{channel}"


def is_loopback(host: str) -> bool:
    """Whether a host, without port, is this machine under a name that no DNS server gives away."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def is_utf8(text: str) -> bool:
    """Whether the text can be sent anywhere: half of a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def with_whole_characters(text: str) -> str:
    """The text, with another character for each half of a surrogate pair."""
    return text if is_utf8(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def visible(text: str) -> str:
    r"""The text with every character that cannot be shown as it is as its escape, such as ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(
        char if can_be_shown(text, place) else char.encode("unicode_escape").decode() for place, char in enumerate(text)
    )


def can_be_shown(text: str, place: int) -> bool:
    """Whether the character there does nothing to a terminal: it is printable, or joins two that are, as in an emoji.

    Beside one of ASCII a joiner has nothing to join, and could only make two names look alike.
    """
    if text[place].isprintable() or text[place] not in _JOINERS:
        return text[place].isprintable()
    joined = text[max(0, place - 1) : place + 2].replace(text[place], "", 1)
    return len(joined) == 2 and joined.isprintable() and not any(map(str.isascii, joined))  # noqa: PLR2004 - two


def parse_duration(text: str) -> int:
    """Microseconds in a span such as ``250ms``, ``30m`` or ``1.5h``.

    Raises ``ValueError`` that says what was expected; zero is refused.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r}, expected a number and a unit of ms, s, m, h or d, for example 30m")
    span_us = round(float(match[1]) * _UNITS_US[match[2]])
    if span_us < 1:
        raise ValueError(f"{text!r}, expected a span longer than zero")
    return span_us


def seconds_of(text: str) -> float:
    """Seconds in a span such as ``30m``, or in plain seconds such as ``90`` or ``1.5``.

    Of an event, an option and a variable. Zero is taken. Raises ``ValueError`` that says what was expected.
    """
    if _SECONDS.fullmatch(text):
        return float(text)
    if (match := _DURATION.fullmatch(text)) and float(match[1]) == 0:
        return 0.0
    try:
        return parse_duration(text) / US
    except ValueError as error:
        raise ValueError(f"{error}, or seconds") from None


def length_us(text: str) -> int:
    """The microseconds of ``seconds_of``; zero is refused in any spelling."""
    span_us = round(seconds_of(text) * US)
    if span_us < 1:
        raise ValueError(f"{text!r}, expected a span longer than zero")
    return span_us


def format_duration(span_us: int) -> str:
    """The shortest exact spelling that ``parse_duration`` reads back: ``30m``, not ``1800s``."""
    for unit in ("d", "h", "m", "s"):
        if span_us % _UNITS_US[unit] == 0:
            return f"{span_us // _UNITS_US[unit]}{unit}"
    return f"{span_us // 1_000}.{span_us % 1_000:03}".rstrip("0").rstrip(".") + "ms"


class Lane(StrEnum):
    """A priority, and the RQ queue of that priority."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
