"""Waits until replayed events have ended, and says what became of them."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from dispatcher.cli.progress import progress_bar
from dispatcher.core.explain import State

if TYPE_CHECKING:
    from dispatcher.cli.interruption import Interruption
    from dispatcher.core.explain import Explanation
    from dispatcher.store.explanations import Explanations

_LOOK_EVERY_S: Final = 0.5
_MOST: Final = 500
"""Events in one look."""

_DEAD: Final = "dead"
_UNKNOWN: Final = "unknown"
_OUTCOMES: Final = ("sent", "digested", "dropped", "duplicate", _DEAD, _UNKNOWN)


class Endings:
    """What is known so far of events that were replayed; ``ids`` are those on the queue."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.left = deque(ids)
        self.count = len(ids)
        self._ended: Counter[str] = Counter()
        self._dead_again: Counter[tuple[str, str | None]] = Counter()

    @property
    def are_all_told(self) -> bool:
        """Whether every one of them was sent, or tells of a recovery in the message that it edits (``digested``)."""
        return self._ended["sent"] + self._ended["digested"] == self.count

    def look(self, explanations: Explanations) -> int:
        """Look at some that had not ended, the next time at others; returns how many of these still have not."""
        findings = explanations.find(list(islice(self.left, _MOST)))
        still = 0
        for found in findings.found:
            self.left.popleft()
            told = findings.explain(found)
            if told.state in {State.SETTLED, State.UNKNOWN}:
                self._add(told)
            else:
                self.left.append(found.id)
                still += 1
        return still

    def _add(self, told: Explanation) -> None:
        outcome = told.outcome if told.outcome != _DEAD or told.dead_letter else _UNKNOWN  # its former end
        self._ended[outcome or _UNKNOWN] += 1
        if outcome == _DEAD:
            self._dead_again[told.reason or "", told.code] += 1

    def __str__(self) -> str:
        """``6 replayed: 2 sent, 4 dead again: limit:category``."""
        words = {
            "digested": "told by an edit (digested)", "duplicate": "known already (duplicate)",
            _UNKNOWN: "no longer known",
        }  # fmt: skip
        parts = [f"{count} {words.get(outcome, outcome)}" for outcome, count in self._ended.items() if outcome != _DEAD]
        for (reason, code), count in self._dead_again.most_common():
            parts.append(f"{count} dead again: {reason}{f' ({code})' if code else ''}")
        if self.left:
            parts.append(f"{len(self.left)} not ended yet")
        return f"{self.count} replayed: {', '.join(parts)}" if parts else f"{self.count} replayed"

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` adds."""
        dead_again = [
            {"reason": reason, "code": code, "count": count} for (reason, code), count in self._dead_again.most_common()
        ]
        ended = {outcome: self._ended[outcome] for outcome in _OUTCOMES}
        return {"ended": ended, "dead_again": dead_again, "not_ended": len(self.left)}


def wait(endings: Endings, explanations: Explanations, timeout_s: float, interruption: Interruption) -> None:
    """Look a few times a second until all have ended, or the time is over.

    Raises ``Interrupted``, and ``GateUnavailable``; what was seen until then is kept.
    """
    until_s = time.monotonic() + timeout_s
    with progress_bar(len(endings.left)) as progress:
        while endings.left:
            before = len(endings.left)
            with interruption.held_back():
                still = endings.look(explanations)
            progress.advance(before - len(endings.left))
            progress.show(str(endings))
            rest_s = until_s - time.monotonic()
            if endings.left and rest_s <= 0:
                break
            if still:
                time.sleep(min(_LOOK_EVERY_S, rest_s))
