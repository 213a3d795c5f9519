"""The name by which users import the map of shards; see ``producer.shards``.

from dispatcher.shards import Shards

shards = Shards({"one": "redis://redis-1:6379/0", "two": "redis://redis-2:6379/0"})
shards.url_for("tenant-7")
"""

from __future__ import annotations

from dispatcher.producer.shards import Shards

__all__ = ["Shards"]
