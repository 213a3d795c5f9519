"""``dispatcher explain``: what happened to one event, in one sentence."""

from __future__ import annotations

from typing import Final

import click

from dispatcher.cli.context import desk_named
from dispatcher.cli.exits import DOES_NOT_HOLD, DONE
from dispatcher.cli.options import EVENT_ID, as_json
from dispatcher.cli.terminal import Terminal
from dispatcher.core.rendering import one_line

CUT: Final = "…"
"""What a log line for people has after the beginning of a generated id."""

_LONGEST_TEXT: Final = 200


@click.command()
@click.argument("id_", type=EVENT_ID, metavar="ID")
@as_json
@click.pass_obj
def explain(terminal: Terminal, id_: str, *, as_json: bool) -> int:
    """Say in one sentence what happened to an event, or where it is now.

    The ID is the one the producer chose, the one that "send" printed, or that of the RQ job. Of an id on the queue its
    beginning is enough, from 4 characters on, if no other id begins so. Exit 1 if nothing is known of it: it was never
    handed over, or what became of it is no longer kept.
    """
    from dispatcher.core.explain import State

    asked = id_.removesuffix(CUT) or id_
    with desk_named(terminal, quiet=as_json) as desk:
        explanation = desk.explanations.explain_beginning(asked)
    if as_json:
        from dispatcher.app.documents.events import explained_document

        terminal.print_json(explained_document(explanation))
    else:
        if explanation.id.startswith(asked) and explanation.id != asked:
            terminal.say(f"id {explanation.id}")
        if explanation.text:
            terminal.say(f"text {one_line(explanation.text, _LONGEST_TEXT)}")
        terminal.tell(explanation.sentence)
    return DOES_NOT_HOLD if explanation.state is State.UNKNOWN else DONE
