"""``dispatcher dead``: look at the dead letters, send them through the limits again, remove them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from dispatcher.cli.context import namespace_named, warn_if_unfamiliar
from dispatcher.cli.exits import DOES_NOT_HOLD, DONE, INTERRUPTED, UNREACHABLE, USAGE, Ended
from dispatcher.cli.interruption import Interruption
from dispatcher.cli.options import SPAN_US
from dispatcher.cli.progress import no_progress, shown_progress
from dispatcher.cli.terminal import Terminal
from dispatcher.core.outcomes import DEADLY
from dispatcher.errors import GateUnavailable

if TYPE_CHECKING:
    from dispatcher.store.dead_letters import DeadLetter, DeadLetters, Filter, Replayed

_Function = TypeVar("_Function", bound=Callable[..., Any])

SHOWN: Final = 50
"""Letters in a list, unless more are asked for."""

_CHUNK: Final = 200
"""Letters in one step on the server."""


_FILTERS: Final = (
    click.option("--category", metavar="NAME", help='Only of this category; "-" is what could not be read.'),
    click.option(
        "--reason",
        type=click.Choice([reason.value for reason in DEADLY]),
        metavar="REASON",
        help=f"Only for this reason: {', '.join(DEADLY)}.",
    ),
    click.option("--since", type=SPAN_US, help="Only those that died since then: 2h is the last two hours."),
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


@dataclass(slots=True)
class _Tally:
    """What became of the letters so far."""

    replayed: int = 0
    no_payload: int = 0
    waiting: int = 0
    gone: int = 0

    def add(self, results: Sequence[Replayed]) -> None:
        from dispatcher.store.dead_letters import Replayed

        self.replayed += results.count(Replayed.DONE)
        self.no_payload += results.count(Replayed.EMPTY)
        self.waiting += results.count(Replayed.WAITING)
        self.gone += results.count(Replayed.GONE)

    @property
    def skipped(self) -> int:
        return self.no_payload + self.waiting

    def as_json(self, unknown: Sequence[str], *, dry_run: bool) -> dict[str, Any]:
        return {
            "dry_run": dry_run,
            "replayed": self.replayed,
            "skipped": {"no_payload": self.no_payload, "waiting": self.waiting},
            "gone": self.gone,
            "unknown": list(unknown),
        }

    def __str__(self) -> str:
        return f"{self.replayed} replayed, {self.skipped} skipped, {self.gone} gone"

    def reasons(self) -> Iterator[str]:
        """Why some were not replayed."""
        if self.no_payload:
            yield f"{self.no_payload} skipped: no payload was left"
        if self.waiting:
            yield f"{self.waiting} skipped: the id is on the queue already"
        if self.gone:
            yield f"{self.gone} gone: replayed or removed meanwhile"


@click.group()
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
    with _open(terminal, filters["category"], quiet=as_json) as letters:
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
    selection = Selection(**choice)
    with _open(terminal, selection.category, quiet=as_json) as letters:
        chosen = _choose(letters, selection)
        if dry_run:
            is_whole = _preview(terminal, chosen, as_json=as_json)
        else:
            is_whole = _replay_all(terminal, letters, chosen, as_json=as_json)
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
    selection = Selection(**choice)
    with _open(terminal, selection.category, quiet=as_json) as letters:
        chosen = _choose(letters, selection)
        _purge_all(terminal, letters, chosen, yes=yes, as_json=as_json)
    _say_unknown(terminal, chosen.unknown)
    return DOES_NOT_HOLD if chosen.unknown else DONE


def document(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as JSON has it, but its payload; instants are seconds since 1970."""
    import time

    from dispatcher.core.explain import clock_of, ended
    from dispatcher.core.limits import US

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
def _open(terminal: Terminal, category: str | None = None, *, quiet: bool) -> Iterator[DeadLetters]:
    from dispatcher.app.readers import open_dead_letters

    with namespace_named(terminal, quiet=quiet) as (settings, server):
        if not quiet:
            warn_if_unfamiliar(terminal, settings, server, category)
        yield open_dead_letters(settings, server)


