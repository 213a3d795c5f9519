"""What landed: every message the stand-in has accepted, in order, with everything it once said."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dispatcher.stand_in.contents import Content


@dataclass(frozen=True, slots=True)
class Version:
    """What a message said before an edit; ``edited_at`` is when it ceased to, in seconds since 1970."""

    text: str
    blocks: tuple[dict[str, Any], ...]
    metadata: Mapping[str, Any] | None
    edited_at: float


@dataclass(frozen=True, slots=True)
class Posted:
    """One accepted message as it is now; ``arrived_at`` is in seconds since 1970 by the stand-in's clock.

    ``channel`` is the name a person would use; ``via`` is ``api`` or ``webhook``. ``thread_ts`` is what the caller
    asked for, ``thread`` the message under which it stands: none where that was no message of the channel.
    ``username`` and ``icon`` are whom it was posted as. ``earlier`` is what it said before each edit, the oldest first.
    """

    channel: str
    channel_id: str
    ts: str
    text: str
    blocks: tuple[dict[str, Any], ...]
    thread_ts: str | None
    metadata: Mapping[str, Any] | None
    via: str
    arrived_at: float
    thread: str | None = None
    is_broadcast: bool = False
    username: str | None = None
    icon: str | None = None
    earlier: tuple[Version, ...] = ()

    @property
    def mark(self) -> str | None:
        """The ``id`` in the metadata's payload, by which the dispatcher marks whose post it is."""
        payload = self.metadata.get("event_payload") if self.metadata else None
        mark = payload.get("id") if isinstance(payload, dict) else None
        return mark if isinstance(mark, str) else None

    @property
    def edits(self) -> int:
        """How often it was changed."""
        return len(self.earlier)

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything it said, the oldest first; the last is ``text``."""
        return (*(version.text for version in self.earlier), self.text)

    def as_json(self) -> dict[str, Any]:
        """The message as ``GET /ledger`` shows it."""
        return {
            "channel": self.channel,
            "channel_id": self.channel_id,
            "ts": self.ts,
            "text": self.text,
            "blocks": list(self.blocks),
            "thread_ts": self.thread_ts,
            "thread": self.thread,
            "username": self.username,
            "icon": self.icon,
            "mark": self.mark,
            "via": self.via,
            "arrived_at": self.arrived_at,
            "edits": self.edits,
            "texts": list(self.texts),
        }


class Ledger:
    """The accepted messages; may be read while posts arrive. Nothing is ever taken out but by ``clear``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._posted: list[Posted] = []
        self._places: dict[str, int] = {}

    def add(self, posted: Posted) -> None:
        """Write down one more."""
        with self._lock:
            self._places[posted.ts] = len(self._posted)
            self._posted.append(posted)

    def find(self, channel: str, ts: object) -> Posted | None:
        """The message of that channel and ``ts``, as it is now."""
        with self._lock:
            place = self._places.get(ts) if isinstance(ts, str) else None
            found = None if place is None else self._posted[place]
        return found if found is not None and found.channel == channel else None

    def edit(self, posted: Posted, content: Content, now: float) -> Posted:
        """Change a message in its place and keep what it said; returns it as it is then."""
        earlier = (*posted.earlier, Version(posted.text, posted.blocks, posted.metadata, now))
        edited = replace(posted, text=content.text, blocks=content.blocks, metadata=content.metadata, earlier=earlier)
        with self._lock:
            self._posted[self._places[posted.ts]] = edited
        return edited

    def posted(self) -> tuple[Posted, ...]:
        """All of them, in the order they landed."""
        with self._lock:
            return tuple(self._posted)

    def per_channel(self) -> dict[str, int]:
        """How many each channel got, in order of name."""
        return dict(sorted(Counter(posted.channel for posted in self.posted()).items()))

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._posted.clear()
            self._places.clear()

    def __len__(self) -> int:
        with self._lock:
            return len(self._posted)
