"""A line of waiters in made-up time: lua/wait.lua and lua/release.lua as their headers say, with no process that sleeps.

Each waiter asks, joins, and comes again at the instant it was told, or at once when its bell rings.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from dispatcher.keys import Keys
from dispatcher.model import Admitted, Demand, FirstOf, Kind, Scope, all_scopes
from dispatcher.scripts import read_script
from tests.support.models import GateModel
from tests.support.servers import Database

KEYS: Final = Keys("line")


@dataclass(slots=True)
class Waiter:
    """One who waits; ``dies`` after it joined and never comes again."""

    id_: str
    demands: tuple[Demand, ...]
    arrives_us: int
    dies: bool = False
    arrived: str | None = None
    token: str = ""
    calls: int = 0
    rings: int = 0
    admitted_us: int | None = None


@dataclass(slots=True)
class Line:
    """The real scripts with the events of all waiters in the order of their instants."""

    redis: Database
    waiters: list[Waiter]
    releases: dict[int, tuple[str, tuple[Demand, ...]]] = field(default_factory=dict)
    delay_us: int = 0
    """From an instant, or a ring, to the call that follows."""

    def run(self) -> None:
        """Until nobody waits any more who lives."""
        wait, release = (self.redis.register_script(read_script(name)) for name in ("wait", "release"))
        numbers = count()
        events: list[tuple[int, int, str, Any]] = [
            (waiter.arrives_us, next(numbers), "arrive", waiter) for waiter in self.waiters
        ] + [(at_us, next(numbers), "release", what) for at_us, what in self.releases.items()]
        wakes: dict[str, int] = {}
        by_token: dict[str, Waiter] = {}
        bell = self.redis.pubsub()
        bell.subscribe(KEYS.bells + "bell")
        bell.get_message(timeout=5)

        def take(waiter: Waiter, step: str, now_us: int) -> None:
            keys, facts = _call(waiter.demands, now_us)
            positions = {scope.name: at + 1 for at, scope in enumerate(all_scopes(waiter.demands))}
            request = [waiter.id_, *[_position(demand, positions) for demand in waiter.demands]]
            turn = {"request": request, "token": waiter.token, "step": step}
            if step == "join" and waiter.arrived is not None:
                turn["arrived"] = waiter.arrived
            (answer,) = json.loads(wait(keys=keys, args=[json.dumps(facts | {"turns": [turn]})]))["turns"]
            waiter.calls += 1
            if step == "join":
                waiter.arrived = answer[0]
            if len(answer) == 1:
                waiter.admitted_us = now_us
                wakes.pop(waiter.token, None)
            elif step == "join" and not waiter.dies:
                schedule(waiter, now_us + answer[4])

        def schedule(waiter: Waiter, at_us: int) -> None:
            wakes[waiter.token] = number = next(numbers)
            events.append((at_us + self.delay_us, number, "wake", waiter))

        while events:
            events.sort(key=lambda event: event[:2])
            now_us, number, kind, what = events.pop(0)
            if kind == "release":
                id_, demands = what
                keys, facts = _call(demands, now_us)
                release(keys=keys, args=[json.dumps(facts | {"id": id_})])
            elif kind == "arrive":
                take(what, "ask", now_us)
                if what.admitted_us is None:
                    what.token = f"{'nobody' if what.dies else 'bell'}:{what.id_}"
                    by_token[what.token] = what
                    take(what, "join", now_us)
            elif wakes.get(what.token) == number:
                take(what, "join", now_us)
            for token in self._rung(bell):
                if by_token[token].admitted_us is None:
                    by_token[token].rings += 1
                    schedule(by_token[token], now_us)
        bell.close()

    def _rung(self, bell: Any) -> list[str]:  # noqa: ANN401 - redis-py leaves it untyped
        self.redis.publish(KEYS.bells + "bell", "end")
        tokens = []
        while (message := bell.get_message(timeout=5)) is None or message["data"] != b"end":
            if message is not None:
                tokens.append(message["data"].decode())
        return tokens


def ideal_instants(waiters: Sequence[Waiter], releases: dict[int, str], scope: Scope) -> dict[str, int]:
    """When each waiter for one scope is admitted if the first of the line always goes as soon as there is room."""
    model, line, admitted = GateModel(), list[Waiter](), dict[str, int]()
    arrivals = defaultdict[int, list[Waiter]](list)
    for waiter in waiters:
        arrivals[waiter.arrives_us].append(waiter)
    coming = sorted({*arrivals, *releases})
    while coming or line:
        edges = model.edges([scope], now_us) if line else []
        now_us = min([*coming[:1], *edges[:1]])
        if now_us in releases:
            model.release(releases[now_us], scope.name)
        line += arrivals.pop(now_us, [])
        coming = [at_us for at_us in coming if at_us > now_us]
        while line and model.decide(line[0].id_, [scope], now_us) == Admitted():
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
