"""A value as a message shows it, in the words of JSON: producers may be written in any language."""

from __future__ import annotations

import json
from math import isfinite, isnan
from typing import Final

LONGEST: Final = 80
MOST_TOLD: Final = 3

_LONG_BITS: Final = 256
_LONG_TEXT: Final = 64


def in_words(value: object) -> str:
    """A value for a message, cut where it is long."""
    text = _as_json(value) if not isinstance(value, str) else repr(value)
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 3]}..."
    return f"{text} ({len(value)} characters)" if isinstance(value, str) and len(value) > _LONG_TEXT else text


def _as_json(value: object) -> str:
    """A value in the words of JSON, not of Python: producers may be written in any language."""
    match value:
        case float() if not isfinite(value):
            return "not a number" if isnan(value) else "infinite"
        case int() if value.bit_length() > _LONG_BITS:
            return "a number of very many digits"
        case list() | tuple() if len(value) > MOST_TOLD:
            return f"a list of {len(value)}"
        case dict() if len(value) > MOST_TOLD:
            return f"an object of {len(value)} keys"
        case _:
            pass
    try:
        return json.dumps(value, default=lambda other: type(other).__name__)
    except (TypeError, ValueError, RecursionError):
        return f"a {type(value).__name__}"
