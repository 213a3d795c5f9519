"""``dispatcher parked``: look at what waits, and end what is not wanted any more."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.cli.context import (
    audited,
    desk_of,
    headline,
    settings_in_force,
    some_settings_in_force,
    warn_if_unfamiliar,
)
from dispatcher.cli.exits import DOES_NOT_HOLD, DONE, INTERRUPTED, UNREACHABLE, USAGE, Ended
from dispatcher.cli.interruption import Interruption
from dispatcher.cli.options import (
    AT_LEAST_ONE,
    EVENT_ID,
    SPAN_US,
    Selection,
    as_json,
    at_most,
    for_reason,
    of_category,
    operator,
    together,
    with_words,
)
from dispatcher.cli.terminal import Terminal
from dispatcher.core.states import WAITING
from dispatcher.errors import GateUnavailable

if TYPE_CHECKING:
    from dispatcher.app.operating import Desk
    from dispatcher.logs.event_log import EventLog
    from dispatcher.settings.environment import Settings
    from dispatcher.settings.plain import AnySettings
    from dispatcher.store.parked_events import ParkedEvent, ParkedEvents, ParkedFilter

_UNSAID: Final = (
    "Which parked events? Give their ids, or --category, --reason, --channel, --older-than or --text, or --all."
)

_filters = together(
    of_category,
    for_reason(WAITING),
    click.option("--channel", metavar="NAME", help="Only for this channel."),
    click.option("--older-than", type=SPAN_US, help="Only those first seen so long ago: 2h."),
    with_words,
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The events that are meant, the ids that are not parked, and in words which events they are."""

    events: list[ParkedEvent]
    missing: list[str]
    about: str


@dataclass(slots=True)
class _Done:
    cancelled: int = 0
    left: int = 0

    def __str__(self) -> str:
        left = f", {self.left} no longer parked" if self.left else ""
        return f"{self.cancelled} cancelled{left}"


@click.group()
def parked() -> None:
    """Parked events: what waits for room in a limit, for its channel, or for another attempt.

    An ID is the one the producer chose, or the one on the queue.
    """


@parked.command(name="list", short_help="Show what waits, and for what.")
@_filters
@at_most
@as_json
@click.pass_obj
def list_(terminal: Terminal, /, *, limit: int, as_json: bool, **filters: Any) -> int:  # noqa: ANN401 - a filter's
    """Show what waits, and for what; the one that expires first comes first."""
    from itertools import islice

    settings = some_settings_in_force(terminal)
    with _open(terminal, settings, filters["category"], quiet=as_json) as (events, _):
        found = list(islice(events.find(_filter(events, **filters)), limit + 1))
        total = events.count()
    more, found = len(found) > limit, found[:limit]
    if as_json:
        from dispatcher.app.documents.events import parked_events_document

        terminal.print_json(parked_events_document(found, total, more=more))
        return DONE
    if not found:
        terminal.say("no parked event matches" if total else "nothing is parked")
        return DONE
    from dispatcher.cli.parked_view import listing

    terminal.draw(listing(found))
    if more:
        terminal.say(f"there are more than these {limit}: --limit N shows N, {total} are parked in all")
    return DONE


@parked.command()
@click.argument("id_", type=EVENT_ID, metavar="ID")
@as_json
@click.pass_obj
def show(terminal: Terminal, id_: str, *, as_json: bool) -> int:
    """Show everything about one parked event.

    If the event is not parked, say where it is, and exit with 1.
    """
    with _open(terminal, some_settings_in_force(terminal), quiet=as_json) as (events, _):
        found, _ = find_ids(terminal, events, (id_,))
    if not found:
        return DOES_NOT_HOLD
    if as_json:
        from dispatcher.app.documents.events import parked_document

        event = found[0].event
        terminal.print_json({**parked_document(found[0]), "event": event and event.to_payload()})
        return DONE
    from dispatcher.cli.parked_view import details, payload_text

    terminal.draw(details(found[0]))
    terminal.print(payload_text(found[0]))
    return DONE


