"""What one worker of the fleet does for all, now and then, and what it tells of silences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dispatcher.core.limits import Bounds
from dispatcher.core.silences import Silence, Silences
from dispatcher.core.units import US
from dispatcher.store.dead_letters import DeadLetters
from dispatcher.store.removals import Removals
from dispatcher.store.rq_recovery import Sweep
from dispatcher.worker.ports import WorkerLog

NAMED: Final = 5
"""So many ids stand in a log line about more."""

REMOVED: Final = "somebody else removed these events from the queue; they are in no total"


class Housekeeping:
    """Done with a worker's heartbeat. Every method but ``tell_silences`` raises ``GateUnavailable``."""

    def __init__(self, sweep: Sweep, removals: Removals, dead_letters: DeadLetters, log: WorkerLog) -> None:
        self._sweep = sweep
        self._removals = removals
        self._dead_letters = dead_letters
        self._log = log
        self.silences: Mapping[str, Silence] = {}
        """Those that were in force the last time that they were told of."""

    def keep_up(self, bounds: Bounds) -> None:
        """If it is time, put back abandoned jobs, look for removed ones, and trim the dead letters. Tell of all this.

        On a full server every heartbeat trims the dead letters: that gives it room.
        """
        is_due = self._sweep.is_due()
        if is_due is False:
            return
        if is_due:
            if back := self._sweep.sweep():
                self._log.say("jobs.swept", back=back)
            if removed := self._removals.find(bounds.decisions):
                self._log.say("jobs.removed", count=len(removed), ids=" ".join(removed[:NAMED]), detail=REMOVED)
        if trimmed := self._dead_letters.trim(bounds):
            self._log.trimmed(trimmed)

    def tell_silences(self, silences: Silences, now_us: int) -> None:
        """One line for each silence that is in force now and was not the last time, or the other way round."""
        before, self.silences = self.silences, {each.id: each for each in silences.in_force(now_us)}
        for id_, each in self.silences.items():
            if before.get(id_) != each:
                until, matchers = each.until_us / US, str(each.matchers)
                self._log.say(
                    "silence.began", silence=id_, matchers=matchers, until=until, who=each.who, detail=each.why
                )
        for id_ in sorted(before.keys() - self.silences.keys()):
            self._log.say("silence.ended", silence=id_)
