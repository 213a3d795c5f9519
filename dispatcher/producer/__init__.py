"""The producers' side: one call hands an event over.

from dispatcher import Producer

producer = Producer.from_env()
producer.send("errors", "disk full on db1", channel="#ops")

Loads nothing before its first use, and neither Redis nor the settings before the first producer is made.

May import: store, settings, core, server, errors, jsonio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dispatcher.producer.blocking import Producer
    from dispatcher.producer.chunks import CHUNK, CHUNK_BYTES
    from dispatcher.producer.concurrent import AsyncProducer
    from dispatcher.producer.target import ANSWER_TIMEOUT_S

__all__ = ["ANSWER_TIMEOUT_S", "CHUNK", "CHUNK_BYTES", "AsyncProducer", "Producer"]


def __getattr__(name: str) -> object:
    """Loads all of these when one is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dispatcher.producer import blocking, chunks, concurrent, target  # noqa: PLC0415 - see above

    homes = {"ANSWER_TIMEOUT_S": target, "AsyncProducer": concurrent, "Producer": blocking}
    found: object = getattr(homes.get(name, chunks), name)
    return found
