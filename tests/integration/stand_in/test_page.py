"""The page of the local Slack, as a browser gets it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

import pytest

from dispatcher.stand_in import Hang, Rate, Setup, SlackError, StandIn, landed, not_landed
from tests.support.processes import until
from tests.support.slack import Clock, call, post, request

VOID = {"meta", "link", "br", "img"}


@pytest.fixture
def slack() -> Iterator[StandIn]:
    with StandIn(setup=Setup(rate=Rate(burst=25, interval_s=10), clock=Clock())) as stand_in:
        yield stand_in


@dataclass
class Node:
    tag: str
    classes: str = ""
    title: str = ""
    parts: list[Node | str] = field(default_factory=list)

    def all(self, tag: str, of_class: str = "") -> list[Node]:
        inside = [part for part in self.parts if isinstance(part, Node)]
        here = [node for node in inside if node.tag == tag and of_class in ("", node.classes)]
        return [*here, *(found for node in inside for found in node.all(tag, of_class))]

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)


class Tree(HTMLParser):
    """A page as a tree; a tag that is closed by another one is an error."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open = [Node("")]
        self.feed(page)
        assert [node.tag for node in self.open] == [""]

    @property
    def root(self) -> Node:
        return self.open[0]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        node = Node(tag, given.get("class") or "", given.get("title") or "")
        self.open[-1].parts.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].parts.append(data)


def page(slack: StandIn) -> Node:
    return Tree(request(slack.url).body).root


def facts(root: Node) -> list[str]:
    return [fact.text for fact in root.all("header")[0].all("li")]


def said(node: Node) -> list[str]:
    return [paragraph.text for paragraph in node.all("p") if not paragraph.classes]


def test_an_empty_page_says_how_to_fill_it(slack: StandIn) -> None:
    root = page(slack)
    assert facts(root) == ["0 messages", "0 channels"]
    assert "Nothing posted yet" in root.text
    assert "dispatcher send errors" in root.text


def test_each_channel_shows_its_newest_messages_and_counts_all(slack: StandIn) -> None:
    for number in range(7):
        post(slack, text=f"text {number}")
    post(slack, "#b", text="another")
    root = page(slack)
    assert facts(root) == ["8 messages", "2 channels"]
    other, ops = root.all("section", "card")
    assert (other.all("h2")[0].text, ops.all("h2")[0].text) == ("#b1", "#ops7")
    assert said(ops) == [f"text {number}" for number in (6, 5, 4, 3, 2)]
    assert ops.all("p", "more")[0].text == "and 2 earlier"
    assert other.all("p", "more") == []


def test_replies_are_indented_below_their_message_the_oldest_first(slack: StandIn) -> None:
    head = post(slack, text="head")
    for number in range(7):
        post(slack, text=f"reply {number}", thread_ts=head["ts"], reply_broadcast=number == 6)
    post(slack, text="after")
    [card] = page(slack).all("section", "card")
    [thread] = card.all("li", "thread")
    assert said(thread) == [f"reply {number}" for number in (2, 3, 4, 5, 6)]
    assert thread.all("li", "more")[0].text == "and 2 earlier"
    assert [tag.text for tag in thread.all("i")] == ["also to the channel"]
    assert said(card) == ["after", "head", *said(thread)]


def test_waits_and_faults_are_counted(slack: StandIn) -> None:
    for _ in range(28):
        post(slack)
    slack.faults.add(*[not_landed(SlackError("fatal_error"))] * 2, landed(SlackError("<b>")))
    for _ in range(3):
        post(slack, "#b")
    root = page(slack)
    assert facts(root)[2:] == ["3 calls told to wait (429)", "2 calls that did not wait", "3 faults"]
    notes = [note.text for note in root.all("p", "more")]
    assert notes == ["and 20 earlier · 3 told to wait · 2 did not wait"]
    [card] = root.all("section", "faults")
    assert [kind.text for kind in card.all("li")] == ["2 fatal_error, not landed", "1 <b>, landed"]


EVIL = '<script>alert("x")</script>\'"&amp;'


def test_everything_posted_is_escaped(slack: StandIn) -> None:
    head = post(slack, f"#{EVIL}", text=EVIL, username=EVIL, icon_emoji=f":{EVIL}")
    call(slack, "chat.update", channel=head["channel"], ts=head["ts"], text=EVIL, blocks=[])
    post(slack, f"#{EVIL}", text="", blocks=[{"type": "markdown", "text": EVIL}], thread_ts=head["ts"])
    assert len(slack.ledger) == 2
    body = request(slack.url).body
    assert body.count("<script") == 1
    assert "<script>alert" not in body
    root = page(slack)
    plain = EVIL.replace("&amp;", "&")
    assert said(root.all("section", "card")[0]) == [plain, plain]
    assert root.all("h3")[0].parts[0] == EVIL


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
