"""``dispatcher silence``: suppress what matches, by hand, for a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from dispatcher.cli.context import answer_needed, audited, desk_named, warn_if_unfamiliar
from dispatcher.cli.exits import DOES_NOT_HOLD, DONE, Ended
from dispatcher.cli.options import LENGTH_US, Parsed, as_json, operator, reason
from dispatcher.cli.terminal import Terminal
from dispatcher.core.typed_instants import read_start
from dispatcher.core.units import US

if TYPE_CHECKING:
    from dispatcher.app.operating import Desk
    from dispatcher.core.matchers import Matchers
    from dispatcher.core.typed_instants import When

_START: Final = Parsed("INSTANT", read_start)
_LIST: Final = "dispatcher silence list"
_EXPECTED: Final = "expected matchers such as host=db1 severity!=critical"


def _parsed(_ctx: click.Context, _argument: click.Parameter, value: tuple[str, ...]) -> Matchers:
    """The matchers; raises ``BadParameter``, also of those that match everything."""
    from dispatcher.core.matchers import parse_matchers

    if not value:
        raise click.BadParameter(_EXPECTED)
    try:
        return parse_matchers(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_matchers = click.argument("matchers", nargs=-1, callback=_parsed)


@click.group()
def silence() -> None:
    """Silences: what matches one is suppressed for a time, on all workers.

    A matcher is NAME=VALUE or NAME!=VALUE, where NAME is category, priority or a label. "|" separates several values.
    "*" matches any text. An event is silenced if all matchers match it; a label that it does not have is empty. Then
    it follows its category's on_limit, with the reason "silenced": it is dropped, kept as a dead letter, or waits
    until the silence ends. What was admitted before is posted, and a recovery of what was posted is shown.
    """


@silence.command()
@_matchers
@click.option("--for", "for_us", type=LENGTH_US, help="For how long: 2h.")
@click.option("--why", callback=reason, metavar="TEXT", help="The reason, for those who ask what became of an event.")
@click.option("--start", type=_START, help="From when on: 30m (from now), 2026-11-21T22:00. Else from now on.")
@click.option("--until-resolved", is_flag=True, help="End it once nothing that it suppressed is firing any more.")
@click.option("--end-if-idle", "idle_us", type=LENGTH_US, help="End it once nothing has matched for so long: 1h.")
@click.option("--no-report", is_flag=True, help="Post no line about what it has suppressed when it ends.")
@as_json
@click.pass_obj
def add(  # noqa: PLR0913 - click's signature: one for each option
    terminal: Terminal,
    /,
    *,
    matchers: Matchers,
    for_us: int | None,
    why: str | None,
    start: When | None,
    until_resolved: bool,
    idle_us: int | None,
    no_report: bool,
    as_json: bool,
) -> int:
    """Post nothing that matches for a time. Then posting resumes automatically.

    At its end one line says how much it has suppressed, in the channel where most of that would have gone.
    """
    if for_us is None:
        raise click.UsageError("A silence without an end: say --for how long, such as --for 2h.")
    if why is None:
        raise click.UsageError("A silence without a reason: say --why, in a few words.")
    from dispatcher.store.silences import TooManySilences, Wanted

    with desk_named(terminal, quiet=as_json) as desk:
        from_us = None if start is None else start(desk.decisions.now_us())
        if not as_json:
            _warn_if_in_vain(terminal, desk, matchers)
        wanted = Wanted(
            matchers, for_us, operator(), why, from_us, idle_us, until_resolved=until_resolved, reports=not no_report
        )
        try:
            with answer_needed("the silence was added", _LIST):
                begun = desk.silencing.begin(wanted)
        except TooManySilences as error:
            raise Ended(DOES_NOT_HOLD, str(error)) from error
        except ValueError as error:
            raise click.UsageError(f"'{matchers}' is no silence: {error}.") from error
        audited(desk, "silence add", about=f"{begun.id}: {matchers}", why=why)
    if as_json:
        from dispatcher.app.documents.silences import begun_document

        terminal.print_json(begun_document(begun, wanted))
        return DONE
    since = "" if from_us is None else f"from {_at(begun.from_us)} "
    terminal.print(f"silence {begun.id}: {matchers.in_words}; {since}until {_at(begun.until_us)}")
    return DONE


@silence.command(name="list", short_help="Show the silences.")
@as_json
@click.pass_obj
def list_(terminal: Terminal, *, as_json: bool) -> int:
    """Show the silences that are in force or begin later; the one that ends first comes first."""
    with desk_named(terminal, quiet=as_json) as desk:
        kept = desk.silencing.all()
    if as_json:
        from dispatcher.app.documents.silences import silences_document

        terminal.print_json(silences_document(kept))
        return DONE
    if not kept:
        terminal.say("there are no silences")
        return DONE
    from dispatcher.cli.silence_view import listing

    terminal.draw(listing(kept))
    return DONE


@silence.command()
@click.argument("id_", metavar="ID")
@as_json
@click.pass_obj
def show(terminal: Terminal, id_: str, *, as_json: bool) -> int:
    """Show everything about one silence.

    Exit 1 if there is none of this id.
    """
    with desk_named(terminal, quiet=as_json) as desk:
        kept = desk.silencing.get(id_)
    if kept is None:
        terminal.fail(_unknown(id_))
        return DOES_NOT_HOLD
    if as_json:
        from dispatcher.app.documents.silences import whole_document

        terminal.print_json(whole_document(kept))
        return DONE
    said = kept.silence
    ends = f"; it ends earlier {said.ends_in_words}" if said.ends_in_words else ""
    ends += "" if said.idle_end_us is None else f"; at {_at(said.idle_end_us)} if nothing more matches"
    firing = "" if kept.firing is None else f", {kept.firing} still firing"
    report = "" if said.reports else "No report is posted at its end."
    terminal.print(f"Silence {said.id} by {said.who}: {said.why}")
    terminal.print(f"Silenced is what matches: {said.matchers.in_words}.")
    terminal.print(f"From {_at(said.from_us)} until {_at(said.until_us)}{ends}.")
    terminal.print(" ".join(filter(None, (f"{kept.suppressed} suppressed{firing}.", report))))
    return DONE


@silence.command()
@click.argument("id_", metavar="ID")
@as_json
@click.pass_obj
def expire(terminal: Terminal, id_: str, *, as_json: bool) -> int:
    """End a silence before its time. Events that wait for this end continue.

    Exit 1 if there is none of this id.
    """
    with desk_named(terminal, quiet=as_json) as desk:
        with answer_needed("the silence has ended", _LIST):
            has_ended = desk.silencing.expire(id_)
        if has_ended:
            audited(desk, "silence expire", about=id_)
    if as_json:
        terminal.print_json({"id": id_, "expired": has_ended})
    elif has_ended:
        terminal.print(f"silence {id_} has ended")
    else:
        terminal.fail(_unknown(id_))
    return DONE if has_ended else DOES_NOT_HOLD


@silence.command()
@_matchers
@as_json
@click.pass_obj
def preview(terminal: Terminal, matchers: Matchers, *, as_json: bool) -> int:
    """Show how many of the newest ended events the matchers match.

    It reads the decision record: it keeps the newest events, as many as "decisions" of the limits file says.
    """
    from dispatcher.store.silences import preview as look

    with desk_named(terminal, quiet=as_json) as desk:
        seen = look(matchers, desk.decisions)
    if as_json:
        from dispatcher.app.documents.silences import preview_document

        terminal.print_json(preview_document(seen))
        return DONE
    since = "" if seen.since_us is None else f" since {_at(seen.since_us)}"
    priorities = ", ".join(f"{count} {priority}" for priority, count in seen.priorities.items())
    terminal.print(f"{matchers.in_words}: {seen.matched} of {seen.of} events{since}{priorities and f' ({priorities})'}")
    return DONE


def _warn_if_in_vain(terminal: Terminal, desk: Desk, matchers: Matchers) -> None:
    """Warn of matchers that can never match, and of categories that nobody knows."""
    from dispatcher.core.silences import named_categories

    if matchers.matches_nothing:
        terminal.warn(f"{matchers} can never match, since its matchers contradict each other")
        return
    for category in named_categories(matchers):
        if "*" not in category:
            warn_if_unfamiliar(terminal, desk, category)


def _at(at_us: int) -> str:
    from dispatcher.app.documents.instants import in_full

    return in_full(at_us / US)


def _unknown(id_: str) -> str:
    return f"there is no silence {id_!r}: 'dispatcher silence list' shows those that there are"
