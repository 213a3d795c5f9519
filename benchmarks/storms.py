"""A storm: many events of a few categories, nearly all of them over the limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dispatcher.limiter import Limit

WINDOW: Final = "30m"
WINDOW_US: Final = Limit.parse(f"1/{WINDOW}").window_us
USUAL: Final = 100
"""One in so many is admitted."""


@dataclass(frozen=True, slots=True)
class Storm:
    """``events`` of ``types`` categories, which take turns; each has a limit and a channel of its own.

    One in ``one_in`` is admitted, and at least one of each category.
    """

    events: int
    types: int = 50
    one_in: int = USUAL

    @property
    def each(self) -> int:
        """The limit of each category: so many of it are admitted."""
        return max(1, self.events // self.one_in // self.types)

    @property
    def admitted(self) -> int:
        """How many are admitted in all, and the limit for all."""
        return self.each * self.types

    def names(self) -> list[str]:
        """The categories."""
        return [f"type.{n:02d}" for n in range(self.types)]

    def rows(self) -> Iterator[tuple[str, str, int]]:
        """Category, text and number of each event, in order."""
        names = self.names()
        for n in range(self.events):
            yield names[n % self.types], f"disk {n} of 100,000 is nearly full on db1", n

    def about(self, number: int) -> dict[str, str]:
        """More fields of the event."""
        del number
        return {}

    def limits_yaml(self) -> str:
        """The limits file."""
        categories = "".join(f'  {name}: {{channel: "{channel(name)}"}}\n' for name in self.names())
        return (
            f"global: {{limits: [{self.admitted}/{WINDOW}]}}\nchannels: {{default: {{pace: none}}}}\n"
            f"defaults: {{limits: [{self.each}/{WINDOW}]}}\ncategories:\n{categories}"
        )

    def recipe_limits(self) -> str:
        """The recipe's window and limits, parted by blanks."""
        return f"{WINDOW_US} {self.admitted} {self.each}"


def channel(category: str) -> str:
    """Where its events are posted."""
    return f"#{category.replace('.', '-')}"
