"""What one decision costs as limits, categories and scopes grow.

Each contender keeps its windows exactly full: its calls come at instants of their own, each the one at which the oldest
slot leaves, so every one is admitted; the same call at the instant before is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from redis import Redis

from benchmarks.effort import Effort
from benchmarks.figures import Goal, Line, Proofs, Report, Spread, Table, Unproven
from benchmarks.rounds import Contender, Lap, dearest, interleave, server, wall
from benchmarks.stage import stage
from dispatcher.limiter import Admitted, Limit, Limiter, Scope

BEGIN_US: Final = 1_732_100_000_000_000
STEP_US: Final = 600_000_000
"""Long, so that no lifetime, which runs by the server's own clock, ends within a run."""

GROUP: Final = 100
"""Slots of one instant where there are many: they are charged in one call, or filling would take minutes."""

FEW: Final = 1_000
FLAT: Final = 1.1
STRAIGHT: Final = 0.95
SMALL: Final = 0.5
SPREAD_OUT: Final = 7_919
"""A prime: walks the categories so that neighbours in time are no neighbours in memory."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One thing that grows, the others fixed."""

    what: str
    sizes: tuple[int, ...]


def run(effort: Effort) -> Report:
    """Three sweeps; flat in the first two, a straight line in the third."""
    limits = Sweep("max of the limit", effort.of((10, 100, 1_000, 10_000, 100_000, 1_000_000), quick=(10, 1_000)))
    categories = Sweep("categories", effort.of((1, 10, 100, 1_000, 10_000, 100_000), quick=(1, 100)))
    scopes = Sweep("scopes in one decision", effort.of((1, 2, 4, 8, 16), quick=(1, 2, 4)))
    proofs, tables, goals = Proofs(), [], []
    with stage(effort.cores) as (_, client):
        for sweep, walk in ((limits, _limit_walk), (categories, _category_walk), (scopes, _scope_walk)):
            client.flushall()
            walks = [(size, walk(client, size)) for size in sweep.sizes]
            contenders = [each for size, full in walks for each in _contenders(sweep.what, size, full, effort)]
            laps = interleave(contenders, effort, client, proofs)
            tables.append(_table(sweep, laps))
            goals += _slope_goals(sweep, laps) if sweep is scopes else _flat_goals(sweep, laps)
    return Report(tuple(tables), tuple(goals), proofs.collected(), _NOTES)


_NOTES: Final = (
    "Every window is full: a refusal is a denial at the limit, an admission one slot in and one slot out.",
)


class _Walk:
    """Full windows of ``size`` slots, and the calls that keep them full."""

    def __init__(self, client: Redis, size: int, requests: Sequence[tuple[Scope, ...]]) -> None:
        self._limiter = Limiter(client, namespace=f"n{size}")
        self._requests = requests
        self._group = group(size)
        self._calls = 0
        while self._calls < size:
            at_us = self._now_us()
            asked = [self._next() for _ in range(min(self._group, size))]
            for verdict in self._limiter.try_acquire_many(asked, now_us=at_us):
                if type(verdict) is not Admitted:
                    raise Unproven(f"filling a window of {size:,}: {verdict}")

    def admitted(self, calls: int) -> int:
        """So many calls, each as the oldest slot leaves; how many were admitted."""
        acquire, found = self._limiter.try_acquire, 0
        for _ in range(calls):
            now_us = self._now_us()
            found += type(acquire(self._next(), now_us=now_us)) is Admitted
        return found

    def refused(self, calls: int) -> int:
        """So many calls, all before the oldest slot leaves; how many were admitted."""
        acquire, requests = self._limiter.try_acquire, self._requests
        now_us = self._now_us() - 1
        return sum(
            type(acquire(requests[(self._calls + n) * SPREAD_OUT % len(requests)], now_us=now_us)) is Admitted
            for n in range(calls)
        )

    def _now_us(self) -> int:
        return BEGIN_US + self._calls // self._group * STEP_US

    def _next(self) -> tuple[Scope, ...]:
        request = self._requests[self._calls * SPREAD_OUT % len(self._requests)]
        self._calls += 1
        return request


