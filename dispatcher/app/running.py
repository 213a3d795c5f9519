"""Runs a worker, or takes one event that a stock RQ worker runs."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dispatcher.app.active_limits import Following
from dispatcher.app.building import (
    build_gate,
    build_outbox,
    build_sink,
    fingerprint_of,
    grace_of,
    post_deadline_s,
    requests_of,
)
from dispatcher.app.credential import Credential
from dispatcher.app.limits import InForce, LoadedLimits, in_force, open_limits, publish
from dispatcher.app.servers import Server, keys_of, open_server, preflight
from dispatcher.core.pipeline import Capacity
from dispatcher.core.ports import Overtaken, Sink
from dispatcher.core.states import Leased, Started, Undecodable
from dispatcher.core.units import US
from dispatcher.logs.event_log import EventLog, process_log
from dispatcher.server.clients import connect
from dispatcher.server.connection import Client, translate_outages, translate_refusals
from dispatcher.settings.environment import Settings
from dispatcher.settings.loading import load_settings
from dispatcher.slack.console import ConsoleSink
from dispatcher.store.admission import Prefilter
from dispatcher.store.dead_letters import DeadLetters
from dispatcher.store.intake import claim_namespace
from dispatcher.store.leases import Outbox, Taken
from dispatcher.store.removals import Removals
from dispatcher.store.rq_recovery import Sweep
from dispatcher.store.snapshot import Books, Snapshot
from dispatcher.store.versions import Unless, Versions
from dispatcher.worker.housekeeping import Housekeeping
from dispatcher.worker.ports import FleetLimits
from dispatcher.worker.rq_presence import RqPresence
from dispatcher.worker.worker import Doorbell, Worker


def run_worker(  # noqa: PLR0913 - what a run is given, the rest by name
    settings: Settings,
    limits: LoadedLimits,
    server: Server,
    sink: Sink,
    log: EventLog,
    *,
    burst: bool,
    has_parent: bool = False,
    read_again: Callable[[], Settings] | None = None,
    heeding: Callable[[], None] = lambda: None,
    is_hung_up: Callable[[], bool] = lambda: False,
) -> None:
    """Run one worker in this process until it is stopped or, in burst, done.

    Its limits file is published where what it says never was a version; that of a supervisor's child (``has_parent``)
    only where no limits are in force. ``read_again`` reads the settings at SIGHUP, for another token; without it there
    is none. ``heeding`` is called once the worker hears signals; what it raises ends the run before anything is taken.
    ``is_hung_up`` says of a SIGHUP that it is a SIGTERM.

    Raises ``GateUnavailable`` when Redis cannot be reached for 30 s at the start, ``ConfigError`` when it refuses
    us, and what broke the loop.
    """
    name = _owner()
    events = log.of(name)
    client = connect(server.url)
    renew_sink = None if read_again is None else Credential(settings, sink, read_again, events.hide).renewed
    run = _Run(settings, client, sink, events, name, renew_sink)

    def begin() -> tuple[Snapshot, InForce]:
        snapshot = Books(client, *keys_of(settings)).snapshot()
        return snapshot, publish(run.versions, limits, name, Unless.ANY if has_parent else Unless.KNOWN, events.say)

    snapshot, begun = preflight(settings, server, events, begin)
    with translate_refusals(client), translate_outages():
        worker = run.worker(begun, is_hung_up, has_parent=has_parent)
        if isinstance(sink, ConsoleSink):
            sink.when_closed = worker.stop
        worker.heed_signals(has_parent=has_parent)
        heeding()
        where = {"server": server.shown, "limits": begun.version.file, "version": begun.version.number}
        events.say("worker.started", **where, queue=settings.queue, sink=settings.sink)
        _tell_warnings(settings, events)
        _tell_pause(snapshot, events, fingerprint_of(sink))
        worker.run(burst=burst)


def dispatch_one(job_id: str, data: str) -> str:
    """Take one event that a stock RQ worker is running through gate, pace and post, in this process.

    Returns ``duplicate``, ``posted`` (an attempt to post was made; its outcome is settled) or ``decided`` (ended or
    parked without one). Raises ``ConfigError``, ``GateUnavailable``.
    """
    settings, _ = load_settings()  # no warning is told: each job is a process, and would tell it again
    sink = build_sink(settings)
    owner = f"job.{_owner()}"
    with (
        process_log(settings.log_level, settings.log_format, settings.secrets(), text=settings.log_text) as (log, _),
        open_server(settings, start=False) as server,
    ):
        events = log.of(owner)
        client = connect(server.url)
        run = _Run(settings, client, sink, events, owner)
        run.claim()
        found = in_force(run.versions) or publish(run.versions, open_limits(settings), owner, Unless.ANY, events.say)
        outbox = build_outbox(settings, client, owner, requests=requests_of(sink))
        limits = run.follow(found, outbox)
        taken = outbox.adopt(job_id, data)
        if taken.duplicates:
            events.duplicates(taken.duplicates)
            return "duplicate"
        started = _decide(taken, limits)
        limits.dispatcher.settle([limits.dispatcher.deliver(each) for each in started])
        outbox.give_back()
        return "posted" if started else "decided"


def _decide(taken: Taken, limits: FleetLimits) -> list[Started]:
    """Decide by the limits in force, whichever these are in the end."""
    batch: Sequence[Leased | Undecodable] = taken.batch
    while True:
        try:
            return limits.dispatcher.dispatch(batch, taken.now_us, Capacity(1), taken.silences)
        except Overtaken as error:
            batch = error.undecided
            limits.follow()


@dataclass(frozen=True, slots=True)
class _Run:
    """What one owner is built of."""

    settings: Settings
    client: Client
    sink: Sink
    events: EventLog
    owner: str
    renew_sink: Callable[[], Sink | None] | None = None

    @property
    def versions(self) -> Versions:
        return Versions(self.client, keys_of(self.settings)[0])

    def claim(self) -> None:
        """See ``claim_namespace``."""
        claim_namespace(self.client, *keys_of(self.settings))

    def follow(self, begun: InForce, outbox: Outbox, prefilter: Prefilter | None = None) -> Following:
        """The core, by the limits in force from ``begun`` on."""
        return Following(
            versions=self.versions,
            begun=begun,
            read=partial(open_limits, self.settings),
            gate=build_gate(self.settings, self.client, outbox, prefilter),
            outbox=outbox,
            sink=self.sink,
            events=self.events,
            by=self.owner,
            grace_us=grace_of(self.settings),
            post_s=self.settings.slack_timeout.total_seconds(),
            claim=self.claim,
            renew_sink=self.renew_sink or (lambda: None),
        )

    def worker(self, begun: InForce, is_hung_up: Callable[[], bool], *, has_parent: bool) -> Worker:
        """A worker by the limits in force from ``begun`` on.

        ``has_parent``: the parent has built the sink, perhaps long ago; the credential may be another now.
        """
        settings, client = self.settings, self.client
        keys, queue = keys_of(settings)
        prefilter = Prefilter()
        outbox = build_outbox(settings, client, self.owner, prefilter, requests_of(self.sink))
        following = self.follow(begun, outbox, prefilter)
        if has_parent:
            following.reread_credential()
        return Worker(
            name=self.owner,
            client=client,
            presence=RqPresence(self.owner, client, queue),
            limits=following,
            outbox=outbox,
            books=Books(client, keys, queue),
            housekeeping=Housekeeping(
                Sweep(client, keys, queue, owner=self.owner),
                Removals(client, keys),
                DeadLetters(client, keys, queue),
                self.events,
            ),
            doorbell=Doorbell(client, queue.lanes, keys.wake, outbox.wake_another),
            log=self.events,
            batch=settings.batch,
            senders=settings.senders,
            post_deadline_s=post_deadline_s(settings),
            lease_s=settings.lease.total_seconds(),
            is_hung_up=is_hung_up,
        )


def _tell_warnings(settings: Settings, events: EventLog) -> None:
    if settings.by_webhook:
        detail = (
            "a webhook posts to its own channel and names no message: channel, thread and fallback are ignored, and of "
            "the paces in the limits file that of channels.default counts"
        )
        events.say("setting.warning", detail=detail)


def _tell_pause(snapshot: Snapshot, events: EventLog, fingerprint: str) -> None:
    """A pause outlives the workers: one who has just put right what caused it learns when that will show."""
    if snapshot.pause is not None:
        is_new = snapshot.pause.kind == "operator" and snapshot.pause.fingerprint != fingerprint
        next_try_s = 0.0 if is_new else round(max(0, snapshot.pause.probe_us - snapshot.now_us) / US, 1)
        events.say(
            "slack.paused",
            kind=snapshot.pause.kind,
            code=snapshot.pause.code,
            detail=snapshot.pause.detail,
            next_try_s=next_try_s,
        )


def _owner() -> str:
    return f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(3)}"
