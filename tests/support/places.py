"""Where everything of a namespace is, read key by key, and whether it fits together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.server.keys import Keys
from tests.support.models import HELD
from tests.support.servers import Database

INF: Final = float("inf")
"""The instant of a line that waits for the post in flight on its channel, of a scope whose heads are being decided."""

RANK: Final = 2**51
"""What one step of priority weighs in a category's line."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything is, read key by key."""

    events: dict[str, dict[str, Any]]
    leased: dict[str, list[str]]
    requeued: list[str]
    lines: dict[str, list[str]]
    instants: dict[str, float]
    timers: list[str]
    parked: list[str]
    posting: dict[str, str]
    lifetimes_ms: dict[str, int]
    slots: dict[str, dict[str, float]]
    ranks: dict[str, dict[str, float]]
    awaited: dict[str, str]
    waits: dict[str, dict[str, float]]
    deferred: dict[str, int]
    deciding: dict[str, dict[str, Any]]

    def faults(self, *, same_pace: bool = True) -> list[str]:
        """A sentence for each thing that does not fit."""
        in_hands = [*self.requeued, *(id_ for ids in self.leased.values() for id_ in ids)]
        waiting = [*self.timers, *(id_ for ids in self.lines.values() for id_ in ids)]
        busy = {f"channel:{channel}" for channel in self.posting}
        channels = {line: ids for line, ids in self.lines.items() if line.startswith(("channel:", "paused:"))}
        categories = {line: ids for line, ids in self.lines.items() if line not in channels}
        instants = {line: at for line, at in self.instants.items() if line.startswith(("channel:", "paused:"))}
        scopes = {entry.removeprefix("scope:") for entry in self.instants if entry not in instants}
        deferred = Counter(self.events[id_]["category"] for ids in categories.values() for id_ in ids)
        rules = (
            (sorted([*in_hands, *waiting]) == sorted(self.events), "each event is in exactly one place"),
            (sorted(waiting) == sorted(self.parked), "what waits is what is parked"),
            (set(channels) == set(instants), "every line that has somebody has an instant, no other has one"),
            (
                all(line in busy or line.startswith("paused:") for line, at in instants.items() if at == INF),
                "a line waits for a post only while there is one on its channel",
            ),
            (
                not same_pace or all(at == INF for line, at in instants.items() if line in busy),
                "a line waits while there is a post on its channel",
            ),
            (set(self.posting.values()) <= set(in_hands), "who posts or has the turn is in some worker's hands"),
            (all(self._state(id_) == "waiting" for id_ in waiting), "what is parked says so"),
            (all(self._state(id_) != "waiting" for id_ in in_hands), "what is in hands does not say that it waits"),
            (
                all(bool(header.get("timer")) == (id_ in self.timers) for id_, header in self.events.items()),
                "what waits on a timer says so",
            ),
            (
                all(self._state(id_) is None for id_ in self.requeued),
                "what is left to be taken is not being sent",
            ),
            (
                all(
                    self.events[id_].get("entry", f"channel:{self.events[id_]['channel']}") == line
                    for line, ids in channels.items()
                    for id_ in ids
                ),
                "each event waits in the line of its channel, or of its category that is paused",
            ),
            (
                all("unconfirmed" not in self.events[id_] for ids in self.lines.values() for id_ in ids),
                "what is to be looked up waits in no line",
            ),
            (
                all(self.events[id_]["line"] == line for line, ids in categories.items() for id_ in ids),
                "each deferred event waits in the line of its category",
            ),
            (set(categories) == set(self.awaited), "every line of a category waits for a scope, no other line does"),
            (
                self.waits
                == {
                    scope: {
                        line: min(self.ranks[line].values()) for line, found in self.awaited.items() if found == scope
                    }
                    for scope in set(self.awaited.values())
                },
                "the lines that wait for a scope stand there by the rank of their heads",
            ),
            (scopes == set(self.waits), "every scope that lines wait for has an instant, no other has one"),
            (
                all(
                    any(scope in mark["scopes"] for mark in self.deciding.values())
                    for scope in scopes
                    if self.instants[f"scope:{scope}"] == INF
                ),
                "a scope has no instant only while somebody decides about its heads",
            ),
            (dict(deferred) == self.deferred, "what waits for room is counted by category"),
            (
                all(
                    rank == self.events[id_]["rank"] * RANK + self.events[id_]["seq"]
                    for ranks in self.ranks.values()
                    for id_, rank in ranks.items()
                ),
                "a category's line is ordered by priority, then by first sight",
            ),
            (
                {slot for rows in self.slots.values() for slot, score in rows.items() if score >= HELD}
                <= {slot_of(header) for header in self.events.values()},
                "no slot is held for an event that has ended",
            ),
            (all(lifetime > 0 for lifetime in self.lifetimes_ms.values()), "no scope lives for ever"),
        )
        return [f"not so: {rule}: {self}" for holds, rule in rules if not holds]

    def _state(self, id_: str) -> str | None:
        state: str | None = self.events[id_].get("state")
        return state


