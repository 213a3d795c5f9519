"""What passes between a worker and its scripts about events: the rows that a call tells, the records that a take gets.

Rows are JSON, and point to the keys of the call. A record is the header that the scripts keep, and the job's payload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any, Final, assert_never

from dispatcher.core.event import Event, is_remembered
from dispatcher.core.limits import (
    HOLDING_US,
    NO_CATEGORY,
    ONCE_PREFIX,
    Denied,
    Kind,
    Limit,
    Reason,
    Scope,
    all_scopes,
    alternatives_of,
    is_once,
    refused_by,
)
from dispatcher.core.policy import EDITS, GUARANTEE_PREFIX, is_quiet_line, limit_reason
from dispatcher.core.recovery import scope_of_key, subject_of, tally_id
from dispatcher.core.rendering import cut
from dispatcher.core.states import (
    DeadLettered,
    Deferral,
    Digested,
    Dropped,
    Hushed,
    Leased,
    Outcome,
    Parked,
    Place,
    Recovery,
    Reported,
    Sent,
    Settlement,
    Step,
    Terms,
    Told,
    Undecodable,
    is_digest_message,
)
from dispatcher.core.tally import Counting
from dispatcher.core.units import CONVERSATION_ID
from dispatcher.errors import InvalidEvent
from dispatcher.jsonio import decode_answer, encode
from dispatcher.server.keys import Keys
from dispatcher.store.intake import open_envelope, shown_category, shown_of
from dispatcher.store.tallies import (
    DIGEST_CATEGORY,
    collects_us,
    gone_of,
    read_digest_message,
    sample_of,
    unconfirmed_of,
)

MAX_KEPT_TEXT: Final = 3_900
"""Characters of a message that is kept to be edited: all of what one may have."""

_FRESH: Final = 2
"""What the header of an event that was never taken before holds: seq and seen."""


class Table:
    """Collects the keys of a call, each once, and the channels that point to them."""

    def __init__(self, keys: Keys, fixed: Sequence[str]) -> None:
        self.keys = list(fixed)
        self.channels: list[dict[str, Any]] = []
        self.threads: dict[str, int] | None = None
        """The positions of the threads' keys; None if no event names a thread."""
        self._names = keys
        self._positions: dict[str, int] = {}
        self._channel_positions: dict[str, int] = {}

    def subject(self, leased: Leased, terms: Terms) -> dict[str, Any]:
        """What every script is told about an event."""
        return {
            "id": leased.id,
            **_books(leased),
            "configured": terms.configured,
            "channel": self.channel(terms.channel, terms.pace),
            "priority": leased.event.priority.value,
            **self._slots(terms),
            **self._thread(leased.event, terms),
        }

    def scopes(self, terms: Terms) -> list[int]:
        """The positions of the keys of the event's slots."""
        scopes = (*all_scopes(terms.scopes), *terms.shadows)
        return [self.scope(scope) for scope in scopes]

    def scope(self, scope: Scope) -> int:
        """The position of the key of a scope's slots."""
        return self._position(self._names.scope(scope.name))

    def _slots(self, terms: Terms) -> dict[str, Any]:
        scopes = self.scopes(terms)
        holds = [
            position
            for position, scope in zip(scopes, all_scopes(terms.scopes), strict=False)  # shadows hold nothing
            if any(limit.window_us >= HOLDING_US or limit.kind is not Kind.ROLLING for limit in scope.limits)
        ]
        places: dict[str, Any] = {"scopes": scopes, "holds": holds}
        for position, scope in zip(scopes, all_scopes(terms.scopes), strict=False):
            if scope.name.startswith(GUARANTEE_PREFIX):
                places["guarantee"] = position
        return places

    def _thread(self, event: Event, terms: Terms) -> dict[str, str]:
        if event.thread is None or event.thread_ts is not None:
            return {}
        if self.threads is None:
            names, roots = map(self._position, self._names.threads)
            self.threads = {"names": names, "roots": roots}
        return {"thread": f"{terms.channel}\n{event.thread}"}

    def channel(self, name: str, pace: Limit | None) -> int:
        """The position of a channel, which is told with its pace."""
        known = self._channel_positions.get(name)
        if known is not None:
            return known
        channel: dict[str, Any] = {"name": name, "line": self._position(self._names.line(f"channel:{name}"))}
        if pace is not None:
            scope = self._position(self._names.scope(f"pace:{name}"))
            channel |= {"pace": scope, "max": pace.max, "window_us": pace.window_us}
        self.channels.append(channel)
        self._channel_positions[name] = len(self.channels)
        return len(self.channels)

    def tally_of(self, id_: str) -> int:
        """The position of the key of the tally of this id."""
        return self._position(self._names.tally(id_))

    def tally(self, counting: Counting, event: Event) -> dict[str, Any]:
        """The tally that counts a suppressed event."""
        sample = sample_of(event)
        return {
            "id": counting.id,
            "key": self.tally_of(counting.id),
            "delay_us": collects_us(counting),
            "samples": [sample] if sample else [],
        }

    def _position(self, key: str) -> int:
        if key not in self._positions:
            self.keys.append(key)
            self._positions[key] = len(self.keys)
        return self._positions[key]


