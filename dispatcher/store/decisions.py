"""The decision record: what became of an event, and why, for as long as it is kept.

Its form is that of ``lua/include/accounting.lua``: two streams in the order in which events ended, and an index of ids.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any, Final, NamedTuple

from dispatcher.core.explain import Decision
from dispatcher.core.units import Lane
from dispatcher.jsonio import decode, decode_answer
from dispatcher.server.connection import Client, server_us, translate_outages
from dispatcher.server.keys import Keys

_PAGE: Final = 20
"""Entries in one read; each holds what ended in one call of a script. A search begins with one, and doubles that."""

_PART: Final = 500
_BEGIN: Final = "0-0"
_LAST: Final = 2**53
"""No entry has so high a number."""

_SAID: Final[Mapping[str, type]] = {
    **dict.fromkeys(("code", "detail", "channel", "ts", "instead_of", "refused_by"), str),
    **dict.fromkeys(("copies", "repeats", "since_us", "fits_at_us"), int),
    "shadow": list,
}
"""What a decision may say beside the refusal. All else is of another version, or spoilt, and is left out."""


class Position(NamedTuple):
    """How far the record was read: in each of its parts to which entry, and how many of the decisions there."""

    limited: int = _LAST
    of_limited: int = 0
    others: int = _LAST
    of_others: int = 0


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """Which decisions are meant; a field left out matches all.

    The events ended at ``since_us`` or later, and before ``before_us``. All ``words``, case-folded, stand in the text.
    """

    outcome: str | None = None
    reason: str | None = None
    category: str | None = None
    since_us: int | None = None
    before_us: int | None = None
    words: tuple[str, ...] = ()

    def matches(self, decision: Decision) -> bool:
        """Whether the decision is meant."""
        said = (decision.text or "").casefold() if self.words else ""
        return (
            self.outcome in {None, decision.outcome}
            and self.reason in {None, decision.reason}
            and self.category in {None, decision.category}
            and (self.since_us is None or decision.at_us >= self.since_us)
            and (self.before_us is None or decision.at_us < self.before_us)
            and all(word in said for word in self.words)
        )


class Decisions:
    """Reads the record. Raises ``GateUnavailable`` when the server is away."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._logs = keys.decision_logs

    def newest(self) -> Iterator[Decision]:
        """All that are kept, the newest first, read in pages as they are asked for."""
        return (decision for decision, _ in self.behind(Position()))

    def behind(self, place: Position) -> Iterator[tuple[Decision, Position]]:
        """As ``newest``, what follows a place; with each decision the place behind it."""
        walks = [self._backwards(self._logs[0], *place[:2]), self._backwards(self._logs[1], *place[2:])]
        here = [*place]
        for part, walk in enumerate(walks):
            first = next(walk, None)  # what comes later than this is no part of the rest
            here[2 * part : 2 * part + 2] = (0, 0) if first is None else (first[1], first[2] - 1)
            walks[part] = chain([] if first is None else [first], walk)
        rows = (zip(walk, repeat(part), strict=False) for part, walk in enumerate(walks))
        for (decision, entry, looked), part in heapq.merge(*rows, key=lambda row: -row[0][0].at_us):
            here[2 * part : 2 * part + 2] = entry, looked
            yield decision, Position(*here)

    def pages(self, wanted: DecisionFilter) -> Iterator[list[Decision]]:
        """What is meant of the newest, the newest first, in parts: a search may end behind each."""
        kept = self.newest()
        while part := list(islice(kept, _PART)):
            yield list(filter(wanted.matches, part))

    def suppressed(self) -> Iterator[Decision]:
        """What was dropped, duplicates, and what limits, silences and quiet hours ended otherwise.

        The newest first, read in pages as it is asked for.
        """
        return (decision for decision, *_ in self._backwards(self._logs[0], _LAST, 0))

    def kept_since_us(self) -> int | None:
        """Since when no decision is missing; None where nothing is kept."""
        with translate_outages():
            found: list[Any] = [self._client.xrange(log, count=1) for log in self._logs]
        began: list[int] = []
        cut: list[int] = []
        for rows in filter(None, found):
            first = _decisions_of(rows[0])
            number = int(rows[0][0].partition(b"-")[0])
            (began if number == len(first) else cut).append(first[0].at_us)
        return max(cut) if cut else min(began, default=None)

    def now_us(self) -> int:
        """The instant by the server's clock."""
        return server_us(self._client)

    def ends(self) -> tuple[str, str]:
        """Where the record ends now, for ``since``."""
        with translate_outages():
            found: list[Any] = [self._client.xrevrange(log, count=1) for log in self._logs]
        limited, others = (rows[0][0].decode() if rows else _BEGIN for rows in found)
        return limited, others

    def within(self, ends: tuple[str, str]) -> tuple[str, str]:
        """The same place, or where the record ends if that is before it: a server may have lost what it knew."""
        limited, others = (min(place, end, key=_number_of) for place, end in zip(ends, self.ends(), strict=True))
        return limited, others

    def since(self, ends: tuple[str, str], wait_ms: int) -> tuple[list[Decision], tuple[str, str]]:
        """What came after ``ends``, the oldest first, and where it ends; waits for something for ``wait_ms``."""
        with translate_outages():
            answer: Any = self._client.xread(dict(zip(self._logs, ends, strict=True)), count=_PAGE, block=wait_ms)
        found: list[Decision] = []
        places = dict(zip(self._logs, ends, strict=True))
        for name, rows in answer.items() if isinstance(answer, dict) else answer:
            for entry in rows if not rows or isinstance(rows[0], tuple) else rows[0]:
                found += _decisions_of(entry)
                places[name.decode()] = entry[0].decode()
        limited, others = places.values()
        return sorted(found, key=lambda each: each.at_us), (limited, others)

    def _backwards(self, log: str, last: int, looked: int) -> Iterator[tuple[Decision, int, int]]:
        """From an entry back, without the first of its decisions; each with its entry and its number there."""
        begin, count = str(last), 1
        while True:
            with translate_outages():
                rows: Any = self._client.xrevrange(log, begin, count=count)
            for entry in rows:
                number = int(entry[0].partition(b"-")[0])
                found = enumerate(reversed(_decisions_of(entry)), 1)
                yield from ((each, number, n) for n, each in found if number < last or n > looked)
            if len(rows) < count:
                return
            begin, count = f"({rows[-1][0].decode()}", min(2 * count, _PAGE)


