"""Draws what grows and what a decision or an event costs then, as SVG: light and dark, without scripts, fonts or links.

A panel for each thing that grows. Its lines show the cost at each size, divided by the cost at the smallest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

COLUMNS: Final = 3
LEAST_TOP: Final = 2.0
"""The scale ends here, or where the dearest is."""

BOUND: Final = 1.1

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 960, 40, 16, 92, 46
_PANEL_WIDTH: Final = (_WIDTH - _LEFT - _RIGHT) / COLUMNS
_PANEL_HEIGHT: Final = 120
_INDENT: Final = 28
"""Of the first and the last size from the ends of a panel."""

_STYLE: Final = """\
svg { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; background: #ffffff }
text { fill: #1f2328 } .dim { fill: #59636e } .title { font-size: 17px; font-weight: 600 }
.name { font-size: 13px; font-weight: 600 } .axis { stroke: #d1d9e0; fill: none } .bound { fill: #dafbe1 }
.let { stroke: #1a7f5a } .refused { stroke: #bc4c00 } .let, .refused { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117 } text { fill: #f0f6fc } .dim { fill: #9198a1 }
.axis { stroke: #3d444d } .bound { fill: #12261e } .let { stroke: #3fb984 } .refused { stroke: #f0883e }
}
"""
TITLE: Final = "What one event costs while something grows"
_WORDS: Final = (("let", "admitted, posted"), ("refused", "refused, dropped"))


@dataclass(frozen=True, slots=True)
class Panel:
    """One thing that grows: its sizes, and for each of two lines the cost at each size over that at the first."""

    name: str
    sizes: tuple[str, ...]
    let: tuple[float, ...]
    refused: tuple[float, ...]

    @classmethod
    def of(cls, table: dict[str, Any], name: str, let: int, refused: int) -> Panel:
        """From a table of a result, by the numbers of its columns."""
        rows = table["rows"]
        return cls(name, tuple(row[0] for row in rows), _over_first(rows, let), _over_first(rows, refused))


def panels(growth: dict[str, Any], volume: dict[str, Any]) -> list[Panel]:
    """The first two tables of ``growth``, by the time inside the server; all of ``volume``, by CPU time."""
    gate = (Panel.of(each, f"the gate: {each['columns'][0]}", 4, 2) for each in growth["tables"][:2])
    return [*gate, *(Panel.of(each, each["columns"][0], 1, 3) for each in volume["tables"])]


def drawn(all_panels: Sequence[Panel]) -> str:
    """The picture."""
    top = max(LEAST_TOP, *(max(*each.let, *each.refused) for each in all_panels))
    rows = -(-len(all_panels) // COLUMNS)
    height = _TOP + rows * (_PANEL_HEIGHT + _BOTTOM)
    parts = [
        part
        for n, panel in enumerate(all_panels)
        for part in _panel(
            panel,
            _LEFT + n % COLUMNS * _PANEL_WIDTH,
            _TOP + n // COLUMNS * (_PANEL_HEIGHT + _BOTTOM),
            _PANEL_HEIGHT / top,
        )
    ]
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{TITLE}">',
            f"<style>\n{_STYLE}</style>",
            f"<title>{TITLE}</title>",
            *_head(),
            *parts,
            "</svg>\n",
        )
    )


def _head() -> Iterator[str]:
    yield f'<text class="title" x="{_LEFT}" y="28">{TITLE}</text>'
    x, y = _LEFT, 54
    for kind, words in _WORDS:
        yield f'<path class="{kind}" d="M{x} {y - 4}h16"/><text x="{x + 21}" y="{y}">{words}</text>'
        x += 140
    yield f'<rect class="bound" x="{x}" y="{y - 10}" width="16" height="12"/>'
    yield f'<text x="{x + 21}" y="{y}">up to {BOUND:g} times the cost at the smallest size</text>'


def _panel(panel: Panel, x: float, y: float, scale: float) -> Iterator[str]:
    bottom, width, bound = y + _PANEL_HEIGHT, _PANEL_WIDTH - _LEFT / 2, BOUND * scale
    step = (width - 2 * _INDENT) / max(1, len(panel.sizes) - 1)
    yield f'<text class="name" x="{x:g}" y="{y - 8:g}">{escape(panel.name)}</text>'
    yield f'<rect class="bound" x="{x:g}" y="{bottom - bound:.1f}" width="{width:.1f}" height="{bound:.1f}"/>'
    yield f'<path class="axis" d="M{x:g} {bottom:g}h{width:.1f}M{x:g} {bottom - scale:.1f}h{width:.1f}"/>'
    for value in range(int(_PANEL_HEIGHT / scale) + 1):
        at = bottom - value * scale + 4
        yield f'<text class="dim" x="{x - 6:g}" y="{at:.1f}" text-anchor="end">{value}</text>'
    places = [x + _INDENT + n * step for n in range(len(panel.sizes))]
    for place, size in zip(places, panel.sizes, strict=True):
        yield f'<text class="dim" x="{place:.1f}" y="{bottom + 15:g}" text-anchor="middle">{_short(size)}</text>'
    for kind, costs in (("let", panel.let), ("refused", panel.refused)):
        points = (f"{place:.1f} {bottom - cost * scale:.1f}" for place, cost in zip(places, costs, strict=True))
        yield f'<path class="{kind}" d="M{"L".join(points)}"/>'


def _over_first(rows: Sequence[Sequence[Any]], column: int) -> tuple[float, ...]:
    medians = [row[column]["median"] for row in rows]
    return tuple(median / medians[0] for median in medians)


def _short(size: str) -> str:
    """100,000 as 100k: a label has little room."""
    return size.replace(",000,000", "M").replace(",000", "k")
