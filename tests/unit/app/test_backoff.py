"""How long an event waits that was not posted: a random time, up to 2, 4, 8 ... seconds."""

from __future__ import annotations

import random

import pytest

from dispatcher.app.building import build_backoff
from dispatcher.core.units import US

DRAWS = 1_000


@pytest.mark.parametrize(
    ("attempt", "most_s"), [(1, 2), (2, 4), (3, 8), (4, 16), (5, 32), (6, 64), (7, 128), (8, 256), (9, 300), (50, 300)]
)
def test_an_attempt_waits_a_random_time_up_to_twice_as_long_as_the_one_before(attempt: int, most_s: int) -> None:
    random.seed(attempt)  # it draws from the module's own source
    backoff = build_backoff()
    waits = [backoff(attempt) for _ in range(DRAWS)]
    assert 0 <= min(waits) < 0.02 * most_s * US
    assert 0.98 * most_s * US < max(waits) <= most_s * US
    assert 0.45 * most_s * US < sum(waits) / DRAWS < 0.55 * most_s * US
