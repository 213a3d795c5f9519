"""``dispatcher dead``: look at the dead letters, send them through the limits again, remove them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.cli.context import audited, desk_named
from dispatcher.cli.exits import DOES_NOT_HOLD, DONE, INTERRUPTED, UNREACHABLE, USAGE, Ended
from dispatcher.cli.interruption import Interruption
from dispatcher.cli.options import (
    AT_LEAST_ONE,
    CHANNEL,
    EVENT_ID,
    SPAN_S,
    WHEN,
    Selection,
    as_json,
    at_most,
    for_reason,
    together,
    with_words,
)
from dispatcher.cli.terminal import Terminal
from dispatcher.core.states import DEADLY
from dispatcher.errors import GateUnavailable

if TYPE_CHECKING:
    from dispatcher.app.operating import Desk
    from dispatcher.cli.dead.replaying import Chosen, Done
    from dispatcher.cli.dead.waiting import Endings
    from dispatcher.store.dead_letters import DeadLetter, DeadLetters, Filter

_THEY_GO_ON: Final = "the replayed events go on without it"

_filters = together(
    click.option("--category", metavar="NAME", help='Only of this category; "-" is what shows none.'),
    for_reason(DEADLY),
    click.option("--code", help="Only letters with this code, for example channel_not_found or unknown_category."),
    click.option(
        "--since", type=WHEN, help="Only those that died then or later: 2h (that long ago), 2026-11-21, yesterday."
    ),
    click.option("--before", "--until", "before", type=WHEN, help="Only those that died before then: today."),
    with_words,
)
_selection = together(
    click.argument("ids", type=EVENT_ID, nargs=-1),
    _filters,
    click.option(
        "--all", "everything", is_flag=True, help="Select all. Without ids, filters or --all the command does nothing."
    ),
    click.option("--limit", type=AT_LEAST_ONE, metavar="N", help="At most N, the oldest."),
)
_UNSAID: Final = (
    "Which dead letters? Give their ids, or --category, --reason, --code, --since, --before or --text, or --all."
)


@click.group()
def dead() -> None:
    """Dead letters: events kept for you, each with its reason.

    An ID is the one the producer chose, or the one on the queue.
    """


@dead.command(name="list")
@_filters
@at_most
@as_json
@click.pass_obj
def list_(terminal: Terminal, /, *, limit: int, as_json: bool, **filters: Any) -> int:  # noqa: ANN401 - a Filter's
    """Show the dead letters, the newest first."""
    with desk_named(terminal, filters["category"], quiet=as_json) as desk:
        letters = desk.dead_letters
        found = list(islice(letters.find(_filter(letters, filters), newest_first=True), limit + 1))
        kept = letters.count()
    more, found = len(found) > limit, found[:limit]
    if as_json:
        from dispatcher.app.documents.events import letters_document

        terminal.print_json(letters_document(found, kept, more=more))
        return DONE
    if not found:
        terminal.say("no dead letter matches" if kept else "there are no dead letters")
        return DONE
    from dispatcher.cli.dead.view import listing

    terminal.draw(listing(found))
    if more:
        all_kept = f"{kept} are kept in all" if not any(filters.values()) else f"of all kinds {kept} are kept"
        terminal.say(f"there are more than these {limit}: --limit N shows N, {all_kept}")
    return DONE


@dead.command()
@click.argument("id_", type=EVENT_ID, metavar="ID")
@as_json
@click.pass_obj
def show(terminal: Terminal, id_: str, *, as_json: bool) -> int:
    """Show everything about one dead letter.

    Exit 1 if there is none of this id.
    """
    from dispatcher.app.documents.acted import letter_of

    with desk_named(terminal, quiet=as_json) as desk:
        letter = letter_of(desk.dead_letters, id_)
    if letter is None:
        _say_unknown(terminal, [id_])
        return DOES_NOT_HOLD
    if as_json:
        from dispatcher.app.documents.events import letter_document, payload_document

        terminal.print_json({**letter_document(letter), **payload_document(letter)})
        return DONE
    from dispatcher.cli.dead.view import details, payload_text

    terminal.draw(details(letter))
    if letter.payload:
        terminal.print(payload_text(letter))
    return DONE


@dead.command()
@_selection
@click.option("--to", type=CHANNEL, help="Post the events there, not where they were to go: a name, or an id.")
@click.option("--dry-run", is_flag=True, help="Only say what would be replayed.")
@click.option("--wait", is_flag=True, help="Wait until the replayed events have ended, and say what became of them.")
@click.option(
    "--timeout", "timeout_s", type=SPAN_S, default="5m", show_default=True, help="With --wait: no longer than this."
)
@as_json
@click.pass_obj
def replay(  # noqa: PLR0913 - click's signature: one for each option
    terminal: Terminal,
    /,
    *,
    ids: tuple[str, ...],
    everything: bool,
    limit: int | None,
    to: str | None,
    dry_run: bool,
    wait: bool,
    timeout_s: float,
    as_json: bool,
    **filters: Any,  # noqa: ANN401 - a Filter's
) -> int:
    """Send dead letters through the limits again, the oldest first.

    One that a limit denies waits if its category defers, and else becomes a dead letter again. It can be interrupted
    at any time and run again: none is lost, none goes twice. Skipped are letters without a payload, and letters whose
    id is already on the queue. With --to, letters that hold no event are skipped too. Exit 1 if one of
    the IDS could not be replayed, and with --wait also if a replayed event was not sent. Ctrl-C ends the wait, and the
    events go on.
    """
    if dry_run and wait:
        raise click.UsageError("--dry-run replays nothing to --wait for: give one of them.")
    selection = Selection(ids, everything, limit, filters).checked(_UNSAID)
    with desk_named(terminal, filters["category"], quiet=as_json) as desk:
        chosen = _choose(desk.dead_letters, selection)
        if dry_run:
            done, are_sent = _preview(terminal, chosen, to, as_json=as_json), True
        else:
            done, are_sent = _replay(
                terminal, desk, chosen, to=to, timeout_s=timeout_s if wait else None, as_json=as_json
            )
    _say_unknown(terminal, chosen.unknown)
    are_missing = selection.ids and (done.skipped or done.gone or chosen.unknown)
    return DOES_NOT_HOLD if are_missing or not are_sent else DONE


@dead.command()
@_selection
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@click.pass_obj
def purge(  # noqa: PLR0913 - click's signature: one for each option
    terminal: Terminal,
    /,
    *,
    ids: tuple[str, ...],
    everything: bool,
    limit: int | None,
    yes: bool,
    as_json: bool,
    **filters: Any,  # noqa: ANN401 - a Filter's
) -> int:
    """Remove dead letters for good.

    Asks first. Where nobody can be asked, since this is no terminal, --yes is needed: without it the command says how
    many it would remove, and exits 2. The totals go on counting what was removed. Exit 1 if one of the IDS is unknown.
    """
    selection = Selection(ids, everything, limit, filters).checked(_UNSAID)
    with desk_named(terminal, filters["category"], quiet=as_json) as desk:
        chosen = _choose(desk.dead_letters, selection)
        _purge_all(terminal, desk, chosen, yes=yes, as_json=as_json)
    _say_unknown(terminal, chosen.unknown)
    return DOES_NOT_HOLD if chosen.unknown else DONE


def _filter(letters: DeadLetters, options: Mapping[str, Any]) -> Filter:
    """The filter of the options; ages count from now by the server's clock."""
    from dispatcher.core.typed_instants import span_between
    from dispatcher.store.dead_letters import Filter

    since_us, before_us = span_between(options["since"], options["before"], letters.now_us)
    if since_us is not None and before_us is not None and since_us >= before_us:
        raise click.UsageError("--since is not earlier than --before: no dead letter can match.")
    words: tuple[str, ...] = options["words"] or ()
    return Filter(options["category"], options["reason"], options["code"], since_us, before_us, words)


