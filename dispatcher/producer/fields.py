"""The fields of an event that ``send`` takes by name, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict


class Fields(TypedDict, total=False):
    """Those of ``Event`` but category, text and id, in the spellings that it takes."""

    channel: str | None
    blocks: Sequence[dict[str, Any]]
    thread_ts: str | None
    priority: Literal["high", "normal", "low"]
    labels: Mapping[str, str | int | float]
    created_at: float | None
    max_age: float | str | None
    mrkdwn: bool
    thread: str | None
