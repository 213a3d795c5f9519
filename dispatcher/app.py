"""The composition root: the one place that builds adapters and puts them together."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redis.backoff import FullJitterBackoff
from redis.exceptions import AuthenticationError, RedisError

from dispatcher.connection import Client, answered, connect
from dispatcher.dispatch import Dispatcher, Sink
from dispatcher.embedded import EmbeddedServer
from dispatcher.errors import ConfigError, GateUnavailable, QueueUnavailable
from dispatcher.keys import LAYOUT_VERSION, Keys, QueueKeys
from dispatcher.limiter import Limiter
from dispatcher.logs import EventLog, build_log
from dispatcher.model import US
from dispatcher.policy import Backoff, Policy
from dispatcher.producer import ANSWER_TIMEOUT_S as PRODUCER_TIMEOUT_S
from dispatcher.producer import Producer
from dispatcher.settings import Settings, find_limits_file, load_policy, load_settings, shown_url
from dispatcher.slack.console import ConsoleSink
from dispatcher.slack.credentials import BotToken, Webhook
from dispatcher.slack.sink import SlackSink
from dispatcher.store.dead_letters import DeadLetters
from dispatcher.store.intake import claim_namespace, wrong_layout
from dispatcher.store.outbox import Outbox
from dispatcher.store.snapshot import Books
from dispatcher.store.sweep import Sweep
from dispatcher.worker.doorbell import Doorbell
from dispatcher.worker.loop import Upkeep, Worker

REACH_S: Final = 30.0
"""How long a worker keeps trying to reach Redis at its start."""

_BACKOFF_FROM_S: Final = 1.0
_BACKOFF_TO_S: Final = 300.0
_SEND_SLACK_S: Final = 1.0
"""The sink keeps its own deadline; the worker's, which only guards against a defect of it, is this much later."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that can be reached: its URL, how to name it without its password, doubts about it."""

    url: str
    shown: str
    warnings: tuple[str, ...] = ()


@contextmanager
def open_server(settings: Settings, *, start: bool) -> Iterator[Server]:
    """The server of the settings, held for as long as the context lasts.

    It is the one at the URL, else the embedded one in the data dir, started if need be and ``start``. Raises
    ``ConfigError``.
    """
    if settings.redis_url is not None:
        url = settings.redis_url.get_secret_value()
        yield Server(url, shown_url(url))
        return
    with EmbeddedServer.join(settings.data_dir, start=start) as embedded:
        warnings = (embedded.warning,) if embedded.warning else ()
        yield Server(embedded.url, f"embedded server in {settings.data_dir}", warnings)


@dataclass(frozen=True, slots=True)
class LimitsFile:
    """The limits in force, where they stand, and doubts about them."""

    policy: Policy
    path: Path
    warnings: tuple[str, ...]


def open_limits(settings: Settings) -> LimitsFile:
    """The limits file of the settings; raises ``ConfigError`` with every fault."""
    path = find_limits_file(settings, Path.cwd())
    policy, warnings = load_policy(path)
    return LimitsFile(policy, path, warnings)


def keys_of(settings: Settings) -> tuple[Keys, QueueKeys]:
    """The key names of a namespace and its queue."""
    return Keys(settings.namespace), QueueKeys(settings.queue)


def build_sink(settings: Settings) -> Sink:
    """The sink the settings ask for; raises ``ConfigError`` when Slack is asked for without a token or webhook."""
    if settings.sink == "console":
        return ConsoleSink()
    timeout_s = settings.slack_timeout.total_seconds()
    if settings.slack_token is not None:
        token = BotToken(settings.slack_token.get_secret_value())
        return SlackSink(token, base_url=settings.slack_base_url, timeout_s=timeout_s)
    if settings.slack_webhook_url is not None:
        return SlackSink(Webhook(settings.slack_webhook_url.get_secret_value()), timeout_s=timeout_s)
    raise ConfigError(
        "no way to post: set DISPATCHER_SLACK_TOKEN (or SLACK_BOT_TOKEN) or DISPATCHER_SLACK_WEBHOOK_URL, "
        "or DISPATCHER_SINK=console to print instead of posting"
    )


def build_backoff() -> Backoff:
    """Exponential with full jitter: after the n-th attempt a random time up to 2^n seconds, at most five minutes."""
    arithmetic = FullJitterBackoff(cap=_BACKOFF_TO_S, base=_BACKOFF_FROM_S)

    def backoff(attempt: int) -> int:
        return round(arithmetic.compute(attempt) * US)

    return backoff


def run_worker(settings: Settings, limits: LimitsFile, server: Server, sink: Sink, *, burst: bool) -> None:
    """Run one worker in this process until it is stopped or, in burst, done.

    Raises ``GateUnavailable`` when Redis cannot be reached for 30 s at the start, ``ConfigError`` when it refuses
    us, and what broke the loop.
    """
    name = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(3)}"
    log = build_log(level=settings.log_level, style=settings.log_format, secrets=settings.secrets(), worker=name)
    events = EventLog(log)
    client = connect(server.url)
    reach(client, server.shown, REACH_S, events)
    keys, queue = keys_of(settings)
    claim_namespace(client, keys, queue)
    outbox = Outbox(
        client,
        keys,
        queue,
        owner=name,
        lease_us=_us(settings.lease.total_seconds()),
        remember_us=_us(settings.dedup_window.total_seconds()),
        bounds=limits.policy.dead_letters,
    )
    worker = Worker(
        name=name,
        client=client,
        queue=queue,
        dispatcher=Dispatcher(
            limits.policy, Limiter(client, namespace=settings.namespace), outbox, sink, events, build_backoff()
        ),
        outbox=outbox,
        books=Books(client, keys, queue),
        upkeep=Upkeep(
            Sweep(client, keys, queue, owner=name), DeadLetters(client, keys, queue), limits.policy.dead_letters
        ),
        doorbell=Doorbell(client, queue.lanes, keys.wake),
        log=events,
        batch=settings.batch,
        senders=settings.senders,
        post_deadline_s=settings.slack_timeout.total_seconds() + _SEND_SLACK_S,
        lease_s=settings.lease.total_seconds(),
    )
    events.say("worker.started", server=server.shown, limits=str(limits.path), queue=settings.queue, sink=settings.sink)
    worker.work(burst=burst)
    if worker.failure is not None:
        raise worker.failure