def _filter(
    letters: DeadLetters, category: str | None = None, reason: str | None = None, since: int | None = None
) -> Filter:
    from dispatcher.store.dead_letters import Filter

    return Filter(category, reason, None if since is None else letters.ago(since))


def _choose(letters: DeadLetters, selection: Selection) -> Chosen:
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


def _replay_all(terminal: Terminal, letters: DeadLetters, chosen: Chosen, *, as_json: bool) -> bool:
    """Replay in chunks, and say what became of them; returns whether all were replayed.

    An interruption waits for the chunk that is under way.
    """
    tally = _Tally()
    with Interruption() as interruption:
        try:
            chunk = list(islice(chosen.letters, _CHUNK))
            is_long = len(chunk) == _CHUNK
            with shown_progress(chosen.total) if is_long and sys.stderr.isatty() else no_progress() as progress:
                while chunk:
                    progress.show(str(tally))
                    with interruption.held_back():
                        tally.add(letters.replay(chunk))
                    progress.advance(len(chunk))
                    chunk = list(islice(chosen.letters, _CHUNK))
                progress.show(str(tally))
        except KeyboardInterrupt:
            raise Ended(INTERRUPTED, f"interrupted: {tally}; run it again for the rest") from None
        except GateUnavailable as error:
            again = "whether the next ones were is not known; run it again, none goes twice"
            raise Ended(UNREACHABLE, f"{error}: {tally}; {again}") from error
    if as_json:
        terminal.print_json(tally.as_json(chosen.unknown, dry_run=False))
    else:
        terminal.print(str(tally))
        for reason in tally.reasons():
            terminal.say(reason)
    return not tally.skipped and not tally.gone and not chosen.unknown


def _preview(terminal: Terminal, chosen: Chosen, *, as_json: bool) -> bool:
    """Say what a replay would do; returns whether all would be replayed."""
    found = [_without_payload(letter) for letter in chosen.letters]
    tally = _Tally(replayed=sum(has_payload for _, has_payload in found))
    tally.no_payload = len(found) - tally.replayed
    if as_json:
        terminal.print_json(tally.as_json(chosen.unknown, dry_run=True))
    else:
        _draw_summary(terminal, [letter for letter, _ in found])
        terminal.print(f"{tally.replayed} would be replayed, {tally.skipped} skipped")
        for reason in tally.reasons():
            terminal.say(reason)
    return not tally.skipped and not chosen.unknown


def _purge_all(terminal: Terminal, letters: DeadLetters, chosen: Chosen, *, yes: bool, as_json: bool) -> None:
    """Remove exactly those that were found, once that is agreed to, and say how many.

    Raises ``Ended`` where it is not.
    """
    found = [_without_payload(letter)[0] for letter in chosen.letters]
    if found and not yes:
        _agree(terminal, found, as_json=as_json)
    source = iter(found)
    removed = 0
    while chunk := list(islice(source, _CHUNK)):
        removed += letters.purge(chunk)
    if as_json:
        terminal.print_json({"removed": removed, "unknown": chosen.unknown})
    else:
        terminal.print(f"{removed} removed")


def _agree(terminal: Terminal, found: Sequence[DeadLetter], *, as_json: bool) -> None:
    if as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Ended(USAGE, f"{_letters(len(found))} would be removed for good; with --yes it is done")
    _draw_summary(terminal, found)
    if not click.confirm(f"Remove {_letters(len(found))} for good?", err=True):
        raise Ended(DOES_NOT_HOLD, "nothing was removed")


def _draw_summary(terminal: Terminal, found: Sequence[DeadLetter]) -> None:
    if found:
        from dispatcher.cli.dead_view import summary

        terminal.draw(summary(found))


def _without_payload(letter: DeadLetter) -> tuple[DeadLetter, bool]:
    """The letter as light as 100,000 of them must be, and whether it has a payload."""
    return replace(letter, payload=b""), bool(letter.payload)


def _letters(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count} dead letters"
