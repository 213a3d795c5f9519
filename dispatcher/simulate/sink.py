"""A sink on made-up time that answers as Slack does, at once, and posts nowhere."""

from __future__ import annotations

from collections import Counter
from typing import Final

from dispatcher.core.posts import Message, PostResult, RateLimitedBySlack, Receipt
from dispatcher.core.states import Absent, ScanResult, Search
from dispatcher.core.units import US
from dispatcher.simulate.fleet import Clock
from dispatcher.stand_in.asked import as_ts
from dispatcher.stand_in.rates import REALISTIC, WORKSPACE, Buckets

_ALL: Final = "*"


class SimulatedSlack:
    """Slack's rates, as people report them: 25 posts at once and one a second in a channel, 300 a minute in all.

    ``refused`` counts the posts of each channel that were told to wait (429). Edits are never too fast.
    """

    def __init__(self, clock: Clock, *, can_update: bool = True) -> None:
        self.can_update = can_update
        self._clock = clock
        self._channels = Buckets(REALISTIC)
        self._workspace = Buckets(WORKSPACE)
        self._last_us = 0
        self.refused: Counter[str] = Counter()

    def post(self, message: Message, *, by_s: float | None = None) -> PostResult:
        """As ``ports.Sink`` says."""
        del by_s
        now_s, channel = self._clock.now_us / US, message.channel
        for buckets, key in ((self._channels, channel), (self._workspace, _ALL)):
            retry_after_s = buckets.refusal(key, now_s)
            if retry_after_s is not None:
                self.refused[channel] += 1
                return RateLimitedBySlack(retry_after_s * US, "ratelimited")
        self._channels.charge(channel, now_s)
        self._workspace.charge(_ALL, now_s)
        self._last_us = max(self._last_us + 1, self._clock.now_us)
        return Receipt(channel, as_ts(self._last_us))

    def update(self, channel: str, ts: str, message: Message, *, by_s: float | None = None) -> PostResult:
        """As ``ports.Sink`` says."""
        del message, by_s
        return Receipt(channel, ts)

    def scan(self, search: Search) -> ScanResult:
        """As ``ports.Sink`` says; every post is answered, so there is nothing to be found."""
        del search
        return ScanResult({}, Absent())
