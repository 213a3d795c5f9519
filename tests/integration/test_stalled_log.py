"""A reader of the log that stalls (Ctrl-S, a pager, a collector that hangs) stops nothing; it learns what it missed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.server.keys import Keys
from dispatcher.stand_in import StandIn
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books
from dispatcher.worker.worker import STOP_GRACE_S
from tests.support.piped import Piped
from tests.support.processes import PATIENCE_S, environment, until

LIMITS: Final = """\
global: {limits: []}
channels: {default: {pace: none}}
defaults: {limits: [5/30m]}
"""
SLACK_TIMEOUT_S: Final = 1.0
STOP_S: Final = SLACK_TIMEOUT_S + STOP_GRACE_S
STORM: Final = 16_000
"""Events whose lines are more than is kept of them."""


Start = Callable[..., Piped]


@pytest.fixture
def start(redis_url: str, slack: StandIn, tmp_path: Path) -> Iterator[Start]:
    limits = tmp_path / "limits.yaml"
    limits.write_text(LIMITS, encoding="utf-8")
    env = environment(redis_url, slack.base_url, slack.token, limits, DISPATCHER_SLACK_TIMEOUT=str(SLACK_TIMEOUT_S))
    started: list[Piped] = []

    def begin(*arguments: str) -> Piped:
        started.append(Piped(*arguments, env=env, cwd=tmp_path))
        return started[-1]

    yield begin
    for each in started:
        each.close()


def send(redis_url: str, count: int) -> None:
    with connect(redis_url) as client:
        Producer(client).send_many({"category": "news", "text": "x", "id": f"e{n}"} for n in range(count))


def settled(redis_url: str) -> int:
    with connect(redis_url) as client:
        snapshot = Books(client, Keys("dispatcher"), QueueKeys("notifications")).snapshot()
    assert snapshot.imbalances() == []
    return snapshot.totals.get("dropped", 0) + snapshot.totals.get("sent", 0)


@pytest.mark.parametrize("arguments", [("worker",), ("worker", "--processes", "2"), ("up", "--processes", "2")])
def test_work_goes_on_and_a_stop_is_in_time_while_nobody_reads(
    start: Start, redis_url: str, slack: StandIn, arguments: tuple[str, ...]
) -> None:
    process = start(*arguments)
    send(redis_url, 500)
    until(lambda: settled(redis_url) == 500, "every event settled")
    assert len(slack.ledger) == 5
    assert process.stop(STOP_S) == 0


def test_a_reader_that_goes_on_learns_how_many_lines_were_left_out(start: Start, redis_url: str) -> None:
    process = start("worker")
    send(redis_url, STORM)
    until(lambda: settled(redis_url) == STORM, "every event settled", 3 * PATIENCE_S)
    process.read()
    (gap,) = until(lambda: process.lines("log.lines_left_out"), "the line about those left out")
    told = [line["event_id"] for line in process.lines("event.settled")]
    assert gap["count"] > 0
    assert (gap["level"], gap["pid"]) == ("warning", process.process.pid)
    assert len(set(told)) == len(told) == STORM - gap["count"]
    assert process.stop(STOP_S) == 0
    until(lambda: process.lines("worker.stopped"), "the last line")


def test_the_last_lines_of_each_process_wait_for_a_reader_that_goes_on(start: Start, redis_url: str) -> None:
    process = start("worker", "--processes", "2")
    send(redis_url, 500)
    until(lambda: settled(redis_url) == 500, "every event settled")
    with connect(redis_url) as client:
        queue = QueueKeys("notifications")
        until(lambda: client.scard(queue.all_workers) == 2, "both workers")
        process.signal(signal.SIGTERM)
        until(lambda: client.scard(queue.all_workers) < 2, "a worker that has signed off")
    process.read()
    assert process.process.wait(STOP_S) == 0
    until(lambda: len(process.lines("worker.stopped")) == 2, "the last line of each")
