"""Where everything of a namespace is, read key by key, and whether it fits together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import orjson
from redis.commands.core import Script

from dispatcher.server.keys import Keys
from dispatcher.store.counts import OUTCOMES
from tests.support.models import HELD
from tests.support.servers import Database

INF: Final = float("inf")
"""The instant of a line that waits for the post in flight on its channel, of a scope whose heads are being decided."""

WITH_REASONS: Final = ("dropped ", "digested ", "dead ", "parked ")
TIMELESS: Final = ("parked ", "replayed", "notices")
"""What the books count by reason, and what no minute counts."""

RANK: Final = 2**51
"""What one step of priority weighs in a category's line."""


# Every key but strings, lists and streams, with its lifetime and all that it holds; of an event its header alone, of
# what no rule is about nothing. The bytes of the dead letters, as counted and summed up. The tokens for sleepers
# are taken, if ARGV[2] says so.
_READ: Final = """
local found, letters, reasons, tokens = {}, 0, {}, 0
local unread = {
  cooldowns = true, decisions = true, leases = true, names = true, posted = true, seen = true, threads = true,
  turns = true,
}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind, rows = redis.call('TYPE', key).ok, nil
  if unread[string.match(key, '^{.-}:(%l+)')] then
    rows = {}
  elseif kind == 'hash' then
    rows = redis.call('HGETALL', key)
  elseif kind == 'zset' then
    rows = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then
    rows = redis.call('SMEMBERS', key)
  end
  if key == KEYS[1] then
    for at = 2, #rows, 2 do
      rows[at] = string.match(rows[at], '^[^\\n]*')
    end
  end
  if rows then
    found[key] = {redis.call('PTTL', key), rows}
  end
end
for _, letter in ipairs(redis.call('XRANGE', KEYS[2], '-', '+')) do
  for at = 1, #letter[2], 2 do
    letters = letters + (letter[2][at] == 'bytes' and letter[2][at + 1] or 0)
    if letter[2][at] == 'reason' then
      reasons[letter[2][at + 1]] = (reasons[letter[2][at + 1]] or 0) + 1
    end
  end
end
if ARGV[2] == '1' then
  tokens = redis.call('LLEN', KEYS[4])
  redis.call('DEL', KEYS[4])
end
return cjson.encode({found, tonumber(redis.call('GET', KEYS[3]) or 0), letters, tokens, reasons})
"""


