"""Guarantees keep the loud from starving the quiet: the real gate, on made-up time."""

from __future__ import annotations

import pytest

from benchmarks.starvation import LEAST, LEAST_ON_AVERAGE, QUOTED, Day, play
from tests.support.servers import Database, RedisServer


def days(redis: Database, guarantee: int, seeds: int, hours: int) -> list[Day]:
    return [play(redis, guarantee, seed, hours) for seed in range(seeds)]


def share(runs: list[Day]) -> float:
    return sum(day.share for day in runs) / len(runs)


@pytest.mark.slow
def test_with_a_guarantee_the_quiet_get_through_what_the_loud_would_have_taken(redis: Database) -> None:
    without = days(redis, 0, 1, 2)
    assert share(without) < 30
    assert all(day.used > 98 for day in without)
    kept = days(redis, QUOTED, 1, 2)
    assert [day.within for day in kept] == [0]
    assert min(day.share for day in kept) >= LEAST
    assert all(day.used > 80 for day in kept)


@pytest.mark.slow
def test_no_event_is_refused_within_a_guarantee_that_is_used_up_again_and_again(redis: Database) -> None:
    (day,) = days(redis, 1, 1, 2)
    assert day.within == 0
    assert day.share < LEAST


@pytest.mark.slow
def test_over_ten_days_of_floods_the_quiet_get_what_is_promised(own_server: RedisServer) -> None:
    with own_server.client() as client:
        client.config_set("appendonly", "no")
        runs = days(client, QUOTED, 10, 24)
    assert sum(day.within for day in runs) == 0
    assert min(day.share for day in runs) >= LEAST
    assert share(runs) >= LEAST_ON_AVERAGE
