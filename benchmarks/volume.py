"""What one event costs as more waits, is parked or is remembered, and as there are more categories and workers.

Workers on made-up time take, decide, post and settle in one process: the real scripts and the real core, but no Slack.
Time stands, so nothing that is parked becomes due. Measured is what happens from ``take`` on, not the enqueuing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from redis import Redis

from benchmarks.effort import Effort
from benchmarks.figures import Cell, Goal, Proofs, Report, Table
from benchmarks.rounds import Contender, Lap, cpu, dearest, interleave, server
from benchmarks.simulation import Board, Unheard, text_of
from benchmarks.stage import stage
from dispatcher import Producer
from dispatcher.core.limits import Limit
from dispatcher.core.policy import CategoryRule, OnLimit, Policy
from dispatcher.core.units import Lane
from dispatcher.simulate.fleet import START_US, Clock, Fleet
from dispatcher.store.admission import MOST_CATEGORIES
from tests.support.servers import Database, RedisServer

FLAT: Final = 1.1
FEW: Final = 1_000
"""Sizes up to this are the same at every scale."""

BATCH: Final = 128
SMALL_BATCH: Final = 8
"""Of many workers, so that each has a share of the same events."""

PATIENCE_S: Final = 60.0
"""How long the server may take to answer."""

LINES: Final = 100
"""Categories whose events are parked."""

_WIDE: Final = (Limit.parse("10000000/30m"),)
_FULL: Final = (Limit.parse("1/365d"),)
_YEARS_US: Final = 3_650 * 86_400_000_000
_PIECE: Final = 10_000
_PRIME: Final = 7_919
"""Walks the categories so that neighbours in time are no neighbours in memory."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What becomes of the events that are measured: the name of their categories, their outcome.

    So many of them are worked off at a time: whole batches. A worker takes ``steps`` steps for a batch.
    """

    name: str
    category: str
    outcome: str
    steps: int
    events: int
    quick: int


POSTED: Final = Kind("posted", "open", "sent", 4, 1_024, 256)  # take, decide, post, settle
DROPPED: Final = Kind("dropped", "full", "dropped", 1, 4_096, 1_024)
KINDS: Final = (POSTED, DROPPED)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a fleet begins with, beside the events that are measured."""

    waiting: int = 0
    categories: int = 1
    parked: int = 0
    remembered: int = 0
    workers: int = 1
    batch: int = BATCH
    has_ids: bool = False
    """Whether the producer chose the ids of the events that are measured: those are remembered."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One thing that grows, the others fixed."""

    what: str
    sizes: tuple[int, ...]
    quick: tuple[int, ...]
    setting: Callable[[int], Setting]

    def of(self, effort: Effort) -> tuple[int, ...]:
        """The sizes of a run."""
        most = max(FEW, effort.scale * self.sizes[-1])
        return effort.of(tuple(size for size in self.sizes if size <= most), quick=self.quick)


SWEEPS: Final = (
    Sweep("events waiting", (10, 1_000, 100_000, 1_000_000), (10, 300), lambda size: Setting(waiting=size)),
    Sweep("categories", (1, 100, 10_000, 100_000), (1, 20), lambda size: Setting(categories=size)),
    Sweep("events parked", (0, 1_000, 100_000, 1_000_000), (0, 200), lambda size: Setting(parked=size)),
    Sweep(
        "ids remembered",
        (0, 1_000, 100_000, 1_000_000),
        (0, 300),
        lambda size: Setting(remembered=size, has_ids=True),
    ),
    Sweep("workers", (1, 4, 16, 64), (1, 3), lambda size: Setting(workers=size, batch=SMALL_BATCH)),
)


def run(effort: Effort) -> Report:
    """One sweep after another, each on an empty server."""
    proofs, tables = Proofs(), []
    goals: list[Goal] = []
    with stage(effort.cores) as (redis, client):
        for sweep in SWEEPS:
            client.flushall()
            laps = interleave(list(_contenders(redis, sweep, effort, proofs)), effort, client, proofs)
            tables.append(_table(sweep, sweep.of(effort), laps))
            goals += _goals(sweep, sweep.of(effort), laps)
    return Report(tuple(tables), tuple(goals), proofs.collected(), _NOTES)


_NOTES: Final = (
    "CPU: of the server and of the workers, which are simulated in one process and post to nobody.",
    "In scripts: on the server's clock, so that other load on the machine counts.",
    "Dropped events are over the limit of their category.",
    f"The pre-check drops those of {MOST_CATEGORIES:,} categories at most, and the gate refuses those of all others.",
)


