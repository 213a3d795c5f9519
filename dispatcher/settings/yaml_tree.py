"""Plain data that remembers where each of its keys and values stands in a file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dispatcher.settings.redaction import looks_secret, redacted

Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where something stands in the file; both count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One fault or warning; ``key`` is the dotted path of what it is about, empty for the file as a whole."""

    position: Position
    key: str
    text: str


@dataclass(slots=True)
class Tree:
    """The data of one document, where its parts stand, and what could not be read.

    ``refused`` are paths whose value is unknown or not worth a second complaint; ``bare_keys`` were written
    without quotes; ``commented`` holds, for an empty value, the ``#name`` that YAML took for a comment.
    """

    lines: list[str]
    data: Any = None
    keys: dict[Path, Position] = field(default_factory=dict)
    values: dict[Path, Position] = field(default_factory=dict)
    refused: set[Path] = field(default_factory=set)
    bare_keys: set[Path] = field(default_factory=set)
    commented: dict[Path, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def position(self, path: Path) -> Position:
        """Where the value of a path stands, or the nearest thing around it."""
        for length in range(len(path), 0, -1):
            if found := self.values.get(path[:length]):
                return found
        return self.values.get((), Position(1, 1))

    def problem(self, path: Path, text: str) -> Problem:
        """What is wrong with the value of a path."""
        return Problem(self.position(path), shown_path(path), text)

    def note(self, position: Position, path: Path, text: str) -> None:
        """Adds a problem."""
        self.problems.append(Problem(position, shown_path(path), text))


def shown_path(path: Path) -> str:
    """``categories.errors.limits[0]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            is_plain = re.fullmatch(r"[\w#@.:-]{1,64}", part) and not looks_secret(part)
            name = part if is_plain else redacted(part)
            text += f".{name}" if text else name
    return text
