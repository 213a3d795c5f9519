"""Replays dead letters, and says how many were replayed and why the others were not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from dispatcher.cli.exits import INTERRUPTED, UNREACHABLE, Ended
from dispatcher.cli.progress import progress_bar
from dispatcher.errors import GateUnavailable
from dispatcher.store.dead_letters import Replayed, can_go_to

if TYPE_CHECKING:
    from dispatcher.cli.interruption import Interruption
    from dispatcher.store.dead_letters import DeadLetter, DeadLetters

CHUNK: Final = 200
"""Letters in one step on the server."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The letters that are meant, the oldest first, ids without a letter, and how many letters where that is known.

    ``about`` says in words which they are.
    """

    letters: Iterator[DeadLetter]
    unknown: list[str]
    total: int | None
    about: str


@dataclass(slots=True)
class Done:
    """What became of the letters so far. ``ids`` are those of the replayed ones, on the queue."""

    ids: list[str] = field(default_factory=list)
    no_payload: int = 0
    no_event: int = 0
    waiting: int = 0
    gone: int = 0

    def add(self, letters: Sequence[DeadLetter], results: Sequence[Replayed]) -> None:
        """Count the results of letters."""
        self.ids += [letter.id for letter, result in zip(letters, results, strict=True) if result is Replayed.DONE]
        self.no_payload += results.count(Replayed.EMPTY)
        self.no_event += results.count(Replayed.NO_EVENT)
        self.waiting += results.count(Replayed.WAITING)
        self.gone += results.count(Replayed.GONE)

    @property
    def skipped(self) -> int:
        """How many stay dead letters."""
        return self.no_payload + self.no_event + self.waiting

    def as_json(self, unknown: Sequence[str], *, dry_run: bool) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return {
            "dry_run": dry_run,
            "replayed": len(self.ids),
            "skipped": {"no_payload": self.no_payload, "no_event": self.no_event, "waiting": self.waiting},
            "gone": self.gone,
            "unknown": list(unknown),
        }

    def __str__(self) -> str:
        return f"{len(self.ids)} replayed, {self.skipped} skipped, {self.gone} gone"

    def reasons(self) -> Iterator[str]:
        """Why some were not replayed."""
        if self.no_payload:
            yield f"{self.no_payload} skipped: no payload was left"
        if self.no_event:
            yield f"{self.no_event} skipped: the payload is no event that can go to another channel"
        if self.waiting:
            yield f"{self.waiting} skipped: the id is on the queue already"
        if self.gone:
            yield f"{self.gone} gone: replayed or removed meanwhile"


def replay_all(letters: DeadLetters, chosen: Chosen, to: str | None, interruption: Interruption, done: Done) -> None:
    """Replay in chunks, to the channel ``to`` if one is named, and count in ``done``.

    An interruption waits for the chunk that is under way. Raises ``Ended`` that says how far it came.
    """
    try:
        chunk = list(islice(chosen.letters, CHUNK))
        with progress_bar(chosen.total, is_wanted=len(chunk) == CHUNK) as progress:
            while chunk:
                progress.show(str(done))
                with interruption.held_back():
                    done.add(chunk, letters.replay(chunk, to))
                progress.advance(len(chunk))
                chunk = list(islice(chosen.letters, CHUNK))
            progress.show(str(done))
    except KeyboardInterrupt:
        raise Ended(INTERRUPTED, f"interrupted: {done}; run it again for the rest") from None
    except GateUnavailable as error:
        again = "whether the next ones were is not known; run it again, none goes twice"
        raise Ended(UNREACHABLE, f"{error}: {done}; {again}") from error


def preview(chosen: Chosen, to: str | None) -> tuple[Done, list[DeadLetter]]:
    """What a replay would do, and the letters it would look at."""
    done, found = Done(), []
    for letter in chosen.letters:
        found.append(light(letter))
        done.add([letter], [_result(letter, to)])
    return done, found


def light(letter: DeadLetter) -> DeadLetter:
    """The letter without its payload: as light as 100,000 of them must be."""
    return replace(letter, payload=b"")


def _result(letter: DeadLetter, to: str | None) -> Replayed:
    if not letter.payload:
        return Replayed.EMPTY
    return Replayed.DONE if to is None or can_go_to(letter, to) else Replayed.NO_EVENT
