"""What callers of the stand-in say in arguments: instants, numbers, cursors. Pure; ``Refused`` for what is none."""

from __future__ import annotations

import base64
import binascii
import re
from decimal import Decimal
from typing import Final

from dispatcher.core.units import US
from dispatcher.stand_in.answers import Refused

USUAL_ITEMS: Final = 100
MOST_ITEMS: Final = 999
_CURSOR: Final = "next:"
_INSTANT: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")


def ts_us(ts: str) -> int:
    """A ``ts`` in microseconds since 1970."""
    return round(Decimal(ts) * US)


def as_ts(at_us: int) -> str:
    """The ``ts`` of an instant in microseconds since 1970."""
    return f"{at_us // US}.{at_us % US:06d}"


def is_true(value: object) -> bool:
    """Whether an argument says yes: in JSON or, in a form, as text."""
    return value is True or value == 1 or (isinstance(value, str) and value.lower() in {"true", "1"})


def instant(value: object, code: str) -> int | None:
    """The instant a caller names, in microseconds since 1970; none where nothing is said. Refuses with ``code``."""
    if value is None or value == "":
        return None
    if not _INSTANT.fullmatch(str(value)):
        raise Refused(code)
    return ts_us(str(value))


def items(value: object, usual: int, most: int | None = None) -> int:
    """How many a caller gets; ``most`` bounds also what is usual."""
    if value is None or value == "":
        asked = usual
    elif not _NUMBER.fullmatch(str(value)) or int(str(value)) > MOST_ITEMS:
        raise Refused("invalid_limit")
    else:
        asked = int(str(value))
    return asked if most is None else min(asked, most)


def as_cursor(place: int) -> str:
    """Where the next page begins, in a form that callers leave alone."""
    return base64.b64encode(f"{_CURSOR}{place}".encode()).decode()


def cursor(value: object) -> int | None:
    """The place that ``as_cursor`` wrote; none where nothing is said."""
    if value is None or value == "":
        return None
    try:
        text = base64.b64decode(str(value), validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise Refused("invalid_cursor") from None
    if not text.startswith(_CURSOR) or not text.removeprefix(_CURSOR).isdecimal():
        raise Refused("invalid_cursor")
    return int(text.removeprefix(_CURSOR))
