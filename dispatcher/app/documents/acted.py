"""Which events an action of an operator is about: found by their ids, and in the words of the trail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Final

from dispatcher.core.rendering import one_line
from dispatcher.core.units import US
from dispatcher.store.dead_letters import DeadLetter, DeadLetters, Filter
from dispatcher.store.explanations import ids_of
from dispatcher.store.parked_events import ParkedFilter

_IDS: Final = 5
_LONGEST: Final = 200
"""Characters of an id, or of a value of a filter."""

_LAST_S: Final = 253_402_300_799
"""The end of the year 9999: no date is later, and a filter may name an instant that is."""


def letter_of(letters: DeadLetters, id_: str) -> DeadLetter | None:
    """The dead letter of an id, the producer's or the one on the queue."""
    return next((letter for name in ids_of(id_) if (letter := letters.get(name)) is not None), None)


def letters_of(letters: DeadLetters, ids: Iterable[str]) -> tuple[list[DeadLetter], list[str]]:
    """The dead letters of ids, each once and the oldest first; and the ids that have one."""
    names = {id_: ids_of(id_) for id_ in ids}
    kept = letters.get_each([*dict.fromkeys(chain.from_iterable(names.values()))])
    found = {
        id_: next(kept[each] for each in known if each in kept)
        for id_, known in names.items()
        if not kept.keys().isdisjoint(known)
    }
    distinct = {letter.entry: letter for letter in found.values()}
    return sorted(distinct.values(), key=lambda letter: (letter.at_us, letter.entry)), [*found]


def ids_in_words(ids: Sequence[str]) -> str:
    """``a, b, c, d, e and 7 more``."""
    shown = ", ".join(one_line(id_, _LONGEST) for id_ in ids[:_IDS])
    return f"{shown} and {len(ids) - _IDS} more" if len(ids) > _IDS else shown


def letters_in_words(wanted: Filter, limit: int | None) -> str:
    """The dead letters of a filter: ``category errors, died since 2026-11-27 14:00:00 UTC, at most 10``."""
    fields = {
        "category": wanted.category,
        "reason": wanted.reason,
        "code": wanted.code,
        "died since": _instant(wanted.since_us),
        "died before": _instant(wanted.before_us),
        "text": " ".join(wanted.words) or None,
    }
    return _in_words(fields, limit)


def parked_in_words(wanted: ParkedFilter, limit: int | None) -> str:
    """The parked events of a filter: ``channel #ops, first seen before 2026-11-27 14:00:00 UTC``."""
    fields = {
        "category": wanted.category,
        "reason": wanted.reason,
        "channel": wanted.channel,
        "first seen before": _instant(wanted.seen_before_us),
        "text": " ".join(wanted.words) or None,
    }
    return _in_words(fields, limit)


def _in_words(fields: dict[str, str | None], limit: int | None) -> str:
    said = [f"{name} {one_line(value, _LONGEST)}" for name, value in fields.items() if value is not None]
    return ", ".join((*(said or ["all"]), *([] if limit is None else [f"at most {limit}"])))


def _instant(at_us: int | None) -> str | None:
    """In UTC: who reads the trail may be in another zone than who acted."""
    if at_us is None:
        return None
    at = datetime.fromtimestamp(min(max(0, at_us // US), _LAST_S), UTC)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
