"""The clock that deadlines of posts are counted by: it goes on while the machine sleeps."""

from __future__ import annotations

import time
from typing import Final

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has none; its monotonic clock stops


def boottime_s() -> float:
    """Seconds since the machine started; never steps back, and counts a suspended machine's time."""
    return time.clock_gettime(_CLOCK)
