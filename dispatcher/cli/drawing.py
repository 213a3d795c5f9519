"""Tables and bars that say the same without colour and, where need be, in ASCII. Imports rich."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

FULL: Final = "█"
LIGHT: Final = "░"
DOT: Final = "·"
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


def share_bar(part: int, whole: int, style: str, *, width: int = 10) -> Bar:
    """How much of the ``whole`` the ``part`` is; anything at all is at least one character."""
    length = min(width, max(part * width // whole, 1 if part else 0))
    return Bar(((length, FULL, style), (width - length, LIGHT, "dim")))


def plain_table(*, footer: bool = False) -> Table:
    """A table with a line below its head, narrow enough for 80 columns."""
    return Table(
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="bold",
        footer_style="bold",
        show_footer=footer,
    )
