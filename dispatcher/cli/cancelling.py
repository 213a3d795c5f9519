"""What ``dispatcher parked cancel`` does once the events are found. Imports what speaks to Redis."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import click

from dispatcher.cli.exits import DOES_NOT_HOLD, INTERRUPTED, UNREACHABLE, USAGE, Ended
from dispatcher.cli.interruption import Interruption
from dispatcher.cli.options import operator
from dispatcher.cli.parked import Chosen
from dispatcher.cli.terminal import Terminal
from dispatcher.errors import GateUnavailable
from dispatcher.logs import EventLog, build_event_log
from dispatcher.settings import Settings
from dispatcher.store.parked_events import PAGE, Cancelled, ParkedEvent, ParkedEvents

_AGAIN: Final = "what is not cancelled stays parked; run it again for the rest"


@dataclass(slots=True)
class _Tally:
    cancelled: int = 0
    left: int = 0

    def __str__(self) -> str:
        left = f", {self.left} no longer parked" if self.left else ""
        return f"{self.cancelled} cancelled{left}"


def cancel_events(  # noqa: PLR0913 - what a command has found, and how it was asked
    terminal: Terminal,
    events: ParkedEvents,
    chosen: Chosen,
    settings: Settings,
    *,
    yes: bool,
    as_json: bool,
) -> bool:
    """Cancel them once that is agreed to, with a log line for each, and say how many; whether all that were meant were.

    An interruption waits for the page that is under way. Raises ``Ended`` where it is not agreed to, or not finished.
    """
    found = chosen.events
    if found and not yes:
        _agree(terminal, found, as_json=as_json)
    log = build_event_log(level=settings.log_level, style=settings.log_format, secrets=settings.secrets())
    tally = _Tally()
    with Interruption() as interruption:
        try:
            for ids in _pages([each.id for each in found]):
                with interruption.held_back():
                    cancelled = _cancel(events, ids, log)
                    tally.cancelled += cancelled
                    tally.left += len(ids) - cancelled
        except KeyboardInterrupt:
            raise Ended(INTERRUPTED, f"interrupted: {tally}; {_AGAIN}") from None
        except GateUnavailable as error:
            raise Ended(UNREACHABLE, f"{error}: {tally}; {_AGAIN}") from error
    if as_json:
        missing = {"not_parked": chosen.missing}
        terminal.print_json({"cancelled": tally.cancelled, "no_longer_parked": tally.left, **missing})
    else:
        terminal.print(str(tally))
    return not tally.left and not chosen.missing


def _cancel(events: ParkedEvents, ids: Sequence[str], log: EventLog) -> int:
    results = events.cancel(events.look(ids), operator())
    done = [settlement for result, settlement in results if result is Cancelled.DONE]
    log.settled(done)
    return len(done)


def _pages(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(ids), PAGE):
        yield ids[first : first + PAGE]


def _agree(terminal: Terminal, found: Sequence[ParkedEvent], *, as_json: bool) -> None:
    count = "1 parked event" if len(found) == 1 else f"{len(found)} parked events"
    if as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Ended(USAGE, f"{count} would be cancelled; with --yes it is done")
    from dispatcher.cli.parked_view import summary

    terminal.draw(summary(found))
    if not click.confirm(f"Cancel {count}?", err=True):
        raise Ended(DOES_NOT_HOLD, "nothing was cancelled")
