"""What a worker that is told to stop does with a post that is still in flight when its time is over."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dispatcher.app.building import build_outbox
from dispatcher.app.servers import keys_of
from dispatcher.core.posts import Message, PostResult, Receipt
from dispatcher.settings.environment import Settings
from dispatcher.store.snapshot import Books
from dispatcher.worker.worker import STOP_GRACE_S
from tests.support.hand_driven_worker import HandDrivenWorker, send
from tests.support.processes import until
from tests.support.servers import Database
from tests.support.stage import handed_out


@dataclass(slots=True)
class Seconds:
    """A clock that only a test moves."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_post_that_outlasts_its_workers_stop_is_reconciled(redis: Database, tmp_path: Path) -> None:
    settings, clock, answer = Settings.isolated(), Seconds(), threading.Event()
    keys, queue = keys_of(settings)

    def slow(message: Message) -> PostResult:
        assert answer.wait(20)
        return Receipt(message.channel, "1.1")

    driven = HandDrivenWorker(redis, 10, tmp_path, clock)
    driven.desk.reply = slow
    send(driven, "e1", "e2")
    batch, rest = driven.outbox.take(1, 1), driven.outbox.take(1, 1)
    assert (handed_out(batch), handed_out(rest)) == (["e1"], ["e2"])
    driven.worker.request_stop(signal.SIGTERM, None)
    clock.now += driven.POST_DEADLINE_S + STOP_GRACE_S - 3.0  # a server that is slow: the post begins late
    driven.worker.dispatch(batch)
    until(lambda: driven.desk.posts, "the post")
    clock.now += 3.0
    driven.worker.sign_off()
    answer.set()
    snapshot = Books(redis, keys, queue).snapshot()
    assert (snapshot.leased, snapshot.requeued) == (1, 1), "the post is still leased; what was not begun is given back"
    bob = build_outbox(settings, redis, "bob")
    assert [each.id for each in bob.take(10, 10).batch] == ["e2"]
    assert timers(redis, keys.timers) == ["e1"], "it waits to be reconciled"


def timers(redis: Database, key: str) -> list[str]:
    found: Any = redis.zrange(key, 0, -1)
    return [each.decode() for each in found]
