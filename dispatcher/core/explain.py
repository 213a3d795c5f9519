"""What happened to an event, in one sentence: the same in ``explain``, in the log and with a dead letter. Pure.

Instants are microseconds of the server's clock; a sentence names them in the zone of whoever reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TypeAlias

from dispatcher.core.limits import Denied, Kind, Limit, Reason, is_repeat, refused_by
from dispatcher.core.quiet import QUIET_PREFIX
from dispatcher.core.silences import SILENCE_PREFIX, Silence
from dispatcher.core.units import US, format_duration

Clock: TypeAlias = Callable[[int], str]
"""An instant as people read it."""

_SPAN: Final = re.compile(r"([0-9.]+)([a-z]+)")
_SCOPES: Final = {"global": "all events together", "shared": "what the guarantees leave for all"}
_OF_CATEGORY: Final = {
    "guarantee": "the guarantee of {}",
    "kept": "what the guarantee of {} keeps for its notice or digest",
    "singles": "category {} (one more is kept for its notice or digest)",
    "digest": "what category {} keeps for its notice or digest",
}
_PART: Final = "what "
"""So the words of a scope begin that is a part of a limit: it uses nothing itself."""
_OUTCOMES: Final = {"dropped": "Dropped", "digested": "Counted into a digest", "dead": "Dead letter"}
_IN_LINES: Final = ("outcome", "reason", "category", "scope", "limit", "code", "detail", "channel", "instead_of")
"""What a log line has of a decision as it is."""

OWN: Final = "This is no event but a message of the dispatcher itself: 'dispatcher status' shows what it counts."
MALFORMED: Final = "What is stored of it cannot be read: the next worker that takes it makes it a dead letter."
NO_LETTER: Final = " It is no longer kept as a dead letter."
_HELD: Final = "its room was held by admitted events that were not posted yet"
_COUNTED: Final = "Counted in the message that it repeats"
_ANOTHER: Final = "another event about the same thing"
_NO_MESSAGE: Final = "no message is known that says that the failure goes on"
_HOLDING: Final = "its room is held by admitted events that are not posted yet"


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one event, at ``at_us``. ``fits_at_us`` is when the limit that refused it would have let it pass.

    ``copies`` of it may stand in Slack, beside what was sent: posts with an unknown delivery status that could not be
    found in the history. ``since_us`` is since when what expired has waited, or since when there is the silence that
    suppressed it. ``shadow`` are limits that would have refused it and are not enforced. ``instead_of`` is the channel
    it was meant for, which is gone: ``channel`` is its category's fallback. ``text`` is the beginning of the event's
    text, as far as it is kept; ``priority`` is known where the labels are. Of a duplicate whose first decision is no
    longer kept only ``outcome`` and ``reason`` are known. ``repeats`` are those of the event that no message counts.
    ``refused_by`` is the part of the limit that refused it, where a slot of the limit is kept for a digest or notice.
    """

    id: str
    at_us: int
    outcome: str
    reason: str
    category: str | None = None
    scope: str | None = None
    limit: str | None = None
    fits_at_us: int | None = None
    code: str | None = None
    detail: str | None = None
    channel: str | None = None
    ts: str | None = None
    copies: int = 0
    shadow: Sequence[str] = ()
    since_us: int | None = None
    text: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: str | None = None
    instead_of: str | None = None
    repeats: int = 0
    refused_by: str | None = None


