"""What is counted of a simulation; none of it grows with the number of events."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from dispatcher.core.limits import Kind, Limit
from dispatcher.core.units import US

COUNTED: Final = ("offered", "sent", "deferred", "digested", "dropped", "dead", "expired", "duplicate", "waiting")
"""The fields of ``EventCounts``. ``deferred`` are those that waited for room, however they ended; ``expired``
are a part of ``dead``. ``offered`` is the sum of the others."""

MOST_BARS: Final = 120
_WIDTHS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)


class Bars:
    """How a span of time is cut into bars: ``width_us`` each, from ``begin_us`` on."""

    def __init__(self, first_us: int, last_us: int) -> None:
        span_s, most = (last_us - first_us) // US + 1, MOST_BARS - 1
        self.width_us = US * next((each for each in _WIDTHS_S if span_s <= each * most), -(-span_s // most))
        self.begin_us = first_us - first_us % self.width_us
        self.count = (last_us - self.begin_us) // self.width_us + 1

    def place(self, at_us: int) -> int:
        """The bar of an instant; what comes after the last bar falls into that."""
        return max(0, min(self.count - 1, (at_us - self.begin_us) // self.width_us))


class Series:
    """Figures of one category, one for each bar. ``held`` is how many wait at the end of the bar."""

    def __init__(self, bars: int) -> None:
        self.offered = array("L", [0]) * bars
        self.sent = array("L", [0]) * bars
        self.held = array("L", [0]) * bars


@dataclass(slots=True)
class EventCounts:
    """The events of one category, or of all."""

    offered: int = 0
    sent: int = 0
    deferred: int = 0
    digested: int = 0
    dropped: int = 0
    dead: int = 0
    expired: int = 0
    duplicate: int = 0
    waiting: int = 0

    def add(self, other: EventCounts) -> None:
        """Add what another one counts."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def share(self) -> float:
        """The part of what was offered that was sent."""
        return self.sent / self.offered if self.offered else 1.0


class Delays:
    """How long events waited, in whole seconds, rounded up."""

    def __init__(self) -> None:
        self._seconds: Counter[int] = Counter()

    def add(self, span_us: int) -> None:
        """One more."""
        self._seconds[-(-span_us // US)] += 1

    @property
    def most_s(self) -> int:
        """The longest."""
        return max(self._seconds, default=0)

    def percentile_s(self, percent: float) -> int:
        """So many per cent waited no longer than this."""
        left = percent / 100 * self._seconds.total()
        for seconds in sorted(self._seconds):
            left -= self._seconds[seconds]
            if left <= 0:
                return seconds
        return 0


def past_of(at_us: int, limit: Limit) -> int:
    """The last instant that is no longer in the window of ``at_us``."""
    return at_us - (at_us % limit.window_us + 1 if limit.kind is Kind.FIXED else limit.window_us)


class Fullest:
    """The most posts that one window of a limit held, and when."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.most = 0
        self.at_us = 0
        self._posted: deque[int] = deque()

    def add(self, now_us: int) -> None:
        """A post at this instant; never earlier than the last one."""
        past_us, posted = past_of(now_us, self.limit), self._posted
        posted.append(now_us)
        while posted[0] <= past_us:
            posted.popleft()
        if len(posted) > self.most:
            self.most, self.at_us = len(posted), now_us


@dataclass(slots=True)
class Channel:
    """The posts to one channel, and how long events that no limit refused waited for it."""

    pace: Limit | None
    fullest: Fullest | None
    posts: int = 0
    delays: Delays = field(default_factory=Delays)
