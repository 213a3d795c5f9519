"""What guarantees do for the quiet beside the loud: the same day of floods with guarantees of 0 to 5, on made-up time.

Each event goes the whole way of a worker, those of ten seconds together and in their order, and is dropped where it
is refused.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.effort import Effort
from benchmarks.figures import Goal, Proofs, Report, Spread, Table
from benchmarks.stage import stage
from dispatcher.core.limits import Limit
from dispatcher.core.policy import CategoryRule, OnLimit, Policy
from dispatcher.core.units import US
from dispatcher.simulate.arrivals import Arrival, Arrivals
from dispatcher.simulate.fleet import START_US
from dispatcher.simulate.simulation import simulate
from tests.support.servers import Database

TOGETHER: Final = Limit.parse("100/30m")
EACH: Final = Limit.parse("10/30m")
LOUD: Final = tuple(f"loud-{n}" for n in range(12))
QUIET: Final = tuple(f"quiet-{n}" for n in range(8))
LOUD_MEAN: Final = 60.0
QUIET_MEAN: Final = 2.0
"""Events of one category in the length of a window, on average; the gaps between them are exponential."""

TICK_US: Final = 10 * US
GUARANTEES: Final = (0, 1, 2, 3, 4, 5)
QUOTED: Final = 3
"""The guarantee of which something is promised: at least so many per cent in every run, and on average."""
LEAST, LEAST_ON_AVERAGE = 72.0, 77.0


@dataclass(frozen=True, slots=True)
class Day:
    """One run: what the quiet sent and got through, and how much of the global limit was used, in per cent."""

    sent: int
    delivered: int
    used: float
    within: int
    """Events of a category that held less than its guarantee, and were refused."""

    @property
    def share(self) -> float:
        """Per cent of the quiet ones' events that got through."""
        return 100 * self.delivered / self.sent


def run(effort: Effort) -> Report:
    """The same seeds for each guarantee."""
    hours, seeds, proofs = effort.of(24, quick=3), effort.of(10, quick=2), Proofs()
    guarantees = effort.of(GUARANTEES, quick=(0, QUOTED))
    with stage(effort.cores) as (_, client):
        days = {each: [play(client, each, seed, hours) for seed in range(seeds)] for each in guarantees}
    for guarantee, runs in days.items():
        proofs.add(f"refused within a guarantee of {guarantee}", sum(day.within for day in runs), 0)
    columns = (
        "guarantee of each quiet one",
        "% of theirs delivered, mean",
        "lowest",
        "highest",
        "% of the budget used",
    )
    rows = tuple(
        (f"{each or 'none'}", _mean(runs), min(_shares(runs)), max(_shares(runs)), Spread.of(day.used for day in runs))
        for each, runs in days.items()
    )
    title = (
        f"{len(LOUD)} loud categories at {LOUD_MEAN:g} and {len(QUIET)} quiet ones at {QUIET_MEAN:g} events in half "
        f"an hour, global {TOGETHER}, {EACH} each: {hours} hours, {seeds} seeds"
    )
    goals = [] if effort.quick else list(_goals(days[QUOTED]))
    return Report((Table(title, columns, rows),), tuple(goals), proofs.collected(), _NOTES)


_NOTES: Final = (
    "Used: of 100 in each half hour.",
    "What a quiet one loses with a guarantee is what it sends beyond it while the loud have used up the rest.",
)


def play(client: Database, guarantee: int, seed: int, hours: int) -> Day:
    """One run on an empty server."""
    window_us, end_us = TOGETHER.window_us, hours * 3_600 * US
    ends: dict[int, bool] = {}
    with Arrivals() as trace:
        for line, (at_us, name) in enumerate(arrivals(seed, end_us)):
            trace.add(Arrival(START_US + (at_us // TICK_US + 1) * TICK_US, line, name))
        simulate(client, trace, policy(guarantee), ended=lambda line, end, _: ends.update({line: end == "sent"}))
        held: dict[str, deque[int]] = {name: deque() for name in QUIET}
        sent = within = 0
        for arrival in trace:
            slots = held.get(arrival.category)
            if slots is None:
                continue
            while slots and slots[0] <= arrival.at_us - window_us:
                slots.popleft()
            sent += 1
            if ends[arrival.line]:
                slots.append(arrival.at_us)
            elif len(slots) < guarantee:
                within += 1
        delivered = sum(ends[arrival.line] for arrival in trace if arrival.category in held)
    return Day(sent, delivered, 100 * sum(ends.values()) * window_us / (TOGETHER.max * end_us), within)


def policy(guarantee: int) -> Policy:
    """Limits with a guarantee for each quiet category, and none for the loud ones."""
    rule = CategoryRule((EACH,), "#all", OnLimit.DROP, 86_400 * US)
    quiet = replace(rule, guarantee=guarantee)
    return Policy((TOGETHER,), rule, dict.fromkeys(LOUD, rule) | dict.fromkeys(QUIET, quiet), None)


def arrivals(seed: int, end_us: int) -> Iterator[tuple[int, str]]:
    """Every event's instant and category, in order of time; the same for every guarantee."""
    streams = [
        _stream(random.Random(f"{seed} {name}"), mean, name, end_us)  # noqa: S311 - made-up load, no cryptography
        for names, mean in ((LOUD, LOUD_MEAN), (QUIET, QUIET_MEAN))
        for name in names
    ]
    yield from heapq.merge(*streams)


def _stream(chance: random.Random, mean: float, name: str, end_us: int) -> Iterator[tuple[int, str]]:
    at_us = 0.0
    while (at_us := at_us + chance.expovariate(mean / TOGETHER.window_us)) < end_us:
        yield int(at_us), name


def _shares(runs: list[Day]) -> list[float]:
    return [day.share for day in runs]


def _mean(runs: list[Day]) -> float:
    return sum(_shares(runs)) / len(runs)


def _goals(runs: list[Day]) -> Iterator[Goal]:
    lowest, mean = min(_shares(runs)), _mean(runs)
    said = f"% delivered with a guarantee of {QUOTED}"
    yield Goal(f"{said}, in the worst run", Spread(lowest, lowest, lowest), at_least=LEAST)
    yield Goal(f"{said}, on average", Spread(mean, mean, mean), at_least=LEAST_ON_AVERAGE)
