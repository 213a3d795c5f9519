"""What is posted of a message whose parts Slack refuses, and what is remembered of it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from dispatcher.core.posts import (
    Ambiguous,
    Identity,
    Message,
    Part,
    Paused,
    PostResult,
    RateLimitedBySlack,
    Receipt,
    Rejected,
)
from dispatcher.core.states import boottime_s
from dispatcher.slack.credentials import BotToken, Webhook
from dispatcher.slack.replies import Workspace
from dispatcher.slack.sink import LeavingOut, SlackSink
from dispatcher.slack.taxonomy import problem
from dispatcher.stand_in import (
    STRICT,
    FaultReply,
    Hang,
    Setup,
    SlackError,
    StandIn,
    TooManyRequests,
    landed,
    not_landed,
)
from tests.support.raw_server import POSTED, RawServer, http_reply, read_request
from tests.support.slack import Clock, slack_sink, token_sink, webhook_sink

STYLED_AS = Identity(username="Errors", icon_emoji=":bell:")
STYLED = Message("e1", "#ops", "down", identity=STYLED_AS)
NO_CUSTOMIZE = {"error": "missing_scope", "needed": "chat:write.customize", "provided": "chat:write"}


def last(slack: StandIn) -> tuple[str, str]:
    posted = slack.ledger.posted()[-1]
    return posted.channel_id, posted.ts


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
    return slack_sink(BotToken("xoxb-1"), base_url=f"http://127.0.0.1:{server.port}/api/")


def identities(requests: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    names = ("username", "icon_emoji", "icon_url")
    return [{name: request[name] for name in names if name in request} for request in requests]


@pytest.mark.parametrize(
    ("identity", "sent"),
    [
        (STYLED_AS, {"username": "Errors", "icon_emoji": ":bell:"}),
        (Identity(icon_url="https://example.com/a.png"), {"icon_url": "https://example.com/a.png"}),
        (None, {}),
    ],
)
def test_name_and_icon_go_with_the_message(identity: Identity | None, sent: dict[str, str]) -> None:
    with recorded(POSTED) as (server, requests):
        assert sink_of(server).post(Message("e1", "#ops", "down", identity=identity)) == Receipt("C1", "1.000001")
    assert identities(requests) == [sent]


def test_a_webhook_is_told_name_and_icon_too() -> None:
    with recorded(http_reply(b"ok")) as (server, requests):
        sink = slack_sink(Webhook(f"http://127.0.0.1:{server.port}/services/x"))
        assert sink.post(STYLED) == Receipt("#ops", None)
    assert identities(requests) == [{"username": "Errors", "icon_emoji": ":bell:"}]


def test_without_the_scope_this_and_later_posts_appear_under_the_apps_own_name() -> None:
    with recorded(refusal(**NO_CUSTOMIZE), POSTED) as (server, requests):
        sink = sink_of(server)
        first, second = sink.post(STYLED), sink.post(STYLED)
    assert isinstance(first, Receipt)
    (left_out,) = first.left_out
    assert (left_out.part, left_out.code) == (Part.IDENTITY, "missing_scope")
    assert "needed: chat:write.customize" in left_out.detail
    assert second == first
    assert identities(requests) == [{"username": "Errors", "icon_emoji": ":bell:"}, {}, {}]
    assert [request["text"] for request in requests] == ["down"] * 3
    assert len({request["client_msg_id"] for request in requests}) == 1


def test_a_token_that_may_not_post_at_all_pauses_and_nothing_is_learnt_of_names_and_icons() -> None:
    no_write = refusal(error="missing_scope", needed="chat:write", provided="")
    with recorded(no_write, no_write, POSTED) as (server, requests):
        sink = sink_of(server)
        first = sink.post(STYLED)
        assert isinstance(first, Paused)
        assert sink.post(STYLED) == Receipt("C1", "1.000001")
    assert [bool(identity) for identity in identities(requests)] == [True, False, True]


def test_a_message_without_a_look_is_not_posted_again_for_a_missing_scope(slack: StandIn) -> None:
    slack.faults.add(not_landed(SlackError("missing_scope")))
    assert isinstance(token_sink(slack).post(Message("e1", "#ops", "down")), Paused)
    assert slack.workspace.posts == 1


def test_the_answer_to_the_second_request_is_the_result(slack: StandIn) -> None:
    slack.faults.add(not_landed(SlackError("missing_scope")), not_landed(TooManyRequests("7")))
    sink = token_sink(slack)
    assert sink.post(STYLED) == problem("ratelimited", retry_after_us=7_000_000)
    receipt = sink.post(STYLED)  # the lesson was learnt before
    assert isinstance(receipt, Receipt)
    assert [each.part for each in receipt.left_out] == [Part.IDENTITY]


@pytest.mark.parametrize(("timeout_s", "by_s"), [(1.2, None), (30, 1.2)], ids=["time-out", "instant"])
def test_both_requests_share_one_deadline(timeout_s: float, by_s: float | None) -> None:
    requests = []

    def serve(connection: socket.socket) -> None:
        requests.append(read_request(connection))
        threading.Event().wait(0.7)
        connection.sendall(refusal(**NO_CUSTOMIZE) if len(requests) == 1 else POSTED)

    with RawServer(serve) as server:
        sink = slack_sink(BotToken("xoxb-1"), base_url=f"http://127.0.0.1:{server.port}/api/", timeout_s=timeout_s)
        result = sink.post(STYLED, by_s=None if by_s is None else boottime_s() + by_s)
    assert isinstance(result, Ambiguous)
    assert result.code == "reply_timeout"


def test_a_deadline_ends_with_its_post(slack: StandIn) -> None:
    sink = token_sink(slack)
    slack.faults.add(landed(Hang()))
    assert isinstance(sink.post(STYLED, by_s=boottime_s() + 0.3), Ambiguous)
    assert isinstance(sink.check(), Workspace)


# Blocks

SECTION: dict[str, object] = {"type": "section", "text": {"type": "mrkdwn", "text": "*down*"}}
WITH_BLOCKS = Message("e1", "#ops", "down", (SECTION,), "1732100000.000100")


def parts(result: object) -> list[tuple[Part, str]]:
    assert isinstance(result, Receipt)
    return [(each.part, each.code) for each in result.left_out]


@pytest.mark.parametrize(
    "code",
    [
        "invalid_blocks",
        "invalid_blocks_format",
        "msg_blocks_too_long",
        "too_many_attachments",
        "invalid_arguments",
        "code_of_tomorrow",
    ],
)
def test_blocks_that_slack_refuses_are_followed_at_once_by_the_text(slack: StandIn, code: str) -> None:
    slack.faults.add(not_landed(SlackError(code)))
    result = token_sink(slack).post(WITH_BLOCKS)
    assert parts(result) == [(Part.BLOCKS, code)]
    (posted,) = slack.ledger.posted()
    assert (posted.text, posted.blocks, posted.thread_ts) == ("down", (), "1732100000.000100")


def test_a_webhook_s_refusal_of_blocks_is_followed_by_the_text(slack: StandIn) -> None:
    slack.faults.add(not_landed(SlackError("invalid_payload")))
    assert parts(webhook_sink(slack).post(WITH_BLOCKS)) == [(Part.BLOCKS, "invalid_payload")]
    assert [(posted.text, posted.blocks) for posted in slack.ledger.posted()] == [("down", ())]


def test_the_fault_that_slack_finds_in_the_blocks_is_reported(slack: StandIn) -> None:
    long: dict[str, object] = {"type": "header", "text": {"type": "plain_text", "text": "x" * 151}}
    result = token_sink(slack).post(Message("e1", "#ops", "down", (SECTION, long)))
    assert parts(result) == [(Part.BLOCKS, "invalid_blocks")]
    assert isinstance(result, Receipt)
    assert "json-pointer:/blocks/1/text" in result.left_out[0].detail
    assert slack.workspace.posts == 2


@pytest.mark.parametrize("code", ["channel_not_found", "invalid_metadata_format", "no_text", "is_archived"])
def test_a_message_refused_for_another_reason_is_not_tried_without_its_blocks(slack: StandIn, code: str) -> None:
    slack.faults.add(not_landed(SlackError(code)))
    result = token_sink(slack).post(WITH_BLOCKS)
    assert isinstance(result, Rejected)
    assert result.code == code
    assert len(slack.ledger) == 0


@pytest.mark.parametrize("reply", [SlackError("internal_error"), SlackError("invalid_auth"), TooManyRequests("7")])
def test_a_message_without_a_definite_refusal_of_its_content_is_not_posted_again(
    slack: StandIn, reply: FaultReply
) -> None:
    slack.faults.add(landed(reply))
    assert not isinstance(token_sink(slack).post(WITH_BLOCKS), Receipt | Rejected)
    assert len(slack.ledger) == 1


def test_text_that_is_refused_too_is_rejected_with_both_reasons(slack: StandIn) -> None:
    slack.faults.add(not_landed(SlackError("invalid_blocks")), not_landed(SlackError("msg_too_long")))
    result = token_sink(slack).post(WITH_BLOCKS)
    assert isinstance(result, Rejected)
    assert result.code == "msg_too_long"
    assert result.detail.startswith("the message is too long for Slack; before, with its blocks, invalid_blocks: ")
    assert len(slack.ledger) == 0


def test_a_message_without_blocks_is_rejected_after_one_request(slack: StandIn) -> None:
    slack.faults.add(not_landed(SlackError("invalid_arguments")))
    assert isinstance(token_sink(slack).post(Message("e1", "#ops", "down")), Rejected)
    assert len(slack.ledger) == 0


def test_refused_blocks_are_not_tried_again_until_the_event_ends(slack: StandIn) -> None:
    sink = token_sink(slack)
    slack.faults.add(not_landed(SlackError("invalid_blocks")), not_landed(TooManyRequests("1")))
    assert isinstance(sink.post(WITH_BLOCKS), RateLimitedBySlack)
    other = Message("e2", "#ops", "down", (SECTION,))
    assert sink.post(other) == Receipt(*last(slack))
    assert parts(sink.post(WITH_BLOCKS)) == [(Part.BLOCKS, "invalid_blocks")]
    assert [posted.blocks for posted in slack.ledger.posted()] == [(SECTION,), ()]
    sink.post(WITH_BLOCKS)  # a replay: perhaps Slack takes them now
    assert slack.ledger.posted()[-1].blocks == (SECTION,)


def test_refused_blocks_do_not_delay_the_text_in_a_channel_of_one_request_a_second() -> None:
    clock = Clock()
    unforeseen: dict[str, object] = {"type": "block_of_tomorrow"}
    message = Message("e1", "#ops", "down", (unforeseen,))
    with StandIn(setup=Setup(rate=STRICT, clock=clock)) as slack:
        sink = token_sink(slack)
        assert isinstance(sink.post(message), RateLimitedBySlack)
        clock.now += 1
        assert parts(sink.post(message)) == [(Part.BLOCKS, "invalid_blocks")]
        assert slack.workspace.posts == 3


def test_without_scope_and_with_refused_blocks_the_text_is_posted(slack: StandIn) -> None:
    slack.faults.add(not_landed(SlackError("missing_scope")), not_landed(SlackError("invalid_blocks")))
    result = token_sink(slack).post(Message("e1", "#ops", "down", (SECTION,), identity=STYLED_AS))
    assert parts(result) == [(Part.IDENTITY, "missing_scope"), (Part.BLOCKS, "invalid_blocks")]
    assert [(posted.text, posted.blocks) for posted in slack.ledger.posted()] == [("down", ())]


def test_only_so_many_refusals_are_remembered() -> None:
    leaving_out = LeavingOut()
    asked: list[Message] = []

    def post(message: Message) -> PostResult:
        asked.append(message)
        return Rejected("invalid_blocks", "no") if message.blocks else RateLimitedBySlack(1, "ratelimited")

    for number in range(1_025):
        leaving_out.post(Message(f"e{number}", "#ops", "down", (SECTION,)), post)
    asked.clear()
    for number in (0, 2, 1_024):
        leaving_out.post(Message(f"e{number}", "#ops", "down", (SECTION,)), post)
    assert [bool(message.blocks) for message in asked] == [True, False, False, False]
