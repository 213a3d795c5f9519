"""The states of an event: what a worker holds under its lease, what becomes of it, what a history scan can find.

These are the values between the steps of the core, and between core and store. Those that every event needs are named
tuples: they are made in a quarter of the time of a frozen dataclass.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias, assert_never

from dispatcher.core.event import Event
from dispatcher.core.limits import Demand, Denied, Limit, Reason, Scope, is_once
from dispatcher.core.posts import Paused, Receipt
from dispatcher.core.quiet import Hush
from dispatcher.core.silences import SILENCE_PREFIX, EndedSilence
from dispatcher.core.tally import Counting, Tally, Telling
from dispatcher.core.units import US

MARGIN_US: Final = 60 * US
"""So much before the first post a history scan begins: the server's clock and Slack's may differ."""

GRACE_US: Final = 10 * US
"""From a post with an unknown delivery status to its first history scan, unless the settings say otherwise."""

LAST_SCAN: Final = 3
"""After so many graces from the post, what a complete history scan does not show has not arrived."""

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has none; its monotonic clock stops
_OWN: Final = (*(f"{telling}:" for telling in Telling), SILENCE_PREFIX)


class Trouble(StrEnum):
    """Where posts fail: in the whole fleet, or several in a row in one channel."""

    OUTAGE = "outage"
    CHANNEL = "channel"


class Unconfirmed(NamedTuple):
    """The fate of an event's last post is unknown: it was marked as sending at ``sent_us``, the first at ``first_us``.

    Both are by the server's clock as it is now; where that was stepped back since, ``first_us`` is rather too early.

    ``failed_scans`` counts history scans that broke off; ``channel`` is Slack's id of the channel, where that is known;
    ``root`` is what the post went under by the key of its thread. ``trouble`` says where posts fail meanwhile, if they
    do.
    """

    sent_us: int
    first_us: int
    failed_scans: int = 0
    channel: str | None = None
    root: str | None = None
    trouble: Trouble | None = None


class Posted(NamedTuple):
    """The newest message about a failure: the event ``name`` was created at ``since_us`` and posted there."""

    name: str
    since_us: int
    channel: str
    ts: str
    text: str
    times: int = 1
    """How often it was told, repeats included."""


class Gone(NamedTuple):
    """The channel that an event was meant for, and the code with which Slack said that it is gone or archived."""

    channel: str
    code: str


@dataclass(frozen=True, slots=True)
class Fallback:
    """The channel that stands in for one that is gone or archived, and its pace."""

    channel: str
    pace: Limit | None


class Leased(NamedTuple):
    """An event under this worker's lease. ``id`` is its identity (the RQ job id), ``seen_us`` its first sight.

    ``seq`` is the number of that sight. ``line`` says that it came out of its category's line: it is the head of it.

    ``attempt`` counts posts started that used one up, ``unknown`` those whose fate is unknown; ``held`` says that it
    waited admitted and owns held slots. ``channel`` is the one that it waited for; None if it has not waited. ``takes``
    counts the workers that took it up, any of which may have been admitted with it; ``replays`` how often it was a dead
    letter and came back; ``deaths`` how many workers died while they held it. ``unconfirmed`` says that it is to be
    reconciled before anything else; ``resent`` counts the posts made again after one that never arrived. ``shadowed``
    are the shadow limits that would have refused it when it was admitted.

    ``buffered`` says that it alone was suppressed, and waits for others or to be posted as itself. A digest message has
    a ``tally`` that it tells of. ``posts`` counts the posts that were really started, also those that used up no
    attempt; ``why`` is the reason and code for which it last waited on a timer. ``code`` is what its last post was
    answered with, if it did not arrive. ``counted`` is its name in the books, once it has one. ``edits`` is the message
    that it edits instead of posting one: it tells of a recovery. ``gone`` is
    the channel for which its fallback stands in, once it does. ``report`` is what the report of a silence tells of.
    ``has_slots`` says that it has slots of limits, whatever it waited for before.
    """

    id: str
    event: Event
    seq: int
    seen_us: int
    attempt: int = 0
    unknown: int = 0
    held: bool = False
    channel: str | None = None
    takes: int = 1
    replays: int = 0
    deaths: int = 0
    line: str | None = None
    unconfirmed: Unconfirmed | None = None
    resent: int = 0
    shadowed: tuple[str, ...] = ()
    buffered: bool = False
    tally: Tally | None = None
    posts: int = 0
    why: tuple[str, str | None] | None = None
    code: str | None = None
    counted: str | None = None
    edits: Posted | None = None
    gone: Gone | None = None
    report: EndedSilence | None = None
    has_slots: bool = False

    @property
    def was_admitted(self) -> bool:
        """Whether the budget let it pass before: from then on it only waits."""
        return bool(self.held or self.attempt or self.unknown)

    @property
    def is_fresh(self) -> bool:
        """Whether nobody can have asked for slots for it before."""
        return self.takes == 1 and not (self.was_admitted or self.line or self.buffered)

    @property
    def may_own_slots(self) -> bool:
        """Whether it may own slots though it was never admitted.

        A worker that died may have been admitted with it; or it stands in line, and keeps off others that are about
        the same thing.
        """
        return self.takes > 1 or self.line is not None

    @property
    def slots_if_unadmitted(self) -> Slots:
        """What happens to the slots of one that was never admitted and does not go on: it gives back what it owns."""
        return Slots.RELEASE if self.may_own_slots else Slots.KEEP

    @property
    def begins_us(self) -> int:
        """From when on it may be posted, and its age counts: its first sight, or later if it says so.

        A delay that counts from the first sight is over for an event that comes back from the dead letters.
        """
        event = self.event
        if event.not_before is not None:
            return max(self.seen_us, round(event.not_before * US))
        if event.delay is not None and not self.replays:
            return self.seen_us + round(event.delay * US)
        return self.seen_us

    @property
    def is_digest_message(self) -> bool:
        """Whether it is one of the dispatcher's own: a digest, a notice, or the report of a silence."""
        return self.tally is not None or self.report is not None

    @property
    def has_left_silence(self) -> bool:
        """Whether it has waited for the end of a silence, and not asked for room yet."""
        return self.line is not None and self.line.startswith(SILENCE_PREFIX)

    @property
    def name(self) -> str:
        """The id the producer knows."""
        return self.event.id or self.id

    @property
    def may_be_edited(self) -> bool:
        """Whether its message may be edited later: it names what it is about, and tells of no recovery."""
        return self.event.dedup_key is not None and not self.event.is_resolved

    @property
    def thread_ts(self) -> str | None:
        """The message under which it asks to be posted: one of the channel that it was meant for."""
        return self.event.thread_ts if self.gone is None else None

    @property
    def slot(self) -> str:
        """The id that owns its slots: an unconfirmed post keeps its own, the next one takes another."""
        return f"{self.seq}#{self.unknown}" if self.unknown else str(self.seq)


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A payload under this worker's lease that is no event, and why; ``category`` where the payload shows one."""

    id: str
    reason: Reason
    detail: str
    replays: int = 0
    category: str | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What the policy says of one event: where it goes, how fast, against which scopes, until when."""

    channel: str
    pace: Limit | None
    scopes: tuple[Demand, ...]
    deadline_us: int
    configured: bool
    shadows: tuple[Scope, ...] = ()


class Candidate(NamedTuple):
    """An event and its terms."""

    leased: Leased
    terms: Terms


@dataclass(frozen=True, slots=True)
class Started:
    """A post that may leave now: the store has marked it as sending, this is the ``attempt``-th.

    ``thread_ts`` is the first message of its thread, where it names one that has begun. ``leaves_by_s`` is an instant
    of ``boottime_s``, counted from before the mark was asked for: after it nothing is sent.
    """

    candidate: Candidate
    attempt: int
    thread_ts: str | None = None
    leaves_by_s: float | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """An event that was parked: admitted, by the pace step, or deferred, in the line of its category.

    ``wait_us`` is the time until it (or the head of its line) may go, None while that is not known; ``scope`` what a
    deferred one waits for.
    """

    candidate: Candidate
    reason: Reason
    wait_us: int | None
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """Posted, with the sink's proof; ``found`` by a history scan."""

    receipt: Receipt
    found: bool = False


