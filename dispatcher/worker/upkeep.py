"""What one worker of the fleet does for all, now and then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dispatcher.outcome import Bounds
from dispatcher.store.dead_letters import DeadLetters
from dispatcher.store.sweep import Sweep


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What is looked after with a worker's heartbeat."""

    sweep: Sweep
    dead_letters: DeadLetters

    def keep_up(self, say: Callable[..., None], bounds: Bounds) -> int:
        """Sweep if it is time, and tell of it; trim the dead letters to their bounds, and return how many went.

        Raises ``GateUnavailable`` when the server is away.
        """
        if back := self.sweep.sweep_if_due():
            say("jobs.swept", back=back)
        return self.dead_letters.trim(bounds)
