"""What two viewers of the page cost the server while a queue is full, and the events while it drains."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.drains import Drain, costs, drain
from benchmarks.effort import Effort
from benchmarks.figures import Goal, Proofs, Report, Spread, Table
from benchmarks.ours import Ours, send
from benchmarks.processes import Process
from benchmarks.stage import server_cpu_s, stage_with_slack
from benchmarks.storms import Storm
from tests.support.servers import Database
from tests.support.serving import Serving

ALONE: Final = "nobody looks"
WATCHED: Final = "two viewers"
VIEWERS: Final = 2
EVERY_S: Final = 2.0
"""As often as page.js asks."""


@dataclass
class Viewer:
    """Asks for the first view as the page's script does; ``looks`` counts the answers."""

    port: int
    every_s: float
    looks: int = 0

    def watch(self, ends: threading.Event) -> None:
        """Until the event is set."""
        tag = ""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port)) as peer:
            while not ends.wait(self.every_s):
                peer.request("GET", "/", headers={"X-Live": "1", "If-None-Match": tag})
                answer = peer.getresponse()
                answer.read()
                self.looks += answer.status in {200, 304}
                tag = answer.headers.get("ETag", tag)


@contextmanager
def viewers(port: int, effort: Effort) -> Iterator[list[Viewer]]:
    """Two of them, until the context ends."""
    ends, watching = threading.Event(), [Viewer(port, effort.of(EVERY_S, quick=0.02)) for _ in range(VIEWERS)]
    threads = [threading.Thread(target=each.watch, args=(ends,)) for each in watching]
    for thread in threads:
        thread.start()
    try:
        yield watching
    finally:
        ends.set()
        for thread in threads:
            thread.join()


class _Looked:
    """A queue that is looked at: each viewer has to be answered between the release of its events and their end."""

    def __init__(self, queue: Ours, watching: Sequence[Viewer]) -> None:
        self.name, self.storm = queue.name, queue.storm
        self.fill, self.workers, self.done = queue.fill, queue.workers, queue.done
        self._queue, self._watching = queue, watching
        self._before: list[int] = []

    def release(self, client: Database, workers: Process) -> None:
        """Looks count from here on."""
        self._before = [each.looks for each in self._watching]
        self._queue.release(client, workers)

    def prove(self, client: Database, workers: Process, proofs: Proofs) -> None:
        """As soon as all events have ended."""
        looked = sum(each.looks > before for each, before in zip(self._watching, self._before, strict=True))
        proofs.add("viewers that were answered while a queue drained", looked, VIEWERS)
        self._queue.prove(client, workers, proofs)


def run(effort: Effort) -> Report:
    """In each round what viewers of a full queue cost, and then a drain that nobody looks at, and one that they do."""
    proofs = Proofs()
    shares: list[float] = []
    drains: dict[str, list[Drain]] = {ALONE: [], WATCHED: []}
    storm = Storm(effort.of(100_000, quick=2_000))
    with (
        stage_with_slack(effort.cores) as (server, client, posted, folder),
        Serving(server.url, folder) as serving,
    ):
        queues = {name: Ours(name, storm, server.url, posted, folder) for name in drains}
        for _ in range(effort.rounds):
            client.flushall()
            send(client, storm)
            with viewers(serving.port, effort) as watching:
                shares.append(_share(client, effort.of(10.0, quick=2.5)))
            proofs.add("viewers that were answered", sum(each.looks > 0 for each in watching), VIEWERS)
            drains[ALONE].append(drain(queues[ALONE], client, proofs))
            with viewers(serving.port, effort) as watching:
                drains[WATCHED].append(drain(_Looked(queues[WATCHED], watching), client, proofs))
    return Report((_table(drains, shares),), tuple(_goals(drains, shares)), proofs.collected())


def _share(client: Database, seconds: float) -> float:
    """How much of a core the server uses, in percent."""
    used_s, begun_s = server_cpu_s(client), time.monotonic()
    time.sleep(seconds)
    return 100 * (server_cpu_s(client) - used_s) / (time.monotonic() - begun_s)


def _table(drains: dict[str, list[Drain]], shares: list[float]) -> Table:
    rows = [(name, *costs(found), Spread.of(shares) if name == WATCHED else "") for name, found in drains.items()]
    columns = ("", "events/s", "CPU of the workers, us", "CPU of the server, us", "% of a core, full queue")
    return Table("a full queue of 50 categories, looked at before and while it drains", columns, tuple(rows))


def _goals(drains: dict[str, list[Drain]], shares: list[float]) -> list[Goal]:
    pairs = list(zip(drains[ALONE], drains[WATCHED], strict=True))
    return [
        Goal("% of a core, two viewers of a full queue", Spread.of(shares), at_most=2.0),
        Goal(f"CPU, {WATCHED} / {ALONE}", Spread.of(b.cpu_us / a.cpu_us for a, b in pairs), at_most=1.05),
    ]
