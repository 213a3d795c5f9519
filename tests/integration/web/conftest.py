"""One ``dispatcher serve`` without tokens for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import RedisServer
from tests.support.serving import Serving


@pytest.fixture(scope="module")
def process(shared_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    cwd: Path = tmp_path_factory.mktemp("serve")
    with Serving(shared_server.url, cwd, DISPATCHER_MAX_WAITING="1000") as serving:
        yield serving


@pytest.fixture
def serving(process: Serving, redis_url: str) -> Serving:
    """On an empty database."""
    del redis_url
    return process
