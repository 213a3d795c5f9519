"""Whether the dispatcher is well, and whether more workers would help, each in one sentence."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dispatcher.app.documents.facts import Status
from dispatcher.app.documents.instants import span
from dispatcher.app.documents.pause_words import pause_in_words, said_and_remedy
from dispatcher.app.documents.recent import Lately, is_suppressed
from dispatcher.core.limits import EVERYTHING, Reason
from dispatcher.core.rendering import one_line
from dispatcher.core.units import US
from dispatcher.store.snapshot import Snapshot

SOON_S: Final = 10.0
"""What the workers take within this time is no backlog."""

_WAITS: Final = {
    "limit": "for room in a limit",
    Reason.PACE: "for a channel",
    Reason.COOLDOWN: "for a channel",
    Reason.PAUSED: "for the end of a pause",
    Reason.SILENCED: "for the end of a silence",
    Reason.QUIET: "for the end of quiet hours",
    Reason.RETRY: "to be tried again",
    Reason.SCHEDULED: "for its time",
}
"""What parked events wait for, by the word of the books (``lua/include/accounting.lua``)."""


class Level(StrEnum):
    """How much a person is needed: not at all, to have a look, or now."""

    WELL = "well"
    LOOK = "look"
    ILL = "ill"


@dataclass(frozen=True, slots=True)
class Wellness:
    """``workers`` says whether more of them would help."""

    level: Level
    said: str
    workers: str


def wellness(status: Status) -> Wellness:
    """What one look says; the worst is told."""
    level, said = _state(status)
    return Wellness(level, said, _workers(status))


def _state(status: Status) -> tuple[Level, str]:
    snapshot = status.snapshot
    if status.refusal is not None:
        return Level.ILL, f"It is not well: the server cannot be written to. {_sentence(status.refusal.said)}"
    found = [each for each in (_unmanned(status), _paused(snapshot), _unbalanced(snapshot)) if each is not None]
    if (by_hand := _paused_by_hand(snapshot)) is not None:
        found.append(by_hand)
    if found:
        return next((each for each in found if each[0] is Level.ILL), found[0])
    together = status.recent.together()
    suppressed = "nothing was suppressed."
    if count := together.suppressed():
        were = "was" if count == 1 else "were"
        suppressed = f"{_events(count)} {were} suppressed: {together.causes_in_words()}."
    if died := _died(together):
        said = ", ".join(f"{count:,} {reason}" for reason, count in died.items())
        events = _events(sum(died.values()))
        return Level.LOOK, f"It works, but in the last 30 minutes {events} died: {said}. {_sentence(suppressed)}"
    return Level.WELL, f"It is well. In the last 30 minutes {suppressed}"


def _paused(snapshot: Snapshot) -> tuple[Level, str] | None:
    """That Slack or the network lets nobody post."""
    pause = snapshot.pause
    if pause is None:
        return None
    said, remedy = pause_in_words(pause, snapshot)
    if pause.kind == "operator":
        since = span(max(0.0, (snapshot.now_us - pause.since_us) / US))
        said = f"posting stopped {since} ago, after {one_line(pause.code)}: {said_and_remedy(pause)[0]}"
    return Level.ILL, f"Nothing is posted: {said.rstrip('.')}. To do: {_sentence(remedy)}"


def _paused_by_hand(snapshot: Snapshot) -> tuple[Level, str] | None:
    """That an operator lets nobody post."""
    by_hand = snapshot.paused.get(EVERYTHING)
    if by_hand is None:
        return None
    since = span(max(0.0, (snapshot.now_us - by_hand.since_us) / US))
    why = f": {by_hand.why}" if by_hand.why else ""
    return Level.LOOK, one_line(f"Nothing is posted: paused for {since} by {by_hand.by}{why}.")


def _unbalanced(snapshot: Snapshot) -> tuple[Level, str] | None:
    """That the books do not balance."""
    imbalances = snapshot.imbalances()
    if not imbalances:
        return None
    return Level.ILL, f"It is not well: the books do not balance. {_sentence(imbalances[0])}"


def _unmanned(status: Status) -> tuple[Level, str] | None:
    """That no worker runs, or that each is suspended."""
    alive = _alive(status)
    if _suspended(status) < alive:
        return None
    pending = status.snapshot.pending
    said, to_do = ("every worker is suspended", " To do: rq resume.") if alive else ("no worker runs", "")
    if not pending:
        return Level.LOOK, f"{_sentence(said)} Nothing waits.{to_do}"
    return Level.ILL, f"It is not well: {said}, and {_waiting(pending)}.{to_do}"


def _workers(status: Status) -> str:
    snapshot, alive = status.snapshot, _alive(status)
    if not alive:
        return "Start a worker: none runs."
    if (hindrance := _hindrance(status)) is not None:
        return f"More workers would not help: {hindrance}."
    idle = sum(each.state != "busy" for each in status.workers if each.alive)
    if idle:
        take = "is idle and takes" if idle == 1 else "are idle and take"
        return f"More workers would not help: {idle} of {alive} {take} what waits."
    rate = status.recent.rates.get("received", 0.0)
    if rate and snapshot.waiting / rate <= SOON_S:
        return f"More workers would hardly help: {_waiting(snapshot.waiting)}, and will be taken within seconds."
    lasts = f" At {rate:.3g} a second that takes {span(snapshot.waiting / rate)}." if rate else ""
    busy = "the one worker is" if alive == 1 else f"all {alive} are"
    return f"More workers would help: {busy} busy, and {_waiting(snapshot.waiting)}.{lasts}"


def _hindrance(status: Status) -> str | None:
    """Why one more worker would take nothing."""
    if status.snapshot.is_stopped:
        return "posting is stopped"
    if suspended := _suspended(status):
        return f"{suspended} of {_alive(status)} {'is' if suspended == 1 else 'are'} suspended"
    return None if status.snapshot.waiting else _waits(status)


def _waits(status: Status) -> str:
    """What waits for something else than a worker."""
    waits: Counter[str] = Counter()
    over = _over(status)
    for (_, reason), count in status.snapshot.counts.by_reason("parked").items():
        waits["for its turn" if reason in over else _WAITS.get(reason, "for something else")] += count
    said = ", ".join(f"{count:,} {what}" for what, count in waits.most_common() if count > 0)
    return f"no event waits for one ({said})" if said else "nothing waits"


def _over(status: Status) -> set[str]:
    """What nothing waits for any more; the books keep the word of when an event was parked."""
    snapshot = status.snapshot
    holds = {
        Reason.PAUSED: snapshot.pause is not None or bool(snapshot.paused),
        Reason.SILENCED: bool(snapshot.silences_in_force),
        Reason.QUIET: bool(status.quiet),
    }
    return {reason.value for reason, does_hold in holds.items() if not does_hold}


def _died(lately: Lately) -> dict[str, int]:
    """How many became dead letters by reason, the most first; but for those suppressed, or about what was over."""
    dead = Counter({reason: count for (outcome, reason), count in lately.ended.items() if outcome == "dead"})
    works = {reason for reason in dead if is_suppressed(reason) or reason == Reason.RESOLVED}
    return {reason: count for reason, count in dead.most_common() if reason not in works}


def _alive(status: Status) -> int:
    return sum(each.alive for each in status.workers)


def _suspended(status: Status) -> int:
    """How many of the living workers take nothing, because of ``rq suspend``."""
    return sum(each.alive and each.state == "suspended" for each in status.workers)


def _events(count: int) -> str:
    return f"{count:,} {'event' if count == 1 else 'events'}"


def _waiting(count: int) -> str:
    return f"{_events(count)} {'waits' if count == 1 else 'wait'}"


def _sentence(words: str) -> str:
    """The words as a sentence of their own."""
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."
