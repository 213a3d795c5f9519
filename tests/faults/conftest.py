"""Worker processes to be killed; what they do, each module says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.killable_workers import KillableWorkers


@pytest.fixture(scope="session")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableWorkers]:
    """The process that forks them: what it imports costs more than all that a worker does in most tests."""
    with KillableWorkers(tmp_path_factory.mktemp("workers")) as running:
        yield running


@pytest.fixture
def killable(forking: KillableWorkers) -> Iterator[KillableWorkers]:
    """Workers of this test alone."""
    yield forking
    forking.clear()