def places_of(redis: Database, keys: Keys) -> Places:
    """Read them all; nothing else may run meanwhile."""
    names = sorted(name.decode() for name in redis.scan_iter(match=f"{keys.layout.rpartition(':')[0]}:*", count=1_000))
    line_keys = [name for name in names if name.startswith(keys.line_prefix)]
    owner_keys = [name for name in names if name.startswith(keys.leased_prefix)]
    waits_keys = [name for name in names if name.startswith(keys.waits_prefix)]
    mortal = [
        name
        for name in names
        if name.startswith(keys.scope("")) or name in (keys.seen, keys.cooldowns, keys.threads[0])
    ]
    ranges = [*line_keys, keys.requeued, keys.timers, keys.parked]
    pipe = redis.pipeline(transaction=False)
    for key in (keys.events, keys.posting, keys.awaited, keys.deferred, keys.deciding):
        pipe.hgetall(key)
    for key in (keys.lines, *line_keys, *waits_keys):
        pipe.zrange(key, 0, -1, withscores=True)
    for key in owner_keys:
        pipe.smembers(key)
    events, posting, awaited, deferred, deciding, *sets = pipe.execute()
    instants, *scored = [
        {member.decode(): score for member, score in rows} for rows in sets[: len(sets) - len(owner_keys)]
    ]
    leased = sets[len(sets) - len(owner_keys) :]
    pipe = redis.pipeline(transaction=False)
    for key in ranges:
        pipe.zrange(key, 0, -1)
    for key in mortal:
        pipe.pttl(key)
        pipe.zrange(key, 0, -1, withscores=True)
    rest = pipe.execute()
    rows = dict(zip(ranges, map(_texts, rest[: len(ranges)]), strict=True))
    return Places(
        events={id_.decode(): json.loads(record.partition(b"\n")[0]) for id_, record in events.items()},
        leased={
            key.removeprefix(keys.leased_prefix): sorted(_texts(ids))
            for key, ids in zip(owner_keys, leased, strict=True)
        },
        requeued=rows[keys.requeued],
        lines={key.removeprefix(keys.line_prefix): rows[key] for key in line_keys},
        instants=instants,
        timers=rows[keys.timers],
        parked=rows[keys.parked],
        posting={channel.decode(): id_.decode() for channel, id_ in posting.items()},
        lifetimes_ms=dict(zip(mortal, rest[len(ranges) :: 2], strict=True)),
        ranks={
            line: ranks
            for key, ranks in zip(line_keys, scored, strict=False)
            if not (line := key.removeprefix(keys.line_prefix)).startswith(("channel:", "paused:"))
        },
        awaited={line.decode(): scope.decode() for line, scope in awaited.items()},
        waits={
            key.removeprefix(keys.waits_prefix): ranks
            for key, ranks in zip(waits_keys, scored[len(line_keys) :], strict=True)
        },
        deferred={category.decode(): int(count) for category, count in deferred.items()},
        deciding={owner.decode(): json.loads(mark) for owner, mark in deciding.items()},
        slots={
            key.removeprefix(keys.scope("")): {slot.decode(): score for slot, score in found}
            for key, found in zip(mortal, rest[len(ranges) + 1 :: 2], strict=True)
            if key.startswith(keys.scope(""))
        },
    )


def slot_of(header: dict[str, Any]) -> str:
    """The name of an event's slots."""
    unknown = header.get("unknown", 0)
    return f"{header['seq']}#{unknown}" if unknown else str(header["seq"])


def _texts(members: Iterable[bytes]) -> list[str]:
    return [member.decode() for member in members]
