"""A coroutine with an async limiter, as a fixture."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.limiters import Run, run_with


@pytest.fixture
def run(redis_url: str) -> Run:
    return partial(run_with, redis_url)