@dataclass(frozen=True, slots=True)
class NamespaceState:
    """Where everything is, read key by key."""

    events: dict[str, dict[str, Any]]
    leased: dict[str, list[str]]
    requeued: list[str]
    lines: dict[str, list[str]]
    instants: dict[str, float]
    timers: dict[str, float]
    scheduled: dict[str, float]
    parked: list[str]
    posting: dict[str, str]
    lifetimes_ms: dict[str, int]
    slots: dict[str, dict[str, float]]
    ranks: dict[str, dict[str, float]]
    awaited: dict[str, str]
    waits: dict[str, dict[str, float]]
    deferred: dict[str, int]
    deciding: dict[str, dict[str, Any]]
    totals: Counter[str]
    minutes: Counter[str]
    """All minutes together."""
    letters_bytes: tuple[int, int]
    """As the store counts them, and the sum of those of each."""
    letters_reasons: tuple[Counter[str], Counter[str]]
    """How many dead letters there are of each reason, as the store counts them, and counted one by one."""
    silences: set[str]
    endings: dict[str, float]
    tallies: set[str]
    of_silences: dict[str, dict[str, str]]
    """The tallies of silences, by id."""
    firing: set[str]
    tokens: int
    """What the bell had left for sleepers, if it was taken."""

    @property
    def first_us(self) -> float:
        """The first instant at which one that waits may go."""
        starts = (self.instants, self.timers, self.scheduled, self.endings)
        return min((at for each in starts for at in each.values()), default=INF)

    def faults(self, *, same_pace: bool = True) -> list[str]:
        """A sentence for each thing that does not fit."""
        in_hands = [*self.requeued, *(id_ for ids in self.leased.values() for id_ in ids)]
        waiting = [*self.timers, *self.scheduled, *(id_ for ids in self.lines.values() for id_ in ids)]
        busy = {f"channel:{channel}" for channel in self.posting}
        channels = {line: ids for line, ids in self.lines.items() if line.startswith(("channel:", "paused:"))}
        categories = {line: ids for line, ids in self.lines.items() if line not in channels}
        instants = {line: at for line, at in self.instants.items() if line.startswith(("channel:", "paused:"))}
        scopes = {entry.removeprefix("scope:") for entry in self.instants if entry not in instants}
        deferred = Counter(self.events[id_]["category"] for ids in categories.values() for id_ in ids)
        named = Counter(header["counted"] for header in self.events.values() if header.get("counted"))
        counted, summed = self.letters_bytes
        rules = (
            (sorted([*in_hands, *waiting]) == sorted(self.events), "each event is in exactly one place"),
            (
                self.totals["received"]
                == sum(self.totals[outcome] for outcome in OUTCOMES) + len(self.events.keys() - self.tallies),
                "what was received has ended or is held",
            ),
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
                all(bool(header.get("scheduled")) == (id_ in self.scheduled) for id_, header in self.events.items()),
                "what is scheduled says so",
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
                "what is to be reconciled waits in no line",
            ),
            (
                all(self.events[id_]["line"] == line for line, ids in categories.items() for id_ in ids),
                "each deferred event waits in the line of its category",
            ),
            (set(categories) == set(self.awaited), "every line of a category waits for a scope, no other line does"),
            (
                all(
                    rank == min(self.ranks[line].values())
                    for ranks in self.waits.values()
                    for line, rank in ranks.items()
                ),
                "the lines that wait for a scope stand there by the rank of their heads",
            ),
            (
                all(line in self.waits[scope] for line, scope in self.awaited.items())
                and all(
                    self.awaited[line] == scope or (scope == "shared" and self.awaited[line].startswith("guarantee:"))
                    for scope, ranks in self.waits.items()
                    for line in ranks
                ),
                "a line waits for one scope, or for a guarantee and for what all share",
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
                <= {name for id_, header in self.events.items() for name in names_of(id_, header)},
                "no slot is held for an event that has ended",
            ),
            (all(lifetime > 0 for lifetime in self.lifetimes_ms.values()), "no scope lives for ever, and no minute"),
            (self._books("held") == named, "what has a name in the books and has not ended is held"),
            (
                all(
                    self.totals[outcome] == self._books(outcome).total()
                    for outcome in OUTCOMES
                    if outcome != "duplicate"
                ),
                "each outcome is that of all categories and reasons",
            ),
            (
                all(
                    len(field.split()) == (3 if field.startswith(WITH_REASONS) else 2)
                    for field in self.totals
                    if " " in field
                ),
                "what ends for one of several reasons is counted by reason",
            ),
            (
                self.minutes
                == Counter({field: count for field, count in self.totals.items() if not field.startswith(TIMELESS)}),
                "the books are the sum of all minutes",
            ),
            (counted == summed, "the bytes of the dead letters are those of each"),
            (self.silences == set(self.endings), "every silence has an end, nothing else has one"),
            (
                {id_ for id_, facts in self.of_silences.items() if "ended" not in facts} == self.silences,
                "every silence has a tally, and one that has ended says so",
            ),
            (
                {f"silence:{id_}" for id_, facts in self.of_silences.items() if "ended" in facts}
                == {id_ for id_ in self.events if id_.startswith("silence:")}
                == {id_ for id_ in self.tallies if id_.startswith("silence:")},
                "every silence that has ended has a report until that is told",
            ),
            (self.firing <= set(self.of_silences), "what is firing is known for a silence"),
            (
                all(
                    line.split(":")[1] in self.silences or self.instants[f"scope:{self.awaited[line]}"] < INF
                    for line in self.awaited
                    if line.startswith("silence:") and self.awaited[line] == ":".join(line.split(":")[:2])
                )
                or bool(self.deciding),
                "who waits for a silence that has ended may go",
            ),
            (self.letters_reasons[0] == self.letters_reasons[1], "the dead letters are counted by reason"),
            (
                Counter(
                    {field: number for field, number in self.totals.items() if field.startswith("parked ") and number}
                )
                == Counter(
                    f"parked {self.events[id_]['counted']} {self.events[id_]['waits']}"
                    for id_ in self.parked
                    if self.events[id_]["counted"]
                ),
                "what waits is counted by category and by what it waits for",
            ),
        )
        return [f"not so: {rule}: {self}" for holds, rule in rules if not holds]

    def _books(self, count: str) -> Counter[str]:
        """What the books count by category, but for what is 0."""
        counts: Counter[str] = Counter()
        for field, number in self.totals.items():
            if field.startswith(f"{count} "):
                counts[field.split()[1]] += number
        return Counter({category: number for category, number in counts.items() if number})

    def _state(self, id_: str) -> str | None:
        state: str | None = self.events[id_].get("state")
        return state


