"""How fast a full queue drains while nearly everything is over the limit: our workers and other queues' workers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks import libraries
from benchmarks.drains import Drain, Queue, costs, drain_in_turn, times_as_fast
from benchmarks.effort import Effort
from benchmarks.figures import Cell, Goal, Proofs, Report, Spread, Table
from benchmarks.ours import Ours
from benchmarks.queues import NODE_FOLDER, PACKAGES, BullMQ, Dramatiq, StockRQ, has_bullmq
from benchmarks.slack import Slack
from benchmarks.stage import stage_with_slack
from benchmarks.storms import Storm
from tests.support.servers import RedisServer

ONE: Final = "ours, 1 process"
TWO: Final = "ours, 2 processes"
FOUR: Final = "ours, 4 processes"
STOCK: Final = "ours, 1 process, jobs of a stock producer"
REFUSED: Final = "ours, 1 process, 1 in 2,000 admitted"

SERVER_US: Final = 12.0
STOCK_US: Final = 45.0
"""Goals for one event: the server's CPU time of a storm that is dropped unread, and all of a stock producer's job."""


def run(effort: Effort) -> Report:
    """One drain of each in each round, one after another."""
    proofs = Proofs()
    with stage_with_slack(effort.cores) as (server, client, posted, folder):
        queues = _queues(effort, server, posted, folder)
        drains = drain_in_turn(queues, client, effort.rounds, proofs)
    return Report((_table(queues, drains),), tuple(_goals(drains)), proofs.collected(), _notes(drains))


def _queues(effort: Effort, server: RedisServer, posted: Slack, folder: Path) -> list[Queue]:
    storm = Storm(effort.of(100_000, quick=2_000))
    queues: list[Queue] = [
        Ours(name, storm, server.url, posted, folder, processes)
        for name, processes in effort.of(((ONE, 1), (TWO, 2), (FOUR, 4)), quick=((ONE, 1), (TWO, 2)))
    ]
    refused = Storm(effort.of(100_000, quick=2_000), one_in=2_000)
    queues.append(Ours(REFUSED, refused, server.url, posted, folder))
    queues.append(Ours(STOCK, Storm(effort.of(50_000, quick=1_000)), server.url, posted, folder, is_marked=False))
    queues.append(StockRQ(Storm(effort.of(5_000, quick=200)), server, folder))
    if effort.peers:
        queues.append(Dramatiq(Storm(effort.of(20_000, quick=1_000)), server, folder))
        if has_bullmq():
            queues.append(BullMQ(Storm(effort.of(50_000, quick=1_000)), server, folder))
    return queues


def _table(queues: Sequence[Queue], drains: dict[str, list[Drain]]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for queue in queues:
        name, found = queue.name, drains[queue.name]
        rate, *cpu = costs(found)
        wall = Spread.of(each.wall_us for each in found)
        rows.append((name, queue.storm.events, rate, wall, *cpu, times_as_fast(drains, name, StockRQ.name)))
    columns = ("", "events", "events/s", "us", "CPU of the workers, us", "CPU of the server, us", "times RQ")
    return Table("a full queue of 50 categories, 99 % over the limit", columns, tuple(rows))


def _goals(drains: dict[str, list[Drain]]) -> list[Goal]:
    ratios = [
        Goal(f"{ours} / {theirs}", times_as_fast(drains, ours, theirs), at_least=bound)
        for ours, theirs, bound in (
            (ONE, StockRQ.name, 300.0),
            (ONE, BullMQ.name, 6.0),
            (TWO, ONE, 1.0),
            (FOUR, ONE, 0.9),
        )
        if ours in drains and theirs in drains
    ]
    return [
        *ratios,
        *(
            Goal(
                f"{name}: CPU of the server, us", Spread.of(each.server_us for each in drains[name]), at_most=SERVER_US
            )
            for name in (ONE, REFUSED)
        ),
        Goal(f"{STOCK}: us", Spread.of(each.wall_us for each in drains[STOCK]), at_most=STOCK_US),
    ]


def _notes(drains: dict[str, list[Drain]]) -> tuple[str, ...]:
    versions = [f"RQ {version('rq')}"]
    if Dramatiq.name in drains:
        versions += (f"Dramatiq {each}" for each in libraries.find(PACKAGES).values())
    if BullMQ.name in drains:
        versions.append(f"BullMQ {_bullmq_version()}")
    left_out = () if BullMQ.name in drains else ("Without BullMQ, which needs Node.js and npm.",)
    return (
        f"{', '.join(versions)}; each job is one EVALSHA of the recipe, which refuses as many, and posts nothing.",
        "Ours posts what is admitted, counts every event and writes a line of JSON for it to a file.",
        *left_out,
    )


def _bullmq_version() -> Any:  # noqa: ANN401 - JSON
    package = NODE_FOLDER / "node_modules" / "bullmq" / "package.json"
    return json.loads(package.read_text(encoding="utf-8"))["version"]
