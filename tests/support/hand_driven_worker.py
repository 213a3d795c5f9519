"""A real worker whose loop a test runs by hand, on a real server, with a sink that answers what it is told to."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from dispatcher.app.active_limits import Following
from dispatcher.app.limits import LoadedLimits, publish
from dispatcher.app.servers import keys_of
from dispatcher.core.event import Event
from dispatcher.core.pipeline import POST_S
from dispatcher.core.states import GRACE_US, boottime_s
from dispatcher.core.units import US
from dispatcher.logs.event_log import build_event_log
from dispatcher.producer.blocking import Producer
from dispatcher.server.connection import Client
from dispatcher.settings.environment import Settings
from dispatcher.settings.limits_file import read_limits
from dispatcher.store.admission import Admission, Prefilter
from dispatcher.store.dead_letters import DeadLetters
from dispatcher.store.intake import claim_namespace
from dispatcher.store.leases import Outbox, Taken
from dispatcher.store.removals import Removals
from dispatcher.store.rq_recovery import Sweep
from dispatcher.store.snapshot import Books
from dispatcher.store.versions import Unless, Versions
from dispatcher.worker.housekeeping import Housekeeping
from dispatcher.worker.rq_presence import RqPresence
from dispatcher.worker.worker import Doorbell, Worker
from tests.support.doubles import Desk
from tests.support.servers import Database
from tests.support.stage import handed_out

LIMITS: Final = """\
global: {limits: []}
channels: {default: {pace: none}}
defaults: {limits: []}
categories: {errors: {limits: [1/1h]}}
"""


LONGEST_SLEEP_S: Final = 12.0
"""Longer than any wait of these tests: a post ends by its deadline, which is 5 s."""


class NotedDoorbell(Doorbell):
    """Counts how often it rang and how often its worker went to sleep, and lets something happen then.

    A worker that sleeps in vain fails its test.
    """

    sleeps = 0
    rings = 0
    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def sleep(self, seconds: float, *, lanes: bool = True, wake: bool = True, server: bool = True) -> bool:
        self.sleeps += 1
        self.meanwhile()
        end = time.monotonic() + LONGEST_SLEEP_S
        rang = super().sleep(min(seconds, LONGEST_SLEEP_S), lanes=lanes, wake=wake, server=server)
        assert rang or time.monotonic() < end, "the worker waits for something that does not come"
        return rang

    def ring(self) -> None:
        self.rings += 1
        super().ring()


@dataclass(slots=True)
class HandDrivenWorker:
    """A real worker whose loop the test runs by hand."""

    POST_DEADLINE_S: ClassVar[float] = 5.0
    LEASE_S: ClassVar[float] = 60.0

    client: Database
    batch: int
    tmp_path: Path
    clock: Callable[[], float] = boottime_s
    limits: str = LIMITS
    server_clock: Callable[[], int] | None = None
    """Gives the scripts their ``now``, in microseconds, in place of the server's clock."""
    desk: Desk = field(default_factory=Desk)
    said: io.StringIO = field(default_factory=io.StringIO)
    worker: Worker = field(init=False)
    outbox: Outbox = field(init=False)
    bell: NotedDoorbell = field(init=False)
    read: Callable[[], LoadedLimits] = field(init=False)
    """What reads the limits file when the worker is told to."""

    def __post_init__(self) -> None:
        settings = Settings.isolated()
        keys, queue = keys_of(settings)
        events = build_event_log(stream=self.said, style="json")
        file = self.file(self.limits)
        prefilter = Prefilter()
        client: Client = self.client
        remember_us = round(settings.dedup_window.total_seconds() * US)
        self.outbox = Outbox(
            client,
            keys,
            queue,
            owner="ann",
            lease_us=round(self.LEASE_S * US),
            remember_us=remember_us,
            prefilter=prefilter,
            clock=self.server_clock,
        )
        self.read = lambda: file
        self.bell = NotedDoorbell(client, queue.lanes, keys.wake, self.outbox.wake_another)
        versions = Versions(client, keys)
        following = Following(
            versions=versions,
            begun=publish(versions, file, "ann", Unless.ANY, events.say),
            read=lambda: self.read(),  # noqa: PLW0108 - a test may set another one
            gate=Admission(
                client,
                keys,
                self.outbox.leased_key,
                remember_us=remember_us,
                prefilter=prefilter,
                clock=self.server_clock,
            ),
            outbox=self.outbox,
            sink=self.desk,
            events=events,
            by="ann",
            grace_us=GRACE_US,
            post_s=POST_S,
            claim=partial(claim_namespace, client, keys, queue),
        )
        self.worker = Worker(
            name="ann",
            client=client,
            presence=RqPresence("ann", client, queue),
            limits=following,
            outbox=self.outbox,
            books=Books(client, keys, queue),
            housekeeping=Housekeeping(
                Sweep(client, keys, queue, owner="ann"),
                Removals(client, keys),
                DeadLetters(client, keys, queue),
                events,
            ),
            doorbell=self.bell,
            log=events,
            batch=self.batch,
            senders=4,
            post_deadline_s=self.POST_DEADLINE_S,
            lease_s=self.LEASE_S,
            clock=self.clock,
        )

    def file(self, text: str) -> LoadedLimits:
        """A limits file that says this."""
        limits = read_limits(text, "limits.yaml")
        return LoadedLimits(limits.policy, self.tmp_path / "limits.yaml", (), limits.content)

    def take(self) -> Taken:
        """The next batch."""
        found = self.worker.next_batch()
        assert found is not None, "the worker was told to stop"
        return found

    def next(self) -> list[str]:
        """The ids of the next batch, which is dispatched."""
        taken = self.take()
        self.worker.dispatch(taken)
        return handed_out(taken)

    def told(self) -> list[tuple[str, str]]:
        """Of which events the log says what became of them, and what that is."""
        lines = [json.loads(line) for line in self.said.getvalue().splitlines()]
        return [(line["event_id"], line["outcome"]) for line in lines if line["event"] == "event.settled"]


def send(driven: HandDrivenWorker, *ids: str, category: str = "news") -> None:
    events: Sequence[Event] = [Event(category, "x", id=id_) for id_ in ids]
    Producer(driven.client).send_many(events)
