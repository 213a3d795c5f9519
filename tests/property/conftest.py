"""Walks over a stage: the last step of each test is checked."""

from __future__ import annotations

import pytest

from tests.support.stage import check_the_last_step


@pytest.hookimpl(tryfirst=True)  # while its server is there
def pytest_runtest_teardown() -> None:
    check_the_last_step()
