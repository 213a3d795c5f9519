"""How a message stands at the local Slack: in its thread, under its author, as its answer shows it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatcher.stand_in import Setup, StandIn
from tests.support.slack import Clock, call, post, request


@pytest.fixture
def slack() -> Iterator[StandIn]:
    with StandIn(setup=Setup(clock=Clock())) as stand_in:
        yield stand_in


def test_a_reply_stands_under_the_message_it_names_and_under_the_head_of_a_reply(slack: StandIn) -> None:
    head = post(slack, text="head")
    reply = post(slack, text="reply", thread_ts=head["ts"])
    assert reply["message"]["thread_ts"] == head["ts"]
    post(slack, text="deeper", thread_ts=reply["ts"])
    assert [posted.thread for posted in slack.ledger.posted()] == [None, head["ts"], head["ts"]]


@pytest.mark.parametrize("thread_ts", ["1.000001", "nonsense", 7, ["x"], ""])
def test_a_reply_to_nothing_is_an_ordinary_message(slack: StandIn, thread_ts: object) -> None:
    answer = post(slack, thread_ts=thread_ts, reply_broadcast=True)
    assert "thread_ts" not in answer["message"]
    [posted] = slack.ledger.posted()
    assert (posted.thread, posted.thread_ts, posted.is_broadcast) == (None, thread_ts, False)
    [message] = call(slack, "conversations.history", channel=answer["channel"]).json["messages"]
    assert "subtype" not in message


def test_a_thread_belongs_to_its_channel(slack: StandIn) -> None:
    head = post(slack, "#other")
    post(slack, "#ops", thread_ts=head["ts"])
    assert slack.ledger.posted()[1].thread is None


@pytest.mark.parametrize(
    ("author", "icons"),
    [
        ({"username": "Errors", "icon_emoji": ":fire:"}, {"emoji": ":fire:"}),
        ({"username": "Errors", "icon_url": "https://pictures.example/a.png"}, "a picture"),
        ({"icon_url": "https://pictures.example/a.png", "icon_emoji": ":fire:"}, {"emoji": ":fire:"}),
    ],
    ids=str,
)
def test_a_message_has_the_author_it_asks_for(slack: StandIn, author: dict[str, str], icons: object) -> None:
    message = post(slack, **author)["message"]
    assert (message.get("username"), message["subtype"]) == (author.get("username"), "bot_message")
    assert message["icons"] == ({"image_48": author["icon_url"]} if icons == "a picture" else icons)
    shown = request(slack.url + "ledger").json["posted"][0]
    assert shown["username"] == author.get("username")
    assert shown["icon"] == next(iter(message["icons"].values()))


@pytest.mark.parametrize("key", ["username", "icon_emoji", "icon_url"])
def test_a_custom_author_needs_its_scope(key: str) -> None:
    with StandIn(setup=Setup(scopes=("chat:write",))) as slack:
        refusal = post(slack, **{key: ":fire:"})
        assert refusal == {
            "ok": False,
            "error": "missing_scope",
            "needed": "chat:write.customize",
            "provided": "chat:write",
        }
        assert post(slack)["ok"] is True
        assert len(slack.ledger) == 1


def test_an_author_that_is_no_text_is_refused(slack: StandIn) -> None:
    assert post(slack, username=["x"])["error"] == "invalid_arguments"


def test_a_webhook_has_the_author_it_was_made_with(slack: StandIn) -> None:
    request(slack.webhook_url, '{"text": "hi", "username": "Errors"}')
    [posted] = slack.ledger.posted()
    assert posted.username is None
