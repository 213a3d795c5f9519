"""ScanResult what was posted, over HTTP: found, absent, later, never."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import pytest

from dispatcher.core.posts import Message, Paused, Receipt
from dispatcher.core.states import MARGIN_US, Absent, ScanLater, ScanResult, Search, Unreadable
from dispatcher.core.units import US
from dispatcher.slack.credentials import BotToken
from dispatcher.slack.history import PAGE, SHORT_PAGE
from dispatcher.slack.replies import metadata_of
from dispatcher.stand_in import (
    Close,
    CutBody,
    FaultReply,
    Hang,
    Page,
    Reset,
    Setup,
    SlackError,
    StandIn,
    Text,
    TooManyRequests,
    not_landed,
)
from dispatcher.stand_in.channels import channel_id
from dispatcher.stand_in.setup import SCOPES
from tests.support.raw_server import RawServer, http_reply, read_request
from tests.support.slack import Clock, mark_of, post, slack_sink, token_sink, webhook_sink

OPS: Final = channel_id("#ops")
HISTORY, LIST, REPLIES = "conversations.history", "conversations.list", "conversations.replies"

Start = Callable[..., StandIn]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts stand-ins; they end with the test."""
    with ExitStack() as running:
        yield lambda **setup: running.enter_context(StandIn(setup=Setup(**setup)))


def deliver(slack: StandIn, event_id: str = "event-1", channel: str = "#ops", thread_ts: str | None = None) -> str:
    """Post by a sink of its own, so that the one that looks knows nothing of it; the ``ts``."""
    receipt = token_sink(slack).post(Message(event_id, channel, "disk full", thread_ts=thread_ts))
    assert isinstance(receipt, Receipt)
    assert receipt.ts is not None
    return receipt.ts


def search(
    *ids: str, channel: str = "#ops", since_us: int = 0, thread_ts: str | None = None, now_us: int = 0
) -> Search:
    return Search(channel, ids, since_us, now_us, thread_ts)


def calls(slack: StandIn, method: str) -> int:
    return slack.workspace.traffic.calls[method]


# Found and absent


def test_a_post_is_found_by_its_mark_under_the_id_of_its_channel(start: Start) -> None:
    slack = start()
    ts = deliver(slack)
    post(slack, text="of somebody else")
    post(slack, metadata=metadata_of(mark_of("another")))
    post(slack, metadata={"event_type": "another_app", "event_payload": {"id": mark_of("event-2")}})
    result = token_sink(slack).scan(search("event-1", "event-2"))
    assert (result.found, result.rest) == ({"event-1": Receipt(OPS, ts)}, Absent())


def test_messages_too_large_for_one_answer_are_read_in_smaller_pages(start: Start) -> None:
    slack = start()
    ts = deliver(slack)
    for _ in range(60):
        post(slack, text="\u0436" * 3_900)  # six bytes of JSON each
    result = token_sink(slack).scan(search("event-1"))
    assert (result.found, result.rest) == ({"event-1": Receipt(OPS, ts)}, Absent())


def test_channels_too_many_for_one_answer_are_listed_in_smaller_pages(start: Start) -> None:
    slack = start(channels=frozenset(f"#{n:05}{'x' * 75}" for n in range(9_000)) | {"#ops"})
    ts = deliver(slack)
    assert token_sink(slack).scan(search("event-1")).found == {"event-1": Receipt(OPS, ts)}


def test_a_list_goes_on_in_pages_of_the_size_that_was_answered(start: Start) -> None:
    slack = start(channels=frozenset(f"#{n:04}" for n in range(600)) | {"#ops"})
    ts = deliver(slack)
    slack.faults.add(not_landed(Text(" " * 1_100_000)), kind=LIST)
    assert token_sink(slack).scan(search("event-1")).found == {"event-1": Receipt(OPS, ts)}
    assert calls(slack, LIST) == 4, "one too large, and three of 249 channels at most"


def test_a_post_of_another_namespace_with_the_same_id_is_not_found(start: Start) -> None:
    slack = start()
    deliver(slack)
    sink = slack_sink(BotToken(slack.token), base_url=slack.base_url, namespace="staging")
    assert sink.scan(search("event-1")) == ScanResult({}, Absent())


