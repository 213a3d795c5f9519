"""RQ's wire format as producers write it: a job's ``data`` around one event; ``envelope`` reads it."""

from __future__ import annotations

from typing import Final

from dispatcher.core.event import Event, encode_event

FUNCTION: Final = "dispatcher.jobs.dispatch"
HEAD: Final = f'["{FUNCTION}", null, ['
TAIL: Final = "], {}]"


def seal(event: Event) -> str:
    """The ``data`` of a job: function, instance, arguments and keywords in RQ's JSON form."""
    return f"{HEAD}{encode_event(event)}{TAIL}"
