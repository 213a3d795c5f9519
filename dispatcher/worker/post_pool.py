"""The posts and history scans in flight, and the admitted events that stand by until a post can start.

Each post or scan has a thread for itself while it runs, and a deadline; their number is bounded.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final, NamedTuple, Protocol, TypeAlias

from dispatcher.core.posts import Ambiguous, PostResult
from dispatcher.core.states import (
    Candidate,
    HistoryScan,
    ScanLater,
    ScanResult,
    Settlement,
    Started,
    boottime_s,
)

Task: TypeAlias = Started | HistoryScan
"""What a thread does at Slack: make one post, or search a history for several."""


TOGETHER_S: Final = 0.005
"""Tasks that began within this time of one another are likely to end together. An idle loop waits so long at most for
the others, so that one script settles them all."""

STANDBY_S: Final = 0.25
"""How long an event may stand by. After that it is parked, unless a sender is free."""


class PostExecutor(Protocol):
    """Runs tasks and returns what follows for their events. It does not use the store."""

    def deliver(self, started: Started) -> Settlement:
        """Post one message and say what follows."""
        ...

    def not_made(self, started: Started) -> Settlement:
        """What follows from a post that was never begun."""
        ...

    def conclude(self, started: Started, result: PostResult) -> Settlement:
        """What follows from a post that came to ``result``."""
        ...

    def scan(self, scan: HistoryScan) -> list[Settlement]:
        """Read what was posted and say what follows for each event."""
        ...

    def conclude_scan(self, scan: HistoryScan, result: ScanResult) -> list[Settlement]:
        """What follows from a scan's result."""
        ...


@dataclass(frozen=True, slots=True)
class _InFlight:
    task: Task
    overdue_at: float
    _begun: threading.Lock = field(default_factory=threading.Lock)

    def claim(self) -> bool:
        """True for the first caller only: its thread then begins the task, or the loop says that it never began."""
        return self._begun.acquire(blocking=False)

    def began_with(self, other: _InFlight) -> bool:
        """Whether the two began at about the same time."""
        return abs(self.overdue_at - other.overdue_at) <= TOGETHER_S

    @property
    def key(self) -> str:
        """The id of its first event. No event has two tasks."""
        return (self.task.candidate if isinstance(self.task, Started) else self.task.candidates[0]).leased.id

    @property
    def ids(self) -> list[str]:
        candidates = [self.task.candidate] if isinstance(self.task, Started) else self.task.candidates
        return [each.leased.id for each in candidates]


class _Ended(NamedTuple):
    in_flight: _InFlight
    came_to: list[Settlement]
    took_s: float


class PostPool:
    """Runs posts and history scans, each in a thread.

    ``size`` is how many posts may be under way: the caller starts no more than ``free``. A thread of a channel has a
    history scan of its own, so there may be more tasks than that.

    The worker's loop starts tasks and collects their results. A post without a result at its deadline counts as
    ambiguous, and a history scan as broken off. A result that comes later is ignored.

    A post that no thread has begun by its deadline is never made, and counts as not made: the process stood still
    meanwhile, and another worker may hold the event; or it had no room for a thread. A history scan counts as too late.

    ``executor`` returns what runs a task, by the limits in force. ``wake`` tells the loop that a result can be
    collected, and again when more than half of the tasks have ended.
    ``clock`` gives the time of the deadlines, in seconds.
    """

    def __init__(
        self,
        executor: Callable[[], PostExecutor],
        *,
        size: int,
        deadline_s: float,
        wake: Callable[[], None],
        clock: Callable[[], float] = boottime_s,
    ) -> None:
        self._executor = executor
        self._size = size
        self._deadline_s = deadline_s
        self._wake = wake
        self._clock = clock
        self._in_flight: dict[str, _InFlight] = {}
        """By their keys."""
        self._ready: SimpleQueue[_InFlight] = SimpleQueue()
        self._idle: deque[None] = deque()
        """One for each thread that waits for a task. A new thread replaces one that is busy past a deadline."""
        self._short: deque[None] = deque()
        """One for each task for which no thread could be made: it waits for one of the others."""
        self._done: deque[_Ended] = deque()
        self.post_s = 0.0
        """How long a post takes, on average; the newest count most. 0 before the first one."""
        self._has_rung = False
        """Whether the loop was told of a result since it last collected."""

    @property
    def free(self) -> int:
        """How many tasks can be started now."""
        return max(0, self._size - len(self._in_flight))

    @property
    def others_end_soon(self) -> bool:
        """Whether a result can be collected, and at most half of the tasks have ended that began together with it."""
        return bool(self._done) and not self._most_have_ended()

    def _most_have_ended(self) -> bool:
        """Whether more than half of the tasks have ended that began together with the one that ended last."""
        ended = [each.in_flight for each in tuple(self._done)]  # senders' threads ask, too, while the loop collects
        if not ended:
            return True
        last = ended[-1]
        together = [each for each in tuple(self._in_flight.values()) if each.began_with(last)]
        return 2 * sum(each.began_with(last) for each in ended) > len(together)

    @property
    def has_result(self) -> bool:
        """Whether ``collect`` would bring anything."""
        return bool(self._done) or self.overdue_in_s() == 0

    @property
    def ids(self) -> list[str]:
        """The events whose posts and history scans are in flight."""
        return [id_ for in_flight in self._in_flight.values() for id_ in in_flight.ids]

    def start(self, task: Task) -> None:
        """Run one task in an idle thread, or in a new one; where the system has no room for one, once one is idle."""
        in_flight = _InFlight(task, self._clock() + self._deadline_s)
        self._in_flight[in_flight.key] = in_flight
        if self._idle:
            self._idle.pop()
        else:
            try:
                threading.Thread(target=self._work, daemon=True, name="sender").start()
            except RuntimeError:  # no room for a thread
                self._short.append(None)
        self._ready.put(in_flight)

    def collect(self) -> list[Settlement]:
        """The results of the tasks that ended or whose deadline has passed; each result once."""
        settlements: list[Settlement] = []
        self._has_rung = False  # before the look: what comes after it rings again
        while self._done:
            in_flight, came_to, took_s = self._done.popleft()
            if isinstance(in_flight.task, Started):
                self.post_s += (took_s - self.post_s) / 8
            if self._forget(in_flight):
                settlements += came_to
        now = self._clock()
        for in_flight in [each for each in self._in_flight.values() if each.overdue_at <= now]:
            self._forget(in_flight)
            settlements += self._overdue(in_flight)
        return settlements

    def overdue_in_s(self) -> float | None:
        """Seconds until the earliest deadline of a task in flight; None without a task."""
        first = min((in_flight.overdue_at for in_flight in self._in_flight.values()), default=None)
        return None if first is None else max(0.0, first - self._clock())

    def _forget(self, in_flight: _InFlight) -> bool:
        if self._in_flight.get(in_flight.key) is not in_flight:
            return False
        del self._in_flight[in_flight.key]
        return True

    def _work(self) -> None:
        while True:
            self._carry_out(self._ready.get())
            try:
                self._short.pop()
            except IndexError:
                self._idle.append(None)

    def _carry_out(self, in_flight: _InFlight) -> None:
        task = in_flight.task
        if self._clock() >= in_flight.overdue_at or not in_flight.claim():
            return  # the loop gives it a result at its deadline
        try:
            came_to = [self._executor().deliver(task)] if isinstance(task, Started) else self._executor().scan(task)
        except Exception as error:  # noqa: BLE001 - a defect of ours must not lose the event: perhaps it was posted
            came_to = self._without_answer(task, "internal", f"{type(error).__name__}: {error}")
        took_s = self._clock() - (in_flight.overdue_at - self._deadline_s)
        self._done.append(_Ended(in_flight, came_to, took_s))
        if not self._has_rung or self._most_have_ended():
            self._has_rung = True
            self._wake()

    def _overdue(self, in_flight: _InFlight) -> list[Settlement]:
        task = in_flight.task
        if in_flight.claim():
            if isinstance(task, Started):
                return [self._executor().not_made(task)]
            return self._without_answer(task, "too_late", "its time had passed before it began")
        return self._without_answer(task, "deadline", f"no answer within {self._deadline_s:g} s")

    def _without_answer(self, task: Task, code: str, detail: str) -> list[Settlement]:
        if isinstance(task, Started):
            return [self._executor().conclude(task, Ambiguous(code, detail))]
        return self._executor().conclude_scan(task, ScanResult({}, ScanLater(code, detail)))


