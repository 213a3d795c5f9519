"""``dispatcher mute`` and ``unmute``: suppress a category by hand, for a time."""

from __future__ import annotations

import time
from typing import Final

import click

from dispatcher.cli.context import answer_needed, audited, desk_named
from dispatcher.cli.exits import DOES_NOT_HOLD, DONE, Ended
from dispatcher.cli.options import CATEGORY_NAME, LENGTH_US, as_json, operator, reason
from dispatcher.cli.terminal import Terminal

_LIST: Final = "dispatcher silence list"


@click.command()
@click.argument("category", type=CATEGORY_NAME)
@click.option("--for", "for_us", type=LENGTH_US, help="For how long: 2h.")
@click.option("--why", callback=reason, metavar="TEXT", help="The reason, for those who ask what became of an event.")
@as_json
@click.pass_obj
def mute(terminal: Terminal, category: str, *, for_us: int | None, why: str | None, as_json: bool) -> int:
    """Post nothing of a category for a time. Then posting resumes automatically.

    It is the short form of a silence with the matcher category=CATEGORY: see "dispatcher silence". Its events follow
    the category's on_limit, with the reason "silenced": they are dropped, kept as dead letters, or wait until the mute
    ends. What was admitted before is posted. Muting a category again replaces its mute.
    """
    if for_us is None:
        raise click.UsageError("A mute without an end: say --for how long, such as --for 2h.")
    if why is None:
        raise click.UsageError("A mute without a reason: say --why, in a few words.")
    from dispatcher.store.silences import TooManySilences

    with desk_named(terminal, category, quiet=as_json) as desk:
        try:
            with answer_needed(f"{category} is muted", _LIST):
                until_us = desk.silencing.mute(category, for_us, operator(), why)
        except TooManySilences as error:
            raise Ended(DOES_NOT_HOLD, str(error)) from error
        except ValueError as error:
            raise click.UsageError(f"{category} cannot be muted so: {error}.") from error
        audited(desk, "mute", about=category, why=why)
    from dispatcher.app.documents.instants import zone
    from dispatcher.core.explain import clock_of
    from dispatcher.core.units import US

    if as_json:
        terminal.print_json({"category": category, "until": until_us / US, "who": operator(), "why": why})
    else:
        until = clock_of(time.time_ns() // 1_000)(until_us)
        terminal.print(f"{category} is muted until {until} {zone(until_us / US)}")
    return DONE


@click.command()
@click.argument("category", type=CATEGORY_NAME)
@as_json
@click.pass_obj
def unmute(terminal: Terminal, category: str, *, as_json: bool) -> int:
    """End the mute of a category before its time. Events that wait for this end continue.

    Exit 1 if the category is not muted.
    """
    with desk_named(terminal, category, quiet=as_json) as desk:
        with answer_needed(f"{category} is no longer muted", _LIST):
            was_muted = desk.silencing.unmute(category)
        if was_muted:
            audited(desk, "unmute", about=category)
    if as_json:
        terminal.print_json({"category": category, "was_muted": was_muted})
    elif was_muted:
        terminal.print(f"{category} is no longer muted")
    else:
        terminal.fail(f"{category} is not muted")
    return DONE if was_muted else DOES_NOT_HOLD
