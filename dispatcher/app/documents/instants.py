"""Spans and instants in words. An instant always has the name of its zone. Loads no rich."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

_UNITS: Final = (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1))


def span(seconds: float) -> str:
    """``0.4s``, ``12s``, ``3m 5s``, ``2h 10m``, ``4d 3h``."""
    if seconds < 10:  # noqa: PLR2004 - below it tenths matter
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for name, unit_s, next_name, next_s in _UNITS:
        if whole >= unit_s:
            return f"{whole // unit_s}{name} {whole % unit_s // next_s}{next_name}"
    return f"{whole}s"


def local(at: float) -> datetime:
    """Seconds since 1970 in the zone of this machine."""
    return datetime.fromtimestamp(at, UTC).astimezone()


def zone(at: float) -> str:
    """What this machine calls its zone at that moment: ``UTC``, ``CET``, ``+03``."""
    return time.strftime("%Z", time.localtime(at))


def clock(at: float) -> str:
    """``22:08:35 CET``."""
    return f"{local(at):%H:%M:%S} {zone(at)}"


def short(at: float) -> str:
    """``22:08:35``, of another day than today ``2026-11-20 22:08``."""
    there = local(at)
    return there.strftime("%H:%M:%S" if there.date() == local(time.time()).date() else "%Y-%m-%d %H:%M")


def in_full(at: float) -> str:
    """``2026-11-20 22:08:35 CET``."""
    return f"{local(at):%Y-%m-%d %H:%M:%S} {zone(at)}"


def with_distance(at: float) -> str:
    """``2026-11-20 22:08:35 CET (3m 5s ago)``."""
    passed_s = time.time() - at
    return f"{in_full(at)} ({f'{span(passed_s)} ago' if passed_s >= 0 else f'in {span(-passed_s)}'})"
