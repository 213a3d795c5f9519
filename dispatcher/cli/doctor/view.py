"""A finding as it is drawn. Imports rich."""

from __future__ import annotations

from typing import Final

from rich.table import Table
from rich.text import Text

from dispatcher.cli.doctor.finding import Finding, Level
from dispatcher.cli.terminal import visible

_STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}
_WIDTH_OF_LEVEL: Final = max(map(len, Level))
_WIDTH_OF_ABOUT: Final = len("dead letters")


def drawn(finding: Finding) -> Table:
    """The finding, and below it the remedy; all in columns that are the same for every finding."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=_WIDTH_OF_LEVEL, no_wrap=True)
    grid.add_column(width=_WIDTH_OF_ABOUT, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(finding.level, _STYLES[finding.level]), finding.about, Text(visible(finding.said)))
    if finding.remedy is not None:
        grid.add_row("", Text("to do", "dim"), Text(visible(finding.remedy), "bold"))
    return grid
