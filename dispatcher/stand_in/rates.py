"""How fast the stand-in lets anybody call. Time is passed in, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from dispatcher.core.units import US


@dataclass(frozen=True, slots=True)
class Rate:
    """A bucket of ``burst`` calls that gains one every ``interval_s``."""

    burst: int
    interval_s: float


STRICT: Final = Rate(burst=1, interval_s=1.0)
"""The rate Slack documents for a channel: one message a second, no burst."""

REALISTIC: Final = Rate(burst=25, interval_s=1.0)
"""The rate people report for a channel: short bursts pass."""

WORKSPACE: Final = Rate(burst=300, interval_s=0.2)
"""Three hundred posts a minute for all channels together: Slack's "several hundred"."""

ONE_A_MINUTE: Final = Rate(burst=1, interval_s=60.0)
TIER_2: Final = Rate(burst=20, interval_s=3.0)
TIER_3: Final = Rate(burst=50, interval_s=1.2)
"""Slack's tiers, each for one method in the whole workspace: so many a minute, all of them at once if need be."""

METHODS: Final[Mapping[str, Rate]] = MappingProxyType(
    {
        "chat.update": TIER_3,
        "conversations.history": TIER_3,
        "conversations.list": TIER_2,
        "conversations.replies": TIER_3,
    }
)


@dataclass(slots=True)
class Buckets:
    """One bucket per key. A refusal names a Retry-After, and within it every call is refused, as Slack does."""

    rate: Rate
    _full_at_us: dict[str, int] = field(default_factory=dict)
    _closed_until_us: dict[str, int] = field(default_factory=dict)

    def refusal(self, key: str, now_s: float) -> int | None:
        """``None`` when one more may pass, else the Retry-After in whole seconds, rounded up. Charges nothing."""
        now_us = round(now_s * US)
        closed_until_us = self._closed_until_us.get(key, 0)
        if now_us < closed_until_us:
            return _whole_seconds(closed_until_us - now_us)
        room_at_us = self._full_at_us.get(key, now_us) - (self.rate.burst - 1) * self._interval_us
        if now_us >= room_at_us:
            return None
        retry_after = _whole_seconds(room_at_us - now_us)
        self._closed_until_us[key] = now_us + retry_after * US
        return retry_after

    def charge(self, key: str, now_s: float) -> None:
        """Take one out."""
        now_us = round(now_s * US)
        self._full_at_us[key] = max(self._full_at_us.get(key, now_us), now_us) + self._interval_us

    @property
    def _interval_us(self) -> int:
        return round(self.rate.interval_s * US)


def _whole_seconds(span_us: int) -> int:
    return -(-span_us // US)
