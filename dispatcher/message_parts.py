"""The parts of a message beside its text, and what of them was left out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Look:
    """Under which name and icon a message appears, where these are not the app's own."""

    username: str | None = None
    icon_emoji: str | None = None
    icon_url: str | None = None


class Part(StrEnum):
    """A part of a message that can be left out where Slack does not take it."""

    LOOK = "look"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of a message that was left out, since a post with it was refused with ``code``."""

    part: Part
    code: str
    detail: str
