"""Instants as people type them: how long ago, how long from now, a day, or a day and a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Final, TypeAlias

from dispatcher.core.units import US, parse_duration

When: TypeAlias = Callable[[int], int]
"""An instant as somebody typed it: given the present instant it returns the one that is meant."""

TIME: Final = "a time such as 2h (that long ago), 2026-11-21, 2026-11-21T08:00, yesterday, today or seconds since 1970"
"""What ``read_when`` reads, in words."""

_SECONDS: Final = re.compile(r"[0-9]{10}(?:\.[0-9]+)?")
"""Since 1970: from 2001 to 2286."""

_DAYS_BACK: Final = {"today": 0, "yesterday": 1}


def read_instant(text: str, zone: tzinfo | None = None) -> int:
    """The instant in ``2026-11-21T08:00``, ``2026-11-21`` or ``1795248000.5``, in microseconds since 1970.

    Raises ``ValueError``.

    What names no zone is in ``zone`` (None: that of this machine). A time that the clocks skip is read with the offset
    from before the change: 02:30 is 03:30. ``astimezone`` would make it 01:30.
    """
    if _SECONDS.fullmatch(text):
        return round(float(text) * US)
    named = datetime.fromisoformat(text)
    try:
        return round((named if named.tzinfo else named.replace(tzinfo=zone)).timestamp() * US)
    except OverflowError as error:
        raise ValueError(str(error)) from error


def read_when(text: str, zone: tzinfo | None = None) -> When:
    """The instant in ``2h`` (that long ago), ``yesterday``, ``today``, or as ``read_instant`` has it.

    A day stands for its first instant. What names no zone is in ``zone`` (None: that of this machine). Instants are
    microseconds since 1970. Raises ``ValueError``.
    """

    def first_of_day(now_us: int) -> int:
        day = datetime.fromtimestamp(now_us / US, UTC).astimezone(zone).date() - timedelta(_DAYS_BACK[text])
        return round(datetime.combine(day, time(), zone).timestamp() * US)

    if text in _DAYS_BACK:
        return first_of_day
    with suppress(ValueError):
        span_us = parse_duration(text)
        return lambda now_us: now_us - span_us
    try:
        at_us = read_instant(text, zone)
    except ValueError:
        raise ValueError(f"{text!r}, expected {TIME}") from None
    return lambda _: at_us


def read_start(text: str, zone: tzinfo | None = None) -> When:
    """The instant in ``30m`` (that long from now), ``2026-11-21T22:00`` or ``2026-11-21``, as ``read_when`` has it."""
    with suppress(ValueError):
        span_us = parse_duration(text)
        return lambda now_us: now_us + span_us
    if text not in _DAYS_BACK:
        with suppress(ValueError):
            return read_when(text, zone)
    raise ValueError(f"{text!r}, expected a time such as 30m (from now), 2026-11-21T22:00 or 2026-11-21")


def span_between(since: When | None, before: When | None, clock: Callable[[], int]) -> tuple[int | None, int | None]:
    """The two instants that are meant. ``clock`` is asked for the present one only where one of the two is given."""
    now_us = clock() if since or before else 0
    return since and since(now_us), before and before(now_us)
