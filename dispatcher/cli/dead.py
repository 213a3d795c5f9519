"""``dispatcher dead``: look at the dead letters, send them through the limits again, remove them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from dispatcher.cli.exits import DOES_NOT_HOLD, DONE
from dispatcher.cli.looking import namespace_named
from dispatcher.cli.options import Span
from dispatcher.cli.terminal import Terminal
from dispatcher.outcome import DEADLY

if TYPE_CHECKING:
    from dispatcher.store.dead_letters import DeadLetter, DeadLetters, Filter

_Function = TypeVar("_Function", bound=Callable[..., Any])

SHOWN: Final = 50
"""Letters in a list, unless more are asked for."""


_FILTERS: Final = (
    click.option("--category", metavar="NAME", help='Only of this category; "-" is what could not be read.'),
    click.option(
        "--reason",
        type=click.Choice([reason.value for reason in DEADLY]),
        metavar="REASON",
        help=f"Only for this reason: {', '.join(DEADLY)}.",
    ),
    click.option("--since", type=Span(), help="Only those that died since then: 2h is the last two hours."),
)
_SELECTION: Final = (
    click.argument("ids", nargs=-1),
    *_FILTERS,
    click.option("--all", "everything", is_flag=True, help="All; without ids, filters or this nothing is done."),
    click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N, the oldest."),
)
_AS_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def _with(options: tuple[Callable[[_Function], _Function], ...]) -> Callable[[_Function], _Function]:
    def decorate(function: _Function) -> _Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters a command is told to act on: some by id, those of a filter, or all."""

    ids: tuple[str, ...]
    everything: bool
    category: str | None
    reason: str | None
    since: int | None
    limit: int | None

    def __post_init__(self) -> None:
        given = [bool(self.ids), self.everything, (self.category, self.reason, self.since) != (None, None, None)]
        if not any(given):
            raise click.UsageError("Which dead letters? Give their ids, or --category, --reason or --since, or --all.")
        if sum(given) > 1 or (self.ids and self.limit):
            raise click.UsageError("Give either ids, or filters, or --all, not several of these.")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The letters that are meant, the oldest first, ids of which there is none, and how many where that is known."""

    letters: Iterator[DeadLetter]
    unknown: list[str]
    total: int | None


@click.group(short_help="Look at dead letters, replay or remove them.")
def dead() -> None:
    """Dead letters: events kept for you, each with its reason.

    An ID is the one the producer chose, or the one on the queue.
    """


@dead.command(name="list")
@_with(_FILTERS)
@click.option("--limit", type=click.IntRange(1), metavar="N", default=SHOWN, show_default=True, help="At most N.")
@_AS_JSON
@click.pass_obj
def list_(terminal: Terminal, /, *, limit: int, as_json: bool, **filters: Any) -> int:  # noqa: ANN401 - a Filter's
    """Show the dead letters, the newest first."""
    from itertools import islice

    with _open(terminal, quiet=as_json) as letters:
        wanted = _filter(letters, **filters)
        found = list(islice(letters.find(wanted, newest_first=True), limit + 1))
        kept = letters.count()
    more, found = len(found) > limit, found[:limit]
    if as_json:
        terminal.print_json({"dead_letters": [document(letter) for letter in found], "more": more, "kept": kept})
        return DONE
    if not found:
        terminal.say("no dead letter matches" if kept else "there are no dead letters")
        return DONE
    from dispatcher.cli.dead_view import listing

    terminal.draw(listing(found))
    if more:
        all_kept = f"{kept} are kept in all" if wanted == _filter(letters) else f"of all kinds {kept} are kept"
        terminal.say(f"there are more than these {limit}: --limit N shows N, {all_kept}")
    return DONE


@dead.command()
@click.argument("id_", metavar="ID")
@_AS_JSON
@click.pass_obj
def show(terminal: Terminal, id_: str, *, as_json: bool) -> int:
    """Show everything about one dead letter.

    Exit 1 if there is none of this id.
    """
    with _open(terminal, quiet=as_json) as letters:
        letter = _find(letters, id_)
    if letter is None:
        _say_unknown(terminal, [id_])
        return DOES_NOT_HOLD
    if as_json:
        terminal.print_json({**document(letter), **payload_document(letter)})
        return DONE
    from dispatcher.cli.dead_view import details, payload_text

    terminal.draw(details(letter))
    if letter.payload:
        terminal.print(payload_text(letter))
    return DONE


@dead.command()
@_with(_SELECTION)
@click.option("--dry-run", is_flag=True, help="Only say what would be replayed.")
@_AS_JSON
@click.pass_obj
def replay(terminal: Terminal, /, *, dry_run: bool, as_json: bool, **choice: Any) -> int:  # noqa: ANN401 - a Selection's
    """Send dead letters through the limits again, the oldest first.

    One that a limit denies becomes a dead letter again, whatever its category's on_limit says. It can be interrupted
    at any time and run again: none is lost, none goes twice. Letters without a payload are skipped, and those whose id
    is on the queue already. Exit 1 if one of the IDS could not be replayed.
    """
    from dispatcher.cli.replaying import preview, replay_letters

    selection = Selection(**choice)
    with _open(terminal, quiet=as_json) as letters:
        chosen = _choose(letters, selection)
        if dry_run:
            is_whole = preview(terminal, chosen, as_json=as_json)
        else:
            is_whole = replay_letters(terminal, letters, chosen, as_json=as_json)
    _say_unknown(terminal, chosen.unknown)
    return DOES_NOT_HOLD if selection.ids and not is_whole else DONE


@dead.command()
@_with(_SELECTION)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_AS_JSON
@click.pass_obj
def purge(terminal: Terminal, /, *, yes: bool, as_json: bool, **choice: Any) -> int:  # noqa: ANN401 - a Selection's
    """Remove dead letters for good.

    Asks first. Where nobody can be asked, since this is no terminal, --yes is needed: without it the command says how
    many it would remove, and exits 2. The totals go on counting what was removed. Exit 1 if one of the IDS is unknown.
    """
    from dispatcher.cli.replaying import purge_letters

    selection = Selection(**choice)
    with _open(terminal, quiet=as_json) as letters:
        chosen = _choose(letters, selection)
        purge_letters(terminal, letters, chosen, yes=yes, as_json=as_json)
    _say_unknown(terminal, chosen.unknown)
    return DOES_NOT_HOLD if chosen.unknown else DONE


def document(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as JSON has it, but its payload; instants are seconds since 1970."""
    import time

    from dispatcher.explaining import clock_of, ended
    from dispatcher.model import US

    return {
        "id": letter.name,
        "job_id": letter.id,
        "at": letter.at_us / US,
        "category": letter.category,
        "reason": letter.reason,
        "code": letter.code,
        "detail": letter.detail,
        "sentence": ended(letter.decision(), clock_of(time.time_ns() // 1_000)),
        "scope": letter.scope,
        "limit": letter.limit,
        "fits_at": letter.fits_at_us and letter.fits_at_us / US,
        "attempts": letter.attempts,
        "replays": letter.replays,
        "first_seen": letter.seen_us and letter.seen_us / US,
        "payload_bytes": len(letter.payload),
    }


def payload_document(letter: DeadLetter) -> dict[str, Any]:
    """The event as an object, None where the payload is none, and the payload as it lay on the queue."""
    from base64 import b64encode

    event = letter.event()
    try:
        payload, encoding = letter.payload.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        payload, encoding = b64encode(letter.payload).decode("ascii"), "base64"
    return {"event": event and event.to_payload(), "payload": payload, "payload_encoding": encoding}


@contextmanager
def _open(terminal: Terminal, *, quiet: bool) -> Iterator[DeadLetters]:
    from dispatcher.app import open_dead_letters

    with namespace_named(terminal, quiet=quiet) as (settings, server):
        yield open_dead_letters(settings, server)


def _filter(
    letters: DeadLetters, category: str | None = None, reason: str | None = None, since: int | None = None
) -> Filter:
    from dispatcher.store.dead_letters import Filter

    return Filter(category, reason, None if since is None else letters.ago(since))


def _choose(letters: DeadLetters, selection: Selection) -> Chosen:
    from itertools import islice

    if not selection.ids:
        wanted = _filter(letters, selection.category, selection.reason, selection.since)
        total = letters.count() if selection.everything and selection.limit is None else None
        return Chosen(islice(letters.find(wanted), selection.limit), [], total)
    found = {id_: _find(letters, id_) for id_ in selection.ids}
    distinct = {letter.entry: letter for letter in found.values() if letter is not None}
    in_order = sorted(distinct.values(), key=lambda letter: (letter.at_us, letter.entry))
    return Chosen(iter(in_order), [id_ for id_, letter in found.items() if letter is None], len(in_order))


def _find(letters: DeadLetters, id_: str) -> DeadLetter | None:
    from dispatcher.store.explanations import ids_of

    return next((letter for name in ids_of(id_) if (letter := letters.get(name)) is not None), None)


def _say_unknown(terminal: Terminal, ids: list[str]) -> None:
    for id_ in ids:
        terminal.fail(f"there is no dead letter of the id {id_!r}")
