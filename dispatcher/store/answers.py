"""What the outbox's scripts answer of single events, as values."""

from __future__ import annotations

from typing import Any

from dispatcher.leased import Candidate, Leased, Spoiled, Started, Waiting
from dispatcher.model import Reason
from dispatcher.outcome import Deferral, Turn
from dispatcher.policy import limit_reason
from dispatcher.store.envelope import read, read_new


def parted(facts: dict[str, Any], records: bytes) -> list[Leased | Spoiled]:
    """The events of take.lua, whose records come as one."""
    batch: list[Leased | Spoiled] = []
    start, now_us = 0, int(facts["now"])
    for id_, size, seq in zip(facts["ids"].split(" "), facts["sizes"], facts["seqs"], strict=True):
        end = start + size
        batch.append(read_new(id_, records[start:end], seq, now_us) if seq else read(id_, records[start:end]))
        start = end
    return batch


def lined_up(deferral: Deferral, row: Any) -> Waiting | Turn:  # noqa: ANN401 - a row of line_up.lua
    """What became of a deferral."""
    if isinstance(row, str):
        return Turn(row)
    _, scope, wait_us = row
    return Waiting(deferral.candidate, limit_reason(scope), None if wait_us is None else int(wait_us), scope)


def started(candidate: Candidate, row: Any) -> Started | Waiting | None:  # noqa: ANN401 - a row of pace.lua
    """Whether the post of a candidate may leave; None where the lease was lost."""
    if row == "go":
        return Started(candidate, candidate.leased.attempt + 1)
    if row == "lost":
        return None
    if row[0] == "go":
        return Started(candidate, candidate.leased.attempt + 1, row[1])
    reason, wait_us = row
    return Waiting(candidate, Reason(reason), wait_us)
