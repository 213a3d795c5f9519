"""Repeats: which events of a category are about the same thing, and the scope that lets one of them through. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha1
from typing import TYPE_CHECKING, Final, TypeAlias

from dispatcher.core.limits import ONCE_PREFIX, Kind, Limit, Scope

if TYPE_CHECKING:
    from dispatcher.core.event import Event

BY_KEY: Final = "dedup_key"
BY_TEXT: Final = "text"

_DIGEST: Final = 16
_VOLATILE: Final = re.compile(
    r"""
      (?<!\w)"[^"]*"(?!\w) | (?<!\w)'[^']*'(?!\w) | (?<!\w)`[^`]*`(?!\w)                  # quoted
    | (?<![\w-])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![\w-])            # a UUID
    | (?<![\w.:-])(?:0x)?(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{8,}(?![\w-]|[.:]\w)            # hexadecimal
    | (?<![\w.:-])[+-]?[0-9]+(?:[.,][0-9]+)?(?:%|°?[^\W\d_]{1,4}(?:/[^\W\d_]{1,4})?)?(?![\w%-]|[.:]\w)  # with a unit
    """,
    re.VERBOSE,
)

By: TypeAlias = "str | tuple[str, ...]"
"""``dedup_key``, ``text``, or the names of labels."""


class Then(StrEnum):
    """What becomes of a repeat: it is dropped, or counted in the message of the first one."""

    DROP = "drop"
    EDIT = "edit"


@dataclass(frozen=True, slots=True)
class Once:
    """Of events about the same thing one is posted in any window of ``per_us`` microseconds."""

    by: By
    per_us: int
    then: Then = Then.DROP

    @property
    def is_by_text(self) -> bool:
        """Whether events with the same text are about the same thing."""
        return self.by == BY_TEXT

    @property
    def is_counting(self) -> bool:
        """Whether repeats are counted in the message of the first one."""
        return self.then is Then.EDIT

    def scope(self, category: str, event: Event) -> Scope | None:
        """The scope of what the event is about; None of an event that does not say it, or tells that it is over."""
        name = None if event.is_resolved else self.name(category, event)
        return None if name is None else Scope(name, (Limit(1, window_us=self.per_us, kind=Kind.ONCE),))

    def name(self, category: str, event: Event) -> str | None:
        """The name of that scope, also of an event that tells that it is over."""
        about = self._about(event)
        if about is None:
            return None
        by = self.by if isinstance(self.by, tuple) else (self.by,)
        return ONCE_PREFIX + digest_of(category, *by, *about)

    def _about(self, event: Event) -> tuple[str, ...] | None:
        if self.is_by_text:
            text = without_volatile(event.text)
            return (text,) if text else None
        if self.by == BY_KEY:
            key = event.once_key or event.dedup_key
            return None if key is None else (key,)
        values = tuple(event.labels[label] for label in self.by if label in event.labels)
        return values if len(values) == len(self.by) else None


def digest_of(*parts: str) -> str:
    """64 bits of a digest of texts. Where one text ends and the next begins makes a difference."""
    told = b"".join(b"%d:%b" % (len(part), part) for part in (each.encode("utf-8", "surrogatepass") for each in parts))
    return sha1(told, usedforsecurity=False).hexdigest()[:_DIGEST]


def without_volatile(text: str) -> str:
    """A text without what differs from one repeat to the next.

    These are whole words alone: numbers with their unit, UUIDs, hexadecimal numbers of eight digits or more, and what
    stands in quotes. ``db1`` and ``db2`` stay two things.
    """
    return " ".join(_VOLATILE.sub("#", text).split())
