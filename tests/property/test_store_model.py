"""Random walks of producers, workers and operators over one namespace: whatever happens, what was promised holds."""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.servers import Database
from tests.support.store_walk import StoreWalk

STEPS: Final = 100
SLOW_STEPS: Final = 1_000


def walk(redis: Database, seed: int, steps: int) -> StoreWalk:
    """Take a walk to its end."""
    walked = StoreWalk(redis, seed)
    for _ in range(steps):
        walked.step()
    walked.drain()
    walked.verify()
    walked.probe()
    return walked


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_every_event_ends_once_and_no_limit_is_exceeded(redis: Database, seed: int) -> None:
    assert len(walk(redis, seed, STEPS).posts) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_every_event_of_a_long_run_ends_once_and_no_limit_is_exceeded(redis: Database, seed: int) -> None:
    assert len(walk(redis, seed, SLOW_STEPS).posts) >= 50
