"""A category's template as the core knows it: what it is given, and that it may fail. Settings build it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, Self

VARIABLES: Final = ("category", "text", "id", "labels", "priority", "created_at", "channel")


class Marked(str):
    """An event's text as it was written; where it is shown as it is, it is shown as its ``markup``."""

    __slots__ = ("markup",)

    markup: str

    def __new__(cls, written: str, markup: str) -> Self:
        """What was written, and the markup for it, in which mentions notify nobody unless they may."""
        made = super().__new__(cls, written)
        made.markup = markup
        return made


class TemplateFailed(Exception):
    """The template made no text of this event; the message says why, on one line."""


class Template(Protocol):
    """What makes the text of a message."""

    @property
    def source(self) -> str:
        """The template as it stands in the limits file."""
        ...

    def render(self, variables: Mapping[str, object]) -> str:
        """Slack's markup, in which the variables are shown as they were written; raises ``TemplateFailed``."""
        ...
