"""The workers of tests on a stage; what happens on it, each module says by its own fixture ``stage``."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.stage import Stage, Worker, check_the_last_step


@pytest.hookimpl(tryfirst=True)  # while its server is there
def pytest_runtest_teardown() -> None:
    check_the_last_step()


@pytest.fixture
def ann(stage: Stage) -> Worker:
    return stage.worker("ann")


@pytest.fixture
def bob(stage: Stage) -> Worker:
    return stage.worker("bob")


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is told to people tells times in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
