"""``dispatcher explain``: what happened to one event, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli.context import namespace_named
from dispatcher.cli.exits import DOES_NOT_HOLD, DONE
from dispatcher.cli.terminal import Terminal

if TYPE_CHECKING:
    from dispatcher.core.explain import Explanation


@click.command()
@click.argument("id_", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def explain(terminal: Terminal, id_: str, *, as_json: bool) -> int:
    """Say in one sentence what happened to an event, or where it is now.

    The ID is the one the producer chose, the one that "send" printed, or that of the RQ job. Exit 1 if nothing is known
    of it: it was never handed over, or what became of it is no longer kept.
    """
    from dispatcher.app.readers import open_explanations
    from dispatcher.core.explain import State

    with namespace_named(terminal, quiet=as_json) as (settings, server):
        explanation = open_explanations(settings, server).explain(id_)
    if as_json:
        terminal.print_json(document(explanation))
    else:
        terminal.tell(explanation.sentence)
    return DOES_NOT_HOLD if explanation.state is State.UNKNOWN else DONE


def document(explanation: Explanation) -> dict[str, Any]:
    """An explanation as JSON has it: every field, null where nothing is known; instants are seconds since 1970."""
    from dataclasses import asdict

    return {**asdict(explanation), "state": explanation.state.value}
