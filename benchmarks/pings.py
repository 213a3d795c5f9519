"""``python -m benchmarks.pings URL``: a client that pings until SIGTERM, in a process of its own.

It says when each PING was sent, by this machine's monotonic clock, and how long its answer took.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from redis import Redis

from benchmarks.processes import Process, prefer

EVERY_S: Final = 0.002
_MS: Final = 1_000


@dataclass(slots=True)
class Pings:
    """Milliseconds from each PING to its answer, of those sent within the context."""

    took: list[float] = field(default_factory=list)


@contextmanager
def pinged(*urls: str, folder: Path) -> Iterator[Sequence[Pings]]:
    """One client for each server; filled at the end."""
    clients = [Process(sys.executable, "-m", "benchmarks.pings", url, folder=folder) for url in urls]
    found = [Pings() for _ in urls]
    try:
        for client in clients:
            client.until(lambda client=client: client.said().endswith("\n"), "the first PING")  # type: ignore[misc] # a default hides the type
        prefer(*(client.pid for client in clients))
        begun = time.monotonic()
        yield found
    finally:
        for client in clients:
            client.end()
    ended = time.monotonic()
    for pings, client in zip(found, clients, strict=True):
        rows = json.loads(client.said().splitlines()[1])
        pings.took += [took * _MS for at, took in rows if begun <= at <= ended]


def main() -> None:
    """Say a word after the first PING, and everything at the end."""
    client = Redis.from_url(sys.argv[1], socket_timeout=None)
    rows: list[tuple[float, float]] = []
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    client.ping()
    print("pinging", flush=True)  # noqa: T201 - to its parent
    while not ended:
        at = time.monotonic()
        client.ping()
        rows.append((at, time.monotonic() - at))
        time.sleep(EVERY_S)
    print(json.dumps(rows), flush=True)  # noqa: T201 - to its parent


if __name__ == "__main__":
    main()
