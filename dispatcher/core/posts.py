"""What is posted, and what Slack may answer to it.

Everything here is frozen, slotted, free of I/O and clock, and built on the standard library alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Message:
    """What is posted: finished content, escaped and cut; ``event_id`` lets the sink mark the post.

    ``template_fault`` says why the category's template did not make the text.
    """

    event_id: str
    channel: str
    text: str
    blocks: tuple[dict[str, object], ...] = ()
    thread_ts: str | None = None
    identity: Identity | None = None
    template_fault: str | None = None


# What a post came to. Values, because the caller goes on in every case.


@dataclass(frozen=True, slots=True)
class Receipt:
    """The sink's proof that the message was posted, but for what was ``left_out``; a webhook answers no ``ts``."""

    channel: str
    ts: str | None
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class RateLimitedBySlack:
    """Not posted; nobody may post to this channel for ``retry_after_us``. Uses no attempt.

    If another channel cools down already, nobody may post anywhere until the later end.
    """

    retry_after_us: int
    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Retryable:
    """Certainly not posted; a later attempt may do better.

    ``reached`` says whether Slack has answered: not where the request never left (refused, DNS, TLS); None where it was
    not tried.
    """

    code: str
    detail: str
    uses_attempt: bool = True
    reached: bool | None = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """Certainly not posted and never will be as it is."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """Perhaps posted, perhaps not."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Paused:
    """Not posted, and nothing will be until an operator acts on ``detail``.

    ``fingerprint`` tells the credential that was refused from others; empty where the sink has none.
    """

    code: str
    detail: str
    fingerprint: str = ""


PostResult: TypeAlias = Receipt | RateLimitedBySlack | Retryable | Rejected | Ambiguous | Paused


@dataclass(frozen=True, slots=True)
class Identity:
    """Under which name and icon a message appears, where these are not the app's own."""

    username: str | None = None
    icon_emoji: str | None = None
    icon_url: str | None = None


class Part(StrEnum):
    """A part of a message that can be left out where Slack does not take it."""

    IDENTITY = "identity"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of a message that was left out, since a post with it was refused with ``code``."""

    part: Part
    code: str
    detail: str
