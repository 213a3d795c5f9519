"""What marks a post as an event's: metadata that travels with the message and is read back from the history."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

METADATA_TYPE: Final = "dispatcher_event"


def event_mark(event_id: str) -> str:
    """A digest of the id, because a workspace can read the metadata."""
    return blake2b(event_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def metadata_of(mark: str) -> dict[str, Any]:
    """The metadata of a post."""
    return {"event_type": METADATA_TYPE, "event_payload": {"id": mark}}


def mark_of(message: object) -> str | None:
    """The mark that a message of the history carries; None of any other message."""
    match message:
        case {"metadata": {"event_type": str(kind), "event_payload": {"id": str(mark)}}} if kind == METADATA_TYPE:
            return mark
        case _:
            return None
