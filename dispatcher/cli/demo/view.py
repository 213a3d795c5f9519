"""What the demo shows: live on a terminal, line by line elsewhere, and the table at its end. Imports rich."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

from rich.live import Live

from dispatcher.cli.demo.story import EACH, OWN, SOURCES, TOGETHER, Source
from dispatcher.cli.drawing import DOT, FULL, LIGHT, Bar, Filling, Fitting, Group, Part, Table, Text, cut
from dispatcher.cli.live import OnRich
from dispatcher.cli.status import balance
from dispatcher.cli.status.use_view import most, say_how_many_more
from dispatcher.cli.terminal import Terminal, console_on
from dispatcher.core.limits import Reason
from dispatcher.store.snapshot import Snapshot

_LINE_EVERY_S: Final = 0.25
_FEWEST: Final = 2
"""Rows of the table, however low the screen is: one, and one about the others."""


@dataclass(frozen=True)
class Moment:
    """One look at the books and at Slack's own count."""

    snapshot: Snapshot
    received_by_channel: Mapping[str, int]

    @property
    def is_busy(self) -> bool:
        """Whether something is still on its way."""
        return self.snapshot.pending > 0

    @property
    def slack_received(self) -> int:
        """What Slack counted."""
        return sum(self.received_by_channel.values())

    def sent(self, source: Source) -> int:
        """Posted of one category."""
        return self._sent.get(source.category, 0)

    def dropped(self, source: Source) -> int:
        """Dropped of one category."""
        return self._dropped.get(source.category, 0)

    def received(self, source: Source) -> int:
        """Arrived at Slack of one category."""
        return self.received_by_channel.get(source.channel, 0)

    @cached_property
    def _sent(self) -> dict[str, int]:
        return self.snapshot.by_category("sent")

    @cached_property
    def _dropped(self) -> dict[str, int]:
        return self.snapshot.by_category("dropped")


class View(Protocol):
    """Shown every look."""

    def show(self, moment: Moment) -> None:
        """The latest."""
        ...

    def end(self, parts: Iterable[Part]) -> None:
        """What it came to; nothing is shown after it."""
        ...


@contextmanager
def live_view() -> Iterator[View]:
    """A table that changes in place, no higher than the screen, until the end takes its place."""
    console = console_on(sys.stdout)
    console.print(_HEADLINE)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield _Table(live)


@contextmanager
def plain_view(terminal: Terminal) -> Iterator[View]:
    """A line every quarter of a second."""
    terminal.print(_HEADLINE)
    yield _Lines(terminal)


@contextmanager
def no_view() -> Iterator[View]:
    """Nothing."""
    yield _Nothing()


class _Table:
    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, moment: Moment) -> None:
        """Draw the table anew; the headline stays in sight where there is room for it."""
        height = self._live.console.height - len(_HEADLINE.splitlines()) - 1  # the cursor stands below
        self._live.update(OnRich(Filling(lambda rows: _page(moment, rows), height, _FEWEST)), refresh=True)

    def end(self, parts: Iterable[Part]) -> None:
        """In one piece: the table in place goes, and the parts come."""
        with self._live.console as console:
            self._live.stop()
            console.print(*map(OnRich, parts), sep="")


class _Lines:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._due = 0.0

    def show(self, moment: Moment) -> None:
        """Print a line if the last one is old enough, and the last one."""
        now = time.monotonic()
        if now >= self._due or not moment.is_busy:
            self._terminal.print(_figures(moment))
            self._due = now + _LINE_EVERY_S

    def end(self, parts: Iterable[Part]) -> None:
        """Below the lines."""
        self._terminal.draw(*parts)


class _Nothing:
    def show(self, moment: Moment) -> None:
        """Nothing."""

    def end(self, parts: Iterable[Part]) -> None:
        """Nothing."""


_HEADLINE: Final = (
    f"{EACH * len(SOURCES)} events of {len(SOURCES)} categories go through a queue and two workers to a local Slack.\n"
    f"In 30 minutes {TOGETHER.max} may be posted, and {OWN.max} of each category."
)


def summary(moment: Moment, reasons: Counter[str]) -> Iterator[Part]:
    """The table and what it comes to."""
    totals = moment.snapshot.overall()
    by_category, together = reasons[Reason.LIMIT_CATEGORY], reasons[Reason.LIMIT_GLOBAL]
    yield Text()
    yield _table(moment)
    yield Text()
    yield Text(
        f"{totals['enqueued']} enqueued = {totals['sent']} sent + {totals['dropped']} dropped;"
        f" Slack received {moment.slack_received}.\n"
        f"Dropped by the limit of their category: {by_category}; by the limit of all together: {together}."
    )
    if not moment.snapshot.imbalances():
        yield Text(f"The books balance{balance(moment.snapshot).removeprefix('the books balance')}.", style="green")


def _figures(moment: Moment) -> str:
    totals, snapshot = moment.snapshot.overall(), moment.snapshot
    return (
        f"{totals['enqueued']} enqueued, {snapshot.pending} on the way, "
        f"{totals['sent']} sent, {totals['dropped']} dropped; Slack received {moment.slack_received}"
    )


def _page(moment: Moment, rows: int) -> Group:
    return Group("", _table(moment, rows), "", cut(_figures(moment)))


def _table(moment: Moment, rows: int = len(SOURCES)) -> Fitting:
    """Where there is little room the bars go."""
    return Fitting(lambda: _drawn(moment, rows), lambda: _drawn(moment, rows, has_bars=False))


def _drawn(moment: Moment, rows: int, *, has_bars: bool = True) -> Table:
    totals = moment.snapshot.overall()
    table = Table(has_footer=True)
    table.add_column("Category", "Total")
    table.add_column("Channel")
    if has_bars:
        table.add_column(f"Of {EACH}")
    for heading, count in (("Sent", totals["sent"]), ("Dropped", totals["dropped"])):
        table.add_column(heading, str(count), is_right=True)
    table.add_column("At Slack", str(moment.slack_received), is_right=True)
    chosen = most(list(SOURCES), rows, lambda source: moment.sent(source) + moment.dropped(source))
    for source in chosen:
        sent, dropped, received = moment.sent(source), moment.dropped(source), moment.received(source)
        bar = Bar(((sent, FULL, "green"), (dropped, LIGHT, "yellow"), (EACH - sent - dropped, DOT, "dim")))
        bars = (bar,) if has_bars else ()
        table.add_row(source.category, source.channel, *bars, str(sent), str(dropped), str(received))
    say_how_many_more(table, len(SOURCES) - len(chosen))
    return table