def _books(leased: Leased) -> dict[str, str]:
    if leased.is_digest_message:
        return {"category": DIGEST_CATEGORY, "of": leased.event.category}
    return {"category": leased.event.category}


def about_of(leased: Leased, terms: Terms, shown: str = "") -> list[Any] | None:
    """An ``about`` of include/subjects.lua; None of an event that does not say what it is about."""
    subject = subject_of(leased)
    if subject is None:
        return None
    remember = int(is_remembered(leased.event, leased.id))
    return [subject.name, str(subject.instant_us), remember, shown, terms.deadline_us - leased.begins_us]


def once_beside_key(leased: Leased, terms: Terms) -> str | None:
    """The name of the event's scope of repeats, where that does not follow from its ``dedup_key``."""
    (first, *_) = all_scopes(terms.scopes) or (None,)
    if first is None or not is_once(first) or first.name == scope_of_key(leased.event):
        return None
    return first.name


def recovery_row(recovery: Recovery) -> dict[str, Any]:
    """One of resolve.lua's events."""
    leased, terms = recovery.candidate
    category = leased.event.category
    row: dict[str, Any] = {
        "id": leased.id,
        "about": about_of(leased, terms),
        "category": category,
        "configured": terms.configured,
        "deadline": str(terms.deadline_us),
        "why": _text("dropped", Reason.RESOLVED, category, None, {"detail": leased.name}),
    }
    row |= {name: True for name in ("cancels", "can_edit", "counts") if getattr(recovery, name)}
    return row | ({"once": recovery.once} if recovery.once else {})


