"""Rate-limited notifications from a Redis queue to Slack.

``from dispatcher import Producer, AsyncProducer, Event`` is all a producer needs; ``dispatcher.limiter`` is the limiter
as a library, and ``dispatcher.shards`` spreads events over several servers.
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
    SendStopped,
)

if TYPE_CHECKING:
    from dispatcher.core.event import Event
    from dispatcher.core.explain import Explanation
    from dispatcher.producer import AsyncProducer, Producer

__all__ = [
    "AsyncProducer",
    "ConfigError",
    "DispatcherError",
    "DuplicateEvent",
    "Event",
    "Explanation",
    "GateUnavailable",
    "InvalidEvent",
    "Producer",
    "QueueFull",
    "QueueUnavailable",
    "RateLimited",
    "SendStopped",
]


def __getattr__(name: str) -> object:
    """Loads these at their first use, so that the command line starts at once. None of them loads Redis by itself."""
    if name in {"AsyncProducer", "Producer"}:
        from dispatcher import producer  # noqa: PLC0415 - see above

        found: object = getattr(producer, name)
        return found
    if name == "Event":
        from dispatcher.core.event import Event  # noqa: PLC0415 - see above

        return Event
    if name == "Explanation":
        from dispatcher.core.explain import Explanation  # noqa: PLC0415 - see above

        return Explanation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
