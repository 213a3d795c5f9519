"""Our worker as ``drains`` runs it: ``dispatcher worker``, with everything on."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.figures import Proofs
from benchmarks.processes import Process
from benchmarks.slack import Slack
from benchmarks.storms import Storm, channel
from dispatcher import Producer
from dispatcher.core.units import Lane
from dispatcher.server.keys import Keys
from dispatcher.store.counts import OUTCOMES
from dispatcher.store.decisions import Decisions
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books
from tests.support.servers import Database

COMMAND: Final = (sys.executable, "-m", "dispatcher", "worker")
KEYS: Final = Keys("dispatcher")
QUEUE: Final = QueueKeys("notifications")
LANE: Final = QUEUE.lane(Lane.NORMAL)
RECORDED: Final = 50_000
"""Decisions about dropped events that are kept for certain: half of the most."""

_HELD: Final = "held"
_PIPED: Final = 1_000
_STEADY: Final = 5
"""Looks in a row at which the same number of connections is blocked: all workers sleep."""


@dataclass(frozen=True, slots=True)
class Ours:
    """Worker processes below one command, their log lines in a file, posting to a stand-in."""

    name: str
    storm: Storm
    server_url: str
    slack: Slack
    folder: Path
    processes: int = 1
    command: Sequence[str] = COMMAND
    is_marked: bool = True
    """Whether jobs bear what only producers of ours write, so that they can be dropped unread."""

    def fill(self, client: Database) -> None:
        """By ``send_many``, and then out of sight: RENAME shows the whole lane at once."""
        self.slack.reset()
        send(client, self.storm)
        if not self.is_marked:
            unmark(client)
        client.rename(LANE, _HELD)

    @contextmanager
    def workers(self, client: Database) -> Iterator[Process]:
        """Asleep on the empty lanes."""
        limits = self.folder / "limits.yaml"
        limits.write_text(self.storm.limits_yaml(), encoding="utf-8")
        with worker(self.server_url, self.slack, limits, self.processes, self.command) as process:
            await_sleep(client, process, self.processes)
            yield process

    def release(self, client: Database, workers: Process) -> None:
        """Wakes all of them."""
        del workers
        client.rename(_HELD, LANE)

    def done(self, client: Database) -> int:
        """The sum of the outcomes in the books."""
        return settled(client)

    def prove(self, client: Database, workers: Process, proofs: Proofs) -> None:
        """Books, slots, the stand-in's ledger, decision record and log agree, and nothing is over any limit."""
        storm, look = self.storm, Books(client, KEYS, QUEUE).snapshot()
        proofs.add(f"equations of the books that do not hold, {self.name}", len(look.imbalances()), 0)
        proofs.add(f"sent by {self.name}", look.totals.get("sent", 0), storm.admitted)
        proofs.add(f"dropped by {self.name}", look.totals.get("dropped", 0), storm.events - storm.admitted)
        proofs.add(f"slots of all, {self.name}", client.zcard(KEYS.scope("global")), storm.admitted)
        landed = Counter(post["channel"] for post in self.slack.landed())
        proofs.add(f"landed at the stand-in, {self.name}", landed.total(), storm.admitted)
        for name in storm.names():
            proofs.add(f"slots of categories, {self.name}", client.zcard(KEYS.scope(f"category:{name}")), storm.each)
            proofs.add(f"landed in channels, {self.name}", landed[channel(name)], storm.each)
        outcomes = Counter(decision.outcome for decision in Decisions(client, KEYS).newest())
        proofs.add(f"recorded as sent, {self.name}", outcomes["sent"], storm.admitted)
        refused = min(storm.events - storm.admitted, RECORDED)
        proofs.add(f"recorded as dropped, at least, {self.name}", min(outcomes["dropped"], refused), refused)
        workers.until(lambda: told(workers) == storm.events, f"a log line for each of {storm.events:,} events")
        proofs.add(f"log lines of {self.name}", told(workers), storm.events)


def send(client: Database, storm: Storm) -> None:
    """Hand a storm over."""
    Producer(client).send_many(
        {"category": category, "text": text, **storm.about(number)} for category, text, number in storm.rows()
    )


def unmark(client: Database) -> None:
    """Leave of each job on the lane what a stock RQ producer writes too."""
    ids = client.lrange(LANE, 0, -1)
    for first in range(0, len(ids), _PIPED):
        pipe = client.pipeline(transaction=False)
        for id_ in ids[first : first + _PIPED]:
            pipe.hdel(QUEUE.job(id_.decode()), "category", "shown")
        pipe.execute()


@contextmanager
def worker(
    server_url: str, slack: Slack, limits: Path, processes: int = 1, command: Sequence[str] = COMMAND, **more: str
) -> Iterator[Process]:
    """Worker processes that log in JSON to a file beside the limits file; ``more`` is their environment."""
    env = {
        "DISPATCHER_REDIS_URL": server_url,
        "DISPATCHER_SLACK_BASE_URL": slack.base_url,
        "DISPATCHER_SLACK_TOKEN": slack.token,
        "DISPATCHER_LIMITS_FILE": str(limits),
        "DISPATCHER_LOG_FORMAT": "json",
        **more,
    }
    with Process(*command, f"--processes={processes}", folder=limits.parent, **env) as process:
        yield process


def await_sleep(client: Database, process: Process, processes: int) -> None:
    """Return when every worker has begun and blocks on the server."""
    counts: list[int] = []

    def asleep() -> bool:
        counts.append(int(client.info("clients")["blocked_clients"]))
        started = process.log.read_bytes().count(b'"worker.started"')
        return started == processes <= counts[-1] and len(set(counts[-_STEADY:])) == 1 and len(counts) >= _STEADY

    process.until(asleep, f"{processes} idle workers")


def settled(client: Database) -> int:
    """How many events have come to their end; one command."""
    return sum(int(count or 0) for count in client.hmget(KEYS.totals, OUTCOMES))


def told(process: Process) -> int:
    """For how many events there is a line at their end."""
    with process.log.open("rb") as log:
        return sum(b'"event.settled"' in line for line in log)
