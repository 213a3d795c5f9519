"""An event loop that stands still while the server answers, as in a process that was stopped, or on a busy machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import pytest

from tests.support.servers import RedisServer

TURNS: Final = 100
"""After so many turns of the loop a call that began waits for its answer."""

T = TypeVar("T")


async def answered_meanwhile(
    call: Coroutine[Any, Any, T], server: RedisServer, monkeypatch: pytest.MonkeyPatch, still_s: float = 60.0
) -> T:
    """What a call comes to that is answered while the loop stands still for so long."""
    server.freeze()
    calling = asyncio.create_task(call)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + still_s)
    server.cont()
    server.attendant.ping()  # it answers one call after another
    return await calling