def test_a_channel_without_messages_shows_nothing(start: Start) -> None:
    result = token_sink(start(channels=frozenset({"#ops"}))).scan(search("event-1"))
    assert (result.found, result.rest) == ({}, Absent())


def test_a_history_scan_goes_back_as_far_as_it_was_asked_to(start: Start) -> None:
    clock = Clock()
    slack = start(clock=clock)
    deliver(slack, "old")
    clock.now += 100
    deliver(slack, "new")
    sink = token_sink(slack)
    begin_us = round(clock.now * US)
    assert sink.scan(search("old", "new", since_us=begin_us)).found.keys() == {"new"}
    assert sink.scan(search("old", "new", since_us=begin_us - 100 * US)).found.keys() == {"old", "new"}


def test_a_history_scan_takes_as_many_pages_as_it_needs(start: Start) -> None:
    slack = start()
    first = deliver(slack)
    for _ in range(2 * PAGE):
        post(slack)
    result = token_sink(slack).scan(search("event-1"))
    assert result.found == {"event-1": Receipt(OPS, first)}
    assert calls(slack, HISTORY) == 3


def test_a_history_scan_ends_when_everything_is_found(start: Start) -> None:
    slack = start()
    for _ in range(PAGE):
        post(slack)
    deliver(slack)
    assert token_sink(slack).scan(search("event-1")).found.keys() == {"event-1"}
    assert calls(slack, HISTORY) == 1


def test_of_two_copies_one_receipt_is_told(start: Start) -> None:
    slack = start()
    stamps = {deliver(slack), deliver(slack)}
    (receipt,) = token_sink(slack).scan(search("event-1")).found.values()
    assert receipt.ts in stamps


# Threads


def test_a_reply_is_found_in_its_thread_and_not_in_the_channel(start: Start) -> None:
    slack = start()
    head = deliver(slack, "head")
    ts = deliver(slack, "reply", thread_ts=head)
    sink = token_sink(slack)
    assert sink.scan(search("reply", thread_ts=head)).found == {"reply": Receipt(OPS, ts)}
    assert sink.scan(search("reply")).found == {}
    assert (calls(slack, REPLIES), calls(slack, HISTORY)) == (1, 1)


def test_a_long_thread_is_read_in_pages(start: Start) -> None:
    slack = start()
    head = deliver(slack, "head")
    for _ in range(PAGE + 1):
        post(slack, thread_ts=head)
    deliver(slack, "reply", thread_ts=head)
    assert token_sink(slack).scan(search("reply", thread_ts=head)).found.keys() == {"reply"}
    assert calls(slack, REPLIES) == 2


@pytest.mark.parametrize("replies", [2, PAGE + 1], ids=["short", "of several pages"])
def test_a_reply_under_another_reply_is_found_in_the_thread_of_both(start: Start, replies: int) -> None:
    slack = start()
    head = deliver(slack, "head")
    named = [post(slack, thread_ts=head)["ts"] for _ in range(replies)][-1]
    ts = deliver(slack, "reply", thread_ts=named)
    result = token_sink(slack).scan(search("reply", "never", thread_ts=named))
    assert (result.found, result.rest) == ({"reply": Receipt(OPS, ts)}, Absent())


def test_a_reply_to_a_message_that_is_not_there_is_looked_for_in_the_channel(start: Start) -> None:
    slack = start()
    gone = "1732100000.000100"
    ts = deliver(slack, thread_ts=gone)
    result = token_sink(slack).scan(search("event-1", thread_ts=gone))
    assert (result.found, result.rest) == ({"event-1": Receipt(OPS, ts)}, Absent())
    rest = token_sink(slack).scan(search("event-1", "event-2", thread_ts=gone)).rest
    assert rest == Unreadable("thread_not_found", "conversations.replies: the thread is not there")


def test_a_channel_that_cannot_be_read_now_is_read_later_beside_a_thread_that_is_gone(start: Start) -> None:
    slack = start()
    gone = "1732100000.000100"
    deliver(slack, thread_ts=gone)
    slack.faults.add(not_landed(Page(503)), kind=HISTORY)
    assert isinstance(token_sink(slack).scan(search("event-1", thread_ts=gone)).rest, ScanLater)


