"""The view of silences: those that there are, and those that have ended; of mutes that have ended the audit tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dispatcher.store.silences import Kept

FIELDS: Final = ("matchers", "for", "why", "start", "end_if_idle", "until_resolved")
"""Of the form."""

_ENDED: Final = 20


def listed(kept: Sequence[Kept], now_us: int) -> dict[str, Any]:
    """Those in force and those that begin later, the one that ends first comes first."""
    return {
        "in_force": [_row(each) for each in kept if each.silence.from_us <= now_us],
        "later": [_row(each) for each in kept if each.silence.from_us > now_us],
    }


def _row(kept: Kept) -> dict[str, Any]:
    silence = kept.silence
    return {
        "id": silence.id,
        "what": str(silence.matchers),
        "who": silence.who,
        "why": silence.why,
        "from_us": silence.from_us,
        "until_us": silence.until_us,
        "idle_end_us": silence.idle_end_us,
        "or": silence.ends_in_words if silence.idle_end_us is None else silence.ends_when_resolved,
        "suppressed": kept.suppressed,
        "firing": kept.firing,
    }


def ended(entries: Sequence[Mapping[str, Any]], kept: Sequence[Kept]) -> list[dict[str, Any]]:
    """Those that the audit trail tells of and that are no more, the newest first.

    ``ended`` is the entry of who has ended it by hand; None where it has ended by itself.
    Mutes are left out: the trail does not say which entries are about the same one.
    """
    return list(_ended(entries, kept))[:_ENDED]


def _ended(entries: Sequence[Mapping[str, Any]], kept: Sequence[Kept]) -> Iterator[dict[str, Any]]:
    there = {each.silence.id for each in kept}
    by_hand: dict[str, Mapping[str, Any]] = {}
    for each in entries:
        if each["what"] == "silence expire":
            by_hand[each["about"]] = each
        elif each["what"] == "silence add":
            id_, _, what = each["about"].partition(": ")
            if id_ not in there:
                yield {"id": id_, "what": what, "added": each, "ended": by_hand.get(id_)}
