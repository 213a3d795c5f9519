"""What is posted of a message whose parts Slack refuses, and what is remembered of it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from dispatcher.model import (
    Ambiguous,
    Look,
    Message,
    Part,
    Paused,
    RateLimitedBySlack,
    Receipt,
)
from dispatcher.slack.credentials import BotToken, Webhook
from dispatcher.slack.sink import SlackSink
from dispatcher.slack.stand_in import Drip, RateLimited, SlackError, StandIn, landed, not_landed
from tests.support.raw_server import POSTED, RawServer, http_reply, read_request
from tests.support.slack import token_sink

LOOK = Look(username="Errors", icon_emoji=":bell:")
STYLED = Message("e1", "#ops", "down", look=LOOK)
NO_CUSTOMIZE = {"error": "missing_scope", "needed": "chat:write.customize", "provided": "chat:write"}


@contextmanager
def recorded(*answers: bytes) -> Iterator[tuple[RawServer, list[dict[str, Any]]]]:
    """A Slack that writes down each request's JSON and gives these answers, the last of them for ever."""
    requests: list[dict[str, Any]] = []

    def serve(connection: socket.socket) -> None:
        body = read_request(connection).partition(b"\r\n\r\n")[2]
        requests.append(json.loads(body))
        connection.sendall(answers[min(len(requests), len(answers)) - 1])

    with RawServer(serve) as server:
        yield server, requests


def refusal(**fields: object) -> bytes:
    return http_reply(json.dumps({"ok": False, **fields}).encode())


def sink_of(server: RawServer) -> SlackSink:
    return SlackSink(BotToken("xoxb-1"), base_url=f"http://127.0.0.1:{server.port}/api/")


def looks(requests: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    names = ("username", "icon_emoji", "icon_url")
    return [{name: request[name] for name in names if name in request} for request in requests]


@pytest.mark.parametrize(
    ("look", "sent"),
    [
        (LOOK, {"username": "Errors", "icon_emoji": ":bell:"}),
        (Look(icon_url="https://example.com/a.png"), {"icon_url": "https://example.com/a.png"}),
        (None, {}),
    ],
)
def test_name_and_icon_go_with_the_message(look: Look | None, sent: dict[str, str]) -> None:
    with recorded(POSTED) as (server, requests):
        assert sink_of(server).post(Message("e1", "#ops", "down", look=look)) == Receipt("C1", "1.000001")
    assert looks(requests) == [sent]


def test_a_webhook_is_told_name_and_icon_too() -> None:
    with recorded(http_reply(b"ok")) as (server, requests):
        sink = SlackSink(Webhook(f"http://127.0.0.1:{server.port}/services/x"))
        assert sink.post(STYLED) == Receipt("#ops", None)
    assert looks(requests) == [{"username": "Errors", "icon_emoji": ":bell:"}]


def test_without_the_scope_it_is_posted_at_once_under_the_apps_own_name_and_so_is_what_follows() -> None:
    with recorded(refusal(**NO_CUSTOMIZE), POSTED) as (server, requests):
        sink = sink_of(server)
        first, second = sink.post(STYLED), sink.post(STYLED)
    assert isinstance(first, Receipt)
    (left_out,) = first.left_out
    assert (left_out.part, left_out.code) == (Part.LOOK, "missing_scope")
    assert "needed: chat:write.customize" in left_out.detail
    assert second == first
    assert looks(requests) == [{"username": "Errors", "icon_emoji": ":bell:"}, {}, {}]
    assert [request["text"] for request in requests] == ["down"] * 3
    assert len({request["client_msg_id"] for request in requests}) == 1


def test_a_token_that_may_not_post_at_all_pauses_and_nothing_is_learnt_of_looks() -> None:
    no_write = refusal(error="missing_scope", needed="chat:write", provided="")
    with recorded(no_write, no_write, POSTED) as (server, requests):
        sink = sink_of(server)
        first = sink.post(STYLED)
        assert isinstance(first, Paused)
        assert sink.post(STYLED) == Receipt("C1", "1.000001")
    assert [bool(look) for look in looks(requests)] == [True, False, True]


def test_a_message_without_a_look_is_not_posted_again_for_a_missing_scope(slack: StandIn) -> None:
    slack.faults.add(not_landed(SlackError("missing_scope")))
    assert isinstance(token_sink(slack).post(Message("e1", "#ops", "down")), Paused)
    assert slack.workspace.posts == 0


def test_the_answer_to_the_second_request_is_the_result(slack: StandIn) -> None:
    slack.faults.add(not_landed(SlackError("missing_scope")), not_landed(RateLimited("7")))
    sink = token_sink(slack)
    assert sink.post(STYLED) == RateLimitedBySlack(7_000_000, "ratelimited")
    receipt = sink.post(STYLED)  # the lesson was learnt before
    assert isinstance(receipt, Receipt)
    assert [each.part for each in receipt.left_out] == [Part.LOOK]


def test_both_requests_share_one_deadline(slack: StandIn) -> None:
    slack.faults.add(not_landed(SlackError("missing_scope")), landed(Drip(interval_s=0.05)))
    sink = token_sink(slack, timeout_s=0.5)
    began = time.monotonic()
    result = sink.post(STYLED)
    assert isinstance(result, Ambiguous)
    assert time.monotonic() - began < 2
    assert sink.post(Message("e2", "#ops", "next")) == Receipt(*_last(slack))


def _last(slack: StandIn) -> tuple[str, str]:
    posted = slack.ledger.posted()[-1]
    return posted.channel_id, posted.ts


@pytest.fixture
def slack() -> Iterator[StandIn]:
    with StandIn() as stand_in:
        yield stand_in
