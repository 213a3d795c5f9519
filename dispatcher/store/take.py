"""What the scripts of ``leases`` answer, as values: what one ``take`` brings, and what became of single events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dispatcher.core.leased_event import Candidate, Leased, Started, Undecodable, Waiting
from dispatcher.core.limits import Reason
from dispatcher.core.mutes import Mute, read_mutes
from dispatcher.core.outcomes import Deferral, Prefiltered, Turn
from dispatcher.core.policy import limit_reason
from dispatcher.jsonio import decode_answer
from dispatcher.store.envelope import read, read_new
from dispatcher.store.prefilter import PrefilterCall


class Undecided(NamedTuple):
    """From where on an owner has yet to decide what it took: what it names when it takes more before it has."""

    seq: int
    """No event of these, and none that is taken later for the first time, has a lower one."""
    freed: int
    """How many slots had become free by then, while somebody was deciding; see lua/include/deferred.lua."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What one ``take`` brought. ``next_us`` is the next instant at which there may be something to take."""

    batch: list[Leased | Undecodable]
    now_us: int
    next_us: int | None
    more: bool
    suspended: bool
    duplicates: list[str]
    prefiltered: list[Prefiltered] = field(default_factory=list)
    """New events that a limit has refused by the pre-check, and that were dropped."""
    muted: Mapping[str, Mute] = field(default_factory=dict)
    """Categories of which nothing is to be posted that was not admitted before."""
    undecided: Undecided | None = None
    """None where its owner has to decide before it takes anything else: with events that were taken before to be
    decided, and where there are others to be looked after."""
    nth: int = 0
    """Of the takes in a row before whose batches the owner had something to decide."""
    old: int = 0
    """How many of the batch were taken before."""
    version: str | None = None
    """The version of the limits that is in force."""

    def and_then(self, later: Taken) -> Taken:
        """What the two brought, as one."""
        can_go_on = self.undecided is not None and later.undecided is not None
        return replace(
            later,
            batch=[*self.batch, *later.batch],
            duplicates=[*self.duplicates, *later.duplicates],
            prefiltered=[*self.prefiltered, *later.prefiltered],
            undecided=self.undecided if can_go_on else None,
            old=self.old + later.old,
        )


def read_taken(answer: Any, prefiltering: PrefilterCall | None = None) -> Taken:  # noqa: ANN401 - what take.lua returns
    """The answer to a call that named the categories to be prefiltered."""
    facts = decode_answer(answer[0])
    refused = facts["refused"]
    return Taken(
        batch=parted(facts, answer[1]) if facts["sizes"] else [],
        now_us=int(facts["now"]),
        next_us=int(facts["next"]) if facts["next"] else None,
        more=facts["more"],
        suspended=facts["suspended"],
        duplicates=facts["duplicates"] or [],
        prefiltered=prefiltering.read(refused) if prefiltering is not None and refused else [],
        muted=read_mutes(facts.get("muted"), int(facts["now"])),
        undecided=Undecided(int(facts["from"]), facts["freed"]) if facts["from"] else None,
        nth=facts["nth"],
        old=facts["seqs"].count(0) if facts["seqs"] else 0,
        version=facts["version"],
    )


def parted(facts: dict[str, Any], records: bytes) -> list[Leased | Undecodable]:
    """The events of take.lua, whose records come as one."""
    batch: list[Leased | Undecodable] = []
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
