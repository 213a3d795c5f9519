"""What the limits file says of one category, as values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from dispatcher.message_parts import Look
from dispatcher.model import US, Limit
from dispatcher.tally import Telling
from dispatcher.template import Template


class OnLimit(StrEnum):
    """What happens to an event that a budget limit denies."""

    DROP = "drop"
    DEAD_LETTER = "dead-letter"
    DEFER = "defer"
    DIGEST = "digest"


class OnAmbiguous(StrEnum):
    """What happens to an event whose post perhaps arrived, where that cannot be looked up."""

    RESEND = "resend"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True, slots=True)
class Style:
    """What the messages of a category look like.

    ``allow_mentions``: those in an event's own markup notify people. ``template``: what makes the text.
    """

    look: Look | None = None
    allow_mentions: bool = False
    template: Template | None = None


PLAIN: Final = Style()
"""The app's own name and icon, and the text as it was written."""

DEFAULT_MAX_PARKED: Final = 10_000
"""Deferred events of one category that may wait."""

DEFAULT_DIGEST_DELAY_US: Final = 60 * US
"""How long a digest collects before it is posted."""


@dataclass(frozen=True, slots=True)
class CategoryRule:
    """What the limits file says of one category; an empty ``limits`` means unlimited.

    ``guarantee`` events of the longest global window are kept for it; ``per_label`` limits hold for each value of a
    label. Where they are deferred, at most ``max_parked`` of its events wait for room. ``on_ambiguous`` says what
    becomes of one that was perhaps posted. ``shadows`` and ``label_shadows`` are counted and not enforced.
    ``digest_delay_us`` is how long a digest collects, and how long it has to be quiet before a notice says that
    suppression has ended; ``notice`` asks for such notices.
    """

    limits: tuple[Limit, ...]
    channel: str
    on_limit: OnLimit
    max_age_us: int
    guarantee: int = 0
    per_label: Mapping[str, tuple[Limit, ...]] = field(default_factory=dict)
    max_parked: int = DEFAULT_MAX_PARKED
    on_ambiguous: OnAmbiguous = OnAmbiguous.RESEND
    style: Style = PLAIN
    shadows: tuple[Limit, ...] = ()
    label_shadows: Mapping[str, tuple[Limit, ...]] = field(default_factory=dict)
    digest_delay_us: int = DEFAULT_DIGEST_DELAY_US
    notice: bool = False

    @property
    def telling(self) -> Telling | None:
        """How it is told what was suppressed; for that one message of the longest window is kept."""
        if self.on_limit is OnLimit.DIGEST:
            return Telling.DIGEST
        return Telling.NOTICE if self.notice else None