# Names and ids of channels


def test_the_id_of_a_channel_is_reconciled_once(start: Start) -> None:
    slack = start()
    deliver(slack)
    sink = token_sink(slack)
    for _ in range(2):
        assert sink.scan(search("event-1")).found.keys() == {"event-1"}
    assert (calls(slack, LIST), calls(slack, HISTORY)) == (1, 2)


def test_a_post_tells_the_id_of_its_channel(start: Start) -> None:
    slack = start()
    sink = token_sink(slack)
    sink.post(Message("event-1", "#ops", "disk full"))
    assert sink.scan(search("event-1")).found.keys() == {"event-1"}
    assert calls(slack, LIST) == 0


@pytest.mark.parametrize("channel", [OPS, "ops", "#ops"], ids=["id", "bare name", "name"])
def test_a_channel_is_known_by_its_id_and_its_name(start: Start, channel: str) -> None:
    slack = start()
    deliver(slack, channel="#ops")
    assert token_sink(slack).scan(search("event-1", channel=channel)).found.keys() == {"event-1"}
    assert calls(slack, LIST) == (channel != OPS)


def test_a_private_channel_is_found_too(start: Start) -> None:
    slack = start(private=frozenset({"#secret"}))
    deliver(slack, channel="#secret")
    assert token_sink(slack).scan(search("event-1", channel="#secret")).found.keys() == {"event-1"}


def test_public_channels_are_listed_when_private_ones_may_not_be(start: Start) -> None:
    slack = start(scopes=tuple(scope for scope in SCOPES if scope != "groups:read"))
    deliver(slack)
    assert token_sink(slack).scan(search("event-1")).found.keys() == {"event-1"}
    assert calls(slack, LIST) == 2


def test_a_channel_that_the_list_does_not_show_cannot_be_read(start: Start) -> None:
    slack = start(channels=frozenset({"#ops"}))
    rest = token_sink(slack).scan(search("event-1", channel="#gone")).rest
    assert rest == Unreadable("channel_not_listed", "conversations.list does not show it: name it by its id")
    assert calls(slack, HISTORY) == 0


def test_a_channel_that_may_be_a_private_one_that_is_not_listed_cannot_be_read(start: Start) -> None:
    slack = start(scopes=tuple(scope for scope in SCOPES if scope != "groups:read"), private=frozenset({"#secret"}))
    deliver(slack, channel="#secret")
    rest = token_sink(slack).scan(search("event-1", channel="#secret")).rest
    assert isinstance(rest, Unreadable)
    assert rest.code == "channel_not_found"


@pytest.mark.parametrize("person", ["@anna", "U0123456789", "W0123456789"])
def test_a_person_is_no_channel_and_cannot_be_read(start: Start, person: str) -> None:
    slack = start()
    rest = token_sink(slack).scan(search("event-1", channel=person)).rest
    assert isinstance(rest, Unreadable)
    assert (rest.code, calls(slack, LIST)) == ("no_channel_id", 0)


def test_a_list_of_channels_in_pages_is_read_until_the_name_is_found(start: Start) -> None:
    names = frozenset(f"#c{n:04}" for n in range(1_200))
    slack = start(channels=names)
    deliver(slack, channel="#c1100")
    sink = token_sink(slack)
    assert sink.scan(search("event-1", channel="#c1100")).found.keys() == {"event-1"}
    pages = calls(slack, LIST)
    assert pages > 1
    assert sink.scan(search("event-1", channel="#c0001")).rest == Absent()
    assert calls(slack, LIST) == pages, "what was listed on the way is known"


# What can never be read


@pytest.mark.parametrize("missing", ["channels:history", "groups:history"])
def test_without_the_scope_nothing_can_be_read(start: Start, missing: str) -> None:
    channel = "#secret" if missing.startswith("groups") else "#ops"
    scopes = tuple(scope for scope in SCOPES if scope != missing)
    slack = start(scopes=scopes, private=frozenset({"#secret"}))
    deliver(slack, channel=channel)
    rest = token_sink(slack).scan(search("event-1", channel=channel)).rest
    assert isinstance(rest, Unreadable)
    assert rest.code == "missing_scope"
    assert missing in rest.detail


