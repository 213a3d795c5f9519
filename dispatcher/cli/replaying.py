"""What ``dispatcher dead replay`` and ``purge`` do once the letters are chosen. Imports what speaks to Redis."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import click

from dispatcher.cli.dead import Chosen
from dispatcher.cli.exits import DOES_NOT_HOLD, INTERRUPTED, UNREACHABLE, USAGE, Ended
from dispatcher.cli.interruption import Interruption
from dispatcher.cli.progress import no_progress, shown_progress
from dispatcher.cli.terminal import Terminal
from dispatcher.errors import GateUnavailable
from dispatcher.store.dead_letters import DeadLetter, DeadLetters, Replayed

CHUNK: Final = 200
"""Letters in one step on the server."""


@dataclass(slots=True)
class _Tally:
    """What became of the letters so far."""

    replayed: int = 0
    no_payload: int = 0
    waiting: int = 0
    gone: int = 0

    def add(self, results: Sequence[Replayed]) -> None:
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


def replay_letters(terminal: Terminal, letters: DeadLetters, chosen: Chosen, *, as_json: bool) -> bool:
    """Replay in chunks, and say what became of them; returns whether all were replayed.

    An interruption waits for the chunk that is under way.
    """
    tally = _Tally()
    with Interruption() as interruption:
        try:
            chunk = list(islice(chosen.letters, CHUNK))
            is_long = len(chunk) == CHUNK
            with shown_progress(chosen.total) if is_long and sys.stderr.isatty() else no_progress() as progress:
                while chunk:
                    progress.show(str(tally))
                    with interruption.held_back():
                        tally.add(letters.replay(chunk))
                    progress.advance(len(chunk))
                    chunk = list(islice(chosen.letters, CHUNK))
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


def preview(terminal: Terminal, chosen: Chosen, *, as_json: bool) -> bool:
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


def purge_letters(terminal: Terminal, letters: DeadLetters, chosen: Chosen, *, yes: bool, as_json: bool) -> None:
    """Remove exactly those that were found, once that is agreed to, and say how many.

    Raises ``Ended`` where it is not.
    """
    found = [_without_payload(letter)[0] for letter in chosen.letters]
    if found and not yes:
        _agree(terminal, found, as_json=as_json)
    source = iter(found)
    removed = 0
    while chunk := list(islice(source, CHUNK)):
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
