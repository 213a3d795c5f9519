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
from dispatcher.front_door import front_door

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

__getattr__ = front_door(
    __name__,
    {
        "AsyncProducer": "dispatcher.producer.concurrent",
        "Event": "dispatcher.core.event",
        "Explanation": "dispatcher.core.explain",
        "Producer": "dispatcher.producer.blocking",
    },
)
