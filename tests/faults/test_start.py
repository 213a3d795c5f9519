"""A worker whose connection is lost while it starts, at whatever call: it tries again, and then works."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.server.connection import Client
from dispatcher.stand_in import StandIn
from dispatcher.store.snapshot import Books
from tests.support.delay_proxy import DelayProxy
from tests.support.kill_round import KEYS, QUEUE
from tests.support.killable_workers import KillableWorker, KillableWorkers
from tests.support.processes import Command, environment, until
from tests.support.servers import RedisServer
from tests.support.snapshots import is_drained, watch

AT_ONCE: Final = 4
"""Workers that start at the same time."""


class Cut:
    """Loses the connection that brings the ``at``-th piece of an answer, and lets every other pass."""

    def __init__(self, at: int | None = None) -> None:
        self._at = at
        self._pieces = count(1)
        self.seen = 0

    def __call__(self, _piece: bytes) -> None:
        self.seen = next(self._pieces)
        if self.seen == self._at:
            raise ConnectionResetError("cut")


@dataclass(slots=True)
class Street:
    """A server, and proxies before it."""

    killable: KillableWorkers
    server: RedisServer
    env: dict[str, str]
    books: Books
    stack: ExitStack
    cuts: list[Cut] = field(default_factory=list)

    def path(self, cut: Cut) -> dict[str, str]:
        """The environment of a worker whose server is behind a proxy that cuts."""
        proxy = self.stack.enter_context(DelayProxy(self.server.socket))
        proxy.on_reply = cut
        return self.env | {"DISPATCHER_REDIS_URL": proxy.url}

    def start(self, cut: Cut) -> KillableWorker:
        """A worker on such a way."""
        return self.killable.start(self.path(cut))

    def has_begun(self, worker: KillableWorker) -> bool:
        """Whether it has a lease: it has taken at least once."""
        return any(owner.split(".")[1] == str(worker.pid) for owner in self.books.snapshot().leases)

    def has_ended(self, worker: KillableWorker) -> bool:
        """Whether it is known to have ended."""
        self.killable.poll()
        return worker.code is not None


@pytest.fixture
def client(own_server: RedisServer) -> Iterator[Client]:
    with connect(own_server.url) as opened:
        yield opened


@pytest.fixture
def street(killable: KillableWorkers, own_server: RedisServer, client: Client, tmp_path: Path) -> Iterator[Street]:
    limits = tmp_path / "limits.yaml"
    limits.write_text("global: {limits: [1000/30m]}\n", encoding="utf-8")
    with ExitStack() as stack:
        slack = stack.enter_context(StandIn())
        env = environment(own_server.url, slack.base_url, slack.token, limits)
        yield Street(killable, own_server, env, Books(client, KEYS, QUEUE), stack)
        killable.clear()


def answers_of_a_start(street: Street) -> int:
    """In how many pieces the answers come that a worker waits for until it has begun."""
    plain = Cut()
    worker = street.start(plain)
    until(lambda: street.has_begun(worker), "the first take")
    worker.signal(signal.SIGTERM)
    until(lambda: street.has_ended(worker), "its end")
    return plain.seen


@pytest.mark.parametrize(
    "every", [pytest.param(8, id="every eighth"), pytest.param(1, id="each", marks=pytest.mark.slow)]
)
def test_a_worker_starts_whichever_answer_of_the_server_got_lost(street: Street, client: Client, every: int) -> None:
    pieces = range(every, answers_of_a_start(street) + 1, every)
    for first in range(0, len(pieces), AT_ONCE):
        cuts = [Cut(at) for at in pieces[first : first + AT_ONCE]]
        workers = [street.start(cut) for cut in cuts]
        for cut, worker in zip(cuts, workers, strict=True):
            until(lambda: street.has_ended(worker) or street.has_begun(worker), "its start")  # noqa: B023 - called at once
            assert worker.code is None, (cut.seen, worker.said())
            assert len(worker.lines("worker.started")) == 1
    Producer(client).send_many({"category": "news", "text": str(n)} for n in range(20))
    watch(street.books, is_drained, 20)
    street.killable.stop()
    assert {each.code for each in street.killable.started} == {0}


def test_a_server_that_goes_away_while_a_worker_starts_is_waited_for(street: Street) -> None:
    def lose(piece: bytes) -> None:
        if b"redis_version" in piece and not lost:
            lost.append(piece)
            street.server.kill()
            raise ConnectionResetError("killed")

    lost: list[bytes] = []
    proxy = street.stack.enter_context(DelayProxy(street.server.socket))
    proxy.on_reply = lose
    worker = street.killable.start(street.env | {"DISPATCHER_REDIS_URL": proxy.url})
    until(lambda: worker.lines("redis.lost"), "redis.lost")
    street.server.start()
    until(lambda: worker.lines("worker.started"), "worker.started")
    assert len(worker.lines("redis.lost")) == 1


@pytest.mark.parametrize("at", [9, *(pytest.param(at, marks=pytest.mark.slow) for at in range(1, 26) if at != 9)])
def test_several_processes_start_whichever_answer_got_lost(street: Street, tmp_path: Path, at: int) -> None:
    cut = Cut(at)
    with Command("worker", "--processes", "2", env=street.path(cut), cwd=tmp_path) as parent:
        until(lambda: cut.seen >= at, "the answer that gets lost")
        until(lambda: len(parent.named("worker.started")) == 2, "two workers")
        parent.signal(signal.SIGTERM)
        assert parent.wait() == 0
        assert parent.named("worker.crashed") == []