def _choose(letters: DeadLetters, selection: Selection) -> Chosen:
    from dispatcher.app.documents.acted import ids_in_words, letters_in_words, letters_of
    from dispatcher.cli.dead.replaying import Chosen

    if not selection.ids:
        wanted = _filter(letters, selection.filters)
        total = letters.count() if selection.everything and selection.limit is None else None
        about = letters_in_words(wanted, selection.limit)
        return Chosen(islice(letters.find(wanted), selection.limit), [], total, about)
    found, known = letters_of(letters, selection.ids)
    unknown = [id_ for id_ in dict.fromkeys(selection.ids) if id_ not in known]
    return Chosen(iter(found), unknown, len(found), ids_in_words(known))


def _say_unknown(terminal: Terminal, ids: list[str]) -> None:
    for id_ in ids:
        terminal.fail(f"there is no dead letter of the id {id_!r}")


def _preview(terminal: Terminal, chosen: Chosen, to: str | None, *, as_json: bool) -> Done:
    """Say what a replay would do."""
    from dispatcher.cli.dead.replaying import preview

    done, found = preview(chosen, to)
    if as_json:
        terminal.print_json(done.as_json(chosen.unknown, dry_run=True))
    else:
        _draw_summary(terminal, found)
        terminal.print(f"{len(done.ids)} would be replayed, {done.skipped} skipped")
        for reason in done.reasons():
            terminal.say(reason)
    return done


