"""Who waits for a slot gets it at the ideal microsecond: the scripts in made-up time beside a brute-force model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Final

import pytest

from dispatcher.core.limits import FirstOf, Scope
from dispatcher.core.units import US
from tests.support.extent import slow_unless
from tests.support.limiters import scope
from tests.support.models import most_in_any_window
from tests.support.servers import Database
from tests.support.waiting_line import KEYS, Line, Waiter, ideal_instants

START_US: Final = 1_732_100_000_000_000
GAPS_US: Final = (10_000, 20_000, US, 5 * US, 30 * US)
"""Whole hundredths of a second: nobody is woken for less than a thousandth."""

LIMITS: Final = [
    ("1/60s",),
    ("3/60s",),
    ("10/30s",),
    ("2/30s fixed",),
    ("3/30s", "5/100s"),
    ("2/31s fixed", "5/100s"),
]

of_crowds = pytest.mark.parametrize(
    "seeds", [pytest.param(2, id="some"), pytest.param(24, id="many", marks=pytest.mark.slow)]
)


def crowd(random: Random, count: int, *demands: Scope | FirstOf) -> list[Waiter]:
    """They come all at once, or one by one."""
    at_us, gaps_us = START_US, GAPS_US if random.random() < 0.5 else GAPS_US[:1]
    waiters = []
    for n in range(count):
        at_us += random.choice(gaps_us)
        waiters.append(Waiter(f"id{n}", demands, at_us))
    return waiters


def some_releases(random: Random, waiters: Sequence[Waiter], count: int) -> dict[int, str]:
    first, last = waiters[0].arrives_us // 10_000, waiters[-1].arrives_us // 10_000 + 12_000
    return {random.randrange(first, last) * 10_000 + 5_000: f"id{random.randrange(len(waiters))}" for _ in range(count)}


@pytest.mark.parametrize("limits", LIMITS, ids=" ".join)
@of_crowds
def test_each_waiter_is_admitted_in_the_order_of_arrival_at_the_very_instant(
    redis: Database, limits: tuple[str, ...], seeds: int
) -> None:
    for seed in range(seeds):
        random, user = Random(seed), scope("user", *limits)
        waiters = crowd(random, 40, user)
        releases = some_releases(random, waiters, 8) if seed % 2 else {}
        redis.flushall()
        Line(redis, waiters, {at_us: (id_, (user,)) for at_us, id_ in releases.items()}).run()
        assert {waiter.id_: waiter.admitted_us for waiter in waiters} == ideal_instants(waiters, releases, user)
        # It asks, joins, looks after who is before it, goes; where two windows bind, one time more.
        assert max(waiter.calls - waiter.rings for waiter in waiters) <= 3 + len(limits)


def test_without_ids_each_waiter_is_admitted_at_the_very_instant(redis: Database) -> None:
    for seed in range(4):
        log = scope("log", "3/30s", "5/100s", ids=False)
        waiters = crowd(Random(seed), 40, log)
        redis.flushall()
        Line(redis, waiters).run()
        assert {waiter.id_: waiter.admitted_us for waiter in waiters} == ideal_instants(waiters, {}, log)


@pytest.mark.parametrize(
    ("limits", "ids"),
    slow_unless(lambda case: case[1] or case[0] == LIMITS[-1], product(LIMITS[2:], [True, False])),
    ids=str,
)
@of_crowds
def test_waiters_for_several_slots_at_once_are_not_passed_by_and_go_when_all_of_these_are_free(
    redis: Database, limits: tuple[str, ...], seeds: int, *, ids: bool
) -> None:
    for seed in range(seeds):
        random, user = Random(seed), scope("user", *limits, ids=ids)
        waiters = crowd(random, 40, user)
        for waiter in waiters:
            waiter.cost = random.choice([1, 1, 2, min(limit.max for limit in user.limits)])
        releases = some_releases(random, waiters, 8) if ids and seed % 2 else {}
        redis.flushall()
        Line(redis, waiters, {at_us: (id_, (user,)) for at_us, id_ in releases.items()}).run()
        assert {waiter.id_: waiter.admitted_us for waiter in waiters} == ideal_instants(waiters, releases, user)
        assert not redis.exists(KEYS.waiters("user"))
        assert redis.zrange(KEYS.promises("user"), 0, -1) in ([], [b"*"])
        assert redis.pttl(KEYS.promises("user")) != -1


def test_a_waiter_for_two_slots_sleeps_on_when_one_is_given_back(redis: Database) -> None:
    user = scope("user", "3/1h")
    waiters = [Waiter(id_, (user,), START_US + n) for n, id_ in enumerate("abc")]
    two = Waiter("two", (user,), START_US + 9, cost=2)
    Line(redis, [*waiters, two], {START_US + 5 * US: ("a", (user,)), START_US + 9 * US: ("b", (user,))}).run()
    assert (two.admitted_us, two.rings) == (START_US + 9 * US, 1)


def test_waiters_who_come_late_by_a_millisecond_keep_their_order(redis: Database) -> None:
    user = scope("user", "3/30s")
    waiters = crowd(Random(3), 40, user)
    Line(redis, waiters, delay_us=1_000).run()
    instants = [waiter.admitted_us or 0 for waiter in waiters]
    ideal = ideal_instants(waiters, {}, user)
    assert instants == sorted(instants)
    rounds = len(waiters) // 3 + 1
    assert all(
        0 <= waiter.admitted_us - ideal[waiter.id_] <= rounds * 1_000 for waiter in waiters if waiter.admitted_us
    )
    assert max(waiter.calls for waiter in waiters) <= 4 + rounds


@pytest.mark.parametrize("dies", [True, False], ids=["killed", "frozen"])
@pytest.mark.parametrize("limits", ["1/60s", "3/60s", "10/30s"])
@of_crowds
def test_a_waiter_that_dies_holds_up_the_others_for_a_second_at_most(
    redis: Database, limits: str, seeds: int, *, dies: bool
) -> None:
    for seed in range(seeds):
        random, user = Random(seed), scope("user", limits)
        waiters = crowd(random, 30, user)
        victim = random.choice(waiters[15:28])
        victim.dies, victim.frozen = dies, not dies
        redis.flushall()
        Line(redis, waiters).run()
        ideal = ideal_instants([waiter for waiter in waiters if waiter is not victim or waiter.admitted_us], {}, user)
        late = [waiter.admitted_us - ideal[waiter.id_] for waiter in waiters if waiter.admitted_us is not None]
        assert min(late) >= 0
        assert max(late) <= US


def test_a_waiter_that_is_frozen_when_it_is_woken_keeps_a_slot_that_is_given_back_for_a_second(redis: Database) -> None:
    user = scope("user", "1/1h")
    waiters = [Waiter(f"id{n}", (user,), START_US + n) for n in range(4)]
    waiters[1].frozen = True
    Line(redis, waiters, {START_US + 5 * US: ("id0", (user,)), START_US + 9 * US: ("id2", (user,))}).run()
    assert [waiter.admitted_us for waiter in waiters] == [START_US, None, START_US + 6 * US, START_US + 9 * US]


def test_waiters_that_died_side_by_side_delay_no_one_after_the_next_turn(redis: Database) -> None:
    user = scope("user", "1/60s")
    waiters = [Waiter(f"id{n}", (user,), START_US + n) for n in range(12)]
    for victim in waiters[4:9]:
        victim.dies = True
    Line(redis, waiters).run()
    living = [waiter for waiter in waiters if not waiter.dies]
    assert {waiter.id_: waiter.admitted_us for waiter in living} == ideal_instants(living, {}, user)


def test_a_waiter_that_quits_takes_no_slot_and_lets_the_next_move_up(redis: Database) -> None:
    user = scope("user", "1/60s")
    waiters = [Waiter(f"id{n}", (user,), START_US + n) for n in range(5)]
    waiters[1].quits_us = START_US + 60 * US  # at the very instant at which there is room for it
    waiters[3].quits_us = START_US + 70 * US
    Line(redis, waiters, delay_us=1).run()
    assert [waiter.admitted_us for waiter in waiters] == [
        START_US,
        None,
        START_US + 60 * US + 1,
        None,
        START_US + 120 * US + 2,
    ]
    assert redis.zcard(KEYS.scope("user")) <= 2


def test_a_waiter_for_first_of_wakes_when_any_of_its_scopes_has_a_release(redis: Database) -> None:
    share, shared = scope("share", "1/60s"), scope("shared", "1/1h")
    waiters = [
        Waiter("a", (share,), START_US),
        Waiter("b", (shared,), START_US + 1),
        *[Waiter(f"waiter{n}", (FirstOf((share, shared)),), START_US + 2 + n) for n in range(3)],
    ]
    Line(redis, waiters, {START_US + 5 * US: ("b", (shared,)), START_US + 9 * US: ("waiter0", (shared,))}).run()
    assert [waiter.admitted_us for waiter in waiters[2:]] == [
        START_US + 5 * US,
        START_US + 9 * US,
        START_US + 60 * US,
    ]
    assert redis.exists(*[key(name) for key in (KEYS.waiters, KEYS.promises) for name in ("share", "shared")]) == 0


@of_crowds
def test_a_waiter_for_several_scopes_gets_its_turn_and_no_scope_is_exceeded(redis: Database, seeds: int) -> None:
    for seed in range(seeds):
        random = Random(seed)
        everyone = scope("global", "8/30s", "20/100s")
        waiters = []
        for n, waiter in enumerate(crowd(random, 60, everyone)):
            own = scope(f"category:{n % 3}", "4/30s")
            share = FirstOf((scope(f"guarantee:{n % 2}", "5/100s"), scope("shared", "10/100s")))
            waiter.demands = random.choice([(everyone, own), (everyone, share), (everyone, share, own), (own,)])
            waiters.append(waiter)
        redis.flushall()
        Line(redis, waiters).run()
        for name, most, window_us in (
            ("global", 8, 30 * US),
            ("global", 20, 100 * US),
            *[(f"category:{n}", 4, 30 * US) for n in range(3)],
        ):
            instants = [
                waiter.admitted_us
                for waiter in waiters
                if waiter.admitted_us and any(isinstance(each, Scope) and each.name == name for each in waiter.demands)
            ]
            assert most_in_any_window(instants, window_us) <= most
        assert all(waiter.admitted_us is not None for waiter in waiters)
        assert sum(waiter.calls for waiter in waiters) <= 8 * len(waiters)


def test_places_in_a_line_have_lifetimes_and_go_with_the_last_waiter(redis: Database) -> None:
    user = scope("user", "1/60s")
    victim = Waiter("b", (user,), START_US + 1, dies=True)
    Line(redis, [Waiter("a", (user,), START_US), victim]).run()
    for key in (KEYS.waiters("user"), KEYS.promises("user")):
        assert redis.zcard(key) == 1
        assert 60_000 - 5_000 <= redis.pttl(key) <= 61_001
    redis.flushall()
    Line(redis, [Waiter(id_, (user,), START_US + n) for n, id_ in enumerate("abc")]).run()
    assert redis.keys() == [KEYS.scope("user").encode()]


def test_waiters_that_come_at_the_same_microsecond_are_admitted_in_order(redis: Database) -> None:
    user = scope("user", "1/60s")
    waiters = [Waiter(f"id{n}", (user,), START_US) for n in range(12)]
    Line(redis, waiters, {START_US + 5 * US: ("id0", (user,)), START_US + 9 * US: ("id1", (user,))}).run()
    assert [waiter.admitted_us for waiter in waiters] == [
        START_US,
        START_US + 5 * US,
        *[START_US + (9 + 60 * n) * US for n in range(10)],
    ]