def _number_of(place: str) -> int:
    return int(place.partition("-")[0])


def latest(found: Sequence[Decision]) -> Decision | None:
    """The one that says what became of the event: of several the last, and none of a duplicate before any other."""
    return max(found, key=lambda decision: (decision.outcome != "duplicate", decision.at_us), default=None)


def read_row(event_id: str, row: str) -> Decision:
    """What explain.lua says of an event: the text of a pair, a line feed, its text and labels."""
    pair, _, shown = row.partition("\n")
    return _decision(pair.encode(), event_id, shown.encode())


def _decisions_of(entry: tuple[bytes, dict[bytes, bytes]]) -> list[Decision]:
    _, pairs = entry
    return [_decision(pair, id_, shown) for pair, told in pairs.items() for id_, shown in _told(told)]


def _told(told: bytes) -> Iterator[tuple[str, bytes]]:
    """The ids of a pair, each with its text and labels."""
    ids, _, shown = told.partition(b"\n")
    lines = chain(shown.split(b"\n"), repeat(b""))
    return zip(ids.decode("utf-8", "replace").split(" "), lines, strict=False)


def _decision(pair: bytes, event_id: str, shown: bytes) -> Decision:
    instant, _, why = pair.partition(b" ")
    outcome, category, reason, denied, said = decode(why)
    more: dict[str, Any] = {}
    if denied is not None:
        scope, limit, retry_after_us = denied
        more = {"scope": scope, "limit": limit or None, "fits_at_us": int(instant) + retry_after_us}
    more |= {name: value for name, value in said.items() if isinstance(value, _SAID.get(name, ()))}
    text, labels, priority = _read_shown(shown)
    told: dict[str, Any] = {"text": text, "labels": labels, "priority": priority, **more}
    return Decision(event_id, int(instant), outcome, reason, category, **told)


def _read_shown(shown: bytes) -> tuple[str | None, dict[str, str], str | None]:
    """Text, labels and priority; nothing of a line that somebody else has spoilt."""
    try:
        match decode_answer(b"[%b]" % shown):
            case [str(text), dict(labels), *rest] if all(isinstance(value, str) for value in labels.values()):
                return text or None, labels, _priority(rest)
    except ValueError:
        pass
    return None, {}, None


def _priority(rest: list[Any]) -> str:
    return str(rest[0]) if rest and rest[0] in set(Lane) else Lane.NORMAL.value
