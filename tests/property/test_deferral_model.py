"""Deferral under random walks: whatever happens every event ends once, in order, and room is never left unused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.event import Event
from dispatcher.core.limits import Denied
from dispatcher.core.policy import Policy
from dispatcher.core.posts import Ambiguous, PostResult, RateLimitedBySlack, Receipt, Rejected, Retryable
from dispatcher.core.states import DeadLettered, Dropped, Sent, Started
from dispatcher.core.units import US, Lane
from tests.support.deferral_walk import (
    CATEGORIES,
    CHANNELS,
    LABELS,
    DeferralWalk,
    deferring_policy,
)
from tests.support.servers import Database
from tests.support.stage import UNPACED

OWNERS: Final = 3
HOUR_US: Final = 3_600 * US
RESULTS: Final[tuple[PostResult, ...]] = (
    Receipt("#a", "1.1"),
    Receipt("#a", "1.2"),
    RateLimitedBySlack(7 * US, "ratelimited"),
    Retryable("refused", "connection refused"),
    Rejected("is_archived", "archived"),
    Ambiguous("timeout", "no answer"),
)
Step = Callable[[DeferralWalk], None]

owners = st.integers(0, OWNERS - 1)


def _send(count: int, event: Event) -> Step:
    return lambda walk: walk.send(*[event] * count)


def _take(at: int, new: int, due: int, ahead: bool) -> Step:  # noqa: FBT001 - as the strategy draws it
    def step(walk: DeferralWalk) -> None:
        if not walk.owners[at].hands:
            walk.take(walk.owners[at], new, due, ahead=ahead)

    return step


def _dispatch(at: int, free: int) -> Step:
    return lambda walk: walk.dispatch(walk.owners[at], free)


def _answer(at: int, nth: int, result: PostResult) -> Step:
    return lambda walk: walk.answer(walk.owners[at], nth, result)


def _end(at: int, how: str) -> Step:
    match how:
        case "die":
            return lambda walk: walk.die(at)
        case "stop":
            return lambda walk: walk.stop(at)
        case _:
            return lambda walk: walk.lose_answer(walk.owners[at])


def _pass(seconds: float) -> Step:
    return lambda walk: walk.pass_time(seconds)


events = st.builds(
    Event,
    st.sampled_from(CATEGORIES[:2] * 3 + CATEGORIES[2:]),
    st.just("t"),
    channel=st.sampled_from([*CHANNELS, UNPACED]),
    priority=st.sampled_from([Lane.NORMAL, *Lane]),
    labels=st.sampled_from(LABELS),
    max_age=st.sampled_from([None, None, None, 45.0]),
)
sends = st.builds(_send, st.integers(1, 5), events)
takes = st.builds(_take, owners, st.integers(0, 5), st.integers(0, 4), st.booleans())
dispatches = st.builds(_dispatch, owners, st.sampled_from([0, 1, 2, 9]))
answers = st.builds(_answer, owners, st.integers(0, 2), st.sampled_from(RESULTS))
passes = st.builds(_pass, st.sampled_from([0.000001, 0.4, 0.9, 2.5, 11, 31, 61]))
ends = st.builds(_end, owners, st.sampled_from(["die", "stop", "lose answer"]))
steps = st.one_of(sends, sends, takes, takes, takes, dispatches, dispatches, dispatches, answers, answers, passes, ends)
walks = st.integers(0, 3).flatmap(lambda n: st.lists(steps, min_size=20 * n, max_size=20 * n + 20))


def explore(redis: Database, examples: int) -> tuple[int, int]:
    """Take ``examples`` walks to their end; how many events they settled, and how many of them had waited in line."""
    settled = deferred = 0

    @settings(settings.get_profile("walks"), max_examples=examples)
    @given(walks)
    def hold(taken: list[Step]) -> None:
        nonlocal settled, deferred
        walk = DeferralWalk(redis, deferring_policy(), OWNERS)
        for step in taken:
            step(walk)
        walk.drain()
        walk.verify()
        settled += len(walk.sent)
        deferred += len(
            {each.candidate.leased.id for worker in walk.workers for each in worker.told.waits if each.scope}
        )

    search: Callable[[], None] = hold
    search()
    return settled, deferred


def test_each_deferred_event_ends_once_in_order_and_within_the_limits(redis: Database) -> None:
    settled, deferred = explore(redis, 5)
    assert settled >= 25
    assert deferred >= 7


@pytest.mark.slow
def test_each_deferred_event_of_a_long_run_ends_once_in_order_and_within_the_limits(redis: Database) -> None:
    settled, deferred = explore(redis, 200)
    assert settled >= 2_000
    assert deferred >= 500


class Hour(DeferralWalk):
    """One hour of healthy workers; posts are refused for good or for a while now and then."""

    def __init__(self, redis: Database, seed: int, policy: Policy) -> None:
        super().__init__(redis, policy, OWNERS)
        self.random = random.Random(seed)
        self.end_us = self.stage.clock.now_us + HOUR_US
        self.looks = 0
        """How often the head of a line was found without room, with a worker that wakes in time."""

    def result(self, started: Started) -> PostResult:
        if self.random.random() < 0.7:
            return super().result(started)
        return self.random.choice(RESULTS)

    def run(self, mean_gap_s: float) -> None:
        """Events arrive at random instants; between them workers sleep as they were told."""
        arrives_us = self.stage.clock.now_us
        while self.stage.clock.now_us < self.end_us:
            if self.stage.clock.now_us >= arrives_us:
                self._arrive()
                arrives_us += round(self.random.expovariate(1 / mean_gap_s) * US) + 1
            self.work_at_this_instant()
            self._no_room_is_left_unused()
            wakes_us = min(arrives_us, *(owner.wakes_us for owner in self.owners))
            self.pass_time(max(0, wakes_us - self.stage.clock.now_us) / US)

    def _arrive(self) -> None:
        choice = self.random.choice
        event = Event(choice(CATEGORIES), "t", channel=UNPACED, priority=choice(list(Lane)), labels=choice(LABELS))
        self.send(*[event] * choice([1, 1, 2, 4]))
        self.wake_one()

    def wake_one(self) -> None:
        """A push to a lane wakes every idle worker; whoever comes first takes it."""
        self.owners[self.random.randrange(OWNERS)].wakes_us = self.stage.clock.now_us

    def _no_room_is_left_unused(self) -> None:
        """While all sleep, the head of each category's line has no room before the first of them wakes."""
        free = [owner for owner in self.owners if len(owner.flights) < 3]
        if not free:
            return
        wakes_us = min(owner.wakes_us for owner in free)
        for line in self.stage.redis.hkeys(self.stage.keys.awaited):
            head = self.stage.redis.zrange(self.stage.keys.line(line.decode()), 0, 0)[0].decode()
            leased = self.taken[head]
            (verdict,) = self.stage.gate.peek([(leased.slot, self.stage.policy.terms(leased).scopes)])
            assert isinstance(verdict, Denied), f"{head} waits in {line} while there is room"
            room_us = self.stage.clock.now_us + verdict.retry_after_us
            assert wakes_us <= room_us, f"{head} has room at {room_us}, and nobody wakes before {wakes_us}"
            self.looks += 1


