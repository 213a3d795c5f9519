"""What a worker holds under its lease, on its way through the two steps.

Those that every event needs are named tuples: they are made in a quarter of the time of a frozen dataclass.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from dispatcher.core.event import Event
from dispatcher.core.limits import US, Demand, Limit, Reason, Scope
from dispatcher.core.silences import SILENCE_PREFIX, Ended
from dispatcher.core.tally import Tally, Telling

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

    ``attempt`` counts posts started, ``unknown`` those whose fate is unknown; ``held`` says that it waited admitted and
    owns held slots. ``channel`` is where it has waited for, once it has waited. ``takes`` counts the workers that took
    it up, any of which may have been admitted with it; ``replays`` how often it was a dead letter and came
    back; ``deaths`` how many workers died while they held it. ``unconfirmed`` says that it is to be reconciled before
    anything else; ``resent`` counts the posts made again after one that never arrived. ``shadowed`` are the shadow
    limits that would have refused it when it was admitted.

    ``buffered`` says that it alone was suppressed, and waits for others or to be posted as itself. A digest message has
    a ``tally`` that it tells of. ``posts`` counts the posts that were really started, also those that used up no
    attempt; ``why`` is the reason and code for which it last waited on a timer. ``code`` is what its last post was
    answered with, if it did not arrive. ``counted`` is its name in the books, once it has one. ``edits`` is the message
    that it edits instead of posting one: it tells of a recovery. ``gone`` is
    the channel for which its fallback stands in, once it does. ``report`` is what the report of a silence tells of.
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
    report: Ended | None = None

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


def boottime_s() -> float:
    """Seconds since the machine started; never steps back, and counts a suspended machine's time."""
    return time.clock_gettime(_CLOCK)


def is_digest_message(event_id: str) -> bool:
    """Whether it is the id of a digest message: no other one on the queue holds a colon."""
    return event_id.startswith(_OWN)
