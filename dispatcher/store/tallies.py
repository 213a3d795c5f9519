"""Tallies on the wire: what scripts are told of them, and what ``take`` brings with a digest message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dispatcher.core.event import Event
from dispatcher.core.rendering import one_line
from dispatcher.core.silences import SILENCE_PREFIX, EndedSilence
from dispatcher.core.states import Gone, Leased, Trouble, Unconfirmed
from dispatcher.core.tally import MOST_SAMPLES, SAMPLE_CHARS, Counting, Tally, Telling
from dispatcher.jsonio import decode, decode_answer

DIGEST_TEXT: Final = "suppressed"
"""Stands in for the text of a digest message, which is made when it is posted."""

REPORT_CATEGORY: Final = "silences"
"""The category that stands in an event for a report, which has none."""

DIGEST_CATEGORY: Final = ""
"""The category of digest messages in the books: none."""


def collects_us(counting: Counting) -> int:
    """How long a tally collects before its digest message is due for the first time."""
    return counting.delay_us if counting.telling is Telling.DIGEST else 0


def sample_of(event: Event) -> str:
    """The words of an event for a tally; empty where it has none."""
    return one_line(event.text, SAMPLE_CHARS) if event.text else ""


def samples_of(events: Sequence[tuple[int, Event]]) -> list[tuple[int, str]]:
    """The last distinct samples, each with the last place that has it: of a batch the last ones are refused."""
    found: dict[str, int] = {}
    for place, event in reversed(events):
        sample = sample_of(event)
        if sample and sample not in found:
            found[sample] = place
            if len(found) == MOST_SAMPLES:
                break
    return [(place, sample) for sample, place in reversed(found.items())]


def unconfirmed_of(header: dict[str, Any]) -> Unconfirmed | None:
    """What is known of a post that is to be reconciled."""
    if "unconfirmed" not in header:
        return None
    trouble = header.get("trouble")
    return Unconfirmed(
        int(header["sent"]),
        int(header["first"]) - int(header.get("back", 0)),
        header["unconfirmed"],
        header.get("place"),
        header.get("root"),
        Trouble(trouble) if trouble else None,
    )


def gone_of(header: dict[str, Any]) -> Gone | None:
    """The channel for which its fallback stands in."""
    return Gone(*header["gone"]) if "gone" in header else None


def read_digest_message(id_: str, header: dict[str, Any], payload: bytes) -> Leased:
    """A digest message with its tally, or its ended silence, as it was when it was taken.

    Of a digest message that is to be reconciled it is the tally that its post told of.

    The event's id is ID#SEQ, so two messages of one tally have different ids.
    """
    telling, _, category = id_.partition(":")
    if id_.startswith(SILENCE_PREFIX):
        return _own(id_, header, REPORT_CATEGORY)._replace(report=_read_report(category, payload))
    if telling == Telling.REPEAT:
        category = category.rpartition(":")[0]
    try:
        tally = _read(id_, Telling(telling), category, payload)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError):  # written by somebody else: it begins anew
        tally = _nothing(id_, Telling(telling), category)
    return _own(id_, header, category)._replace(tally=tally)


def _own(id_: str, header: dict[str, Any], category: str) -> Leased:
    """A message of the dispatcher's own, without what it tells of."""
    seq = int(header.get("seq", 0))
    return Leased(
        id=id_,
        event=Event(category, DIGEST_TEXT, id=f"{id_}#{seq}"),
        seq=seq,
        seen_us=int(header.get("seen", 0)),
        attempt=header.get("attempt", 0),
        unknown=header.get("unknown", 0),
        held=header.get("held", False),
        channel=header.get("channel"),
        takes=header.get("takes", 1),
        deaths=header.get("deaths", 0),
        unconfirmed=unconfirmed_of(header),
        resent=header.get("resent", 0),
        posts=header.get("posts", 0),
        code=header.get("code"),
        gone=gone_of(header),
    )


def _read_report(silence_id: str, payload: bytes) -> EndedSilence:
    """What a report tells of; nothing where its tally is gone, which only a hand from outside can do."""
    try:
        row = decode_answer(payload)
        facts = dict(zip(row[::2], row[1::2], strict=True))
        said = decode(facts["row"])
        return EndedSilence(
            id=silence_id,
            matchers=" ".join(map(str, said["matchers"])),
            who=str(said["who"]),
            why=str(said["why"]),
            suppressed=int(facts["count"]),
            ended_us=int(facts["ended"]),
            deferred=int(facts.get("deferred", 0)),
            firing=int(facts["firing"]) if "keys" in facts else None,
            is_least="more" in facts,
            channels={name[3:]: int(count) for name, count in facts.items() if name.startswith("to ")},
            now_us=int(facts["now"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError):
        return EndedSilence(silence_id, "", "", "", 0, 0)


def _nothing(id_: str, telling: Telling, category: str) -> Tally:
    """A tally that has nothing left to tell."""
    return Tally(id_, telling, category, "", "", "", 0, 0, 0, 0)


def _read(id_: str, telling: Telling, category: str, payload: bytes) -> Tally:
    """The tally; an empty one where it is gone, which only a hand from outside can do."""
    row = decode_answer(payload)
    facts = dict(zip(row[::2], row[1::2], strict=True))
    if "count" not in facts:
        return _nothing(id_, telling, category)
    outcome, _, _, (scope, limit, _), said = decode(facts["why"])
    return Tally(
        id=id_,
        telling=telling,
        category=category,
        outcome="mixed" if "mixed" in said else outcome,
        scope=scope,
        limit="" if "several" in said else limit,
        count=int(facts["count"]),
        first_us=int(facts["first"]),
        last_us=int(facts["last"]),
        now_us=int(facts["now"]),
        samples=tuple(text for text, _ in decode(facts["samples"])) if "samples" in facts else (),
        shown=int(facts["shown"]) if "shown" in facts else None,
        channel=facts.get("channel"),
        ts=facts.get("ts"),
        next_us=int(facts.get("next", 0)),
        failed="failed" in facts,
        resolved=int(facts.get("resolved", 0)),
        text=facts.get("text", ""),
    )
