"""Quiet hours: spans of the wall clock in which a category posts nothing of what was not admitted before. Pure.

An instant is quiet if the clocks of the zone then show a time of day that is. So an hour that is skipped when the
clocks are set forward is not quiet, and one that they show twice is quiet twice. Instants are microseconds since 1970;
a span of the wall clock begins and ends at whole minutes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from enum import StrEnum
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from dispatcher.core.units import US

if TYPE_CHECKING:
    from dispatcher.core.matchers import Matcher, Matchers

QUIET_PREFIX: Final = "quiet:"
"""What begins the scopes for which lines wait in quiet hours, these lines, and the tallies of what is digested."""

WEEK: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTES_OF_DAY: Final = 24 * 60

_MINUTE_S: Final = 60
_DAY_S: Final = 86_400
_FARTHEST_S: Final = 400 * _DAY_S
"""So far ahead and back a change is looked for: each date and each change of the clocks comes within it."""
_FARTHEST_US: Final = _FARTHEST_S * US


class QuietThen(StrEnum):
    """What becomes of an event in quiet hours."""

    DIGEST = "digest"
    DEFER = "defer"
    DROP = "drop"


class Times(NamedTuple):
    """A span of the wall clock in minutes of the day, the end not included; one that ends earlier ends a day later."""

    begins: int
    ends: int

    def __str__(self) -> str:
        return f"{self.begins_at}-{self.ends_at}"

    @property
    def begins_at(self) -> str:
        """``22:00``."""
        return f"{self.begins // 60:02}:{self.begins % 60:02}"

    @property
    def ends_at(self) -> str:
        """``07:00``."""
        return f"{self.ends // 60:02}:{self.ends % 60:02}"


class Span(NamedTuple):
    """A span of quiet hours; ``until_us`` is the first instant after it, None where it never ends."""

    since_us: int
    until_us: int | None


class Hush(NamedTuple):
    """The quiet hours that hold for an event: their name, the span in which they do, and what becomes of the event."""

    name: str
    since_us: int
    until_us: int
    then: QuietThen

    @property
    def scope(self) -> str:
        """The name of the scope that opens when these hours end."""
        return QUIET_PREFIX + self.name


def _each_by_itself(unless: Sequence[Matcher]) -> tuple[Matchers, ...]:
    from dispatcher.core.matchers import Matchers  # few quiet hours have exceptions

    return tuple(Matchers((each,)) for each in unless)


@dataclass(frozen=True, slots=True)
class Quiet:
    """Quiet hours by their name: ``times`` of the wall clock in ``zone``, on the ``days`` (0 is Monday) they begin on.

    They hold for events of these ``categories``, None for all, but for an event that one of ``unless`` matches.
    """

    name: str
    times: tuple[Times, ...]
    zone: str
    clock: tzinfo
    then: QuietThen
    days: frozenset[int] = frozenset(range(7))
    categories: tuple[str, ...] | None = None
    unless: tuple[Matcher, ...] = ()
    _marks: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _exempt: tuple[Matchers, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        minutes = {minute for times in self.times for minute in times} | {MINUTES_OF_DAY}
        object.__setattr__(self, "_marks", tuple(sorted(minute * _MINUTE_S for minute in minutes if minute)))
        object.__setattr__(self, "_exempt", _each_by_itself(self.unless) if self.unless else ())

    def is_for(self, category: str) -> bool:
        """Whether they hold for events of the category."""
        return self.categories is None or category in self.categories

    def exempts(self, category: str, priority: str, labels: Mapping[str, str]) -> bool:
        """Whether an event is posted all the same."""
        return any(matchers.matches(category, priority, labels) for matchers in self._exempt)

    def clock_time(self, at_us: int) -> str:
        """An instant by the clock of the zone: ``2026-11-23 22:00``."""
        return f"{datetime.fromtimestamp(at_us // US, self.clock):%Y-%m-%d %H:%M}"

    def span_at(self, at_us: int) -> Span | None:
        """The span in which the instant lies; None where it is not quiet."""
        at_s = at_us // US
        if not self._holds(at_s):
            return None
        until_s = self._next_change(at_s)
        return Span(self._since(at_s) * US, None if until_s is None else until_s * US)

    def next_after(self, at_us: int) -> Span | None:
        """The first span that begins after the instant; None where none does."""
        at_s: int | None = at_us // US
        while at_s is not None and (at_s := self._next_change(at_s)) is not None:
            if self._holds(at_s):
                until_s = self._next_change(at_s)
                return Span(at_s * US, None if until_s is None else until_s * US)
        return None

    def _holds(self, at_s: int) -> bool:
        local = datetime.fromtimestamp(at_s, self.clock)
        minute, day = local.hour * 60 + local.minute, local.weekday()
        for begins, ends in self.times:
            if begins < ends:
                if begins <= minute < ends and day in self.days:
                    return True
            elif (minute >= begins and day in self.days) or (minute < ends and (day - 1) % 7 in self.days):
                return True
        return False

    def _next_change(self, at_s: int) -> int | None:
        """The first second after ``at_s`` from which on it is otherwise than then."""
        is_quiet = self._holds(at_s)
        farthest_s = at_s + _FARTHEST_S
        while at_s < farthest_s:
            at_s = self._next_mark(at_s)
            if self._holds(at_s) is not is_quiet:
                return at_s
        return None

    def _since(self, at_s: int) -> int:
        """The first second of the span in which ``at_s`` lies; if that is farther back, where the search ends."""
        back_s = 2 * _DAY_S
        while back_s < _FARTHEST_S and self._holds(at_s - back_s):
            back_s *= 2
        began_s = mark_s = at_s - back_s
        is_quiet = self._holds(mark_s)
        while (mark_s := self._next_mark(mark_s)) <= at_s:
            was_quiet, is_quiet = is_quiet, self._holds(mark_s)
            if is_quiet and not was_quiet:
                began_s = mark_s
        return began_s

    def _next_mark(self, at_s: int) -> int:
        """The next second at which something may change: a time of day comes, or the clocks are set."""
        local = datetime.fromtimestamp(at_s, self.clock)
        second = (local.hour * 60 + local.minute) * _MINUTE_S + local.second
        mark_s = at_s + self._marks[bisect_right(self._marks, second)] - second
        offset = local.utcoffset()
        if self._offset(mark_s) == offset:
            return mark_s
        before_s = at_s
        while mark_s - before_s > 1:
            middle_s = (before_s + mark_s) // 2
            if self._offset(middle_s) == offset:
                before_s = middle_s
            else:
                mark_s = middle_s
        return mark_s

    def _offset(self, at_s: int) -> object:
        return datetime.fromtimestamp(at_s, self.clock).utcoffset()


class QuietHours:
    """All quiet hours of a limits file; looks at the clock of a zone only where something may have changed."""

    def __init__(self, quiet: Sequence[Quiet]) -> None:
        self._quiet = quiet
        self._known: dict[str, tuple[int, int, Span | None]] = {}

    def hush(self, category: str, now_us: int, about: tuple[str, Mapping[str, str]] | None = None) -> Hush | None:
        """What holds for an event of the category at the instant; of several hours those that end last.

        ``about`` are its priority and labels, for what is exempt; None of what the dispatcher says of the category.
        """
        found: list[Hush] = []
        for each in self._quiet:
            span = self._span(each, now_us) if each.is_for(category) else None
            if span is not None:
                is_exempt = about is not None and each.exempts(category, *about)
                if not is_exempt:
                    found.append(Hush(each.name, span.since_us, span.until_us or now_us + _FARTHEST_US, each.then))
        return max(found, key=lambda hush: (hush.until_us, hush.name), default=None)

    def named(self, name: str, now_us: int) -> Hush | None:
        """The quiet hours of this name, if they hold at the instant."""
        for each in self._quiet:
            if each.name == name and (span := self._span(each, now_us)) is not None:
                return Hush(name, span.since_us, span.until_us or now_us + _FARTHEST_US, each.then)
        return None

    def holding(self, now_us: int) -> list[tuple[Quiet, Span]]:
        """All that hold at the instant."""
        return [(each, span) for each in self._quiet if (span := self._span(each, now_us)) is not None]

    def over(self, now_us: int) -> list[str]:
        """The scopes of all that do not hold at the instant."""
        return [QUIET_PREFIX + each.name for each in self._quiet if self._span(each, now_us) is None]

    def loud_until_us(self, category: str, now_us: int) -> int | None:
        """Until when no hours hold for the category; None if some hold at the instant."""
        until_us = now_us + _FARTHEST_US
        for each in self._quiet:
            if each.is_for(category):
                if self._span(each, now_us) is not None:
                    return None
                until_us = min(until_us, self._known[each.name][1])
        return until_us

    def _span(self, quiet: Quiet, now_us: int) -> Span | None:
        known = self._known.get(quiet.name)
        if known is None or not known[0] <= now_us < known[1]:
            known = self._known[quiet.name] = _looked_up(quiet, now_us)
        return known[2]


def _looked_up(quiet: Quiet, now_us: int) -> tuple[int, int, Span | None]:
    """From when to when it is as it is at the instant, and the span if it is quiet."""
    span = quiet.span_at(now_us)
    if span is not None:
        return span.since_us, span.until_us or now_us + _FARTHEST_US, span
    following = quiet.next_after(now_us)
    return now_us, now_us + _FARTHEST_US if following is None else following.since_us, None


def longest_us(quiet: Sequence[Quiet], from_us: int, then: QuietThen | None = None) -> int | None:
    """The longest time for which one or another of them goes on without a break, in a year and more from an instant.

    With ``then`` counted from the beginning of hours with this one, where no others hold until after their end. None
    where it never ends.
    """
    longest_us, until_us, since_us = 0, -1, None
    spans = [(span, each.then) for each in quiet for span in _spans(each, from_us)]
    for span, its_then in sorted(spans, key=_order):
        if span.since_us > until_us:
            since_us = None
        if span.until_us is None:
            return None
        if since_us is None and (then is None or (its_then is then and span.until_us >= until_us)):
            since_us = span.since_us
        until_us = max(until_us, span.until_us)
        if since_us is not None:
            longest_us = max(longest_us, until_us - since_us)
    return None if longest_us >= _FARTHEST_US else longest_us


def _order(span: tuple[Span, QuietThen]) -> tuple[int, float]:
    """As they begin; of those that begin together the one that ends last comes first, since it decides."""
    since_us, until_us = span[0]
    return since_us, -inf if until_us is None else -until_us


@lru_cache(maxsize=256)  # who checks a file asks for the same ones again and again
def _spans(quiet: Quiet, from_us: int) -> tuple[Span, ...]:
    found: list[Span] = []
    span = quiet.span_at(from_us) or quiet.next_after(from_us)
    end_us = from_us + _FARTHEST_US
    while span is not None and span.since_us < end_us:
        found.append(span)
        span = None if span.until_us is None else quiet.next_after(span.until_us)
    return tuple(found)