def test_in_a_channel_that_the_app_is_not_in_nothing_can_be_read(start: Start) -> None:
    slack = start(uninvited=frozenset({"#open"}))
    deliver(slack, channel="#open")
    rest = token_sink(slack).scan(search("event-1", channel="#open")).rest
    assert isinstance(rest, Unreadable)
    assert rest.code == "not_in_channel"


def test_a_history_of_fifteen_messages_and_one_page_a_minute_cannot_be_read_to_its_end(start: Start) -> None:
    clock = Clock()
    slack = start(history_items=SHORT_PAGE, clock=clock)
    deliver(slack, "early")
    for _ in range(SHORT_PAGE):
        post(slack)
    deliver(slack, "late")
    sink = token_sink(slack)
    result = sink.scan(search("early", "late"))
    assert result.found.keys() == {"late"}
    assert result.rest == ScanLater("ratelimited", f"Slack limits {HISTORY}", 60 * US, reached=True)
    assert calls(slack, HISTORY) == 2
    clock.now += 60
    result = sink.scan(search("early", "late"))
    assert result.found.keys() == {"late"}
    assert result.rest == Unreadable("history_cut_short", "Slack shows this app 15 messages at a time")
    assert calls(slack, HISTORY) == 3, "what the first history scan met is known"


def page_of(*messages: object, cursor: str | None = None, has_more: bool | None = None) -> Text:
    """An answer to a result."""
    body: dict[str, object] = {"ok": True, "messages": list(messages)}
    if cursor is not None:
        body["response_metadata"] = {"next_cursor": cursor}
    if has_more is not None:
        body["has_more"] = has_more
    return Text(json.dumps(body))


SHOWN: Final = {"ts": "1.1", "metadata": metadata_of(mark_of("event-1"))}
OTHER: Final = {"ts": "1.2"}


@pytest.mark.parametrize(
    "pages",
    [
        [page_of(OTHER, cursor="a", has_more=True), page_of(SHOWN, has_more=False)],
        [page_of(cursor="a", has_more=True), page_of(OTHER, cursor="b", has_more=True), page_of(SHOWN)],
        [page_of(*[OTHER] * 15, cursor="a", has_more=True), page_of(SHOWN)],
        [page_of(OTHER, cursor="a"), page_of(SHOWN, cursor="")],
        [page_of(OTHER, cursor="a", has_more=False), page_of(SHOWN)],
    ],
    ids=["short", "empty", "fifteen", "no has_more", "has_more is false"],
)
@pytest.mark.parametrize("thread_ts", [None, "1.0"], ids=["channel", "thread"])
def test_a_page_with_a_cursor_is_followed_however_short_it_is(
    start: Start, pages: list[Text], thread_ts: str | None
) -> None:
    slack = start()
    method = HISTORY if thread_ts is None else REPLIES
    slack.faults.add(*map(not_landed, pages), kind=method)
    result = token_sink(slack).scan(search("event-1", channel=OPS, thread_ts=thread_ts))
    assert result.found.keys() == {"event-1"}
    assert calls(slack, method) == len(pages)


def test_more_without_a_cursor_cannot_be_read(start: Start) -> None:
    slack = start()
    slack.faults.add(not_landed(page_of(OTHER, has_more=True)), kind=HISTORY)
    rest = token_sink(slack).scan(search("event-1", channel=OPS)).rest
    assert rest == Unreadable("history_cut_short", "Slack shows this app 1 messages at a time")


@pytest.mark.parametrize("cursors", [["a"] * 2, ["a", "b", "a"]], ids=["the same", "an earlier one"])
def test_a_cursor_that_comes_again_ends_the_scan(start: Start, cursors: list[str]) -> None:
    slack = start()
    slack.faults.add(*(not_landed(page_of(cursor=each, has_more=True)) for each in cursors), kind=HISTORY)
    rest = token_sink(slack).scan(search("event-1", channel=OPS)).rest
    assert rest == Unreadable("history_cut_short", "the cursor of its next page was followed before")
    assert calls(slack, HISTORY) == len(cursors)


