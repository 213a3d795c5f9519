"""HTTP: events handed over to one process against our producer in the client's process, and what a scrape costs."""

from __future__ import annotations

import http.client
import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from redis import Redis

from benchmarks.effort import Effort
from benchmarks.enqueue import SEND, SEND_MANY, handing_over
from benchmarks.figures import Goal, Proofs, Report, Spread, Table
from benchmarks.rounds import Contender, Lap, command_time_us, interleave, rate, ratio, wall
from benchmarks.stage import stage
from benchmarks.storms import Storm
from dispatcher import Producer
from dispatcher.app.metrics import read_facts
from dispatcher.app.operating import Desk
from dispatcher.app.servers import Server
from dispatcher.settings.environment import Settings
from dispatcher.web.metrics import text
from tests.support.commands import run as command
from tests.support.scrapes import Scrape
from tests.support.servers import RedisServer
from tests.support.serving import Serving

SINGLE: Final = "HTTP, one by one"
PARALLEL: Final = "HTTP, one by one, 16 clients"
BATCHES: Final = "HTTP, arrays of 500"
LINES: Final = "HTTP, JSON lines"

CLIENTS: Final = 16
SCRAPES: Final = {"50 categories": (50, 0), "50 categories, 1,000 others in the books": (50, 1_000)}
"""Of what metrics are read: so many categories of the limits file, with two limits each, and so many others."""

SCRAPE_US: Final = 2_000
"""Goal: what all commands of a scrape with 50 categories may take of the server."""

LIMITS: Final = "channels: {default: {pace: none}}\ndefaults: {limits: [2/30m]}\n"
ON_LIMIT: Final = ("drop", "defer", "dead-letter", "digest")
_EACH: Final = 6
_BATCH: Final = 500
_JSON: Final = {"Content-Type": "application/json"}
_JSON_LINES: Final = {"Content-Type": "application/x-ndjson"}


def run(effort: Effort) -> Report:
    """The same events by HTTP and by the producer; scrapes of some books."""
    proofs = Proofs()
    with stage(effort.cores) as (server, client), _serving(server) as port, ThreadPoolExecutor(CLIENTS) as pool:
        laps = interleave(_contenders(client, port, pool, effort), effort, client, proofs)
    scrapes = {name: _scraped(*size, effort, proofs) for name, size in SCRAPES.items()}
    costs = Table(
        "one scrape",
        ("of", "series", "us of the server"),
        tuple((name, series, cost) for name, (series, cost) in scrapes.items()),
    )
    first, (_, cost) = next(iter(scrapes.items()))
    goal = Goal(f"a scrape of {first}, us of the server", cost, at_most=float(SCRAPE_US))
    return Report((_table(laps), costs), (*_goals(laps), goal), proofs.collected(), _NOTES)


_NOTES: Final = ("A scrape costs what the server needs for all its commands, scripts among them.",)


def _scraped(named: int, others: int, effort: Effort, proofs: Proofs) -> tuple[int, Spread]:
    """How many series there are, and how long the server takes for them."""
    rules = "".join(
        f"  c{n}: {{limits: [3/1m, 5/1h], on_limit: {ON_LIMIT[n % len(ON_LIMIT)]}}}\n" for n in range(named)
    )
    with stage(effort.cores) as (server, client), tempfile.TemporaryDirectory() as folder:
        limits = Path(folder) / "limits.yaml"
        limits.write_text(f"{LIMITS}categories:\n{rules}", encoding="utf-8")
        names = [
            *(f"c{n}" for n in range(named)),
            *(f"other{n}" for n in range(effort.of(others, quick=others // 100))),
        ]
        Producer(client).send_many({"category": name, "text": "x"} for name in names * _EACH)
        env = {"DISPATCHER_REDIS_URL": server.url, "DISPATCHER_SINK": "console", "DISPATCHER_LIMITS_FILE": str(limits)}
        proofs.add("exit codes of workers", command("worker", "--burst", **env).code, 0)
        desk = Desk(Settings.isolated(redis_url=server.url), Server(server.url, "here"), timeout_s=10)
        found = Scrape.of(text(read_facts(desk)))
        proofs.add("received, as scrapes tell", round(found.total("events_received_total")), len(names) * _EACH)
        times, costs = effort.of(50, quick=2), []
        for _ in range(effort.rounds):
            before = command_time_us(client)
            for _ in range(times):
                read_facts(desk)
            costs.append((command_time_us(client) - before) / times)
    return found.series, Spread.of(costs)


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

    contender = partial(handing_over, client, effort)
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
