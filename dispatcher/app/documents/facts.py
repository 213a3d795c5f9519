"""What a status shows: one look at everything, and the use of each limit."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from dispatcher.app.documents.recent import MINUTES, Recent, recent_of
from dispatcher.app.fleet import WorkerEntry, fleet
from dispatcher.app.operating import Desk
from dispatcher.core.limits import Kind, Limit, Scope
from dispatcher.core.policy import GLOBAL_SCOPE, SHADOW_PREFIX, Policy
from dispatcher.core.quiet import Quiet, Span
from dispatcher.core.silences import SILENCE_PREFIX
from dispatcher.core.tally import Telling
from dispatcher.core.units import CATEGORY, format_duration
from dispatcher.limiter import Usage
from dispatcher.server.writing import WriteRefusal
from dispatcher.store.snapshot import Snapshot

COUNTS: Final = ("sent", "dropped", "digested", "dead", "duplicate", "parked")

SUPPRESSED: Final = "suppressed"
"""What categories can be sorted by beside ``COUNTS``: how much of them was suppressed in the last 30 minutes."""

SILENCE: Final = SILENCE_PREFIX.removesuffix(":")
"""What tells of what a silence has suppressed, as ``Untold`` has it."""

_PARTS: Final = re.compile(r"([0-9]{1,18})|([^0-9]+)")
_SCOPES: Final = 200
"""Scopes in one look at the use of limits."""


class Shadowed(NamedTuple):
    """How much of a shadow limit is used, and how many it would have refused."""

    usage: Usage
    would_deny: int


@dataclass(frozen=True, slots=True)
class Status:
    """One look, and how much of each limit is used; ``categories`` are those of the limits file and of the books.

    Where there are guarantees, ``shares`` are what is kept for single categories, and ``shared`` is what that leaves.
    ``shadows`` are the limits that are not enforced, by scope.
    """

    snapshot: Snapshot
    categories: Mapping[str, Sequence[Usage]]
    together: Sequence[Usage]
    workers: Sequence[WorkerEntry]
    shares: Mapping[str, Usage] = field(default_factory=dict)
    shared: Usage | None = None
    shadows: Mapping[str, Sequence[Shadowed]] = field(default_factory=dict)
    refusal: WriteRefusal | None = None
    """Why the server takes no writes, if it does not."""
    recent: Recent = field(default_factory=Recent)
    quiet: Sequence[tuple[Quiet, Span]] = ()
    """The quiet hours that hold."""
    sorted_by: str | None = None
    """The count that somebody asked to sort the categories by."""

    def counts(self) -> dict[str, dict[str, int]]:
        """What became of the events of each category, and how many wait."""
        counted = {name: self.snapshot.by_category(name) for name in COUNTS}
        return {category: {name: counted[name].get(category, 0) for name in COUNTS} for category in self.categories}

    def weights(self) -> dict[str, tuple[float, ...]]:
        """What counts of a category where not all have room.

        How lately something of it was suppressed, how much, how full its limits are, and what waits.
        """
        parked = self.snapshot.by_category("parked")
        found: dict[str, tuple[float, ...]] = {}
        for name, usages in self.categories.items():
            recent = self.recent.of(name)
            used = max((usage.used / usage.limit.max for usage in usages), default=0.0)
            found[name] = (-(recent.age or math.inf), recent.suppressed(), used, parked.get(name, 0))
        return found

    def of(self, pattern: str | None, count: str | None) -> Status:
        """With the categories whose names fit the pattern alone, those with the highest ``count`` first.

        Without a ``count``, those whose events were suppressed last come first; else they keep their order.
        """
        names = [name for name in self.categories if pattern is None or fnmatchcase(name, pattern)]
        if count is None:
            names.sort(key=lambda name: self.recent.of(name).age or sys.maxsize)
        elif count == SUPPRESSED:
            names.sort(key=lambda name: -self.recent.of(name).suppressed())
        else:
            counts = self.counts()
            names.sort(key=lambda name: -counts[name][count])
        return replace(self, categories={name: self.categories[name] for name in names}, sorted_by=count)


@dataclass(frozen=True, slots=True)
class Untold:
    """How many events were suppressed since an instant and nobody in Slack was told of.

    ``telling`` is what will tell of them. ``name`` is the category, or of a silence that has ended its id.
    """

    telling: str
    name: str
    count: int
    since_us: int


def untold(snapshot: Snapshot) -> list[Untold]:
    """What the tallies have counted, the most first; the repeats of a category together, which have a tally each."""
    found: dict[tuple[str, str], Untold] = {}
    for id_, tally in snapshot.tallies.items():
        telling, _, name = id_.partition(":")
        if telling == Telling.REPEAT:
            name = name.rpartition(":")[0]
        if tally.count:
            before = found.get((telling, name), Untold(telling, name, 0, tally.first_us))
            since_us = min(before.since_us, tally.first_us)
            found[telling, name] = Untold(telling, name, before.count + tally.count, since_us)
    return sorted(found.values(), key=lambda each: (-each.count, each.telling, each.name))


def read_status(desk: Desk, policy: Policy, *, lately: bool = True) -> Status:
    """One look at everything; the categories of the limits file come first. ``lately``: at the last minutes too."""
    snapshot = desk.books.snapshot()
    counted = {name for count in COUNTS for name in snapshot.by_category(count)}
    names = [*policy.categories, *sorted(counted - policy.categories.keys(), key=natural)]
    scopes = {name: Scope(f"category:{name}", policy.rule(name).limits) for name in names if CATEGORY.fullmatch(name)}
    shares = {name: share for name in policy.categories if (share := policy.share(name)) is not None}
    pools = [*shares.values(), *([] if policy.shared is None else [policy.shared])]
    asked = [Scope(GLOBAL_SCOPE, policy.global_limits), *scopes.values(), *pools]
    together, *used = _use_of(desk, asked)
    by_category = dict(zip(scopes, used, strict=False))
    of_pools = [usage for (usage,) in used[len(scopes) :]]
    return Status(
        snapshot=snapshot,
        categories={name: by_category.get(name, []) for name in names},
        together=together,
        workers=fleet(desk.workers(), snapshot),
        shares=dict(zip(shares, of_pools, strict=False)),
        shared=None if policy.shared is None else of_pools[-1],
        shadows=_shadows(desk, policy, names),
        refusal=desk.refusal(),
        quiet=policy.hours.holding(snapshot.now_us),
        recent=recent_of(desk.books.minutes(snapshot.now_us, MINUTES + 1), snapshot.now_us) if lately else Recent(),
    )


def window(limit: Limit) -> str:
    """``30m``, ``1m fixed``."""
    return f"{format_duration(limit.window_us)}{'' if limit.kind is Kind.ROLLING else f' {limit.kind}'}"


def natural(name: str) -> list[tuple[bool, int, str]]:
    """What to sort names by, so that svc-2 comes before svc-10."""
    return [(not digits, int(digits or 0), letters) for digits, letters in _PARTS.findall(name)]


def _shadows(desk: Desk, policy: Policy, names: Sequence[str]) -> dict[str, list[Shadowed]]:
    """The use of shadow limits, but for those of labels, of which there may be any number."""
    if not policy.has_shadows:
        return {}
    limits = {GLOBAL_SCOPE: policy.global_shadows, **{f"category:{name}": policy.rule(name).shadows for name in names}}
    shown = {name: windows for name, windows in limits.items() if windows}
    scopes = [Scope(SHADOW_PREFIX + name, windows) for name, windows in shown.items()]
    refused = desk.books.shadowed()
    return {
        name: [Shadowed(usage, refused.get(f"{name} {usage.limit}", 0)) for usage in usages]
        for name, usages in zip(shown, _use_of(desk, scopes), strict=True)
    }


def _use_of(desk: Desk, scopes: Sequence[Scope]) -> list[Sequence[Usage]]:
    """How much of each scope's limits is used; of many scopes by several looks, none of which takes long."""
    found: list[Sequence[Usage]] = []
    for first in range(0, len(scopes), _SCOPES):
        found += desk.limiter.usage_many(scopes[first : first + _SCOPES])
    return found
