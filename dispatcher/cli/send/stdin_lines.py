"""Lines of a stream as they come, in bounded memory."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_LINE_BYTES: Final = 1024 * 1024
"""More than any valid event takes: 256 KiB, and room for blanks."""

_READ_BYTES: Final = 64 * 1024
_PATIENCE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line with its number, from 1; ``content`` is None for one over ``MAX_LINE_BYTES``."""

    number: int
    content: bytes | None


def read_lines(descriptor: int) -> Iterator[InputLine | None]:
    """Each line, the last one also without its end.

    None where nothing more is there for now: what was read so far should not wait for it.
    """
    rest = bytearray()
    number, is_cut = 1, False
    while True:
        if not select.select([descriptor], [], [], _PATIENCE_S)[0]:
            yield None
        piece = os.read(descriptor, _READ_BYTES)
        if not piece:
            break
        first, *others = piece.split(b"\n")
        rest += first
        for other in others:
            yield _line(number, rest, is_cut=is_cut)
            number, is_cut, rest = number + 1, False, bytearray(other)
        if len(rest) > MAX_LINE_BYTES:
            is_cut = True
            rest.clear()
    if rest or is_cut:
        yield _line(number, rest, is_cut=is_cut)


def _line(number: int, content: bytearray, *, is_cut: bool) -> InputLine:
    return InputLine(number, None if is_cut or len(content) > MAX_LINE_BYTES else bytes(content))
