"""Builds the adapters that the settings ask for."""

from __future__ import annotations

from typing import Final

from redis.backoff import FullJitterBackoff

from dispatcher.app.servers import keys_of
from dispatcher.core.policy import Backoff
from dispatcher.core.ports import Sink
from dispatcher.core.units import US
from dispatcher.errors import ConfigError
from dispatcher.server.connection import Client
from dispatcher.settings.environment import Settings
from dispatcher.slack.console import ConsoleSink
from dispatcher.slack.credentials import BotToken, Webhook
from dispatcher.slack.replies import Requests
from dispatcher.slack.sink import SlackSink
from dispatcher.store.admission import Admission, Prefilter
from dispatcher.store.leases import Outbox

_BACKOFF_FROM_S: Final = 1.0
_BACKOFF_TO_S: Final = 300.0

_POST_MARGIN_S: Final = 1.0
"""The sink keeps its own deadline; the worker's, which only guards against a defect of it, is this much later."""


def build_sink(settings: Settings, requests: Requests | None = None) -> Sink:
    """The sink the settings ask for; raises ``ConfigError`` when Slack is asked for without a token or webhook.

    ``requests``: where it counts its requests, if not in a tally of its own.
    """
    if settings.sink == "console":
        return ConsoleSink()
    requests = requests or Requests()
    timeout_s = settings.slack_timeout.total_seconds()
    if settings.slack_token is not None:
        token = BotToken(settings.slack_token.get_secret_value())
        return SlackSink(
            token,
            namespace=settings.namespace,
            timeout_s=timeout_s,
            requests=requests,
            base_url=settings.slack_base_url,
        )
    if settings.slack_webhook_url is not None:
        webhook = Webhook(settings.slack_webhook_url.get_secret_value())
        return SlackSink(webhook, namespace=settings.namespace, timeout_s=timeout_s, requests=requests)
    raise ConfigError(
        "no way to post: set DISPATCHER_SLACK_TOKEN (or SLACK_BOT_TOKEN) or DISPATCHER_SLACK_WEBHOOK_URL, "
        "or DISPATCHER_SINK=console to print instead of posting, "
        "or run 'dispatcher slack-stand-in' and set what it prints"
    )


def fingerprint_of(sink: Sink) -> str:
    """What tells the sink's credential from others; empty where it has none."""
    return sink.fingerprint if isinstance(sink, SlackSink) else ""


def is_webhook(sink: Sink) -> bool:
    """Whether the sink posts through an incoming webhook, so to one channel alone."""
    return isinstance(sink, SlackSink) and sink.is_webhook


def requests_of(sink: Sink) -> Requests | None:
    """What the sink has counted of its requests; None where it makes none."""
    return sink.requests if isinstance(sink, SlackSink) else None


def build_backoff() -> Backoff:
    """Exponential with full jitter: after the n-th attempt a random time up to 2^n seconds, at most five minutes."""
    arithmetic = FullJitterBackoff(cap=_BACKOFF_TO_S, base=_BACKOFF_FROM_S)

    def backoff(attempt: int) -> int:
        return round(arithmetic.compute(attempt) * US)

    return backoff


def build_outbox(
    settings: Settings,
    client: Client,
    owner: str,
    prefilter: Prefilter | None = None,
    requests: Requests | None = None,
) -> Outbox:
    """One owner's view of the namespace; to be told which limits to follow. It stores what ``requests`` counts.

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
        requests=requests,
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


def _us(seconds: float) -> int:
    return round(seconds * US)
