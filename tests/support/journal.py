"""What one worker process did with which events, written down before and after each step: it outlives kill -9.

The test learns from it exactly which events a killed worker held, and whose posts were under way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dispatcher.core.limits import Admitted
from dispatcher.core.states import Leased, NotParked, Parked, Started, Waiting
from dispatcher.errors import GateUnavailable
from dispatcher.store.admission import Admission
from dispatcher.store.leases import Outbox, Taken
from tests.support.kill_points import Method, wrap


def keep_journal(path: Path) -> None:
    """From now on the steps of this process are written to ``path``; wrap what is to die around this."""
    book = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(entry: str, asked: int | None = None, **ids: Iterable[str]) -> None:
        os.write(book, (json.dumps([entry, asked, {name: list(each) for name, each in ids.items()}]) + "\n").encode())

    wrap(Outbox, "take", lambda take: _taking(take, note))
    wrap(Outbox, "prefetch", lambda prefetch: _prefetching(prefetch, note))
    wrap(Admission, "admit", lambda admit: _admitting(admit, note))
    wrap(Outbox, "line_up", lambda line_up: _lining_up(line_up, note))
    wrap(Outbox, "start", lambda start: _starting(start, note))
    wrap(Outbox, "settle", lambda settle: _settling(settle, note))
    wrap(Outbox, "arrivals", lambda arrivals: _arriving(arrivals, note))
    wrap(Outbox, "keep_only", lambda keep_only: _keeping(keep_only, note))
    wrap(Outbox, "give_back", lambda give_back: _giving_back(give_back, note))


@dataclass(slots=True)
class Life:
    """One worker's journal, read.

    At its end it held ``held``, with the posts of ``posting`` under way, and had settled ``untold`` last. Before that
    it ``returned`` some; ``lost`` were taken over by others, or settled by a call whose answer got lost; of ``unknown``
    the fate of a post was unknown, and of ``unconfirmed`` it was to be reconciled; those of
    ``again`` wait to be posted again. ``batches`` are the events of each take that nobody had taken before, in order.
    ``owners`` says what their slots are called, but for the number of posts with an unknown delivery status. ``asked``
    takes had no answer when the journal ended, and nobody knows with what result; the same says ``is_settling`` of
    settling. The answers to ``unheard`` others got lost.
    """

    held: set[str] = field(default_factory=set)
    posting: set[str] = field(default_factory=set)
    batches: list[list[str]] = field(default_factory=list)
    untold: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    unconfirmed: set[str] = field(default_factory=set)
    again: set[str] = field(default_factory=set)
    returned: set[str] = field(default_factory=set)
    asked: int = 0
    unheard: int = 0
    is_settling: bool = False
    owners: dict[str, str] = field(default_factory=dict)


class Entry(NamedTuple):
    """One line of a journal: what was done, how many takes then had no answer, and with which events."""

    entry: str
    asked: int | None
    ids: dict[str, list[str]]


def read_entries(path: Path) -> list[Entry]:
    """What was written down, line by line; nothing of a process that died before it did anything."""
    return [Entry(*json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def read_journal(path: Path) -> Life:
    """The life that was written down; a process that died before it took anything has none."""
    life = Life()
    for entry, asked, ids in read_entries(path):
        life.asked = life.asked if asked is None else asked
        _live(life, entry, {name: set(each) for name, each in ids.items()})
        if entry == "took":
            life.batches.append(ids["fresh"])
            life.owners |= dict(zip(ids["all"], ids["slots"], strict=True))
    return life


def _live(life: Life, entry: str, ids: dict[str, set[str]]) -> None:
    if entry != "settled" and life.is_settling:  # the answer got lost
        life.lost |= life.untold
    if entry not in {"settled", "asking", "unheard"}:  # what was dropped is told after the next batch was asked for
        life.untold = set()
    life.is_settling = entry == "settling"
    match entry:
        case "asking":
            pass
        case "unheard":
            life.unheard += 1
        case "took" | "arrived":
            life.held |= ids["all"]
            life.untold = ids["refused"]
        case "lined up" | "started":
            life.posting |= ids["started"]
            life.held -= ids["parked"] | ids["lost"]
            life.lost |= ids["lost"]
        case "settling":
            life.untold = ids["all"]
            life.unknown |= ids["unknown"]
            life.unconfirmed |= ids["unconfirmed"]
            life.again |= ids["again"]
        case "settled":
            life.held -= ids["all"]
            life.posting -= ids["done"]
            life.lost |= ids["all"] - ids["done"]
        case "kept" | "gave back":
            life.returned |= life.held - ids["all"]
            life.held &= ids["all"]
            life.posting &= ids["all"]
        case _:
            raise AssertionError(f"a journal says {entry!r}")


Note = Callable[..., None]


def _taking(take: Method, note: Note) -> Method:
    def call(outbox: Outbox, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - what take takes
        if not outbox.ahead:
            note("asking", 1)
        try:
            taken = take(outbox, *arguments, **named)
        except GateUnavailable:
            note("unheard", outbox.ahead)
            raise
        fresh = (each.id for each in taken.batch if isinstance(each, Leased) and each.is_fresh)
        slots = (each.slot.partition("#")[0] if isinstance(each, Leased) else "" for each in taken.batch)
        ids = (each.id for each in taken.batch)
        note("took", outbox.ahead, all=ids, fresh=fresh, slots=slots, refused=_refused(taken))
        return taken

    return call


def _prefetching(prefetch: Method, note: Note) -> Method:
    def call(outbox: Outbox, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - what prefetch takes
        note("asking", outbox.ahead + 1)
        prefetch(outbox, *arguments, **named)
        note("asking", outbox.ahead)

    return call


def _arriving(arrivals: Method, note: Note) -> Method:
    def call(outbox: Outbox) -> Iterator[Taken]:
        arriving = arrivals(outbox)
        while True:
            try:
                taken = next(arriving, None)
            except GateUnavailable:
                note("unheard", outbox.ahead)
                raise
            if taken is None:
                return
            note("arrived", outbox.ahead, all=(), refused=_refused(taken))
            yield taken

    return call


def _refused(taken: Taken) -> list[str]:
    """What was dropped as it was taken, and is still to be told of."""
    return [name for group in taken.prefiltered for name in group.names]


def _admitting(admit: Method, note: Note) -> Method:
    def call(admission: Admission, asking: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - what admit takes
        note(
            "settling",
            all=(each.candidate.leased.id for each in asking if each.drops),
            unknown=(),
            unconfirmed=(),
            again=(),
        )
        answer = admit(admission, asking, *arguments, **named)
        rows = enumerate(zip(asking, answer.verdicts, strict=True))
        ended = [
            (place, each.candidate.leased.id)
            for place, (each, verdict) in rows
            if place in answer.lost or (each.drops and not isinstance(verdict, Admitted))
        ]
        done = [id_ for place, id_ in ended if place not in answer.lost]
        note("settled", all=(id_ for _, id_ in ended), done=done)
        return answer

    return call


def _lining_up(line_up: Method, note: Note) -> Method:
    def call(outbox: Outbox, deferrals: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - what line_up takes
        answers = line_up(outbox, deferrals, *arguments, **named)
        ids = [(each.candidate.leased.id, answer) for each, answer in zip(deferrals, answers, strict=True)]
        note(
            "lined up",
            started=(),
            parked=(id_ for id_, answer in ids if isinstance(answer, Waiting)),
            lost=(id_ for id_, answer in ids if answer is NotParked.LOST),
        )
        return answers

    return call


def _starting(start: Method, note: Note) -> Method:
    def call(outbox: Outbox, candidates: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - what start takes
        answers = start(outbox, candidates, *arguments, **named)
        ids = [(each.leased.id, answer) for each, answer in zip(candidates, answers, strict=True)]
        note(
            "started",
            started=(id_ for id_, answer in ids if isinstance(answer, Started)),
            parked=(id_ for id_, answer in ids if isinstance(answer, Waiting)),
            lost=(id_ for id_, answer in ids if answer is None),
        )
        return answers

    return call


def _settling(settle: Method, note: Note) -> Method:
    def call(outbox: Outbox, settlements: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - what settle takes
        ids = [each.subject.id for each in settlements]
        unknown = (each.subject.id for each in settlements if each.unknown)
        note(
            "settling",
            all=ids,
            unknown=unknown,
            unconfirmed=(each.subject.id for each in settlements if each.failed_scans is not None),
            again=(each.subject.id for each in settlements if isinstance(each.outcome, Parked)),
        )
        settled = settle(outbox, settlements, *arguments, **named)
        note("settled", all=ids, done=(id_ for id_, done in zip(ids, settled.applied, strict=True) if done))
        return settled

    return call


def _keeping(keep_only: Method, note: Note) -> Method:
    def call(outbox: Outbox, ids: Iterable[str]) -> Any:  # noqa: ANN401 - what keep_only answers
        kept = list(ids)
        answer = keep_only(outbox, kept)
        note("kept", outbox.ahead, all=kept)
        return answer

    return call


def _giving_back(give_back: Method, note: Note) -> Method:
    def call(outbox: Outbox, keep: Iterable[str] = ()) -> Any:  # noqa: ANN401 - what give_back answers
        kept = list(keep)
        answer = give_back(outbox, kept)
        note("gave back", outbox.ahead, all=kept)
        return answer

    return call
