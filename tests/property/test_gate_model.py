"""The gate answers as a brute-force model does, over random walks of everything that can happen to its slots."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import pytest
from hypothesis import given, settings

from dispatcher.core.limits import Admitted, Demand, Denied, FirstOf, Limit, Scope
from dispatcher.core.units import US
from dispatcher.limiter import Limiter
from tests.support.gate import Gate
from tests.support.gate_walk import START_US, Step, Walk, walks
from tests.support.models import GateModel, most_in_any_window
from tests.support.servers import Database


def explore(redis: Database, examples: int) -> int:
    """Take ``examples`` walks; how many decisions were compared."""
    decided = 0

    @settings(settings.get_profile("walks"), max_examples=examples)
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


@pytest.mark.slow  # tests/integration/limiter/test_servers.py has a short form, on each server at hand
def test_a_thousand_random_decisions_are_those_of_the_model(redis: Database) -> None:
    assert explore(redis, 40) >= 1_000


@pytest.mark.slow
def test_two_hundred_thousand_random_decisions_are_those_of_the_model(redis: Database) -> None:
    assert explore(redis, 6_400) >= 200_000


LONG: Final = Limit(8, window_us=300 * US)
EVERYONE: Final = Scope("global", (Limit(4, window_us=45 * US), LONG))
SHARES: Final = {"a": 3, "b": 2}
SHARED: Final = Scope("shared", (Limit(LONG.max - sum(SHARES.values()), window_us=LONG.window_us),))
CATEGORIES: Final = ("a", "b", "c", "d")


def pool(category: str) -> Demand:
    """The share that is kept for a category, then what is shared by all."""
    if category not in SHARES:
        return SHARED
    return FirstOf((Scope(f"guarantee:{category}", (Limit(SHARES[category], window_us=LONG.window_us),)), SHARED))


def demands(category: str) -> tuple[Demand, ...]:
    return (EVERYONE, pool(category), Scope(f"category:{category}", (Limit(5, window_us=60 * US),)))


class Guarantees:
    """A gate with guaranteed shares, asked, held and released at random; an id begins with its category."""

    def __init__(self, redis: Database, seed: int) -> None:
        self.random = Random(seed)
        self.gate = Gate(redis, namespace=f"guarantees{seed}")
        self.limiter = Limiter(redis, namespace=f"guarantees{seed}", clock=lambda: self.now_us)
        self.model = GateModel()
        self.now_us = START_US
        self.posted: dict[str, int] = {}
        self.decided = 0

    def ask(self) -> None:
        batch = []
        for _ in range(self.random.randint(1, 7)):
            category, known = self.random.choice(CATEGORIES), list(self.posted)
            id_ = self.random.choice(known) if known and self.random.random() < 0.2 else f"{category}{self.decided}"
            batch.append((id_, demands(id_[0])))
            self.decided += 1
        got = self.gate.try_acquire_many(batch, now_us=self.now_us)
        assert got == [self.model.decide(id_, wanted, self.now_us) for id_, wanted in batch]
        for (id_, _), verdict in zip(batch, got, strict=True):
            if isinstance(verdict, Admitted):
                self.posted[id_] = self.now_us

    def release(self) -> None:
        for id_ in self.random.sample(list(self.posted), min(2, len(self.posted))):
            wanted = demands(id_[0])
            for scope in ("global", "shared", f"guarantee:{id_[0]}", f"category:{id_[0]}"):
                self.model.release(id_, scope)
            self.limiter.release(wanted, id_)
            del self.posted[id_]

    def examine(self) -> None:
        """Never more than the limit in all, and no share is refused while its category holds less than it."""
        assert most_in_any_window(self.posted.values(), LONG.window_us) <= LONG.max
        assert most_in_any_window(self.posted.values(), 45 * US) <= 4
        counted = [id_[0] for id_, at_us in self.posted.items() if at_us + LONG.window_us > self.now_us]
        for category, share in SHARES.items():
            if counted.count(category) < share:
                verdict = self.limiter.peek((Scope("global", (LONG,)), pool(category)))
                assert verdict == Admitted(), f"{category} holds {counted.count(category)} of {share}: {verdict}"


@pytest.mark.parametrize(("seeds", "least"), [(5, 800), pytest.param(24, 4_000, marks=pytest.mark.slow)])
def test_with_guarantees_never_more_than_the_limit_in_all_and_never_less_than_each_share(
    redis: Database, seeds: int, least: int
) -> None:
    decided = 0
    for seed in range(seeds):
        walk = Guarantees(redis, seed)
        for _ in range(60):
            walk.now_us += walk.random.choice((0, 1, 5 * US, 20 * US, 46 * US, 100 * US))
            walk.ask()
            if walk.random.random() < 0.2:
                walk.release()
            walk.examine()
        decided += walk.decided
    assert decided > least


def test_room_that_a_guarantee_keeps_is_refused_to_all_others(redis: Database) -> None:
    gate = Gate(redis, namespace="kept")
    storm = [(f"c{n}", (Scope("global", (LONG,)), pool("c"))) for n in range(8)]
    verdicts = gate.try_acquire_many(storm, now_us=START_US)
    assert verdicts == [Admitted()] * 3 + [Denied("shared", SHARED.limits[0], LONG.window_us)] * 5
    mine = [(f"a{n}", (Scope("global", (LONG,)), pool("a"))) for n in range(4)]
    assert gate.try_acquire_many(mine, now_us=START_US + 1) == [
        *[Admitted()] * 3,
        Denied("shared", SHARED.limits[0], LONG.window_us - 1),
    ]
