"""A checker of the whole way of a post: mark, send, arrive, look up, send again, with delays between any two steps.

No event arrives twice while a channel's history is read truthfully. The stand-in's ledger is the judge.
"""

from __future__ import annotations

import json
import select
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from dispatcher.core.units import US
from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.stand_in import StandIn
from dispatcher.store.dead_letters import DeadLetters, Filter
from dispatcher.store.snapshot import Books
from tests.support.delayed_workers import LONG_S, WORKERS, Chance, DelayedWorker, is_over
from tests.support.effectively_once import hasten
from tests.support.kill_round import KEYS, QUEUE
from tests.support.processes import until
from tests.support.servers import Database, RedisServer

LIMITS: Final = """\
global: {limits: []}
defaults: {limits: [], max_age: 1h}
channels: {default: {pace: none}, "#one": {pace: 1/100ms}, "#two": {pace: 5/1s}}
"""
CHANNELS: Final = ("#one", "#two", "#three", "#four")
TROUBLES: Final = ("at: anywhere", "is not read", "SIGKILL", "SIGTERM")
PASSING: Final = ("is delayed", "at: mark")
"""What happens to a worker at any instant, and to what passes between it and the servers, as the trace says it."""

STEP_S: Final = 0.1
"""How often something may happen to a worker that is not at any step."""


class Trouble:
    """Three workers that are held up by chance, and what was sent to them."""

    def __init__(self, chance: Chance, server: RedisServer, slack: StandIn, client: Database, cwd: Path) -> None:
        self._chance = chance
        self._server = server
        self._slack = slack
        self._client = client
        self._cwd = cwd
        (cwd / "limits.yaml").write_text(LIMITS, encoding="utf-8")
        self.workers: list[DelayedWorker] = []
        self.ended: list[DelayedWorker] = []
        self.ids: list[str] = []

    def last(self, seconds: float, count: int) -> None:
        """Send so many events over so long, while workers are frozen, unread, stopped and killed."""
        self._fill()
        until(lambda: all(worker.has_started() for worker in self.workers), "workers")
        producer, began = Producer(self._client), time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            self._fill()
            due = min(count, round(count * passed / (0.7 * seconds)) + 1)
            self.ids += producer.send_many(event(n) for n in range(len(self.ids), due))
            self._trouble(self._chance.choose(*self.workers), is_late=passed > 0.5 * seconds)
            hasten_attempts(self._client)
            self._chance.wait(STEP_S)

    def settle(self, timeout_s: float) -> None:
        """From now on nothing is held up; return when each event has its end, and stop all workers."""
        self._chance.end()
        for worker in self.workers:
            worker.process.read()
        books = Books(self._client, KEYS, QUEUE)
        end = time.monotonic() + timeout_s
        while (snapshot := books.snapshot()).waiting + snapshot.events:
            assert snapshot.imbalances() == []
            assert time.monotonic() < end, f"not done after {timeout_s} s: {snapshot}\n{self.told()}"
            self._fill()
            hasten(self._client)
            select.select([], [], [], STEP_S)
        for worker in self.workers:
            worker.end(signal.SIGTERM)
        until(lambda: all(map(is_over, self.workers)), "the end of all workers")

    def told(self) -> str:
        """What happened."""
        return "\n".join(self._chance.trace)

    def close(self) -> None:
        self._chance.end()
        for worker in (*self.workers, *self.ended):
            worker.close()

    def _fill(self) -> None:
        """A worker in the place of each that has ended."""
        self.ended += [worker for worker in self.workers if is_over(worker)]
        self.workers = [worker for worker in self.workers if worker not in self.ended]
        while len(self.workers) < WORKERS:
            env = {"DISPATCHER_LIMITS_FILE": "limits.yaml"}
            self.workers.append(DelayedWorker(self._chance, self._server.socket, self._slack, env, self._cwd))

    def _trouble(self, worker: DelayedWorker, *, is_late: bool) -> None:
        """By chance; when it is late, what has not happened yet happens for sure, one thing at a time."""
        if not worker.has_started():
            return
        due = next((kind for kind in TROUBLES if is_late and kind not in self.told()), None)
        if due == "at: anywhere" or self._chance.happens(0.02):
            worker.freeze(LONG_S[0])
        if due == "is not read" or self._chance.happens(0.05):
            self._chance.note(worker.pid, "is not read")
            worker.process.stall()
        elif self._chance.happens(0.05):
            worker.process.read()
        if due == "SIGKILL" or self._chance.happens(0.01):
            worker.end(signal.SIGKILL)
        elif due == "SIGTERM" or self._chance.happens(0.01):
            worker.end(signal.SIGTERM)


def hasten_attempts(client: Database) -> None:
    """Whoever waits to be posted again may go now; who waits to be reconciled, in its own time."""
    now_us = client.time()[0] * US
    for id_ in client.zrange(KEYS.timers, 0, -1):
        record = client.hget(KEYS.events, id_)
        if record is not None and "unconfirmed" not in json.loads(record.partition(b"\n")[0]):
            client.zadd(KEYS.timers, {id_: now_us}, xx=True)


def event(number: int) -> dict[str, str]:
    return {
        "category": "news",
        "id": f"event-{number}",
        "text": f"event-{number}",
        "channel": CHANNELS[number % len(CHANNELS)],
    }


@contextmanager
def trouble(seed: int, server: RedisServer, cwd: Path) -> Iterator[tuple[Trouble, StandIn]]:
    with ExitStack() as stack:
        slack = stack.enter_context(StandIn())
        client = stack.enter_context(connect(server.url))
        found = Trouble(Chance(seed), server, slack, client, cwd)
        stack.callback(found.close)
        yield found, slack


@pytest.mark.parametrize(
    ("seed", "seconds", "count"),
    [
        pytest.param(1, 10.0, 60, id="short"),
        *(pytest.param(seed, 60.0, 600, id=f"long {seed}", marks=pytest.mark.slow) for seed in range(2, 6)),
    ],
)
def test_no_event_arrives_twice_whatever_is_held_up(
    own_server: RedisServer, tmp_path: Path, seed: int, seconds: float, count: int
) -> None:
    with trouble(seed, own_server, tmp_path) as (found, slack), connect(own_server.url) as client:
        found.last(seconds, count)
        found.settle(60.0)
        arrived = Counter(posted.text for posted in slack.ledger.posted())
        twice = {id_: copies for id_, copies in arrived.items() if copies > 1}
        assert twice == {}, found.told()
        dead = {letter.id for letter in DeadLetters(client, KEYS, QUEUE).find(Filter())}
        assert set(found.ids) == arrived.keys() | dead
        assert [kind for kind in (*TROUBLES, *PASSING) if kind not in found.told()] == []
        assert slack.workspace.traffic.calls["conversations.history"]
