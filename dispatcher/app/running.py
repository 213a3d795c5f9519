"""Runs a worker, or takes one event that a stock RQ worker runs."""

from __future__ import annotations

import os
import secrets
import socket
from typing import Final

from dispatcher.app.building import (
    LimitsFile,
    build_backoff,
    build_gate,
    build_outbox,
    build_sink,
    grace_of,
    open_limits,
)
from dispatcher.app.servers import Server, greet_server, keys_of, open_server
from dispatcher.connection import Client, accepted, answered, connect
from dispatcher.dispatch import Dispatcher, Sink
from dispatcher.errors import GateUnavailable
from dispatcher.logs import EventLog, build_event_log
from dispatcher.model import US
from dispatcher.settings import Settings, load_settings
from dispatcher.store.dead_letters import DeadLetters
from dispatcher.store.intake import claim_namespace
from dispatcher.store.snapshot import Books
from dispatcher.store.sweep import Sweep
from dispatcher.worker.doorbell import Doorbell
from dispatcher.worker.loop import Worker
from dispatcher.worker.upkeep import Upkeep

_SEND_SLACK_S: Final = 1.0
"""The sink keeps its own deadline; the worker's, which only guards against a defect of it, is this much later."""


def run_worker(settings: Settings, limits: LimitsFile, server: Server, sink: Sink, *, burst: bool) -> None:
    """Run one worker in this process until it is stopped or, in burst, done.

    Raises ``GateUnavailable`` when Redis cannot be reached for 30 s at the start, ``ConfigError`` when it refuses
    us, and what broke the loop.
    """
    name = _owner()
    events = _event_log(settings, name)
    greet_server(settings, server, events)
    client = connect(server.url)
    with accepted(client), answered():
        worker = _build_worker(settings, limits, client, sink, events, name)
        where = {"server": server.shown, "limits": str(limits.path)}
        events.say("worker.started", **where, queue=settings.queue, sink=settings.sink)
        _tell_doubts(settings, events)
        _tell_pause(settings, client, events)
        worker.work(burst=burst)
        if worker.failure is not None:
            raise worker.failure
    if not burst and not worker.was_stopped:
        raise GateUnavailable("the worker's loop ended without being asked to")


def dispatch_one(job_id: str, data: str) -> str:
    """Take one event that a stock RQ worker is running through gate, pace and post, in this process.

    Returns ``duplicate``, ``posted`` (an attempt to post was made; its outcome is settled) or ``decided`` (ended or
    parked without one). Raises ``ConfigError``, ``GateUnavailable``.
    """
    settings, _ = load_settings()
    limits = open_limits(settings)
    sink = build_sink(settings)
    owner = f"job.{_owner()}"
    events = _event_log(settings, owner)
    with open_server(settings, start=False) as server:
        client = connect(server.url)
        claim_namespace(client, *keys_of(settings))
        outbox = build_outbox(settings, limits.policy, client, owner)
        gate = build_gate(settings, limits.policy, client, outbox)
        dispatcher = Dispatcher(limits.policy, gate, outbox, sink, events, build_backoff(), grace_of(settings))
        taken = outbox.adopt(job_id, data)
        if taken.duplicates:
            events.duplicates(taken.duplicates)
            return "duplicate"
        started = dispatcher.dispatch(taken.batch, taken.now_us, 1)
        dispatcher.settle([dispatcher.deliver(each) for each in started])
        outbox.give_back()
        return "posted" if started else "decided"


def _build_worker(  # noqa: PLR0913, PLR0917 - what a run has made, and what it was given
    settings: Settings, limits: LimitsFile, client: Client, sink: Sink, events: EventLog, name: str
) -> Worker:
    keys, queue = keys_of(settings)
    outbox = build_outbox(settings, limits.policy, client, name)
    dead_letters = DeadLetters(client, keys, queue)
    gate = build_gate(settings, limits.policy, client, outbox)
    return Worker(
        name=name,
        client=client,
        queue=queue,
        dispatcher=Dispatcher(limits.policy, gate, outbox, sink, events, build_backoff(), grace_of(settings)),
        outbox=outbox,
        books=Books(client, keys, queue),
        upkeep=Upkeep(Sweep(client, keys, queue, owner=name), dead_letters, limits.policy.dead_letters),
        doorbell=Doorbell(client, queue.lanes, keys.wake),
        log=events,
        batch=settings.batch,
        senders=settings.senders,
        post_deadline_s=settings.slack_timeout.total_seconds() + _SEND_SLACK_S,
        lease_s=settings.lease.total_seconds(),
    )


def _tell_doubts(settings: Settings, events: EventLog) -> None:
    if settings.sink == "slack" and settings.slack_webhook_url is not None:
        detail = "a webhook posts to its own channel and names no message: channel and thread of events are ignored"
        events.say("setting.doubted", detail=detail)


def _tell_pause(settings: Settings, client: Client, events: EventLog) -> None:
    """A pause outlives the workers: one who has just put right what caused it learns when that will show."""
    look = Books(client, *keys_of(settings)).snapshot()
    if look.pause is not None:
        next_try_s = round(max(0, look.pause.probe_us - look.now_us) / US, 1)
        events.say(
            "slack.paused", kind=look.pause.kind, code=look.pause.code, detail=look.pause.detail, next_try_s=next_try_s
        )


def _owner() -> str:
    return f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(3)}"


def _event_log(settings: Settings, owner: str) -> EventLog:
    return build_event_log(
        level=settings.log_level, style=settings.log_format, secrets=settings.secrets(), worker=owner
    )
