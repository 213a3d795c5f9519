"""Slack's limits on the content of a message, with the codes it answers; those of the documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.stand_in.blocks import MAX_BLOCKS, MAX_MARKDOWN, block_problems, length

MAX_TEXT: Final = 40_000
MAX_EDITED_TEXT: Final = 4_000
MAX_ALL_BLOCKS: Final = 13_000
MAX_METADATA: Final = 8_000


@dataclass(frozen=True, slots=True)
class Problem:
    """Slack's code for content it does not take, and what it says of it: each with the place it is about."""

    code: str
    said: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """What stands beside the code in Slack's answer."""
        if not self.said:
            return {}
        return {"errors": list(self.said), "response_metadata": {"messages": [f"[ERROR] {each}" for each in self.said]}}


def content_problem(text: str, blocks: object, metadata: object) -> Problem | None:
    """What Slack does not take of a content; ``None`` when it takes all.

    ``text`` over 40,000 characters is no problem: Slack cuts it and warns.
    """
    if blocks is not None and not (isinstance(blocks, list) and all(isinstance(block, dict) for block in blocks)):
        return Problem("invalid_blocks_format")
    if not text.strip() and not blocks:
        return Problem("no_text")
    if isinstance(blocks, list) and (problem := _blocks_problem(blocks)) is not None:
        return problem
    return None if metadata is None else _metadata_problem(metadata)


def _blocks_problem(blocks: list[dict[str, Any]]) -> Problem | None:
    if len(blocks) > MAX_BLOCKS:
        return Problem("invalid_blocks", [f"no more than {MAX_BLOCKS} items allowed [json-pointer:/blocks]"])
    said = [
        f"{problem} [json-pointer:/blocks/{index}{where}]"
        for index, block in enumerate(blocks)
        for problem, where in block_problems(block)
    ]
    named = [block["block_id"] for block in blocks if isinstance(block.get("block_id"), str)]
    if len(set(named)) < len(named):
        said.append("block_id must be unique [json-pointer:/blocks]")
    if said:
        return Problem("invalid_blocks", said)
    markdown = [block for block in blocks if block["type"] == "markdown"]
    is_too_long = length(blocks) > MAX_ALL_BLOCKS or length(markdown) > MAX_MARKDOWN
    return Problem("msg_blocks_too_long") if is_too_long else None


def _metadata_problem(metadata: object) -> Problem | None:
    if not isinstance(metadata, dict) or not isinstance(metadata.get("event_payload"), dict):
        return Problem("invalid_metadata_format")
    if not isinstance(metadata.get("event_type"), str) or not metadata["event_type"]:
        return Problem("invalid_metadata_schema")
    return Problem("metadata_too_large") if len(json.dumps(metadata)) > MAX_METADATA else None