LIMITED: Final = deferring_policy("9/1m", max_parked=1_000, guarantee=2)


def shared() -> Policy:
    """Half of the only limit is kept for one category, and all share the rest."""
    policy = deferring_policy("4/1m", max_parked=1_000, guarantee=2)
    deferring = {name: replace(rule, limits=(), per_label={}) for name, rule in policy.categories.items()}
    return replace(policy, categories=deferring | {"chatter": policy.categories["chatter"]})


def _an_hour(redis: Database, seed: int, mean_gap_s: float, policy: Policy = LIMITED) -> None:
    hour = Hour(redis, seed, policy)
    hour.run(mean_gap_s)
    assert hour.looks >= 50
    hour.drain()
    hour.verify()
    ends = hour.outcomes().values()
    assert len(ends) >= 60
    assert sum(isinstance(outcome, Sent) for outcome in ends) >= 40
    assert all(isinstance(outcome, Sent | Dropped | DeadLettered) for outcome in ends)


@pytest.mark.slow
def test_in_an_hour_of_arrivals_no_head_waits_while_its_limits_have_room(redis: Database) -> None:
    _an_hour(redis, seed=1, mean_gap_s=90)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("mean_gap_s", [15, 40])
def test_in_many_hours_of_arrivals_no_head_waits_while_its_limits_have_room(
    redis: Database, seed: int, mean_gap_s: float
) -> None:
    _an_hour(redis, seed, mean_gap_s)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("mean_gap_s", [12, 25, 60])
def test_in_many_hours_no_head_waits_while_its_guarantee_or_what_all_share_has_room(
    redis: Database, seed: int, mean_gap_s: float
) -> None:
    _an_hour(redis, seed, mean_gap_s, shared())
