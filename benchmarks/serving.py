"""Handing events over by HTTP: one process of ``dispatcher serve`` against our producer in the client's process."""

from __future__ import annotations

import http.client
import json
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from redis import Redis

from benchmarks.effort import Effort
from benchmarks.figures import Goal, Proofs, Report, Table
from benchmarks.ours import LANE
from benchmarks.rounds import Contender, Lap, interleave, rate, ratio, wall
from benchmarks.stage import stage
from benchmarks.storms import Storm
from dispatcher import Producer
from tests.support.servers import RedisServer
from tests.support.serving import Serving

SINGLE: Final = "HTTP, one by one"
PARALLEL: Final = "HTTP, one by one, 16 clients"
BATCHES: Final = "HTTP, arrays of 500"
LINES: Final = "HTTP, JSON lines"
SEND: Final = "send, one by one"
SEND_MANY: Final = "send_many"

CLIENTS: Final = 16
_BATCH: Final = 500
_JSON: Final = {"Content-Type": "application/json"}
_JSON_LINES: Final = {"Content-Type": "application/x-ndjson"}


def run(effort: Effort) -> Report:
    """The same events by HTTP and by the producer."""
    proofs = Proofs()
    with stage(effort.cores) as (server, client), _serving(server) as port, ThreadPoolExecutor(CLIENTS) as pool:
        laps = interleave(_contenders(client, port, pool, effort), effort, client, proofs)
    return Report((_table(laps),), tuple(_goals(laps)), proofs.collected())


@contextmanager
def _serving(server: RedisServer) -> Iterator[int]:
    with tempfile.TemporaryDirectory() as folder, Serving(server.url, Path(folder)) as process:
        yield process.port


def _contenders(client: Redis, port: int, pool: ThreadPoolExecutor, effort: Effort) -> tuple[Contender, ...]:
    few, many = effort.of(800, quick=32), effort.of(5_000, quick=500)
    events = [{"category": category, "text": text} for category, text, _ in Storm(many).rows()]
    singles = [json.dumps(event).encode() for event in events[:few]]
    batches = [json.dumps(events[n : n + _BATCH]).encode() for n in range(0, many, _BATCH)]
    lines = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    producer = Producer(client)

    def post(bodies: list[bytes], headers: dict[str, str]) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as peer:
            for body in bodies:
                peer.request("POST", "/v1/events", body, headers)
                peer.getresponse().read()  # what was refused is not on the lane, and the proof misses it

    def in_parallel() -> None:
        shares = [singles[n::CLIENTS] for n in range(CLIENTS)]
        list(pool.map(lambda share: post(share, _JSON), shares))

    def send() -> None:
        for event in events[:few]:
            producer.send(event["category"], event["text"])

    def contender(name: str, hand_over: Callable[[], object], count: int) -> Contender:
        def decide() -> int:
            hand_over()
            return int(client.llen(LANE))

        return Contender(name, decide, count, count, client.flushdb, effort.of(2, quick=1), proof="enqueued by")

    return (
        contender(SINGLE, lambda: post(singles, _JSON), few),
        contender(PARALLEL, in_parallel, few),
        contender(BATCHES, lambda: post(batches, _JSON), many),
        contender(LINES, lambda: post([lines], _JSON_LINES), many),
        contender(SEND, send, few),
        contender(SEND_MANY, lambda: producer.send_many(events), many),
    )


def _table(laps: dict[str, list[Lap]]) -> Table:
    columns = ("", "events/s", "us", "times send_many")
    rows = ((name, rate(each), wall(each), ratio(laps, name, SEND_MANY)) for name, each in laps.items())
    return Table("handing events over by HTTP", columns, tuple(rows))


def _goals(laps: dict[str, list[Lap]]) -> list[Goal]:
    return [Goal(f"{BATCHES} / {SINGLE}", ratio(laps, BATCHES, SINGLE), at_least=5.0)]
