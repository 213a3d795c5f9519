"""What the worker's loop needs of others, beside what it posts with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dispatcher.core.leased_event import Started
from dispatcher.core.limits import PostResult
from dispatcher.core.outcomes import HistoryScan, Prefiltered, ScanResult, Settlement
from dispatcher.core.pipeline import Dispatcher


class WorkerLog(Protocol):
    """What the loop itself tells."""

    def duplicates(self, ids: list[str]) -> None:
        """Ids that were taken and are present or remembered already."""
        ...

    def prefiltered(self, groups: Sequence[Prefiltered]) -> None:
        """New events that ``take`` has dropped, since a limit refuses them."""
        ...

    def trimmed(self, count: int) -> None:
        """So many dead letters were lost to their bounds."""
        ...

    def say(self, event: str, **facts: object) -> None:
        """One line: ``noun.past_participle`` and its facts."""
        ...


class FleetLimits(Protocol):
    """The limits by which this worker decides: always a version that is or was in force for the whole fleet."""

    @property
    def dispatcher(self) -> Dispatcher:
        """The core with these limits."""
        ...

    def follow(self, version: str | None) -> None:
        """Go over to the version in force, unless ``version``, which somebody saw in force, is the one followed.

        Raises ``GateUnavailable``, and ``ConfigError`` where this program cannot read those limits.
        """
        ...

    def reread(self) -> None:
        """Read the limits file again, publish what it says if that is new, and tell what came of it.

        A file with faults changes nothing. Raises as ``follow`` does.
        """
        ...


class CurrentExecutor:
    """What the post pool runs, always by the limits of the moment; see ``post_pool.PostExecutor``."""

    def __init__(self, limits: FleetLimits) -> None:
        self._limits = limits

    def deliver(self, started: Started) -> Settlement:
        """Post one message and say what follows."""
        return self._limits.dispatcher.deliver(started)

    def not_made(self, started: Started) -> Settlement:
        """What follows from a post that was never begun."""
        return self._limits.dispatcher.not_made(started)

    def conclude(self, started: Started, result: PostResult) -> Settlement:
        """What follows from a post that came to ``result``."""
        return self._limits.dispatcher.conclude(started, result)

    def scan(self, scan: HistoryScan) -> list[Settlement]:
        """Read what was posted and say what follows for each event."""
        return self._limits.dispatcher.scan(scan)

    def conclude_scan(self, scan: HistoryScan, result: ScanResult) -> list[Settlement]:
        """What follows from a result."""
        return self._limits.dispatcher.conclude_scan(scan, result)
