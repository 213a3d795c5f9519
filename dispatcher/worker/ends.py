"""What admit.lua has to know to end what is refused: its kinds, and the tallies that count it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dispatcher.event import Event, is_remembered
from dispatcher.json_text import decode
from dispatcher.keys import Keys
from dispatcher.limiter.calls import Call
from dispatcher.model import Denied, Limit
from dispatcher.ports import Asking
from dispatcher.store.decisions import told_of
from dispatcher.store.tallies import collects_us, samples_of
from dispatcher.tally import Counting, Suppressed, Telling


class Ends:
    """Those of a batch that a refusal ends, by kinds, and the ``tallies`` in the order in which the kinds name them."""

    def __init__(self, asking: Sequence[Asking]) -> None:
        self._asking = asking
        self.tallies: list[Counting] = []
        self._positions: dict[str, int] = {}
        self._kinds: dict[tuple[object, ...], int] = {}
        self._rows: list[list[Any]] = []
        self._counted: list[list[tuple[int, Event]]] = []
        self._kind_of = [self._kind(place, each) if each.drops else 0 for place, each in enumerate(asking, 1)]

    def facts(self, call: Call, keys: Keys) -> dict[str, Any]:
        """What is said beside the gate's call."""
        named: dict[str, tuple[str, Limit]] = {}
        for counting in self.tallies:
            named |= counting.named
        facts: dict[str, Any] = {
            "jobs": [each.candidate.leased.id for each in self._asking],
            "kind": self._kind_of,
            "kinds": self._rows,
            "told": [told_of(scope, named.get(scope.name)) for scope in call.scopes],
        }
        if not self.tallies:
            return facts
        counted = [(place, event) for events in self._counted for place, event in events]
        leased_at = [self._asking[place - 1].candidate.leased for place, _ in counted]
        return facts | {
            "tallies": [
                {"id": counting.id, "delay_us": collects_us(counting), "samples": samples_of(events)}
                for counting, events in zip(self.tallies, self._counted, strict=True)
            ],
            "names": {
                str(place): leased.name
                for (place, _), leased in zip(counted, leased_at, strict=True)
                if leased.name != leased.id
            },
            "release": [place for (place, _), leased in zip(counted, leased_at, strict=True) if leased.takes > 1],
            "scope": keys.scope_prefix,
            "waits": keys.waits_prefix,
        }

    def _kind(self, place: int, asking: Asking) -> int:
        leased, terms = asking.candidate
        counting, remember = asking.counting, is_remembered(leased.event, leased.id)
        tally = 0 if counting is None else self._tally(counting)
        if tally:
            self._counted[tally - 1].append((place, leased.event))
        key = (leased.event.category, remember, terms.deadline_us if tally else 0)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = len(self._kinds) + 1
            outcome = "digested" if counting is not None and counting.telling is Telling.DIGEST else "dropped"
            row = [leased.event.category, terms.configured, remember, outcome, tally, str(terms.deadline_us)]
            self._rows.append(row)
        return kind

    def _tally(self, counting: Counting) -> int:
        position = self._positions.get(counting.id)
        if position is None:
            self.tallies.append(counting)
            self._counted.append([])
            position = self._positions[counting.id] = len(self.tallies)
        return position


def read_joined(name: str, why: str) -> Suppressed:
    """An event that admit.lua has ended with the second one."""
    _, category, _, (scope, limit, retry_after_us), _ = decode(why)
    return Suppressed(name, category, Denied(scope, Limit.parse(limit), retry_after_us))
