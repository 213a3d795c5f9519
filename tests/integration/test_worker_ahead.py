"""The worker's loop, step by step: while a batch that it asked for ahead is on its way it does not sleep.

And what it asks by is the version of the limits that it follows.
"""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from dispatcher.app.building import build_gate, build_outbox
from dispatcher.app.following import Following
from dispatcher.app.limits import LimitsFile, publish
from dispatcher.app.servers import keys_of
from dispatcher.connection import Client
from dispatcher.errors import StaleLimits
from dispatcher.event import Event
from dispatcher.logs import build_event_log
from dispatcher.producer import Producer
from dispatcher.settings import Settings, read_limits
from dispatcher.store.dead_letters import DeadLetters
from dispatcher.store.outbox import Outbox
from dispatcher.store.reader import Reader
from dispatcher.store.snapshot import Books
from dispatcher.store.sweep import Sweep
from dispatcher.store.taken import Taken
from dispatcher.store.versions import Unless, Versions
from dispatcher.worker.door import Door
from dispatcher.worker.doorbell import Doorbell
from dispatcher.worker.loop import Worker
from dispatcher.worker.upkeep import Upkeep
from tests.support.doubles import Desk
from tests.support.processes import until
from tests.support.servers import Database, RedisServer

LANE: Final = "rq:queue:notifications"
LIMITS: Final = """\
global: {limits: []}
channels: {default: {pace: none}}
defaults: {limits: []}
categories: {errors: {limits: [1/1h]}}
"""


class NotedDoorbell(Doorbell):
    """Counts how often it rang and how often its worker went to sleep, and lets something happen then."""

    sleeps = 0
    rings = 0
    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def sleep(self, seconds: float, *, lanes: bool = True, wake: bool = True, server: bool = True) -> None:
        self.sleeps += 1
        self.meanwhile()
        super().sleep(seconds, lanes=lanes, wake=wake, server=server)

    def ring(self) -> None:
        self.rings += 1
        super().ring()


@dataclass(slots=True)
class Stand:
    """A real worker whose loop the test runs by hand."""

    client: Database
    batch: int
    tmp_path: Path
    desk: Desk = field(default_factory=Desk)
    said: io.StringIO = field(default_factory=io.StringIO)
    worker: Worker = field(init=False)
    outbox: Outbox = field(init=False)
    bell: NotedDoorbell = field(init=False)

    def __post_init__(self) -> None:
        settings = Settings.isolated()
        keys, queue = keys_of(settings)
        events = build_event_log(stream=self.said, style="json")
        file = self.file(LIMITS)
        door = Door(settings.namespace)
        client: Client = self.client
        self.outbox = build_outbox(settings, client, "ann", door)
        self.bell = NotedDoorbell(client, queue.lanes, keys.wake)
        versions = Versions(client, keys)
        following = Following(
            versions=versions,
            begun=publish(versions, file, "ann", Unless.ANY, events.say),
            read=lambda: file,
            gate=build_gate(settings, client, self.outbox, door),
            outbox=self.outbox,
            sink=self.desk,
            events=events,
            by="ann",
        )
        self.worker = Worker(
            name="ann",
            client=client,
            queue=queue,
            limits=following,
            outbox=self.outbox,
            books=Books(client, keys, queue),
            upkeep=Upkeep(Sweep(client, keys, queue, owner="ann"), DeadLetters(client, keys, queue)),
            doorbell=self.bell,
            log=events,
            batch=self.batch,
            senders=4,
            post_deadline_s=5.0,
            lease_s=60.0,
        )
        self.worker.register_birth()

    def file(self, text: str) -> LimitsFile:
        """A limits file that says this."""
        limits = read_limits(text, "limits.yaml")
        return LimitsFile(limits.policy, self.tmp_path / "limits.yaml", (), limits.content)

    def take(self) -> Taken:
        """The next batch."""
        found = self.worker.dequeue_job_and_maintain_ttl(60)
        assert found is not None, self.worker.failure
        return found[0]

    def next(self) -> list[str]:
        """The ids of the next batch, which is dispatched."""
        taken = self.take()
        self.worker.execute_job(taken, None)
        return self.ids_of(taken)

    def told(self) -> list[tuple[str, str]]:
        """Of which events the log says what became of them, and what that is."""
        lines = [json.loads(line) for line in self.said.getvalue().splitlines()]
        return [(line["event_id"], line["outcome"]) for line in lines if line["event"] == "event.settled"]

    @staticmethod
    def ids_of(taken: Taken) -> list[str]:
        return [each.id for each in taken.batch]


@pytest.fixture
def stand(redis: Database, tmp_path: Path) -> Iterator[Stand]:
    built = Stand(redis, 1, tmp_path)
    yield built
    built.worker.teardown()


def send(stand: Stand, *ids: str, category: str = "news") -> None:
    events: Sequence[Event] = [Event(category, "x", id=id_) for id_ in ids]
    Producer(stand.client).send_many(events)


def test_after_an_empty_batch_the_one_behind_it_comes_without_a_sleep(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two that were asked for ahead brought a repeat of an id alone, and found the lanes empty then."""
    monkeypatch.setattr(Reader, "has_result", lambda _: False)  # the second is still on its way
    send(stand, "a")
    stand.client.rpush(LANE, "a")
    taken = stand.outbox.take(1, 4)
    assert (stand.ids_of(taken), taken.more) == (["a"], True)
    stand.outbox.take_ahead(taken, 1, 4)
    until(lambda: not stand.client.exists(LANE), "the repeat to be taken")
    send(stand, "b")
    stand.outbox.take_ahead(taken, 1, 4)
    assert stand.outbox.ahead == 2
    assert stand.next() == ["b"]
    assert stand.bell.sleeps == 0


def test_after_a_batch_that_was_dropped_at_the_door_the_next_comes_without_a_sleep(stand: Stand) -> None:
    send(stand, "a1", "a2", "a3", category="errors")
    assert [stand.next() for _ in range(3)] == [["a1"], ["a2"], ["a3"]]
    send(stand, *(f"e{n}" for n in range(12)), category="errors")
    send(stand, "b", "c")
    assert (stand.next(), stand.next()) == (["b"], ["c"])
    assert stand.bell.sleeps == 0
    assert stand.outbox.turned_away == []


def test_what_a_batch_that_was_dropped_says_of_the_lanes_is_no_reason_to_sleep(stand: Stand) -> None:
    """It was taken a while ago: what came meanwhile, or was not asked for ahead, would wait."""
    send(stand, "a1", "a2", category="errors")
    assert [stand.next() for _ in range(2)] == [["a1"], ["a2"]]
    send(stand, "b")
    send(stand, "e1", "e2", category="errors")
    taken = stand.take()
    assert stand.ids_of(taken) == ["b"]
    stand.outbox.take_ahead(taken, 1, 0)
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
    stand.outbox.take_ahead(taken, 2, 4)
    until(lambda: not client.exists(LANE), "the batch ahead to be taken")
    stand.worker.request_stop(signal.SIGTERM, None)
    if server_is_away:
        own_server.kill()
    stand.worker.teardown()
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