def reach(client: Client, shown: str, seconds: float, events: EventLog | None = None) -> None:
    """Return when the server answers; keeps trying for ``seconds``.

    Raises ``GateUnavailable``, or ``ConfigError`` when the server answers that it will not have us.
    """
    end = time.monotonic() + seconds
    said = False
    while True:
        try:
            with answered():
                client.ping()
        except GateUnavailable as error:
            if isinstance(error.__cause__, AuthenticationError):
                raise ConfigError(f"{shown} refuses the user name or password in DISPATCHER_REDIS_URL") from error
            if time.monotonic() >= end:
                raise GateUnavailable(f"{shown} cannot be reached: {error}") from error
            if events is not None and not said:
                events.say("redis.lost", server=shown, detail=str(error))
                said = True
            time.sleep(min(0.25, max(0.0, end - time.monotonic())))
        except RedisError as error:
            raise ConfigError(f"{shown} refuses us: {error}") from error
        else:
            return


def greet_server(settings: Settings, server: Server, events: EventLog) -> None:
    """What several workers would each do at their start, once before they are forked; raises as ``run_worker`` does."""
    with connect(server.url) as client:
        reach(client, server.shown, REACH_S, events)
        claim_namespace(client, *keys_of(settings))


def build_producer(settings: Settings, server: Server) -> Producer:
    """A producer; raises ``QueueUnavailable``, ``ConfigError`` when the server does not answer now."""
    client = connect(server.url, timeout_s=PRODUCER_TIMEOUT_S)
    try:
        reach(client, server.shown, 0)
    except GateUnavailable as error:
        raise QueueUnavailable(str(error)) from error
    return Producer(client, namespace=settings.namespace, queue=settings.queue, max_waiting=settings.max_waiting)


@dataclass(frozen=True, slots=True)
class Readers:
    """What only looks: the books, the use of limits, the workers that live."""

    books: Books
    limiter: Limiter
    workers: Callable[[], Sequence[Mapping[str, str]]]


def build_readers(settings: Settings, server: Server) -> Readers:
    """Readers of the namespace; raises ``GateUnavailable`` or ``ConfigError``, also where another version wrote it."""
    client = connect(server.url)
    reach(client, server.shown, 0)
    keys, queue = keys_of(settings)
    with answered():
        layout = client.get(keys.layout)
    if layout is not None and (found := _text(layout)) != LAYOUT_VERSION:
        raise wrong_layout(found, keys.namespace)
    return Readers(
        Books(client, keys, queue), Limiter(client, namespace=settings.namespace), lambda: workers_of(client, queue)
    )


def workers_of(client: Client, queue: QueueKeys) -> Sequence[dict[str, str]]:
    """RQ's entries of the workers of a queue that live: name, host, pid and last heartbeat."""
    with answered():
        names = sorted(client.smembers(f"rq:workers:{queue.queue}"))
        with client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hmget(name, "hostname", "pid", "last_heartbeat", "state")
            rows = pipe.execute()
    workers = []
    for name, (host, pid, beat, state) in zip(names, rows, strict=True):
        if beat is not None:
            workers.append(
                {
                    "name": _text(name).removeprefix("rq:worker:"),
                    "host": (host or b"").decode(),
                    "pid": (pid or b"").decode(),
                    "last_heartbeat": beat.decode(),
                    "state": (state or b"").decode(),
                }
            )
    return workers


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _us(seconds: float) -> int:
    return round(seconds * US)


def dispatch_one(job_id: str, data: str) -> str:
    """Take one event that a stock RQ worker is running through gate, pace and post, in this process.

    Returns ``duplicate``, ``posted`` (an attempt to post was made; its outcome is settled) or ``decided`` (ended or
    parked without one). Raises ``ConfigError``, ``GateUnavailable``.
    """
    settings, _ = load_settings()
    limits = open_limits(settings)
    sink = build_sink(settings)
    owner = f"job.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(3)}"
    events = EventLog(
        build_log(level=settings.log_level, style=settings.log_format, secrets=settings.secrets(), worker=owner)
    )
    with open_server(settings, start=False) as server:
        client = connect(server.url)
        keys, queue = keys_of(settings)
        claim_namespace(client, keys, queue)
        outbox = Outbox(
            client,
            keys,
            queue,
            owner=owner,
            lease_us=_us(settings.lease.total_seconds()),
            remember_us=_us(settings.dedup_window.total_seconds()),
            bounds=limits.policy.dead_letters,
        )
        limiter = Limiter(client, namespace=settings.namespace)
        dispatcher = Dispatcher(limits.policy, limiter, outbox, sink, events, build_backoff())
        taken = outbox.adopt(job_id, data)
        if taken.duplicates:
            events.duplicates(taken.duplicates)
            return "duplicate"
        started = dispatcher.dispatch(taken.batch, taken.now_us, 1)
        dispatcher.settle([dispatcher.deliver(each) for each in started])
        outbox.give_back()
        return "posted" if started else "decided"
