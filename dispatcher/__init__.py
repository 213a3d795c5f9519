"""Rate-limited notifications from a Redis queue to Slack.

``from dispatcher import Producer, AsyncProducer, Event`` is all a producer needs; ``dispatcher.limiter`` is the limiter
as a library, and ``dispatcher.shards`` spreads events over several servers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

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
    from dispatcher.producer.blocking import Producer
    from dispatcher.producer.concurrent import AsyncProducer

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

_HOMES: Final = {
    "AsyncProducer": "dispatcher.producer.concurrent",
    "Event": "dispatcher.core.event",
    "Explanation": "dispatcher.core.explain",
    "Producer": "dispatcher.producer.blocking",
}


def __getattr__(name: str) -> object:
    """A public name, loaded from its module when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
