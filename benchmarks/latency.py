"""From ``send`` to Slack on an idle system: the instant of the call against that of the arrival at the stand-in."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Final

from benchmarks.effort import Effort
from benchmarks.figures import Cell, Goal, Proofs, Report, Spread, Table, Unproven
from benchmarks.ours import await_sleep, settled, worker
from benchmarks.processes import Process
from benchmarks.slack import Slack
from benchmarks.slowlog import tail
from benchmarks.stage import stage_with_slack
from dispatcher import Producer
from tests.support.servers import Database

_MS: Final = 1_000

WORKERS: Final = 2
SEED: Final = 20
SHORTEST_S: Final = 0.005
LONGEST_S: Final = 0.045
"""Between two sends: each finds the workers asleep again."""

LIMITS: Final = """\
global: {limits: [1000000/30m]}
channels: {default: {pace: none}}
defaults: {limits: [1000000/30m], channel: "#notifications"}
"""
PERCENTS: Final = (50, 90, 99, 100)
LOADS: Final = (50, 90)
"""Parts of the throughput, in percent."""


def run(effort: Effort) -> Report:
    """So many sends in each round, idle and under load; the workers and the stand-in stay the same."""
    sends, at_once, proofs = effort.of(500, quick=20), effort.of(1_000, quick=20), Proofs()
    idle: list[list[float]] = []
    awake: list[list[float]] = []
    throughputs: list[float] = []
    loaded: dict[int, list[list[float]]] = {load: [] for load in LOADS}
    with stage_with_slack(effort.cores) as (server, client, posted, folder):
        limits = folder / "limits.yaml"
        limits.write_text(LIMITS, encoding="utf-8")
        with worker(server.url, posted, limits, WORKERS) as workers:
            await_sleep(client, workers, WORKERS)
            sender, chance = _Sender(client, posted, workers, proofs), random.Random(SEED)  # noqa: S311 - gaps, no cryptography
            sender.send([0.0] * WORKERS * 5)  # connections and caches are there
            for _ in range(effort.rounds):
                gaps = [chance.uniform(SHORTEST_S, LONGEST_S) for _ in range(sends)]
                idle.append(sender.send(gaps))
                with _no_core_asleep(folder):
                    awake.append(sender.send(gaps))
                throughputs.append(at_once * _MS / max(sender.send([0.0] * at_once)))
                for load in LOADS:
                    rate = throughputs[-1] * load / 100
                    loaded[load].append(sender.send([chance.expovariate(rate) for _ in range(at_once)]))
    tables = (_idle_table(idle, awake), _load_table(throughputs, idle, loaded))
    goals = (
        Goal("half of the sends arrived, ms", _spread(idle, 50), at_most=3.0),
        Goal("99 % of the sends arrived, ms", _spread(idle, 99), at_most=10.0),
    )
    return Report(tables, goals, proofs.collected(), _NOTES)


_NOTES: Final = (
    "From before the call of send, in one process, to when the stand-in has accepted it, in another; one clock.",
    "Gaps between two sends are random: 5 to 45 ms while idle; under load as of many who send independently.",
    "While no core sleeps: a loop of the lowest priority runs on each, so that nobody waits for a core to wake up.",
    "What is sent late, because the send before it took long, counts from when it should have been sent.",
    "The throughput is that of sends without gaps, one by one, counted to the last arrival.",
    "Sender, workers and stand-in share the machine. 99.9 %: of the sends of all rounds together.",
)


class _Sender:
    """Sends events at their instants and sees when they arrive."""

    def __init__(self, client: Database, posted: Slack, workers: Process, proofs: Proofs) -> None:
        self._client, self._posted, self._workers, self._proofs = client, posted, workers, proofs
        self._producer = Producer(client)

    def send(self, gaps: Sequence[float]) -> list[float]:
        """One event after each gap; how long each took to arrive, in milliseconds."""
        self._posted.reset()
        awaited = settled(self._client) + len(gaps)
        begun: dict[str, float] = {}
        at = time.monotonic()
        for n, gap_s in enumerate(gaps):
            at += gap_s
            text = f"disk {n} is nearly full on db1"
            begun[text] = at
            if (ahead_s := at - time.monotonic()) > 0:
                time.sleep(ahead_s)
                begun[text] = time.monotonic()
            self._producer.send("disks", text)
        self._workers.until(lambda: settled(self._client) >= awaited, f"{len(gaps)} settled events")
        landed = self._posted.landed()
        self._proofs.add("arrived at the stand-in", len(landed), len(gaps))
        took = [(post["arrived_at"] - begun.pop(post["text"])) * _MS for post in landed]
        if begun:
            raise Unproven(f"{len(begun)} messages arrived twice in place of others")
        return took


@contextmanager
def _no_core_asleep(folder: Path) -> Iterator[None]:
    """While this lasts, each core runs an endless loop when it has nothing else to do. Only Linux can be told so."""
    with ExitStack() as loops:
        for _ in range(os.cpu_count() or 1) if sys.platform == "linux" else ():
            loops.enter_context(Process(sys.executable, "-c", _LOOP, folder=folder))
        yield


_LOOP: Final = """\
import os
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True:
    pass
"""


def _idle_table(idle: Sequence[Sequence[float]], awake: Sequence[Sequence[float]]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (f"{percent}", _spread(idle, percent), _spread(awake, percent)) for percent in PERCENTS
    ]
    rows.insert(-1, ("99.9", tail(list(chain(*idle))), tail(list(chain(*awake)))))
    columns = ("percent of the sends arrived within", "ms", "ms, while no core sleeps")
    return Table(f"from send to arrival, {WORKERS} workers asleep", columns, tuple(rows))


def _load_table(
    throughputs: Sequence[float], idle: Sequence[Sequence[float]], loaded: Mapping[int, Sequence[Sequence[float]]]
) -> Table:
    def row(name: str, rate: Cell, rounds: Sequence[Sequence[float]]) -> tuple[Cell, ...]:
        return name, rate, *(_spread(rounds, percent) for percent in PERCENTS[:-1]), tail(list(chain(*rounds)))

    loads = (
        row(f"{load} % of the throughput", Spread.of(each * load / 100 for each in throughputs), rounds)
        for load, rounds in loaded.items()
    )
    columns = ("", "sends/s", *(f"{percent} %, ms" for percent in PERCENTS[:-1]), "99.9 %, ms")
    rows = (row("idle", 2 / (SHORTEST_S + LONGEST_S), idle), *loads)
    return Table(f"from send to arrival under load, {WORKERS} workers", columns, rows)


def _spread(rounds: Sequence[Sequence[float]], percent: int) -> Spread:
    return Spread.of(percentile(took, percent) for took in rounds)


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
