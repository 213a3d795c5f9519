"""A message, the sinks that post it to the stand-in, and calls to the stand-in without a sink."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from dispatcher.core.posts import Message
from dispatcher.core.states import boottime_s
from dispatcher.slack.credentials import BotToken, Webhook
from dispatcher.slack.replies import Requests, event_mark
from dispatcher.slack.sink import SlackSink
from dispatcher.stand_in import StandIn

NAMESPACE: Final = "dispatcher"
MESSAGE = Message("event-1", "#ops", "disk full")


def slack_sink(
    credential: BotToken | Webhook, *, base_url: str | None = None, timeout_s: float = 10.0, namespace: str = NAMESPACE
) -> SlackSink:
    """A sink as the settings' defaults make it."""
    return SlackSink(credential, namespace=namespace, timeout_s=timeout_s, requests=Requests(), base_url=base_url)


def token_sink(slack: StandIn, timeout_s: float = 5.0) -> SlackSink:
    return slack_sink(BotToken(slack.token), base_url=slack.base_url, timeout_s=timeout_s)


def webhook_sink(slack: StandIn, timeout_s: float = 5.0) -> SlackSink:
    return slack_sink(Webhook(slack.webhook_url), timeout_s=timeout_s)


def mark_of(event_id: str) -> str:
    """The mark of an event's message."""
    return event_mark(event_id, NAMESPACE)


@dataclass
class Clock:
    """Time that only a test moves."""

    now: float = 1_732_100_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class SuspendedClock:
    """The machine's clock, which a test sets forward as if the machine had been suspended."""

    by_s: float = 0.0

    def __call__(self) -> float:
        return boottime_s() + self.by_s


@dataclass
class StandingClock:
    """The machine's clock, which stands until a test sets it forward: a busy machine takes no time."""

    by_s: float = 0.0
    stands_at_s: float = field(default_factory=boottime_s)

    def __call__(self) -> float:
        return self.stands_at_s + self.by_s


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> Any:  # noqa: ANN401 - JSON
        return json.loads(self.body)


def request(url: str, body: str | None = None, **headers: str) -> Response:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=5)
    try:
        connection.request("GET" if body is None else "POST", f"{parts.path}?{parts.query}", body, headers)
        response = connection.getresponse()
        return Response(response.status, dict(response.getheaders()), response.read().decode())
    finally:
        connection.close()


def call(slack: StandIn, method: str, *, token: str | None = None, **arguments: object) -> Response:
    headers = {"Content-Type": "application/json; charset=utf-8", "Authorization": f"Bearer {token or slack.token}"}
    return request(slack.base_url + method, json.dumps(arguments), **headers)


def post(slack: StandIn, channel: str = "#ops", **arguments: Any) -> Any:  # noqa: ANN401 - JSON
    return call(slack, "chat.postMessage", **{"channel": channel, "text": "hi", **arguments}).json
