"""``dispatcher audit``: what operators did."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.cli.context import namespace_named
from dispatcher.cli.exits import DONE
from dispatcher.cli.options import AT_LEAST_ONE, as_json
from dispatcher.cli.terminal import Terminal

if TYPE_CHECKING:
    from dispatcher.cli.drawing import Table

SHOWN: Final = 50
"""Actions in a list, unless more are asked for."""

_LONGEST: Final = 1_500
"""Characters of what an action was about, or why it was done."""

_LEAST: Final = 14
"""Columns for each of these, where a terminal has so many."""


@click.command()
@click.option("--limit", type=AT_LEAST_ONE, metavar="N", default=SHOWN, show_default=True, help="At most N.")
@as_json
@click.pass_obj
def audit(terminal: Terminal, *, limit: int, as_json: bool) -> int:
    """Show what operators did with commands, over HTTP and on the page, the newest first.

    The newest 1,000 actions are kept.
    """
    from dispatcher.app.readers import open_audit

    with namespace_named(terminal, quiet=as_json) as (settings, server):
        actions = open_audit(settings, server).newest(limit + 1)
    more, actions = len(actions) > limit, actions[:limit]
    if as_json:
        terminal.print_json({"audit": actions})
        return DONE
    if not actions:
        terminal.say("no operator has done anything yet")
        return DONE
    terminal.draw(_table(actions))
    if more:
        terminal.say(f"there are more than these {limit}: --limit N shows N")
    return DONE


def _table(actions: Sequence[dict[str, Any]]) -> Table:
    from dispatcher.app.documents.instants import short, zone
    from dispatcher.cli.drawing import OneLine, Table
    from dispatcher.core.rendering import one_line

    table, has_counts = Table(), any(each["count"] is not None for each in actions)
    table.add_column(OneLine(f"When ({zone(time.time())})"), breaks=False)
    table.add_column("Who", folds=True)
    table.add_column("What", breaks=False)
    table.add_column("About", folds=True, least=_LEAST)
    if has_counts:
        table.add_column("Events", is_right=True, breaks=False)
    table.add_column("Why", least=_LEAST)
    table.add_column("From", breaks=False)
    for each in actions:
        about, why = one_line(each["about"], _LONGEST), one_line(each["why"], _LONGEST)
        count = "" if each["count"] is None else str(each["count"])
        what, whence = OneLine(one_line(each["what"])), OneLine(one_line(each["whence"]))
        counted = [count] if has_counts else []
        table.add_row(OneLine(short(each["at"])), one_line(each["who"]), what, about, *counted, why, whence)
    return table