def test_a_history_without_an_end_is_read_for_fifty_pages(start: Start) -> None:
    slack = start()
    pages = [page_of(cursor=str(n), has_more=True) for n in range(51)]
    slack.faults.add(*map(not_landed, pages), kind=HISTORY)
    rest = token_sink(slack).scan(search("event-1", channel=OPS)).rest
    assert rest == Unreadable("history_too_long", "more follows after 0 messages in 50 pages")


def test_a_list_of_channels_whose_cursor_comes_again_has_ended(start: Start) -> None:
    slack = start()
    page = Text(json.dumps({"ok": True, "channels": [], "response_metadata": {"next_cursor": "a"}}))
    slack.faults.add(*[not_landed(page)] * 3, kind=LIST)
    rest = token_sink(slack).scan(search("event-1")).rest
    assert isinstance(rest, Unreadable)
    assert (rest.code, calls(slack, LIST)) == ("channel_not_listed", 2)


def test_a_history_that_shows_our_own_post_without_its_metadata_cannot_be_read(start: Start) -> None:
    slack = start()
    sink = token_sink(slack)
    receipt = sink.post(Message("event-2", "#ops", "disk full"))
    assert isinstance(receipt, Receipt)
    bare = page_of(OTHER, {"ts": receipt.ts, "text": "disk full"})
    slack.faults.add(not_landed(bare), not_landed(bare), kind=HISTORY)
    rest = sink.scan(search("event-1")).rest
    assert rest == Unreadable("no_metadata", "it shows a post of this worker without the metadata")
    assert token_sink(slack).scan(search("event-1")).rest == Absent(), "of a post of somebody else nothing is known"


def test_our_newest_post_that_a_person_deleted_makes_no_history_unreadable(start: Start) -> None:
    slack = start()
    sink = token_sink(slack)
    receipt = sink.post(Message("event-2", "#ops", "disk full"))
    assert isinstance(receipt, Receipt)
    deleted = {"ts": receipt.ts, "subtype": "tombstone", "hidden": True, "text": "This message was deleted."}
    slack.faults.add(not_landed(page_of(OTHER, deleted)), kind=HISTORY)
    assert sink.scan(search("event-1")).rest == Absent()


def test_a_longer_page_shows_that_a_429_after_fifteen_messages_was_a_passing_one(start: Start) -> None:
    slack = start()
    fifteen = page_of(*[OTHER] * 15, cursor="a", has_more=True)
    sink = token_sink(slack)
    slack.faults.add(not_landed(fifteen), not_landed(TooManyRequests("7")), kind=HISTORY)
    assert isinstance(sink.scan(search("event-1", channel=OPS)).rest, ScanLater)
    longer = page_of(*[OTHER] * 16, cursor="b", has_more=True)
    slack.faults.add(not_landed(longer), not_landed(fifteen), not_landed(page_of(SHOWN)), kind=HISTORY)
    assert sink.scan(search("event-1", channel=OPS)).found.keys() == {"event-1"}


def test_a_history_of_fifteen_messages_that_shows_all_there_is_is_complete(start: Start) -> None:
    slack = start(history_items=SHORT_PAGE)
    for _ in range(SHORT_PAGE):
        post(slack)
    assert token_sink(slack).scan(search("event-1")).rest == Absent()


def test_through_a_webhook_nothing_can_be_read(start: Start) -> None:
    slack = start()
    assert webhook_sink(slack).scan(search("event-1")) == webhook_sink(slack).scan(search("event-2"))
    rest = webhook_sink(slack).scan(search("event-1")).rest
    assert rest == Unreadable("webhook", "nothing can be read through a webhook")


# Clocks that differ


def apart(start: Start, ahead_s: float) -> tuple[StandIn, Search]:
    """A Slack with one message, and a history scan by a clock that is so far ahead of Slack's, ten seconds later."""
    clock = Clock()
    slack = start(clock=clock)
    deliver(slack)
    post(slack, text="another")
    first_us = round((clock.now + ahead_s) * US)
    clock.now += 10
    return slack, search("event-1", "never", channel=OPS, since_us=first_us - MARGIN_US, now_us=first_us + 10 * US)


