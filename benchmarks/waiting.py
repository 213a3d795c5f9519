"""Many who wait for one limit at the same time, each in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from benchmarks.rounds import script_calls
from tests.support.servers import Database


def together(asks: Sequence[Callable[[], bool]], client: Database) -> tuple[int, str]:
    """How many of them were admitted; and in words what it took: scripts that the server ran, and seconds."""
    admitted: list[bool] = []
    threads = [threading.Thread(target=lambda ask=ask: admitted.append(ask())) for ask in asks]
    before, begun = script_calls(client), time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.monotonic() - begun
    calls = (script_calls(client) - before) / len(asks)
    return sum(admitted), f"{calls:.1f} scripts each, {sum(admitted)} of {len(asks)} admitted in {took_s:.1f} s"
