"""Mutes: categories of which nothing is posted until an instant, by hand. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from dispatcher.jsonio import decode

EVERYTHING: Final = "*"
"""In place of a category: posting is paused by hand for all of them."""

MUTED_SCOPE: Final = "muted:"
"""What the scope begins with that lines of a muted category wait for; its category follows."""


class Mute(NamedTuple):
    """Nothing of the category is posted until ``until_us``, by the server's clock; ``who`` said so, and why."""

    category: str
    until_us: int
    since_us: int
    who: str
    why: str

    @property
    def detail(self) -> str:
        """``by ops@host: maintenance``."""
        return f"by {self.who}: {self.why}"


def read_mutes(rows: Mapping[str, str] | None, now_us: int) -> dict[str, Mute]:
    """The mutes that are in force, by category, of the hash ``muted``; what cannot be read is none."""
    if not rows:
        return {}
    mutes = {}
    for category, text in rows.items():
        try:
            row = decode(text)
            mute = Mute(category, int(row["until"]), int(row["since"]), str(row["who"]), str(row["why"]))
        except (ValueError, TypeError, KeyError, OverflowError):  # written by somebody else
            continue
        if mute.until_us > now_us:
            mutes[category] = mute
    return mutes
