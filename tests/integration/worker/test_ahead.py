"""The worker's loop, step by step: while a batch that it asked for ahead is on its way it does not sleep.

And what it asks by is the version of the limits that it follows.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from dispatcher.app.limits import publish
from dispatcher.app.servers import keys_of
from dispatcher.core.states import boottime_s
from dispatcher.errors import StaleLimits
from dispatcher.settings.environment import Settings
from dispatcher.store.leases import Outbox, Reader, Taken
from dispatcher.store.versions import Unless, Versions
from tests.support.hand_driven_worker import LIMITS, HandDrivenWorker, send
from tests.support.processes import until
from tests.support.servers import Database, RedisServer
from tests.support.stage import handed_out

LANE: Final = "rq:queue:notifications"
EVENTS: Final = "{dispatcher}:events"
WAKE: Final = "{dispatcher}:wake"


@pytest.fixture
def driven(redis: Database, tmp_path: Path) -> Iterator[HandDrivenWorker]:
    built = HandDrivenWorker(redis, 1, tmp_path)
    yield built
    built.worker.sign_off()


def test_a_worker_that_has_started_all_that_there_was_sleeps_before_it_takes_again(
    driven: HandDrivenWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(driven, "a")
    taken = driven.take()
    driven.worker.dispatch(taken)
    takes: list[int] = []

    def noted(new: int, due: int) -> Taken:
        takes.append(driven.bell.sleeps)
        return Outbox.take(driven.outbox, new, due)

    monkeypatch.setattr(driven.outbox, "take", noted)
    driven.bell.meanwhile = lambda: send(driven, "b") if driven.bell.sleeps == 1 else None
    following = driven.worker.next_batch(taken)
    assert following is not None
    assert handed_out(following) == ["b"]
    assert takes[0] > 0


@pytest.mark.parametrize("category", ["errors", "news"], ids=["nothing to start", "a batch ahead"])
def test_a_worker_that_has_more_to_decide_takes_again_before_it_sleeps(driven: HandDrivenWorker, category: str) -> None:
    send(driven, "first", "second", "third", category=category)
    driven.worker.dispatch(driven.take())  # of errors one may be posted
    taken = driven.take()
    driven.outbox.prefetch(taken, 1, 4)
    driven.worker.dispatch(taken)
    assert not driven.outbox.is_decided
    following = driven.worker.next_batch(taken)
    assert following is not None
    assert driven.bell.sleeps == 0


def test_after_an_empty_batch_the_one_behind_it_comes_without_a_sleep(
    driven: HandDrivenWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two that were asked for ahead brought a repeat of an id alone, and found the lanes empty then."""
    monkeypatch.setattr(Reader, "has_result", lambda _: False)  # the second is still on its way
    send(driven, "a")
    driven.client.rpush(LANE, "a")
    taken = driven.outbox.take(1, 4)
    assert (handed_out(taken), taken.more) == (["a"], True)
    driven.outbox.prefetch(taken, 1, 4)
    until(lambda: not driven.client.exists(LANE), "the repeat to be taken")
    send(driven, "b")
    driven.outbox.prefetch(taken, 1, 4)
    assert driven.outbox.ahead == 2
    assert driven.next() == ["b"]
    assert driven.bell.sleeps == 0


def test_a_repeat_alone_in_the_last_batch_that_was_prefetched_is_told(driven: HandDrivenWorker) -> None:
    send(driven, "a")
    driven.client.rpush(LANE, "a")
    taken = driven.outbox.take(1, 4)
    driven.outbox.prefetch(taken, 1, 4)
    until(lambda: not driven.client.exists(LANE), "the repeat to be taken")
    send(driven, "b")
    taken = driven.outbox.take(1, 4)
    assert (handed_out(taken), taken.duplicates) == (["b"], ["a"])


def test_after_a_batch_that_was_dropped_by_the_prefilter_the_next_comes_without_a_sleep(
    driven: HandDrivenWorker,
) -> None:
    send(driven, "a1", "a2", category="errors")
    assert [driven.next() for _ in range(2)] == [["a1"], ["a2"]]
    send(driven, *(f"e{n}" for n in range(12)), category="errors")
    send(driven, "b", "c")
    assert (driven.next(), driven.next()) == (["b"], ["c"])
    assert driven.bell.sleeps == 0
    dropped = {name for name, outcome in driven.told() if outcome == "dropped"}
    assert dropped == {"a2", *(f"e{n}" for n in range(12))}


