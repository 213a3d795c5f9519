"""``dispatcher status``: everything at one instant, for people and as JSON, and whether the books balance."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

import click

from dispatcher.cli.context import desk_of, headline, namespace_on, some_settings_in_force
from dispatcher.cli.exits import DOES_NOT_HOLD, DONE
from dispatcher.cli.options import as_json
from dispatcher.cli.terminal import Terminal

if TYPE_CHECKING:
    from dispatcher.app.documents.facts import Status
    from dispatcher.app.operating import Desk
    from dispatcher.store.snapshot import Snapshot


_SORTS: Final = ("suppressed", "sent", "dropped", "digested", "dead", "parked")
_CANNOT_REDRAW: Final = frozenset({"", "dumb", "unknown"})


@click.command()
@as_json
@click.option("--check", is_flag=True, help="Only verify that every event is accounted for; exit 1 if not.")
@click.option("--watch", is_flag=True, help="Show it anew every second, until Ctrl-C.")
@click.option("--category", metavar="GLOB", help="Only the categories of such names: 'svc-*'.")
@click.option(
    "--sort",
    type=click.Choice(_SORTS),
    help="The categories with the most of these first; suppressed: in the last 30m.",
)
@click.pass_obj
def status(  # noqa: PLR0913 - click's signature: one for each option
    terminal: Terminal, *, as_json: bool, check: bool, watch: bool, category: str | None, sort: str | None
) -> int:
    """Show what waits, what was sent, and what limits are used.

    The categories whose events were suppressed last come first. With --check, say whether the books balance: every
    event taken from the queue has an outcome, or is held.
    """
    if watch:
        _refuse_unless_watchable(as_json=as_json, check=check)
    if check and (category or sort):
        raise click.UsageError("--check is about all categories together: leave out --category and --sort.")
    with desk_of(terminal, some_settings_in_force(terminal)) as desk:
        if check:
            return _check(terminal, desk, as_json=as_json)
        from dispatcher.app.documents.facts import read_status

        limits = desk.limits()
        terminal.warn(*limits.warnings)
        if watch:
            from dispatcher.cli.status.watch import watch_status

            def look() -> tuple[str, Status]:
                now = desk.limits()  # others may be in force by now
                return headline(desk, now), read_status(desk, now.policy).of(category, sort)

            watch_status(look)
            return DONE
        facts = read_status(desk, limits.policy).of(category, sort)
    if as_json:
        from dispatcher.app.documents.status import limits_document, status_document

        terminal.print_json({"limits": limits_document(desk.settings, limits), **status_document(facts)})
    else:
        from dispatcher.cli.status.view import tables

        terminal.say(headline(desk, limits))
        terminal.draw(*tables(facts))
    return DONE


def _refuse_unless_watchable(*, as_json: bool, check: bool) -> None:
    if as_json or check:
        raise click.UsageError("--watch draws a table again and again: leave out --json and --check.")
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in _CANNOT_REDRAW:
        raise click.UsageError(
            "--watch needs a terminal that can redraw, and stdout is none: leave it out to look once, "
            "or use --json for a program."
        )


def _check(terminal: Terminal, desk: Desk, *, as_json: bool) -> int:
    if not as_json:
        terminal.say(namespace_on(desk))
    if (refusal := desk.refusal()) is not None:
        terminal.warn(f"the server can only be read: {refusal.said}; to do: {refusal.remedy}")
    snapshot = desk.books.snapshot()
    imbalances = snapshot.imbalances()
    if as_json:
        terminal.print_json({"balanced": not imbalances, "imbalances": imbalances})
    elif imbalances:
        for imbalance in imbalances:
            terminal.print(f"the books do not balance: {imbalance}")
    else:
        terminal.print(balance(snapshot))
    return DOES_NOT_HOLD if imbalances else DONE


def balance(snapshot: Snapshot) -> str:
    """The books of a look in one line, for one that balances; what is 0 is left out."""
    counts = {**snapshot.overall(), "parked": snapshot.parked, "in flight": snapshot.in_flight}
    names = ("sent", "dropped", "digested", "dead", "duplicate", "parked", "in flight")
    parts = [f"{counts[name]} {name}" for name in names if counts[name]]
    return f"the books balance: {snapshot.received} received = {' + '.join(parts) or '0 sent'}"