def state_of(redis: Database, keys: Keys, *, takes_tokens: bool = False) -> NamespaceState:
    """Read them all, in one step."""
    found: dict[str, tuple[int, list[str]]]
    names = keys.events, keys.dead, keys.dead_bytes, keys.wake
    found, counted, summed, tokens, reasons = orjson.loads(
        Script(redis, _READ)(names, [f"{keys.layout.rpartition(':')[0]}:*", int(takes_tokens)])
    )

    def members(key: str) -> list[str]:
        return found.get(key, (0, []))[1]

    def pairs(key: str) -> dict[str, str]:
        rows = members(key)
        return dict(zip(rows[::2], rows[1::2], strict=True))

    def scores(key: str) -> dict[str, float]:
        return {member: float(score) for member, score in pairs(key).items()}

    def below(prefix: str) -> dict[str, str]:
        """The keys with this prefix, by what follows it."""
        return {key.removeprefix(prefix): key for key in sorted(found) if key.startswith(prefix)}

    def counts(*of: str) -> Counter[str]:
        counted: Counter[str] = Counter()
        for key in of:
            for field, number in pairs(key).items():
                counted[field] += int(number)
        return counted

    lines, slots, minutes = below(keys.line_prefix), below(keys.scope("")), below(keys.minute_prefix)
    with_lifetime = [
        *slots.values(),
        *minutes.values(),
        *(key for key in (keys.seen, keys.cooldowns, keys.threads[0]) if key in found),
    ]
    return NamespaceState(
        events={id_: orjson.loads(header) for id_, header in pairs(keys.events).items()},
        leased={owner: sorted(members(key)) for owner, key in below(keys.leased_prefix).items()},
        requeued=list(pairs(keys.requeued)),
        lines={line: list(pairs(key)) for line, key in lines.items()},
        instants=scores(keys.lines),
        timers=scores(keys.timers),
        scheduled=scores(keys.scheduled),
        parked=list(pairs(keys.parked)),
        posting=pairs(keys.posting),
        lifetimes_ms={key: found[key][0] for key in with_lifetime},
        ranks={line: scores(key) for line, key in lines.items() if not line.startswith(("channel:", "paused:"))},
        awaited=pairs(keys.awaited),
        waits={scope: scores(key) for scope, key in below(keys.waits_prefix).items()},
        deferred={category: int(count) for category, count in pairs(keys.deferred).items()},
        deciding={owner: orjson.loads(mark) for owner, mark in pairs(keys.deciding).items()},
        slots={name: scores(key) for name, key in slots.items()},
        totals=counts(keys.totals),
        minutes=counts(*minutes.values()),
        letters_bytes=(counted, summed),
        letters_reasons=(
            Counter(
                {
                    field.removeprefix("letters "): int(number)
                    for field, number in pairs(keys.metrics).items()
                    if field.startswith("letters ") and int(number)
                }
            ),
            Counter(reasons or {}),
        ),
        silences=set(pairs(keys.silences)),
        endings=scores(keys.endings),
        tallies=set(members(keys.tallies)),
        of_silences={id_: pairs(key) for id_, key in below(keys.tally("silence:")).items()},
        firing=set(below(keys.firing_prefix)),
        tokens=tokens,
    )


def names_of(id_: str, header: dict[str, Any]) -> tuple[str, str]:
    """What an event's slots are called: in a limit, and in the scope of what it is about."""
    return slot_of(header), f"{header['seq']} {id_}"


def slot_of(header: dict[str, Any]) -> str:
    """The name of an event's slots."""
    unknown = header.get("unknown", 0)
    return f"{header['seq']}#{unknown}" if unknown else str(header["seq"])
