"""The values the dispatcher speaks of: limits, scopes, verdicts, and how much is kept.

Everything here is slotted, and frozen except ``Admitted``; free of I/O and clock; built on the standard library alone.
Instants and spans of time are integer microseconds (``*_us``) of the Redis server's clock.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Final, Self, TypeAlias

from dispatcher.core.units import DAY_US, US, format_duration, is_utf8, parse_duration

_LIMIT: Final = re.compile(r"([0-9]{1,15})/([0-9.]{1,22}(?:ms|s|m|h|d))(?: (fixed))?")

MAX_WINDOW_US: Final = 366 * DAY_US
MAX_LIMIT: Final = 10_000_000

HOLDING_US: Final = 60 * US
"""Shorter windows do not count held slots: in a scope with only such windows a slot stays charged as it was."""


MAX_NAME: Final = 512
"""Characters of a scope's name, and of an id that owns slots."""

A_NAME: Final = f"a text of 1 to {MAX_NAME} characters, without half of a surrogate pair"
"""What is expected of these, for messages."""

SLOT_ID: Final = 16
_MICROSECOND: Final = timedelta(microseconds=1)
_QUOTED_CHARS: Final = 40


def slot_id(name: str) -> str:
    """The id that owns slots under a name; a long one becomes a digest of 96 bits: each scope pays for every byte."""
    return name if len(name) <= SLOT_ID else digest_id(name)


def digest_id(name: str) -> str:
    """A digest of 96 bits of a name, in 16 characters."""
    return urlsafe_b64encode(blake2b(name.encode(), digest_size=12).digest()).decode()


Limits: TypeAlias = "Limit | str | list[Limit | str] | list[Limit] | list[str] | tuple[Limit | str, ...]"
"""One limit or several, as a user writes them."""


def quoted(value: object) -> str:
    """A value for a message, cut where it is long."""
    text = str(value) if isinstance(value, Limit) else ascii(value)
    return text if len(text) <= _QUOTED_CHARS else f"{text[:_QUOTED_CHARS]}... of {len(text)} characters"


class Kind(StrEnum):
    """How a window moves: with every event, or from one clock-aligned quota to the next.

    ``ONCE`` is a rolling one of repeats: its refusal comes before all others, and held slots count however short it is.
    """

    ROLLING = "rolling"
    FIXED = "fixed"
    ONCE = "once"


