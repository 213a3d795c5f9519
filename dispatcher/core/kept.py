"""What is kept of events that have ended: in which category the books count them, and how much is kept at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dispatcher.core.units import DAY_US

NO_CATEGORY: Final = "-"
"""The category in the books of what could not be read."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many dead letters are kept, of how many bytes, for how long; and of how many events the decision.

    The oldest go first. ``text`` is how many characters of a text are kept with a decision, 0 for none.
    """

    max: int = 100_000
    max_age_us: int = 30 * DAY_US
    decisions: int = 100_000
    max_bytes: int = 256_000_000
    text: int = 80

    def of_letters(self) -> dict[str, int]:
        """Those of the dead letters, as scripts get them."""
        return {"max": self.max, "max_age_us": self.max_age_us, "max_bytes": self.max_bytes}


DEFAULT_BOUNDS: Final = Bounds()
