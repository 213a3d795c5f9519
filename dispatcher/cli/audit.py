"""``dispatcher audit``: what operators did."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.cli.context import desk_named
from dispatcher.cli.exits import DONE
from dispatcher.cli.options import as_json, at_most
from dispatcher.cli.terminal import Terminal

if TYPE_CHECKING:
    from dispatcher.cli.drawing import Fitting, Table

_LONGEST: Final = 1_500
"""Characters of what an action was about, or why it was done."""

_LEAST: Final = 18
"""Columns for each of these, where a terminal has so many."""


@click.command()
@at_most
@as_json
@click.pass_obj
def audit(terminal: Terminal, *, limit: int, as_json: bool) -> int:
    """Show what operators did with commands, over HTTP and on the page, the newest first.

    The newest 1,000 actions are kept.
    """
    with desk_named(terminal, quiet=as_json) as desk:
        trail = desk.audit.newest()
    more, actions = len(trail) > limit, trail[:limit]
    if as_json:
        terminal.print_json({"audit": actions, "more": more})
        return DONE
    if not actions:
        terminal.say("no operator has done anything yet")
        return DONE
    silences = {each["about"].partition(": ")[0]: each["about"] for each in trail if each["what"] == "silence add"}
    terminal.draw(_listing(actions, silences))
    if more:
        terminal.say(f"there are more than these {limit}: --limit N shows N")
    return DONE


def _listing(actions: Sequence[dict[str, Any]], silences: Mapping[str, str]) -> Fitting:
    """Each in one line, or in a few below each other where there is little room."""
    from dispatcher.cli.drawing import Fitting

    whole = partial(_in_lines, actions, silences)
    return Fitting(whole, whole, partial(_in_blocks, actions, silences))


def _in_lines(actions: Sequence[dict[str, Any]], silences: Mapping[str, str]) -> Table:
    from dispatcher.app.documents.instants import short
    from dispatcher.cli.drawing import OneLine, Table
    from dispatcher.core.rendering import one_line

    table, has_counts = Table(), any(each["count"] is not None for each in actions)
    table.add_column(OneLine(_when()), breaks=False)
    table.add_column("Who", folds=True)
    table.add_column("What", breaks=False)
    table.add_column("About", folds=True, least=_LEAST)
    if has_counts:
        table.add_column("Events", is_right=True, breaks=False)
    table.add_column("Why", folds=True, least=_LEAST)
    table.add_column("From", breaks=False)
    for each in actions:
        count = "" if each["count"] is None else str(each["count"])
        what, whence = OneLine(one_line(each["what"])), OneLine(one_line(each["whence"]))
        counted, why = [count] if has_counts else [], one_line(each["why"], _LONGEST)
        who, about = one_line(each["who"]), _about(each, silences)
        table.add_row(OneLine(short(each["at"])), who, what, about, *counted, why, whence)
    return table


def _in_blocks(actions: Sequence[dict[str, Any]], silences: Mapping[str, str]) -> Table:
    from dispatcher.app.documents.instants import short
    from dispatcher.cli.drawing import Group, Table, Text, joined
    from dispatcher.core.rendering import one_line

    table = Table()
    table.add_column(_when(), breaks=False)
    table.add_column("What, about what, why, who, from where", folds=True)
    for each in actions:
        count, about, why = each["count"], _about(each, silences), one_line(each["why"], _LONGEST)
        counted = "" if count is None else f"{count} {'event' if count == 1 else 'events'}"
        what = [Text(one_line(each["what"]), "bold"), *(Text(said) for said in (about, counted) if said)]
        by = Text(f"{one_line(each['who'])}, {one_line(each['whence'])}", "dim")
        table.add_row(short(each["at"]), Group(joined("  ", what), *([Text(why)] if why else []), by))
    return table


def _when() -> str:
    from dispatcher.app.documents.instants import zone

    return f"When ({zone(time.time())})"


def _about(action: Mapping[str, Any], silences: Mapping[str, str]) -> str:
    """What it was about; of a silence that was ended also what was silenced, if the trail still tells."""
    from dispatcher.core.rendering import one_line

    about: str = action["about"]
    said = silences.get(about, about) if action["what"] == "silence expire" else about
    return one_line(said, _LONGEST)
