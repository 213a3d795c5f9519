"""A line of waiters in made-up time: lua/wait.lua and lua/release.lua as their headers say, and nobody sleeps.

Each waiter asks, joins, and comes again at the instant it was told, or at once when its bell rings.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final

from dispatcher.core.limits import Admitted, Demand, FirstOf, Kind, Scope, all_scopes
from dispatcher.server.keys import Keys
from dispatcher.server.scripts import read_script
from tests.support.models import GateModel
from tests.support.servers import Database

KEYS: Final = Keys("line")
MOST_CALLS: Final = 200


@dataclass(slots=True)
class Waiter:
    """One who waits. Who ``dies`` or is ``frozen`` after it joined never comes again; only the dead are not heard."""

    id_: str
    demands: tuple[Demand, ...]
    arrives_us: int
    cost: int = 1
    dies: bool = False
    frozen: bool = False
    quits_us: int | None = None
    arrived: str | None = None
    calls: int = 0
    rings: int = 0
    admitted_us: int | None = None
    wake: int | None = None
    """The number of the event at which it comes again."""

    @property
    def token(self) -> str:
        """Bell and number."""
        return f"{'nobody' if self.dies else 'bell'}:{self.id_}"


class Line:
    """The real scripts, with the events of all waiters in the order of their instants.

    ``releases`` are those of ids that were admitted; ``delay_us`` passes from an instant to the call that follows.
    """

    def __init__(
        self,
        redis: Database,
        waiters: Sequence[Waiter],
        releases: Mapping[int, tuple[str, tuple[Demand, ...]]] | None = None,
        *,
        delay_us: int = 0,
    ) -> None:
        self._redis = redis
        self._wait, self._release = (redis.register_script(read_script(name)) for name in ("wait", "release"))
        self._delay_us = delay_us
        self._numbers = count()
        self._events: list[tuple[int, int, Callable[[int, int], None]]] = []
        self._by_token = {waiter.token: waiter for waiter in waiters}
        self._costs = {waiter.id_: waiter.cost for waiter in waiters}
        for waiter in waiters:
            self._at(waiter.arrives_us, partial(self._arrive, waiter))
            if waiter.quits_us is not None:
                self._at(waiter.quits_us, partial(self._quit, waiter))
        for at_us, (id_, demands) in (releases or {}).items():
            self._at(at_us, partial(self._give_back, id_, demands))

    def run(self) -> None:
        """Until nobody comes any more."""
        bell = self._redis.pubsub()
        bell.subscribe(KEYS.bells + "bell")
        bell.get_message(timeout=5)
        while self._events:
            now_us, number, happen = heappop(self._events)
            happen(now_us, number)
            for token in self._rung(bell):
                waiter = self._by_token[token]
                if waiter.admitted_us is None and not waiter.frozen:
                    waiter.rings += 1
                    self._come_again(waiter, now_us)
        bell.close()

    def _at(self, at_us: int, happen: Callable[[int, int], None]) -> int:
        number = next(self._numbers)
        heappush(self._events, (at_us, number, happen))
        return number

    def _come_again(self, waiter: Waiter, at_us: int) -> None:
        waiter.wake = self._at(at_us + self._delay_us, partial(self._wake, waiter))

    def _arrive(self, waiter: Waiter, now_us: int, _: int) -> None:
        if self._take_turn(waiter, "ask", now_us) is not None:
            self._join(waiter, now_us)

    def _wake(self, waiter: Waiter, now_us: int, number: int) -> None:
        if waiter.wake == number and waiter.admitted_us is None:
            self._join(waiter, now_us)

    def _join(self, waiter: Waiter, now_us: int) -> None:
        again_us = self._take_turn(waiter, "join", now_us)
        if again_us is not None and not waiter.dies and not waiter.frozen:
            self._come_again(waiter, now_us + again_us)

    def _quit(self, waiter: Waiter, now_us: int, _: int) -> None:
        if waiter.admitted_us is None:
            waiter.wake = None
            self._take_turn(waiter, "quit", now_us)
            waiter.admitted_us = None

    def _give_back(self, id_: str, demands: tuple[Demand, ...], now_us: int, _: int) -> None:
        keys, facts = _call(demands, now_us)
        cost = self._costs[id_]
        self._release(keys=keys, args=[json.dumps(facts | {"id": id_} | ({"cost": cost} if cost > 1 else {}))])

    def _take_turn(self, waiter: Waiter, step: str, now_us: int) -> int | None:
        """The microseconds until it is to come again; None when it was admitted."""
        keys, facts = _call(waiter.demands, now_us)
        positions = {scope.name: at + 1 for at, scope in enumerate(all_scopes(waiter.demands))}
        request = [waiter.id_, *[_position(demand, positions) for demand in waiter.demands]]
        turn: dict[str, Any] = {"request": request, "token": waiter.token, "step": step}
        if waiter.cost > 1:
            turn |= {"cost": waiter.cost, "token": f"{waiter.token}*{waiter.cost}"}
        if waiter.arrived is not None:
            turn["arrived"] = waiter.arrived
        (answer,) = json.loads(self._wait(keys=keys, args=[json.dumps(facts | {"turns": [turn]})]))["turns"]
        waiter.calls += 1
        assert waiter.calls < MOST_CALLS, f"{waiter.id_} asks without end"
        if step == "join":
            waiter.arrived = answer[0]
        if len(answer) == 1:
            waiter.admitted_us = now_us
            return None
        return int(answer[4])

    def _rung(self, bell: Any) -> list[str]:  # noqa: ANN401 - redis-py leaves it untyped
        self._redis.publish(KEYS.bells + "bell", "end")
        tokens = []
        while (message := bell.get_message(timeout=5)) is None or message["data"] != b"end":
            if message is not None:
                tokens.append(message["data"].decode())
        return tokens


def ideal_instants(waiters: Sequence[Waiter], releases: dict[int, str], scope: Scope) -> dict[str, int]:
    """When each waiter for one scope is admitted if the first of the line always goes as soon as there is room."""
    model, line, admitted = GateModel(), list[Waiter](), dict[str, int]()
    costs = {waiter.id_: waiter.cost for waiter in waiters}
    arrivals = defaultdict[int, list[Waiter]](list)
    for waiter in waiters:
        arrivals[waiter.arrives_us].append(waiter)
    coming, now_us = sorted({*arrivals, *releases}), 0
    while coming or line:
        edges = model.edges([scope], now_us) if line else []
        now_us = min([*coming[:1], *edges[:1]])
        if now_us in releases:
            model.release(releases[now_us], scope.name, costs[releases[now_us]])
        line += arrivals.pop(now_us, [])
        coming = [at_us for at_us in coming if at_us > now_us]
        while line and model.decide(line[0].id_, [scope], now_us, line[0].cost) == Admitted():
            admitted[line.pop(0).id_] = now_us
    return admitted


def _call(demands: tuple[Demand, ...], now_us: int) -> tuple[list[str], dict[str, Any]]:
    scopes = all_scopes(demands)
    lines = [*map(KEYS.waiters, [each.name for each in scopes]), *map(KEYS.promises, [each.name for each in scopes])]
    facts: dict[str, Any] = {
        "now": now_us,
        "bells": KEYS.bells,
        "scopes": [
            [[limit.max, limit.window_us, *(["fixed"] if limit.kind is Kind.FIXED else [])] for limit in scope.limits]
            for scope in scopes
        ],
    }
    if not all(scope.ids for scope in scopes):
        facts["stores"] = ["set" if scope.ids else "log" for scope in scopes]
    return [*(KEYS.scope(scope.name) if scope.ids else KEYS.log(scope.name) for scope in scopes), *lines], facts


def _position(demand: Demand, positions: dict[str, int]) -> int | list[int]:
    if isinstance(demand, FirstOf):
        return [positions[scope.name] for scope in demand.scopes]
    return positions[demand.name]
