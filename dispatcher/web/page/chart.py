"""What came and what became of it in 48 hours, as the bars and the line of an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.web.page.looks import Minute

WIDTH: Final = 576
HEIGHT: Final = 96
STACKED: Final = ("sent", "digested", "dropped", "dead")
"""From the bottom to the top of a bar; a duplicate is no event of its own."""

_PER_BAR: Final = 20
_HOURS: Final = 12
"""Between two marks below."""


@dataclass(frozen=True, slots=True)
class Rect:
    """A part of a bar, in units of the drawing."""

    outcome: str
    x: float
    y: float
    height: float


def chart(minutes: Sequence[Minute]) -> dict[str, Any]:
    """What the template draws: rectangles, a line of what was received, marks of hours, and the figures in words."""
    bars = [_sum(minutes[first : first + _PER_BAR]) for first in range(0, len(minutes), _PER_BAR)]
    top = max((max(bar.received, sum(bar.ended[each] for each in STACKED)) for bar in bars), default=0)
    width, scale = WIDTH / max(1, len(bars)), HEIGHT / max(1, top)
    rects = [rect for place, bar in enumerate(bars) for rect in _bar(bar, place * width, scale)]
    steps = []
    for place, bar in enumerate(bars):
        y = HEIGHT - bar.received * scale
        steps += [f"{place * width:.1f},{y:.1f}", f"{(place + 1) * width:.1f},{y:.1f}"]
    hours = len(minutes) // 60
    marks = [{"x": WIDTH * hour / hours, "ago": hours - hour} for hour in range(0, hours, _HOURS)]
    together = _sum(minutes)
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "bar": max(0.5, width - 0.6),
        "rects": rects,
        "line": " ".join(steps),
        "marks": marks,
        "top": top,
        "per_bar": _PER_BAR,
        "received": together.received,
        "ended": {name: together.ended[name] for name in STACKED},
    }


def _bar(bar: Minute, x: float, scale: float) -> list[Rect]:
    found, y = [], float(HEIGHT)
    for outcome in STACKED:
        if height := bar.ended[outcome] * scale:
            y -= height
            found.append(Rect(outcome, round(x, 2), round(y, 2), round(height, 2)))
    return found


def _sum(minutes: Sequence[Minute]) -> Minute:
    return Minute(
        sum(each.received for each in minutes),
        {name: sum(each.ended[name] for each in minutes) for name in STACKED},
    )
