"""The page of the local Slack, as a browser gets it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from dispatcher.stand_in import Hang, Rate, Setup, SlackError, StandIn, landed, not_landed
from tests.support.html import Node, read_html
from tests.support.processes import until
from tests.support.slack import Clock, call, post, request


@pytest.fixture
def slack() -> Iterator[StandIn]:
    with StandIn(setup=Setup(rate=Rate(burst=25, interval_s=10), clock=Clock())) as stand_in:
        yield stand_in


def every(node: Node, tag: str, of_class: str = "") -> list[Node]:
    return [each for each in node.all(tag) if of_class in ("", each.attributes.get("class"))]


def page(slack: StandIn) -> Node:
    return read_html(request(slack.url).body)


def facts(root: Node) -> list[str]:
    return [fact.verbatim for fact in every(root, "header")[0].all("li")]


def said(node: Node) -> list[str]:
    return [paragraph.verbatim for paragraph in every(node, "p") if not paragraph.attributes.get("class")]


def test_an_empty_page_says_how_to_fill_it(slack: StandIn) -> None:
    root = page(slack)
    assert facts(root) == ["0 messages", "0 channels"]
    assert "Nothing posted yet" in root.verbatim
    assert "dispatcher send errors" in root.verbatim


def test_half_of_a_surrogate_pair_is_shown_as_a_question_mark(slack: StandIn) -> None:
    post(slack, text="half \ud83d")
    (card,) = every(page(slack), "section", "card")
    assert said(card) == ["half ?"]


def test_each_channel_shows_its_newest_messages_and_counts_all(slack: StandIn) -> None:
    for number in range(7):
        post(slack, text=f"text {number}")
    post(slack, "#b", text="another")
    root = page(slack)
    assert facts(root) == ["8 messages", "2 channels"]
    other, ops = every(root, "section", "card")
    assert (every(other, "h2")[0].verbatim, every(ops, "h2")[0].verbatim) == ("#b1", "#ops7")
    assert said(ops) == [f"text {number}" for number in (6, 5, 4, 3, 2)]
    assert every(ops, "p", "more")[0].verbatim == "and 2 earlier"
    assert every(other, "p", "more") == []


def test_replies_are_indented_below_their_message_the_oldest_first(slack: StandIn) -> None:
    head = post(slack, text="head")
    for number in range(7):
        post(slack, text=f"reply {number}", thread_ts=head["ts"], reply_broadcast=number == 6)
    post(slack, text="after")
    [card] = every(page(slack), "section", "card")
    [thread] = every(card, "li", "thread")
    assert said(thread) == [f"reply {number}" for number in (2, 3, 4, 5, 6)]
    assert every(thread, "li", "more")[0].verbatim == "and 2 earlier"
    assert [tag.verbatim for tag in every(thread, "i")] == ["also to the channel"]
    assert said(card) == ["after", "head", *said(thread)]


def test_waits_and_faults_are_counted(slack: StandIn) -> None:
    for _ in range(28):
        post(slack)
    slack.faults.add(*[not_landed(SlackError("fatal_error"))] * 2, landed(SlackError("<b>")))
    for _ in range(3):
        post(slack, "#b")
    root = page(slack)
    assert facts(root)[2:] == ["3 calls told to wait (429)", "2 calls that did not wait", "3 faults"]
    notes = [note.verbatim for note in every(root, "p", "more")]
    assert notes == ["and 20 earlier · 3 told to wait · 2 did not wait"]
    [card] = every(root, "section", "faults")
    assert [kind.verbatim for kind in every(card, "li")] == ["2 fatal_error, not landed", "1 <b>, landed"]


def plain(text: str) -> dict[str, str]:
    return {"type": "plain_text", "text": text}


def test_blocks_are_drawn_in_place_of_the_text_and_images_are_never_fetched(slack: StandIn) -> None:
    image = {"type": "image", "alt_text": "a curve", "image_url": "https://x.example/a.png"}
    button = {"type": "button", "action_id": "open", "text": plain("Open")}
    pieces = [{"type": "text", "text": "one "}, {"type": "emoji", "name": "tada"}]
    blocks = [
        {"type": "header", "text": plain("Deploy failed")},
        {"type": "section", "text": plain("api 2.4 was rolled back"), "accessory": button},
        {"type": "section", "fields": [plain("Region"), plain("eu-1")]},
        {"type": "divider"},
        {**image, "title": plain("Error rate")},
        {"type": "actions", "elements": [button, {"type": "datepicker", "action_id": "when"}]},
        {"type": "context", "elements": [image, plain("by ci")]},
        {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": pieces}]},
        {"type": "video", "title": plain("A video")},
    ]
    post(slack, text="api failed", blocks=blocks)
    [card] = every(page(slack), "section", "card")
    assert [tag.attributes["title"] for tag in every(card, "i", "hint")] == ["api failed"]
    assert [head.verbatim for head in every(card, "h4")] == ["Deploy failed"]
    assert sorted(said(card)) == ["A video", "Region", "api 2.4 was rolled back", "by ci", "eu-1", "one :tada:"]
    assert [each.verbatim for each in every(card, "button")] == ["Open", "Open", "datepicker"]
    assert [frame.verbatim for frame in every(card, "span", "frame")] == ["a curve", "a curve"]
    assert len(every(card, "hr")) == 1
    body = request(slack.url).body
    assert "https://" not in body
    assert "<img" not in body


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("word " * 100, "word " * 55 + "word…"),
        ("x" * 400, "x" * 280 + "…"),
        ("line\n" * 40, "line\n" * 5 + "line…"),
    ],
)
def test_a_long_text_is_shortened_and_opens_on_a_click(slack: StandIn, text: str, begin: str) -> None:
    post(slack, text=text)
    post(slack, text="", blocks=[{"type": "section", "text": plain(text)}])
    [card] = every(page(slack), "section", "card")
    assert [every(each, "span")[0].verbatim for each in every(card, "details", "long")] == [begin, begin]
    assert said(card) == [text, text]


EVIL = '<script>alert("x")</script>\'"&amp;'


def test_everything_posted_is_escaped(slack: StandIn) -> None:
    head = post(slack, f"#{EVIL}", text=EVIL, username=EVIL, icon_emoji=f":{EVIL}")
    call(slack, "chat.update", channel=head["channel"], ts=head["ts"], text=EVIL, blocks=[])
    post(slack, f"#{EVIL}", text="", blocks=[{"type": "markdown", "text": EVIL}], thread_ts=head["ts"])
    drawn = [
        {"type": "header", "text": plain(EVIL)},
        {"type": "section", "text": plain(EVIL), "accessory": {"type": EVIL}},
        {"type": "image", "alt_text": EVIL, "image_url": EVIL, "title": plain(EVIL)},
        {"type": "context", "elements": [plain(EVIL * 20)]},
        {"type": "actions", "elements": [{"type": "button", "text": plain(EVIL)}]},
    ]
    post(slack, "#c", text=EVIL, blocks=drawn)
    assert len(slack.ledger) == 3
    body = request(slack.url).body
    assert body.count("<script") == 1
    assert "<script>alert" not in body
    root = page(slack)
    cards = {every(card, "h2")[0].verbatim: card for card in every(root, "section", "card")}
    unescaped = EVIL.replace("&amp;", "&")
    assert said(cards[f"#{EVIL}2"]) == [unescaped, unescaped]
    assert every(cards[f"#{EVIL}2"], "h3")[0].parts[0] == EVIL
    assert every(cards["#c1"], "h4")[0].verbatim == EVIL


def test_the_page_needs_nothing_from_elsewhere(slack: StandIn) -> None:
    post(slack)
    body = request(slack.url).body
    assert "http://" not in body
    assert "https://" not in body


def test_the_page_comes_while_a_call_hangs(slack: StandIn) -> None:
    slack.faults.add(landed(Hang()))
    with socket.create_connection(("127.0.0.1", slack.port), 5) as caller:
        head = f"POST /api/chat.postMessage HTTP/1.1\r\nHost: 127.0.0.1:{slack.port}\r\nContent-Length: 0\r\n\r\n"
        caller.sendall(head.encode())
        until(lambda: slack.faults.played == 1, "the call")
        assert facts(page(slack))[-1] == "1 fault"
