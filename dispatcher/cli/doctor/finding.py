"""What was found: how bad it is, what it is about, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from dispatcher.errors import DispatcherError

START: Final = "'dispatcher up' or 'dispatcher worker'"
"""What has workers run, in the words of all commands."""


class Level(StrEnum):
    """How bad it is: an error stops events or loses them, a warning may."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding; only one that is ``ok`` has no ``remedy``. ``cause``: the server could not be looked at at all."""

    level: Level
    about: str
    said: str
    remedy: str | None = None
    cause: DispatcherError | None = None

    def rewritten(self, rewrite: Callable[[str], str]) -> Finding:
        """The finding in other words."""
        remedy = None if self.remedy is None else rewrite(self.remedy)
        return replace(self, said=rewrite(self.said), remedy=remedy)


def ok(about: str, said: str) -> Finding:
    """Nothing to do."""
    return Finding(Level.OK, about, said)


def warning(about: str, said: str, remedy: str) -> Finding:
    """Worth a look."""
    return Finding(Level.WARNING, about, said, remedy)


def error(about: str, said: str, remedy: str) -> Finding:
    """To be mended."""
    return Finding(Level.ERROR, about, said, remedy)


def in_two(text: str, separator: str, remedy: str) -> tuple[str, str]:
    """A message that names its own remedy behind the separator, in two; ``remedy`` is for one that does not."""
    said, _, own = text.partition(separator)
    return said, own or remedy
