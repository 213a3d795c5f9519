"""What ``once`` costs: a decision about an event that asks it, a storm of repeats, and a million live keys."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.drains import costs, drain_in_turn, times_as_fast
from benchmarks.effort import Effort
from benchmarks.figures import Goal, Proofs, Report, Spread, Table
from benchmarks.ours import Ours
from benchmarks.rounds import Contender, Lap, interleave, ratio, server, wall
from benchmarks.stage import server_bytes, stage, stage_with_slack
from benchmarks.storms import WINDOW, WINDOW_US, Storm, channel
from dispatcher.core.event import new_event_id
from dispatcher.core.limits import ONCE_PREFIX, Kind
from dispatcher.core.once import BY_KEY, digest_of
from dispatcher.limiter import Admitted, Limit, Limiter, Scope
from tests.support.servers import Database

MB: Final = 1_000_000
BATCH: Final = 128
LIVE: Final = 1_000_000
WRITTEN_AT_ONCE: Final = 1_000
ROOM: Final = Limit(10_000_000, window_us=WINDOW_US)
COMMON: Final = (Scope("global", (ROOM,)), Scope("category:alerts", (ROOM,)))
"""What each event asks besides."""

TWO: Final = "two scopes"
THREE: Final = "a third scope, of a limit of one"
ONCE: Final = "once"
ONCE_LIVE: Final = "once, on the server with the keys"
OVER: Final = "over a limit"
REPEATS: Final = "repeats"


@dataclass(frozen=True, slots=True)
class Repeats(Storm):
    """As many events of as many categories, of which as many are posted: the others are repeats."""

    def about(self, number: int) -> dict[str, str]:
        """What the event is about."""
        return {"dedup_key": f"disk {number // self.types % self.each}"}

    def limits_yaml(self) -> str:
        """The limits file."""
        categories = "".join(f'  {name}: {{channel: "{channel(name)}"}}\n' for name in self.names())
        return (
            f"global: {{limits: [{ROOM.max}/{WINDOW}]}}\nchannels: {{default: {{pace: none}}}}\n"
            f"defaults: {{limits: [{ROOM.max}/{WINDOW}], once: {{per: {WINDOW}}}}}\ncategories:\n{categories}"
        )


def run(effort: Effort) -> Report:
    """Decisions in batches, the drain of a full queue, and the memory of keys."""
    proofs = Proofs()
    gate, gate_goals = _decisions(effort, proofs)
    storm, storm_goals = _storms(effort, proofs)
    return Report((gate, storm), (*gate_goals, *storm_goals), proofs.collected(), _NOTES)


_NOTES: Final = (
    "Every decision is about another thing, in calls of 128, and is admitted.",
    "Both storms post as many events, and the workers look at no payload of those that they drop.",
)


def _decisions(effort: Effort, proofs: Proofs) -> tuple[Table, list[Goal]]:
    live = effort.of(LIVE, quick=2_000)
    with stage(effort.cores) as (_, client), stage(effort.cores) as (_, keeping):
        before = server_bytes(keeping)
        _take(keeping, live)
        taken_mb = (server_bytes(keeping) - before) / MB
        proofs.add("live keys", sum(1 for _ in keeping.scan_iter(f"*:scope:{ONCE_PREFIX}*", count=10_000)), live)
        contenders = _contenders(client, keeping, effort.of(BATCH * 40, quick=BATCH * 2))
        laps = interleave(contenders, effort, client, proofs)
    table = Table(
        f"decisions, and {live:,} live keys, which take {taken_mb:.0f} MB",
        ("", "us", "of it in the server, us"),
        tuple((name, wall(each), "" if name == ONCE_LIVE else server(each)) for name, each in laps.items()),
    )
    of_a_million = Spread.of([taken_mb * LIVE / live])
    return table, [
        Goal(f"{ONCE} / {THREE}, in the server", _longer(laps, ONCE, THREE), at_most=1.1),
        Goal(f"{LIVE:,} live keys, MB", of_a_million, at_most=200.0),
        Goal(f"{ONCE_LIVE} / {ONCE}", ratio(laps, ONCE, ONCE_LIVE), at_most=1.1),
    ]


def _longer(laps: dict[str, list[Lap]], ours: str, theirs: str) -> Spread:
    """How many times as long it takes inside the scripts, in each round."""
    return Spread.of(a.server_us / b.server_us for a, b in zip(laps[ours], laps[theirs], strict=True))


def _contenders(client: Database, keeping: Database, decisions: int) -> Sequence[Contender]:
    numbers = itertools.count()

    def once() -> tuple[Scope, ...]:
        return (_scope(f"new {next(numbers)}"), *COMMON)

    def plain() -> tuple[Scope, ...]:
        return (Scope(f"label:{next(numbers):016x}", (Limit(1, window_us=WINDOW_US),)), *COMMON)

    def contender(name: str, made: Iterator[tuple[Scope, ...]], on: Database) -> Contender:
        limiter, calls = Limiter(on, namespace="bench"), list[list[tuple[Scope, ...]]]()

        def prepare() -> None:
            calls[:] = [list(itertools.islice(made, BATCH)) for _ in range(decisions // BATCH)]

        def decide() -> int:
            return sum(type(verdict) is Admitted for call in calls for verdict in limiter.try_acquire_many(call))

        return Contender(name, decide, decisions, decisions, prepare)

    return (
        contender(TWO, itertools.repeat(COMMON), client),
        contender(THREE, iter(plain, None), client),
        contender(ONCE, iter(once, None), client),
        contender(ONCE_LIVE, iter(once, None), keeping),
    )


def _take(client: Database, keys: int) -> None:
    """So many things were posted: by the gate, each under the name and with the id that an event has."""
    limiter = Limiter(client, namespace="bench")
    for first in range(0, keys, WRITTEN_AT_ONCE):
        numbers = range(first, min(first + WRITTEN_AT_ONCE, keys))
        limiter.try_acquire_many(
            [(_scope(f"live {number}"),) for number in numbers], ids=[f"{n} {new_event_id()}" for n in numbers]
        )


def _scope(key: str) -> Scope:
    """As the dispatcher asks for it."""
    return Scope(ONCE_PREFIX + digest_of("alerts", BY_KEY, key), (_ONE,))


_ONE: Final = Limit(1, window_us=WINDOW_US, kind=Kind.ONCE)


def _storms(effort: Effort, proofs: Proofs) -> tuple[Table, list[Goal]]:
    events = effort.of(50_000, quick=2_000)
    with stage_with_slack(effort.cores) as (redis, client, posted, folder):
        queues = [
            Ours(name, storm, redis.url, posted, folder)
            for name, storm in ((OVER, Storm(events)), (REPEATS, Repeats(events)))
        ]
        drains = drain_in_turn(queues, client, effort.rounds, proofs)
    rows = [(name, *costs(of_one)) for name, of_one in drains.items()]
    title = f"a full queue of {events:,} events, 99 % of them dropped, and one process"
    columns = ("", "events/s", "CPU of the worker, us", "CPU of the server, us")
    goal = Goal(f"{REPEATS} / {OVER}", times_as_fast(drains, REPEATS, OVER), at_least=0.5)
    return Table(title, columns, tuple(rows)), [goal]