def test_a_worker_does_not_sleep_after_a_prefetched_batch_that_was_dropped(driven: HandDrivenWorker) -> None:
    """It was taken a while ago: what came meanwhile, or was not asked for ahead, would wait."""
    send(driven, "a1", "a2", category="errors")
    assert [driven.next() for _ in range(2)] == [["a1"], ["a2"]]
    send(driven, "b")
    send(driven, "e1", "e2", category="errors")
    taken = driven.take()
    assert handed_out(taken) == ["b"]
    driven.outbox.prefetch(taken, 1, 0)
    until(lambda: not driven.client.exists(LANE), "the batch ahead to be taken")
    send(driven, "c")
    assert driven.next() == ["c"]
    assert driven.bell.sleeps == 0


def test_with_nothing_on_its_way_it_sleeps_until_something_comes(driven: HandDrivenWorker) -> None:
    send(driven, "a")
    assert driven.next() == ["a"]
    assert driven.outbox.ahead == 0
    driven.bell.meanwhile = lambda: send(driven, "b") if driven.bell.sleeps == 1 else None
    assert driven.next() == ["b"]
    assert driven.bell.sleeps >= 1


def test_after_a_post_an_idle_worker_settles_and_takes_nothing(driven: HandDrivenWorker) -> None:
    def calls() -> int:
        return int(driven.client.info("commandstats")["cmdstat_evalsha"]["calls"])

    def settled() -> None:
        if not driven.client.exists(EVENTS) and not counted:
            counted.append(calls())
            send(driven, "b")

    counted: list[int] = []
    send(driven, "warm")
    assert driven.next() == ["warm"]
    until(lambda: driven.bell.rings, "the end of the post")
    send(driven, "a")
    driven.client.delete(WAKE)  # new limits have left a token
    before = calls()
    driven.bell.meanwhile = settled
    assert driven.next() == ["a"]
    assert driven.next() == ["b"]
    (after,) = counted
    assert after - before == len(["settle", "take", "pace", "take", "settle"])


def test_a_heartbeat_while_a_worker_sleeps_takes_nothing(redis: Database, tmp_path: Path) -> None:
    def next_sleep() -> None:
        counted.append(int(redis.info("commandstats")["cmdstat_evalsha"]["calls"]))
        if len(counted) == 1:
            instants.append(instants[-1] + HandDrivenWorker.LEASE_S / 3)
            driven.bell.ring()
        else:
            send(driven, "b")

    counted: list[int] = []
    instants = [boottime_s()]
    driven = HandDrivenWorker(redis, 1, tmp_path, clock=lambda: instants[-1])
    send(driven, "a")
    assert driven.next() == ["a"]
    until(lambda: driven.bell.rings, "the end of the post")
    redis.delete(WAKE)  # new limits have left a token
    driven.bell.meanwhile = next_sleep
    assert driven.next() == ["b"]
    first, second = counted
    assert second - first == len(["renew"])
    driven.worker.sign_off()


@pytest.mark.parametrize("server_is_away", [False, True])
def test_a_worker_that_stops_reports_the_events_dropped_by_a_prefetch_under_way(
    own_server: RedisServer, tmp_path: Path, *, server_is_away: bool
) -> None:
    client: Database = own_server.client()
    driven = HandDrivenWorker(client, 2, tmp_path)
    send(driven, "a1", "a2", category="errors")
    assert driven.next() == ["a1", "a2"]
    until(lambda: driven.bell.rings, "the end of the post")  # a stop would wait for it
    send(driven, "b1", "b2")
    send(driven, "a3", "a4", category="errors")
    taken = driven.take()
    assert handed_out(taken) == ["b1", "b2"]
    driven.outbox.prefetch(taken, 2, 4)
    until(lambda: not client.exists(LANE), "the batch ahead to be taken")
    driven.worker.request_stop(signal.SIGTERM, None)
    if server_is_away:
        own_server.kill()
    driven.worker.sign_off()
    assert [each for each in driven.told() if each[0] in {"a3", "a4"}] == [("a3", "dropped"), ("a4", "dropped")]
    client.close()


def test_a_worker_starts_nothing_by_limits_that_are_in_force_no_longer(driven: HandDrivenWorker) -> None:
    versions = Versions(driven.client, keys_of(Settings.isolated())[0])
    publish(versions, driven.file(LIMITS.replace("1/1h", "2/1h")), "bob", Unless.KNOWN, lambda *_, **__: None)
    with pytest.raises(StaleLimits):
        driven.outbox.start([], 1)
    with pytest.raises(StaleLimits):
        driven.outbox.line_up([])
    send(driven, "a")
    assert driven.next() == ["a"]
    assert driven.outbox.start([], 1) == driven.outbox.line_up([]) == []
