"""How fast the stand-in lets a channel be posted to, and what it counts of those who do not listen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """A bucket of ``burst`` posts that gains one every ``interval_s``."""

    burst: int
    interval_s: float


STRICT: Final = Rate(burst=1, interval_s=1.0)
"""The rate Slack documents: one message a second and channel, no burst."""

REALISTIC: Final = Rate(burst=25, interval_s=1.0)
"""The rate people report: short bursts pass."""


@dataclass(slots=True)
class Buckets:
    """One bucket per key. A refusal names a Retry-After, and within it every call is refused, as Slack does."""

    rate: Rate
    inside_retry_after: int = 0
    """Calls made before the Retry-After of an earlier answer was over."""
    _full_at_us: dict[str, int] = field(default_factory=dict)
    _closed_until_us: dict[str, int] = field(default_factory=dict)

    def take(self, key: str, now_s: float) -> int | None:
        """Charge one post; ``None`` when it may pass, else the Retry-After in whole seconds, rounded up."""
        now_us = round(now_s * _US)
        interval_us = round(self.rate.interval_s * _US)
        full_at_us = max(self._full_at_us.get(key, now_us), now_us)
        room_at_us = full_at_us - (self.rate.burst - 1) * interval_us
        closed_until_us = self._closed_until_us.get(key, 0)
        if now_us < closed_until_us:
            self.inside_retry_after += 1
            return _whole_seconds(closed_until_us - now_us)
        if now_us < room_at_us:
            retry_after = _whole_seconds(room_at_us - now_us)
            self._closed_until_us[key] = now_us + retry_after * _US
            return retry_after
        self._full_at_us[key] = full_at_us + interval_us
        return None


def _whole_seconds(span_us: int) -> int:
    return -(-span_us // _US)
