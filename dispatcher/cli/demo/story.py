"""The demo's events: what goes wrong in a made-up shop within half a minute, 15 times each."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from dispatcher.core.limits import Limit

EACH: Final = 15
TOGETHER: Final = Limit.parse("100/30m")
OWN: Final = Limit.parse("10/30m")

_SEED: Final = 20
_STORMS: Final = ("payments.failed", "checkout.errors", "db.slow-queries")
_STORM_PASSES: Final = 0.25
"""Storms are over after this part of the time; everything else comes throughout."""


@dataclass(frozen=True, slots=True)
class Source:
    """One category: where it is posted, and what an event of it says; ``{n}`` is a number up to ``most``."""

    category: str
    channel: str
    text: str
    most: int


@dataclass(frozen=True, slots=True)
class Scene:
    """One event to send; ``at`` is its moment, from 0 (beginning) to 1."""

    at: float
    source: Source
    text: str


SOURCES: Final = (
    Source("checkout.errors", "#checkout", "order {n} failed: HTTP 502 from the basket service", 99_999),
    Source("payments.failed", "#payments", "card declined for order {n}: issuer not available", 99_999),
    Source("refunds.stuck", "#refunds", "refund {n} has been pending for 3 days", 9_999),
    Source("orders.late", "#logistics", "parcel {n} missed its carrier", 9_999),
    Source("stock.low", "#warehouse", "article {n}: fewer than 5 left", 4_000),
    Source("prices.changed", "#pricing", "{n} prices differ by more than 20 % from yesterday's", 900),
    Source("db.slow-queries", "#databases", "query on orders took {n} ms on db1", 9_000),
    Source("db.replica-lag", "#replication", "replica db2 is {n} s behind", 300),
    Source("disk.space", "#storage", "/var on web{n} is 91 % full", 12),
    Source("cache.evictions", "#caching", "{n} keys evicted in the last minute", 50_000),
    Source("queue.backlog", "#queues", "{n} jobs are waiting for more than 5 minutes", 2_000),
    Source("search.latency", "#search", "95th percentile at {n} ms", 4_000),
    Source("pods.restarted", "#kubernetes", "pod api-{n} restarted: out of memory", 40),
    Source("certs.expiring", "#certificates", "certificate of shop-{n}.example ends in 6 days", 30),
    Source("logins.odd", "#security", "{n} failed logins from one address", 400),
    Source("builds.broken", "#ci", "build {n} of main failed: 3 tests", 9_000),
    Source("deploys.done", "#deploys", "release {n} is live", 900),
    Source("mails.bounced", "#mail", "{n} newsletters bounced", 700),
    Source("backups.missed", "#backups", "backup of shard {n} did not run", 16),
    Source("signups.odd", "#growth", "{n} sign-ups from one network", 300),
)


def scenes() -> list[Scene]:
    """All events in the order they happen; the same each time."""
    chance = random.Random(_SEED)  # noqa: S311 - a story, no cryptography
    told = [
        Scene(
            chance.random() * (_STORM_PASSES if source.category in _STORMS else 1.0),
            source,
            source.text.format(n=chance.randint(2, source.most)),
        )
        for source in SOURCES
        for _ in range(EACH)
    ]
    return sorted(told, key=lambda scene: scene.at)


def limits_yaml() -> str:
    """The limits file of the demo."""
    categories = "".join(f'  {source.category}: {{channel: "{source.channel}"}}\n' for source in SOURCES)
    return f"global: {{limits: [{TOGETHER}]}}\ndefaults: {{limits: [{OWN}]}}\ncategories:\n{categories}"
