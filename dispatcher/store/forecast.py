"""When events that wait for room in a limit are expected to find it: what is asked of the server, and its answer read.

Pure, for callers that block and that do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final, TypeAlias

from dispatcher.core.explain import Room
from dispatcher.core.limits import Demand, FirstOf, Kind, Scope, all_scopes
from dispatcher.jsonio import decode
from dispatcher.limiter.wire import Calls
from dispatcher.server.keys import Keys

SCRIPT: Final = "forecast"
"""The script that answers."""

Asked: TypeAlias = tuple[str, int]
"""A scope, by its name, and a place in the line for it."""


@dataclass(frozen=True, slots=True)
class InLine:
    """An event that asks for ``demands``, at this place of the line for ``scope`` and of its own line, from 1.

    ``opens_us`` is when the server lets the next of the line ask again, where that is known.
    """

    id: str
    demands: tuple[Demand, ...]
    scope: str
    place: int
    place_in_own: int
    opens_us: int | None

    def asked(self, scope: Scope) -> Asked:
        """Its place for a scope; for one that its line does not wait for, its place in its own line."""
        return scope.name, self.place if scope.name == self.scope else self.place_in_own


class Forecast:
    """One call of the script, for several events at once."""

    def __init__(self, keys: Keys, waiters: Iterable[InLine], now_us: int) -> None:
        self._waiters = list(waiters)
        self._now_us = now_us
        scopes = {scope.name: scope for each in self._waiters for scope in all_scopes(each.demands)}
        positions = {name: n for n, name in enumerate(scopes, 1)}
        self._asked = list(
            dict.fromkeys(
                asked
                for each in self._waiters
                for scope in all_scopes(each.demands)
                for asked in (each.asked(scope), (scope.name, 1))
            )
        )
        usage = Calls(keys.namespace).usage(list(scopes.values()))
        self.keys = usage.keys
        rows = [[positions[name], place] for name, place in self._asked]
        self.call: dict[str, Any] = {"now": now_us, **usage.facts, "asked": rows}

    def read(self, answer: bytes | str) -> dict[str, Room]:
        """The limit that each event waits for, and when it is expected to go, by id."""
        rows = dict(zip(self._asked, decode(answer)["asked"], strict=True))
        return {each.id: self._room(each, rows) for each in self._waiters if each.demands}

    def _room(self, waiter: InLine, rows: Mapping[Asked, list[list[Any]]]) -> Room:
        """What it waits for: the limit that has room last; of an estimate, its line's scope while that is full."""
        scopes = all_scopes(waiter.demands)
        rooms = {scope.name: _of_row(scope, rows[waiter.asked(scope)]) for scope in scopes}
        last = _last(_soonest(demand, rooms) for demand in waiter.demands)
        own = rooms.get(waiter.scope)
        at_us = last.at_us
        is_full = own is not None and _at(own) > self._now_us
        named = own if own is not None and is_full and (waiter.place > 1 or own.at_us == at_us) else last
        if at_us is not None and waiter.place == 1:
            at_us = max(at_us, waiter.opens_us or 0)
        elif at_us is not None:
            firsts = {scope.name: _of_row(scope, rows[scope.name, 1]) for scope in scopes}
            first = _last(_soonest(demand, firsts) for demand in waiter.demands)
            at_us = max(at_us, _behind_first(waiter, first.at_us or 0))
        return Room(named.scope, named.limit, named.used, at_us)


def _of_row(scope: Scope, row: list[list[Any]]) -> Room:
    """The limit of the scope that has room last."""
    return _last(
        Room(scope.name, limit, used, None if at is None else int(at))
        for limit, (used, at) in zip(scope.limits, row, strict=True)
    )


def _behind_first(waiter: InLine, first_us: int) -> int:
    """When it goes at the earliest if the first of its line goes then: those between take slots from then on.

    A scope that others may stand in for is left out: nobody knows which of them take its slots.
    """
    found = [first_us]
    for limit in (limit for demand in waiter.demands if isinstance(demand, Scope) for limit in demand.limits):
        rounds, window_us = (waiter.place_in_own - 1) // limit.max, limit.window_us
        begin_us = first_us - first_us % window_us if rounds and limit.kind is Kind.FIXED else first_us
        found.append(begin_us + rounds * window_us)
    return max(found)


def _soonest(demand: Demand, rooms: Mapping[str, Room]) -> Room:
    if isinstance(demand, FirstOf):
        return min((rooms[scope.name] for scope in demand.scopes), key=_at)
    return rooms[demand.name]


def _last(rooms: Iterable[Room]) -> Room:
    return max(rooms, key=_at)


def _at(room: Room) -> float:
    return inf if room.at_us is None else room.at_us
