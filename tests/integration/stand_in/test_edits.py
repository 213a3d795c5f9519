"""``chat.update`` at the local Slack: what changes, what is kept, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher.stand_in import Setup, StandIn
from dispatcher.stand_in.channels import channel_id
from tests.support.slack import Clock, call, post, request

MARK = {"event_type": "dispatcher_event", "event_payload": {"id": "mark-1"}}
OTHER = {"event_type": "dispatcher_event", "event_payload": {"id": "mark-2"}}
BLOCK = {"type": "section", "text": {"type": "mrkdwn", "text": "hi"}}


@pytest.fixture
def slack() -> Iterator[StandIn]:
    with StandIn(setup=Setup(clock=Clock())) as stand_in:
        yield stand_in


def update(slack: StandIn, head: dict[str, Any], **arguments: object) -> Any:  # noqa: ANN401 - JSON
    return call(slack, "chat.update", **{"channel": head["channel"], "ts": head["ts"], **arguments}).json


def test_a_message_is_changed_in_its_place_and_all_it_said_is_kept(slack: StandIn) -> None:
    head = post(slack, text="one")
    post(slack, text="another")
    answer = update(slack, head, text="two")
    assert answer == {"ok": True, "channel": head["channel"], "ts": head["ts"], "text": "two"}
    update(slack, head, text="three")
    first, second = slack.ledger.posted()
    assert (first.text, first.texts, first.edits, first.ts) == ("three", ("one", "two", "three"), 2, head["ts"])
    assert (second.text, second.edits) == ("another", 0)
    shown = request(slack.url + "ledger").json["posted"][0]
    assert (shown["edits"], shown["texts"]) == (2, ["one", "two", "three"])
    read = call(slack, "conversations.history", channel=head["channel"]).json["messages"][1]
    assert (read["text"], read["edited"]["ts"]) == ("three", "1732100000.000000")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"text": "new"}, ("new", (), MARK)),
        ({"text": "new", "blocks": []}, ("new", (), MARK)),
        ({"text": "new", "blocks": [BLOCK]}, ("new", (BLOCK,), MARK)),
        ({"blocks": [BLOCK, BLOCK]}, ("", (BLOCK, BLOCK), MARK)),
        ({"metadata": OTHER}, ("old", (BLOCK,), OTHER)),
        ({"metadata": {}}, ("old", (BLOCK,), None)),
        ({"metadata": "{}"}, ("old", (BLOCK,), None)),
    ],
    ids=str,
)
def test_a_text_takes_the_place_of_blocks_and_metadata_stays(
    slack: StandIn, arguments: dict[str, object], expected: tuple[object, ...]
) -> None:
    head = post(slack, text="old", blocks=[BLOCK], metadata=MARK)
    assert update(slack, head, **arguments)["ok"] is True
    [posted] = slack.ledger.posted()
    assert (posted.text, posted.blocks, posted.metadata) == expected
    [past] = posted.earlier
    assert (past.text, past.blocks, past.metadata) == ("old", (BLOCK,), MARK)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"ts": "1.000001"}, "message_not_found"),
        ({"ts": None}, "message_not_found"),
        ({"channel": "#ops"}, "channel_not_found"),
        ({"channel": "C0NOBODY00"}, "channel_not_found"),
        ({"text": ""}, "no_text"),
        ({"text": 7}, "invalid_arguments"),
        ({"text": "x" * 4_001}, "msg_too_long"),
        ({"blocks": [BLOCK] * 51}, "invalid_blocks"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_refused_edit_leaves_the_message_unchanged(slack: StandIn, arguments: dict[str, object], code: str) -> None:
    head = post(slack, text="old")
    assert update(slack, head, **{"text": "new", **arguments})["error"] == code
    [posted] = slack.ledger.posted()
    assert (posted.text, posted.edits) == ("old", 0)


def test_the_longest_text_of_an_edit_is_taken(slack: StandIn) -> None:
    head = post(slack, text="old")
    assert update(slack, head, text="x" * 4_000)["ok"] is True


def test_a_message_in_an_archived_channel_cannot_be_changed() -> None:
    old = frozenset({"#old"})
    with StandIn(setup=Setup(channels=old, archived=old)) as slack:
        assert update(slack, {"channel": channel_id("#old"), "ts": "1.1"}, text="new")["error"] == "is_inactive"


def test_a_ts_belongs_to_its_channel(slack: StandIn) -> None:
    head, other = post(slack), post(slack, "#other")
    assert update(slack, {**head, "channel": other["channel"]}, text="new")["error"] == "message_not_found"


def test_a_webhooks_message_is_not_the_tokens_to_change(slack: StandIn) -> None:
    request(slack.webhook_url, '{"text": "hi"}')
    [posted] = slack.ledger.posted()
    refusal = update(slack, {"channel": posted.channel_id, "ts": posted.ts}, text="new")
    assert refusal == {"ok": False, "error": "cant_update_message"}


def test_changing_needs_the_scope_of_posting() -> None:
    with StandIn(setup=Setup(scopes=("channels:history",))) as slack:
        assert call(slack, "chat.update", channel="C0", ts="1", text="x").json["needed"] == "chat:write"
