"""Which figures of a run are worse than those on docs/benchmarks.md, by more than their range.

Compared are the figures that have a goal: the goal says which direction is worse. Most of them are ratios taken inside
one run, which depend on the machine less than times do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.figures import Goal, Spread, spelled
from benchmarks.page import PART, escaped

TENTH: Final = 0.1
"""By so much a figure without a range has to be worse: it was taken once."""

_NUMBER: Final = r"-?[\d,]+(?:\.\d+)?"
_ROW: Final = re.compile(
    rf"^\| (?P<what>.+) \| (?P<median>{_NUMBER})(?: \((?P<low>{_NUMBER})-(?P<high>{_NUMBER})\))? \| at (?:least|most) ",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Compared:
    """How many figures have one on the page, and those that are worse, in words."""

    count: int
    worse: tuple[str, ...]


def compare(name: str, goals: Sequence[Goal], page: str) -> Compared:
    """The goals of a benchmark against what the page says of it."""
    before = dict(committed(name, page))
    known = [(goal, before[what]) for goal in goals if (what := escaped(goal.what)) in before]
    worse = (f"{name}: {goal.what}: {goal.reached}, was {was}" for goal, was in known if _is_worse(goal, was))
    return Compared(len(known), tuple(worse))


def committed(name: str, page: str) -> Iterator[tuple[str, Spread]]:
    """What the page says of a benchmark's goals, as it is spelled there."""
    for part in PART.finditer(page):
        if part["name"] == name:
            for row in _ROW.finditer(part[0]):
                median, low, high = (row[each] or row["median"] for each in ("median", "low", "high"))
                yield row["what"], Spread(_read(median), _read(low), _read(high))


def _is_worse(goal: Goal, was: Spread) -> bool:
    """Whether the median is beyond the worst that was seen then."""
    reached = _read(spelled(goal.reached.median))  # in as many digits as the page has
    margin = abs(was.median) * TENTH if was.low == was.high else 0.0
    if goal.at_least is not None:
        return reached < was.low - margin
    return reached > was.high + margin


def _read(figure: str) -> float:
    return float(figure.replace(",", ""))
