"""What a worker holds, what became of it, and what that changes: the values between the core and the store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias, assert_never

from dispatcher.event import Event, slot_id
from dispatcher.model import US, Demand, Denied, Limit, Paused, Reason, Receipt

NO_CATEGORY: Final = "-"
"""The category in the books of what could not be read."""


@dataclass(frozen=True, slots=True)
class Leased:
    """An event under this worker's lease. ``id`` is its identity (the RQ job id), ``seen_us`` its first sight.

    ``attempt`` counts posts started, ``unknown`` those whose fate is unknown; ``held`` says that it waited admitted and
    owns held slots. ``channel`` is where it has waited for, once it has waited. ``takes`` counts the workers that took
    it up, any of which may have been admitted with it; ``replays`` how often it was a dead letter and came
    back; ``deaths`` how many workers died while they held it.
    """

    id: str
    event: Event
    seen_us: int
    attempt: int = 0
    unknown: int = 0
    held: bool = False
    channel: str | None = None
    takes: int = 1
    replays: int = 0
    deaths: int = 0

    @property
    def name(self) -> str:
        """The id the producer knows."""
        return self.event.id or self.id

    @property
    def slot(self) -> str:
        """The id that owns its slots: a post of unknown fate keeps its own, the next one and a replay take another."""
        return slot_id(self.id, self.unknown, self.replays)


@dataclass(frozen=True, slots=True)
class Spoiled:
    """A payload under this worker's lease that is no event, and why."""

    id: str
    reason: Reason
    detail: str
    replays: int = 0


@dataclass(frozen=True, slots=True)
class Terms:
    """What the policy says of one event: where it goes, how fast, against which scopes, until when."""

    channel: str
    pace: Limit | None
    scopes: tuple[Demand, ...]
    deadline_us: int
    configured: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """An event and its terms."""

    leased: Leased
    terms: Terms


@dataclass(frozen=True, slots=True)
class Started:
    """A post that may leave now: the store has marked it as sending, this is the ``attempt``-th."""

    candidate: Candidate
    attempt: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """An admitted event the pace step parked; ``wait_us`` is None while a post in flight decides."""

    candidate: Candidate
    reason: Reason
    wait_us: int | None


@dataclass(frozen=True, slots=True)
class Sent:
    """Posted, with the sink's proof."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Dropped:
    """Discarded by a limit, with what would have let it pass."""

    denied: Denied
    reason: Reason


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """Kept for a human."""

    reason: Reason
    detail: str
    code: str | None = None
    denied: Denied | None = None


def _can_bury(reason: Reason) -> bool:
    match reason:
        case Reason.LIMIT_GLOBAL | Reason.LIMIT_CATEGORY | Reason.LIMIT_LABEL:
            return True
        case Reason.EXPIRED | Reason.REJECTED | Reason.INVALID | Reason.AMBIGUOUS | Reason.EXHAUSTED:
            return True
        case Reason.OK | Reason.PACE | Reason.COOLDOWN | Reason.PAUSED | Reason.RETRY | Reason.RECONCILE:
            return False
        case Reason.OVERFLOW | Reason.DUPLICATE | Reason.MUTED | Reason.CANCELLED:
            return False
        case _:
            assert_never(reason)


DEADLY: Final = tuple(reason for reason in Reason if _can_bury(reason))
"""The reasons that a dead letter can have."""


class Place(StrEnum):
    """Where an event waits: in its channel's line, or on a timer of its own."""

    LINE = "line"
    TIMER = "timer"


@dataclass(frozen=True, slots=True)
class Parked:
    """Waits at ``place``; ``wait_us`` is the time until its timer or, in a line, what is known of it.

    ``detail`` is what the sink said.
    """

    place: Place
    reason: Reason
    wait_us: int
    code: str | None = None
    denied: Denied | None = None
    detail: str | None = None


Outcome: TypeAlias = Sent | Dropped | DeadLettered | Parked


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many dead letters are kept, and for how long; the oldest go first."""

    max: int = 100_000
    max_age_us: int = 30 * 86_400 * US


DEFAULT_BOUNDS: Final = Bounds()


class Slots(StrEnum):
    """What happens to an event's slots: stay as charged, be held while it waits, go back."""

    KEEP = "keep"
    HOLD = "hold"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Settlement:
    """One event's outcome with everything that becomes durable with it.

    ``replied``: the channel answered, so its pace is charged. ``cooldown_us``: nobody posts there for so long.
    ``pause``: nobody posts anywhere. ``resume``: a post succeeded, a pause ends.
    """

    subject: Leased | Spoiled
    terms: Terms | None
    outcome: Outcome
    slots: Slots = Slots.KEEP
    attempt: int = 0
    unknown: int = 0
    replied: bool = False
    cooldown_us: int | None = None
    pause: Paused | None = None
    resume: bool = False