@pytest.mark.parametrize("ahead_s", [-3_600, -90, -5, 0, 5, 50])
def test_within_the_margin_a_history_scan_says_what_is_absent(start: Start, ahead_s: float) -> None:
    slack, asked = apart(start, ahead_s)
    result = token_sink(slack).scan(asked)
    assert (set(result.found), result.rest) == ({"event-1"}, Absent())


@pytest.mark.parametrize("ahead_s", [57, 61, 90, 3_600, 86_400])
def test_no_message_counts_as_absent_while_the_servers_clock_is_too_far_ahead(start: Start, ahead_s: float) -> None:
    slack, asked = apart(start, ahead_s)
    result = token_sink(slack).scan(asked)
    assert result.found.keys() == {"event-1"}
    assert result.rest == ScanLater(
        "clock_skew",
        f"the Redis server's clock is {ahead_s:.0f} s ahead of Slack's, so a message that is not found may have "
        "arrived: set the clocks right (NTP)",
        reached=True,
    )


def test_the_list_of_channels_shows_the_clocks_too(start: Start) -> None:
    slack, asked = apart(start, 90)
    assert token_sink(slack).scan(replace(asked, channel="#ops")).found.keys() == {"event-1"}
    assert (calls(slack, LIST), calls(slack, HISTORY)) == (1, 1)


def test_a_history_scan_that_was_late_itself_still_finds_what_arrived(start: Start) -> None:
    slack, asked = apart(start, 65)
    slack.workspace.setup.clock.now += 20  # type: ignore[attr-defined] # apart() sets a Clock
    result = token_sink(slack).scan(asked)
    assert (set(result.found), result.rest) == ({"event-1"}, Absent())


@pytest.mark.parametrize("thread", [False, True], ids=["channel", "thread"])
def test_a_history_scan_of_several_pages_begins_again_from_further_back(start: Start, thread: bool) -> None:  # noqa: FBT001 - a case
    clock = Clock()
    slack = start(clock=clock)
    head = deliver(slack, "head")
    deliver(slack, "early", thread_ts=head if thread else None)
    clock.now += 60
    for _ in range(PAGE + 1):
        post(slack, **{"thread_ts": head} if thread else {})
    now_us = round((clock.now + 90) * US)
    asked = search("early", channel=OPS, since_us=now_us - 90 * US, now_us=now_us, thread_ts=head if thread else None)
    assert token_sink(slack).scan(asked).found.keys() == {"early"}


@pytest.mark.parametrize("date", [None, "yesterday", "Fri, 20 Nov 99999999999999999999 10:00:00 GMT"])
def test_an_answer_without_a_date_that_can_be_read_is_taken_as_it_is(date: str | None) -> None:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        headers = () if date is None else (f"Date: {date}",)
        connection.sendall(http_reply(b'{"ok": true, "messages": [], "has_more": false}', "200 OK", *headers))

    with RawServer(serve) as server:
        sink = slack_sink(BotToken("xoxb-1"), base_url=f"http://127.0.0.1:{server.port}/api/")
        assert sink.scan(search("event-1", channel=OPS, now_us=round(time.time() * US))).rest == Absent()


# What cannot be read now


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Page(500), "http_500"),
        (Page(503), "http_503"),
        (Page(403), "http_403"),
        (SlackError("internal_error"), "internal_error"),
        (Text(""), "unreadable_reply"),
        (Text("{nope"), "unreadable_reply"),
        (Text("[]"), "unreadable_reply"),
        (CutBody(), "connection_lost"),
        (Reset(), "connection_lost"),
        (Close(), "connection_lost"),
        (Hang(), "reply_timeout"),
        pytest.param(Text(" " * 1_100_000), "answer_too_large", id="one row is too large"),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", [HISTORY, LIST])
def test_a_history_scan_that_breaks_off_is_made_later_and_did_not_reach_slack(
    start: Start, method: str, reply: FaultReply, code: str
) -> None:
    slack = start()
    deliver(slack)
    slack.faults.add(*[not_landed(reply)] * (6 if code == "answer_too_large" else 1), kind=method)
    result = token_sink(slack, timeout_s=0.3 if isinstance(reply, Hang) else 5).scan(search("event-1"))
    assert result.found == {}
    assert isinstance(result.rest, ScanLater)
    assert (result.rest.code, result.rest.reached, result.rest.retry_after_us) == (code, False, None)