def deferral_row(
    deferral: Deferral, table: Table, shown_chars: int, opened: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """One of line_up.lua's events. ``opened`` says of scopes from which instant on they have room."""
    leased, terms = deferral.candidate.leased, deferral.candidate.terms
    row: dict[str, Any] = {
        "id": leased.id,
        "seq": leased.seq,
        "category": leased.event.category,
        "configured": terms.configured,
        "line": deferral.line,
        "priority": leased.event.priority.value,
        "max": deferral.most,
        "deadline": str(terms.deadline_us),
    }
    denied = deferral.denied
    if denied is not None:  # a held slot may block for a day; once its event is posted, for one window
        row |= {"scope": denied.scope, "wait_us": min(denied.retry_after_us, denied.limit.window_us)}
        choice = alternatives_of(terms.scopes, denied.scope)
        if choice and all(scope.name in opened for scope in choice):
            row |= {"scope": choice[0].name, "opens": [opened[scope.name][0] for scope in choice]}
    elif deferral.until is not None:
        row |= {"scope": deferral.until.scope, "wait_us": deferral.until.wait_us}
    row |= _silenced(deferral.silenced, leased, terms)
    if leased.may_be_edited:
        row["about"] = about_of(leased, terms, shown_of(leased.event, shown_chars))
    once = deferral.once
    if leased.takes > 1:  # a dead worker may have been admitted with it
        row["release"] = [position for position in table.scopes(terms) if once is None or position != table.scope(once)]
    if once is not None:
        row["once"] = [table.scope(once), once.limits[0].window_us]
    # Whether one that has left a line of quiet hours was counted before, the script knows.
    is_first = not leased.line or leased.has_left_silence or is_quiet_line(leased.line)
    if (counting := deferral.counting) is not None and is_first:
        why = _told_to_tally("deferred", leased, counting, denied)
        row["tally"] = table.tally(counting, leased.event) | {"why": why}
    return row


def _told_to_tally(outcome: str, leased: Leased, counting: Counting, denied: Denied | None) -> str:
    """What the tally learns of an event that waits, or finds no place to wait; perhaps nothing refused it yet."""
    refusal = counting.known(denied) if denied is not None else counting.refusal()
    return _text(outcome, limit_reason(refusal.scope), leased.event.category, refusal, {})


def stood_by_row(terms: Terms, table: Table) -> list[Any]:
    """What pace.lua is told of the slots of an event that stood by. It has one in each scope that is no alternative."""
    windows = [limit.window_us for scope in all_scopes(terms.scopes) for limit in scope.limits]
    shadowing = [limit.window_us for scope in terms.shadows for limit in scope.limits]
    needed = [table.scope(each) for each in terms.scopes if isinstance(each, Scope)]
    return [min(windows, default=0), max([*windows, *shadowing], default=0), needed]


def _silenced(ids: tuple[str, ...], leased: Leased, terms: Terms) -> dict[str, Any]:
    """What the silences that match the event count, as include/silences.lua has it."""
    if not ids:
        return {}
    fires = leased.event.dedup_key is not None and not leased.event.is_resolved
    return {"silenced": {"ids": ids, "to": terms.channel} | ({"fires": True} if fires else {})}


def settlement_row(settlement: Settlement, table: Table, shown_chars: int) -> dict[str, Any]:
    """One of settle.lua's events; ``shown_chars`` as in ``shown_of``."""
    subject, terms = settlement.subject, settlement.terms
    row: dict[str, Any]
    if isinstance(subject, Undecodable) or terms is None:
        row = {"id": subject.id, "category": NO_CATEGORY, "configured": True, "scopes": []}
    else:
        row = table.subject(subject, terms)
        row["deadline"] = str(terms.deadline_us)
        if not isinstance(settlement.outcome, Parked | Told | Reported) and is_remembered(subject.event, subject.id):
            row["remember"] = True
        row |= _about(settlement, subject, terms, shown_chars) | _repeats(settlement, subject, terms, table)
        row |= _silenced(settlement.silenced, subject, terms)
    row["slots"] = settlement.slots.value
    if (why := why_of(settlement)) is not None:
        row |= {"why": why, "limited": is_limited(settlement)}
        if isinstance(subject, Leased):
            row["shown"] = shown_of(subject.event, shown_chars)
    row |= _ended(settlement.outcome, settlement)
    row |= _counted(settlement, table)
    if isinstance(settlement.outcome, Parked):
        if (onto := settlement.outcome.fallback) is not None:
            row["onto"] = table.channel(onto.channel, onto.pace)
        if settlement.outcome.begins_thread:
            row["begins_thread"] = True
    if not _is_for_channel(settlement.outcome):
        del row["channel"]
    row |= {name: True for name in ("replied", "arrived", "resume") if getattr(settlement, name)}
    if settlement.cooldown_us is not None:
        row["cooldown_us"] = settlement.cooldown_us
    return row | _reach(settlement)


def _is_for_channel(outcome: Outcome) -> bool:
    """Whether the channel learns of it. An event without a turn or a place in its line changes nothing there."""
    match outcome:
        case Dropped() | Hushed() | Parked(Place.SCHEDULED):
            return False
        case _:
            return True


def _about(settlement: Settlement, leased: Leased, terms: Terms, shown_chars: int) -> dict[str, Any]:
    """What its subject learns of an event that says what it is about."""
    if leased.event.dedup_key is None:
        return {}
    outcome = settlement.outcome
    waits = isinstance(outcome, Parked)
    facts: dict[str, Any] = {"about": about_of(leased, terms, shown_of(leased.event, shown_chars) if waits else "")}
    if leased.event.is_resolved:
        facts["recovers"] = True
        if isinstance(outcome, Sent | Digested):
            facts["is_told"] = True
        if settlement.uneditable:
            facts["uneditable"] = True
    elif isinstance(outcome, Sent):
        receipt = outcome.receipt
        facts["message"] = {"name": leased.name, "line": terms.channel}
        if receipt.ts is not None:
            text = cut(settlement.text or "", MAX_KEPT_TEXT)
            facts["message"] |= {"channel": receipt.channel, "ts": receipt.ts, "text": text}
        if (once := once_beside_key(leased, terms)) is not None:
            facts["once"] = once
    return facts


def _repeats(settlement: Settlement, leased: Leased, terms: Terms, table: Table) -> dict[str, Any]:
    """What the tally of its repeats learns of an event whose message counts them."""
    (first, *_) = all_scopes(terms.scopes) or (None,)
    receipt = settlement.outcome.receipt if isinstance(settlement.outcome, Sent) else None
    if first is None or not is_once(first) or receipt is None or receipt.ts is None or not settlement.counts_repeats:
        return {}
    id_ = tally_id(leased.event.category, first.name)
    text = cut(settlement.text or "", MAX_KEPT_TEXT)
    message = {"channel": receipt.channel, "ts": receipt.ts, "text": text, "event": leased.id}
    if (subject := subject_of(leased)) is not None:
        message |= {"subject": subject.name, "name": leased.name}
    window_us = first.limits[0].window_us
    return {"repeats": {"id": id_, "key": table.tally_of(id_), "window_us": window_us, "message": message}}


def _reach(settlement: Settlement) -> dict[str, Any]:
    """What all workers learn from a post or a history scan."""
    facts: dict[str, Any] = {}
    outcome = settlement.outcome
    if settlement.reached is not None:
        facts["reached" if settlement.reached else "failed"] = True
    if settlement.is_scan:
        facts["scan"] = True
    elif settlement.attempt and (settlement.pause is not None or settlement.reached is False):
        facts["spared"] = settlement.attempt - 1
    if settlement.pause is not None:
        facts |= {"pause": True, "said": asdict(settlement.pause)}
    elif isinstance(outcome, Parked | DeadLettered) and settlement.reached is not None:
        facts["said"] = {"code": outcome.code or "", "detail": outcome.detail or ""}
    if settlement.scan_wait_us is not None:
        facts["scan_wait_us"] = settlement.scan_wait_us
    return facts | _posted_to(outcome, settlement.terms)


def _posted_to(outcome: Outcome, terms: Terms | None) -> dict[str, str]:
    """Slack's own id of the channel, if the event names the channel otherwise."""
    receipt = outcome.receipt if isinstance(outcome, Sent | Told | Reported) else None
    if receipt is None or terms is None or receipt.channel == terms.channel:
        return {}
    return {"channel_id": receipt.channel} if CONVERSATION_ID.fullmatch(receipt.channel) else {}


def _ended(outcome: Outcome, settlement: Settlement) -> dict[str, Any]:
    match outcome:
        case Sent(receipt):
            since = {"since": str(settlement.subject.begins_us)} if isinstance(settlement.subject, Leased) else {}
            return {"outcome": "sent", **since, **({} if receipt.ts is None else {"ts": receipt.ts})}
        case Digested() | Dropped() | Hushed() as suppressed:
            return {"outcome": _name_of(suppressed)}
        case Told():
            return {"outcome": "told"}
        case Reported(receipt, wait_us):
            facts: dict[str, Any] = {} if receipt is None else {"posted": True}
            return {"outcome": "reported", "reported": facts if wait_us is None else facts | {"wait_us": wait_us}}
        case DeadLettered():
            return {"outcome": "dead", "letter": _letter(outcome, settlement)}
        case Parked(place, reason, wait_us, code):
            return {
                "outcome": "parked",
                "place": place.value,
                **_when(place, wait_us, settlement.subject),
                "attempt": settlement.attempt,
                "unknown": settlement.unknown,
                **({"resent": settlement.resent} if settlement.resent else {}),
                **({"unconfirmed": settlement.failed_scans} if settlement.failed_scans is not None else {}),
                "why_parked": [reason.value, code],
            }
        case _:
            assert_never(outcome)


def _name_of(outcome: Digested | Dropped | Hushed) -> str:
    match outcome:
        case Digested():
            return "digested"
        case Dropped():
            return "dropped"
        case Hushed():
            return outcome.outcome
        case _:
            assert_never(outcome)


def _when(place: Place, wait_us: int, subject: Leased | Undecodable) -> dict[str, int]:
    if place is Place.SCHEDULED and isinstance(subject, Leased):
        return {"begins_us": subject.begins_us}
    return {"wait_us": wait_us}


def _counted(settlement: Settlement, table: Table) -> dict[str, Any]:
    """What the settlement changes in a tally."""
    match settlement:
        case Settlement(outcome=Told() as told):
            return _told(told, table)
        case Settlement(
            Leased() as leased,
            outcome=DeadLettered(reason=Reason.OVERFLOW, denied=denied, counting=Counting() as counting),
        ):
            why = _told_to_tally("dead", leased, counting, denied)
            return {"tally": table.tally(counting, leased.event) | {"why": why}}
        case Settlement(
            Leased() as leased,
            outcome=Dropped(counting=Counting() as counting) | DeadLettered(counting=Counting() as counting),
        ):
            return {"tally": table.tally(counting, leased.event)}
        case Settlement(Leased() as leased, outcome=Hushed(hush, Counting() as counting)):
            about = subject_of(leased)
            named = {} if about is None or leased.event.is_resolved else {"subject": about.name}
            return {"tally": table.tally(counting, leased.event) | {"until_us": hush.until_us, **named}}
        case _:
            return {}


def _told(told: Told, table: Table) -> dict[str, Any]:
    counting = told.counting
    facts: dict[str, Any] = {"wait_us": told.wait_us, "delay_us": collects_us(counting)}
    if told.shown is not None:
        facts["shown"] = told.shown
    facts |= {name: True for name in ("can_edit", "ends") if getattr(told, name)}
    if told.step is Step.FAILED:
        facts["failed"] = True
    if told.ts is not None:
        facts["ts"] = told.ts
    if told.receipt is not None:
        window_us = max(counting.window_us, counting.delay_us)
        is_fixed = counting.fixed and window_us == counting.window_us
        facts |= {"posted": {"channel": told.receipt.channel}, "window_us": window_us, "fixed": is_fixed}
        if told.receipt.ts is not None:
            facts["posted"]["ts"] = told.receipt.ts
    return {"told": facts, "tally": {"key": table.tally_of(counting.id)}}


def _channel_of(settlement: Settlement) -> str | None:
    """Where it was to go; of an edit the channel of the message, as Slack names it."""
    subject, terms = settlement.subject, settlement.terms
    if terms is not None and terms.channel == EDITS:
        return subject.edits.channel if isinstance(subject, Leased) and subject.edits is not None else None
    return None if terms is None else terms.channel


def _letter(outcome: DeadLettered, settlement: Settlement) -> dict[str, str]:
    letter = {"reason": outcome.reason.value, "detail": outcome.detail, "attempts": str(settlement.attempt)}
    if (channel := _channel_of(settlement)) is not None:
        letter["channel"] = channel
    if settlement.subject.replays:
        letter["replays"] = str(settlement.subject.replays)
    if outcome.code is not None:
        letter["code"] = outcome.code
    if outcome.denied is not None:
        letter |= {
            "scope": outcome.denied.scope,
            "limit": str(outcome.denied.limit),
            "retry_after_us": str(outcome.denied.retry_after_us),
            **in_part(outcome.denied),
        }
    if outcome.until_us is not None:
        letter["fits_at"] = str(outcome.until_us)
    if outcome.since_us is not None:
        letter["since"] = str(outcome.since_us)
    if settlement.perhaps_posted:
        letter["copies"] = str(settlement.perhaps_posted)
    if isinstance(settlement.subject, Leased):
        letter |= {"posts": str(settlement.subject.posts + settlement.is_posted)}
        letter |= {"category": settlement.subject.event.category, "seen": str(settlement.subject.seen_us)}
    elif settlement.subject.category is not None:
        letter["category"] = settlement.subject.category
    return letter


_LIMITS: Final = frozenset(
    {
        Reason.LIMIT_GLOBAL,
        Reason.LIMIT_CATEGORY,
        Reason.LIMIT_LABEL,
        Reason.OVERFLOW,
        Reason.SILENCED,
        Reason.QUIET,
        Reason.REPEAT,
    }
)


def why_of(settlement: Settlement) -> str | None:
    """The text of a settlement for the decision record, without its instant; None if the event only waits."""
    subject = settlement.subject
    category = subject.category if isinstance(subject, Undecodable) else subject.event.category
    match settlement.outcome:
        case Sent(receipt):
            copies = settlement.perhaps_posted
            channel = receipt.channel if settlement.terms is None else settlement.terms.channel
            said: dict[str, Any] = {"channel": channel, "ts": receipt.ts}
            said |= {"copies": copies} if copies else {}
            said |= {"instead_of": subject.gone.channel} if isinstance(subject, Leased) and subject.gone else {}
            said |= {"shadow": subject.shadowed} if isinstance(subject, Leased) and subject.shadowed else {}
            return _text("sent", Reason.OK, category, None, said)
        case Digested(reason, of):
            return _text("digested", reason, category, None, {} if of is None else {"detail": of})
        case Hushed(hush) as hushed:
            said = {"detail": hush.name, "since_us": hush.since_us, "fits_at_us": hush.until_us}
            return encode([hushed.outcome, category, Reason.QUIET.value, [hush.scope, "", 0], said]).decode()
        case Dropped(denied, reason, detail, until_us, _, since_us):
            return _text("dropped", reason, category, denied, _said(settlement, detail, until_us, since_us=since_us))
        case DeadLettered(reason, detail, code, denied, until_us, _, since_us):
            said = _said(settlement, detail, until_us, code=code, since_us=since_us)
            return _text("dead", reason, category, denied, said)
        case Parked() | Told() | Reported():
            return None
        case _:
            assert_never(settlement.outcome)


def is_limited(settlement: Settlement) -> bool:
    """Whether the event was dropped, or a limit, a silence or quiet hours ended it otherwise."""
    outcome = settlement.outcome
    return isinstance(outcome, Dropped | Hushed) or (isinstance(outcome, DeadLettered) and outcome.reason in _LIMITS)


def _said(
    settlement: Settlement,
    detail: str | None,
    until_us: int | None,
    *,
    code: str | None = None,
    since_us: int | None = None,
) -> dict[str, Any]:
    said = {
        "detail": detail and detail[:200],
        "code": code,
        "fits_at_us": until_us,
        "since_us": since_us,
        "copies": settlement.perhaps_posted,
    }
    return {name: value for name, value in said.items() if value}


@lru_cache(maxsize=4096)
def told_of(scope: Scope, known: tuple[str, Limit] | None = None) -> list[str]:
    """The text of a refusal by each limit of the scope for the decision record, up to the time until there is room.

    ``known`` replaces the name and limit of a scope that keeps a digest's slot apart: people do not know that scope.
    """
    said = [(scope.name, limit) for limit in scope.limits] if known is None else [known] * len(scope.limits)
    return [encode([limit_reason(name).value, [name, str(limit)]]).decode()[1:-2] + "," for name, limit in said]


def _text(outcome: str, reason: Reason, category: str | None, denied: Denied | None, said: dict[str, Any]) -> str:
    refusal = None if denied is None else [denied.scope, str(denied.limit), denied.retry_after_us]
    return encode([outcome, category, reason.value, refusal, said | in_part(denied)]).decode()


def in_part(denied: Denied | None) -> dict[str, str]:
    """What a decision and a dead letter say of the part of a limit that refused; nothing of a limit without parts."""
    part = refused_by(denied)
    return {} if part is None else {"refused_by": part}


def read_new(job_id: str, payload: bytes, seq: int, seen_us: int) -> Leased | Undecodable:
    """A payload that is seen for the first time as a value, as ``read`` would."""
    return _guarded(job_id, payload, {"seq": seq, "seen": seen_us})


def read(job_id: str, record: bytes) -> Leased | Undecodable:
    """A record of ``take`` as a value: the event under lease, or why it is undecodable. Raises nothing.

    A defect of ours that one payload brings to light must not stop the events beside it.
    """
    text, _, payload = record.partition(b"\n")
    try:
        header = decode_answer(text)
    except ValueError:
        header = {"malformed": True}
    return _guarded(job_id, payload, header)


def _guarded(job_id: str, payload: bytes, header: dict[str, Any]) -> Leased | Undecodable:
    try:
        subject = _read_one(job_id, payload, header)
    except Exception as error:  # noqa: BLE001 - see read; the payload is kept with the words
        subject = Undecodable(job_id, Reason.INVALID, f"cannot be read: {type(error).__name__}: {str(error)[:200]}")
    return subject if isinstance(subject, Leased) else replace(subject, category=shown_category(payload))


def _read_one(job_id: str, payload: bytes, header: dict[str, Any]) -> Leased | Undecodable:
    if is_digest_message(job_id):
        return read_digest_message(job_id, header, payload)
    if "malformed" in header:
        return Undecodable(job_id, Reason.INVALID, "its stored header cannot be read; the dead letter keeps it")
    return _read(job_id, payload, header)


def _read(job_id: str, payload: bytes, header: dict[str, Any]) -> Leased | Undecodable:
    if not payload:
        detail = "the job's time to live ended before it was taken; no payload is left"
        return Undecodable(job_id, Reason.EXPIRED, detail, header.get("replays", 0))
    try:
        event = open_envelope(job_id, payload)
    except InvalidEvent as error:
        return Undecodable(job_id, Reason.INVALID, str(error), header.get("replays", 0))
    seq, seen_us = int(header["seq"]), int(header["seen"])
    if len(header) == _FRESH:
        return Leased(job_id, event, seq, seen_us)
    return Leased(
        id=job_id,
        event=event,
        seq=seq,
        seen_us=seen_us,
        attempt=header.get("attempt", 0),
        unknown=header.get("unknown", 0),
        held=header.get("held", False) or _was_admitted(header),
        channel=header.get("channel"),
        takes=header.get("takes", 1),
        replays=header.get("replays", 0),
        deaths=header.get("deaths", 0),
        line=header.get("line"),
        unconfirmed=unconfirmed_of(header),
        resent=header.get("resent", 0),
        shadowed=tuple(header.get("shadow", ())),
        buffered="buffered" in header,
        posts=header.get("posts", 0),
        why=_why(header.get("why")),
        code=header.get("code"),
        counted=header.get("counted"),
        gone=gone_of(header),
        has_slots=_has_slots(header),
    )


def _was_admitted(header: dict[str, Any]) -> bool:
    """Whether the gate admitted it, and the worker died or gave it back before a post of it started."""
    was_tried = header.get("attempt") or header.get("unknown") or "unconfirmed" in header
    return not was_tried and _has_slots(header)


def _has_slots(header: dict[str, Any]) -> bool:
    """Whether it has slots of limits. A slot for what it is about is none: one that waits in line has such a slot."""
    return any(not name.startswith(ONCE_PREFIX) for name in header.get("slots", ()))


def _why(row: Any) -> tuple[str, str | None] | None:  # noqa: ANN401 - a field of the header
    return (row[0], row[1]) if row else None
