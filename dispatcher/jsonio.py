"""The one module that uses orjson: JSON for what is written and read by the thousand.

Whoever reads what others wrote asks the standard library again where this refuses: its messages are for people, and it
knows encodings that this does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import orjson

NotPlain: Final = orjson.JSONDecodeError
"""Raised by ``decode``; a ``ValueError``."""

decode = orjson.loads
"""The value of a JSON text in UTF-8. Raises ``NotPlain``; a whole number beyond 64 bits becomes a float."""

encode: Final[Callable[[Any], bytes]] = orjson.dumps
"""The JSON text of a value, in UTF-8. Raises ``TypeError`` for what JSON has no form for."""


def decode_answer(text: bytes) -> Any:  # noqa: ANN401 - JSON
    """The value of a script's answer, which may quote bytes that are no text: they are shown as replaced."""
    try:
        return decode(text)
    except NotPlain:
        return json.loads(answer_text(text))


def answer_text(answer: bytes | str) -> str:
    """An answer of the server as text, whatever the client makes of it; what is no text is shown as replaced."""
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
