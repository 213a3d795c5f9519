"""Looks at the lines of categories on a stage, and what tests of deferred events do over and over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dispatcher.core.limits import Admitted, Scope
from dispatcher.core.ports import Admitting, Asking, Gate
from tests.support.stage import UNPACED, Stage


def send(stage: Stage, *ids: str, **fields: Any) -> None:  # noqa: ANN401 - an Event's
    """Enqueue events for a channel without pace, so that only the budget holds them up."""
    stage.send(*ids, channel=UNPACED, **fields)


def posted(stage: Stage) -> list[str]:
    """Every event that was posted, in order."""
    return [started.candidate.leased.id for _, started in stage.attempts]


def category_line(stage: Stage, name: str = "category:errors") -> list[str]:
    """Who stands in a category's line, in order."""
    return [id_.decode() for id_ in stage.redis.zrange(stage.keys.line(name), 0, -1)]


def opens_at(stage: Stage, scope: str) -> float | None:
    """From when on one more may pass a scope that lines wait for; ``INF`` while heads of its are being decided."""
    instant: float | None = stage.redis.zscore(stage.keys.lines, f"scope:{scope}")
    return instant


def marks(stage: Stage) -> set[str]:
    """The owners that are deciding."""
    return {owner.decode() for owner in stage.redis.hkeys(stage.keys.deciding)}


def keep_beating(stage: Stage, seconds: int, *alive: str) -> None:
    """Time passes; those named renew their leases every ten seconds, as live workers do."""
    for _ in range(seconds // 10):
        stage.clock.forward(10)
        for owner in alive:
            stage.worker(owner).renew()


class WatchedGate:
    """What stands before the gates of all workers, with a note of who was admitted, in order."""

    def __init__(self) -> None:
        self.admissions: list[str] = []
        """The slots of those that were admitted for the first time: each is the number of a first sight."""

    def __call__(self, gate: Gate) -> Gate:
        return _Noting(gate, self.admissions)


class _Noting:
    def __init__(self, gate: Gate, admissions: list[str]) -> None:
        self._gate = gate
        self._admissions = admissions

    def admit(self, asking: Sequence[Asking], *, ahead: Sequence[Scope]) -> Admitting:
        answer = self._gate.admit(asking, ahead=ahead)
        for each, verdict in zip(asking, answer.verdicts, strict=True):
            slot = each.candidate.leased.slot
            if isinstance(verdict, Admitted) and "#" not in slot and slot not in self._admissions:
                self._admissions.append(slot)
        return answer


class Between:
    """What stands before the gates of all workers; something happens once between an answer and what follows."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self.happens: Callable[[], object] | None = happens

    def __call__(self, gate: Gate) -> Gate:
        return _Interrupted(gate, self)


class _Interrupted:
    def __init__(self, gate: Gate, between: Between) -> None:
        self._gate = gate
        self._between = between

    def admit(self, asking: Sequence[Asking], *, ahead: Sequence[Scope]) -> Admitting:
        answer = self._gate.admit(asking, ahead=ahead)
        happens, self._between.happens = self._between.happens, None
        if happens is not None:
            happens()
        return answer
