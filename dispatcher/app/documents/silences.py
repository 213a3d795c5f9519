"""Silences as JSON has them; instants are seconds since 1970."""

from __future__ import annotations

from typing import Any

from dispatcher.core.silences import Silence
from dispatcher.core.units import US
from dispatcher.store.silences import Kept, Preview, StoredSilence, Wanted


def silence_document(silence: Silence, suppressed: int) -> dict[str, Any]:
    """A silence, and how many events it has suppressed so far.

    ``until`` is the latest end, ``ends`` when it ends if nothing more matches.
    """
    return {
        "id": silence.id,
        "matchers": list(silence.matchers.texts),
        "why": silence.why,
        "who": silence.who,
        "from": silence.from_us / US,
        "until": silence.until_us / US,
        "ends": silence.ends_us / US,
        "suppressed": suppressed,
    }


def silences_document(kept: list[Kept]) -> dict[str, Any]:
    """All silences."""
    return {"silences": [silence_document(each.silence, each.suppressed) for each in kept]}


def whole_document(kept: Kept) -> dict[str, Any]:
    """A silence with everything that is known of it."""
    silence = kept.silence
    return silence_document(silence, kept.suppressed) | {
        "firing": kept.firing,
        "until_resolved": silence.until_resolved,
        "end_if_idle_s": None if silence.idle_us is None else silence.idle_us / US,
        "reports": silence.reports,
    }


def begun_document(begun: StoredSilence, wanted: Wanted) -> dict[str, Any]:
    """A silence that was just stored."""
    silence = Silence(begun.id, wanted.matchers, wanted.who, wanted.why, begun.from_us, begun.until_us, wanted.idle_us)
    return silence_document(silence, 0) | {"ends": silence.end_after(begun.from_us) / US}


def preview_document(seen: Preview) -> dict[str, Any]:
    """What matchers would have matched."""
    since = None if seen.since_us is None else seen.since_us / US
    return {"matched": seen.matched, "of": seen.of, "since": since, "priorities": dict(seen.priorities)}
