"""What becomes of the events of a simulation, as the workers tell it: counted, and handed on one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from dispatcher.core.limits import Denied, Reason
from dispatcher.core.policy import GLOBAL_SCOPE, OnLimit, Policy, is_quiet_line, limit_reason
from dispatcher.core.states import (
    DeadLettered,
    Digested,
    Dropped,
    Hushed,
    Leased,
    Parked,
    PauseChange,
    Prefiltered,
    Recovered,
    Sent,
    Settlement,
    Slots,
    Step,
    Told,
    Undecodable,
    Waiting,
)
from dispatcher.core.tally import Suppressed
from dispatcher.jsonio import encode
from dispatcher.simulate.arrivals import Arrival
from dispatcher.simulate.figures import Bars, Channel, Delays, EventCounts, Fullest, Series
from dispatcher.simulate.fleet import Clock

MOST_NAMES: Final = 1_000
"""Categories that no limits name and that are counted by their own name; more count as ``other``, as in the books."""

OTHER: Final = "other"
MOST_CHANNELS: Final = 1_000

OnEnd: TypeAlias = Callable[[int, str, str], None]
"""Told of each event: its line, its outcome, and the reason."""

_BY_NO_LIMIT: Final = frozenset({Reason.REPEAT.value, Reason.RESOLVED.value, Reason.UNPOSTED.value, Reason.QUIET.value})
_FOR_CHANNEL: Final = frozenset({Reason.PACE, Reason.COOLDOWN, Reason.RETRY})
"""Why an event waits that was admitted."""


@dataclass(slots=True)
class _Live:
    """An event that has not ended; ``reason`` is why it waits, '' if it does not."""

    at_us: int
    line: int
    category: str
    reason: str = ""
    was_deferred: bool = False
    """Whether it waited for room."""
    was_kept: bool = False
    """Whether it waited for anything before it was admitted: room, the end of quiet hours, or that of a digest."""
    waits_in: str = ""
    """The category in whose line it waits for room."""


class Course:
    """The observer of a simulation (``fleet.FleetObserver``). It holds the events that have not ended, and counts.

    Instants are those of ``clock``.
    """

    def __init__(self, policy: Policy, clock: Clock, bars: Bars, ended: OnEnd | None = None) -> None:
        self.bars = bars
        self.categories: dict[str, EventCounts] = {}
        self.series: dict[str, Series] = {}
        self.channels: dict[str, Channel] = {}
        self.reasons: Counter[tuple[str, str]] = Counter()
        """How many were suppressed or became dead letters, by outcome, and by limit, or else by reason."""
        self.delays = Delays()
        """Of those that were deferred and sent."""
        self.windows: dict[tuple[str, str], Fullest] = {
            (GLOBAL_SCOPE, str(each)): Fullest(each) for each in policy.global_limits
        }
        """By scope and limit."""
        self.by_no_limit: Counter[str] = Counter()
        """By category, how many ended unsent whatever the numbers of the limits are: repeats, what a recovery made
        needless, and what quiet hours dropped, digested, or held for too long."""
        self.unnamed_duplicates = 0
        self.denials: list[Denied] = []
        """What refused events, since this was last emptied."""
        self.has_released = False
        """Whether an event has given slots back, since this was last reset."""
        self._policy = policy
        self._clock = clock
        self._ended = ended
        self._live: dict[str, _Live] = {}
        self._held: Counter[str] = Counter()
        self._lined: Counter[str] = Counter()
        self._bar = 0

    @property
    def total(self) -> EventCounts:
        """All categories together."""
        total = EventCounts(offered=self.unnamed_duplicates, duplicate=self.unnamed_duplicates)
        for each in self.categories.values():
            total.add(each)
        return total

    def document(self) -> dict[str, Any]:
        """How many were offered, and what became of them; of all, and of each category: plain data."""
        categories = {name: asdict(counts) for name, counts in sorted(self.categories.items())}
        return {**asdict(self.total), "categories": categories}

    @property
    def is_over(self) -> bool:
        """Whether every event has ended."""
        return not self._live

    def has_line(self, category: str) -> bool:
        """Whether events of a category that defers wait for room."""
        return self._lined[category] > 0

    def offer(self, id_: str, arrival: Arrival, at_us: int) -> None:
        """An event came at this instant; ``id_`` is its name."""
        category = self._come(arrival.category, at_us)
        self._live[id_] = _Live(at_us, arrival.line, category)

    def repeat(self, arrival: Arrival, at_us: int) -> None:
        """An event came at this instant that is known to be a duplicate."""
        if arrival.category:
            self.categories[self._come(arrival.category, at_us)].duplicate += 1
        else:
            self.unnamed_duplicates += 1
        if self._ended is not None:
            self._ended(arrival.line, "duplicate", Reason.DUPLICATE.value)

    def finish(self) -> None:
        """What has not ended is left waiting."""
        self._note_held(self.bars.count)
        for id_, live in list(self._live.items()):
            self._end(id_, "waiting", live.reason)

    def duplicates(self, ids: Sequence[str]) -> None:
        """See ``FleetObserver``."""
        for id_ in ids:
            self._end(id_, "duplicate", Reason.DUPLICATE.value)

    def prefiltered(self, groups: Sequence[Prefiltered]) -> None:
        """See ``FleetObserver``."""
        for _, denied, names, _ in groups:
            self.denials.append(denied)
            self.reasons["dropped", _shown(denied)] += len(names)
            reason = limit_reason(denied.scope).value
            for name in names:
                self._end(name, "dropped", reason)

    def dropped(self, events: Sequence[tuple[Leased, Denied]]) -> None:
        """See ``ports.Observer``."""
        for leased, denied in events:
            self._suppress(leased.name, "dropped", denied)

    def digested(self, events: Sequence[Suppressed]) -> None:
        """See ``ports.Observer``."""
        for each in events:
            self._suppress(each.name, "digested", each.denied)

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """See ``ports.Observer``."""
        self._note_held(self.bars.place(self._clock.now_us))
        for settlement in settlements:
            self.has_released |= settlement.slots is Slots.RELEASE
            if isinstance(settlement.subject, Undecodable):
                raise TypeError(f"the simulation made an event that cannot be read: {settlement.subject.detail}")
            self._settle(settlement.subject, settlement)

    def waiting(self, events: Sequence[Waiting]) -> None:
        """See ``ports.Observer``."""
        self._note_held(self.bars.place(self._clock.now_us))
        for each in events:
            leased = each.candidate.leased
            if not leased.is_digest_message:
                self._wait(leased.name, each.reason, line=leased.event.category if self._defers(each) else "")

    def _defers(self, waiting: Waiting) -> bool:
        """Whether it waits for room: in a line, and neither for quiet hours nor, as a buffered single, for others."""
        if waiting.scope is None or waiting.reason is Reason.QUIET:
            return False
        leased = waiting.candidate.leased
        return self._policy.rule(leased.event.category).on_limit is OnLimit.DEFER or is_quiet_line(leased.line)

    def lost(self, events: Sequence[Leased | Undecodable]) -> None:
        """See ``ports.Observer``: there is nobody to whom an event could be lost."""
        if events:
            raise RuntimeError(f"{len(events)} events of the simulation were lost to another worker")

    def recovered(self, events: Sequence[Recovered]) -> None:
        """See ``ports.Observer``."""
        self.has_released |= bool(events)
        for each in events:
            self._let_go(each.name, "dropped", Reason.RESOLVED)

    def pause_changed(self, changes: Sequence[PauseChange]) -> None:
        """See ``ports.Observer``."""

    def trimmed(self, count: int) -> None:
        """See ``ports.Observer``."""

    def _come(self, category: str, at_us: int) -> str:
        """The name under which a category counts; counts one more."""
        if category not in self.categories:
            if len(self.categories) >= MOST_NAMES and not self._policy.knows(category):
                category = OTHER
            self.categories.setdefault(category, EventCounts())
            self.series.setdefault(category, Series(self.bars.count))
        self.categories[category].offered += 1
        self.series[category].offered[self.bars.place(at_us)] += 1
        return category

    def _settle(self, leased: Leased, settlement: Settlement) -> None:
        name = leased.name
        match settlement.outcome:
            case Told(Step.POSTED):
                self._post(leased.event.category, settlement)
            case Sent():
                self._send(leased, settlement)
            case Dropped(Denied() as denied):
                self._suppress(name, "dropped", denied)
            case DeadLettered(reason, denied=Denied() as denied) if reason is limit_reason(denied.scope):
                self._suppress(name, "dead", denied)
            case Dropped(reason=reason):
                self._let_go(name, "dropped", reason)
            case Digested(reason):
                self._let_go(name, "digested", reason)
            case Hushed() as hushed:
                self._let_go(name, hushed.outcome, Reason.QUIET)
            case DeadLettered(reason):
                self.categories[self._live[name].category].expired += reason is Reason.EXPIRED
                self._let_go(name, "dead", reason)
            case Parked(reason=reason) if not leased.is_digest_message:
                self._wait(name, reason)

    def _send(self, leased: Leased, settlement: Settlement) -> None:
        self._post(leased.event.category, settlement)
        live = self._live[leased.name]
        self.series[live.category].sent[self.bars.place(self._clock.now_us)] += 1
        if live.was_deferred:
            self.delays.add(self._clock.now_us - live.at_us)
        elif not live.was_kept:
            self._channel(settlement).delays.add(self._clock.now_us - live.at_us)
        self._end(leased.name, "sent", Reason.OK.value)

    def _let_go(self, name: str, outcome: str, reason: Reason) -> None:
        """It ended otherwise than by a limit."""
        self.reasons[outcome, reason.value] += 1
        self._end(name, outcome, reason.value)

    def _suppress(self, name: str, outcome: str, denied: Denied) -> None:
        self.denials.append(denied)
        self.reasons[outcome, _shown(denied)] += 1
        self._end(name, outcome, limit_reason(denied.scope).value)

    def _wait(self, name: str, reason: Reason, line: str = "") -> None:
        live = self._live[name]
        self._stand(live, line)
        if not live.reason:
            self._held[live.category] += 1
        live.reason = reason.value
        live.was_kept |= reason not in _FOR_CHANNEL
        if line and not live.was_deferred:
            live.was_deferred = True
            self.categories[live.category].deferred += 1

    def _stand(self, live: _Live, line: str) -> None:
        """It stands in the line of this category from now on, or in none."""
        if live.waits_in != line:
            self._lined[live.waits_in] -= 1
            self._lined[line] += 1
            live.waits_in = line

    def _end(self, name: str, outcome: str, reason: str) -> None:
        live = self._live.pop(name)
        self._stand(live, "")
        if live.reason:
            self._held[live.category] -= 1
        counts = self.categories[live.category]
        setattr(counts, outcome, getattr(counts, outcome) + 1)
        held_quiet = reason == Reason.EXPIRED.value and live.reason == Reason.QUIET.value
        self.by_no_limit[live.category] += reason in _BY_NO_LIMIT or held_quiet
        if self._ended is not None:
            self._ended(live.line, outcome, reason)

    def _post(self, category: str, settlement: Settlement) -> None:
        now_us = self._clock.now_us
        for limit in self._policy.global_limits:
            self.windows[GLOBAL_SCOPE, str(limit)].add(now_us)
        for limit in self._policy.rule(category).limits:
            place = (f"category:{category}", str(limit))
            if place not in self.windows:
                self.windows[place] = Fullest(limit)
            self.windows[place].add(now_us)
        channel = self._channel(settlement)
        channel.posts += 1
        if channel.fullest is not None:
            channel.fullest.add(now_us)

    def _channel(self, settlement: Settlement) -> Channel:
        name = settlement.terms.channel if settlement.terms is not None else ""
        if name not in self.channels:
            if len(self.channels) >= MOST_CHANNELS:
                name = OTHER
            pace = None if name == OTHER else self._policy.pace(name)
            self.channels.setdefault(name, Channel(pace, Fullest(pace) if pace is not None else None))
        return self.channels[name]

    def _note_held(self, bar: int) -> None:
        """Note how many wait at the end of each bar that is over."""
        for over in range(self._bar, bar):
            for category, count in self._held.items():
                self.series[category].held[over] = count
        self._bar = max(self._bar, bar)


def _shown(denied: Denied) -> str:
    scope = denied.scope if denied.scope.count(":") < 2 else denied.scope.partition("=")[0]  # noqa: PLR2004 - label:c:l=v
    return f"{scope} {denied.limit}"


class Ends:
    """What became of each event, a byte for each line of the trace, until it is written to a file."""

    def __init__(self) -> None:
        self._ends: list[tuple[str, str]] = []
        self._codes: dict[tuple[str, str], int] = {}
        self._by_line = bytearray()

    def note(self, line: int, outcome: str, reason: str) -> None:
        """See ``OnEnd``."""
        code = self._codes.get((outcome, reason))
        if code is None:
            self._ends.append((outcome, reason))
            code = self._codes[outcome, reason] = len(self._ends)
        if line >= len(self._by_line):
            self._by_line.extend(bytes(line + 1 - len(self._by_line)))
        self._by_line[line] = code

    def write(self, path: Path) -> None:
        """Write a line of JSON for each, in the order of the trace."""
        rests = [encode({"outcome": outcome, "reason": reason})[1:] for outcome, reason in self._ends]
        with path.open("wb") as file:
            file.writelines(
                b'{"line":%d,%b\n' % (line, rests[code - 1]) for line, code in enumerate(self._by_line) if code
            )
