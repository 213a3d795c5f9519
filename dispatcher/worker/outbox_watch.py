"""Tells of what the scripts of an outbox have done beside what they were asked for."""

from __future__ import annotations

from dispatcher.store.outbox import Outbox
from dispatcher.worker.collaborators import WorkerLog


class OutboxWatch:
    """Each of its methods tells once of what the outbox has noted since the last time."""

    def __init__(self, outbox: Outbox, log: WorkerLog) -> None:
        self._outbox = outbox
        self._log = log

    def tell_ended(self) -> None:
        """What has ended as it was taken: one line for each event."""
        outbox = self._outbox
        turned_away, outbox.turned_away = outbox.turned_away, []
        duplicates, outbox.duplicates = outbox.duplicates, []
        if turned_away:
            self._log.turned_away(turned_away)
        if duplicates:
            self._log.duplicates(duplicates)

    def tell_turned(self) -> None:
        """Pauses of posting that began or ended."""
        turned, self._outbox.turned = self._outbox.turned, []
        for each in turned:
            if each.began:
                self._log.say("slack.paused", kind=each.kind, code=each.code, detail=each.detail)
            else:
                self._log.say("slack.resumed", kind=each.kind)

    def tell_trimmed(self, more: int = 0) -> None:
        """Dead letters that their bounds have removed, with ``more`` that somebody else has."""
        count, self._outbox.trimmed = self._outbox.trimmed + more, 0
        if count:
            self._log.say("dead_letters.trimmed", count=count)
