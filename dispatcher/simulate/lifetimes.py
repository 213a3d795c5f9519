"""Keeps keys alive while made-up time is slower than real time: the server ends lifetimes by its own clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from dispatcher.core.policy import Policy
from dispatcher.core.units import US
from dispatcher.server.connection import Client

_AT_ONCE: Final = 1_000


class Lifetimes:
    """The lifetimes of keys that begin with ``prefix``, by two clocks: made-up time and real time.

    The slots of a scope live a window at least after the last charge: a look every half of the shortest will do.
    """

    def __init__(
        self,
        client: Client,
        prefix: str,
        shortest_us: int,
        made_up_us: Callable[[], int],
        real_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._pattern = f"{prefix}*"
        self._every_s = shortest_us / US / 2
        self._made_up_us = made_up_us
        self._real_s = real_s
        self._looked_s, self._looked_us = real_s(), made_up_us()

    def look(self) -> None:
        """Take all lifetimes away, if less time was made up than has passed since the last look."""
        now_s = self._real_s()
        passed_s = now_s - self._looked_s
        if passed_s < self._every_s:
            return
        now_us = self._made_up_us()
        if (now_us - self._looked_us) / US < passed_s:
            with self._client.pipeline(transaction=False) as pipe:
                for key in self._client.scan_iter(match=self._pattern, count=_AT_ONCE):
                    pipe.persist(key)
                pipe.execute()
        self._looked_s, self._looked_us = now_s, now_us


def shortest_us(policy: Policy) -> int:
    """The shortest window of all limits, shadow limits, repeats and paces, a minute where there are none."""
    rules = (policy.defaults, *policy.categories.values())
    limits = [
        *policy.global_limits,
        *policy.global_shadows,
        *(limit for rule in rules for limit in (*rule.limits, *rule.shadows)),
        *(limit for rule in rules for each in rule.per_label.values() for limit in each),
        *(limit for rule in rules for each in rule.label_shadows.values() for limit in each),
        *(pace for pace in (policy.default_pace, *policy.channels.values()) if pace is not None),
    ]
    repeats_us = [rule.once.per_us for rule in rules if rule.once is not None]
    return min([limit.window_us for limit in limits] + repeats_us, default=60 * US)
