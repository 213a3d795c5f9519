"""A certificate that is trusted."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.support.raw_server import trusted_tls


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    return trusted_tls(tmp_path, monkeypatch)
