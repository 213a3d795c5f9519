"""What is certain to be refused of blocks, and that nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.slack.block_kit import block_fault

Block = dict[str, Any]


def mrkdwn(text: str) -> Block:
    return {"type": "mrkdwn", "text": text}


def plain(text: str) -> Block:
    return {"type": "plain_text", "text": text}


def section(text: object = None, **more: object) -> Block:
    return {"type": "section", **({} if text is None else {"text": text}), **more}


def image(**more: object) -> Block:
    return {"type": "image", "image_url": "https://a/b", "alt_text": "x", **more}


def button(**more: object) -> Block:
    return {"type": "button", "text": plain("x"), "action_id": "a", **more}


def actions(*elements: Block) -> Block:
    return {"type": "actions", "elements": list(elements)}


def context(*elements: Block) -> Block:
    return {"type": "context", "elements": list(elements)}


TEXT = "no text object of type mrkdwn or plain_text"
PLAIN = "no text object of type plain_text"


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ({}, ": no type"),
        ({"type": 7}, ": no type"),
        ({"type": "divider", "block_id": "x" * 256}, ".block_id: 256 characters, expected at most 255"),
        ({"type": "banner", "block_id": 7}, ".block_id: no string"),
        (section(), ": neither text nor fields"),
        (section(fields=[]), ": neither text nor fields"),
        (section("hi"), f".text: {TEXT}"),
        (section({"type": "markdown", "text": "hi"}), f".text: {TEXT}"),
        (section({"type": "mrkdwn"}), ".text: no string"),
        (section(mrkdwn("")), ".text: empty"),
        (section(mrkdwn("x" * 3_001)), ".text: 3001 characters, expected at most 3000"),
        (section(fields="x"), ".fields: no list"),
        (section(fields=[mrkdwn("x")] * 11), ".fields: 11 entries, expected at most 10"),
        (section(fields=[mrkdwn("x"), mrkdwn("x" * 2_001)]), ".fields[1]: 2001 characters, expected at most 2000"),
        (section(mrkdwn("x"), accessory=button(text=mrkdwn("x"))), f".accessory.text: {PLAIN}"),
        (section(mrkdwn("x"), accessory={"text": "x"}), ".accessory: no element with a type"),
        ({"type": "header"}, f".text: {PLAIN}"),
        ({"type": "header", "text": mrkdwn("x")}, f".text: {PLAIN}"),
        ({"type": "header", "text": plain("x" * 151)}, ".text: 151 characters, expected at most 150"),
        ({"type": "context"}, ".elements: no list"),
        (context(), ".elements: an empty list"),
        (context(*[mrkdwn("x")] * 11), ".elements: 11 entries, expected at most 10"),
        (context(mrkdwn("x"), button()), f".elements[1]: {TEXT}"),
        (context(image(image_url="")), ".elements[0]: neither image_url nor slack_file"),
        (actions(*[button()] * 26), ".elements: 26 entries, expected at most 25"),
        (actions({}), ".elements[0]: no element with a type"),
        (actions(button(text=plain("x" * 76))), ".elements[0].text: 76 characters, expected at most 75"),
        (actions(button(url="https://" + "x" * 3_000)), ".elements[0].url: 3008 characters, expected at most 3000"),
        (actions(button(value="x" * 2_001)), ".elements[0].value: 2001 characters, expected at most 2000"),
        (actions(button(action_id="x" * 256)), ".elements[0].action_id: 256 characters, expected at most 255"),
        (actions(image(alt_text=None)), ".elements[0].alt_text: no string"),
        (image(alt_text="x" * 2_001), ".alt_text: 2001 characters, expected at most 2000"),
        (image(image_url="https://" + "x" * 3_000), ".image_url: 3008 characters, expected at most 3000"),
        (image(title=mrkdwn("x")), f".title: {PLAIN}"),
        ({"type": "markdown"}, ".text: no string"),
        ({"type": "markdown", "text": ""}, ".text: empty"),
        ({"type": "rich_text"}, ".elements: no list"),
        ({"type": "table", "rows": [[{}]] * 101}, ".rows: 101 entries, expected at most 100"),
        ({"type": "table", "rows": [[{}] * 21]}, ".rows[0]: 21 entries, expected at most 20"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_breaks_a_documented_rule_is_named_with_its_place(block: Block, fault: str) -> None:
    assert block_fault([{"type": "divider"}, block]) == f"blocks[1]{fault}"


def test_markdown_is_measured_over_all_blocks() -> None:
    blocks = [{"type": "markdown", "text": "x" * 6_001}, {"type": "divider"}, {"type": "markdown", "text": "x" * 6_000}]
    assert block_fault(blocks) == "blocks: 12001 characters of markdown, expected at most 12000"
    assert block_fault([blocks[0], {"type": "markdown", "text": "x" * 5_999}]) is None


@pytest.mark.parametrize(
    "block",
    [
        {"type": "divider", "block_id": "x" * 255},
        section(mrkdwn("x" * 3_000)),
        section(mrkdwn("&lt;" * 3_000)),
        section(fields=[plain("x" * 2_000)] * 10),
        section(mrkdwn("x"), accessory={"type": "element_of_tomorrow"}),
        {"type": "header", "text": plain("x" * 150)},
        context(image(), *[mrkdwn("x" * 5_000)] * 9),
        actions(*[button(text=plain("x" * 75), value="x" * 2_000)] * 25),
        image(image_url=None, slack_file={"id": "F1"}) | {"image_url": ""},
        image(alt_text="x" * 2_000, title=plain("x" * 2_000)),
        {"type": "markdown", "text": "x" * 12_000},
        {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": []}]},
        {"type": "table", "rows": [[{"type": "raw_text", "text": "x"}] * 20] * 100},
        {"type": "video", "title": plain("x")},
        {"type": "block_of_tomorrow", "anything": [1]},
    ],
    ids=lambda block: str(block["type"]),
)
def test_what_may_be_right_is_left_to_slack(block: Block) -> None:
    assert block_fault([block]) is None


KINDS = st.sampled_from("section header context actions image markdown rich_text table divider button mrkdwn".split())  # noqa: SIM905 - a table of words
KEYS = st.sampled_from("text fields elements rows accessory title alt_text image_url block_id url value".split())  # noqa: SIM905 - as above


def typed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(KINDS, st.dictionaries(KEYS, inner)).map(lambda pair: {**pair[1], "type": pair[0]})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner) | typed(inner),
    )
)
def test_no_block_of_any_form_makes_it_fail(value: object) -> None:
    blocks: list[Any] = [value] if isinstance(value, dict) else [{"type": "section", "text": value, "fields": value}]
    assert isinstance(block_fault(blocks), str | None)