class Site:
    """A fleet with its setting, in a database of its own."""

    def __init__(self, client: Database, setting: Setting) -> None:
        clock = Clock(START_US)
        self._client, self._setting = client, setting
        self._board, self._observer = Board(clock), Unheard()
        self._fleet = Fleet(
            client,
            _policy(setting),
            sink=self._board,
            observer=self._observer,
            clock=clock,
            workers=setting.workers,
            batch=setting.batch,
            senders=setting.batch,
        )
        keys = self._fleet.keys
        queue = self._fleet.queue
        self._lane = queue.lane(Lane.NORMAL)
        self._producer = Producer(client, namespace=keys.namespace, queue=queue.queue, max_waiting=2**53)
        self._sent = 0

    def build(self, kind: Kind, proofs: Proofs) -> None:
        """Use the limits of the full categories up, and put there what stands; ``kind`` is what waits."""
        setting, keys = self._setting, self._fleet.keys
        self._send(DROPPED, setting.categories)
        self._fleet.work()
        self._send(DROPPED, setting.workers * setting.batch)
        self._step()  # each worker takes a batch: all of them learn which limits are full
        self._fleet.work()
        proofs.add("limits used up", self._total("sent"), setting.categories)
        for piece in _pieces(setting.remembered):
            self._client.zadd(keys.seen, {f"id-{n}": START_US + _YEARS_US for n in piece})
        if setting.parked:
            for piece in _pieces(setting.parked + LINES):  # the first of each line is posted
                self._producer.send_many({"category": f"later-{n % LINES}", "text": text_of(n)} for n in piece)
                self._fleet.work()
            proofs.add("parked", int(self._client.zcard(keys.parked)), setting.parked)
        if setting.remembered:
            ids = [f"id-{n}" for n in (0, setting.remembered - 1)]
            self._producer.send_many({"category": "open-0", "text": "a repeat", "id": id_} for id_ in ids)
            proofs.add("repeats of remembered ids on the queue", int(self._client.llen(self._lane)), 0)
        self._send(kind, setting.waiting)

    def contender(self, name: str, kind: Kind, effort: Effort) -> Contender:
        """Events of one kind are put on the queue, and as many are worked off."""
        events = effort.of(kind.events, quick=kind.quick)
        done = 0

        def prepare() -> None:
            nonlocal done
            self._send(kind, events)
            done = self._total(kind.outcome)

        def work() -> int:
            while self._total(kind.outcome) < done + events:
                for _ in range(kind.steps):
                    self._step()
            return self._total(kind.outcome) - done

        return Contender(name, work, events, events, prepare, proof="settled with")

    def _step(self) -> None:
        for worker in self._fleet.workers:
            worker.step()
        self._board.posts.clear()
        self._observer.settlements.clear()

    def _total(self, outcome: str) -> int:
        return int(self._client.hget(self._fleet.keys.totals, outcome) or 0)

    def _send(self, kind: Kind, count: int) -> None:
        for piece in _pieces(count):
            self._producer.send_many(self._event(kind) for _ in piece)

    def _event(self, kind: Kind) -> dict[str, str]:
        self._sent += 1
        category = f"{kind.category}-{self._sent * _PRIME % self._setting.categories}"
        chosen = {"id": f"own-{self._sent}"} if self._setting.has_ids else {}
        return {"category": category, "text": text_of(self._sent), **chosen}


def _pieces(count: int) -> Iterator[range]:
    return (range(n, min(n + _PIECE, count)) for n in range(0, count, _PIECE))


def _policy(setting: Setting) -> Policy:
    def rule(limits: tuple[Limit, ...], on_limit: OnLimit = OnLimit.DROP) -> CategoryRule:
        return CategoryRule(limits, "#notifications", on_limit, _YEARS_US, max_parked=setting.parked + LINES)

    return Policy(
        global_limits=_WIDE,
        defaults=rule(_WIDE),
        categories={
            **{f"{POSTED.category}-{n}": rule(_WIDE) for n in range(setting.categories)},
            **{f"{DROPPED.category}-{n}": rule(_FULL) for n in range(setting.categories)},
            **{f"later-{n}": rule(_FULL, OnLimit.DEFER) for n in range(LINES)},
        },
        default_pace=None,
    )


def _contenders(redis: RedisServer, sweep: Sweep, effort: Effort, proofs: Proofs) -> Iterator[Contender]:
    """Of each size and kind. Both kinds share a site, but where events wait: those are all of one kind."""
    databases = count()
    for size in sweep.of(effort):
        setting, site = sweep.setting(size), None
        for kind in KINDS:
            if site is None or setting.waiting:
                client = Redis(unix_socket_path=str(redis.socket), db=next(databases), socket_timeout=PATIENCE_S)
                site = Site(client, setting)
                site.build(kind, proofs)
            yield site.contender(_name(sweep, size, kind), kind, effort)


def _name(sweep: Sweep, size: int, kind: Kind) -> str:
    return f"{sweep.what} {size:,}, {kind.name}"


def _table(sweep: Sweep, sizes: Sequence[int], laps: dict[str, list[Lap]]) -> Table:
    def row(size: int) -> Iterator[Cell]:
        yield f"{size:,}"
        for kind in KINDS:
            of_one = laps[_name(sweep, size, kind)]
            yield cpu(of_one)
            yield server(of_one)

    columns = (f"{kind.name}, {what}" for kind in KINDS for what in ("CPU, us", "in scripts, us"))
    return Table(
        f"{sweep.what}: microseconds for one event", (sweep.what, *columns), tuple(tuple(row(s)) for s in sizes)
    )


def _goals(sweep: Sweep, sizes: Sequence[int], laps: dict[str, list[Lap]]) -> Iterator[Goal]:
    for kind in KINDS:
        base, *larger = [laps[_name(sweep, size, kind)] for size in sizes]
        worst = dearest(base, larger, lambda lap: lap.cpu_us)
        yield Goal(f"{sweep.what}, {kind.name}: dearest / first, CPU time", worst, at_most=FLAT)
