"""What the core needs of the world around it: the protocols that adapters fit, and what they are told and tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dispatcher.core.limits import Denied, Opening, Scope, Verdict, is_repeat
from dispatcher.core.posts import Message, PostResult
from dispatcher.core.states import (
    Candidate,
    Deferral,
    FailureKnown,
    Leased,
    NotParked,
    Over,
    PauseChange,
    Recovered,
    Recovery,
    Repeat,
    ScanResult,
    Search,
    Settled,
    Settlement,
    Started,
    Undecodable,
    Waiting,
)
from dispatcher.core.tally import Counting, Suppressed


class Asking(NamedTuple):
    """An event that asks for its slots; ``drops`` says that a refusal is its end, with nothing else to be changed.

    It is counted by ``counting``. Of a category that digests, the only one that is suppressed does not end: it waits.
    ``repeats`` says the same of a refusal as a repeat. ``repeating`` counts it where the first message can be edited.
    """

    candidate: Candidate
    drops: bool
    counting: Counting | None = None
    repeats: bool = False
    repeating: Counting | None = None

    def ends_with(self, denied: Denied) -> bool:
        """Whether this refusal is its end."""
        return self.repeats if is_repeat(denied) else self.drops


@dataclass(frozen=True, slots=True)
class Admitting:
    """A verdict for each that asked, but for the places in ``lost``: this worker holds these no more.

    Those that were refused and drop have ended, but for those in ``buffered``: each was parked for so many
    microseconds, as the only one of its category. ``joined`` are such events of before that a second one has ended.
    ``shadowed``: by place, the shadow limits that would have refused one that was admitted. Those in ``over`` were not
    asked for, since a recovery came before them; those that may end as repeats have ended. Those in ``uncounted`` are
    repeats that were dropped, since no message counts them.
    """

    verdicts: list[Verdict]
    openings: list[Opening]
    lost: frozenset[int]
    shadowed: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    buffered: Mapping[int, int] = field(default_factory=dict)
    joined: Sequence[Suppressed] = ()
    over: frozenset[int] = frozenset()
    uncounted: frozenset[int] = frozenset()


class Overtaken(Exception):
    """The limits have changed while a batch was decided: ``version`` is in force now.

    ``undecided`` of the batch, which is still leased, is to be decided by that one.
    """

    def __init__(self, undecided: Sequence[Leased | Undecodable], version: str) -> None:
        super().__init__(f"{len(undecided)} events are not decided by the limits in force, version {version}")
        self.undecided = undecided
        self.version = version


class Gate(Protocol):
    """The budget: one shared limiter. By other limits than those in force it decides nothing: ``StaleLimits``."""

    def admit(self, asking: Sequence[Asking], *, ahead: Sequence[Scope]) -> Admitting:
        """Decide for each, as if they asked one after another; then say when each scope ahead has room for one more.

        What is refused and drops is dropped in the same step: durable, counted, on record.
        """
        ...


class Outbox(Protocol):
    """The events under this worker's lease.

    By other limits than those in force nothing is lined up or started: ``StaleLimits``.
    """

    def line_up(self, deferrals: Sequence[Deferral]) -> list[Waiting | NotParked | Repeat | Over]:
        """Put events into the lines of their categories; one that was not denied may find that nobody waits: GO.

        A newcomer about the same thing as an event that was posted or stands in line is a repeat. The failure that one
        tells of may be over.
        """
        ...

    def recover(
        self, recoveries: Sequence[Recovery], tell: Callable[[Sequence[Recovered]], None]
    ) -> list[FailureKnown]:
        """What is known of the failures whose recoveries these tell of.

        What waits about such a failure is not posted any more, unless its category says otherwise: ``tell`` is called
        with the events that have ended so, also if an error comes after that.
        """
        ...

    def expect(self, openings: Sequence[Opening]) -> None:
        """With the next ``take``, tell from when on heads of lines may pass the scopes that this batch asked for."""
        ...

    def start(
        self, candidates: Sequence[Candidate], free: int, *, is_last: bool = False, stood_by: bool = False
    ) -> list[Started | Waiting | None]:
        """Mark up to ``free`` of them as sending; park the others in their channel's line. None: lease lost.

        ``is_last``: with these the caller has decided all of the batch. ``stood_by``: time has passed since they were
        admitted, so the slots of those that start move to now.
        """
        ...

    def settle(self, settlements: Sequence[Settlement]) -> Settled:
        """Make outcomes durable in one step."""
        ...


class Standby(Protocol):
    """Where an admitted event may wait for a free sender, for a short time, without being parked."""

    @property
    def room(self) -> int:
        """How many more events may stand by."""
        ...

    def put(self, candidates: Sequence[Candidate]) -> None:
        """Let events stand by, behind all others."""
        ...


class Sink(Protocol):
    """Where messages go."""

    def post(self, message: Message, *, by_s: float | None = None) -> PostResult:
        """Post once, within a deadline; never raises for what the other side does.

        ``by_s`` is an instant of ``boottime_s``: after it nothing is sent, and nothing that was sent before may arrive
        late because of us. Without it the sink's own time-out counts from now.
        """
        ...

    def scan(self, search: Search) -> ScanResult:
        """Look for unconfirmed posts, within a deadline; never raises for what the other side does."""
        ...

    @property
    def can_update(self) -> bool:
        """Whether what was posted can be edited."""
        ...

    def update(self, channel: str, ts: str, message: Message, *, by_s: float | None = None) -> PostResult:
        """Edit what was posted with this receipt; as ``post``. Only to be called where it can."""
        ...


class Unreported(Protocol):
    """Counts that are to be stored with what is settled next, by field."""

    def take(self) -> Mapping[str, int]:
        """What was counted since the last time."""
        ...

    def put_back(self, counts: Mapping[str, int]) -> None:
        """What was taken and could not be stored."""
        ...


class Observer(Protocol):
    """Told of what is durable. Must not raise."""

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """One line for each event at its end, or where it is parked."""
        ...

    def dropped(self, events: Sequence[tuple[Leased, Denied]]) -> None:
        """One line for each event that a limit has dropped."""
        ...

    def digested(self, events: Sequence[Suppressed]) -> None:
        """One line for each event that has ended in a digest."""
        ...

    def waiting(self, events: Sequence[Waiting]) -> None:
        """Events that wait in a line: admitted ones for their channel, deferred ones for room in a limit."""
        ...

    def lost(self, events: Sequence[Leased | Undecodable]) -> None:
        """Events that this worker holds no more."""
        ...

    def recovered(self, events: Sequence[Recovered]) -> None:
        """One line for each event that has ended since its failure was over before it was posted."""
        ...

    def pause_changed(self, changes: Sequence[PauseChange]) -> None:
        """Pauses of posting that began or ended."""
        ...

    def trimmed(self, count: int) -> None:
        """So many dead letters were lost to their bounds."""
        ...
