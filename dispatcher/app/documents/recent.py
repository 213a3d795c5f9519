"""What happened in the last 30 minutes: by category, by cause, and how many events a second come and end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dispatcher.core.limits import Reason
from dispatcher.core.units import US
from dispatcher.store.counts import MINUTE_US, OUTCOMES, Counts

MINUTES: Final = 30
"""Whole minutes that are looked at, beside the one that runs."""

REASONED: Final = ("dropped", "digested", "dead")
CAUSES: Final[Mapping[str, str]] = {
    Reason.LIMIT_CATEGORY: "own",
    Reason.LIMIT_LABEL: "own",
    Reason.LIMIT_GLOBAL: "global",
    Reason.SILENCED: "silenced",
    Reason.QUIET: "quiet",
    Reason.REPEAT: "repeated",
}
"""What suppresses events, by the reason that stands in the books."""

_SUPPRESSED: Final[Mapping[str, str]] = {**CAUSES, Reason.OVERFLOW: "overflow"}
_IN_WORDS: Final = {
    "own": "by their own limits",
    "global": "by the limit of all",
    "silenced": "by a silence",
    "quiet": "in quiet hours",
    "repeated": "as repeats",
    "overflow": "because too many waited for room",
}
_JUST_NOW: Final = 1
"""A category is one of now if events of it were suppressed in this minute or in the one before."""


@dataclass(frozen=True, slots=True)
class Lately:
    """What was received of one category, what was sent, and how many of each other outcome ended for each reason.

    ``age`` is how many minutes ago something of it was last suppressed: 1 also for this minute, None for not at all.
    ``begun`` says how many minutes ago each outcome and reason was first counted.
    """

    received: int = 0
    sent: int = 0
    ended: Mapping[tuple[str, str], int] = field(default_factory=dict)
    age: int | None = None
    begun: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def causes(self) -> dict[str, int]:
        """How many were suppressed (dropped, digested or kept as dead letters), by cause; the most frequent first."""
        found = dict.fromkeys(_SUPPRESSED.values(), 0)
        for (_, reason), number in self.ended.items():
            if is_suppressed(reason):
                found[_SUPPRESSED[reason]] += number
        return {cause: number for cause, number in sorted(found.items(), key=lambda item: -item[1]) if number}

    def causes_in_words(self) -> str:
        """``12 by their own limits, 3 by the limit of all``."""
        return ", ".join(f"{number:,} {_IN_WORDS[cause]}" for cause, number in self.causes().items())

    def suppressed(self) -> int:
        """How many of all causes."""
        return sum(self.causes().values())

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        reasons: dict[str, dict[str, int]] = {outcome: {} for outcome in REASONED}
        for (outcome, reason), number in self.ended.items():
            reasons[outcome][reason] = number
        return {"received": self.received, "sent": self.sent, **reasons}


NOTHING: Final = Lately()


@dataclass(frozen=True, slots=True)
class Recent:
    """The last 30 minutes and the one that runs, by category.

    ``over_s`` is the time since the begin of the last whole minute, ``rates`` are events per second in it.
    """

    categories: Mapping[str, Lately] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    over_s: float = 0.0

    def of(self, category: str) -> Lately:
        """What happened of one."""
        return self.categories.get(category, NOTHING)

    def together(self) -> Lately:
        """What happened of all."""
        found = self.categories.values()
        ended: Counter[tuple[str, str]] = Counter()
        for each in found:
            ended.update(each.ended)
        return Lately(sum(each.received for each in found), sum(each.sent for each in found), ended)


def recent_of(minutes: Sequence[Counts], now_us: int) -> Recent:
    """What the minutes say, the one of ``now_us`` first."""
    received: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    ended: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    ages: dict[str, int] = {}
    begun: defaultdict[str, dict[tuple[str, str], int]] = defaultdict(dict)
    for age, minute in enumerate(minutes):
        received.update(minute.received_by_category())
        sent.update(minute.by_category("sent"))
        for outcome in REASONED:
            for (category, reason), number in minute.by_reason(outcome).items():
                ended[category][outcome, reason] += number
                begun[category][outcome, reason] = age
                if is_suppressed(reason):
                    ages.setdefault(category, max(age, _JUST_NOW))
    over_s = (MINUTE_US + now_us % MINUTE_US) / US
    return Recent(
        {
            name: Lately(received[name], sent[name], ended[name], ages.get(name), begun[name])
            for name in sorted(received.keys() | sent.keys() | ended.keys())
        },
        {count: sum(each.total(count) for each in minutes[:2]) / over_s for count in ("received", *OUTCOMES)},
        over_s,
    )


def is_suppressed(reason: str) -> bool:
    """Whether an event that ended for this reason is a suppressed one, and not cancelled, say, or told of elsewhere."""
    return reason in _SUPPRESSED
