"""Builds the adapters that the settings ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from redis.backoff import FullJitterBackoff

from dispatcher.app.servers import Server, keys_of, reach
from dispatcher.core.limits import US, Lane
from dispatcher.core.policy import Backoff, Policy
from dispatcher.core.ports import Sink
from dispatcher.errors import ConfigError, GateUnavailable, QueueUnavailable
from dispatcher.limiter import Limiter
from dispatcher.producer import ANSWER_TIMEOUT_S as PRODUCER_TIMEOUT_S
from dispatcher.producer import Producer
from dispatcher.server.connection import Client, connect, translate_outages
from dispatcher.server.keys import LAYOUT_VERSION
from dispatcher.settings import Settings
from dispatcher.slack.console import ConsoleSink
from dispatcher.slack.credentials import BotToken, Webhook
from dispatcher.slack.sink import SlackSink
from dispatcher.store.admission import Admission
from dispatcher.store.dead_letters import DeadLetters
from dispatcher.store.explanations import Explanations
from dispatcher.store.intake import wrong_layout
from dispatcher.store.leases import Outbox
from dispatcher.store.operator_controls import Muting, Pausing
from dispatcher.store.parked_events import ParkedEvents
from dispatcher.store.prefilter import Prefilter
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books
from dispatcher.store.versions import Versions

_BACKOFF_FROM_S: Final = 1.0
_BACKOFF_TO_S: Final = 300.0

_POST_MARGIN_S: Final = 1.0
"""The sink keeps its own deadline; the worker's, which only guards against a defect of it, is this much later."""


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
        "or DISPATCHER_SINK=console to print instead of posting, "
        "or run 'dispatcher slack-stand-in' and set what it prints"
    )


def build_backoff() -> Backoff:
    """Exponential with full jitter: after the n-th attempt a random time up to 2^n seconds, at most five minutes."""
    arithmetic = FullJitterBackoff(cap=_BACKOFF_TO_S, base=_BACKOFF_FROM_S)

    def backoff(attempt: int) -> int:
        return round(arithmetic.compute(attempt) * US)

    return backoff


def build_outbox(settings: Settings, client: Client, owner: str, prefilter: Prefilter | None = None) -> Outbox:
    """One owner's view of the namespace; to be told which limits to follow.

    What a worker that is gone was posting is not reconciled while that could still leave: it may be frozen, and wake.
    """
    keys, queue = keys_of(settings)
    return Outbox(
        client,
        keys,
        queue,
        owner=owner,
        lease_us=_us(settings.lease.total_seconds()),
        remember_us=_us(settings.dedup_window.total_seconds()),
        grace_us=max(grace_of(settings), _us(post_deadline_s(settings))),
        prefilter=prefilter,
    )


def grace_of(settings: Settings) -> int:
    """Microseconds from a post with an unknown delivery status to its history scan."""
    return _us(settings.reconcile_grace.total_seconds())


def post_deadline_s(settings: Settings) -> float:
    """Seconds from a post's mark until its worker gives it up, whatever the sink does."""
    return settings.slack_timeout.total_seconds() + _POST_MARGIN_S


def build_gate(settings: Settings, client: Client, outbox: Outbox, prefilter: Prefilter | None = None) -> Admission:
    """The budget, for the events that the outbox's owner holds; to be told which limits to follow."""
    keys, _ = keys_of(settings)
    remember_us = _us(settings.dedup_window.total_seconds())
    return Admission(client, keys, outbox.leased_key, remember_us=remember_us, prefilter=prefilter)


def build_producer(settings: Settings, server: Server) -> Producer:
    """A producer; raises ``QueueUnavailable``, ``ConfigError`` when the server does not answer now."""
    client = connect(server.url, timeout_s=PRODUCER_TIMEOUT_S)
    try:
        reach(client, server.shown)
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
    client = _client_of_namespace(settings, server)
    keys, queue = keys_of(settings)
    return Readers(
        Books(client, keys, queue), Limiter(client, namespace=settings.namespace), lambda: workers_of(client, queue)
    )


def open_dead_letters(settings: Settings, server: Server) -> DeadLetters:
    """The dead letters of the namespace; raises as ``build_readers`` does."""
    return DeadLetters(_client_of_namespace(settings, server), *keys_of(settings))


def open_explanations(settings: Settings, server: Server) -> Explanations:
    """What explains events of the namespace; raises as ``build_readers`` does."""
    return Explanations(_client_of_namespace(settings, server), *keys_of(settings))


def open_pausing(settings: Settings, server: Server) -> Pausing:
    """What pauses and resumes posting by hand; raises as ``build_readers`` does."""
    keys, _ = keys_of(settings)
    return Pausing(_client_of_namespace(settings, server), keys)


def open_muting(settings: Settings, server: Server) -> Muting:
    """What mutes categories of the namespace; raises as ``build_readers`` does."""
    keys, _ = keys_of(settings)
    return Muting(_client_of_namespace(settings, server), keys)


def open_parked_events(settings: Settings, server: Server, policy: Policy) -> ParkedEvents:
    """The parked events of the namespace; raises as ``build_readers`` does."""
    client, remember_us = _client_of_namespace(settings, server), _us(settings.dedup_window.total_seconds())
    return ParkedEvents(client, *keys_of(settings), policy, remember_us=remember_us)


def open_versions(settings: Settings, server: Server) -> Versions:
    """The versions of the limits of the namespace; raises as ``build_readers`` does."""
    return Versions(_client_of_namespace(settings, server), keys_of(settings)[0])


def _client_of_namespace(settings: Settings, server: Server) -> Client:
    client = connect(server.url)
    reach(client, server.shown)
    keys, _ = keys_of(settings)
    with translate_outages():
        layout = client.get(keys.layout)
    if layout is not None and (found := _text(layout)) != LAYOUT_VERSION:
        raise wrong_layout(found, keys.namespace)
    return client


def workers_of(client: Client, queue: QueueKeys) -> Sequence[dict[str, str]]:
    """RQ's entries of the workers of a queue that live: name, host, pid and last heartbeat."""
    with translate_outages():
        names = sorted(client.smembers(queue.workers(Lane.NORMAL)))
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