def _replay(  # noqa: PLR0913 - what a command has found, and how it was asked
    terminal: Terminal, desk: Desk, chosen: Chosen, *, to: str | None, timeout_s: float | None, as_json: bool
) -> tuple[Done, bool]:
    """Replay, wait for the ends where a time for that is given, and say what became of all.

    Returns whether all that were waited for were sent or told. Raises ``Ended`` where replay or wait was broken off.
    """
    from dispatcher.cli.dead.replaying import Done, replay_all
    from dispatcher.cli.dead.waiting import Endings
    from dispatcher.core.units import normal_channel

    speaking = None if as_json else terminal
    about = chosen.about if to is None else f"{chosen.about} to {normal_channel(to)}"
    with Interruption() as interruption:
        done = Done()
        try:
            replay_all(desk.dead_letters, chosen, to, interruption, done)
        finally:
            if done.ids:
                audited(desk, "dead replay", about=about, count=len(done.ids))
        endings, broken_off = Endings(done.ids), None
        if timeout_s is None:
            _say_done(speaking, done)
        else:
            try:
                with interruption.held_back():
                    _say_done(speaking, done)
                _wait(speaking, desk, endings, timeout_s, interruption)
            except KeyboardInterrupt:
                broken_off = Ended(INTERRUPTED, f"the wait was interrupted; {_THEY_GO_ON}")
            except GateUnavailable as error:
                broken_off = Ended(UNREACHABLE, f"{error}: the wait is over; {_THEY_GO_ON}")
            _say_endings(speaking, endings)
    if as_json:
        told = done.as_json(chosen.unknown, dry_run=False)
        terminal.print_json(told if timeout_s is None else told | endings.as_json())
    if broken_off is not None:
        raise broken_off
    return done, timeout_s is None or endings.are_all_told


def _say_done(terminal: Terminal | None, done: Done) -> None:
    if terminal is not None:
        terminal.print(str(done))
        for reason in done.reasons():
            terminal.say(reason)


def _say_endings(terminal: Terminal | None, endings: Endings) -> None:
    if terminal is not None and endings.count:
        terminal.tell(str(endings))
        if endings.left:
            terminal.say(f"'dispatcher explain {endings.left[0]}' says what the first of these waits for")


def _wait(
    terminal: Terminal | None, desk: Desk, endings: Endings, timeout_s: float, interruption: Interruption
) -> None:
    """Wait until all have ended, or the time is over; raises ``Interrupted`` and ``GateUnavailable``."""
    from dispatcher.cli.dead.waiting import wait
    from dispatcher.core.units import US, format_duration

    if terminal is not None and endings.count and timeout_s:
        if not desk.is_served():
            terminal.warn(f"no worker serves the queue {desk.settings.queue} now: its events wait until one starts")
        most = format_duration(round(timeout_s * US))
        terminal.say(
            f"waiting until the replayed events have ended, {most} at most; Ctrl-C ends the wait, not the replay"
        )
    wait(endings, desk.explanations, timeout_s, interruption)


def _purge_all(terminal: Terminal, desk: Desk, chosen: Chosen, *, yes: bool, as_json: bool) -> None:
    """Remove exactly those that were found, once that is agreed to, and say how many.

    An interruption waits for the chunk that is under way. Raises ``Ended`` where it is not agreed to, or not finished.
    """
    from dispatcher.cli.dead.replaying import CHUNK, light

    found = [light(letter) for letter in chosen.letters]
    if found and not yes:
        _agree(terminal, found, as_json=as_json)
    source = iter(found)
    removed = 0
    with Interruption() as interruption:
        try:
            while chunk := list(islice(source, CHUNK)):
                with interruption.held_back():
                    removed += desk.dead_letters.purge(chunk)
        except KeyboardInterrupt:
            raise Ended(INTERRUPTED, f"interrupted: {removed} removed; run it again for the rest") from None
        except GateUnavailable as error:
            left = "whether the next ones were is not known: 'dispatcher dead list' shows what is left"
            raise Ended(UNREACHABLE, f"{error}: {removed} removed; {left}") from error
        finally:
            if removed:
                audited(desk, "dead purge", about=chosen.about, count=removed)
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
        from dispatcher.cli.dead.view import summary

        terminal.draw(summary(found))


def _letters(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count} dead letters"
