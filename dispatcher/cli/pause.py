"""``dispatcher pause`` and ``resume``: stop posting by hand, everything waits."""

from __future__ import annotations

import click

from dispatcher.cli.context import answer_needed, audited, desk_named
from dispatcher.cli.exits import DOES_NOT_HOLD, DONE
from dispatcher.cli.options import CATEGORY_NAME, as_json, operator, reason
from dispatcher.cli.terminal import Terminal
from dispatcher.core.limits import EVERYTHING


@click.command()
@click.argument("category", type=CATEGORY_NAME, required=False)
@click.option("--why", callback=reason, metavar="TEXT", help="The reason, for those who look at status.")
@as_json
@click.pass_obj
def pause(terminal: Terminal, category: str | None, *, why: str | None, as_json: bool) -> int:
    """Post nothing, or nothing of one CATEGORY, until "dispatcher resume".

    Events are taken and decided as ever: what the limits admit waits with its slot, in order, up to its max_age. Posts
    that are in flight end.
    """
    with desk_named(terminal, category, quiet=as_json) as desk:
        with answer_needed(f"{category or 'posting'} is paused", "dispatcher status"):
            is_new = desk.pausing.pause(category or EVERYTHING, operator(), why or "")
        if is_new:
            audited(desk, "pause", about=category or EVERYTHING, why=why or "")
    if as_json:
        terminal.print_json({"category": category, "paused": True, "was_paused": not is_new})
    elif is_new:
        terminal.print(f"{category or 'posting'} is paused")
    else:
        terminal.tell(f"{category or 'posting'} was already paused{_unchanged(category) if why else ''}")
    return DONE


@click.command()
@click.argument("category", type=CATEGORY_NAME, required=False)
@as_json
@click.pass_obj
def resume(terminal: Terminal, category: str | None, *, as_json: bool) -> int:
    """Resume posting, or resume one CATEGORY that was paused separately.

    Where Slack had refused everything, the next event tries at once whether it works again. Exit 1 if nothing was
    paused.
    """
    with desk_named(terminal, category, quiet=as_json) as desk:
        with answer_needed(f"{category or 'posting'} goes on", "dispatcher status"):
            was_paused = desk.pausing.resume(category or EVERYTHING)
        if was_paused:
            audited(desk, "resume", about=category or EVERYTHING)
    if as_json:
        terminal.print_json({"category": category, "paused": False, "was_paused": was_paused})
    elif was_paused:
        terminal.print(f"{category or 'posting'} goes on")
    else:
        terminal.fail(f"{category or 'posting'} is not paused")
    return DONE if was_paused else DOES_NOT_HOLD


def _unchanged(category: str | None) -> str:
    """What became of the reason for a pause that there was already: it was not recorded."""
    about = f" {category}" if category else ""
    return (
        "; --why did not change its reason: "
        f"to change it, run 'dispatcher resume{about}', then 'dispatcher pause{about}' with --why"
    )
