"""A random walk of everything that can happen to the gate's slots, with the brute-force model at its side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from hypothesis import strategies as st

from dispatcher.core.limits import Admitted, Demand, Denied, FirstOf, Kind, Limit, Scope, all_scopes
from dispatcher.core.units import US
from dispatcher.limiter import Limiter
from dispatcher.limiter.arguments import slot_of
from dispatcher.server.keys import Keys
from tests.support.gate import Gate
from tests.support.models import Charged, GateModel, has_quota, stored_slots
from tests.support.servers import Database
from tests.support.slots import SlotScripts

START_US: Final = 1_732_100_000_123_457
WITH_IDS: Final = ("global", "category:a", "label:host=b", "guarantee:a", "shared")
WITHOUT_IDS: Final = ("log", "quota")
NAMES: Final = (*WITH_IDS, *WITHOUT_IDS)
FRESH: Final = 99
"""The owner that is a new id each time."""

# Keys live in real time while the walks' instants are made up, so every window outlasts the test.
WINDOWS_US: Final = (30 * US, 30 * US + 1, 59_999_999, 60 * US, 61_500_000, 300 * US, 3_600 * US)

Wanted: TypeAlias = int | tuple[int, ...]
"""The position of a scope in ``NAMES``, or those of which the first with room is wanted."""

CHOICES: Final[tuple[tuple[Wanted, ...], ...]] = (
    (0,),
    (1,),
    (0, 1),
    (0, 1),
    (1, 0),
    (0, 1, 2),
    (2, 0),
    (0, (3, 4), 1),
    (0, (3, 4), 1),
    (0, (4, 3)),
    ((3, 4, 2),),
    ((3, 1), (2, 4)),
    (5,),
    (6,),
    (0, 5, 6),
    (6, 1),
    ((5, 4), 0),
    ((6, 5), 1),
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One call of the gate: a batch of (owner, what it wants)."""

    batch: tuple[tuple[int, tuple[Wanted, ...]], ...]
    peek: bool


@dataclass(frozen=True, slots=True)
class AskSeveral:
    """One call of the library for several slots of each scope at once: at most as many as its limits can hold."""

    owner: int
    wanted: tuple[Wanted, ...]
    cost: int
    peek: bool


@dataclass(frozen=True, slots=True)
class Hold:
    """The owner's slots are held from now on."""

    owner: int
    span_us: int


@dataclass(frozen=True, slots=True)
class Release:
    """The owner's slots in some scopes go back, by the library's call."""

    owner: int
    scopes: tuple[int, ...]
    cost: int


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


Step: TypeAlias = Ask | AskSeveral | Hold | Release | Shift | GoToEdge | GoToRetry | Change

kinds = st.sampled_from([Kind.ROLLING, Kind.ROLLING, Kind.ROLLING, Kind.FIXED])
limits = st.lists(
    st.builds(Limit, st.integers(1, 7), window_us=st.sampled_from(WINDOWS_US), kind=kinds), min_size=1, max_size=3
).map(tuple)
fixed_limits = st.lists(
    st.builds(Limit, st.integers(1, 7), window_us=st.sampled_from(WINDOWS_US), kind=st.just(Kind.FIXED)),
    min_size=1,
    max_size=3,
).map(tuple)
owners = st.sampled_from([*range(7), FRESH, FRESH, FRESH])
asks = st.builds(
    Ask,
    st.lists(st.tuples(owners, st.sampled_from(CHOICES)), min_size=1, max_size=9).map(tuple),
    st.sampled_from([False, False, False, True]),
)
several = st.builds(
    AskSeveral,
    st.sampled_from([0, 1, 2, FRESH]),
    st.sampled_from(CHOICES),
    st.sampled_from([2, 2, 3, 5]),
    st.sampled_from([False, False, False, True]),
)
steps = st.one_of(
    asks,
    asks,
    asks,
    asks,
    several,
    st.builds(Hold, st.integers(0, 6), st.sampled_from([1, 20 * US, 45 * US, 90 * US, 4_000 * US])),
    st.builds(
        Release,
        st.integers(0, 6),
        st.sampled_from([(0,), (1,), (2,), (3, 4), (0, 3, 4)]),
        st.sampled_from([1, 1, 2, 3]),
    ),
    st.builds(Shift, st.sampled_from([0, 1, 7 * US, 29 * US, 61 * US, 400 * US, -1, -3 * US, -9 * US, -50 * US])),
    st.builds(GoToEdge, st.integers(0, 4), st.integers(-1, 1)),
    st.builds(GoToRetry, st.sampled_from([-1, 0])),
    st.one_of(
        st.builds(Change, st.integers(0, 5), limits),
        st.builds(Change, st.sampled_from([5, 6, 6]), fixed_limits),
    ),
)
walks = st.tuples(
    st.tuples(*[limits] * 6, fixed_limits),
    st.lists(steps, min_size=40, max_size=80),
)


