"""Limiters as they are published in many places, with their defects: what the gate is compared with.

Each asks a real server. ``now_us`` and ``now_s`` replace the clock that the recipe reads.
"""

from __future__ import annotations

import math
import time
from typing import Any, Final

from redis import Redis

_HIERARCHICAL: Final = """
local now = tonumber(ARGV[4])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
for i = 1, 2 do
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', now - tonumber(ARGV[3]))
end
for i = 1, 2 do
  if redis.call('ZCARD', KEYS[i]) >= tonumber(ARGV[i]) then
    return 0
  end
end
for i = 1, 2 do
  redis.call('ZADD', KEYS[i], string.format('%.0f', now), string.format('%.0f', now))
end
return 1
"""


class HierarchicalRecipe:
    """One limit for all and one for each category in a script over two sorted sets, whose members are instants."""

    def __init__(self, client: Redis, *, everyone: int, category: int, window_us: int) -> None:
        self._script = client.register_script(_HIERARCHICAL)
        self._arguments: list[str | int] = [everyone, category, window_us]

    def try_send(self, category: str, *, now_us: int | None = None) -> bool:
        """Whether an event of the category may be sent now."""
        return bool(self._script(keys=self.keys(category), args=[*self._arguments, now_us or ""]))

    def keys(self, category: str) -> list[str]:
        """The keys of one decision."""
        return ["limits:global", f"limits:category:{category}"]


class CounterRecipe:
    """A counter for each user and second of the caller's clock."""

    def __init__(self, client: Redis, *, limit: int) -> None:
        self._client: Any = client
        self._limit = limit

    def try_acquire(self, user: str, *, now_s: float | None = None) -> bool:
        """Whether the user has a slot left in this second; who has none asks again later."""
        second = math.floor(time.time() if now_s is None else now_s)
        with self._client.pipeline() as pipe:
            pipe.incr(f"counter:{user}:{second}")
            pipe.expire(f"counter:{user}:{second}", 2)
            count: int = pipe.execute()[0]
        return count <= self._limit


class SortedSetRecipe:
    """Adds to a sorted set for each user, then counts; the member is millisecond and user."""

    def __init__(self, client: Redis, *, limit: int, window_s: float) -> None:
        self._client: Any = client
        self._limit = limit
        self._window_s = window_s

    def try_acquire(self, user: str, *, now_s: float) -> bool:
        """Whether the user has a slot left in the window."""
        key, now_ms = f"sliding:{user}", round(now_s * 1_000)
        with self._client.pipeline() as pipe:
            pipe.zremrangebyscore(key, "-inf", now_ms - self._window_s * 1_000)
            pipe.zadd(key, {f"{now_ms}-{user}": now_ms})
            pipe.zcard(key)
            pipe.expire(key, self._window_s)  # half a second is the defect
            count: int = pipe.execute()[2]
        return count <= self._limit


class TwoWindowsRecipe:
    """Counts a call in its windows one after another, up to the first that is full."""

    def __init__(self, client: Redis, *windows: tuple[int, int]) -> None:
        self._client: Any = client
        self._windows = windows

    def try_call(self, *, now_s: int) -> bool:
        """Whether every window, given as (max, seconds), has room; those before the full one are charged."""
        for most, seconds in self._windows:
            key = f"calls:{seconds}:{now_s // seconds}"
            if int(self._client.get(key) or 0) >= most:
                return False
            self._client.incr(key)
            self._client.expire(key, seconds)
        return True


class CheckThenAddRecipe:
    """Looks how many there are and then adds one, in two calls; the member is a second."""

    def __init__(self, client: Redis, *, limit: int, window_s: int) -> None:
        self._client: Any = client
        self._limit = limit
        self._window_s = window_s

    def check(self, *, now_s: int) -> bool:
        """Whether there is room."""
        count: int = self._client.zcount("operations", f"({now_s - self._window_s}", "+inf")
        return count < self._limit

    def add(self, *, now_s: int, member: str | None = None) -> None:
        """Note the operation."""
        self._client.zadd("operations", {member or str(now_s): now_s})
        self._client.expire("operations", self._window_s)
        self._client.zremrangebyscore("operations", "-inf", now_s - self._window_s)
