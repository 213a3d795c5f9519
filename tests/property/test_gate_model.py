"""The gate answers as a brute-force model does, over random walks of everything that can happen to its slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dispatcher.keys import Keys
from dispatcher.limiter import Limiter
from dispatcher.model import US, Admitted, Denied, Kind, Limit, Scope
from tests.support.models import GateModel, stored_slots
from tests.support.servers import Database
from tests.support.slots import SlotScripts

START_US: Final = 1_732_100_000_123_457
NAMES: Final = ("global", "category:a", "label:host=b")
FRESH: Final = 99
"""The owner that is a new id each time."""

# Keys live in real time while the walks' instants are made up, so every window outlasts the test.
WINDOWS_US: Final = (30 * US, 30 * US + 1, 59_999_999, 60 * US, 61_500_000, 300 * US, 3_600 * US)


@dataclass(frozen=True, slots=True)
class Ask:
    """One call of the gate: a batch of (owner, positions of scopes)."""

    batch: tuple[tuple[int, tuple[int, ...]], ...]
    peek: bool


@dataclass(frozen=True, slots=True)
class Hold:
    owner: int
    span_us: int


@dataclass(frozen=True, slots=True)
class Release:
    owner: int
    scope: int


@dataclass(frozen=True, slots=True)
class Shift:
    """The clock moves, perhaps back."""

    by_us: int


@dataclass(frozen=True, slots=True)
class GoToEdge:
    """The clock moves to the n-th instant at which a slot leaves a window, or a microsecond beside it."""

    nth: int
    off_us: int


@dataclass(frozen=True, slots=True)
class GoToRetry:
    """The clock moves to where the last denial said that there is room, or a microsecond before it."""

    off_us: int


@dataclass(frozen=True, slots=True)
class Change:
    """The limits of one scope change."""

    scope: int
    limits: tuple[Limit, ...]


Step: TypeAlias = Ask | Hold | Release | Shift | GoToEdge | GoToRetry | Change

limits = st.lists(
    st.builds(
        Limit,
        st.integers(1, 7),
        st.sampled_from(WINDOWS_US),
        st.sampled_from([Kind.ROLLING, Kind.ROLLING, Kind.ROLLING, Kind.FIXED]),
    ),
    min_size=1,
    max_size=3,
).map(tuple)
owners = st.sampled_from([*range(7), FRESH, FRESH, FRESH])
chosen = st.sampled_from([(0,), (1,), (0, 1), (0, 1), (1, 0), (0, 1, 2), (0, 1, 2), (2, 0)])
asks = st.builds(
    Ask,
    st.lists(st.tuples(owners, chosen), min_size=1, max_size=5).map(tuple),
    st.sampled_from([False, False, False, True]),
)
steps = st.one_of(
    asks,
    asks,
    asks,
    st.builds(Hold, st.integers(0, 6), st.sampled_from([1, 20 * US, 45 * US, 90 * US, 4_000 * US])),
    st.builds(Release, st.integers(0, 6), st.integers(0, 2)),
    st.builds(Shift, st.sampled_from([0, 1, 7 * US, 29 * US, 61 * US, 400 * US, -1, -3 * US, -9 * US, -50 * US])),
    st.builds(GoToEdge, st.integers(0, 4), st.integers(-1, 1)),
    st.builds(GoToRetry, st.sampled_from([-1, 0])),
    st.builds(Change, st.integers(0, 2), limits),
)
walks = st.tuples(st.tuples(limits, limits, limits), st.lists(steps, min_size=40, max_size=80))


class Walk:
    """One walk: the gate and the model side by side in a namespace of their own."""

    def __init__(self, redis: Database, namespace: str, all_limits: Sequence[tuple[Limit, ...]]) -> None:
        self.redis = redis
        self.keys = Keys(namespace)
        self.limiter = Limiter(redis, namespace=namespace)
        self.slots = SlotScripts(redis)
        self.model = GateModel()
        self.scopes = [Scope(name, each) for name, each in zip(NAMES, all_limits, strict=True)]
        self.now_us = START_US
        self.retry_us = START_US
        self.decided = 0
        self.newcomers = 0

    def take(self, step: Step) -> None:
        match step:
            case Ask(batch, peek):
                self._ask([(self._id(owner), tuple(self.scopes[at] for at in ats)) for owner, ats in batch], peek=peek)
            case Hold(owner, span_us):
                until_us = self.now_us + span_us
                for scope in self.scopes:
                    self.slots.hold(self.keys.scope(scope.name), self._id(owner), until_us, self.now_us)
                    self.model.hold(self._id(owner), scope.name, until_us)
                self._look(charged=frozenset())
            case Release(owner, at):
                self.slots.release(self.keys.scope(NAMES[at]), self._id(owner))
                self.model.release(self._id(owner), NAMES[at])
                self._look(charged=frozenset())
            case Shift(by_us):
                self.now_us += by_us
            case GoToEdge(nth, off_us):
                edges = self.model.edges(self.scopes, self.now_us)
                self.now_us = edges[nth] + off_us if nth < len(edges) else self.now_us
            case GoToRetry(off_us):
                self.now_us = self.retry_us + off_us
            case Change(at, changed):
                self.scopes[at] = Scope(NAMES[at], changed)
            case _:
                assert_never(step)

    def _id(self, owner: int) -> str:
        if owner != FRESH:
            return f"id{owner}"
        self.newcomers += 1
        return f"new{self.newcomers}"

    def _ask(self, batch: list[tuple[str, tuple[Scope, ...]]], *, peek: bool) -> None:
        written = self._written()
        if peek:
            got = [self.limiter.peek(scopes, id_, now_us=self.now_us) for id_, scopes in batch]
            expected = [self.model.ask(id_, scopes, self.now_us) for id_, scopes in batch]
            used = [self.model.usage(scope, self.now_us) for scope in self.scopes]
            assert self.limiter.usage(self.scopes, now_us=self.now_us) == used
        else:
            got = self.limiter.try_acquire_many(batch, now_us=self.now_us)
            expected = [self.model.decide(id_, scopes, self.now_us) for id_, scopes in batch]
        assert got == expected
        self.decided += len(batch)
        charged = frozenset(
            scope.name
            for (_, scopes), verdict in zip(batch, got, strict=True)
            if isinstance(verdict, Admitted) and not peek
            for scope in scopes
        )
        self._look(charged)
        if not charged:
            assert self._written() == written, "a call that admitted nothing wrote something"
        for verdict in got:
            if isinstance(verdict, Denied):
                self.retry_us = self.now_us + verdict.retry_after_us

    def _look(self, charged: frozenset[str]) -> None:
        pipe = self.redis.pipeline(transaction=False)
        for scope in self.scopes:
            pipe.zrange(self.keys.scope(scope.name), 0, -1, withscores=True)
            pipe.pttl(self.keys.scope(scope.name))
        answers = pipe.execute()
        for scope, rows, lifetime_ms in zip(self.scopes, answers[::2], answers[1::2], strict=True):
            kept = stored_slots(rows)
            assert bool(rows) == (lifetime_ms > 0), f"{scope.name} has a key without a lifetime"
            if scope.name in charged:
                self.model.forget_all_but(kept, scope)
                longest_us = max(limit.window_us for limit in scope.limits)
                assert lifetime_ms >= longest_us // 1000 - 5_000  # what the test itself took since
            else:
                assert kept == self.model.slots[scope.name]

    def _written(self) -> int:
        return int(self.redis.info("persistence")["rdb_changes_since_last_save"])


def explore(redis: Database, examples: int) -> int:
    """Take ``examples`` walks; how many decisions were compared."""
    decided = 0

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # with Phase.shrink a failing walk gets small, which takes minutes
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(walks)
    def compare(walk: tuple[tuple[tuple[Limit, ...], ...], list[Step]]) -> None:
        nonlocal decided
        all_limits, taken = walk
        redis.flushall()
        gate = Walk(redis, "walk", all_limits)
        for step in taken:
            gate.take(step)
        decided += gate.decided

    search: Callable[[], None] = compare
    search()
    return decided


def test_five_thousand_random_decisions_are_those_of_the_model(redis: Database) -> None:
    assert explore(redis, 230) >= 5_000


@pytest.mark.slow
def test_a_hundred_thousand_random_decisions_are_those_of_the_model(redis: Database) -> None:
    assert explore(redis, 4_000) >= 100_000
