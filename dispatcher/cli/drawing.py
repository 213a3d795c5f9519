"""Tables and bars that say the same without colour and, where need be, in ASCII. Imports rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

FULL: Final = "█"
LIGHT: Final = "░"
DOT: Final = "·"
_UNBOUNDED: Final = 10_000
_READABLE: Final = 12
"""Characters of a name that tell it from others."""
_IN_ASCII: Final = {FULL: "#", LIGHT: "-", DOT: "."}


@dataclass(frozen=True, slots=True)
class Bar:
    """Pieces one after another: how long, of what, in which style."""

    pieces: tuple[tuple[int, str, str], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Drawn in one line."""
        del console
        shown = _IN_ASCII if options.ascii_only else {}
        yield Text.assemble(*((shown.get(char, char) * length, style) for length, char, style in self.pieces))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """As wide as its pieces."""
        del console, options
        width = sum(length for length, _, _ in self.pieces)
        return Measurement(width, width)


@dataclass(frozen=True, slots=True)
class OneLine:
    """Text in one line, whole; where it may give way, no shorter than ``shortest`` if that is possible."""

    text: str
    style: str = ""
    shortest: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Drawn, with an ellipsis where there is too little room."""
        del console, options
        yield Text(self.text, self.style, no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Between its shortest and the whole of it."""
        del console, options
        whole = cell_len(self.text)
        return Measurement(whole if self.shortest is None else min(whole, self.shortest), whole)


class Fitting:
    """The first form of something where all of it has room, else the first other one that fits squeezed, else the last.

    How a form is squeezed is rich's matter: columns that may wrap give room, the widest first.
    """

    def __init__(self, first: Callable[[], RenderableType], *others: Callable[[], RenderableType]) -> None:
        self._first = first
        self._others = others

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Drawn in the form that fits."""
        unbounded = options.update(max_width=_UNBOUNDED)
        form = self._first()
        if Measurement.get(console, unbounded, form).maximum > options.max_width:
            for build in self._others:
                form = build()
                if Measurement.get(console, unbounded, form).minimum <= options.max_width:
                    break
        yield form


class Filling:
    """What ``draw`` makes of so many rows, of as many as ``height`` has room for and at least ``fewest``."""

    def __init__(self, draw: Callable[[int], RenderableType], height: int, fewest: int) -> None:
        self._draw = draw
        self._height = height
        self._fewest = fewest

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Drawn with the most rows that fit."""
        few, many = self._fewest, max(self._fewest, self._height)
        while few < many:
            rows = (few + many + 1) // 2
            lines = console.render_lines(self._draw(rows), options.update(height=None), pad=False)
            if len(lines) <= self._height:
                few = rows
            else:
                many = rows - 1
        yield self._draw(few)


def cut(text: str, style: str = "") -> OneLine:
    """A name in one line, with an ellipsis where it is longer than its column."""
    return OneLine(text, style, _READABLE)


def share_bar(part: int, whole: int, style: str, *, width: int = 10) -> Bar:
    """How much of the ``whole`` the ``part`` is; anything at all is at least one character."""
    length = min(width, max(part * width // whole, 1 if part else 0))
    return Bar(((length, FULL, style), (width - length, LIGHT, "dim")))


def plain_table(*, footer: bool = False) -> Table:
    """A table with a line below its head."""
    return Table(
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="bold",
        footer_style="bold",
        show_footer=footer,
        show_edge=False,
    )
