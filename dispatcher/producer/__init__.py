"""The producers' side: one call hands an event over.

from dispatcher import Producer

producer = Producer.from_env()
producer.send("errors", "disk full on db1", channel="#ops")

Loads neither Redis nor the settings before the first producer is made.
"""

from __future__ import annotations

from dispatcher.producer.blocking import Producer
from dispatcher.producer.chunks import CHUNK, CHUNK_BYTES
from dispatcher.producer.concurrent import AsyncProducer
from dispatcher.producer.target import ANSWER_TIMEOUT_S

__all__ = ["ANSWER_TIMEOUT_S", "CHUNK", "CHUNK_BYTES", "AsyncProducer", "Producer"]