@dataclass(frozen=True, slots=True)
class Digested:
    """Counted for the message of another event, ``of``."""

    reason: Reason
    of: str | None


class Recovered(NamedTuple):
    """An event about a failure that was over before it was posted, and ended with that.

    ``name`` is the id the producer knows, ``seen_us`` its first sight.
    """

    name: str
    category: str
    seen_us: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Discarded: by a limit, with what would have let it pass, or by hand.

    Then ``detail`` says by whom; of a silence ``since_us`` and ``until_us`` say from when until when. Of a repeat
    ``detail`` is the id of the event that it repeats, and ``since_us`` the begin of its window.
    """

    denied: Denied | None
    reason: Reason
    detail: str | None = None
    until_us: int | None = None
    counting: Counting | None = None
    since_us: int | None = None


class Until(NamedTuple):
    """The end of something that keeps off events whatever the limits say: its scope, and how long it still lasts."""

    scope: str
    wait_us: int


@dataclass(frozen=True, slots=True)
class Hushed:
    """Ended by quiet hours: dropped, or digested where ``counting`` says who tells of it at their end."""

    hush: Hush
    counting: Counting | None = None

    @property
    def outcome(self) -> str:
        """Its name in the books."""
        return "dropped" if self.counting is None else "digested"


@dataclass(frozen=True, slots=True)
class Deferral:
    """An event that is to stand in its category's line; ``denied`` by the gate, or not asked for yet.

    ``most`` of its category may wait. ``until`` is set where the gate was not asked: what it waits for, a silence or
    quiet hours. ``silenced`` names the silences that match it, first the one that suppresses it. ``counting`` where
    somebody is told of it.
    """

    candidate: Candidate
    line: str
    most: int
    denied: Denied | None = None
    until: Until | None = None
    silenced: tuple[str, ...] = ()
    counting: Counting | None = None

    @property
    def once(self) -> Scope | None:
        """The scope of what it is about, which it holds while it stands in line; None where it may take none."""
        first = self.candidate.terms.scopes[:1]
        scope = first[0] if first and isinstance(first[0], Scope) else None
        return scope if scope is not None and is_once(scope) and self.until is None else None


class Repeat(NamedTuple):
    """A deferral is about the same thing as the event ``of``: its window began at ``since_us``; if None, it waits.

    After ``wait_us`` another one could be posted.
    """

    of: str
    since_us: int | None
    wait_us: int


class Unposted(NamedTuple):
    """There is nothing to tell: nothing about the failure is known to be in Slack, or ``detail`` says why."""

    detail: str = ""


class Uneditable(NamedTuple):
    """The message about the failure cannot be edited: the recovery is a message of its own, or none."""


class Awaited(NamedTuple):
    """The recovery was parked for so long.

    An event about the failure is in flight, or its message is not to be edited yet.
    """

    wait_us: int


class Lost(NamedTuple):
    """The worker holds the event no more.

    Its lease was taken over, or its header cannot be read and it is the next to be taken.
    """


FailureKnown: TypeAlias = Posted | Unposted | Uneditable | Awaited | Lost
"""What is known of the failure that a recovery tells of."""


class Recovery(NamedTuple):
    """An event that tells of a recovery. ``cancels``: what waits about the failure is not posted any more.

    ``can_edit``: a message can be edited. ``once`` are the names of scopes that the failure's events took. ``counts``:
    repeats are counted in the message that they repeat.
    """

    candidate: Candidate
    cancels: bool
    can_edit: bool
    once: tuple[str, ...]
    counts: bool


class Over(NamedTuple):
    """A deferral tells of a failure that was over at ``since_us``, and ends."""

    since_us: int


class NotParked(StrEnum):
    """What became of a deferral that does not wait."""

    GO = "go"
    FULL = "full"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """Kept for a human. ``until_us`` is when the silence ends that suppressed it, ``counting`` who is told.

    ``since_us`` is since when an expired one has waited, or since when there is the silence.
    """

    reason: Reason
    detail: str
    code: str | None = None
    denied: Denied | None = None
    until_us: int | None = None
    counting: Counting | None = None
    since_us: int | None = None


def _can_bury(reason: Reason) -> bool:
    match reason:
        case Reason.LIMIT_GLOBAL | Reason.LIMIT_CATEGORY | Reason.LIMIT_LABEL:
            return True
        case Reason.EXPIRED | Reason.REJECTED | Reason.INVALID | Reason.AMBIGUOUS | Reason.EXHAUSTED | Reason.OVERFLOW:
            return True
        case Reason.OK | Reason.PACE | Reason.COOLDOWN | Reason.PAUSED | Reason.RETRY | Reason.RECONCILE:
            return False
        case Reason.SILENCED | Reason.QUIET | Reason.REPEAT | Reason.RESOLVED:
            return True
        case Reason.DUPLICATE | Reason.CANCELLED | Reason.SCHEDULED | Reason.UNPOSTED:
            return False
        case _:
            assert_never(reason)


DEADLY: Final = tuple(reason for reason in Reason if _can_bury(reason))
"""The reasons that a dead letter can have."""

WAITING: Final = (
    Reason.LIMIT_GLOBAL,
    Reason.LIMIT_CATEGORY,
    Reason.LIMIT_LABEL,
    Reason.SILENCED,
    Reason.QUIET,
    Reason.PACE,
    Reason.COOLDOWN,
    Reason.PAUSED,
    Reason.RETRY,
    Reason.RECONCILE,
    Reason.SCHEDULED,
    Reason.RESOLVED,
)
"""The reasons for which an event can wait."""


class Place(StrEnum):
    """Where an event waits: in its channel's line, on a timer of its own, or on one that counts from its last post.

    Or, before it asks for room, among those that are scheduled.
    """

    LINE = "line"
    TIMER = "timer"
    SCAN = "scan"
    SCHEDULED = "scheduled"


@dataclass(frozen=True, slots=True)
class Parked:
    """Waits at ``place``; ``wait_us`` is the time until its timer (from now, or from its post), or known of its line.

    ``detail`` is what the sink said. With a ``fallback`` it waits in the line of that channel, and is posted there. If
    it ``begins_thread``, the first message of its thread takes no replies, and the thread is forgotten.
    """

    place: Place
    reason: Reason
    wait_us: int
    code: str | None = None
    denied: Denied | None = None
    detail: str | None = None
    fallback: Fallback | None = None
    begins_thread: bool = False


class Step(StrEnum):
    """What a digest message has done."""

    WAITED = "waited"
    POSTED = "posted"
    EDITED = "edited"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Told:
    """What a digest message has done, of the tally that ``counting`` says. ``shown`` events are told of with it.

    ``wait_us`` is until it tries again; if its message can be edited (``can_edit``), also when more are suppressed.
    With ``ends`` the tally ends, or goes on with what came later. ``ts`` is that of the message in which repeats are
    counted.
    """

    step: Step
    counting: Counting
    wait_us: int = 0
    shown: int | None = None
    receipt: Receipt | None = None
    can_edit: bool = False
    ends: bool = False
    code: str | None = None
    detail: str | None = None
    ts: str | None = None


class Prefiltered(NamedTuple):
    """New events of one category that ``take`` has dropped at ``seen_us``, as ``denied`` said.

    ``names`` are those of the producer.
    """

    category: str
    denied: Denied
    names: list[str]
    seen_us: int


@dataclass(frozen=True, slots=True)
class Reported:
    """What a report of a silence has done: it was posted, there was nothing to tell, or it could not be posted.

    With ``wait_us`` it tries again after that; else that is its end.
    """

    receipt: Receipt | None = None
    wait_us: int | None = None
    code: str | None = None
    detail: str | None = None


Outcome: TypeAlias = Sent | Digested | Dropped | Hushed | DeadLettered | Parked | Told | Reported


class Slots(StrEnum):
    """What happens to an event's slots: stay as charged, be held while it waits, go back."""

    KEEP = "keep"
    HOLD = "hold"
    RELEASE = "release"


