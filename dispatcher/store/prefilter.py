"""Categories over their limit, as ``take`` is told of them: it drops their new events itself, as the gate would."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.core.limits import US, Demand, Denied, Scope
from dispatcher.core.outcomes import Prefiltered
from dispatcher.jsonio import encode
from dispatcher.limiter.wire import Calls, denied_of
from dispatcher.store.script_rows import told_of

MOST_CATEGORIES: Final = 256
"""Categories that are named at a time; more go the longer way. To be named costs the server about a microsecond in each
``take``, and where events of the category come, to ask its limits some twenty."""


@dataclass(frozen=True, slots=True)
class PrefilterCall:
    """What take.lua is told: ``keys`` of the scopes asked for, and ``text`` as include/intake.lua has it."""

    keys: Sequence[str]
    text: str
    scopes: Sequence[Scope]

    def read(self, rows: Sequence[Sequence[Any]]) -> list[Prefiltered]:
        """What the answer says of those that were dropped."""
        return [
            Prefiltered(category, denied_of((scope, window, int(wait_us)), self.scopes), ids.split(" "))
            for category, scope, window, wait_us, ids in rows
            if ids
        ]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What a category's events ask for, and until when nothing is expected to come of it."""

    demands: tuple[Demand, ...]
    configured: bool
    until_s: float


class Prefilter:
    """The categories of one worker of which a limit refuses new events, for now.

    It decides nothing: to name a category or not affects speed only. What it names must drop, with nobody
    told of it, and ask for the same as all others of its category. Not for several threads.
    """

    def __init__(self, namespace: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._calls = Calls(namespace)
        self._clock = clock
        self._refusals: dict[str, _Refusal] = {}
        self._soonest_s = math.inf
        self._call: PrefilterCall | None = None

    def add(self, category: str, demands: tuple[Demand, ...], denied: Denied, *, configured: bool) -> None:
        """Name the category until it has room again."""
        known = self._refusals.get(category)
        if known is None and len(self._refusals) >= MOST_CATEGORIES:
            return
        until_s = self._clock() + denied.retry_after_us / US
        if known is None or known.demands != demands:
            self._call = None
        self._refusals[category] = _Refusal(demands, configured, until_s)
        self._soonest_s = min(self._soonest_s, until_s)

    def clear(self) -> None:
        """Name none: other limits are in force."""
        self._refusals, self._soonest_s, self._call = {}, math.inf, None

    def call(self) -> PrefilterCall | None:
        """What a ``take`` is told now."""
        now_s = self._clock()
        if now_s >= self._soonest_s:
            left = {name: each for name, each in self._refusals.items() if each.until_s > now_s}
            self.clear()
            self._refusals = left
            self._soonest_s = min((each.until_s for each in left.values()), default=math.inf)
        if self._call is None and self._refusals:
            self._call = self._named()
        return self._call

    def _named(self) -> PrefilterCall:
        call = self._calls.rows([each.demands for each in self._refusals.values()])
        facts = {
            "told": [told_of(scope) for scope in call.scopes],
            "categories": {
                name: [position, each.configured] for position, (name, each) in enumerate(self._refusals.items(), 1)
            },
        }
        return PrefilterCall(call.keys, encode(call.facts | facts).decode(), call.scopes)
