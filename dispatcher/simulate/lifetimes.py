"""Keeps keys alive while made-up time is slower than real time: the server ends lifetimes by its own clock."""

from __future__ import annotations

import time
from typing import Final

from dispatcher.core.limits import US
from dispatcher.core.policy import Policy
from dispatcher.server.connection import Client
from dispatcher.simulate.fleet import Fleet

_AT_ONCE: Final = 1_000


class Lifetimes:
    """The slots of a scope live a window at least after the last charge: a look every half of the shortest will do."""

    def __init__(self, client: Client, fleet: Fleet) -> None:
        self._client = client
        self._clock = fleet.clock
        self._pattern = f"{fleet.keys.scope_prefix}*"
        self._every_s = shortest_us(fleet.policy) / US / 2
        self._looked_s = time.monotonic()
        self._looked_us = self._clock.now_us

    def look(self) -> None:
        """Take away the lifetimes of all slots, if less time was made up than has passed since the last look."""
        passed_s = time.monotonic() - self._looked_s
        if passed_s < self._every_s:
            return
        if (self._clock.now_us - self._looked_us) / US < passed_s:
            with self._client.pipeline(transaction=False) as pipe:
                for key in self._client.scan_iter(match=self._pattern, count=_AT_ONCE):
                    pipe.persist(key)
                pipe.execute()
        self._looked_s, self._looked_us = time.monotonic(), self._clock.now_us


def shortest_us(policy: Policy) -> int:
    """The shortest window of all limits and paces."""
    rules = (policy.defaults, *policy.categories.values())
    limits = [
        *policy.global_limits,
        *(limit for rule in rules for limit in rule.limits),
        *(limit for rule in rules for each in rule.per_label.values() for limit in each),
        *(pace for pace in (policy.default_pace, *policy.channels.values()) if pace is not None),
    ]
    return min((limit.window_us for limit in limits), default=US)
