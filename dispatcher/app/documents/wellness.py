"""Whether the dispatcher is well, and whether more workers would help, each in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dispatcher.app.documents.facts import Status
from dispatcher.app.documents.instants import span
from dispatcher.app.documents.pause_words import pause_in_words
from dispatcher.app.documents.recent import Lately, is_suppressed
from dispatcher.core.limits import EVERYTHING
from dispatcher.core.rendering import one_line
from dispatcher.core.units import US

SOON_S: Final = 10.0
"""What the workers take within this time is no backlog."""


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
    if (stopped := _stopped(status) or _unmanned(status)) is not None:
        return stopped
    if imbalances := snapshot.imbalances():
        return Level.ILL, f"It is not well: the books do not balance. {_sentence(imbalances[0])}"
    together = status.recent.together()
    if died := _died(together):
        said = ", ".join(f"{count} {reason}" for reason, count in died.items())
        return Level.LOOK, f"Events have died in the last 30 minutes: {said}. See Dead letters."
    if suppressed := together.suppressed():
        said = ", ".join(f"{number} {cause}" for cause, number in together.causes().items())
        return Level.WELL, f"It is well. The limits suppressed {_events(suppressed)} in the last 30 minutes: {said}."
    return Level.WELL, "It is well. Nothing was suppressed in the last 30 minutes."


def _stopped(status: Status) -> tuple[Level, str] | None:
    """Why nobody posts."""
    snapshot = status.snapshot
    by_hand = snapshot.paused.get(EVERYTHING)
    if by_hand is not None:
        since = span(max(0.0, (snapshot.now_us - by_hand.since_us) / US))
        why = f": {by_hand.why}" if by_hand.why else ""
        return Level.LOOK, one_line(f"Nothing is posted: paused for {since} by {by_hand.by}{why}.")
    if snapshot.pause is not None:
        said, remedy = pause_in_words(snapshot.pause, snapshot)
        return Level.ILL, f"Nothing is posted: {_sentence(said)} To do: {_sentence(remedy)}"
    return None


def _unmanned(status: Status) -> tuple[Level, str] | None:
    """That no worker runs."""
    if _alive(status):
        return None
    held = status.snapshot.waiting + status.snapshot.in_flight + status.snapshot.parked
    if not held:
        return Level.LOOK, "No worker runs. Nothing waits."
    return Level.ILL, f"It is not well: no worker runs, and {_events(held)} wait."


def _workers(status: Status) -> str:
    snapshot, alive = status.snapshot, _alive(status)
    if not alive:
        return "Start a worker: none runs."
    if _stopped(status) is not None:
        return "More workers would not help: posting is stopped."
    if not snapshot.waiting:
        return f"More workers would not help: {_waits(status)}."
    idle = sum(each.state != "busy" for each in status.workers if each.alive)
    if idle:
        return f"More workers would not help: {idle} of {alive} are idle and take what waits."
    rate = status.recent.rates.get("received", 0.0)
    if rate and snapshot.waiting / rate <= SOON_S:
        return f"More workers would hardly help: {_events(snapshot.waiting)} wait, and are taken within seconds."
    lasts = f" At {rate:.3g} a second they are taken in {span(snapshot.waiting / rate)}." if rate else ""
    busy = "the one worker is" if alive == 1 else f"all {alive} are"
    return f"More workers would help: {busy} busy, and {_events(snapshot.waiting)} wait.{lasts}"


def _waits(status: Status) -> str:
    """What waits for something else than a worker."""
    snapshot = status.snapshot
    deferred = sum(snapshot.deferred.values())
    others = max(0, snapshot.parked - deferred - snapshot.scheduled)
    parts = [
        (deferred, "for room in a limit"),
        (others, "for a channel or a timer"),
        (snapshot.scheduled, "for its time"),
    ]
    said = ", ".join(f"{count:,} {what}" for count, what in parts if count > 0)
    return f"no event waits for one ({said})" if said else "nothing waits"


def _died(lately: Lately) -> dict[str, int]:
    """How many became dead letters by reason, but for those that a limit made."""
    found: dict[str, int] = {}
    for (outcome, reason), count in lately.ended.items():
        if outcome == "dead" and not is_suppressed(outcome, reason):
            found[reason] = found.get(reason, 0) + count
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _alive(status: Status) -> int:
    return sum(each.alive for each in status.workers)


def _events(count: int) -> str:
    return f"{count:,} {'event' if count == 1 else 'events'}"


def _sentence(words: str) -> str:
    """The words as a sentence of their own."""
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."