class Walk:
    """One walk: the gate and the model side by side in a namespace of their own."""

    def __init__(self, redis: Database, namespace: str, all_limits: Sequence[tuple[Limit, ...]]) -> None:
        self.redis = redis
        self.keys = Keys(namespace)
        self.gate = Gate(redis, namespace=namespace)
        self.limiter = Limiter(redis, namespace=namespace, clock=lambda: self.now_us)
        self.slots = SlotScripts(redis)
        self.model = GateModel()
        self.scopes = [self._scope(at, each) for at, each in enumerate(all_limits)]
        self.now_us = START_US
        self.retry_us = START_US
        self.decided = 0
        self.newcomers = 0

    def take(self, step: Step) -> None:
        """Do it to both and compare."""
        match step:
            case Ask(batch, peek):
                asked = [(self._id(owner), self._demands(wanted)) for owner, wanted in batch]
                self._ask(asked, peek=peek, fresh=all(owner == FRESH for owner, _ in batch))
            case Hold(owner, span_us):
                until_us = self.now_us + span_us
                for scope in self.scopes[: len(WITH_IDS)]:
                    self.slots.hold(self.keys.scope(scope.name), self._id(owner), until_us, self.now_us)
                    self.model.hold(self._id(owner), scope.name, until_us)
                self._look()
            case AskSeveral(owner, wanted, cost, peek):
                self._ask_several(owner, self._demands(wanted), cost, peek=peek)
            case Release(owner, positions, cost):
                self._release(self._id(owner), [self.scopes[at] for at in positions], cost)
            case Shift(by_us):
                self.now_us += by_us
            case GoToEdge(nth, off_us):
                edges = self.model.edges(self.scopes, self.now_us)
                self.now_us = edges[nth] + off_us if nth < len(edges) else self.now_us
            case GoToRetry(off_us):
                self.now_us = self.retry_us + off_us
            case Change(at, changed):
                self.scopes[at] = self._scope(at, changed)
            case _:
                assert_never(step)

    def _release(self, id_: str, scopes: Sequence[Scope], cost: int) -> None:
        slot = slot_of(id_, cost)
        counted = any(self.model.counts(slot, scope, self.now_us, cost) for scope in scopes)
        for scope in scopes:
            self.model.release(slot, scope.name, cost)
        assert self.limiter.release(scopes, id_, cost=cost) is counted
        self._look()

    def _scope(self, at: int, limits: tuple[Limit, ...]) -> Scope:
        return Scope(NAMES[at], limits, ids=NAMES[at] in WITH_IDS)

    def _demands(self, wanted: tuple[Wanted, ...]) -> tuple[Demand, ...]:
        return tuple(
            self.scopes[each] if isinstance(each, int) else FirstOf(tuple(self.scopes[at] for at in each))
            for each in wanted
        )

    def _id(self, owner: int) -> str:
        if owner != FRESH:
            return f"id{owner}"
        self.newcomers += 1
        return f"new{self.newcomers}"

    def _ask(self, batch: list[tuple[str, tuple[Demand, ...]]], *, peek: bool, fresh: bool) -> None:
        written = self._written()
        self.model.charged.clear()
        if peek:
            got = self.gate.peek(batch, now_us=self.now_us)
            expected = [self.model.ask(id_, demands, self.now_us) for id_, demands in batch]
            used = [self.model.usage(scope, self.now_us) for scope in self.scopes]
            assert self.limiter.usage_many(self.scopes) == used
        else:
            if fresh:  # the library names them and says that nobody has seen these names
                got = self.limiter.try_acquire_many([demands for _, demands in batch])
                names = [verdict.id or "" if isinstance(verdict, Admitted) else "denied" for verdict in got]
                batch = [(name, demands) for name, (_, demands) in zip(names, batch, strict=True)]
            else:
                got = self.gate.try_acquire_many(batch, now_us=self.now_us)
            expected = [self.model.decide(id_, demands, self.now_us) for id_, demands in batch]
        assert got == expected
        self.decided += len(batch)
        if peek or Admitted() not in got:
            assert self._written() == written, "a call that admitted nothing wrote something"
        self._look()
        for verdict in got:
            if isinstance(verdict, Denied):
                self.retry_us = self.now_us + verdict.retry_after_us

    def _ask_several(self, owner: int, demands: tuple[Demand, ...], cost: int, *, peek: bool) -> None:
        cost = min(cost, *(limit.max for scope in all_scopes(demands) for limit in scope.limits))
        written = self._written()
        self.model.charged.clear()
        id_ = None if owner == FRESH else self._id(owner)
        got = (self.limiter.peek if peek else self.limiter.try_acquire)(demands, id_, cost=cost)
        slot = slot_of(id_ or (got.id if isinstance(got, Admitted) else None) or "denied", cost)
        assert got == (self.model.ask if peek else self.model.decide)(slot, demands, self.now_us, cost)
        self.decided += 1
        if peek or isinstance(got, Denied):
            assert self._written() == written, "a call that admitted nothing wrote something"
        if isinstance(got, Denied):
            self.retry_us = self.now_us + got.retry_after_us
        self._look()

    def _look(self) -> None:
        """What is stored is what the model holds, and every key has a lifetime of at least its longest window."""
        pipe = self.redis.pipeline(transaction=False)
        for name in WITH_IDS:
            pipe.zrange(self.keys.scope(name), 0, -1, withscores=True)
        for name in WITHOUT_IDS:
            pipe.lrange(self.keys.log(name), 0, -1)
        stored_keys = [*map(self.keys.scope, WITH_IDS), *map(self.keys.log, WITHOUT_IDS)]
        for key in (*stored_keys, *map(self.keys.quota, WITHOUT_IDS)):
            pipe.pttl(key)
        answers = pipe.execute()
        for scope, rows in zip(self.scopes, answers, strict=False):
            if scope.ids:
                kept = stored_slots(rows)
                if scope.name in self.model.charged:
                    self.model.forget_all_but(kept, scope, self.now_us)
                assert kept == self.model.slots[scope.name]
            else:
                log = [int(each) for each in rows]
                if scope.name in self.model.charged and not has_quota(scope):
                    self.model.forget_all_logged_but(log, scope)
                assert log == self.model.logs[scope.name][::-1]
        lifetimes_ms = answers[len(NAMES) :]
        assert -1 not in lifetimes_ms, f"a key without a lifetime: {lifetimes_ms}"
        for scope, lifetime_ms in zip(self.scopes, lifetimes_ms, strict=False):
            charged_now = Charged(self.now_us) in self.model.slots[scope.name].values()
            if charged_now and scope.name in self.model.charged:
                longest_us = max(limit.window_us for limit in scope.limits)
                assert lifetime_ms >= longest_us // 1000 - 5_000  # what the test itself took since
        self.model.charged.clear()

    def _written(self) -> int:
        return int(self.redis.info("persistence")["rdb_changes_since_last_save"])
