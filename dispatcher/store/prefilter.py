"""Categories over their limit, as ``take`` is told of them: it drops their new events itself, as the gate would."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.core.limits import US, Demand, Denied, Scope
from dispatcher.core.outcomes import TurnedAway
from dispatcher.jsonio import encode
from dispatcher.limiter.wire import Calls, denied_of
from dispatcher.store.decisions import told_of

MOST_CLOSED: Final = 256
"""Categories that are named at a time; more go the longer way. To be named costs the server about a microsecond in each
``take``, and where events of the category come, to ask its limits some twenty."""


@dataclass(frozen=True, slots=True)
class Closed:
    """See ``store.take.Closed``."""

    keys: Sequence[str]
    text: str
    scopes: Sequence[Scope]

    def read(self, rows: Sequence[Sequence[Any]]) -> list[TurnedAway]:
        """What the answer says of those that were dropped."""
        return [
            TurnedAway(category, denied_of((scope, window, int(wait_us)), self.scopes), ids.split(" "))
            for category, scope, window, wait_us, ids in rows
            if ids
        ]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What a category's events ask for, and until when nothing is expected to come of it."""

    demands: tuple[Demand, ...]
    configured: bool
    until_s: float


class Door:
    """The categories of one worker of which a limit refuses new events, for now.

    It decides nothing: that a category is named costs time, that one is not, too. What it names must drop, with nobody
    told of it, and ask for the same as all others of its category. Not for several threads.
    """

    def __init__(self, namespace: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._calls = Calls(namespace)
        self._clock = clock
        self._refusals: dict[str, _Refusal] = {}
        self._soonest_s = math.inf
        self._closed: Closed | None = None

    def close(self, category: str, demands: tuple[Demand, ...], denied: Denied, *, configured: bool) -> None:
        """Name the category until it has room again."""
        known = self._refusals.get(category)
        if known is None and len(self._refusals) >= MOST_CLOSED:
            return
        until_s = self._clock() + denied.retry_after_us / US
        if known is None or known.demands != demands:
            self._closed = None
        self._refusals[category] = _Refusal(demands, configured, until_s)
        self._soonest_s = min(self._soonest_s, until_s)

    def open(self) -> None:
        """Name none: other limits are in force."""
        self._refusals, self._soonest_s, self._closed = {}, math.inf, None

    def closed(self) -> Closed | None:
        """What a ``take`` is told now."""
        now_s = self._clock()
        if now_s >= self._soonest_s:
            left = {name: each for name, each in self._refusals.items() if each.until_s > now_s}
            self.open()
            self._refusals = left
            self._soonest_s = min((each.until_s for each in left.values()), default=math.inf)
        if self._closed is None and self._refusals:
            self._closed = self._named()
        return self._closed

    def _named(self) -> Closed:
        call = self._calls.rows([each.demands for each in self._refusals.values()])
        facts = {
            "told": [told_of(scope) for scope in call.scopes],
            "categories": {
                name: [position, each.configured] for position, (name, each) in enumerate(self._refusals.items(), 1)
            },
        }
        return Closed(call.keys, encode(call.facts | facts).decode(), call.scopes)
