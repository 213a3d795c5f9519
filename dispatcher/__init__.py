"""Rate-limited notifications from a Redis queue to Slack.

``from dispatcher import Producer, Event`` is all a producer needs; ``dispatcher.limiter`` is the limiter as a library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.errors import (
    ConfigError,
    DispatcherError,
    DuplicateEvent,
    GateUnavailable,
    InvalidEvent,
    QueueFull,
    QueueUnavailable,
    RateLimited,
)

if TYPE_CHECKING:
    from dispatcher.event import Event
    from dispatcher.producer import Producer

__all__ = [
    "ConfigError",
    "DispatcherError",
    "DuplicateEvent",
    "Event",
    "GateUnavailable",
    "InvalidEvent",
    "Producer",
    "QueueFull",
    "QueueUnavailable",
    "RateLimited",
]


def __getattr__(name: str) -> object:
    """Loads what needs more than the standard library at its first use, so that the command line starts at once."""
    if name == "Producer":
        from dispatcher.producer import Producer  # noqa: PLC0415 - see above

        return Producer
    if name == "Event":
        from dispatcher.event import Event  # noqa: PLC0415 - see above

        return Event
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
