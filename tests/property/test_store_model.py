"""Random walks of producers and workers over one namespace: whatever happens, every event ends exactly once.

After each script the books balance and each event is in one place (``Stage.check``). On top of that the walk keeps its
own log of what was posted when, and holds it against the limits, the pace, the cool-downs and the pauses.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias, assert_never

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dispatcher.core.event import Event
from dispatcher.core.leased_event import Leased, Spoiled, Started
from dispatcher.core.limits import (
    US,
    Ambiguous,
    Lane,
    Limit,
    Paused,
    PostResult,
    RateLimitedBySlack,
    Receipt,
    Rejected,
    Retryable,
)
from dispatcher.core.outcomes import Dropped, Parked
from dispatcher.store.dead_letters import DeadLetters, Filter, Replayed
from tests.support.doubles import NOTHING_TO_READ
from tests.support.models import most_in_any_window
from tests.support.servers import Database
from tests.support.stage import UNPACED, Stage, Worker, policy_of

OWNERS: Final = 3
CATEGORIES: Final = ("errors", "deploys")
CHANNELS: Final = ("#a", "#b", UNPACED)
GLOBAL: Final = "9/1m,6/30s"
CATEGORY: Final = "5/1m"
PACE: Final = Limit.parse("2/5s")
PROBE_US: Final = 60 * US
SENDERS: Final = 3
ORDER_US: Final = US
"""How long at most what is due waits for what others are deciding."""

LATENCY_US: Final = 400_000

RESULTS: Final[tuple[PostResult, ...]] = (
    Receipt("#a", "1.1"),
    Receipt("#a", "1.2"),
    Receipt("#a", "1.3"),
    RateLimitedBySlack(7 * US, "ratelimited"),
    Retryable("refused", "connection refused"),
    Retryable("request_timeout", "busy", reached=True),
    Rejected("is_archived", "archived"),
    Ambiguous("timeout", "no answer"),
    Paused("invalid_auth", "the token is not valid"),
)


@dataclass(frozen=True, slots=True)
class Send:
    category: int
    channel: int
    lane: Lane
    max_age: float | None
    count: int


@dataclass(frozen=True, slots=True)
class SendAgain:
    """The nth id is pushed once more, by a producer that does not ask whether it is known."""

    nth: int
    lane: Lane


@dataclass(frozen=True, slots=True)
class Take:
    owner: int
    new: int
    due: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    owner: int
    free: int


@dataclass(frozen=True, slots=True)
class Answer:
    owner: int
    nth: int
    result: PostResult


@dataclass(frozen=True, slots=True)
class Die:
    """The process is gone; another one comes in its place."""

    owner: int


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """A worker gives back what it does not know of: all but its posts in flight, and the last of those too."""

    owner: int


@dataclass(frozen=True, slots=True)
class Stop:
    """A worker gives back everything, its posts having been answered."""

    owner: int


@dataclass(frozen=True, slots=True)
class Pass:
    """Time passes; those who live renew their leases, unless the server is away."""

    seconds: float
    away: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """The nth dead letter goes back to its lane."""

    nth: int


@dataclass(frozen=True, slots=True)
class Suspend:
    """``rq suspend``, or ``rq resume`` where it was."""


Step: TypeAlias = Send | SendAgain | Take | Dispatch | Answer | Die | LoseAnswer | Stop | Pass | Replay | Suspend

owners = st.integers(0, OWNERS - 1)
sends = st.builds(
    Send,
    st.integers(0, 1),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.sampled_from(list(Lane)),
    st.sampled_from([None, None, None, 20.0]),
    st.integers(1, 4),
)
takes = st.builds(Take, owners, st.integers(0, 5), st.integers(0, 3))
dispatches = st.builds(Dispatch, owners, st.sampled_from([0, 1, 2, 9]))
answers = st.builds(Answer, owners, st.integers(0, 2), st.sampled_from(RESULTS))
passes = st.builds(Pass, st.sampled_from([0.000001, 0.5, 2.5, 5, 11, 31]), st.sampled_from([False] * 5 + [True]))
rare = st.one_of(
    st.builds(SendAgain, st.integers(0, 9), st.sampled_from(list(Lane))),
    st.builds(Die, owners),
    st.builds(LoseAnswer, owners),
    st.builds(Stop, owners),
    st.builds(Replay, st.integers(0, 2)),
    st.builds(Suspend),
)
steps = st.one_of(sends, takes, takes, dispatches, dispatches, answers, answers, passes, rare)
walks = st.integers(0, 4).flatmap(lambda n: st.lists(steps, min_size=20 * n, max_size=20 * n + 20))


@dataclass(slots=True)
class Owner:
    """A worker, what it has taken and not dispatched, and its posts in flight."""

    worker: Worker
    hands: list[Leased | Spoiled] = field(default_factory=list)
    flights: list[tuple[int, Started]] = field(default_factory=list)
    wakes_us: int = 0


class Walk:
    """One walk, with a log of its own of what was posted when."""

    def __init__(self, redis: Database) -> None:
        redis.flushall()
        self.stage = Stage(redis, policy_of(GLOBAL, CATEGORY, str(PACE)))
        self.stage.prolongs = True
        self.owners = [Owner(self.stage.worker(f"owner{n}")) for n in range(OWNERS)]
        for each in self.owners:
            each.worker.desk.shows = lambda _: NOTHING_TO_READ
        self.workers = [each.worker for each in self.owners]
        self.dead_letters = DeadLetters(redis, self.stage.keys, self.stage.queue, clock=self.stage.clock)
        self.replays: Counter[str] = Counter()
        self.ids: list[str] = []
        self.pushed = 0
        self.receipts = 0
        self.admitted: set[str] = set()
        self.posted: list[tuple[int, Started]] = []
        self.replied: list[tuple[int, str]] = []
        self.cooling: dict[str, int] = {}
        self.probe_us: int | None = None

    def take(self, step: Step) -> None:  # noqa: C901, PLR0912 - one case for each kind of step
        match step:
            case Send():
                self._send(step)
            case SendAgain(nth, lane):
                if nth < len(self.ids):
                    self.stage.redis.rpush(self.stage.queue.lane(lane), self.ids[-1 - nth])
                    self.pushed += 1
            case Take(at, new, due):
                self.owners[at].hands += self.owners[at].worker.take(new, due).batch
            case Dispatch(at, free):
                self._dispatch(self.owners[at], free)
            case Answer(at, nth, result):
                self._answer(self.owners[at], nth, result)
            case Die(at):
                self._replace(at)
            case LoseAnswer(at):
                owner = self.owners[at]
                owner.hands, owner.flights = [], owner.flights[:-1]
                owner.worker.keep_only(*(each.candidate.leased.id for _, each in owner.flights))
            case Stop(at):
                while self.owners[at].flights:
                    self._answer(self.owners[at], 0, Receipt("#a", "1.1"))
                self.owners[at].worker.give_back()
                self._replace(at)
            case Pass(seconds, away):
                self._pass(seconds, away=away)
            case Replay(nth):
                for letter in list(self.dead_letters.find(Filter()))[nth : nth + 1]:
                    assert self.dead_letters.replay([letter, letter]) == [Replayed.DONE, Replayed.GONE]
                    self.replays[letter.id] += 1
                    self.admitted.discard(letter.id)
                    self.stage.check()
            case Suspend():
                if not self.stage.redis.delete(self.stage.queue.suspended):
                    self.stage.redis.set(self.stage.queue.suspended, "1")
            case _:
                assert_never(step)

    def drain(self) -> None:
        """What is left is posted: workers sleep until the instant that ``take`` named, or until the bell wakes one."""
        stage = self.stage
        stage.redis.delete(stage.queue.suspended)
        for _ in range(2_000):
            stage.collect_tokens()
            owner = min(self.owners, key=lambda each: each.wakes_us)
            if owner.wakes_us > stage.clock.now_us:
                if stage.books.is_drained():
                    return
                listening = [each for each in self.owners if len(each.flights) < SENDERS]
                if stage.tokens and listening:
                    stage.tokens -= 1
                    owner = min(listening, key=lambda each: each.wakes_us)
                else:
                    assert self._nobody_oversleeps(owner.wakes_us)
                    self._pass((owner.wakes_us - stage.clock.now_us) / US, away=False)
            self._work(owner)
        raise AssertionError(f"not drained: {stage.look()}")

    def _work(self, owner: Owner) -> None:
        now_us = self.stage.clock.now_us
        while owner.flights and owner.flights[0][0] + LATENCY_US <= now_us:
            self._answer(owner, 0, Receipt("#a", "1.1"))
        free = max(0, SENDERS - len(owner.flights))
        taken = owner.worker.take(5, free)
        owner.hands += taken.batch
        self._dispatch(owner, free)
        instants = [] if taken.next_us is None else [taken.next_us]
        instants += [at_us + LATENCY_US for at_us, _ in owner.flights[:1]]
        owner.wakes_us = now_us if taken.batch or taken.more else min(instants, default=now_us + US)

    def _nobody_oversleeps(self, wakes_us: int) -> bool:
        look = self.stage.look()
        marks = [json.loads(mark) for mark in self.stage.redis.hvals(self.stage.keys.deciding)]
        due = max([self.stage.first_instant(), *(int(mark["since"]) + ORDER_US for mark in marks)])
        idle = any(len(owner.flights) < SENDERS for owner in self.owners)
        return not look.orphans and (look.pause is not None or not idle or wakes_us <= due)

    def verify(self) -> None:
        """Every event has ended once, and no limit was ever exceeded."""
        ended = Counter(
            each.subject.id
            for worker in self.workers
            for each in worker.told.settlements
            if not isinstance(each.outcome, Parked)
        )
        assert ended == Counter(self.ids) + self.replays
        look = self.stage.look()
        assert look.received == len(self.ids) + self.pushed + self.replays.total()
        assert look.totals.get("replayed", 0) == self.replays.total()
        assert look.totals.get("duplicate", 0) == self.pushed
        assert look.totals.get("sent", 0) == self.receipts
        dropped = {
            each.subject.id
            for worker in self.workers
            for each in worker.told.settlements
            if isinstance(each.outcome, Dropped)
        }
        assert not dropped & self.admitted, "an admitted event was dropped by a limit"
        for name, limits in (("", GLOBAL), *((category, CATEGORY) for category in CATEGORIES)):
            instants = [at for at, each in self.posted if each.candidate.leased.event.category.startswith(name)]
            for limit in map(Limit.parse, limits.split(",")):
                assert most_in_any_window(instants, limit.window_us) <= limit.max

    def _send(self, step: Send) -> None:
        ids = [f"e{len(self.ids) + n}" for n in range(step.count)]
        category, channel = CATEGORIES[step.category], CHANNELS[step.channel]
        events = [
            Event(category, "t", id=id_, channel=channel, priority=step.lane, max_age=step.max_age) for id_ in ids
        ]
        self.stage.intake.enqueue(list(zip(ids, events, strict=True)))
        self.ids += ids

    def _dispatch(self, owner: Owner, free: int) -> None:
        now_us, hands = self.stage.clock.now_us, owner.hands
        owner.hands = []
        waited = len(owner.worker.told.waits)
        lines = {channel: self.stage.line(channel) for channel in CHANNELS}
        started = owner.worker.dispatch(hands, free)
        self.admitted |= {each.candidate.leased.id for each in started}
        self.admitted |= {each.candidate.leased.id for each in owner.worker.told.waits[waited:]}
        assert len(started) <= free
        for each in started:
            self._may_start(each, now_us, lines)
            owner.flights.append((now_us, each))

    def _may_start(self, started: Started, now_us: int, lines: dict[str, list[str]]) -> None:
        channel = started.candidate.terms.channel
        assert self.cooling.get(channel, 0) <= now_us, "posted into a cool-down"
        if self.probe_us is not None:
            assert self.probe_us <= now_us, "posted into a pause"
            self.probe_us = now_us + PROBE_US
        if channel == UNPACED:
            return
        assert self.stage.posting(channel) == started.candidate.leased.id
        recent = [at for at, name in self.replied if name == channel and now_us - PACE.window_us < at]
        assert len(recent) < PACE.max, "posted faster than the pace"
        own = self.stage.header(started.candidate.leased.id)
        alike = [header for header in map(self.stage.header, lines[channel]) if header["order"] == own["order"]]
        assert all(header["seq"] > own["seq"] for header in alike), "overtook those of its class in the line"

    def _answer(self, owner: Owner, nth: int, result: PostResult) -> None:
        if nth >= len(owner.flights):
            return
        at_us, started = owner.flights.pop(nth)
        if not owner.worker.answer(started, result):
            return
        now_us, channel = self.stage.clock.now_us, started.candidate.terms.channel
        match result:
            case Receipt():
                self.receipts += 1
                self.posted.append((at_us, started))
                self.replied.append((now_us, channel))
                self.probe_us = None
            case RateLimitedBySlack(retry_after_us, _):
                self.cooling[channel] = max(self.cooling.get(channel, 0), now_us + retry_after_us)
            case Ambiguous():
                self.posted.append((at_us, started))
            case Rejected():
                self.replied.append((now_us, channel))
            case Paused():
                self.probe_us = now_us + PROBE_US
            case Retryable():
                pass
            case _:
                assert_never(result)

    def _replace(self, at: int) -> None:
        worker = self.stage.worker(f"owner{len(self.workers)}")
        worker.desk.shows = lambda _: NOTHING_TO_READ
        self.workers.append(worker)
        self.owners[at] = Owner(worker)

    def _pass(self, seconds: float, *, away: bool) -> None:
        left = seconds
        while not away and left > 10:
            self.stage.clock.forward(10)
            left -= 10
            self._renew()
        self.stage.clock.forward(left)
        self._renew()

    def _renew(self) -> None:
        for owner in self.owners:
            owner.worker.renew()


def explore(redis: Database, examples: int) -> int:
    """Take ``examples`` walks to their end; how many events they settled."""
    settled = 0

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # with Phase.shrink a failing walk gets small, which takes minutes
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(walks)
    def hold(taken: list[Step]) -> None:
        nonlocal settled
        walk = Walk(redis)
        for step in taken:
            walk.take(step)
        walk.drain()
        walk.verify()
        settled += len(walk.ids)

    search: Callable[[], None] = hold
    search()
    return settled


def test_whatever_happens_every_event_ends_once_and_no_limit_is_exceeded(redis: Database) -> None:
    assert explore(redis, 24) >= 200


@pytest.mark.slow
def test_whatever_happens_for_long_every_event_ends_once_and_no_limit_is_exceeded(redis: Database) -> None:
    assert explore(redis, 600) >= 5_000
