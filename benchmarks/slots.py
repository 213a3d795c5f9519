"""What one slot costs the server's memory, for each way a scope is kept."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.effort import Effort
from benchmarks.figures import Goal, Proofs, Report, Spread, Table
from benchmarks.stage import stage
from dispatcher.limiter import Admitted, Limit, Limiter, Scope
from tests.support.servers import Database

COMPACT: Final = 32
"""Slots that the server keeps in its compact form."""

SMALL: Final = 100
BEGIN_US: Final = 1_732_100_000_000_000
STEP_US: Final = 1_234_567
"""Between two slots: real instants differ in all their digits."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """One way to keep slots, and the bounds of the bytes for each: of a limit up to 32, and beyond."""

    name: str
    store: str
    new_id: Callable[[int], str]
    goals: tuple[float, float]


KEEPINGS: Final = (
    Keeping("ids of 16 characters", "set", lambda n: f"event-{n:010d}", (45, 140)),
    Keeping("UUIDs as ids", "set", lambda n: str(uuid.uuid5(uuid.NAMESPACE_OID, str(n))), (45, 140)),
    Keeping("no ids (log)", "log", str, (16, 16)),
    Keeping("no ids, fixed window (quota)", "quota", str, (16, 16)),
)


def run(effort: Effort) -> Report:
    """Memory is not a matter of luck: one round."""
    sizes = effort.of((10, COMPACT, SMALL, 1_000, 100_000), quick=(10, COMPACT, 300))
    proofs, rows, goals = Proofs(), [], []
    with stage(effort.cores) as (_, client):
        for keeping in KEEPINGS:
            first = _bytes(client, keeping, 1, proofs)
            for size in sizes:
                whole = _bytes(client, keeping, size, proofs)
                each = (whole - first) / (size - 1)
                rows.append((keeping.name, f"{size:,}", whole, whole / size, each))
                bound = keeping.goals[0 if size <= COMPACT else 1]
                goals.append(Goal(f"{keeping.name}, {size:,} slots: bytes for one", Spread.of([each]), at_most=bound))
    columns = ("a scope with", "slots", "bytes of its key", "over its slots", "for one more slot")
    table = Table("memory of a scope, by MEMORY USAGE", columns, tuple(rows))
    return Report((table,), tuple(goals), proofs.collected(), _NOTES)


_NOTES: Final = (
    "For one more slot: the difference to a key with a single slot, so without what a key costs by itself.",
    "An id of more than 16 characters is kept as a digest of 16.",
)


def _bytes(client: Database, keeping: Keeping, size: int, proofs: Proofs) -> int:
    """Of the one key that holds ``size`` slots."""
    client.flushall()
    limiter = Limiter(client)
    limit = Limit.parse(f"{size}/365d{' fixed' if keeping.store == 'quota' else ''}")
    scope = Scope("scope", (limit,), ids=keeping.store == "set")
    admitted = 0
    for at in range(0, size, SMALL):
        ids = [keeping.new_id(n) for n in range(at, min(at + SMALL, size))]
        verdicts = limiter.try_acquire_many([scope] * len(ids), ids, now_us=BEGIN_US + at // SMALL * STEP_US)
        admitted += sum(type(verdict) is Admitted for verdict in verdicts)
    proofs.add(f"{keeping.name}: admitted", admitted, size)
    [usage] = limiter.usage(scope, now_us=BEGIN_US + size // SMALL * STEP_US)
    proofs.add(f"{keeping.name}: slots in use", usage.used, size)
    names = client.keys()
    proofs.add(f"{keeping.name}: keys", len(names), 1)
    return int(client.memory_usage(names[0], samples=0))
