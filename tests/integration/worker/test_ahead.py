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
from dispatcher.errors import StaleLimits
from dispatcher.settings import Settings
from dispatcher.store.reader import Reader
from dispatcher.store.versions import Unless, Versions
from tests.support.processes import until
from tests.support.servers import Database, RedisServer
from tests.support.stand import LIMITS, Stand, send

LANE: Final = "rq:queue:notifications"


@pytest.fixture
def stand(redis: Database, tmp_path: Path) -> Iterator[Stand]:
    built = Stand(redis, 1, tmp_path)
    yield built
    built.worker.sign_off()


def test_after_an_empty_batch_the_one_behind_it_comes_without_a_sleep(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two that were asked for ahead brought a repeat of an id alone, and found the lanes empty then."""
    monkeypatch.setattr(Reader, "has_result", lambda _: False)  # the second is still on its way
    send(stand, "a")
    stand.client.rpush(LANE, "a")
    taken = stand.outbox.take(1, 4)
    assert (stand.ids_of(taken), taken.more) == (["a"], True)
    stand.outbox.prefetch(taken, 1, 4)
    until(lambda: not stand.client.exists(LANE), "the repeat to be taken")
    send(stand, "b")
    stand.outbox.prefetch(taken, 1, 4)
    assert stand.outbox.ahead == 2
    assert stand.next() == ["b"]
    assert stand.bell.sleeps == 0


def test_after_a_batch_that_was_dropped_by_the_prefilter_the_next_comes_without_a_sleep(stand: Stand) -> None:
    send(stand, "a1", "a2", "a3", category="errors")
    assert [stand.next() for _ in range(3)] == [["a1"], ["a2"], ["a3"]]
    send(stand, *(f"e{n}" for n in range(12)), category="errors")
    send(stand, "b", "c")
    assert (stand.next(), stand.next()) == (["b"], ["c"])
    assert stand.bell.sleeps == 0
    dropped = {name for name, outcome in stand.told() if outcome == "dropped"}
    assert dropped == {"a2", "a3", *(f"e{n}" for n in range(12))}


def test_what_a_batch_that_was_dropped_says_of_the_lanes_is_no_reason_to_sleep(stand: Stand) -> None:
    """It was taken a while ago: what came meanwhile, or was not asked for ahead, would wait."""
    send(stand, "a1", "a2", category="errors")
    assert [stand.next() for _ in range(2)] == [["a1"], ["a2"]]
    send(stand, "b")
    send(stand, "e1", "e2", category="errors")
    taken = stand.take()
    assert stand.ids_of(taken) == ["b"]
    stand.outbox.prefetch(taken, 1, 0)
    until(lambda: not stand.client.exists(LANE), "the batch ahead to be taken")
    send(stand, "c")
    assert stand.next() == ["c"]
    assert stand.bell.sleeps == 0


def test_with_nothing_on_its_way_it_sleeps_until_something_comes(stand: Stand) -> None:
    send(stand, "a")
    assert stand.next() == ["a"]
    assert stand.outbox.ahead == 0
    stand.bell.meanwhile = lambda: send(stand, "b") if stand.bell.sleeps == 1 else None
    assert stand.next() == ["b"]
    assert stand.bell.sleeps >= 1


@pytest.mark.parametrize("server_is_away", [False, True])
def test_who_stops_tells_of_what_a_batch_on_its_way_has_dropped(
    own_server: RedisServer, tmp_path: Path, *, server_is_away: bool
) -> None:
    client: Database = own_server.client()
    stand = Stand(client, 2, tmp_path)
    send(stand, "a1", "a2", category="errors")
    assert stand.next() == ["a1", "a2"]
    until(lambda: stand.bell.rings, "the end of the post")  # a stop would wait for it
    send(stand, "b1", "b2")
    send(stand, "a3", "a4", category="errors")
    taken = stand.take()
    assert stand.ids_of(taken) == ["b1", "b2"]
    stand.outbox.prefetch(taken, 2, 4)
    until(lambda: not client.exists(LANE), "the batch ahead to be taken")
    stand.worker.request_stop(signal.SIGTERM, None)
    if server_is_away:
        own_server.kill()
    stand.worker.sign_off()
    assert [each for each in stand.told() if each[0] in {"a3", "a4"}] == [("a3", "dropped"), ("a4", "dropped")]
    client.close()


def test_a_worker_starts_nothing_by_limits_that_are_in_force_no_longer(stand: Stand) -> None:
    versions = Versions(stand.client, keys_of(Settings.isolated())[0])
    publish(versions, stand.file(LIMITS.replace("1/1h", "2/1h")), "bob", Unless.KNOWN, lambda *_, **__: None)
    with pytest.raises(StaleLimits):
        stand.outbox.start([], 1)
    with pytest.raises(StaleLimits):
        stand.outbox.line_up([])
    send(stand, "a")
    assert stand.next() == ["a"]
    assert stand.outbox.start([], 1) == stand.outbox.line_up([]) == []
