"""A reader of the log that stalls (Ctrl-S, a pager, a collector that hangs) stops nothing; it learns what it missed."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from dispatcher.connection import connect
from dispatcher.keys import Keys
from dispatcher.producer import Producer
from dispatcher.queue_keys import QueueKeys
from dispatcher.slack.stand_in import StandIn
from dispatcher.store.snapshot import Books
from dispatcher.worker.loop import STOP_GRACE_S
from tests.support.processes import PATIENCE_S, environment, until

LIMITS: Final = """\
global: {limits: []}
channels: {default: {pace: none}}
defaults: {limits: [5/30m]}
"""
SLACK_TIMEOUT_S: Final = 1.0
STORM: Final = 16_000
"""Events whose lines are more than is kept of them."""


class Stalled:
    """A process whose stderr is a pipe that holds little, and that nobody reads until ``read`` is called."""

    def __init__(self, *arguments: str, env: dict[str, str], cwd: Path) -> None:
        self._reads, writes = os.pipe()
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
        self._got = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dispatcher", *arguments],
            env={"PATH": os.environ["PATH"], "DISPATCHER_LOG_FORMAT": "json", **env},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=writes,
        )
        os.close(writes)

    def read(self) -> None:
        """From now on all that it says is read."""
        threading.Thread(target=self._read, daemon=True).start()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """What was read of its log lines of one event."""
        whole = self._got[: self._got.rfind(b"\n") + 1]
        return [line for line in map(json.loads, whole.splitlines()) if line["event"] == event]

    def stop(self) -> int:
        """Tell it to stop; its exit code, which it has within the time that a stop may take."""
        self.process.terminate()
        return self.process.wait(SLACK_TIMEOUT_S + STOP_GRACE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._reads)

    def _read(self) -> None:
        while piece := os.read(self._reads, 65_536):
            self._got += piece


Start = Callable[..., Stalled]


@pytest.fixture
def slack() -> Iterator[StandIn]:
    with StandIn() as stand_in:
        yield stand_in


@pytest.fixture
def start(redis_url: str, slack: StandIn, tmp_path: Path) -> Iterator[Start]:
    limits = tmp_path / "limits.yaml"
    limits.write_text(LIMITS, encoding="utf-8")
    env = environment(redis_url, slack.base_url, slack.token, limits, DISPATCHER_SLACK_TIMEOUT=str(SLACK_TIMEOUT_S))
    started: list[Stalled] = []

    def begin(*arguments: str) -> Stalled:
        started.append(Stalled(*arguments, env=env, cwd=tmp_path))
        return started[-1]

    yield begin
    for each in started:
        each.close()


def send(redis_url: str, count: int) -> None:
    with connect(redis_url) as client:
        Producer(client).send_many({"category": "news", "text": "x", "id": f"e{n}"} for n in range(count))


def settled(redis_url: str) -> int:
    with connect(redis_url) as client:
        look = Books(client, Keys("dispatcher"), QueueKeys("notifications")).snapshot()
    assert look.imbalances() == []
    return look.totals.get("dropped", 0) + look.totals.get("sent", 0)


@pytest.mark.parametrize("arguments", [("worker",), ("worker", "--processes", "2"), ("up", "--processes", "2")])
def test_work_goes_on_and_a_stop_is_in_time_while_nobody_reads(
    start: Start, redis_url: str, slack: StandIn, arguments: tuple[str, ...]
) -> None:
    process = start(*arguments)
    send(redis_url, 500)
    until(lambda: settled(redis_url) == 500, "every event settled")
    assert len(slack.ledger) == 5
    asked = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - asked < SLACK_TIMEOUT_S + STOP_GRACE_S


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
    assert process.stop() == 0
    until(lambda: process.lines("worker.stopped"), "the last line")
