"""The actor of Dramatiq's worker; ``python -m benchmarks.jobs.dramatiq_job EVENTS TYPES`` puts messages on its queue.

Dramatiq is installed for this benchmark alone: whatever comes from it is Any.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from benchmarks.jobs.rq_job import decide as ask
from benchmarks.storms import Storm

_dramatiq: Any = importlib.import_module("dramatiq")
_broker: Any = importlib.import_module("dramatiq.brokers.redis").RedisBroker(url=os.environ["STORM_SERVER"])
_dramatiq.set_broker(_broker)


def _decide(category: str, text: str, count: int) -> None:
    ask(category, text, count)


decide = _dramatiq.actor(_decide, queue_name="storm")

if __name__ == "__main__":
    for category, text, count in Storm(int(sys.argv[1]), int(sys.argv[2])).rows():
        decide.send(category, text, count)