def group(size: int) -> int:
    """How many slots are charged at one instant."""
    return 1 if size <= FEW else GROUP


def _full(size: int, maximum: int) -> Limit:
    """Of the window that ``size`` calls take, each in its turn."""
    return Limit(maximum, window_us=size // group(size) * STEP_US)


def _limit_walk(client: Redis, size: int) -> _Walk:
    return _Walk(client, size, [(Scope("limit", (_full(size, size),)),)])


def _category_walk(client: Redis, size: int) -> _Walk:
    everything = Scope("global", (Limit(GROUP, window_us=STEP_US),))
    limit = _full(size, 1)
    return _Walk(client, size, [(everything, Scope(f"category:{n}", (limit,))) for n in range(size)])


def _scope_walk(client: Redis, size: int) -> _Walk:
    limit = _full(100, 100)
    return _Walk(client, 100, [tuple(Scope(f"scope:{size}:{n}", (limit,)) for n in range(size))])


def _contenders(what: str, size: int, walk: _Walk, effort: Effort) -> tuple[Contender, Contender]:
    calls = effort.of(500, quick=100)
    return (
        Contender(_name(what, size, "refused"), lambda: walk.refused(calls), calls, 0),
        Contender(_name(what, size, "admitted"), lambda: walk.admitted(calls), calls, calls),
    )


def _name(what: str, size: int, verdict: str) -> str:
    return f"{what} {size:,}, {verdict}"


def _sizes(sweep: Sweep, laps: dict[str, list[Lap]], verdict: str) -> list[list[Lap]]:
    return [laps[_name(sweep.what, size, verdict)] for size in sweep.sizes]


def _table(sweep: Sweep, laps: dict[str, list[Lap]]) -> Table:
    rows = []
    for size in sweep.sizes:
        refused, admitted = (laps[_name(sweep.what, size, verdict)] for verdict in ("refused", "admitted"))
        rows.append((f"{size:,}", wall(refused), server(refused), wall(admitted), server(admitted)))
    columns = (sweep.what, "refused, us", "of it in the server", "admitted, us", "of it in the server")
    return Table(f"{sweep.what}: microseconds for one decision", columns, tuple(rows))


def _flat_goals(sweep: Sweep, laps: dict[str, list[Lap]]) -> list[Goal]:
    """The largest cost over that of the smallest size, inside each round."""
    goals = []
    for verdict in ("refused", "admitted"):
        base, *larger = _sizes(sweep, laps, verdict)
        for clock in ("wall", "server"):
            what = f"{sweep.what}, {verdict}: dearest / first, {clock} time"
            worst = dearest(base, larger, lambda lap, clock=clock: _cost(lap, clock))  # type: ignore[misc]  # bound now
            goals.append(Goal(what, worst, at_most=FLAT))
    return goals


def _slope_goals(sweep: Sweep, laps: dict[str, list[Lap]]) -> list[Goal]:
    """The straight line through the sizes of each round: how straight, and its slope in decisions of the first size."""
    goals = []
    xs = [float(size) for size in sweep.sizes]
    for verdict in ("refused", "admitted"):
        rounds = list(zip(*_sizes(sweep, laps, verdict), strict=True))
        for clock in ("wall", "server"):
            lines = [Line.through(xs, [_cost(lap, clock) for lap in each]) for each in rounds]
            firsts = [_cost(each[0], clock) for each in rounds]
            what = f"{sweep.what}, {verdict}, {clock} time"
            if clock == "server":  # what a call costs beside it, which is the same for each size, sways the wall's
                goals.append(Goal(f"{what}: straightness", Spread.of(x.straightness for x in lines), at_least=STRAIGHT))
            share = Spread.of(line.slope / first for line, first in zip(lines, firsts, strict=True))
            goals.append(Goal(f"{what}: one more scope, in decisions of one scope", share, at_most=SMALL))
    return goals


def _cost(lap: Lap, clock: str) -> float:
    return lap.wall_us if clock == "wall" else lap.server_us
