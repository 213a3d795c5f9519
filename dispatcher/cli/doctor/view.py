"""A finding as it is drawn."""

from __future__ import annotations

from typing import Final

from dispatcher.cli.doctor.finding import Finding, Level
from dispatcher.cli.drawing import Table, Text
from dispatcher.core.units import visible

_STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}
_WIDTH_OF_LEVEL: Final = max(map(len, Level))
_WIDTH_OF_ABOUT: Final = len("reconciliation")


def drawn(finding: Finding) -> Table:
    """The finding, and below it the remedy; all in columns that are the same for every finding."""
    grid = Table(is_grid=True)
    grid.add_column(width=_WIDTH_OF_LEVEL, breaks=False)
    grid.add_column(width=_WIDTH_OF_ABOUT, breaks=False)
    grid.add_column(folds=True)
    grid.add_row(Text(finding.level, _STYLES[finding.level]), finding.about, Text(visible(finding.said)))
    if finding.remedy is not None:
        grid.add_row("", Text("to do", "dim"), Text(visible(finding.remedy), "bold"))
    return grid