class Standby:
    """Events of one worker that were admitted and wait for a free sender, in order.

    They are leased, and their slots are charged, as between the gate and a post. If the worker dies, its lease ends,
    and another worker decides them again. ``size`` is how many may stand by, ``senders`` how many posts the worker
    makes at once. ``clock`` gives the time, in seconds.
    """

    def __init__(self, size: int, senders: int, clock: Callable[[], float] = boottime_s) -> None:
        self._size = size
        self._senders = senders
        self._clock = clock
        self._waiting: deque[tuple[float, Candidate]] = deque()
        """Each with the instant until which it may stand by."""
        self._version = ""
        self._most = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def ids(self) -> list[str]:
        """The events that stand by."""
        return [each.leased.id for _, each in self._waiting]

    @property
    def is_open(self) -> bool:
        """Whether events may begin to stand by, if there is room."""
        return self._most > 0

    @property
    def has_plenty(self) -> bool:
        """Whether so many stand by that no new events need to be taken."""
        return 2 * len(self._waiting) > self._most

    @property
    def room(self) -> int:
        """How many more events may stand by."""
        return max(0, self._most - len(self._waiting))

    @property
    def until(self) -> float:
        """Until when the first event may stand by."""
        return self._waiting[0][0]

    def open(self, version: str, post_s: float) -> None:
        """From now on, events that this version of the limits admits may stand by.

        ``post_s`` is how long a post takes. There may be so many that all of them should start within ``STANDBY_S``.
        """
        if not self._waiting:
            self._version = version
        rounds = int(STANDBY_S / post_s) - 1 if post_s else self._size
        self._most = max(0, min(self._size, rounds * self._senders)) if version == self._version else 0

    def close(self) -> None:
        """From now on, no event may begin to stand by."""
        self._most = 0

    def put(self, candidates: Sequence[Candidate]) -> None:
        """Let events stand by, behind all others."""
        until = self._clock() + STANDBY_S
        self._waiting += [(until, each) for each in candidates]

    def next(self, number: int) -> list[Candidate]:
        """The first events, at most so many; or all, if the first has stood by for too long. They stand by no more."""
        is_over = bool(self._waiting) and self._clock() >= self.until
        return self.all() if is_over else [self._waiting.popleft()[1] for _ in range(min(number, len(self._waiting)))]

    def all(self) -> list[Candidate]:
        """All events. They stand by no more."""
        waiting = [each for _, each in self._waiting]
        self._waiting.clear()
        return waiting

    def must_ask_again(self, version: str) -> bool:
        """Whether all must be decided again: other limits than these admitted them."""
        return bool(self._waiting) and version != self._version
