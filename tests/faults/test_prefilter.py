"""A storm far over its limits, dropped by the pre-check of workers that stop, or change their limits, in its midst."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from dispatcher.core.event import Event
from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.server.connection import Client
from dispatcher.settings.limits_file import read_limits
from dispatcher.stand_in import StandIn
from dispatcher.store.decisions import Decisions
from dispatcher.store.snapshot import Books, Snapshot
from dispatcher.store.versions import Unless, Versions
from tests.support.kill_points import KillPoint
from tests.support.kill_round import KEYS, QUEUE
from tests.support.killable_workers import KillableWorker, KillableWorkers
from tests.support.processes import environment, until
from tests.support.servers import RedisServer
from tests.support.snapshots import is_drained, watch

EVENTS: Final = 3_000
CATEGORIES: Final = 5
BATCH: Final = 32


def limits(each: int) -> str:
    return f"""\
global: {{limits: []}}
channels: {{default: {{pace: none}}}}
defaults: {{limits: [{each}/1h], channel: "#loud"}}
"""


@dataclass(frozen=True, slots=True)
class Storm:
    """A server with all events of a storm on its lanes, a Slack, and workers born when they are needed."""

    killable: KillableWorkers
    client: Client
    slack: StandIn
    file: Path
    env: dict[str, str]
    ids: list[str]

    @property
    def books(self) -> Books:
        return Books(self.client, KEYS, QUEUE)

    def start(self, kill_point: KillPoint | None = None) -> KillableWorker:
        return self.killable.start(self.env, kill_point)

    def ended(self, worker: KillableWorker) -> Snapshot:
        """The books when the worker has stopped as it was told."""
        until(lambda: self._code(worker) is not None, f"its end; said: {worker.said()[-2000:]}")
        assert worker.code == 0
        snapshot = self.books.snapshot()
        assert snapshot.imbalances() == []
        return snapshot

    def drained(self, *workers: KillableWorker) -> dict[str, int]:
        """The totals, when every event has its outcome and all have stopped. Each was told of once, as it ended."""
        snapshot = watch(self.books, is_drained, 60)
        self.killable.stop()
        told = lines(*workers)
        assert Counter(line["event_id"] for line in told) == Counter(self.ids)
        outcomes = Counter(line["outcome"] for line in told)
        assert outcomes == ended_of(snapshot)
        assert len(self.slack.ledger) == outcomes["sent"]
        for category in {line["category"] for line in told}:
            dropped = sum(line["category"] == category and line["outcome"] == "dropped" for line in told)
            assert snapshot.by_category("dropped")[category] == dropped
        decided = {each.id: each.outcome for each in Decisions(self.client, KEYS).newest()}
        assert decided == {line["event_id"]: line["outcome"] for line in told}
        return snapshot.overall()

    def _code(self, worker: KillableWorker) -> int | None:
        self.killable.poll()
        return worker.code


def ended_of(snapshot: Snapshot) -> dict[str, int]:
    """What the books say has ended, by its outcome."""
    return {name: snapshot.totals[name] for name in ("sent", "dropped") if snapshot.totals.get(name)}


def lines(*workers: KillableWorker) -> list[dict[str, Any]]:
    """What they said of events at their end."""
    return [line for worker in workers for line in worker.lines("event.settled")]


def handed_out(*workers: KillableWorker) -> int:
    """How many new events they got from ``take``."""
    return sum(len(batch) for worker in workers for batch in worker.life().batches)


@pytest.fixture
def storm(killable: KillableWorkers, own_server: RedisServer, tmp_path: Path) -> Iterator[Storm]:
    file = tmp_path / "limits.yaml"
    file.write_text(limits(10), encoding="utf-8")
    with StandIn() as slack, connect(own_server.url) as client:
        env = environment(
            own_server.url, slack.base_url, slack.token, file, DISPATCHER_LEASE="60", DISPATCHER_BATCH=str(BATCH)
        )
        events: Sequence[Event] = [
            Event(f"loud{n % CATEGORIES}", f"message {n}", id=f"event-{n}" if n % 2 else None) for n in range(EVENTS)
        ]
        yield Storm(killable, client, slack, file, env, Producer(client).send_many(events))
        killable.clear()


@pytest.mark.parametrize(
    ("step", "moment", "call"),
    [
        ("ask for more", "before", 5),
        pytest.param("ask for more", "after", 5, marks=pytest.mark.slow),
        ("prefetch", "after", 3),
        pytest.param("prefetch", "after", 5, marks=pytest.mark.slow),
        ("settle", "after", 1),
    ],
)
def test_a_worker_stopped_in_the_midst_of_a_storm_tells_of_all_it_has_dropped(
    storm: Storm, step: str, moment: str, call: int
) -> None:
    first = storm.start(KillPoint(step, moment, call, signal.SIGTERM))
    snapshot = storm.ended(first)
    told = lines(first)
    assert 0 < len(told) < EVENTS
    assert (snapshot.leased, Counter(line["outcome"] for line in told)) == (0, ended_of(snapshot))
    second = storm.start()
    totals = storm.drained(first, second)
    assert (totals["sent"], totals["dropped"]) == (10 * CATEGORIES, EVENTS - 10 * CATEGORIES)
    assert handed_out(first, second) < EVENTS / 2, "most of it was dropped by the pre-check"


def apply(storm: Storm) -> None:
    """As ``limits apply`` does."""
    content = read_limits(storm.file.read_text(encoding="utf-8"), "x").content
    versions = Versions(storm.client, KEYS)
    versions.publish(content.text, content.digest, by="ed@desk", file="x.yaml", unless=Unless.SAME)


@pytest.mark.parametrize("by", ["hangup", pytest.param("apply", marks=pytest.mark.slow)])
def test_limits_that_are_raised_in_the_midst_of_a_storm_are_used_up(storm: Storm, by: str) -> None:
    worker = storm.start(KillPoint("ask for more", "before", 4, signal.SIGSTOP))
    until(worker.is_stopped, "its stop")
    told = lines(worker)
    assert "dropped" in {line["outcome"] for line in told}
    waiting = storm.books.snapshot().waiting
    assert waiting > EVENTS / 2
    storm.file.write_text(limits(60), encoding="utf-8")
    if by == "hangup":
        worker.signal(signal.SIGHUP)
    else:
        apply(storm)
    worker.signal(signal.SIGCONT)
    assert storm.drained(worker)["sent"] == 60 * CATEGORIES
    refused = Counter(line["limit"] for line in lines(worker) if line["outcome"] == "dropped")
    assert refused.keys() == {"10/1h", "60/1h"}
    assert handed_out(worker) < EVENTS / 2
