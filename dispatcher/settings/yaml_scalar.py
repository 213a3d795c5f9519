"""The values of YAML 1.2's core schema, in which ``no`` and ``on`` are text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

Scalar: TypeAlias = str | int | float | bool | None

_READERS: Final[tuple[tuple[re.Pattern[str], Callable[[str], Scalar]], ...]] = (
    (re.compile(r"~|null|Null|NULL|"), lambda _: None),
    (re.compile(r"true|True|TRUE"), lambda _: True),
    (re.compile(r"false|False|FALSE"), lambda _: False),
    (re.compile(r"[-+]?[0-9]{1,300}"), int),
    (re.compile(r"0o[0-7]{1,300}|0x[0-9a-fA-F]{1,300}"), lambda text: int(text, 0)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), lambda text: float(text.replace(".", ""))),
)


def resolve(text: str) -> Scalar:
    """The value of text that stands without quotes; numbers of more than 300 digits stay text."""
    for pattern, read in _READERS:
        if pattern.fullmatch(text):
            return read(text)
    return text
