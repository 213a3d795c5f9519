"""Where everything of a namespace is, read key by key, and whether it fits together."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.event import slot_id
from dispatcher.keys import Keys
from tests.support.models import HELD
from tests.support.servers import Database

INF: Final = float("inf")
"""The instant of a line that waits for the post in flight on its channel."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything is, read key by key."""

    events: dict[str, dict[str, Any]]
    leased: dict[str, list[str]]
    orphans: list[str]
    lines: dict[str, list[str]]
    instants: dict[str, float]
    timers: list[str]
    parked: list[str]
    posting: dict[str, str]
    lifetimes_ms: dict[str, int]
    held: set[str]

    def faults(self, *, same_pace: bool = True) -> list[str]:
        """A sentence for each thing that does not fit."""
        in_hands = [*self.orphans, *(id_ for ids in self.leased.values() for id_ in ids)]
        waiting = [*self.timers, *(id_ for ids in self.lines.values() for id_ in ids)]
        busy = {f"channel:{channel}" for channel in self.posting}
        rules = (
            (sorted([*in_hands, *waiting]) == sorted(self.events), "each event is in exactly one place"),
            (sorted(waiting) == sorted(self.parked), "what waits is what is parked"),
            (set(self.lines) == set(self.instants), "every line that has somebody has an instant, no other has one"),
            (
                all(line in busy for line, at in self.instants.items() if at == INF),
                "a line waits for a post only while there is one on its channel",
            ),
            (
                not same_pace or all(at == INF for line, at in self.instants.items() if line in busy),
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
                all(self._state(id_) is None for id_ in self.orphans),
                "what is left to be taken is not being sent",
            ),
            (
                all(
                    f"channel:{self.events[id_]['channel']}" == line for line, ids in self.lines.items() for id_ in ids
                ),
                "each event waits in the line of its channel",
            ),
            (
                self.held <= {_slot(id_, header) for id_, header in self.events.items()},
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
    mortal = [name for name in names if name.startswith(keys.scope("")) or name in (keys.seen, keys.cooldowns)]
    ranges = [*line_keys, *owner_keys, keys.orphans, keys.timers, keys.parked]
    pipe = redis.pipeline(transaction=False)
    pipe.hgetall(keys.events)
    pipe.hgetall(keys.posting)
    pipe.zrange(keys.lines, 0, -1, withscores=True)
    for key in ranges:
        pipe.zrange(key, 0, -1)
    for key in mortal:
        pipe.pttl(key)
        pipe.zrangebyscore(key, HELD, "+inf")
    events, posting, instants, *rest = pipe.execute()
    rows = dict(zip(ranges, map(_texts, rest[: len(ranges)]), strict=True))
    return Places(
        events={id_.decode(): json.loads(record.partition(b"\n")[0]) for id_, record in events.items()},
        leased={key.removeprefix(keys.leased_prefix): rows[key] for key in owner_keys},
        orphans=rows[keys.orphans],
        lines={key.removeprefix(keys.line_prefix): rows[key] for key in line_keys},
        instants={line.decode(): score for line, score in instants},
        timers=rows[keys.timers],
        parked=rows[keys.parked],
        posting={channel.decode(): id_.decode() for channel, id_ in posting.items()},
        lifetimes_ms=dict(zip(mortal, rest[len(ranges) :: 2], strict=True)),
        held={slot for slots in rest[len(ranges) + 1 :: 2] for slot in _texts(slots)},
    )


def _slot(id_: str, header: dict[str, Any]) -> str:
    return slot_id(id_, header.get("unknown", 0), header.get("replays", 0))


def _texts(members: Iterable[bytes]) -> list[str]:
    return [member.decode() for member in members]