class State(StrEnum):
    """Where an event is: on the queue, in some worker's hands, parked, at its end, or removed by somebody else.

    Or there is nothing to be told.
    """

    WAITING = "waiting"
    IN_FLIGHT = "in_flight"
    PARKED = "parked"
    SETTLED = "settled"
    REMOVED = "removed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What happened to the event that was asked about by ``id``; ``job_id`` is the one on the queue.

    ``at`` is when it was settled, ``first_seen`` when a worker first took it, ``fits_at`` when the limit that refused
    it would have let it pass, ``next_at`` when it is expected to go on: all in seconds since 1970. ``before`` is how
    many of its line or lane go before it. ``dead_letter`` says that it is kept as one. What is not known is None.

    Of an event that waits for room in a limit: ``used`` of ``max`` slots are used in ``window_s`` seconds, ``place`` is
    its place in line from 1, and ``expected_at`` when it is expected to go: for the first in line at the earliest, an
    estimate for the others. ``text`` is that of an event that a worker has taken; after its end, the beginning that is
    kept. The same holds for ``labels`` and ``category``.
    """

    id: str
    job_id: str
    state: State
    sentence: str
    outcome: str | None = None
    reason: str | None = None
    at: float | None = None
    category: str | None = None
    channel: str | None = None
    scope: str | None = None
    limit: str | None = None
    used: int | None = None
    max: int | None = None
    window_s: float | None = None
    place: int | None = None
    expected_at: float | None = None
    fits_at: float | None = None
    first_seen: float | None = None
    next_at: float | None = None
    before: int | None = None
    attempts: int | None = None
    replays: int | None = None
    worker: str | None = None
    code: str | None = None
    detail: str | None = None
    ts: str | None = None
    dead_letter: bool = False
    text: str | None = None
    labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """The limit for which an event waits, how many slots of it are used, and when the event is expected to go.

    ``at_us`` is None where the limit is full of held slots: nobody knows when these are posted.
    """

    scope: str
    limit: Limit
    used: int
    at_us: int | None

    @property
    def use(self) -> str:
        """``10 of 10 in 30 min``."""
        return _use(self.used, self.limit)


def clock_of(now_us: int, zone: tzinfo | None = None) -> Clock:
    """Instants in the zone (None: of this machine), with the date unless that is today's."""
    known: dict[int, str] = {}

    def date_and_time(at_s: int) -> tuple[str, str]:
        date, _, clock = datetime.fromtimestamp(at_s, UTC).astimezone(zone).isoformat(" ").partition(" ")
        return date, clock[: len("12:03:11")]

    today, _ = date_and_time(now_us // US)

    def shown(at_us: int) -> str:
        at_s = at_us // US
        if at_s not in known:
            date, clock = date_and_time(at_s)
            known[at_s] = clock if date == today else f"{date} {clock}"
        return known[at_s]

    return shown


def ended(decision: Decision, at: Clock) -> str:
    """How the event came to its end, and what no message or perhaps one too many tells of it."""
    sentence = _ended(decision, at)
    if decision.repeats:
        sentence += f" No message tells of its {_count(decision.repeats, 'repeat', 'repeats')}."
    if decision.outcome == "sent" or not decision.copies:
        return sentence
    return f"{sentence} It may stand in Slack: {_count(decision.copies, 'post', 'posts')} of it had no clear answer."


def _ended(decision: Decision, at: Clock) -> str:
    when = at(decision.at_us)
    match decision.outcome:
        case "sent":
            copies = f"; {_count(decision.copies, 'copy', 'copies')} may stand beside it" if decision.copies else ""
            against = " and ".join(decision.shadow)
            shadow = f"; not enforced, {against} would have refused it" if against else ""
            gone = f", since {decision.instead_of} is gone" if decision.instead_of else ""
            return f"Sent to {decision.channel} at {when}{gone}{copies}{shadow}."
        case "duplicate":
            return f"Duplicate at {when}: an event of this id came before."
        case _:
            edited = decision.outcome == "digested" and decision.reason == Reason.RESOLVED
            what = "Told by an edit" if edited else _OUTCOMES.get(decision.outcome, decision.outcome.capitalize())
    if decision.reason == Reason.REPEAT and decision.outcome == "digested":
        what = _COUNTED
    if decision.reason == Reason.CANCELLED:
        return f"Cancelled at {when}{_words(decision.detail)}."
    if _is_of_a_limit(decision) or decision.reason in _SAID_IN_FULL:
        return f"{what} at {when}: {why(decision, at)}."
    code = f" ({decision.code})" if decision.code else ""
    words = why(decision, at)
    since = "" if decision.since_us is None else f", since {at(decision.since_us)}"
    sentence = f"{what} at {when}, {decision.reason}{code}{words and f': {words}'}{since}"
    return sentence if sentence.endswith("?") else f"{sentence}."


def why(decision: Decision, at: Clock) -> str:
    """What the reason stands for, without a full stop; empty where there is nothing to be added to it."""
    if decision.reason == Reason.REPEAT:
        return _words_of_letter(decision) if decision.outcome == "dead" else _repeat(decision, at)
    if decision.reason in {Reason.RESOLVED, Reason.UNPOSTED}:
        return _recovery(decision, at)
    if decision.reason == Reason.QUIET and decision.since_us is not None and decision.fits_at_us is not None:
        return quiet_words(decision.detail or "", decision.since_us, decision.fits_at_us, at)
    if decision.reason == Reason.SILENCED and decision.fits_at_us is not None:
        since = "" if decision.since_us is None else f" from {at(decision.since_us)}"
        return f"silenced{since} until {at(decision.fits_at_us)}{_words(decision.detail)}"
    if _is_of_a_limit(decision):
        used_up = _used_up(decision.scope or "", decision.limit or "", decision.refused_by)
        return f"{used_up}; {_fits(decision, at)}"
    return (decision.detail or "").removesuffix(".")


def dropped(denied: Denied, now_us: int, at: Clock, outcome: str = "dropped") -> str:
    """As ``ended``, of an event that a limit drops or digests now: for storms, in a quarter of the time."""
    if is_repeat(denied):
        what = _COUNTED if outcome == "digested" else _OUTCOMES[outcome]
        return f"{what} at {at(now_us)}: a repeat of {_ANOTHER}."
    used_up, fits_us = _used_up(denied.scope, str(denied.limit), refused_by(denied)), denied.retry_after_us
    if fits_us > denied.limit.window_us:
        return f"{_OUTCOMES[outcome]} at {at(now_us)}: {used_up}; {_HELD}."
    return f"{_OUTCOMES[outcome]} at {at(now_us)}: {used_up}; it would have fitted at {at(now_us + fits_us)}."


def sentence_of(facts: Mapping[str, Any], now_us: int, at: Clock, denied: Denied | None = None) -> str:
    """The sentence of an event that ends now, of what its log line says; ``denied`` where it was."""
    told: dict[str, Any] = {name: facts.get(name) for name in _IN_LINES}
    if told["reason"] == Reason.REPEAT and told["outcome"] != "dead":
        told["detail"] = None  # a line does not say whether the first event has been admitted
    wait_s, until_s = facts.get("retry_after_s"), facts.get("until")
    fits_at_us = None if wait_s is None else now_us + round(wait_s * US)
    decision = Decision(
        id="",
        at_us=now_us,
        fits_at_us=fits_at_us if until_s is None else round(until_s * US),
        copies=facts.get("perhaps_copies", 0),
        since_us=None if facts.get("since") is None else round(facts["since"] * US),
        refused_by=refused_by(denied),
        **told,
    )
    return ended(decision, at)


def waits_for_room(room: Room, place: int, now_us: int, hindrance: str | None, at: Clock) -> str:
    """An event that waits in a category's line, at this place from 1; the hindrance keeps all events from going."""
    said = _in_line(room, place)
    if hindrance is not None:
        return f"{said}; {hindrance}."
    if room.at_us is None:
        return f"{said}. When it goes is not known: {_HOLDING}."
    if room.at_us <= now_us:
        return f"{said}, expected now."
    if place == 1:
        return f"{said}, expected at {at(room.at_us)} at the earliest."
    return f"{said}, expected at about {at(room.at_us)} (an estimate)."


def expires_in_line(room: Room, place: int, now_us: int, deadline_us: int, at: Clock) -> str | None:
    """As ``waits_for_room``, of an event that expires before there is room; None of one that does not."""
    if room.at_us is None or deadline_us > max(room.at_us, now_us):
        return None
    said = _in_line(room, place)
    if deadline_us <= now_us:
        return f"{said}; its max_age ended at {at(deadline_us)}, so it expires now."
    if place == 1:
        return f"{said}; it will expire at {at(deadline_us)}, since room is expected only at {at(room.at_us)}."
    ends = f"it will probably expire at {at(deadline_us)}"
    return f"{said}; {ends}, since room is expected only at about {at(room.at_us)}."


def _in_line(room: Room, place: int) -> str:
    words, has = scope_words(room.scope), "have" if room.scope == "global" else "has"
    said = f"Waits for room: {words} {has} used {room.use}"
    if words.startswith(_PART):
        said = f"Waits for room: of {words}, {room.use} {'is' if room.used == 1 else 'are'} used"
    return f"{said}; {'first' if place == 1 else f'number {place}'} in line"


def deferred(scope: str, before: int, next_us: int | None, at: Clock, hindrance: str | None = None) -> str:
    """As ``waits_for_room``, where the limits are not known.

    ``next_us`` is when the next may pass, None while that is decided.
    """
    words = scope_words(scope)
    room = f"Waits for room: {words} {'was used up' if words.startswith(_PART) else 'had used up a limit'}"
    if scope.startswith(SILENCE_PREFIX):
        room = f"Waits: it was silenced (silence {scope.removeprefix(SILENCE_PREFIX)})"
    if scope.startswith(QUIET_PREFIX):
        room = f"Waits: quiet hours {scope.removeprefix(QUIET_PREFIX)}"
    if before:
        return f"{room}; it is behind {_others(before)}."
    if next_us is None and hindrance is not None:
        return f"{room}; {hindrance}."
    return f"{room}; as the next of its line it is expected {'now' if next_us is None else f'at {at(next_us)}'}."


def silenced(silence: Silence, before: int, at: Clock) -> str:
    """An event that waits for the end of a silence."""
    behind = f"; it is behind {_others(before)}" if before else ""
    return f"Waits: it is silenced from {at(silence.from_us)} until {at(silence.ends_us)} {silence.detail}{behind}."


def quiet_words(name: str, since_us: int, until_us: int, at: Clock) -> str:
    """``quiet hours nights from 22:00:00 until 07:00:00``."""
    return f"quiet hours {name} from {at(since_us)} until {at(until_us)}"


def quiet(words: str, before: int) -> str:
    """An event that waits for the end of quiet hours."""
    return f"Waits: {words}{f'; it is behind {_others(before)}' if before else ''}."


def for_channel(channel: str, before: int, hindrance: str) -> str:
    """An admitted event that waits for its channel; the hindrance is one of the sentences' parts below."""
    return f"Admitted, and waits for channel {channel}: {hindrance}; {_place(before)}."


def for_edit(before: int, hindrance: str) -> str:
    """As ``for_channel``, of an event that edits a message: all edits have one line of their own."""
    return f"Admitted, and waits to edit the message: {hindrance}; {_place(before)}."


def _place(before: int) -> str:
    return f"it is behind {_others(before)}" if before else "it is the next"


def paused(since_us: int, words: str, at: Clock) -> str:
    """A hindrance: nobody posts."""
    return f"posting is paused since {at(since_us)} ({words})"


def after_pause(hindrance: str, until: str | None) -> str:
    """An admitted event whose answer has paused all: it leaves its channel's line, and another one tries first.

    ``until`` is None where it waits for nothing but the end of the pause.
    """
    return f"Admitted, and waits: {hindrance}{f'; it goes on at {until} at the earliest' if until else ''}."


def paused_category(category: str, since_us: int, words: str, at: Clock) -> str:
    """A hindrance: nothing of its category is posted."""
    return f"category {category} is paused since {at(since_us)} ({words})"


def failing(failures: int, until_us: int, at: Clock, *, edits: bool = False) -> str:
    """A hindrance: the channel itself, or that of the ``edits``, gave no clear answers."""
    what = _count(failures, "edit", "edits") if edits else f"{_count(failures, 'post', 'posts')} to it"
    return f"the last {what} had no clear answer, so the next one tries at {at(until_us)}"


def cooling(until_us: int, at: Clock, *, edits: bool = False) -> str:
    """A hindrance: Slack asked for it, or posts there, or the ``edits``, fail."""
    if edits:
        return f"after Slack's 429, or edits without a clear answer, nobody edits until {at(until_us)}"
    return f"after Slack's 429, or posts without a clear answer, nobody posts there until {at(until_us)}"


def paced(next_us: int | None, now_us: int, at: Clock, *, edits: bool = False) -> str:
    """A hindrance: the pace of the channel or of ``edits``, the one in flight, or that no worker is free."""
    if next_us is None:
        return "another edit is in flight" if edits else "another post to it is in flight"
    pace = "the pace of edits" if edits else "its pace"
    return f"{pace} lets the next go at {at(next_us)}" if next_us > now_us else "the next goes when a worker is free"


def alone(why: str, until: str, hindrance: str | None = None) -> str:
    """The only event that a limit suppressed, of a category that digests."""
    goes_on = f"; {hindrance}" if hindrance else f", else it is posted at {until}"
    return f"Suppressed ({why}), so far as the only one; a second one makes it a digest{goes_on}."


def on_timer(  # noqa: PLR0913 - facts first, the rest by name
    why: str, attempts: int, most: int, until: str, hindrance: str | None = None, *, has_history: bool = True
) -> str:
    """An admitted event with an instant of its own. The hindrance keeps it from going on, though that has come.

    A webhook's channel ``has_history`` that cannot be searched.
    """
    if why.startswith(Reason.RECONCILE):
        searched = f"the channel's history is searched for it at {until}"
        goes_on = hindrance or (searched if has_history else f"what follows from that is decided at {until}")
        return f"Posted with no clear answer ({why}); {goes_on}."
    if why.startswith(Reason.RESOLVED):
        waits = "waits for a post about the failure, or until its message may be edited again"
        return f"Tells of a recovery, and {waits}; {hindrance or f'it looks again at {until} at the latest'}."
    return f"Admitted, {attempts} of {most} attempts used ({why}); {hindrance or f'it goes on at {until}'}."


def scheduled(at_us: int, at: Clock) -> str:
    """An event that is to be posted later."""
    return f"Scheduled: it asks for room in the limits at {at(at_us)}, not earlier."


def in_hands(worker: str | None, attempts: int, most: int, *, is_sending: bool, searches: bool = False) -> str:
    """An event that a worker holds, or nobody since the last one gave it back or died."""
    if worker is None:
        return "In flight: its worker gave it back or died, it is among the next to be taken."
    if is_sending:
        return f"In flight: worker {worker} is posting it, attempt {attempts} of {most}."
    if searches:
        return f"In flight: worker {worker} looks in the channel's history for its post."
    return f"In flight: worker {worker} is deciding about it."


def on_lane(lane: str, before: int | None, status: str, *, is_replayed: bool = False) -> str:
    """An event on the queue; ``before`` is None where it is not among the first of its lane.

    No worker of ours has seen it, unless it was replayed: then no worker has since.
    """
    waits, since = ("Replayed, and waits", " since") if is_replayed else ("Waits", "")
    if status not in {"", "queued"}:
        return f"{waits} on the queue: no worker of ours has taken it{since}, RQ says of its job that it is {status}."
    place = "" if before is None else ", as the next" if not before else f", behind {_others(before)}"
    return f"{waits} on the queue, on lane {lane}{place}{'' if is_replayed else '; no worker has taken it yet'}."


def removed(missed_us: int, at: Clock) -> str:
    """An event that no worker took, and that is no longer on the queue."""
    return f"Removed from the queue by somebody else before {at(missed_us)}: no worker of ours has taken it."


def unknown(shown_id: str, remembered_until_us: int | None, at: Clock) -> str:
    """There is no event of the id, and no decision."""
    if remembered_until_us is not None:
        return (
            f"The event {shown_id} has ended, but what became of it is no longer kept; "
            f"its id is remembered until {at(remembered_until_us)}."
        )
    return (
        f"There is nothing about {shown_id}: it was never handed over, or it was removed from the queue, "
        "or what became of it is no longer kept."
    )


def too_short(fewest: int) -> str:
    """No id was looked for that begins with what was asked for."""
    return f"The beginning of an id is looked for if it has {fewest} characters or more."


def ambiguous(beginning: str, named: Sequence[str], count: int) -> str:
    """Several ids begin with what was asked for; ``count`` of them, or more than are ``named``."""
    many = f"{count} ids begin" if count == len(named) else f"More than {len(named)} ids begin"
    return f"{many} with {beginning!r}, give more of the one that you mean: {', '.join(named)}."


def limit_words(limit: str) -> str:
    """``10 of 10 in 30 min`` of ``10/30m``; a text that is no limit stays as it is."""
    parsed = _parsed(limit)
    if parsed is None:
        return limit
    return _use(parsed.max, parsed)


def _use(used: int, limit: Limit) -> str:
    span = _SPAN.sub(lambda part: f"{part[1]} {'min' if part[2] == 'm' else part[2]}", format_duration(limit.window_us))
    return f"{used} of {limit.max} in {span}{f' ({limit.kind})' if limit.kind is Kind.FIXED else ''}"


def _repeat(decision: Decision, at: Clock) -> str:
    """``a repeat of ID, whose window was then from 12:01:00 until 16:01:00; it ends earlier if ...``.

    The window begins as the first event is admitted, and moves to the start of its post: so it is that of the repeat.
    """
    first = decision.detail
    if first is None:
        return f"a repeat of {_ANOTHER}"
    if decision.since_us is None:
        return f"a repeat of {first}, which waited to be posted then"
    until = "" if decision.fits_at_us is None else f" until {at(decision.fits_at_us)}"
    window = f"whose window was then from {at(decision.since_us)}{until}"
    return f"a repeat of {first}, {window}; it ends earlier if {first} ends unposted or is resolved"


def _words_of_letter(decision: Decision) -> str:
    """Of a dead letter that is a repeat: its detail is a text, no event's id."""
    return (decision.detail or f"a repeat of {_ANOTHER}").removesuffix(".")


_SAID_IN_FULL: Final = frozenset({Reason.REPEAT, Reason.QUIET, Reason.SILENCED, Reason.RESOLVED, Reason.UNPOSTED})
"""For these reasons the sentence is what ``why`` says, and nothing else."""


def _recovery(decision: Decision, at: Clock) -> str:
    """What an event has to do with a recovery."""
    if decision.reason == Reason.UNPOSTED:
        return f"a recovery that has nothing to tell; {decision.detail or _NO_MESSAGE}"
    if decision.outcome == "digested":
        return f"the message of {decision.detail or 'an earlier event'} says that it is over"
    when = "" if decision.since_us is None else f" at {at(decision.since_us)}"
    # the detail of a dead letter is a text, no event's id
    said = f", as {decision.detail} says" if decision.detail and decision.outcome != "dead" else ""
    return f"what it is about was over{when} before it was posted{said}"


def _is_of_a_limit(decision: Decision) -> bool:
    return decision.scope is not None and decision.limit is not None and decision.reason != Reason.OVERFLOW


def _fits(decision: Decision, at: Clock) -> str:
    if decision.fits_at_us is None:
        return "when it would have fitted is not known"
    if _is_held(decision.limit, decision.fits_at_us - decision.at_us):
        return _HELD
    return f"it would have fitted at {at(decision.fits_at_us)}"


def _is_held(limit: str | None, wait_us: int) -> bool:
    """Whether slots that are held kept the event off: when these are posted, nobody knows."""
    parsed = _parsed(limit or "")
    return parsed is not None and wait_us > parsed.window_us


_UNTIL: Final = {
    Reason.SILENCED: "Silenced until",
    Reason.QUIET: "Quiet until",
    Reason.REPEAT: "Repeats until",
}


def fits_label(reason: str, limit: str | None, at_us: int, fits_at_us: int) -> str | None:
    """What a heading calls the instant from which the event would have passed; None where the instant means nothing."""
    if _is_held(limit, fits_at_us - at_us):
        return None
    return _UNTIL.get(Reason(reason), "Room at") if reason in set(Reason) else "Room at"


@lru_cache(maxsize=1024)
def _used_up(scope: str, limit: str, refused_by: str | None) -> str:
    name, _, own = (refused_by or "").partition(" ")
    whole, part = _parsed(limit), _parsed(own)
    if whole is None or part is None:
        words = scope_words(scope)
        if words.startswith(_PART):
            return f"of {words}, {limit_words(limit)} {'was' if whole and whole.max == 1 else 'were'} used"
        return f"{words} had used {limit_words(limit)}"
    used = _use(part.max, whole)
    if name.startswith(("digest:", "kept:")):
        return f"{scope_words(scope)} had used the {used} that is kept for its notice or digest"
    return f"{scope_words(scope)} had used {used}, and {whole.max - part.max} is kept for its notice or digest"


def _parsed(limit: str) -> Limit | None:
    try:
        return Limit.parse(limit)
    except ValueError:
        return None


def scope_words(scope: str) -> str:
    """``category errors``, ``host=db1 of category errors``, ``all events together``."""
    kind, _, name = scope.partition(":")
    if kind == "label":
        owner, equals, value = name.partition("=")
        category, _, label = owner.rpartition(":")
        return f"{label}{equals}{value} of category {category}"
    if kind in _OF_CATEGORY:
        return _OF_CATEGORY[kind].format(name)
    return _SCOPES.get(scope, f"{kind} {name}".strip())


def _words(detail: str | None) -> str:
    return f" {detail.removesuffix('.')}" if detail else ""


def _others(count: int) -> str:
    return _count(count, "other", "others")


def _count(count: int, one: str, many: str) -> str:
    return f"1 {one}" if count == 1 else f"{count} {many}"
