"""What one worker of the fleet does for all, now and then, and what it tells of mutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from dispatcher.core.limits import US, Bounds
from dispatcher.core.mutes import Mute
from dispatcher.core.outcomes import Prefiltered
from dispatcher.store.dead_letters import DeadLetters
from dispatcher.store.removals import Removals
from dispatcher.store.rq_recovery import Sweep

NAMED: Final = 5
"""So many ids stand in a log line about more."""

REMOVED: Final = "somebody else removed these events from the queue; they are in no total"


class Housekeeping:
    """Done with a worker's heartbeat. Every method but ``tell_mutes`` raises ``GateUnavailable``."""

    def __init__(self, sweep: Sweep, removals: Removals, dead_letters: DeadLetters, log: WorkerLog) -> None:
        self._sweep = sweep
        self._removals = removals
        self._dead_letters = dead_letters
        self._log = log
        self._muted: Mapping[str, Mute] = {}

    def keep_up(self, bounds: Bounds) -> None:
        """If it is time, put back abandoned jobs and look for removed ones; trim the dead letters. Tell of all this."""
        if self._sweep.is_due():
            if back := self._sweep.sweep():
                self._log.say("jobs.swept", back=back)
            if removed := self._removals.find(bounds.decisions):
                self._log.say("jobs.removed", count=len(removed), ids=" ".join(removed[:NAMED]), detail=REMOVED)
        if trimmed := self._dead_letters.trim(bounds):
            self._log.trimmed(trimmed)

    def tell_mutes(self, muted: Mapping[str, Mute]) -> None:
        """One line for each category that is muted now and was not the last time, or the other way round."""
        before, self._muted = self._muted, muted
        if muted == before:
            return
        for category, mute in muted.items():
            if before.get(category) != mute:
                until = mute.until_us / US
                self._log.say("category.muted", category=category, until=until, who=mute.who, detail=mute.why)
        for category in before.keys() - muted.keys():
            self._log.say("category.unmuted", category=category)


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
