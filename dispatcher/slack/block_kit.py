"""What Slack refuses of blocks for certain, by its documentation; pure.

Whatever is not sure passes, and Slack judges it: types of blocks that this version does not know, keys of tomorrow, the
length of all blocks together, texts that are too long only if entities count. A refusal that was not foreseen costs one
more request; a wrong one here would cost the message its form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from dispatcher.core.rendering import unescape

_Blocks: TypeAlias = Sequence[Mapping[str, Any]]
_Faults: TypeAlias = Iterator[str]

MAX_MARKDOWN: Final = 12_000
"""Characters of all markdown blocks of one message."""

_TEXTS: Final = ("mrkdwn", "plain_text")
_PLAIN: Final = ("plain_text",)


def block_fault(blocks: _Blocks) -> str | None:
    """The first thing that Slack refuses, with its place, as in ``blocks[0].text: 3001 characters, expected ...``."""
    return next(_faults(blocks), None)


def _faults(blocks: _Blocks) -> _Faults:
    markdown = 0
    for index, block in enumerate(blocks):
        where, kind = f"blocks[{index}]", block.get("type")
        if not isinstance(kind, str):
            yield f"{where}: no type"
            continue
        yield from _length(block.get("block_id", ""), f"{where}.block_id", 0, 255)
        yield from _RULES.get(kind, _anything)(block, where)
        if kind == "markdown" and isinstance(text := block.get("text"), str):
            markdown += len(unescape(text))
    if markdown > MAX_MARKDOWN:
        yield f"blocks: {markdown} characters of markdown, expected at most {MAX_MARKDOWN}"


def _section(block: Mapping[str, Any], where: str) -> _Faults:
    if not block.get("text") and not block.get("fields"):
        yield f"{where}: neither text nor fields"
    if block.get("text"):
        yield from _text(block["text"], f"{where}.text", 3_000)
    if "fields" in block:
        yield from _list(block["fields"], f"{where}.fields", 10, lambda field, at: _text(field, at, 2_000))
    if isinstance(accessory := block.get("accessory"), dict):
        yield from _element(accessory, f"{where}.accessory")


def _header(block: Mapping[str, Any], where: str) -> _Faults:
    yield from _text(block.get("text"), f"{where}.text", 150, _PLAIN)


def _context(block: Mapping[str, Any], where: str) -> _Faults:
    yield from _list(block.get("elements"), f"{where}.elements", 10, _context_element)


def _context_element(element: object, where: str) -> _Faults:
    if isinstance(element, dict) and element.get("type") == "image":
        yield from _image(element, where)
    else:
        yield from _text(element, where, None)


def _actions(block: Mapping[str, Any], where: str) -> _Faults:
    yield from _list(block.get("elements"), f"{where}.elements", 25, _element)


def _element(element: object, where: str) -> _Faults:
    if not isinstance(element, dict) or not isinstance(element.get("type"), str):
        yield f"{where}: no element with a type"
    elif element["type"] == "button":
        yield from _text(element.get("text"), f"{where}.text", 75, _PLAIN)
        yield from _length(element.get("url", ""), f"{where}.url", 0, 3_000)
        yield from _length(element.get("value", ""), f"{where}.value", 0, 2_000)
        yield from _length(element.get("action_id", ""), f"{where}.action_id", 0, 255)
    elif element["type"] == "image":
        yield from _image(element, where)


def _image(block: Mapping[str, Any], where: str) -> _Faults:
    if not block.get("image_url") and not block.get("slack_file"):
        yield f"{where}: neither image_url nor slack_file"
    yield from _length(block.get("image_url", ""), f"{where}.image_url", 0, 3_000)
    yield from _length(block.get("alt_text"), f"{where}.alt_text", 0, 2_000)
    if block.get("title"):
        yield from _text(block["title"], f"{where}.title", 2_000, _PLAIN)


def _markdown(block: Mapping[str, Any], where: str) -> _Faults:
    yield from _length(block.get("text"), f"{where}.text", 1, None)


def _rich_text(block: Mapping[str, Any], where: str) -> _Faults:
    yield from _list(block.get("elements"), f"{where}.elements", None, _anything)


def _table(block: Mapping[str, Any], where: str) -> _Faults:
    yield from _list(block.get("rows"), f"{where}.rows", 100, lambda row, at: _list(row, at, 20, _anything))


def _anything(_part: object, _where: str) -> _Faults:
    yield from ()


def _list(value: object, where: str, most: int | None, check: Callable[[Any, str], _Faults]) -> _Faults:
    if not isinstance(value, list | tuple):
        yield f"{where}: no list"
    elif not value:
        yield f"{where}: an empty list"
    elif most is not None and len(value) > most:
        yield f"{where}: {len(value)} entries, expected at most {most}"
    else:
        for index, part in enumerate(value):
            yield from check(part, f"{where}[{index}]")


def _text(value: object, where: str, most: int | None, kinds: tuple[str, ...] = _TEXTS) -> _Faults:
    """A text object of one of these kinds."""
    if not isinstance(value, dict) or value.get("type") not in kinds:
        yield f"{where}: no text object of type {' or '.join(kinds)}"
    else:
        yield from _length(value.get("text"), where, 1, most)


def _length(value: object, where: str, least: int, most: int | None) -> _Faults:
    if not isinstance(value, str):
        yield f"{where}: no string"
    elif len(value) < least:
        yield f"{where}: empty"
    elif most is not None and (length := len(unescape(value))) > most:
        yield f"{where}: {length} characters, expected at most {most}"


_RULES: Final[Mapping[str, Callable[[Mapping[str, Any], str], _Faults]]] = {
    "section": _section,
    "header": _header,
    "context": _context,
    "actions": _actions,
    "image": _image,
    "markdown": _markdown,
    "rich_text": _rich_text,
    "table": _table,
}
