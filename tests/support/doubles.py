"""What stands around the core in tests: a clock, an observer, and a sink that answers what it is told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dispatcher.core.limits import Denied
from dispatcher.core.policy import limit_reason
from dispatcher.core.posts import Message, PostResult, Receipt
from dispatcher.core.states import (
    Absent,
    Dropped,
    Leased,
    PauseChange,
    Recovered,
    ScanResult,
    Search,
    Settlement,
    Undecodable,
    Unreadable,
    Waiting,
)
from dispatcher.core.tally import Suppressed
from dispatcher.core.units import US

START_US: Final = 1_732_100_000_000_000


@dataclass(slots=True)
class Clock:
    """The instant that all scripts of a stage are told."""

    now_us: int = START_US

    def __call__(self) -> int:
        return self.now_us

    def forward(self, seconds: float) -> int:
        """Let time pass; returns the new instant."""
        self.now_us += round(seconds * US)
        return self.now_us


@dataclass(slots=True)
class Stopwatch:
    """In place of the module ``time``: no time passes that a test does not say."""

    now_s: float = 0.0

    def monotonic(self) -> float:
        return self.now_s


@dataclass(slots=True)
class Told:
    """The observer: keeps what it was told."""

    settlements: list[Settlement] = field(default_factory=list)
    digests: list[Suppressed] = field(default_factory=list)
    waits: list[Waiting] = field(default_factory=list)
    losses: list[Leased | Undecodable] = field(default_factory=list)
    pauses: list[PauseChange] = field(default_factory=list)
    trims: int = 0
    ends: list[Recovered] = field(default_factory=list)

    def settled(self, settlements: Sequence[Settlement]) -> None:
        self.settlements += settlements

    def dropped(self, events: Sequence[tuple[Leased, Denied]]) -> None:
        self.settlements += [
            Settlement(leased, None, Dropped(denied, limit_reason(denied.scope))) for leased, denied in events
        ]

    def digested(self, events: Sequence[Suppressed]) -> None:
        self.digests += events

    def recovered(self, events: Sequence[Recovered]) -> None:
        self.ends += events

    def waiting(self, events: Sequence[Waiting]) -> None:
        self.waits += events

    def lost(self, events: Sequence[Leased | Undecodable]) -> None:
        self.losses += events

    def pause_changed(self, changes: Sequence[PauseChange]) -> None:
        self.pauses += changes

    def trimmed(self, count: int) -> None:
        self.trims += count


NOTHING_TO_READ: Final = ScanResult({}, Unreadable("webhook", "nothing can be read"))


@dataclass(slots=True)
class Desk:
    """The sink: answers what ``reply`` says and keeps what it was asked to post."""

    reply: Callable[[Message], PostResult] = lambda message: Receipt(message.channel, "1.000001")
    shows: Callable[[Search], ScanResult] = lambda _: ScanResult({}, Absent())
    posts: list[str] = field(default_factory=list)
    searches: list[Search] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    edits: list[tuple[str, str, Message]] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)
    can_update: bool = True

    def post(self, message: Message, *, by_s: float | None = None) -> PostResult:
        self.deadlines.append(by_s)
        self.posts.append(message.event_id)
        self.messages.append(message)
        return self.reply(message)

    def update(self, channel: str, ts: str, message: Message, *, by_s: float | None = None) -> PostResult:
        self.deadlines.append(by_s)
        self.edits.append((channel, ts, message))
        return self.reply(message)

    def scan(self, search: Search) -> ScanResult:
        self.searches.append(search)
        return self.shows(search)