class Settlement(NamedTuple):
    """One event's outcome with everything that becomes durable with it.

    ``replied``: the channel answered. ``arrived``: the post may have arrived, so its channel's pace is charged.
    ``is_scan``: Slack was asked what the channel shows, not to post. ``cooldown_us``: nobody posts there for so
    long; ``scan_wait_us``: nobody reads what was posted. ``pause``: nobody posts anywhere. ``resume``: a post
    succeeded, a pause ends. ``reached``: whether Slack answered, None where nothing was asked. ``failed_scans`` counts
    history scans that broke off, None where nothing is to be reconciled; ``resent`` posts made again.
    ``silenced`` names the silences that match it, first the one that has suppressed it.
    ``template_fault``: what was wrong with the category's template; nothing depends on it. ``text`` is what was
    posted, where that may be edited later; ``counts_repeats`` says that repeats are counted in it, and ``uneditable``
    that a message cannot be edited.
    """

    subject: Leased | Undecodable
    terms: Terms | None
    outcome: Outcome
    slots: Slots = Slots.KEEP
    attempt: int = 0
    unknown: int = 0
    replied: bool = False
    cooldown_us: int | None = None
    pause: Paused | None = None
    resume: bool = False
    reached: bool | None = None
    failed_scans: int | None = None
    resent: int = 0
    scan_wait_us: int | None = None
    template_fault: str | None = None
    arrived: bool = False
    is_scan: bool = False
    text: str | None = None
    counts_repeats: bool = False
    uneditable: bool = False
    silenced: tuple[str, ...] = ()

    @property
    def is_posted(self) -> bool:
        """Of a dead letter: whether the post that ended it is not counted in its subject yet."""
        return self.attempt > getattr(self.subject, "attempt", 0)

    @property
    def perhaps_posted(self) -> int:
        """Unconfirmed posts of an event that ends: so many may stand in Slack, beside that of a sent one."""
        match self.subject:
            case Leased() as leased if isinstance(self.outcome, Sent):
                return leased.unknown
            case Leased() as leased:
                return leased.unknown + (leased.unconfirmed is not None)
            case _:
                return 0


