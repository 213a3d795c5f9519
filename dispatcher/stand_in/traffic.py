"""Who may call the stand-in now, who was told to wait, and who did not."""

from __future__ import annotations

from collections import Counter
from typing import Final

from dispatcher.core.units import US
from dispatcher.stand_in.rates import ONE_A_MINUTE, Buckets
from dispatcher.stand_in.setup import Setup

HISTORY_METHODS: Final = ("conversations.history", "conversations.replies")
_WORKSPACE: Final = "workspace"


class Traffic:
    """The rates of one workspace, and what is counted of those who call it.

    A post's rates are those of its channel and of the workspace, any other method has one of its own. ``waits`` and
    ``ignored`` are counted by channel (``#ops``), or by method where it is no post: calls that were told to wait, and
    calls that came before the end of what an earlier answer told them.
    """

    def __init__(self, setup: Setup) -> None:
        self.calls: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.ignored: Counter[str] = Counter()
        self._channels = Buckets(setup.rate) if setup.rate else None
        self._workspace = Buckets(setup.workspace_rate) if setup.workspace_rate else None
        rates = dict(setup.method_rates)
        if setup.history_items is not None:
            rates |= dict.fromkeys(HISTORY_METHODS, ONE_A_MINUTE)
        self._methods = {method: Buckets(rate) for method, rate in rates.items()}
        self._told_until_us: dict[str, int] = {}

    def arrived(self, method: str, channel: str | None, now_s: float) -> None:
        """Count a call, whatever becomes of it; ``channel`` is that of a post."""
        self.calls[method] += 1
        keys = (method,) if channel is None else (channel, _WORKSPACE)
        if round(now_s * US) < max(self._told_until_us.get(key, 0) for key in keys):
            self.ignored[channel or method] += 1

    def admit_post(self, channel: str, now_s: float) -> int | None:
        """Charge a post; ``None`` when it may pass, else the Retry-After in whole seconds."""
        asked = [(self._channels, channel), (self._workspace, _WORKSPACE)]
        for buckets, key in asked:
            if buckets is not None and (retry_after := buckets.refusal(key, now_s)) is not None:
                self.told(channel, retry_after, now_s, by=key)
                return retry_after
        for buckets, key in asked:
            if buckets is not None:
                buckets.charge(key, now_s)
        return None

    def admit(self, method: str, now_s: float) -> int | None:
        """As ``admit_post``, for any other method."""
        buckets = self._methods.get(method)
        if buckets is None:
            return None
        if (retry_after := buckets.refusal(method, now_s)) is None:
            buckets.charge(method, now_s)
            return None
        self.told(method, retry_after, now_s)
        return retry_after

    def told(self, key: str, retry_after_s: int, now_s: float, *, by: str | None = None) -> None:
        """Somebody was told to wait with a channel or a method; ``by`` is whose rate it was, if not its own.

        Whole seconds are rounded up: who is told again while waiting is not told later by a fraction.
        """
        self.waits[key] += 1
        key = by or key
        until_us = round(now_s * US) + retry_after_s * US
        if until_us >= self._told_until_us.get(key, 0) + US:
            self._told_until_us[key] = until_us