@pytest.mark.parametrize("rows", ["null", "{}", '"x"', "[1]", '[{"name": "a"}, null]'])
@pytest.mark.parametrize(("method", "key"), [(HISTORY, "messages"), (LIST, "channels")])
def test_an_answer_without_a_list_of_objects_is_no_history_scan(start: Start, method: str, key: str, rows: str) -> None:
    slack = start()
    deliver(slack)
    slack.faults.add(not_landed(Text(f'{{"ok": true, "{key}": {rows}}}')), kind=method)
    sink = token_sink(slack)
    rest = sink.scan(search("event-1")).rest
    assert isinstance(rest, ScanLater)
    assert (rest.code, rest.reached) == ("unreadable_reply", False)
    assert rest.detail.endswith(f"({key} is no list of objects)")
    assert sink.scan(search("event-1")).found.keys() == {"event-1"}


def test_events_on_the_pages_before_a_failure_are_found(start: Start) -> None:
    slack = start()
    deliver(slack)
    shown = {"ts": "1.1", "metadata": metadata_of(mark_of("late"))}
    page = {"ok": True, "messages": [shown] * PAGE, "has_more": True, "response_metadata": {"next_cursor": "x"}}
    slack.faults.add(not_landed(Text(json.dumps(page))), not_landed(Page(503)), kind=HISTORY)
    result = token_sink(slack).scan(search("event-1", "late"))
    assert result.found == {"late": Receipt(OPS, "1.1")}
    assert isinstance(result.rest, ScanLater)


def test_connections_that_are_refused_did_not_reach_slack(start: Start) -> None:
    slack = start()
    sink = token_sink(slack)
    with slack.down():
        rest = sink.scan(search("event-1")).rest
    assert isinstance(rest, ScanLater)
    assert (rest.code, rest.reached) == ("connection_refused", False)


@pytest.mark.parametrize("method", [HISTORY, LIST])
def test_a_429_names_the_time_for_which_nobody_reads(start: Start, method: str) -> None:
    slack = start()
    deliver(slack)
    slack.faults.add(not_landed(TooManyRequests("17")), kind=method)
    rest = token_sink(slack).scan(search("event-1")).rest
    assert rest == ScanLater("ratelimited", f"Slack limits {method}", 17 * US, reached=True)


@pytest.mark.parametrize("code", ["invalid_auth", "token_revoked", "account_inactive"])
def test_a_token_that_is_refused_pauses_posting_too(start: Start, code: str) -> None:
    slack = start()
    deliver(slack)
    slack.workspace.revoke_token(code)
    rest = token_sink(slack).scan(search("event-1")).rest
    assert isinstance(rest, ScanLater)
    assert isinstance(rest.pause, Paused)
    assert (rest.code, rest.pause.code, rest.reached) == (code, code, True)


@pytest.mark.parametrize(
    "code", ["code_of_tomorrow", "channel_is_limited_access", "deprecated_endpoint", "enterprise_is_restricted"]
)
def test_a_history_scan_that_slack_refuses_is_never_complete(start: Start, code: str) -> None:
    slack = start()
    deliver(slack)
    slack.faults.add(not_landed(SlackError(code)), kind=HISTORY)
    rest = token_sink(slack).scan(search("event-1")).rest
    assert isinstance(rest, Unreadable)
    assert rest.code == code


@pytest.mark.parametrize("code", ["invalid_cursor", "request_timeout"])
def test_a_history_scan_that_slack_refuses_for_now_is_made_later(start: Start, code: str) -> None:
    slack = start()
    deliver(slack)
    slack.faults.add(not_landed(SlackError(code)), kind=HISTORY)
    rest = token_sink(slack).scan(search("event-1")).rest
    assert isinstance(rest, ScanLater)
    assert (rest.code, rest.reached, rest.retry_after_us) == (code, True, None)


def test_the_token_is_in_no_history_scan(start: Start) -> None:
    slack = start()
    deliver(slack)
    slack.workspace.revoke_token()
    assert slack.token not in repr(token_sink(slack).scan(search("event-1")))
