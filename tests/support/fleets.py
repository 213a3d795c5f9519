"""Two workers whose server something happens to, and what is expected of them: back at work soon, told once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from dispatcher.producer.blocking import Producer
from dispatcher.server.connection import Client
from dispatcher.stand_in import StandIn
from dispatcher.store.snapshot import Books
from tests.support.kill_round import KEYS, QUEUE, Round, check, limits, mixed
from tests.support.killable_workers import KillableWorker, KillableWorkers
from tests.support.processes import environment, until
from tests.support.snapshots import is_settled, watch

BACK_S: Final = 5.0
"""Within this time after the server's return everybody is at work again."""

WORKERS: Final = 2
BUSY: Final = 300


@dataclass(frozen=True, slots=True)
class Fleet:
    """Two workers, what they were given, and where it is looked at."""

    round: Round
    books: Books
    workers: list[KillableWorker]

    def work(self, load: str) -> None:
        """Hand them what lasts a while and let them begin, or some events that they settle and then idle."""
        self.send(BUSY if load == "busy" else 20)
        if load == "busy":
            watch(self.books, lambda snapshot: snapshot.received > BUSY // 10, 20)
        else:
            watch(self.books, is_settled, 20)

    def send(self, count: int) -> list[str]:
        """Send so many more events."""
        sent = Producer(self.round.client).send_many(mixed(len(self.round.ids), count))
        self.round.ids += sent
        return sent

    def come_back(self) -> None:
        """Everything sent so far, and some more sent now, is settled; something within ``BACK_S`` from now on.

        What stands in a paced channel's line goes one by one, so that all of it takes as long as the machine needs.
        """
        returned = time.time()
        self.send(10)
        watch(self.books, is_settled, 120)
        times = [_time(line) for worker in self.workers for line in worker.lines("event.settled")]
        assert min(time for time in times if time > returned) - returned < BACK_S

    def await_told(self, event: str) -> None:
        """Return when each worker has said it."""
        for worker in self.workers:
            until(lambda: worker.lines(event) or self._ended(), event)  # noqa: B023 - called at once
        assert self._ended() == []

    def _ended(self) -> list[tuple[int | None, str]]:
        """Those that have ended, with the last that they said."""
        self.round.killable.poll()
        return [(worker.code, worker.said()[-2000:]) for worker in self.workers if worker.code is not None]

    def check_told(self, *, times: int | None, returned: float) -> None:
        """Each worker said ``times`` times (None: once at most) that the server was lost, and that it was found.

        One may have settled everything while the other has yet to try again.
        """
        for worker in self.workers:
            until(partial(_is_back, worker), "redis.found")
            lost, found = worker.lines("redis.lost"), worker.lines("redis.found")
            assert len(lost) <= 1 if times is None else len(lost) == times, worker.said()
            assert all(_time(line) - returned < BACK_S for line in found)

    def check_everything(self) -> None:
        """Every id has its outcome, once; see ``kill_round.check``."""
        self.round.killable.stop()
        for worker in self.workers:
            assert worker.code == 0, worker.said()[-4_000:]
        check(self.round, self.books.snapshot())


def _is_back(worker: KillableWorker) -> bool:
    return len(worker.lines("redis.lost")) == len(worker.lines("redis.found"))


def _time(line: dict[str, str]) -> float:
    return datetime.fromisoformat(line["time"]).timestamp()


@contextmanager
def fleet_of(killable: KillableWorkers, client: Client, url: str, cwd: Path) -> Iterator[Fleet]:
    """Two workers of the server at ``url``; the test itself goes there by ``client``."""
    path = cwd / "limits.yaml"
    path.write_text(limits(BUSY), encoding="utf-8")
    with StandIn() as slack:
        env = environment(
            url,
            slack.base_url,
            slack.token,
            path,
            DISPATCHER_LEASE="1.5",
            DISPATCHER_SLACK_TIMEOUT="1",
            DISPATCHER_BATCH="8",
        )
        workers = [killable.start(env) for _ in range(WORKERS)]
        found = Fleet(Round(killable, client, slack, env), Books(client, KEYS, QUEUE), workers)
        try:
            found.await_told("worker.started")
            watch(
                found.books, lambda snapshot: len(snapshot.leases) == WORKERS, 20
            )  # from then on it copes with a lost server
            yield found
        finally:
            killable.clear()
