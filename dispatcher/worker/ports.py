"""What the worker's loop needs of others: the limits of the fleet, and a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dispatcher.core.pipeline import Dispatcher
from dispatcher.core.states import Prefiltered


class FleetLimits(Protocol):
    """The limits by which this worker decides: always a version that is or was in force for all workers."""

    @property
    def dispatcher(self) -> Dispatcher:
        """The core with these limits."""
        ...

    @property
    def version(self) -> str:
        """The name of their version."""
        ...

    def follow(self) -> None:
        """Switch to the version in force, which is another one than ``version``.

        Raises ``GateUnavailable``, and ``ConfigError`` if this program cannot read those limits.
        """
        ...

    def reread(self) -> None:
        """Read the limits file again, publish its content if that is new, and log the result.

        A file with faults changes nothing. Raises as ``follow`` does.
        """
        ...


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
