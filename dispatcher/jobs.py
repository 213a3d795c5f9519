"""The one function an RQ job may name. Our workers never call it: they open the job themselves.

Under a stock ``rq worker -S json`` it takes one event the same way as our workers: the same gate, pace and books.
What has to wait is parked, and one of our workers must run for it.
"""

from __future__ import annotations

import json
import reprlib
from typing import Any, Final

MOST_BYTES: Final = 1024 * 1024
"""So much is kept of what is no event, as where our workers take it."""


def dispatch(*arguments: Any, **keywords: Any) -> str:  # noqa: ANN401 - what a producer has put there
    """Dispatch the one event that a job carries.

    Returns ``posted``, ``decided`` (ended or parked without a post) or ``duplicate``. Any other arguments end as a dead
    letter ``invalid``: RQ would keep a job that raises among its failed ones, outside the books.
    """
    from rq import get_current_job  # only here, inside a job

    from dispatcher.app.running import dispatch_one  # as above: importing this module costs nothing

    job = get_current_job()
    if job is None:
        raise RuntimeError(
            "dispatcher.jobs.dispatch runs inside an RQ job; to enqueue an event use dispatcher.Producer"
        )
    return dispatch_one(job.id, _data(arguments, keywords)[:MOST_BYTES])


def _data(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """The job's data, as RQ's JSON serializer writes it."""
    try:
        return json.dumps(["dispatcher.jobs.dispatch", None, arguments, keywords])
    except (TypeError, ValueError, RecursionError):  # they came by another serializer, and JSON cannot show them
        return json.dumps(["dispatcher.jobs.dispatch", None, [reprlib.repr((arguments, keywords))], {}])
