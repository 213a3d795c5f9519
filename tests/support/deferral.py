"""Looks at the lines of categories on a stage, and what tests of deferred events do over and over."""

from __future__ import annotations

from typing import Any

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