@dataclass(frozen=True, slots=True, init=False)
class Limit:
    """At most ``max`` events in any window of ``window_us`` microseconds.

    ``Limit.parse("100/30m")``, ``Limit(100, "30m")``, ``Limit(100, timedelta(minutes=30))`` and
    ``Limit(100, window_us=1_800_000_000)`` are the same. A number alone says no unit, so it is a ``TypeError``.
    """

    max: int
    window_us: int
    kind: Kind

    def __init__(
        self,
        max: int,  # noqa: A002 - the field's word
        window: timedelta | str | None = None,
        *,
        window_us: int | None = None,
        kind: Kind = Kind.ROLLING,
    ) -> None:
        if window is not None and window_us is not None:
            raise TypeError(
                f"Limit({quoted(max)}, {quoted(window)}, window_us={quoted(window_us)}) has two windows, expected one"
            )
        object.__setattr__(self, "max", max)
        object.__setattr__(self, "window_us", _window_us(max, window) if window_us is None else window_us)
        object.__setattr__(self, "kind", kind)
        if type(self.max) is not int or not 1 <= self.max <= MAX_LIMIT:
            raise ValueError(f"limit max {self.max!r}, expected a whole number from 1 to {MAX_LIMIT}")
        if type(self.window_us) is not int or not 1 <= self.window_us <= MAX_WINDOW_US:
            raise ValueError(
                f"limit window {self.window_us!r} us, expected a whole number from 1 to {MAX_WINDOW_US} (366d)"
            )
        if type(self.kind) is not Kind:
            raise ValueError(f"limit kind {self.kind!r}, expected a Kind")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``100/30m`` or ``100/1h fixed``; raises ``ValueError`` that says what was expected."""
        match = _LIMIT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"{text!r}, expected MAX/WINDOW, for example 100/30m or 100/1h fixed")
        return cls(int(match[1]), window_us=parse_duration(match[2]), kind=Kind(match[3] or Kind.ROLLING))

    def __str__(self) -> str:
        quota = f"{self.max}/{format_duration(self.window_us)}"
        return f"{quota} {self.kind}" if self.kind is Kind.FIXED else quota


def _window_us(max_: int, window: timedelta | str | None) -> int:
    if isinstance(window, timedelta):
        return window // _MICROSECOND
    if isinstance(window, str):
        return parse_duration(window)
    raise TypeError(
        f"Limit({quoted(max_)}, {quoted(window)}) has a window without a unit, expected a timedelta, a text such as "
        "'30m', or window_us=... in microseconds"
    )


def longest_of(limits: tuple[Limit, ...]) -> Limit | None:
    """The limit of the longest window, of two the smaller; None of no limits."""
    return max(limits, key=lambda limit: (limit.window_us, -limit.max), default=None)


@dataclass(frozen=True, slots=True, init=False)
class Scope:
    """What limits are counted against: ``global``, ``category:errors``, or a library user's own name.

    ``limits`` may be one limit or several, each a ``Limit`` or a text such as ``100/30m``; they are kept as a tuple.

    Without ``ids`` only the instants are kept, in a fraction of the memory: nothing can be released, and asking again
    is a new request. A change of ``ids`` begins with an empty history, and so does a change between fixed windows alone
    and any other where no ids are kept.
    """

    name: str
    limits: tuple[Limit, ...]
    ids: bool

    def __init__(self, name: str, limits: Limits, ids: bool = True) -> None:  # noqa: FBT001, FBT002 - the field's word
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "limits", limits)
        object.__setattr__(self, "ids", ids)
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= MAX_NAME or not is_utf8(self.name):
            raise ValueError(f"scope name {quoted(self.name)}, expected {A_NAME}")
        if type(limits) is not tuple or any(type(limit) is not Limit for limit in limits):
            object.__setattr__(self, "limits", _as_limits(name, limits))
        if type(self.ids) is not bool:
            raise TypeError(f"scope {self.name!r} has ids={quoted(self.ids)}, expected True or False")


def _as_limits(name: str, limits: object) -> tuple[Limit, ...]:
    several: Iterable[object] = limits if isinstance(limits, list | tuple) else (limits,)
    found = []
    for each in several:
        if not isinstance(each, Limit | str):
            raise TypeError(
                f"scope {quoted(name)} has the limits {quoted(limits)}, expected a Limit, a text such as '100/30m', "
                "or several of these"
            )
        found.append(Limit.parse(each) if isinstance(each, str) else each)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class FirstOf:
    """One slot in the first of these scopes that has room: a reserved share first, then what is shared by all."""

    scopes: tuple[Scope, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.scopes, tuple) or len(self.scopes) < 2:  # noqa: PLR2004 - a choice has two
            raise ValueError(f"FirstOf({quoted(self.scopes)}), expected a tuple of at least two scopes")
        for scope in self.scopes:
            if type(scope) is not Scope:
                raise TypeError(f"FirstOf holds {quoted(scope)}, expected a Scope")


Demand: TypeAlias = Scope | FirstOf
"""What a request asks a slot of."""


def all_scopes(demands: tuple[Demand, ...]) -> tuple[Scope, ...]:
    """Every scope in which the request may own a slot."""
    for each in demands:
        if type(each) is FirstOf:
            break
    else:
        return demands  # type: ignore[return-value]  # they are scopes all
    return tuple(scope for each in demands for scope in (each.scopes if isinstance(each, FirstOf) else (each,)))


def alternatives_of(demands: tuple[Demand, ...], refused: str) -> tuple[Scope, ...]:
    """The scopes of which any one would have done, where ``refused`` is one of them; else none."""
    choices = (each.scopes for each in demands if isinstance(each, FirstOf))
    return next((some for some in choices if any(scope.name == refused for scope in some)), ())


@dataclass(frozen=True, slots=True)
class Left:
    """How many more requests a limit of a scope has room for now."""

    scope: str
    limit: Limit
    left: int


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that takes three times as long, and each decision makes one
class Admitted:
    """One slot was charged for everything the request asked for; ``id`` owns them. Equal whatever the id.

    ``left`` is what each limit of each scope has left after that; None where it was not asked for.
    """

    id: str | None = field(default=None, compare=False)
    left: tuple[Left, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Denied:
    """Nothing was charged; false where a truth value is asked for. ``scope`` and ``limit`` are what frees up last.

    With nothing else happening the same request is admitted exactly ``retry_after_us`` after the decision and not a
    microsecond earlier.
    """

    scope: str
    limit: Limit
    retry_after_us: int

    def __bool__(self) -> bool:
        return False


Verdict: TypeAlias = Admitted | Denied


@dataclass(frozen=True, slots=True)
class DeniedInPart(Denied):
    """A denial in the words of the limits file: of its ``limit`` a slot is kept for a digest or notice.

    ``refused_by`` is the part of the limit that had no room: ``singles:errors 9/30m``.
    """

    refused_by: str


def refused_by(denied: Denied | None) -> str | None:
    """Which part of its limit refused, where the limit has parts."""
    return denied.refused_by if isinstance(denied, DeniedInPart) else None


ONCE_PREFIX: Final = "once:"
"""What the names of scopes begin with that admit one event about the same thing; see ``core.once``."""


def is_once(scope: Scope) -> bool:
    """Whether the scope admits one event about the same thing."""
    return scope.name.startswith(ONCE_PREFIX)


def is_repeat(denied: Denied) -> bool:
    """Whether an event was refused as a repeat."""
    return denied.scope.startswith(ONCE_PREFIX)


@dataclass(frozen=True, slots=True)
class Opening:
    """From ``at_us`` on a scope has room for one more; ``room`` is for how many it has now."""

    scope: str
    at_us: int
    room: int


class Reason(StrEnum):
    """Why an event came to its outcome, or waits. A closed set: log key and metric label."""

    OK = "ok"
    LIMIT_GLOBAL = "limit:global"
    LIMIT_CATEGORY = "limit:category"
    LIMIT_LABEL = "limit:label"
    PACE = "pace"
    COOLDOWN = "cooldown"
    PAUSED = "paused"
    RETRY = "retry"
    RECONCILE = "reconcile"
    SCHEDULED = "scheduled"
    EXPIRED = "expired"
    REJECTED = "rejected"
    INVALID = "invalid"
    AMBIGUOUS = "ambiguous"
    EXHAUSTED = "exhausted"
    OVERFLOW = "overflow"
    DUPLICATE = "duplicate"
    SILENCED = "silenced"
    QUIET = "quiet"
    CANCELLED = "cancelled"
    REPEAT = "repeat"
    RESOLVED = "resolved"
    UNPOSTED = "unposted"


_PARKS: Final = frozenset(
    {Reason.PACE, Reason.COOLDOWN, Reason.PAUSED, Reason.RETRY, Reason.RECONCILE, Reason.SCHEDULED}
)
ENDING: Final = tuple(reason for reason in Reason if reason not in _PARKS)
"""The reasons for which an event can have ended: for the others it only waits."""

NO_CATEGORY: Final = "-"
"""The category in the books of what could not be read."""

EVERYTHING: Final = "*"
"""In place of a category: posting is paused by hand for all of them."""


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
