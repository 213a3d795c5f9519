"""A local Slack, a limiter, a stage with its workers; a module that needs others has fixtures of these names."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from dispatcher.limiter import Limiter
from dispatcher.stand_in import StandIn
from tests.support.servers import Database
from tests.support.stage import Stage, Worker, check_the_last_step


@pytest.hookimpl(tryfirst=True)  # while its server is there
def pytest_runtest_teardown() -> None:
    check_the_last_step()


@pytest.fixture
def slack() -> Iterator[StandIn]:
    with StandIn() as stand_in:
        yield stand_in


@pytest.fixture
def limiter(redis: Database) -> Limiter:
    return Limiter(redis, namespace="shop")


@pytest.fixture
def stage(redis: Database) -> Stage:
    return Stage(redis)


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
