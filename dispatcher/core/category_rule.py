"""What the limits file says of one category, as values, and what its template is given. Pure.

A template is built by the settings; the core knows that it may fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, Self

from dispatcher.core.limits import US, Identity, Limit
from dispatcher.core.tally import Telling

VARIABLES: Final = ("category", "text", "id", "labels", "priority", "created_at", "channel")


class OnLimit(StrEnum):
    """What happens to an event that a budget limit denies."""

    DROP = "drop"
    DEAD_LETTER = "dead-letter"
    DEFER = "defer"
    DIGEST = "digest"


class OnAmbiguous(StrEnum):
    """What happens to an event whose post perhaps arrived, where the channel's history cannot be read."""

    RESEND = "resend"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True, slots=True)
class Style:
    """What the messages of a category look like.

    ``allow_mentions``: those in an event's own markup notify people. ``template``: what makes the text.
    """

    identity: Identity | None = None
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


class Marked(str):
    """An event's text as it was written; where it is shown as it is, it is shown as its ``markup``."""

    __slots__ = ("markup",)

    markup: str

    def __new__(cls, written: str, markup: str) -> Self:
        """What was written, and the markup for it, in which mentions notify nobody unless they may."""
        made = super().__new__(cls, written)
        made.markup = markup
        return made


class TemplateFailed(Exception):
    """The template made no text of this event; the message says why, on one line."""


class Template(Protocol):
    """What makes the text of a message."""

    @property
    def source(self) -> str:
        """The template as it stands in the limits file."""
        ...

    def render(self, variables: Mapping[str, object]) -> str:
        """Slack's markup, in which the variables are shown as they were written; raises ``TemplateFailed``."""
        ...
