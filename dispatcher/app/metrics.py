"""What metrics tell, read for one scrape: the books, the use of limits, workers, versions; a bounded number of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, chain
from typing import Final

from dispatcher.app.fleet import WorkerEntry, fleet
from dispatcher.app.operating import Desk
from dispatcher.core.limits import Scope
from dispatcher.core.policy import GLOBAL_SCOPE, WEBHOOK, Policy
from dispatcher.core.units import US, Lane
from dispatcher.limiter import Usage
from dispatcher.store.snapshot import Measured
from dispatcher.store.versions import Version

OTHER: Final = "other"
"""The label of categories and channels that have no place of their own."""

MOST_CATEGORIES: Final = 150
MOST_LIMITS: Final = 200
"""With these a scrape has less than 5,000 series, whatever happens in each category."""


@dataclass(frozen=True, slots=True)
class ScopeUse:
    """How much of each limit of a scope is used, and how many of its slots are held."""

    name: str
    usages: Sequence[Usage]
    held: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What one scrape tells. ``categories`` and ``channels`` are those that have a label of their own."""

    measured: Measured
    policy: Policy
    categories: frozenset[str]
    channels: frozenset[str]
    scopes: Sequence[ScopeUse]
    workers: Sequence[WorkerEntry]
    version: Version | None
    server: str
    max_waiting: int

    def category(self, name: str) -> str:
        """Its label."""
        return name if name in self.categories else OTHER

    def oldest_s(self, lane: Lane) -> float:
        """For how long the next event of a lane has waited there, by the server's clock; 0 where none waits."""
        head = self.measured.heads.get(lane)
        if head is None:
            return 0.0
        try:
            enqueued_s = datetime.fromisoformat(head).timestamp()
        except ValueError:  # written by somebody else
            return 0.0
        return max(0.0, self.measured.snapshot.now_us / US - enqueued_s)


def read_facts(desk: Desk) -> Facts:
    """Read them. Raises ``GateUnavailable``, and ``ConfigError`` where the namespace or its limits cannot be read."""
    desk.check()
    measured = desk.books.measure(desk.settings.metrics_categories)
    limits = desk.limits()
    policy = limits.policy
    named = [*policy.categories, *(name for name in measured.named if name not in policy.categories)]
    shown = named[:MOST_CATEGORIES]
    return Facts(
        measured=measured,
        policy=policy,
        categories=frozenset(shown),
        channels=_channels(policy),
        scopes=_use(desk, _scopes(policy)),
        workers=fleet(desk.workers(), measured.snapshot),
        version=limits.version,
        server=desk.server_version(),
        max_waiting=desk.settings.max_waiting,
    )


def _channels(policy: Policy) -> frozenset[str]:
    """The channels that the limits name: those with a pace, of categories, of routes, and fallbacks; the first ones."""
    rules = [policy.defaults, *policy.categories.values()]
    others = [(*(route.channel for route in rule.routes), rule.fallback) for rule in rules]
    named = [WEBHOOK, *policy.channels, *(rule.channel for rule in rules), *chain.from_iterable(others)]
    return frozenset([name for name in dict.fromkeys(named) if name is not None][:MOST_CATEGORIES])


def _scopes(policy: Policy) -> list[Scope]:
    """The limits of all together and of the categories of the limits file, and what guarantees keep and leave.

    The first ones, with ``MOST_LIMITS`` limits in all.
    """
    scopes = [Scope(GLOBAL_SCOPE, policy.global_limits)]
    scopes += [] if policy.shared is None else [policy.shared]
    scopes += [share for name in policy.categories if (share := policy.share(name)) is not None]
    scopes += [Scope(f"category:{name}", policy.rule(name).limits) for name in policy.categories]
    counts = accumulate(len(scope.limits) for scope in scopes)
    return [scope for scope, count in zip(scopes, counts, strict=True) if scope.limits and count <= MOST_LIMITS]


def _use(desk: Desk, scopes: Sequence[Scope]) -> list[ScopeUse]:
    used = desk.limiter.usage_many(scopes)
    held = desk.books.held([scope.name for scope in scopes])
    return [ScopeUse(scope.name, usages, count) for scope, usages, count in zip(scopes, used, held, strict=True)]
