"""Tests of the sink against the stand-in: every answer comes back as a value."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from dispatcher.core.event import Event
from dispatcher.core.posts import (
    Ambiguous,
    Message,
    Paused,
    PostResult,
    RateLimitedBySlack,
    Receipt,
    Rejected,
    Retryable,
)
from dispatcher.core.rendering import message_for
from dispatcher.core.units import US
from dispatcher.slack.credentials import BotToken, Webhook
from dispatcher.slack.replies import Unchecked, Workspace
from dispatcher.slack.sink import SlackSink
from dispatcher.slack.taxonomy import problem
from dispatcher.stand_in import (
    Close,
    CutBody,
    Drip,
    FaultReply,
    Hang,
    Page,
    Reset,
    Setup,
    SlackError,
    StandIn,
    Text,
    TooManyRequests,
    landed,
    not_landed,
)
from tests.support.raw_server import RawServer, http_reply, read_request
from tests.support.slack import MESSAGE, Clock, mark_of, slack_sink, token_sink, webhook_sink


def test_a_post_with_a_token_answers_slacks_receipt(slack: StandIn) -> None:
    blocks: tuple[dict[str, object], ...] = ({"type": "section", "text": {"type": "mrkdwn", "text": "*disk*"}},)
    message = Message("event-1", "#ops", "disk full", blocks, "1732100000.000100")
    receipt = token_sink(slack).post(message)
    [posted] = slack.ledger.posted()
    assert receipt == Receipt(posted.channel_id, posted.ts)
    assert (posted.channel, posted.text, posted.blocks) == ("#ops", "disk full", blocks)
    assert posted.thread_ts == "1732100000.000100"


def test_a_post_carries_a_digest_of_the_event_id_and_not_the_id(slack: StandIn) -> None:
    token_sink(slack).post(Message("anna@example.com/42", "#ops", "hi"))
    [posted] = slack.ledger.posted()
    assert posted.metadata == {
        "event_type": "dispatcher_event",
        "event_payload": {"id": mark_of("anna@example.com/42")},
    }
    assert "anna" not in str(posted)


def test_a_post_by_webhook_answers_a_receipt_without_ts(slack: StandIn) -> None:
    assert webhook_sink(slack).post(MESSAGE) == Receipt("#ops", None)
    assert [(posted.channel, posted.text) for posted in slack.ledger.posted()] == [("#webhook", "disk full")]


def test_a_text_arrives_as_it_was_written(slack: StandIn) -> None:
    token_sink(slack).post(message_for(Event("errors", "a < b & ünïcödé 🎉\n<!channel>"), "e1", "#ops"))
    assert slack.ledger.posted()[0].text == "a &lt; b &amp; ünïcödé 🎉\n&lt;!channel&gt;"


def test_many_threads_post_through_one_sink(slack: StandIn) -> None:
    sink = token_sink(slack, timeout_s=30)
    results: list[PostResult] = []

    def post_many(name: int) -> None:
        results.extend(sink.post(Message(f"{name}-{number}", "#ops", "hi")) for number in range(25))

    threads = [threading.Thread(target=post_many, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {type(result) for result in results} == {Receipt}
    expected = {mark_of(f"{name}-{number}") for name in range(8) for number in range(25)}
    assert {posted.mark for posted in slack.ledger.posted()} == expected
    assert len(slack.ledger) == 200


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (TooManyRequests("7"), RateLimitedBySlack),
        (SlackError("ratelimited"), RateLimitedBySlack),
        (SlackError("request_timeout"), Retryable),
        (SlackError("invalid_auth"), Paused),
        (SlackError("channel_not_found"), Rejected),
        (SlackError("msg_too_long"), Rejected),
        (SlackError("internal_error"), Ambiguous),
        (SlackError("update_failed"), Ambiguous),
        (Page(500), Ambiguous),
        (Page(503), Ambiguous),
        (Page(302, headers=(("Location", "http://127.0.0.1:9/"),)), Ambiguous),
        (Page(200), Ambiguous),
        (Page(404), Ambiguous),
        (Text(""), Ambiguous),
        (Text("{nope"), Ambiguous),
        (Text("[1]"), Ambiguous),
        (Text("null"), Ambiguous),
        (Text("[" * 100_000), Ambiguous),
        (CutBody(), Ambiguous),
        (Reset(), Ambiguous),
        (Close(), Ambiguous),
    ],
    ids=lambda value: repr(value)[:40],
)
@pytest.mark.parametrize("make_sink", [token_sink, webhook_sink], ids=["token", "webhook"])
def test_each_answer_comes_back_as_a_value_after_one_request(
    slack: StandIn, make_sink: Callable[[StandIn], SlackSink], reply: FaultReply, kind: type[PostResult]
) -> None:
    slack.faults.add(landed(reply))
    result = make_sink(slack).post(MESSAGE)
    assert isinstance(result, kind)
    assert slack.workspace.posts == 1


@pytest.mark.parametrize("body", ["[1]", "null", '"ok"', "{nope", "<html>"])
def test_an_unreadable_answer_is_quoted(slack: StandIn, body: str) -> None:
    slack.faults.add(landed(Text(body)))
    result = token_sink(slack).post(MESSAGE)
    assert isinstance(result, Ambiguous)
    assert result.detail.endswith(f"({body})")


def test_an_ok_that_was_to_go_on_is_ambiguous() -> None:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nok")

    with RawServer(serve) as server:
        result = slack_sink(Webhook(f"http://127.0.0.1:{server.port}/services/x")).post(MESSAGE)
    assert isinstance(result, Ambiguous)
    assert "cut off after 2 bytes" in result.detail


def test_a_429_names_the_cool_down(slack: StandIn) -> None:
    slack.faults.add(
        not_landed(TooManyRequests("7")), not_landed(TooManyRequests("2.5")), not_landed(TooManyRequests(None))
    )
    results = [token_sink(slack).post(MESSAGE) for _ in range(3)]
    assert results == [problem("ratelimited", retry_after_us=us) for us in (7_000_000, 2_500_000, 1_000_000)]


def test_a_429_is_understood_even_when_its_page_is_cut() -> None:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(http_reply(b"<html>", "429 Too Many Requests", "Retry-After: 9")[:-3])

    with RawServer(serve) as server:
        sink = slack_sink(BotToken("xoxb-1"), base_url=f"http://127.0.0.1:{server.port}/api/")
        result = sink.post(MESSAGE)
    assert isinstance(result, RateLimitedBySlack)
    assert (result.retry_after_us, result.code) == (9_000_000, "http_429")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"", "connection_lost"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "connection_lost"),
        (b"HTTP/1.1 abc\r\n\r\n", "connection_lost"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200_000, "answer_too_large"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n" + b" " * 2_000_000, "answer_too_large"),
    ],
    ids=["nothing", "ssh", "bad status", "headers without end", "body too large"],
)
def test_an_answer_that_is_none_of_slacks_is_ambiguous(answer: bytes, code: str) -> None:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer)

    with RawServer(serve) as server:
        result = slack_sink(BotToken("xoxb-1"), base_url=f"http://127.0.0.1:{server.port}").post(MESSAGE)
    assert isinstance(result, Ambiguous)
    assert result.code == code


def test_an_answer_without_end_is_cut_off() -> None:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b'{"ok": true, ' * 10_000)

    with RawServer(serve) as server:
        result = slack_sink(BotToken("xoxb-1"), base_url=f"http://127.0.0.1:{server.port}/api/").post(MESSAGE)
    assert isinstance(result, Ambiguous)


@pytest.mark.parametrize("reply", [Hang(), Drip(interval_s=0.05)], ids=["hang", "drip"])
@pytest.mark.parametrize("make_sink", [token_sink, webhook_sink], ids=["token", "webhook"])
def test_the_deadline_holds_over_the_whole_post(
    slack: StandIn, make_sink: Callable[..., SlackSink], reply: FaultReply
) -> None:
    slack.faults.add(landed(reply))
    began = time.monotonic()
    result = make_sink(slack, timeout_s=0.3).post(MESSAGE)
    took = time.monotonic() - began
    assert isinstance(result, Ambiguous)
    assert result.code == "reply_timeout"
    assert 0.29 < took < 2
    assert len(slack.ledger) == 1


def test_the_deadline_holds_over_a_dripping_body(slack: StandIn) -> None:
    slack.faults.add(landed(Drip(interval_s=0.05, at_once=150)))
    began = time.monotonic()
    result = token_sink(slack, timeout_s=0.3).post(MESSAGE)
    assert isinstance(result, Ambiguous)
    assert result.code == "reply_timeout"
    assert time.monotonic() - began < 2


def test_a_check_names_the_workspace_the_scopes_and_slacks_time() -> None:
    with StandIn(setup=Setup(clock=Clock())) as slack:
        expected = Workspace("Stand-in", "dispatcher", slack.workspace.setup.scopes, round(Clock.now) * US)
        assert token_sink(slack).check() == expected
    assert len(slack.ledger) == 0


def test_a_check_with_a_revoked_token_says_what_to_do(slack: StandIn) -> None:
    slack.workspace.revoke_token("token_revoked")
    result = token_sink(slack).check()
    assert isinstance(result, Paused)
    assert "DISPATCHER_SLACK_TOKEN" in result.detail


def test_a_check_while_slack_is_away_is_a_value_too(slack: StandIn) -> None:
    sink = token_sink(slack)
    with slack.down():
        assert isinstance(sink.check(), Retryable)


def test_a_webhook_cannot_be_checked_without_posting(slack: StandIn) -> None:
    assert webhook_sink(slack).check() == Unchecked()
    assert slack.workspace.posts == 0


def test_a_missing_scope_pauses_and_names_it() -> None:
    with StandIn(setup=Setup(scopes=("channels:read",))) as slack:
        result = token_sink(slack).post(MESSAGE)
    assert isinstance(result, Paused)
    assert "needed: chat:write; provided: channels:read" in result.detail


def test_importing_the_sink_leaves_slack_sdk_alone() -> None:
    code = "import sys, dispatcher.slack.sink, dispatcher.slack.console; sys.exit('slack_sdk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_edit_takes_the_place_of_what_was_posted(slack: StandIn) -> None:
    sink = token_sink(slack)
    receipt = sink.post(MESSAGE)
    assert isinstance(receipt, Receipt)
    assert receipt.ts is not None
    assert sink.can_update
    edited = sink.update(receipt.channel, receipt.ts, Message("event-1", "#ops", "disk empty"))
    assert edited == receipt
    [posted] = slack.ledger.posted()
    assert (posted.text, [each.text for each in posted.earlier]) == ("disk empty", ["disk full"])
    assert posted.metadata is not None


def test_an_edit_takes_the_place_of_blocks(slack: StandIn) -> None:
    sink = token_sink(slack)
    receipt = sink.post(replace(MESSAGE, blocks=({"type": "divider"},)))
    assert isinstance(receipt, Receipt)
    assert receipt.ts is not None
    sink.update(receipt.channel, receipt.ts, Message("event-1", "#ops", "disk empty"))
    [posted] = slack.ledger.posted()
    assert (posted.text, posted.blocks) == ("disk empty", ())


def test_an_edit_of_what_is_not_there_is_rejected(slack: StandIn) -> None:
    result = token_sink(slack).update("#ops", "1732100000.000100", MESSAGE)
    assert isinstance(result, Rejected)


def test_a_webhook_cannot_edit(slack: StandIn) -> None:
    assert not webhook_sink(slack).can_update
