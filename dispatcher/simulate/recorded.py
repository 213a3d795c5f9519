"""A trace from what the books of a namespace counted: how many events of each category came in each minute."""

from __future__ import annotations

from typing import Final

from dispatcher.core.limits import NO_CATEGORY
from dispatcher.server.connection import Client, server_us
from dispatcher.server.keys import Keys
from dispatcher.simulate.arrivals import Arrival, Arrivals
from dispatcher.store.counts import MINUTE_US, Counts, read_minutes

MOST_US: Final = 2 * 24 * 60 * MINUTE_US
"""So long the counts of a minute are kept."""

SPREAD: Final = "the books count by the minute: the events of a minute are spread evenly over it"
_AT_ONCE: Final = 60


def read_recorded(client: Client, keys: Keys, span_us: int, into: Arrivals) -> None:
    """Read what came in the last ``span_us``, by the server's clock. Raises ``GateUnavailable``.

    Nothing is written. What was counted as ``other`` stays that; duplicates have no category. What could not be read
    is no event, and is left out. The lines are numbered as they would be in a file.
    """
    now_us, left = server_us(client), -(-span_us // MINUTE_US)
    pages: list[tuple[int, list[Counts]]] = []
    while left > 0:
        page = read_minutes(client, keys, now_us, min(left, _AT_ONCE))
        pages.append((now_us // MINUTE_US, page))
        left -= len(page)
        now_us -= len(page) * MINUTE_US
    line = 0
    for newest, page in reversed(pages):
        for back, counts in reversed(list(enumerate(page))):
            for at_us, category in _spread(counts):
                line += 1
                into.add(Arrival((newest - back) * MINUTE_US + at_us, line, category))


def _spread(counts: Counts) -> list[tuple[int, str]]:
    """The instants within a minute of the events that were counted in it, in order."""
    came = counts.received_by_category() | {"": counts.total("duplicate")}
    came.pop(NO_CATEGORY, None)
    return sorted(
        (MINUTE_US * (2 * n + 1) // (2 * count), category) for category, count in came.items() for n in range(count)
    )
