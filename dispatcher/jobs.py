"""The one function an RQ job may name. Our workers never call it: they open the job themselves.

Under a stock ``rq worker -S json`` it takes one event the same way as our workers: the same gate, pace and books.
What has to wait is parked, and one of our workers must run for it.
"""

from __future__ import annotations

import json
from typing import Any


def dispatch(event: dict[str, Any]) -> str:
    """Dispatch one event; returns ``posted``, ``decided`` (ended or parked without a post) or ``duplicate``."""
    from rq import get_current_job  # noqa: PLC0415 - only here, inside a job

    from dispatcher.app import dispatch_one  # noqa: PLC0415 - as above: importing this module costs nothing

    job = get_current_job()
    if job is None:
        raise RuntimeError(
            "dispatcher.jobs.dispatch runs inside an RQ job; to enqueue an event use dispatcher.Producer"
        )
    return dispatch_one(job.id, json.dumps(["dispatcher.jobs.dispatch", None, [event], {}]))
