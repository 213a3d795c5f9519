"""The rules of Block Kit for each kind of block. Pure; a problem is a sentence of Slack's and a place in the block.

The inner structure of interactive elements, rich text, tables, videos, tasks and plans is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

MAX_BLOCKS: Final = 50
MAX_BLOCK_ID: Final = 255
MAX_SECTION: Final = 3_000
MAX_HEADER: Final = 150
MAX_FIELDS: Final = 10
MAX_FIELD: Final = 2_000
MAX_CONTEXT_ELEMENTS: Final = 10
MAX_CONTEXT_ACTIONS: Final = 5
MAX_ACTIONS: Final = 25
MAX_BUTTON: Final = 75
MAX_ALT_TEXT: Final = 2_000
MAX_IMAGE_URL: Final = 3_000
MAX_IMAGE_TITLE: Final = 2_000
MAX_MARKDOWN: Final = 12_000

Problems: TypeAlias = Iterator[tuple[str, str]]


def block_problems(block: Mapping[str, Any]) -> Problems:
    """What Slack does not take of one block."""
    kind = block.get("type")
    if not isinstance(kind, str):
        yield "missing required field: type", ""
        return
    if kind not in _RULES:
        yield f"unsupported type: {kind}", "/type"
        return
    if "block_id" in block:
        yield from _text(block["block_id"], MAX_BLOCK_ID, "/block_id")
    yield from _RULES[kind](block)


def length(part: object) -> int:
    """Characters of all texts in a decoded JSON value."""
    match part:
        case {"text": str(text), **rest}:
            return len(text) + length(rest)
        case dict():
            return sum(length(value) for value in part.values())
        case list():
            return sum(length(value) for value in part)
        case _:
            return 0


def _section(block: Mapping[str, Any]) -> Problems:
    fields = block.get("fields", [])
    if "text" not in block and not fields:
        yield "missing required field: text or fields", ""
        return
    if "text" in block:
        yield from _text_object(block["text"], MAX_SECTION, "/text")
    yield from _items(fields, MAX_FIELDS, "/fields", least=0)
    for index, part in enumerate(fields if isinstance(fields, list) else []):
        yield from _text_object(part, MAX_FIELD, f"/fields/{index}")


def _header(block: Mapping[str, Any]) -> Problems:
    yield from _text_object(block.get("text"), MAX_HEADER, "/text", kinds=("plain_text",))


def _markdown(block: Mapping[str, Any]) -> Problems:
    yield from _text(block.get("text"), MAX_MARKDOWN, "/text")


def _image(block: Mapping[str, Any], where: str = "") -> Problems:
    yield from _text(block.get("alt_text"), MAX_ALT_TEXT, f"{where}/alt_text")
    if "slack_file" not in block:
        yield from _text(block.get("image_url"), MAX_IMAGE_URL, f"{where}/image_url")
    if "title" in block:
        yield from _text_object(block["title"], MAX_IMAGE_TITLE, f"{where}/title", kinds=("plain_text",))


def _context(block: Mapping[str, Any]) -> Problems:
    elements = block.get("elements")
    yield from _items(elements, MAX_CONTEXT_ELEMENTS, "/elements")
    for index, element in enumerate(elements if isinstance(elements, list) else []):
        where = f"/elements/{index}"
        if isinstance(element, dict) and element.get("type") == "image":
            yield from _image(element, where)
        else:
            yield from _text_object(element, MAX_SECTION, where)


def _actions(block: Mapping[str, Any]) -> Problems:
    elements = block.get("elements")
    yield from _items(elements, MAX_ACTIONS, "/elements")
    for index, element in enumerate(elements if isinstance(elements, list) else []):
        where = f"/elements/{index}"
        if not isinstance(element, dict) or not isinstance(element.get("type"), str):
            yield "missing required field: type", where
        elif element["type"] == "button":
            yield from _text_object(element.get("text"), MAX_BUTTON, f"{where}/text", kinds=("plain_text",))


def _context_actions(block: Mapping[str, Any]) -> Problems:
    yield from _items(block.get("elements"), MAX_CONTEXT_ACTIONS, "/elements")


def _rich_text(block: Mapping[str, Any]) -> Problems:
    if not isinstance(block.get("elements"), list):
        yield "must provide an array", "/elements"


def _unchecked(_block: Mapping[str, Any]) -> Problems:
    yield from ()


_RULES: Final[Mapping[str, Callable[[Mapping[str, Any]], Problems]]] = {
    "actions": _actions,
    "context": _context,
    "context_actions": _context_actions,
    "divider": _unchecked,
    "file": _unchecked,
    "header": _header,
    "image": _image,
    "input": _unchecked,
    "markdown": _markdown,
    "plan": _unchecked,
    "rich_text": _rich_text,
    "section": _section,
    "table": _unchecked,
    "task_card": _unchecked,
    "video": _unchecked,
}


def _items(value: object, most: int, where: str, least: int = 1) -> Problems:
    if not isinstance(value, list):
        yield "must provide an array", where
    elif len(value) > most:
        yield f"no more than {most} items allowed", where
    elif len(value) < least:
        yield "must provide at least 1 item", where


def _text_object(part: object, longest: int, where: str, kinds: tuple[str, ...] = ("mrkdwn", "plain_text")) -> Problems:
    if not isinstance(part, dict) or part.get("type") not in kinds:
        yield f"must be a text object of type {' or '.join(kinds)}", where
    else:
        yield from _text(part.get("text"), longest, f"{where}/text")


def _text(text: object, longest: int, where: str) -> Problems:
    if not isinstance(text, str) or not text:
        yield "must be more than 0 characters", where
    elif len(text) > longest:
        yield f"must be less than {longest + 1} characters", where
