"""What a fleet costs the server while nothing happens: with nothing parked, and with very much that is not due.

A server that holds much takes longer for whatever it does. So a third state has as much in memory, and nothing parked.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.backlog import LIMITS, PARKED, Size, build, environment
from benchmarks.effort import Effort
from benchmarks.figures import Goal, Proofs, Report, Spread, Table
from benchmarks.ours import COMMAND, KEYS, await_sleep, settled
from benchmarks.processes import Process, cpu_s
from benchmarks.scripts import QUICK
from benchmarks.stage import server_cpu_s, stage
from tests.support.servers import Database, RedisServer
from tests.support.serving import Serving

WORKERS: Final = 64
MOST: Final = 0.5
"""Goal: percent of a core of the server."""

FLAT: Final = 1.1
"""Goal: what parked events may add."""

CALM: Final = 1.0
CALM_WITHIN_S: Final = 120.0
"""Workers that have just begun look at everything: measured is from when the server needs so few percent of a core."""


@dataclass(frozen=True, slots=True)
class Window:
    """A while in which nothing happens: percent of a core, of the server, of a worker and of ``serve``."""

    server: float
    worker: float
    serve: float
    commands: float
    """Of the server, in a second."""


def run(effort: Effort) -> Report:
    """The same fleet three times."""
    proofs, workers = Proofs(), effort.of(WORKERS, quick=2)
    size = Size().times(effort.of(effort.scale, quick=QUICK))
    with tempfile.TemporaryDirectory(prefix="bench-") as made, stage(effort.cores) as (server, client):
        fleet = _Fleet(server, client, Path(made), workers, proofs)
        empty = fleet.windows(effort)
        client.flushall()
        build(client, server.url, Path(made), size)
        parked = size.parked + len(PARKED)
        full = fleet.windows(effort)
        proofs.add("parked after all", int(client.zcard(KEYS.parked)), parked)
        _give_away(client)
        others = fleet.windows(effort)
        proofs.add("parked when all is somebody else's", int(client.zcard(KEYS.parked)), 0)
    states = {
        "nothing parked": empty,
        f"{parked:,} events parked": full,
        "as much memory, nothing parked": others,
    }
    return Report((_table(workers, states),), tuple(_goals(empty, full, others)), proofs.collected(), _NOTES)


_NOTES: Final = (
    "Nobody asks serve for anything. What is parked waits in lines and on timers, and nothing of it is due.",
    "Measured begins when workers have looked at everything once.",
    "The states are measured one after another, minutes apart: a ratio is that of the medians.",
    "As much memory: the keys of the row above under other names, which nobody reads.",
)


def _give_away(client: Database) -> None:
    """Let all keys stay, under names that are not the dispatcher's."""
    keys = list(client.scan_iter(count=10_000))
    with client.pipeline(transaction=False) as renaming:
        for key in keys:
            renaming.rename(key, b"other:" + key)
        renaming.execute()


class _Fleet:
    """Workers and ``serve``, which are started anew for each look."""

    def __init__(self, server: RedisServer, client: Database, folder: Path, workers: int, proofs: Proofs) -> None:
        self._client, self._folder, self._workers, self._proofs = client, folder, workers, proofs
        self._limits = folder / "limits.yaml"
        self._limits.write_text(LIMITS, encoding="utf-8")
        self._url = server.url

    def windows(self, effort: Effort) -> list[Window]:
        """They begin, sleep, and are looked at, once in each round."""
        seconds = effort.of(10.0, quick=0.2)
        command = (*COMMAND, f"--processes={self._workers}")
        with (
            Process(*command, folder=self._folder, **environment(self._url, self._limits)) as fleet,
            Serving(self._url, self._folder, DISPATCHER_LIMITS_FILE=str(self._limits)) as serving,
        ):
            await_sleep(self._client, fleet, self._workers)
            serving.await_line("serve.started")
            _await_calm(self._client, effort)
            before = settled(self._client)
            windows = [self._window(fleet, serving, seconds) for _ in range(effort.rounds)]
            fleet.check()
            self._proofs.add("settled meanwhile", settled(self._client) - before, 0)
        return windows

    def _window(self, fleet: Process, serving: Serving, seconds: float) -> Window:
        begun, before = time.monotonic(), self._used(fleet, serving)
        time.sleep(seconds)
        after, took_s = self._used(fleet, serving), time.monotonic() - begun
        server, workers, serve, commands = ((b - a) / took_s for a, b in zip(before, after, strict=True))
        return Window(100 * server, 100 * workers / self._workers, 100 * serve, commands)

    def _used(self, fleet: Process, serving: Serving) -> tuple[float, float, float, int]:
        commands = int(self._client.info("stats")["total_commands_processed"])
        return server_cpu_s(self._client), cpu_s(fleet.pid), cpu_s(serving.pid), commands


def _await_calm(client: Database, effort: Effort) -> None:
    """Return when the server does next to nothing, or when it does not stop; then the figures show it."""
    end = time.monotonic() + CALM_WITHIN_S
    used = 100.0
    while used > CALM and time.monotonic() < end:
        before_s, begun = server_cpu_s(client), time.monotonic()
        time.sleep(effort.of(2.0, quick=0.2))
        used = 100 * (server_cpu_s(client) - before_s) / (time.monotonic() - begun)


def _table(workers: int, states: dict[str, list[Window]]) -> Table:
    rows = tuple(
        (
            name,
            Spread.of(each.server for each in windows),
            Spread.of(each.commands for each in windows),
            Spread.of(each.worker for each in windows),
            Spread.of(each.serve for each in windows),
        )
        for name, windows in states.items()
    )
    columns = ("", "server, % of a core", "its commands/s", "a worker, % of a core", "serve, % of a core")
    return Table(f"{workers} workers and serve, nothing to do", columns, rows)


def _median(windows: Sequence[Window]) -> float:
    return Spread.of(each.server for each in windows).median


def _goals(empty: Sequence[Window], full: Sequence[Window], others: Sequence[Window]) -> list[Goal]:
    added, by_events = (Spread.of([_median(full) / _median(each)]) for each in (empty, others))
    return [
        Goal("nothing parked: % of a core of the server", Spread.of(each.server for each in empty), at_most=MOST),
        Goal("much parked: % of a core of the server", Spread.of(each.server for each in full), at_most=MOST),
        Goal("much parked / nothing parked: CPU of the server", added, at_most=FLAT),
        Goal("much parked / as much memory, nothing parked: CPU of the server", by_events, at_most=FLAT),
    ]
