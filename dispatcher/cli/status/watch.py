"""``dispatcher status --watch``: the tables anew every second, on a screen of their own. Imports rich."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live

from dispatcher.app.documents.facts import Status
from dispatcher.app.documents.instants import clock
from dispatcher.cli.drawing import Filling, Group, Part, Text
from dispatcher.cli.interruption import Interruption
from dispatcher.cli.live import OnRich
from dispatcher.cli.status.view import Rows, tables
from dispatcher.cli.terminal import console_on
from dispatcher.core.rendering import one_line
from dispatcher.errors import GateUnavailable

EVERY_S: Final = 1.0
_FEWEST: Final = 2
"""Rows of a table that is shown: one, and one about the others."""

_TABLES: Final = 5
_GIVEN_UP: Final = _TABLES + 2
"""What goes where these are too many, one after the other: digests and notices but for one, rows, three tables, facts,
all categories."""


def watch_status(look: Callable[[], tuple[str, Status]]) -> None:
    """Show what ``look`` finds, below a headline of its own, until SIGINT or SIGTERM; then the terminal is as before.

    The last figures stay on it. While the server is away the figures before stay, with the time since when and the
    reason. Raises ``GateUnavailable`` only for the first look.
    """
    page = Page(*look(), time.time())
    console = console_on(sys.stdout)
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with Interruption() as interruption:
        try:
            with interruption.held_back():
                live.start()
            while True:
                live.update(page, refresh=True)
                time.sleep(EVERY_S)
                page = _next(page, look)
                interruption.raise_if_asked()
        except KeyboardInterrupt:
            pass
        finally:
            live.stop()
    console.print(replace(page, is_last=True))


def _next(page: Page, look: Callable[[], tuple[str, Status]]) -> Page:
    asked_at = time.time()
    try:
        return Page(*look(), time.time())
    except GateUnavailable as error:
        away = _Away(asked_at if page.away is None else page.away.since, one_line(str(error)))
        return Page(page.headline, page.status, page.at, away)


@dataclass(frozen=True, slots=True)
class _Away:
    since: float
    reason: str


@dataclass(frozen=True, slots=True)
class Page:
    """One screenful; ``at`` is when the figures were read. The last one stays when nothing is watched any more."""

    headline: str
    status: Status
    at: float
    away: _Away | None = None
    is_last: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many rows of each table as the screen has room for."""
        height = console.height - 1 if self.is_last else options.height or console.height  # room for a prompt
        yield OnRich(Filling(partial(self._drawn, height), height, _FEWEST - _GIVEN_UP))

    def _drawn(self, height: int, categories: int) -> Part:
        """With so many rows of categories. Each row less than the fewest gives up one more thing instead."""
        steps = max(0, _FEWEST - categories)
        rows = Rows(
            categories=1 if steps == _GIVEN_UP else max(_FEWEST, categories),
            others=_FEWEST if steps > 1 else max(_FEWEST, height // 8),
            tables=max(0, _TABLES - max(2, steps)),
            tallies=1 if steps else 5,
            are_cut=categories < len(self.status.categories),
            fewest=steps > _TABLES,
        )
        return Group(*self._head(are_cut=rows.are_cut), *tables(self.status, rows))

    def _head(self, *, are_cut: bool) -> list[Text]:
        goes_on = "" if self.is_last else ", again every second; Ctrl-C ends it"
        lines = [
            Text(pieces=((clock(self.at), "bold"), (goes_on, "dim"))),
            Text(self.headline, breaks=not are_cut),
        ]
        if self.away is not None:
            said = f"server away since {clock(self.away.since)}, the figures are older: {self.away.reason}"
            lines.append(Text(said, style="bold red"))
        return [*lines, Text("")]
