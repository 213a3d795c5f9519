"""The command line inside the process of a test."""

from __future__ import annotations

import pytest

from tests.support.in_process import InProcess


@pytest.fixture
def inside(redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> InProcess:
    """Used by ``ops``, at no terminal, in the namespace and queue that settings have by default."""
    monkeypatch.setenv("DISPATCHER_REDIS_URL", redis_url)
    monkeypatch.setenv("USER", "ops")
    monkeypatch.setenv("LOGNAME", "ops")
    monkeypatch.delenv("COLUMNS", raising=False)
    return InProcess(monkeypatch, capsys)
