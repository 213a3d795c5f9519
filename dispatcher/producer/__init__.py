"""The producers' side: one call hands an event over.

from dispatcher import Producer

producer = Producer.from_env()
producer.send("errors", "disk full on db1", channel="#ops")

Loads nothing before its first use, and neither Redis nor the settings before the first producer is made.

May import: store, settings, core, server, errors, jsonio, front_door.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.front_door import front_door

if TYPE_CHECKING:
    from dispatcher.producer.blocking import Producer
    from dispatcher.producer.chunks import CHUNK, CHUNK_BYTES
    from dispatcher.producer.concurrent import AsyncProducer
    from dispatcher.producer.target import ANSWER_TIMEOUT_S

__all__ = ["ANSWER_TIMEOUT_S", "CHUNK", "CHUNK_BYTES", "AsyncProducer", "Producer"]

__getattr__ = front_door(
    __name__,
    {
        "ANSWER_TIMEOUT_S": "dispatcher.producer.target",
        "AsyncProducer": "dispatcher.producer.concurrent",
        "CHUNK": "dispatcher.producer.chunks",
        "CHUNK_BYTES": "dispatcher.producer.chunks",
        "Producer": "dispatcher.producer.blocking",
    },
)
