"""Slack's limits on content, as the stand-in holds to them: what is just taken, and what is one too many."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.stand_in.blocks import block_problems
from dispatcher.stand_in.sizes import content_problem


def text(length: int, kind: str = "mrkdwn") -> dict[str, Any]:
    return {"type": kind, "text": "x" * length}


def plain(length: int) -> dict[str, Any]:
    return text(length, "plain_text")


def section(length: int) -> dict[str, Any]:
    return {"type": "section", "text": text(length)}


def image(**more: object) -> dict[str, Any]:
    return {"type": "image", "alt_text": "a", "image_url": "https://pictures.example/a.png", **more}


def button(length: int) -> dict[str, Any]:
    return {"type": "button", "action_id": "a", "text": plain(length)}


LONGEST: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "section": (section(3_000), section(3_001), "must be less than 3001 characters /text/text"),
    "empty section": (section(1), section(0), "must be more than 0 characters /text/text"),
    "fields": (
        {"type": "section", "fields": [text(2_000)] * 10},
        {"type": "section", "fields": [text(1)] * 11},
        "no more than 10 items allowed /fields",
    ),
    "field": (
        {"type": "section", "text": text(1), "fields": [text(2_000)]},
        {"type": "section", "text": text(1), "fields": [text(1), text(2_001)]},
        "must be less than 2001 characters /fields/1/text",
    ),
    "header": (
        {"type": "header", "text": plain(150)},
        {"type": "header", "text": plain(151)},
        "must be less than 151 characters /text/text",
    ),
    "kind of a header's text": (
        {"type": "header", "text": plain(1)},
        {"type": "header", "text": text(1)},
        "must be a text object of type plain_text /text",
    ),
    "context": (
        {"type": "context", "elements": [text(1), image()] * 5},
        {"type": "context", "elements": [text(1)] * 11},
        "no more than 10 items allowed /elements",
    ),
    "empty context": (
        {"type": "context", "elements": [text(1)]},
        {"type": "context", "elements": []},
        "must provide at least 1 item /elements",
    ),
    "context's image": (
        {"type": "context", "elements": [image()]},
        {"type": "context", "elements": [text(1), image(alt_text="")]},
        "must be more than 0 characters /elements/1/alt_text",
    ),
    "context's text": (
        {"type": "context", "elements": [text(3_000)]},
        {"type": "context", "elements": [text(3_001)]},
        "must be less than 3001 characters /elements/0/text",
    ),
    "actions": (
        {"type": "actions", "elements": [button(75)] * 25},
        {"type": "actions", "elements": [button(1)] * 26},
        "no more than 25 items allowed /elements",
    ),
    "button": (
        {"type": "actions", "elements": [{"type": "datepicker"}]},
        {"type": "actions", "elements": [button(1), button(76)]},
        "must be less than 76 characters /elements/1/text/text",
    ),
    "element without a type": (
        {"type": "actions", "elements": [button(1)]},
        {"type": "actions", "elements": [{}]},
        "missing required field: type /elements/0",
    ),
    "context actions": (
        {"type": "context_actions", "elements": [{}] * 5},
        {"type": "context_actions", "elements": [{}] * 6},
        "no more than 5 items allowed /elements",
    ),
    "image": (
        image(title=plain(2_000), alt_text="x" * 2_000),
        image(alt_text="x" * 2_001),
        "must be less than 2001 characters /alt_text",
    ),
    "image's title": (
        image(title=plain(1)),
        image(title=text(1)),
        "must be a text object of type plain_text /title",
    ),
    "image's address": (
        {"type": "image", "alt_text": "a", "slack_file": {"id": "F1"}},
        {"type": "image", "alt_text": "a"},
        "must be more than 0 characters /image_url",
    ),
    "image's long address": (
        image(image_url="x" * 3_000),
        image(image_url="x" * 3_001),
        "must be less than 3001 characters /image_url",
    ),
    "block id": (
        {"type": "divider", "block_id": "x" * 255},
        {"type": "divider", "block_id": "x" * 256},
        "must be less than 256 characters /block_id",
    ),
    "markdown": (
        {"type": "markdown", "text": "x" * 12_000},
        {"type": "markdown", "text": "x" * 12_001},
        "must be less than 12001 characters /text",
    ),
    "rich text": (
        {"type": "rich_text", "elements": []},
        {"type": "rich_text"},
        "must provide an array /elements",
    ),
    "no text object": (
        section(1),
        {"type": "section", "text": "x"},
        "must be a text object of type mrkdwn or plain_text /text",
    ),
    "nothing to say": (section(1), {"type": "section"}, "missing required field: text or fields "),
    "no list": (section(1), {"type": "section", "fields": "x"}, "must provide an array /fields"),
    "unknown type": ({"type": "file"}, {"type": "sektion"}, "unsupported type: sektion /type"),
    "a task": ({"type": "task_card"}, {"type": "task"}, "unsupported type: task /type"),
    "a plan": ({"type": "plan"}, {"type": "plans"}, "unsupported type: plans /type"),
    "no type": ({"type": "video"}, {"text": "x"}, "missing required field: type "),
}


@pytest.mark.parametrize(("taken", "refused", "said"), LONGEST.values(), ids=LONGEST)
def test_a_block_is_taken_up_to_its_limit_and_no_further(
    taken: dict[str, Any], refused: dict[str, Any], said: str
) -> None:
    assert list(block_problems(taken)) == []
    assert [f"{problem} {where}" for problem, where in block_problems(refused)] == [said]


@pytest.mark.parametrize(
    ("blocks", "code"),
    [
        ([{"type": "divider"}] * 50, None),
        ([{"type": "divider"}] * 51, "invalid_blocks"),
        ([section(2_600)] * 5, None),
        ([section(2_600)] * 4 + [section(2_601)], "msg_blocks_too_long"),
        ([{"type": "markdown", "text": "x" * 6_000}] * 2, None),
        ([{"type": "markdown", "text": "x" * 6_000}] * 2 + [{"type": "markdown", "text": "x"}], "msg_blocks_too_long"),
        ([{"type": "divider", "block_id": "a"}, {"type": "divider", "block_id": "b"}], None),
        ([{"type": "divider", "block_id": "a"}] * 2, "invalid_blocks"),
        ("x", "invalid_blocks_format"),
        ({"type": "divider"}, "invalid_blocks_format"),
        (["x"], "invalid_blocks_format"),
        ([], None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_blocks_together_have_limits_too(blocks: object, code: str | None) -> None:
    problem = content_problem("hi", blocks, None)
    assert (problem.code if problem else None) == code


def test_every_problem_is_told_with_its_place() -> None:
    problem = content_problem("hi", [section(0), {"type": "divider"}, {"type": "sektion"}], None)
    assert problem is not None
    said = [
        "must be more than 0 characters [json-pointer:/blocks/0/text/text]",
        "unsupported type: sektion [json-pointer:/blocks/2/type]",
    ]
    assert problem.as_json() == {
        "errors": said,
        "response_metadata": {"messages": [f"[ERROR] {each}" for each in said]},
    }


def test_a_message_of_blocks_needs_no_text() -> None:
    assert content_problem("", [{"type": "divider"}], None) is None
    assert getattr(content_problem(" ", [], None), "code", None) == "no_text"


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({"event_type": "x", "event_payload": {}}, None),
        ({"event_type": "", "event_payload": {}}, "invalid_metadata_schema"),
        ({"event_type": "x", "event_payload": "x"}, "invalid_metadata_format"),
        ("x", "invalid_metadata_format"),
        ({"event_type": "x", "event_payload": {"id": "x" * 7_950}}, None),
        ({"event_type": "x", "event_payload": {"id": "x" * 7_960}}, "metadata_too_large"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_metadata_has_a_form_and_a_size(metadata: object, code: str | None) -> None:
    problem = content_problem("hi", None, metadata)
    assert (problem.code if problem else None) == code