@parked.command(short_help="End parked events without a post.")
@click.argument("ids", type=EVENT_ID, nargs=-1)
@_filters
@click.option(
    "--all", "everything", is_flag=True, help="Select all. Without ids, filters or --all the command does nothing."
)
@click.option("--limit", type=AT_LEAST_ONE, metavar="N", help="At most N, those that expire first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@click.pass_obj
def cancel(  # noqa: PLR0913 - click's signature: one for each option
    terminal: Terminal,
    /,
    *,
    ids: tuple[str, ...],
    everything: bool,
    limit: int | None,
    yes: bool,
    as_json: bool,
    **filters: Any,  # noqa: ANN401 - a filter's
) -> int:
    """End parked events without a post: they are dropped, and their slots are free for others.

    Asks first. Where nobody can be asked, since this is no terminal, --yes is needed: without it the command says how
    many it would cancel, and exits 2. It can be interrupted at any time: what is not cancelled stays parked. Exit 1 if
    one of the IDS is not parked.
    """
    from itertools import islice

    from dispatcher.app.documents.acted import ids_in_words, parked_in_words

    selection = Selection(ids, everything, limit, filters).checked(_UNSAID)
    settings = settings_in_force(terminal)
    with _open(terminal, settings, filters["category"], quiet=as_json) as (events, desk):
        if selection.ids:
            found, missing = find_ids(terminal, events, selection.ids)
            about = ids_in_words([id_ for id_ in dict.fromkeys(selection.ids) if id_ not in missing])
            chosen = Chosen(found, missing, about)
        else:
            wanted = _filter(events, **filters)
            found = list(map(light, islice(events.find(wanted), selection.limit)))
            chosen = Chosen(found, [], parked_in_words(wanted, selection.limit))
        done = _cancel_all(terminal, events, chosen, settings, desk, yes=yes, as_json=as_json)
    is_whole = not done.left and not chosen.missing
    return DOES_NOT_HOLD if selection.ids and not is_whole else DONE


def light(parked_event: ParkedEvent) -> ParkedEvent:
    """Without its payload and what is told of it: as light as a million of them must be."""
    from dataclasses import replace

    told = replace(parked_event.explanation, text=None, labels=None, sentence="")
    return replace(parked_event, explanation=told, event=None, leased=None)


def find_ids(terminal: Terminal, events: ParkedEvents, ids: tuple[str, ...]) -> tuple[list[ParkedEvent], list[str]]:
    """The events of the ids that are parked, each once, and the other ids. Tells where each of the others is."""
    found: dict[str, ParkedEvent] = {}
    missing = []
    for id_ in ids:
        told = events.explain(id_)
        rows = events.by_ids([told.job_id]) if told.state == "parked" else []
        found |= {row.id: row for row in rows}
        if not rows:
            missing.append(id_)
            terminal.fail(f"{id_!r} is not parked: {told.sentence}")
    return list(found.values()), missing


@contextmanager
def _open(
    terminal: Terminal, settings: AnySettings, category: str | None = None, *, quiet: bool
) -> Iterator[tuple[ParkedEvents, Desk]]:
    with desk_of(terminal, settings) as desk:
        limits = desk.limits()
        terminal.warn(*limits.warnings)
        if not quiet:
            terminal.say(headline(desk, limits))
            warn_if_unfamiliar(terminal, desk, category, limits.policy)
        yield desk.parked(limits.policy), desk


def _filter(  # noqa: PLR0913, PLR0917 - one for each option
    events: ParkedEvents,
    category: str | None = None,
    reason: str | None = None,
    channel: str | None = None,
    older_than: int | None = None,
    words: tuple[str, ...] | None = None,
) -> ParkedFilter:
    from dispatcher.store.parked_events import ParkedFilter

    seen_before_us = None if older_than is None else events.now_us() - older_than
    return ParkedFilter(category, reason, channel, seen_before_us, words or ())


def _cancel_all(  # noqa: PLR0913 - what a command has found, and how it was asked
    terminal: Terminal,
    events: ParkedEvents,
    chosen: Chosen,
    settings: Settings,
    desk: Desk,
    *,
    yes: bool,
    as_json: bool,
) -> _Done:
    """Cancel them once that is agreed to, with a log line for each, and say how many.

    An interruption waits for the page that is under way. Raises ``Ended`` where it is not agreed to, or not finished.
    """
    from dispatcher.logs.event_log import build_event_log

    found = chosen.events
    if found and not yes:
        _agree(terminal, found, as_json=as_json)
    log = build_event_log(
        level=settings.log_level, style=settings.log_format, text=settings.log_text, secrets=settings.secrets()
    )
    done = _Done()
    with Interruption() as interruption:
        try:
            for ids in _pages([each.id for each in found]):
                with interruption.held_back():
                    cancelled = _cancel(events, ids, log)
                    done.cancelled += cancelled
                    done.left += len(ids) - cancelled
        except KeyboardInterrupt:
            raise Ended(
                INTERRUPTED, f"interrupted: {done}; what is not cancelled stays parked; run it again for the rest"
            ) from None
        except GateUnavailable as error:
            left = "whether the next ones were is not known: 'dispatcher parked list' shows what still waits"
            raise Ended(UNREACHABLE, f"{error}: {done}; {left}") from error
        finally:
            if done.cancelled:
                audited(desk, "parked cancel", about=chosen.about, count=done.cancelled)
    if as_json:
        missing = {"not_parked": chosen.missing}
        terminal.print_json({"cancelled": done.cancelled, "no_longer_parked": done.left, **missing})
    else:
        terminal.print(str(done))
    return done


def _cancel(events: ParkedEvents, ids: Sequence[str], log: EventLog) -> int:
    from dispatcher.store.parked_events import Cancelled

    results = events.cancel(events.by_ids(ids), operator())
    done = [settlement for result, settlement in results if result is Cancelled.DONE]
    log.settled(done)
    return len(done)


def _pages(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    from dispatcher.store.parked_events import PAGE

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
