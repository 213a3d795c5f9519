"""The workers of a queue as RQ's registry has them, and which of them live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from dispatcher.core.units import US
from dispatcher.store.snapshot import Snapshot

_FRESH_S: Final = 10.0
"""A worker without a lease has just started, or signs off, for less than this. The clock of its host may be wrong."""


class WorkerEntry(NamedTuple):
    """A worker as RQ's registry has it; ``last_heartbeat`` is in seconds since 1970, by its own clock.

    One of ours that is not ``alive`` was killed: it holds no lease, and its entry is not renewed.
    """

    name: str
    host: str
    pid: int
    state: str
    last_heartbeat: float
    alive: bool = True
    senders: int = 0
    senders_busy: int = 0


def fleet(entries: Iterable[Mapping[str, str]], snapshot: Snapshot) -> list[WorkerEntry]:
    """The workers of ``workers_of``, judged by the leases of the same moment.

    A stock RQ worker takes no lease and beats every few minutes: it counts as alive while RQ keeps its entry.
    """
    return [_worker(entry, snapshot) for entry in entries]


def _worker(entry: Mapping[str, str], snapshot: Snapshot) -> WorkerEntry:
    name, host, pid = entry["name"], entry["host"], entry["pid"]
    beat = datetime.fromisoformat(entry["last_heartbeat"]).timestamp()
    is_ours = name.startswith(f"{host}.{pid}.")
    holds_lease = any(
        end > snapshot.now_us for owner, end in snapshot.leases.items() if owner.partition("/")[0] == name
    )
    is_fresh = abs(snapshot.now_us / US - beat) < _FRESH_S
    senders = {field: int(entry.get(field, "0")) for field in ("senders", "senders_busy")}
    return WorkerEntry(
        name, host, int(pid or 0), entry["state"], beat, alive=holds_lease or not is_ours or is_fresh, **senders
    )
