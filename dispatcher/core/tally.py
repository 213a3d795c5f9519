"""What limits suppressed and nobody in Slack has been told of yet: the values that digests and notices are made of.

Frozen, free of I/O and clock. Instants and spans are integer microseconds of the server's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from dispatcher.core.limits import Denied, DeniedInPart, Kind, Limit
from dispatcher.core.units import US

MOST_SAMPLES: Final = 5
"""Distinct texts that a tally keeps of what was suppressed."""

SAMPLE_CHARS: Final = 100

ASK_ANEW_US: Final = 86_400 * US
"""How long a digest message waits in one place before it asks anew. Nothing ends it."""


class Telling(StrEnum):
    """How a category tells of what was suppressed: one message that counts, or one line at each end.

    Of what quiet hours digest one message tells at their end. Repeats are counted in the message of the event that they
    repeat.
    """

    DIGEST = "digest"
    NOTICE = "notice"
    QUIET = "quiet"
    REPEAT = "repeat"


@dataclass(frozen=True, slots=True)
class Counting:
    """Where a category's suppressed events are counted, and how they are told of.

    ``id`` is the tally's, and that of the digest message which tells of it. ``delay_us`` is how long a digest collects,
    and how long it has to be quiet before an end. ``window_us`` is the window in which one such message is posted.
    ``named`` says under which scope and limit people know those that keep its slot apart; ``usual`` is the scope and
    limit that suppresses most often.
    """

    id: str
    telling: Telling
    category: str
    delay_us: int
    window_us: int
    fixed: bool
    named: Mapping[str, tuple[str, Limit]]
    usual: tuple[str, Limit]

    def refusal(self) -> Denied:
        """What is said to have refused an event that waits behind others, and was not asked for."""
        return Denied(*self.usual, 0)

    def known(self, denied: Denied) -> Denied:
        """The denial in the words of the limits file."""
        named = self.named.get(denied.scope)
        if named is None:
            return denied
        return DeniedInPart(*named, denied.retry_after_us, refused_by=f"{denied.scope} {denied.limit}")


def counting_of(  # noqa: PLR0913 - limits by name
    telling: Telling, category: str, delay_us: int, *, own: Limit | None, share: Limit | None, window: Limit | None
) -> Counting:
    """Where a category counts, whose longest limit is ``own`` and whose guarantee is ``share``."""
    named: dict[str, tuple[str, Limit]] = {}
    if own is not None:
        said = (f"category:{category}", own)
        named |= dict.fromkeys((f"singles:{category}", f"digest:{category}"), said)
    if share is not None:
        said = (f"guarantee:{category}", share)
        named |= dict.fromkeys((f"guarantee:{category}", f"kept:{category}"), said)
    return Counting(
        id=f"{telling.value}:{category}",
        telling=telling,
        category=category,
        delay_us=delay_us,
        window_us=delay_us if window is None else window.window_us,
        fixed=window is not None and window.kind is Kind.FIXED,
        named=named,
        usual=(f"category:{category}", own) if own is not None else ("global", window or Limit(1, window_us=delay_us)),
    )


def repeats_of(id_: str, category: str, window_us: int, scope: str) -> Counting:
    """Where the repeats of one event are counted."""
    limit = Limit(1, window_us=max(1, window_us), kind=Kind.ONCE)
    return Counting(id_, Telling.REPEAT, category, 0, limit.window_us, fixed=False, named={}, usual=(scope, limit))


class Suppressed(NamedTuple):
    """An event that has ended in a digest; ``name`` is the id the producer knows, ``seen_us`` its first sight.

    ``refused_us`` is when a limit refused it; None: now.
    """

    name: str
    category: str
    denied: Denied
    seen_us: int
    refused_us: int | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """A tally as it stood at ``now_us``, when its digest message was taken.

    ``shown`` is the count that Slack has been told, None before the first message; ``channel`` and ``ts`` are what
    edits that message. ``next_us`` is from when on another one could be posted. ``failed``: the log has said that it
    cannot be posted. ``outcome`` is what became of the events, ``limit`` what refused them, empty if several did.
    ``text`` is that of the message that repeats are counted in.
    ``resolved`` of what quiet hours have digested is over.
    """

    id: str
    telling: Telling
    category: str
    outcome: str
    scope: str
    limit: str
    count: int
    first_us: int
    last_us: int
    now_us: int
    samples: tuple[str, ...] = ()
    shown: int | None = None
    channel: str | None = None
    ts: str | None = None
    next_us: int = 0
    failed: bool = False
    resolved: int = 0
    text: str = ""

    @property
    def is_editing(self) -> bool:
        """Whether there is a message that its digest message edits, instead of posting one."""
        if self.telling is Telling.REPEAT:
            return self.ts is not None
        return self.telling is Telling.DIGEST and self.shown is not None
