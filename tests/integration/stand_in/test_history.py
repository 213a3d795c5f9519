"""What the local Slack gives back: ``conversations.history``, ``conversations.replies``, ``conversations.list``."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from dispatcher.stand_in import Reset, Setup, SlackError, StandIn, not_landed
from tests.support.slack import Clock, call, post, request

MARK = {"event_type": "dispatcher_event", "event_payload": {"id": "mark-1"}}
BEGIN = 1_732_100_000


@pytest.fixture
def slack() -> Iterator[StandIn]:
    with StandIn(setup=Setup(clock=Clock())) as stand_in:
        yield stand_in


def fill(slack: StandIn, count: int, **arguments: str) -> str:
    """Post so many, a microsecond after each other; returns the id of their channel."""
    answers = [post(slack, text=f"text {number}", **arguments) for number in range(count)]
    return str(answers[0]["channel"])


def history(slack: StandIn, channel: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
    return call(slack, "conversations.history", channel=channel, **arguments).json


def texts(answer: dict[str, Any]) -> list[int]:
    """The numbers in the texts, in order."""
    return [int(message["text"].removeprefix("text ")) for message in answer["messages"]]


def test_the_newest_come_first(slack: StandIn) -> None:
    channel = fill(slack, 3)
    fill(slack, 1, channel="#other")
    answer = history(slack, channel)
    assert (texts(answer), answer["has_more"]) == ([2, 1, 0], False)
    assert "response_metadata" not in answer
    assert [message["ts"] for message in answer["messages"]] == [f"{BEGIN}.{number:06d}" for number in (2, 1, 0)]


def by_json(slack: StandIn, method: str, arguments: dict[str, str]) -> Any:  # noqa: ANN401 - JSON
    return call(slack, method, **arguments).json


def by_form(slack: StandIn, method: str, arguments: dict[str, str]) -> Any:  # noqa: ANN401 - JSON
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return request(slack.base_url + method, urlencode({"token": slack.token, **arguments}), **headers).json


def by_get(slack: StandIn, method: str, arguments: dict[str, str]) -> Any:  # noqa: ANN401 - JSON
    url = f"{slack.base_url}{method}?{urlencode(arguments)}"
    return request(url, Authorization=f"Bearer {slack.token}").json


@pytest.mark.parametrize("way", [by_json, by_form, by_get])
def test_readings_are_asked_for_in_three_ways(
    slack: StandIn, way: Callable[[StandIn, str, dict[str, str]], dict[str, Any]]
) -> None:
    head = post(slack, text="text 0", metadata=MARK)
    post(slack, text="text 1", thread_ts=head["ts"], metadata=MARK)
    post(slack, text="text 2", metadata=MARK)
    asked = {"channel": head["channel"], "include_all_metadata": "true", "limit": "1", "oldest": "0"}
    page = way(slack, "conversations.history", asked)
    assert (texts(page), page["messages"][0]["metadata"], page["has_more"]) == ([2], MARK, True)
    rest = way(slack, "conversations.history", {**asked, "cursor": page["response_metadata"]["next_cursor"]})
    assert (texts(rest), rest["has_more"]) == ([0], False)
    assert texts(way(slack, "conversations.replies", {"channel": head["channel"], "ts": head["ts"]})) == [0, 1]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"oldest": f"{BEGIN}.000001"}, [4, 3, 2]),
        ({"oldest": f"{BEGIN}.000001", "inclusive": True}, [4, 3, 2, 1]),
        ({"latest": f"{BEGIN}.000002"}, [1, 0]),
        ({"latest": f"{BEGIN}.000002", "inclusive": True}, [2, 1, 0]),
        ({"oldest": f"{BEGIN}.000001", "latest": f"{BEGIN}.000003"}, [2]),
        ({"oldest": f"{BEGIN}.000001", "latest": f"{BEGIN}.000003", "inclusive": "1"}, [3, 2, 1]),
        ({"oldest": BEGIN - 1}, [4, 3, 2, 1, 0]),
        ({"oldest": BEGIN + 1}, []),
        ({"inclusive": True, "oldest": "", "limit": ""}, [4, 3, 2, 1, 0]),
    ],
    ids=str,
)
def test_a_span_of_time_is_read(slack: StandIn, asked: dict[str, object], found: list[int]) -> None:
    assert texts(history(slack, fill(slack, 5), **asked)) == found


def test_pages_follow_each_other_also_when_more_arrives_in_between(slack: StandIn) -> None:
    channel = fill(slack, 7)
    read, cursor = [], ""
    while True:
        page = history(slack, channel, limit=3, cursor=cursor)
        read.append(texts(page))
        if not page["has_more"]:
            break
        cursor = page["response_metadata"]["next_cursor"]
        post(slack, text="text 99")
    assert read == [[6, 5, 4], [3, 2, 1], [0]]


def test_a_hundred_are_read_unless_more_are_asked_for(slack: StandIn) -> None:
    head = post(slack, text="text 0")
    for number in range(110):
        post(slack, text=f"text {number}", thread_ts=head["ts"])
    fill(slack, 100)
    assert len(history(slack, head["channel"])["messages"]) == 100
    assert len(history(slack, head["channel"], limit=101)["messages"]) == 101
    assert len(history(slack, head["channel"], limit=999)["messages"]) == 101
    assert len(call(slack, "conversations.replies", channel=head["channel"], ts=head["ts"]).json["messages"]) == 111


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"oldest": "yesterday"}, "invalid_ts_oldest"),
        ({"oldest": [1]}, "invalid_ts_oldest"),
        ({"latest": "-1"}, "invalid_ts_latest"),
        ({"limit": 0}, "invalid_limit"),
        ({"limit": "all"}, "invalid_limit"),
        ({"limit": 1_000}, "invalid_limit"),
        ({"cursor": "nope"}, "invalid_cursor"),
        ({"cursor": b64encode(b"next:x").decode()}, "invalid_cursor"),
        ({"cursor": b64encode(b"123").decode()}, "invalid_cursor"),
    ],
    ids=str,
)
def test_a_span_that_is_none_is_refused(slack: StandIn, asked: dict[str, object], code: str) -> None:
    assert history(slack, fill(slack, 1), **asked) == {"ok": False, "error": code}


@pytest.mark.parametrize("said", [None, False, "false", 0, ""])
def test_of_metadata_only_the_type_is_shown_unless_all_is_asked_for(slack: StandIn, said: object) -> None:
    head = post(slack, metadata=MARK)
    asked: dict[str, Any] = {} if said is None else {"include_all_metadata": said}
    for method, more in (("conversations.history", {}), ("conversations.replies", {"ts": head["ts"]})):
        [message] = call(slack, method, channel=head["channel"], **asked, **more).json["messages"]
        assert message["metadata"] == {"event_type": MARK["event_type"]}
        [message] = call(slack, method, channel=head["channel"], include_all_metadata=True, **more).json["messages"]
        assert message["metadata"] == MARK


def test_replies_stand_in_their_thread_and_not_in_the_channel(slack: StandIn) -> None:
    head = post(slack, text="text 0")
    for number in (1, 2):
        post(slack, text=f"text {number}", thread_ts=head["ts"])
    post(slack, text="text 3", thread_ts=head["ts"], reply_broadcast=True)
    broadcast, shown = history(slack, head["channel"])["messages"]
    assert (broadcast["text"], broadcast["subtype"]) == ("text 3", "thread_broadcast")
    assert (shown["reply_count"], shown["thread_ts"], shown["latest_reply"]) == (3, head["ts"], f"{BEGIN}.000003")
    first = call(slack, "conversations.replies", channel=head["channel"], ts=head["ts"], limit=2).json
    assert (texts(first), first["has_more"]) == ([0, 1], True)
    cursor = first["response_metadata"]["next_cursor"]
    last = call(slack, "conversations.replies", channel=head["channel"], ts=head["ts"], cursor=cursor).json
    assert (texts(last), last["has_more"]) == ([2, 3], False)


def test_the_ts_of_a_reply_gets_that_reply_and_an_unknown_one_is_refused(slack: StandIn) -> None:
    head = post(slack, text="text 0")
    reply = post(slack, text="text 1", thread_ts=head["ts"])
    answer = call(slack, "conversations.replies", channel=head["channel"], ts=reply["ts"]).json
    assert texts(answer) == [1]
    for ts in ("1.000001", None, [1]):
        refusal = call(slack, "conversations.replies", channel=head["channel"], ts=ts).json
        assert refusal == {"ok": False, "error": "thread_not_found"}


def test_a_channel_is_read_by_its_id_only(slack: StandIn) -> None:
    channel = fill(slack, 1)
    for reference in ("#ops", "ops", "C0NOBODY00", None, [channel]):
        refusal = call(slack, "conversations.history", channel=reference).json
        assert refusal == {"ok": False, "error": "channel_not_found"}
    [listed] = call(slack, "conversations.list").json["channels"]
    assert (listed["id"], listed["name"]) == (channel, "ops")


@pytest.mark.parametrize(
    ("scopes", "channel", "needed"),
    [
        (("chat:write",), "#ops", "channels:history"),
        (("chat:write", "groups:history"), "#ops", "channels:history"),
        (("chat:write", "channels:history"), "#secret", "groups:history"),
    ],
    ids=str,
)
def test_reading_needs_the_scope_of_the_channels_kind(scopes: tuple[str, ...], channel: str, needed: str) -> None:
    with StandIn(setup=Setup(scopes=scopes, private=frozenset({"#secret"}))) as slack:
        head = post(slack, channel)
        for method in ("conversations.history", "conversations.replies"):
            refusal = call(slack, method, channel=head["channel"], ts=head["ts"]).json
            assert refusal == {"ok": False, "error": "missing_scope", "needed": needed, "provided": ",".join(scopes)}


def test_the_app_reads_only_where_it_is_a_member() -> None:
    setup = Setup(uninvited=frozenset({"#open", "#secret"}), private=frozenset({"#secret"}))
    with StandIn(setup=setup) as slack:
        posted = post(slack, "#open")
        assert history(slack, posted["channel"])["error"] == "not_in_channel"
        assert post(slack, "#secret")["error"] == "channel_not_found"
        [listed] = call(slack, "conversations.list").json["channels"]
        assert (listed["name"], listed["is_member"]) == ("open", False)
    with StandIn(setup=Setup(uninvited=frozenset({"#open"}), scopes=("chat:write",))) as slack:
        assert post(slack, "#open")["error"] == "not_in_channel"


def test_a_message_shows_up_only_after_the_lag() -> None:
    clock = Clock()
    with StandIn(setup=Setup(history_lag_s=5, clock=clock)) as slack:
        head = post(slack, text="text 0")
        clock.now += 4.9
        assert history(slack, head["channel"])["messages"] == []
        refusal = call(slack, "conversations.replies", channel=head["channel"], ts=head["ts"]).json
        assert refusal["error"] == "thread_not_found"
        assert slack.ledger.per_channel() == {"#ops": 1}
        clock.now += 0.1
        assert texts(history(slack, head["channel"])) == [0]


@pytest.mark.parametrize("method", ["conversations.history", "conversations.replies"])
def test_fifteen_items_and_one_reading_a_minute(method: str) -> None:
    clock = Clock()
    with StandIn(setup=Setup(history_items=15, clock=clock)) as slack:
        head = post(slack, text="text 0")
        more = {} if method == "conversations.history" else {"thread_ts": head["ts"]}
        fill(slack, 20, **more)
        page = call(slack, method, channel=head["channel"], ts=head["ts"], limit=200).json
        assert (len(page["messages"]), page["has_more"]) == (15, True)
        refusal = call(slack, method, channel=head["channel"], ts=head["ts"])
        assert (refusal.status, refusal.headers["Retry-After"]) == (429, "60")
        assert refusal.json == {"ok": False, "error": "ratelimited"}
        clock.now += 60
        assert call(slack, method, channel=head["channel"], ts=head["ts"]).json["ok"] is True
        assert post(slack)["ok"] is True


def test_a_webhooks_message_is_read_too(slack: StandIn) -> None:
    request(slack.webhook_url, json.dumps({"text": "hi"}))
    [posted] = slack.ledger.posted()
    [message] = history(slack, posted.channel_id)["messages"]
    assert (message["text"], message["subtype"]) == ("hi", "bot_message")


def names(answer: dict[str, Any]) -> list[str]:
    return [channel["name"] for channel in answer["channels"]]


def test_channels_are_listed_by_name_and_kind() -> None:
    setup = Setup(
        channels=frozenset({"#c", "#a", "#b", "#p", "#q"}),
        private=frozenset({"#p", "#q"}),
        uninvited=frozenset({"#a", "#q"}),
        archived=frozenset({"#b"}),
    )
    with StandIn(setup=setup) as slack:
        listed = call(slack, "conversations.list").json
        assert names(listed) == ["a", "b", "c"]
        assert [(each["is_member"], each["is_archived"]) for each in listed["channels"]] == [
            (False, False),
            (True, True),
            (True, False),
        ]
        assert listed["channels"][2]["id"] == post(slack, "#c")["channel"]
        assert names(call(slack, "conversations.list", exclude_archived=True).json) == ["a", "c"]
        both = call(slack, "conversations.list", types="public_channel, private_channel").json
        assert [each["is_private"] for each in both["channels"]] == [False, False, False, True]
        assert names(call(slack, "conversations.list", types="private_channel").json) == ["p"]
        assert call(slack, "conversations.list", types="im").json["error"] == "invalid_types"


def test_a_channel_is_there_from_the_first_post_on_that_names_it_whatever_that_met(slack: StandIn) -> None:
    slack.faults.add(not_landed(SlackError("internal_error")), not_landed(Reset()))
    post(slack, "#a")
    with pytest.raises(OSError, match="reset"):
        post(slack, "b")
    post(slack, "#")
    assert names(call(slack, "conversations.list").json) == ["a", "b"]
    with StandIn(setup=Setup(channels=frozenset({"#a"}))) as settled:
        assert post(settled, "#b")["error"] == "channel_not_found"
        assert names(call(settled, "conversations.list").json) == ["a"]


def test_a_list_of_channels_has_pages() -> None:
    with StandIn(setup=Setup(channels=frozenset(f"#c{number:03}" for number in range(101)))) as slack:
        page = call(slack, "conversations.list").json
        assert len(page["channels"]) == 100
        read, cursor = [], ""
        while True:
            page = call(slack, "conversations.list", limit=60, cursor=cursor).json
            read += names(page)
            if not (cursor := page["response_metadata"]["next_cursor"]):
                break
        assert read == [f"c{number:03}" for number in range(101)]
        for asked, code in (({"limit": "x"}, "invalid_limit"), ({"cursor": "x"}, "invalid_cursor")):
            assert call(slack, "conversations.list", **asked).json["error"] == code


@pytest.mark.parametrize(("types", "needed"), [("public_channel", "channels:read"), ("private_channel", "groups:read")])
def test_a_list_of_channels_needs_the_scope_of_their_kind(types: str, needed: str) -> None:
    with StandIn(setup=Setup(scopes=("chat:write",))) as slack:
        assert call(slack, "conversations.list", types=types).json["needed"] == needed
