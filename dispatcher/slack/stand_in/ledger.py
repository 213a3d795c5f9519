"""What landed: every message the stand-in has accepted, in order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Posted:
    """One accepted message; ``arrived_at`` is in seconds since 1970 by the stand-in's clock.

    ``channel`` is the name a person would use; ``via`` is ``api`` or ``webhook``.
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

    @property
    def mark(self) -> str | None:
        """The ``id`` in the metadata's payload, by which the dispatcher marks whose post it is."""
        payload = self.metadata.get("event_payload") if self.metadata else None
        mark = payload.get("id") if isinstance(payload, dict) else None
        return mark if isinstance(mark, str) else None

    def as_json(self) -> dict[str, Any]:
        """The message as ``GET /ledger`` shows it."""
        return {
            "channel": self.channel,
            "channel_id": self.channel_id,
            "ts": self.ts,
            "text": self.text,
            "blocks": list(self.blocks),
            "thread_ts": self.thread_ts,
            "mark": self.mark,
            "via": self.via,
            "arrived_at": self.arrived_at,
        }


class Ledger:
    """The accepted messages; may be read while posts arrive. Nothing is ever taken out but by ``clear``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._posted: list[Posted] = []

    def add(self, posted: Posted) -> None:
        """Write down one more."""
        with self._lock:
            self._posted.append(posted)

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

    def __len__(self) -> int:
        with self._lock:
            return len(self._posted)
