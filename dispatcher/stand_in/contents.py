"""What a message says, as a call brings it: decoded, held against Slack's limits, cut where Slack cuts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from dispatcher.stand_in.answers import Refused
from dispatcher.stand_in.sizes import MAX_TEXT, content_problem


@dataclass(frozen=True, slots=True)
class Content:
    """Text, blocks and metadata that Slack takes; ``was_cut`` where the text was longer than that."""

    text: str
    blocks: tuple[dict[str, Any], ...]
    metadata: Mapping[str, Any] | None
    was_cut: bool = False

    @classmethod
    def read(cls, text: object, blocks: object, metadata: object) -> Self:
        """The content in a call's arguments; raises ``Refused`` with Slack's code."""
        text = text or ""
        parts: Any = _decoded(blocks)
        tags: Any = _decoded(metadata) or None
        if not isinstance(text, str):
            raise Refused("invalid_arguments")
        if (problem := content_problem(text, parts, tags)) is not None:
            raise Refused(problem.code, **problem.as_json())
        return cls(text[:MAX_TEXT], tuple(parts or ()), tags, was_cut=len(text) > MAX_TEXT)


def _decoded(value: object) -> Any:  # noqa: ANN401 - decoded JSON
    """A form sends structures as JSON text; what is no JSON stays text, and is refused as the wrong type."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
