"""A burst over the limit that waits instead of being dropped: what it costs, and whether the room is used."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.effort import Effort
from benchmarks.figures import Goal, Proofs, Report, Spread, Table
from benchmarks.simulation import Simulation
from benchmarks.stage import stage
from dispatcher.core.limits import Limit
from dispatcher.core.policy import CategoryRule, OnLimit, Policy
from tests.support.servers import Database

CATEGORY: Final = "disks"
LIMIT: Final = Limit.parse("100/30m")
PACE: Final = Limit.parse("10/10s")
_DAY_US: Final = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Course:
    """How a burst was delivered, on made-up time."""

    workers: int
    decisions: float
    disorder: int
    used: float
    hours: float


def run(effort: Effort) -> Report:
    """Made-up time, so nothing to repeat: one round for each number of workers."""
    burst, proofs = effort.of(2_000, quick=250), Proofs()
    with stage(effort.cores) as (_, client):
        courses = [_course(client, burst, workers, proofs) for workers in effort.of((1, 4, 16), quick=(1, 4))]
    columns = (
        "workers",
        "gate decisions for one delivered",
        "out of order",
        "% of the budget used",
        "hours until the last",
    )
    table = Table(
        f"a burst of {burst:,} over {LIMIT} to a channel at {PACE}, on made-up time",
        columns,
        tuple((f"{each.workers}", each.decisions, each.disorder, each.used, each.hours) for each in courses),
    )
    return Report((table,), tuple(_goals(courses)), proofs.collected(), _NOTES)


_NOTES: Final = (
    "Used: 100 % is a post at every instant at which limit and pace have room, from the first post to the last.",
    "To move the slot of an event that was admitted and waits for its channel is no decision.",
)


def _course(client: Database, burst: int, workers: int, proofs: Proofs) -> Course:
    client.flushall()
    simulation = Simulation(client, _policy(burst), workers)
    ids = simulation.send(burst, CATEGORY)
    simulation.run()
    posts = simulation.board.posts
    look = simulation.books.snapshot()
    proofs.add("posted once each", len({id_ for _, id_ in posts}), burst)
    proofs.add("posts", len(posts), burst)
    proofs.add("sent", look.totals.get("sent", 0), burst)
    proofs.add("equations of the books that do not hold", len(look.imbalances()), 0)
    proofs.add("windows over the limit", _windows_over([at for at, _ in posts]), 0)
    places = {id_: place for place, id_ in enumerate(ids)}
    order = [places[id_] for _, id_ in posts]
    first_us, last_us = posts[0][0], posts[-1][0]
    return Course(
        workers,
        simulation.gate.decisions / burst,
        sum(a > b for a, b in itertools.pairwise(order)),
        100 * least_us(burst) / (last_us - first_us),
        (last_us - first_us) / LIMIT.window_us / 2,
    )


def _policy(burst: int) -> Policy:
    rule = CategoryRule((LIMIT,), "#disks", OnLimit.DEFER, _DAY_US, max_parked=burst)
    return Policy(global_limits=(LIMIT,), defaults=rule, categories={}, default_pace=PACE)


def least_us(burst: int) -> int:
    """How long the limit and the pace make a burst last at least, from its first post to its last."""
    at_us: list[int] = []
    for n in range(burst):
        earliest = (at_us[n - each.max] + each.window_us for each in (LIMIT, PACE) if n >= each.max)
        at_us.append(max(earliest, default=0))
    return at_us[-1]


def _windows_over(posted_us: Sequence[int]) -> int:
    """How many posts came less than a window after the one that is a limit's length before them."""
    return sum(b - a < LIMIT.window_us for a, b in zip(posted_us, posted_us[LIMIT.max :], strict=False))


def _goals(courses: Sequence[Course]) -> list[Goal]:
    goals = []
    for each in courses:
        who = f"{each.workers} worker{'s' if each.workers > 1 else ''}"
        goals += [
            Goal(f"{who}: gate decisions for one delivered", Spread.of([each.decisions]), at_most=1.5),
            Goal(f"{who}: out of order", Spread.of([each.disorder]), at_most=0),
            Goal(f"{who}: % of the budget used", Spread.of([each.used]), at_least=99.0),
        ]
    return goals