@dataclass(frozen=True, slots=True)
class HistoryScan:
    """Unconfirmed posts that one scan can find: all of one channel (and thread)."""

    candidates: tuple[Candidate, ...]
    search: Search


@dataclass(frozen=True, slots=True)
class PauseChange:
    """Posting was paused for the whole fleet (``kind``: operator, outage or cooldown), or goes on again."""

    kind: str
    began: bool
    code: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of settlements: whether each was ``applied``, or its lease was lost and nothing was changed.

    ``trimmed`` dead letters were lost to their bounds; ``pause_changes`` are the pauses that began or ended with it.
    """

    applied: list[bool]
    trimmed: int
    pause_changes: list[PauseChange]


@dataclass(frozen=True, slots=True)
class Search:
    """The posts of these events, in one channel (and thread), not older than ``since_us``.

    ``now_us`` is when the history scan began, by the clock that ``since_us`` was read from.
    """

    channel: str
    event_ids: tuple[str, ...]
    since_us: int
    now_us: int
    thread_ts: str | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """The history scan was complete: what it did not find is not there (yet)."""


@dataclass(frozen=True, slots=True)
class ScanLater:
    """The scan broke off; a later one may do better. ``retry_after_us`` is Slack's own wish for all history scans.

    ``reached`` says whether Slack answered. ``pause`` is set when it will answer nothing before an operator acts.
    """

    code: str
    detail: str
    retry_after_us: int | None = None
    reached: bool = False
    pause: Paused | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """No history scan will ever be complete here: a webhook, a scope that is missing, a history that is cut short."""

    code: str
    detail: str


Rest: TypeAlias = Absent | ScanLater | Unreadable
"""What a history scan says of what it did not find."""


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The receipts of what was found, by event id, and what is true of the rest."""

    found: Mapping[str, Receipt]
    rest: Rest


def boottime_s() -> float:
    """Seconds since the machine started; never steps back, and counts a suspended machine's time."""
    return time.clock_gettime(_CLOCK)


def is_digest_message(event_id: str) -> bool:
    """Whether it is the id of a digest message: no other one on the queue holds a colon."""
    return event_id.startswith(_OWN)
