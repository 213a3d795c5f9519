"""Options that several commands have, and who it is that gives them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

import click

from dispatcher.core.units import CHANNEL_ID, CHANNEL_NAME, US, parse_duration, seconds_of

if TYPE_CHECKING:
    from datetime import tzinfo

MOST_WORDS: Final = 200
"""Characters of a reason, which stands in every line about an event that it suppresses."""

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


_T = TypeVar("_T")


class Parsed(click.ParamType[_T]):
    """An argument that ``parse`` understands; its ``ValueError`` says what was given and what was expected."""

    def __init__(self, name: str, parse: Callable[[str], _T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> _T:  # noqa: ANN401 - the parent's signature
        """See click, which converts a value of another type than text no more."""
        if not isinstance(value, str):
            return cast("_T", value)
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _category(text: str) -> str:
    from dispatcher.core.event import CATEGORY

    if CATEGORY.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no category, expected 1 to 64 of A-Z a-z 0-9 _ . : -")
    return text


def _channel(text: str) -> str:
    if not CHANNEL_NAME.fullmatch(text.removeprefix("#")) and not CHANNEL_ID.fullmatch(text):
        raise ValueError(f"{text!r}, expected a name such as ops or '#ops', or an id such as C0123ABCD")
    return text


When: TypeAlias = Callable[[int], int]
"""An instant of the past as somebody typed it: given the present instant it returns the one that is meant."""

_DAYS_BACK: Final = {"today": 0, "yesterday": 1}


def read_when(text: str, zone: tzinfo | None = None) -> When:
    """The instant in ``2h`` (that long ago), ``2026-11-21``, ``2026-11-21T08:00``, ``yesterday`` or ``today``.

    A day stands for its first instant. What names no zone is in ``zone`` (None: that of this machine). Instants are
    microseconds since 1970. Raises ``ValueError``.
    """
    from datetime import UTC, datetime, time, timedelta

    def first_of_day(now_us: int) -> int:
        day = datetime.fromtimestamp(now_us / US, UTC).astimezone(zone).date() - timedelta(_DAYS_BACK[text])
        return round(datetime.combine(day, time(), zone).timestamp() * US)

    if text in _DAYS_BACK:
        return first_of_day
    with suppress(ValueError):
        span_us = parse_duration(text)
        return lambda now_us: now_us - span_us
    try:
        named = datetime.fromisoformat(text)
        at_us = round((named if named.tzinfo else named.replace(tzinfo=zone)).timestamp() * US)
    except (ValueError, OverflowError):
        expected = "2h (that long ago), 2026-11-21, 2026-11-21T08:00, yesterday or today"
        raise ValueError(f"{text!r}, expected a time such as {expected}") from None
    return lambda _: at_us


CATEGORY_NAME: Final = Parsed("CATEGORY", _category)
CHANNEL: Final = Parsed("CHANNEL", _channel)
WHEN: Final = Parsed("TIME", read_when)
SPAN_US: Final = Parsed("SPAN", lambda text: round(seconds_of(text) * US))
SPAN_S: Final = Parsed("SPAN", seconds_of)


def words(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """A reason in a few words; raises ``BadParameter``."""
    if value is None:
        return None
    text = value.strip()
    if not 1 <= len(text) <= MOST_WORDS or not text.isprintable():
        raise click.BadParameter(f"expected 1 to {MOST_WORDS} printable characters")
    return text


def operator() -> str:
    """Who runs the command, for the record: ``ops@host``."""
    import getpass

    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container may run as a number without a name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
