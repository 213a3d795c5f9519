"""What the books count, since the namespace began or in one minute: read by category and by reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dispatcher.server.connection import Client, translate_outages
from dispatcher.server.keys import Keys

OUTCOMES: Final = ("sent", "dropped", "digested", "dead", "duplicate")
MINUTE_US: Final = 60_000_000
_AT_ONCE: Final = 240
"""Minutes in one round trip, so that others have their turn between two."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The fields of the books (``lua/include/accounting.lua``): ``dropped``, ``dropped errors limit:global``."""

    fields: Mapping[str, int]

    def total(self, count: str) -> int:
        """How many in all."""
        return self.fields.get(count, 0)

    def by_category(self, count: str) -> dict[str, int]:
        """One outcome, or ``parked`` or ``held``, by category. A duplicate has none."""
        counts: dict[str, int] = {}
        for (category, _), number in self.by_reason(count).items():
            counts[category] = counts.get(category, 0) + number
        return counts

    def by_reason(self, outcome: str) -> dict[tuple[str, str], int]:
        """One outcome by category and reason, which is '' where the outcome has no others: ``sent``."""
        counts: dict[tuple[str, str], int] = {}
        for field, number in self.fields.items():
            counted, _, rest = field.partition(" ")
            if rest and counted == outcome:
                category, _, reason = rest.partition(" ")
                counts[category, reason] = number
        return counts

    def received_by_category(self) -> dict[str, int]:
        """How many came of each category, duplicates aside: from the first decision on about each event.

        Since the namespace began it never falls.
        """
        counts: dict[str, int] = {}
        for count in ("held", *OUTCOMES[:-1]):
            for category, number in self.by_category(count).items():
                counts[category] = counts.get(category, 0) + number
        return counts


def read_totals(client: Client, keys: Keys, numbers: Sequence[int]) -> Iterator[list[int]]:
    """What was received in each minute, and what became of events, in the order of ``OUTCOMES``.

    A minute is named by its number since 1970. Raises ``GateUnavailable`` when the server is away.
    """
    fields = ("received", *OUTCOMES)
    for first in range(0, len(numbers), _AT_ONCE):
        pipe = client.pipeline(transaction=False)
        for number in numbers[first : first + _AT_ONCE]:
            pipe.hmget(keys.minute(number), fields)
        with translate_outages():
            rows: Sequence[Sequence[bytes | None]] = pipe.execute()
        yield from ([int(count or 0) for count in row] for row in rows)


def read_minutes(client: Client, keys: Keys, now_us: int, most: int) -> list[Counts]:
    """What happened in the minute of ``now_us`` and in those before it, the newest first; ``most`` in all.

    One command for each minute, in one round trip. Raises ``GateUnavailable`` when the server is away.
    """
    newest = now_us // MINUTE_US
    pipe = client.pipeline(transaction=False)
    for number in range(newest, newest - most, -1):
        pipe.hgetall(keys.minute(number))
    with translate_outages():
        found: Sequence[Mapping[bytes, bytes]] = pipe.execute()
    return [Counts({field.decode(): int(count) for field, count in row.items()}) for row in found]
