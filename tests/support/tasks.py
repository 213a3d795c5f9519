"""Tasks of an event loop, in tests of what leaves none behind."""

from __future__ import annotations

import asyncio
from typing import Final

_PATIENCE_S: Final = 20


async def await_others() -> None:
    """Return when no task but the current one is left; one that does not end by itself is a failure."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        _, left = await asyncio.wait(others, timeout=_PATIENCE_S)
        assert left == set()
