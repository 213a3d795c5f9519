"""Slack's limits on the content of a message, with the codes it answers; those of the documentation."""

from __future__ import annotations

import json
from typing import Any, Final

MAX_TEXT: Final = 40_000
MAX_BLOCKS: Final = 50
MAX_SECTION: Final = 3_000
MAX_HEADER: Final = 150
MAX_FIELDS: Final = 10
MAX_FIELD: Final = 2_000
MAX_MARKDOWN: Final = 12_000
MAX_ALL_BLOCKS: Final = 13_000
MAX_METADATA: Final = 8_000

_KNOWN_BLOCKS: Final = frozenset(
    "actions context context_actions divider file header image input markdown rich_text section table video".split()  # noqa: SIM905 - a table of words
)


def content_problem(text: str, blocks: object, metadata: object) -> tuple[str, list[str]] | None:
    """Slack's code and messages for content it does not take; ``None`` when it takes it.

    ``text`` over 40,000 characters is no problem: Slack cuts it and warns.
    """
    if blocks is not None and not _is_list_of_objects(blocks):
        return "invalid_blocks_format", []
    if not text.strip() and not blocks:
        return "no_text", []
    if _is_list_of_objects(blocks) and (problem := _blocks_problem(blocks)) is not None:
        return problem
    return None if metadata is None else _metadata_problem(metadata)


def _is_list_of_objects(value: Any) -> bool:  # noqa: ANN401 - decoded JSON
    return isinstance(value, list) and all(isinstance(part, dict) for part in value)


def _blocks_problem(blocks: Any) -> tuple[str, list[str]] | None:  # noqa: ANN401 - decoded JSON
    if len(blocks) > MAX_BLOCKS:
        return "invalid_blocks", [f"[ERROR] no more than {MAX_BLOCKS} items allowed [json-pointer:/blocks]"]
    problems = [
        f"[ERROR] {problem} [json-pointer:/blocks/{index}{where}]"
        for index, block in enumerate(blocks)
        for problem, where in _block_problems(block)
    ]
    if problems:
        return "invalid_blocks", problems
    return ("msg_blocks_too_long", []) if _length(blocks) > MAX_ALL_BLOCKS else None


def _block_problems(block: dict[str, Any]) -> list[tuple[str, str]]:
    kind = block.get("type")
    if not isinstance(kind, str):
        return [("missing required field: type", "")]
    if kind not in _KNOWN_BLOCKS:
        return [(f"unsupported type: {kind}", "/type")]
    match kind:
        case "section":
            return _section_problems(block)
        case "header":
            return _text_problems(block.get("text"), MAX_HEADER, "/text")
        case "markdown":
            return _long(block.get("text"), MAX_MARKDOWN, "/text")
        case _:
            return []


def _section_problems(block: dict[str, Any]) -> list[tuple[str, str]]:
    fields = block.get("fields", [])
    if "text" not in block and not fields:
        return [("missing required field: text or fields", "")]
    problems = _text_problems(block["text"], MAX_SECTION, "/text") if "text" in block else []
    if not isinstance(fields, list):
        return [*problems, ("must provide an array", "/fields")]
    if len(fields) > MAX_FIELDS:
        problems.append((f"no more than {MAX_FIELDS} items allowed", "/fields"))
    for index, part in enumerate(fields):
        problems += _text_problems(part, MAX_FIELD, f"/fields/{index}")
    return problems


def _text_problems(part: object, longest: int, where: str) -> list[tuple[str, str]]:
    if not isinstance(part, dict) or part.get("type") not in ("mrkdwn", "plain_text"):
        return [("must be a text object", where)]
    return _long(part.get("text"), longest, f"{where}/text")


def _long(text: object, longest: int, where: str) -> list[tuple[str, str]]:
    if not isinstance(text, str) or not text:
        return [("must be more than 0 characters", where)]
    return [(f"must be less than {longest + 1} characters", where)] if len(text) > longest else []


def _length(part: object) -> int:
    """Characters of all texts in a decoded JSON value."""
    match part:
        case {"text": str(text), **rest}:
            return len(text) + _length(rest)
        case dict():
            return sum(_length(value) for value in part.values())
        case list():
            return sum(_length(value) for value in part)
        case _:
            return 0


def _metadata_problem(metadata: object) -> tuple[str, list[str]] | None:
    if not isinstance(metadata, dict) or not isinstance(metadata.get("event_payload"), dict):
        return "invalid_metadata_format", []
    if not isinstance(metadata.get("event_type"), str) or not metadata["event_type"]:
        return "invalid_metadata_schema", []
    return ("metadata_too_large", []) if len(json.dumps(metadata)) > MAX_METADATA else None
