"""One consistent look at a namespace: what status shows and what ``--check`` verifies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dispatcher.connection import Client, JsonScript, answered
from dispatcher.keys import Keys
from dispatcher.mutes import Mute, read_mutes
from dispatcher.queue_keys import QueueKeys

OUTCOMES: Final = ("sent", "dropped", "digested", "dead", "duplicate")
_OTHER_TOTALS: Final = ("received", "replayed", "notices")


@dataclass(frozen=True, slots=True)
class Line:
    """A line: how many wait in it, and when its head may pass (None: after the post or the decision in flight).

    ``scope`` is what a category's line waits for; None of a channel's.
    """

    waiting: int
    next_us: int | None
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class TallyLook:
    """How many were suppressed and since when; ``place`` is where the own event is: ``timer``, ``line``, ``hands``.

    ``lone``: there is none, only the one event that was suppressed.
    """

    count: int
    first_us: int
    place: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Why nobody posts, since when, and when the next event tries; ``kind`` is operator, outage or cooldown."""

    code: str
    detail: str
    since_us: int
    probe_us: int
    kind: str


@dataclass(frozen=True, slots=True)
class PausedByHand:
    """Who stopped posting, when, and why; of everything or of one category."""

    by: str
    since_us: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one instant, ``now_us`` of the server's clock. ``next_timer_us`` is the earliest of the timers.

    ``events``, ``leased``, ``orphans``, ``timers`` and ``lines`` hold the dispatcher's own events too, ``parked`` and
    ``in_flight``, which stand in the books, do not.
    """

    now_us: int
    waiting: int
    events: int
    leased: int
    orphans: int
    parked: int
    timers: int
    lines: dict[str, Line]
    deferred: dict[str, int]
    dead_letters: int
    totals: dict[str, int]
    leases: dict[str, int]
    cooldowns: dict[str, int]
    pause: Pause | None
    next_timer_us: int | None = None
    paused: Mapping[str, PausedByHand] = field(default_factory=dict)
    muted: dict[str, Mute] = field(default_factory=dict)
    tallies: dict[str, TallyLook] = field(default_factory=dict)

    @property
    def in_flight(self) -> int:
        """Events under a lease, or waiting to be taken up again; own events of the dispatcher are none."""
        return self.leased + self.orphans - self.own("hands")

    def own(self, *places: str) -> int:
        """How many own events are in these places."""
        return sum(each.place in places for each in self.tallies.values())

    @property
    def received(self) -> int:
        """Events ever taken."""
        return self.totals.get("received", 0)

    @property
    def enqueued(self) -> int:
        """Events ever handed over."""
        return self.received + self.waiting

    def imbalances(self) -> list[str]:
        """A sentence for each equation of the books that does not hold; empty when they balance."""
        accounted = sum(self.totals.get(outcome, 0) for outcome in OUTCOMES)
        in_lines = sum(line.waiting for line in self.lines.values())
        own = self.own("timer", "line", "hands")
        in_categories = sum(line.waiting for line in self.lines.values() if line.scope is not None)
        equations = (
            ("received", self.received, "outcomes + parked + in flight", accounted + self.parked + self.in_flight),
            ("events held", self.events - own, "parked + in flight", self.parked + self.in_flight),
            ("parked", self.parked + self.own("timer", "line"), "in lines + on timers", in_lines + self.timers),
            ("deferred", sum(self.deferred.values()), "in lines of categories", in_categories),
            ("parked", self.parked, "parked by category", sum(self.by_category("parked").values())),
            *(
                (
                    outcome,
                    self.totals.get(outcome, 0),
                    f"{outcome} by category",
                    sum(self.by_category(outcome).values()),
                )
                for outcome in ("sent", "dropped", "digested", "dead")
            ),
        )
        return [f"{left} is {a}, but {right} is {b}" for left, a, right, b in equations if a != b]

    def by_category(self, outcome: str) -> dict[str, int]:
        """The count of one outcome (or of ``parked``) in each category."""
        prefix = outcome + " "
        return {name[len(prefix) :]: count for name, count in self.totals.items() if name.startswith(prefix)}

    def overall(self) -> dict[str, int]:
        """The totals over all categories, every outcome named."""
        names = ("received", *OUTCOMES, *_OTHER_TOTALS[1:])
        return {"enqueued": self.enqueued, **{name: self.totals.get(name, 0) for name in names}}


class Books:
    """Reads snapshots; writes nothing. Raises ``GateUnavailable`` when the server is away."""

    def __init__(self, client: Client, keys: Keys, queue: QueueKeys, *, clock: Callable[[], int] | None = None) -> None:
        self._names = [
            keys.events, keys.leases, keys.orphans, keys.parked, keys.lines, keys.timers, keys.cooldowns, keys.pause,
            keys.totals, keys.dead, *queue.lanes, *queue.intermediates, keys.awaited, keys.deferred, keys.paused,
            keys.muted, keys.tallies,
        ]  # fmt: skip
        self._call = {"leased": keys.leased_prefix, "line": keys.line_prefix, "tally": keys.tally_prefix}
        self._snapshot = JsonScript(client, "snapshot", clock)
        self._client = client
        self._shadowed = keys.shadowed

    def snapshot(self) -> Snapshot:
        """One look."""
        facts: dict[str, Any] = json.loads(self._snapshot(self._names, self._call))
        tallies = {id_: TallyLook(row[0], int(row[1]), row[2]) for id_, row in facts["tallies"].items()}
        return Snapshot(
            now_us=int(facts["now"]),
            waiting=facts["waiting"],
            events=facts["events"],
            leased=facts["leased"],
            orphans=facts["orphans"],
            parked=facts["parked"] - sum(each.place in {"timer", "line"} for each in tallies.values()),
            timers=facts["timers"],
            lines={
                name: Line(count, int(at) if at is not None else None, scope)
                for name, (count, at, scope) in facts["lines"].items()
            },
            deferred={category: int(count) for category, count in facts["deferred"].items()},
            dead_letters=facts["dead"],
            totals={name: int(count) for name, count in facts["totals"].items()},
            leases={owner: int(end) for owner, end in facts["leases"].items()},
            cooldowns={channel: int(until) for channel, until in facts["cooldowns"].items()},
            pause=_pause(facts["pause"]),
            paused={name: read_by_hand(json.loads(row)) for name, row in facts["paused"].items()},
            muted=read_mutes(facts["muted"], int(facts["now"])),
            next_timer_us=int(facts["next_timer"]) if facts["next_timer"] else None,
            tallies=tallies,
        )

    def shadowed(self) -> dict[str, int]:
        """How many each shadow limit would have refused since the namespace began, by its scope and limit."""
        with answered():
            rows = self._client.hgetall(self._shadowed)
        return {name.decode(): int(count) for name, count in rows.items() if isinstance(name, bytes)}

    def is_drained(self) -> bool:
        """Whether nothing waits on a lane, nothing is in flight and nothing admitted is still to be posted.

        What a limit defers or sets aside may wait, but not what has its turn now or is being decided about; so may a
        digest that collects, and one that is posted and may be edited.
        """
        look = self.snapshot()
        deferred = [line for line in look.lines.values() if line.scope is not None]
        if any(line.next_us is None or line.next_us <= look.now_us for line in deferred):
            return False
        if any(tally.place in {"line", "hands"} for tally in look.tallies.values()):
            return False
        lone = sum(tally.place == "lone" for tally in look.tallies.values())
        return look.waiting + look.in_flight + look.parked == lone + sum(line.waiting for line in deferred)


def read_by_hand(facts: Mapping[str, str]) -> PausedByHand:
    """A row of the hash ``paused``."""
    return PausedByHand(facts["by"], int(facts["since"]), facts["why"])


def _pause(facts: dict[str, str]) -> Pause | None:
    if not facts:
        return None
    return Pause(facts["code"], facts["detail"], int(facts["since"]), int(facts["probe"]), facts["kind"])
