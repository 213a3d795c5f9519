"""Draws a simulation as SVG: what was offered, sent and held, of all events and of each category. Light and dark.

One file without scripts, fonts or links; the colours follow what the reader prefers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from dispatcher.core.limits import Limit, longest_of
from dispatcher.core.units import US, format_duration
from dispatcher.simulate.course import Course
from dispatcher.simulate.figures import EventCounts, Series
from dispatcher.simulate.simulation import Simulated

MOST_CATEGORIES: Final = 24
_MINUTE_US: Final = 60 * US
_WIDTH: Final = 960
_LEFT, _RIGHT, _TOP, _GAP = 56, 16, 100, 28
_LARGE, _SMALL = 150, 64
_LABEL: Final = 22
_COLUMNS: Final = 3
_NAME_PX, _SAID_PX = 13, 12
_WIDE, _CAPITAL, _OTHER = 0.98, 0.72, 0.56
"""How wide characters are at most on average, as parts of the size of the font."""

_STYLE: Final = """\
svg { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; background: #ffffff }
text { fill: #1f2328 } .dim { fill: #59636e } .title { font-size: 17px; font-weight: 600 }
.name { font-size: 13px; font-weight: 600 }
.offered { fill: #f2c46d } .sent { fill: #1a7f5a } .held { fill: none; stroke: #8250df; stroke-width: 1.5 }
.limit { stroke: #cf222e; stroke-width: 1.2; stroke-dasharray: 5 3 } .axis { stroke: #d1d9e0 }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117 } text { fill: #f0f6fc } .dim { fill: #9198a1 }
.offered { fill: #7d5a10 } .sent { fill: #3fb984 } .held { stroke: #b88cff }
.limit { stroke: #ff7b72 } .axis { stroke: #3d444d }
}
"""


def drawn(before: Simulated | None, after: Simulated, title: str) -> str:
    """The picture; with ``before`` both totals stand above each other, and the categories are those of ``after``."""
    course = after.course
    names = sorted(course.categories, key=lambda name: (-course.categories[name].offered, name))[:MOST_CATEGORIES]
    runs = [("after", after)] if before is None else [("before", before), ("after", after)]
    parts: list[str] = []
    y = _TOP
    inner = _WIDTH - _LEFT - _RIGHT
    together = [_together(run.course) for _, run in runs]
    most = max(1, *(max(series.offered) for series in together))
    for (word, run), series in zip(runs, together, strict=True):
        name = "all events" if before is None else f"all events, {word}"
        limit = longest_of(run.policy.global_limits)
        panel = _Panel(_LEFT, y, inner, _LARGE, name, _said(run.course.total), limit, most)
        parts += panel.drawn(run, series)
        y += _LARGE + _LABEL + _GAP
    width = (inner - _LEFT * (_COLUMNS - 1)) / _COLUMNS
    for place, name in enumerate(names):
        column = place % _COLUMNS
        limit = longest_of(after.policy.rule(name).limits)
        series, counts = course.series[name], course.categories[name]
        x = _LEFT + column * (width + _LEFT)
        said = f"{counts.sent:,} of {counts.offered:,} sent"
        short = _short(name, width + _RIGHT - _width(f"  {said}") * _SAID_PX)
        panel = _Panel(x, y, width, _SMALL, short, said, limit, max(1, *series.offered))
        parts += panel.drawn(after, series)
        if column == _COLUMNS - 1 or place == len(names) - 1:
            y += _SMALL + _LABEL + _GAP
    more = len(course.categories) - len(names)
    if more:
        parts.append(f'<text class="dim" x="{_LEFT}" y="{y}">and {more:,} more categories</text>')
        y += _GAP
    head = _head(after, title, has_held=any(any(each.held) for each in together))
    size = f'viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
            f"<style>\n{_STYLE}</style>",
            f"<title>{escape(title)}</title>",
            *head,
            *parts,
            "</svg>\n",
        )
    )


def _said(counts: EventCounts) -> str:
    lost = [f"{getattr(counts, name):,} {name}" for name in ("digested", "dropped", "dead", "waiting")]
    shown = [each for each in lost if not each.startswith("0 ")]
    return ", ".join((f"{counts.sent:,} of {counts.offered:,} sent", *shown))


def _together(course: Course) -> Series:
    """The series of all categories, added up."""
    whole = Series(course.bars.count)
    for each in course.series.values():
        for to, what in ((whole.offered, each.offered), (whole.sent, each.sent), (whole.held, each.held)):
            for bar, count in enumerate(what):
                to[bar] += count
    return whole


def _head(run: Simulated, title: str, *, has_held: bool) -> Iterator[str]:
    width = format_duration(run.course.bars.width_us)
    yield f'<text class="title" x="{_LEFT}" y="28">{escape(title)}</text>'
    x, y = _LEFT, 56
    for kind, words in (("offered", "offered"), ("sent", "sent")):
        yield f'<rect class="{kind}" x="{x}" y="{y - 9}" width="10" height="10"/>'
        yield f'<text x="{x + 15}" y="{y}">{words}</text>'
        x += 76
    if has_held:
        yield f'<path class="held" d="M{x} {y - 4}h16"/><text x="{x + 21}" y="{y}">held at the end of a bar</text>'
        x += 172
    yield f'<path class="limit" d="M{x} {y - 4}h16"/><text x="{x + 21}" y="{y}">what the limit allows on average</text>'
    yield f'<text class="dim" x="{_WIDTH - _RIGHT}" y="{y}" text-anchor="end">each bar {width}</text>'


class _Panel:
    """One diagram: its frame, and what is drawn in it."""

    def __init__(  # noqa: PLR0913, PLR0917 - where, how large, and what
        self, x: float, y: float, width: float, height: float, name: str, said: str, limit: Limit | None, most: int
    ) -> None:
        self._x, self._y, self._width, self._height = x, y, width, height
        self._name, self._said, self._limit, self._most = name, said, limit, most

    def drawn(self, run: Simulated, series: Series) -> Iterator[str]:
        """Bars of what was offered, and in front of them of what was sent."""
        bars, bottom = run.course.bars, self._y + self._height
        held = max(series.held, default=0)
        most = max(self._most, *series.sent, held)
        scale, step = self._height / most, self._width / bars.count
        yield (
            f'<text class="name" x="{self._x:g}" y="{self._y - 8:g}">{escape(self._name)}'
            f'<tspan class="dim" font-weight="400" dx="10">{escape(self._said)}</tspan></text>'
        )
        for kind, counts in (("offered", series.offered), ("sent", series.sent)):
            yield f'<path class="{kind}" d="{_bars(counts, self._x, bottom, step, scale)}"/>'
        if held:
            yield f'<path class="held" d="{_line(series.held, self._x, bottom, step, scale)}"/>'
        if self._limit is not None:
            allowed = self._limit.max * bars.width_us / self._limit.window_us
            if allowed <= most:
                at = bottom - allowed * scale
                yield f'<path class="limit" d="M{self._x:g} {at:.1f}h{self._width:g}"/>'
        yield f'<path class="axis" d="M{self._x:g} {bottom:g}h{self._width:g}"/>'
        yield f'<text class="dim" x="{self._x - 6:g}" y="{self._y + 9:g}" text-anchor="end">{most:,}</text>'
        yield f'<text class="dim" x="{self._x - 6:g}" y="{bottom:g}" text-anchor="end">0</text>'
        middle, y = self._x + self._width / 2, bottom + 15
        said = "no limit" if self._limit is None else f"limit {self._limit}"
        yield f'<text class="dim" x="{middle:g}" y="{y:g}" text-anchor="middle">{said}</text>'
        if self._height == _LARGE:
            yield from self._ends(run, y)

    def _ends(self, run: Simulated, y: float) -> Iterator[str]:
        """The instants at both ends."""
        bars = run.course.bars
        end_us = bars.begin_us + bars.count * bars.width_us
        yield f'<text class="dim" x="{self._x:g}" y="{y:g}">{_instant(run, bars.begin_us)}</text>'
        right = self._x + self._width
        yield f'<text class="dim" x="{right:g}" y="{y:g}" text-anchor="end">{_instant(run, end_us)}</text>'


def _bars(counts: Sequence[int], x: float, bottom: float, step: float, scale: float) -> str:
    """The outline of bars; those that hold nothing are left out."""
    width = max(0.5, step - (1 if step > 4 else 0))  # noqa: PLR2004 - a gap only where there is room
    return "".join(
        f"M{x + bar * step:.1f} {bottom:g}v-{count * scale:.1f}h{width:.1f}V{bottom:g}z"
        for bar, count in enumerate(counts)
        if count
    )


def _line(counts: Sequence[int], x: float, bottom: float, step: float, scale: float) -> str:
    points = [f"{x + (bar + 1) * step:.1f} {bottom - count * scale:.1f}" for bar, count in enumerate(counts)]
    return f"M{'L'.join(points)}"


def _width(text: str) -> float:
    """Of a text in a font of size 1; the reader's font is not known."""
    return sum(_WIDE if char in "MWmw…" else _CAPITAL if char.isupper() else _OTHER for char in text)


def _short(name: str, room: float) -> str:
    """The name of a category, cut to so many pixels."""
    if _width(name) * _NAME_PX <= room:
        return name
    while _width(f"{name}…") * _NAME_PX > room and len(name) > 1:
        name = name[:-1]
    return f"{name}…"


def _instant(run: Simulated, at_us: int) -> str:
    seconds = (at_us - run.shift_us) / US
    if run.shift_us:
        return f"{seconds:,.0f} s"
    form = "%Y-%m-%d %H:%M" if run.course.bars.width_us >= _MINUTE_US else "%Y-%m-%d %H:%M:%S"
    return f"{datetime.fromtimestamp(seconds, UTC):{form}} UTC"
