"""Looking up posts of unknown fate: what is asked of the sink, and what one reading of a channel can say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from dispatcher.model import US, Paused, Receipt

MARGIN_US: Final = 60 * US
"""So much before the first post a reading begins: the server's clock and Slack's may differ."""

GRACE_US: Final = 10 * US
"""From a post of unknown fate to its first look-up, unless the settings say otherwise."""

LAST_LOOK: Final = 3
"""After so many graces from the post, what a complete reading does not show has not arrived."""


@dataclass(frozen=True, slots=True)
class Search:
    """The posts of these events, in one channel (and thread), not older than ``since_us``.

    ``now_us`` is when the look-up began, by the clock that ``since_us`` was read from; None where nobody says.
    """

    channel: str
    event_ids: tuple[str, ...]
    since_us: int
    thread_ts: str | None = None
    now_us: int | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """The reading was complete: what it did not find is not there (yet)."""


@dataclass(frozen=True, slots=True)
class ReadLater:
    """The reading broke off; a later one may do better. ``retry_after_us`` is Slack's own wish for all readings.

    ``reached`` says whether Slack answered. ``pause`` is set when it will answer nothing before an operator acts.
    """

    code: str
    detail: str
    retry_after_us: int | None = None
    reached: bool = False
    pause: Paused | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """No reading will ever be complete here: a webhook, a scope that is missing, a history that is cut short."""

    code: str
    detail: str


Rest: TypeAlias = Absent | ReadLater | Unreadable
"""What a reading says of what it did not find."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The receipts of what was found, by event id, and what is true of the rest."""

    found: Mapping[str, Receipt]
    rest: Rest
