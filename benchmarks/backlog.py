"""A namespace that holds very much: a few events that a real worker has parked, each copied many times.

The worker and its scripts write the patterns. This file copies records, slots and letters as they are stored, under
other ids, and puts each copy where its pattern stands. Whoever builds a backlog has the books verified; the tests look
at a small one key by key.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.ours import KEYS, settled
from benchmarks.processes import Process
from dispatcher import Producer
from tests.support.models import HELD
from tests.support.servers import Database

LIMITS: Final = """\
global: {limits: [10000000/30m]}
channels: {default: {pace: 1/1h}}
categories:
  errors: {limits: [100/30m], guarantee: 5}
  reports: {limits: [], per_label: {host: [1/1h]}, on_limit: defer, max_parked: 10000000, channel: "#reports"}
  audits: {limits: [1/1h], per_label: {team: [1000000/1h]}, on_limit: defer, max_parked: 10000000, channel: "#audits"}
  alerts: {limits: []}
  summaries: {limits: [2/1h], on_limit: digest, digest_delay: 24h, channel: "#summaries"}
  refused: {limits: [1/1h], on_limit: dead-letter, channel: "#refused"}
"""
"""Under these nothing of it may be posted for an hour."""

WIDER: Final = (
    LIMITS.replace("pace: 1/1h", "pace: none")
    .replace("host: [1/1h]", "host: [1000000/1h]")
    .replace("audits: {limits: [1/1h]", "audits: {limits: [10000000/1h]")
)
"""Under these all of it may be posted at once."""

PATTERN: Final = "pattern"
"""The word that a copy has its own name for: in ids, channels and labels."""

LINES: Final = {
    "reports": f"label:reports:host={PATTERN}",
    "audits": f"label:audits:team={PATTERN}",
    "alerts": f"channel:#{PATTERN}",
}
"""The categories whose events wait in lines, and the line of each pattern."""

TIMED: Final = "summaries"
"""The category whose events wait on timers."""

PARKED: Final = (*LINES, TIMED)
REFUSED: Final = "refused"
"""The category whose events are dead letters."""

TEXT: Final = "disk 7 of 100,000 is nearly full on db1"
_FIRST_COPY: Final = 1_000
_SPREAD_US: Final = 50
"""Between the deadlines of two copies: they were not all seen at one instant."""

_PIPED: Final = 1_000
_SEQ: Final = re.compile(rb'"seq":\d+')
_DEADLINE: Final = re.compile(rb'"deadline":"(\d+)"')


@dataclass(frozen=True, slots=True)
class Size:
    """How much of each; ``scale`` 1 is what the goals are for."""

    lines_of_labels: int = 10_000
    """Each waits for a limit of its own."""

    lines_of_category: int = 40_000
    """All of them wait for one limit."""

    lines_of_channels: int = 50_000
    in_label: int = 10
    in_category: int = 10
    in_channel: int = 8
    timers: int = 100_000
    letters: int = 100_000
    names: int = 1_000
    """Categories in the books that no limits file knows."""

    def times(self, scale: float) -> Size:
        """So much of all but of what stands in one line."""
        return Size(
            lines_of_labels=_part(self.lines_of_labels, scale),
            lines_of_category=_part(self.lines_of_category, scale),
            lines_of_channels=_part(self.lines_of_channels, scale),
            timers=_part(self.timers, scale),
            letters=_part(self.letters, scale),
            names=_part(self.names, scale),
        )

    @property
    def lines(self) -> int:
        """Lines in all."""
        return self.lines_of_labels + self.lines_of_category + self.lines_of_channels

    @property
    def parked(self) -> int:
        """Events in lines and on timers."""
        return (
            self.lines_of_labels * self.in_label
            + self.lines_of_category * self.in_category
            + self.lines_of_channels * self.in_channel
            + self.timers
        )


def _part(count: int, scale: float) -> int:
    return max(2, round(count * scale))


def build(client: Database, server_url: str, folder: Path, size: Size) -> None:
    """Fill an empty server; no worker runs afterwards."""
    _let_a_worker_park_the_patterns(client, server_url, folder)
    _Copier(client).copy(size)


def environment(server_url: str, limits: Path) -> dict[str, str]:
    """Of a worker, and of an operator's command."""
    return {
        "DISPATCHER_REDIS_URL": server_url,
        "DISPATCHER_SINK": "console",
        "DISPATCHER_LIMITS_FILE": str(limits),
        "DISPATCHER_LOG_FORMAT": "json",
    }


def name_of(category: str, n: int) -> str:
    """The id of the n-th copy of a category's pattern."""
    return f"{category}-{label_of(n)}"


def label_of(n: int) -> str:
    """What stands for the word of the pattern in the n-th copy of a line."""
    return f"copy{n:07d}"


def _let_a_worker_park_the_patterns(client: Database, server_url: str, folder: Path) -> None:
    """Of each category one event that is posted, and one that the limit or the pace keeps."""
    limits = folder / "limits.yaml"
    limits.write_text(LIMITS, encoding="utf-8")
    producer = Producer(client)
    labels = {"reports": {"host": PATTERN}, "audits": {"team": PATTERN}}
    with Process(
        *(sys.executable, "-m", "dispatcher", "worker"), folder=folder, **environment(server_url, limits)
    ) as worker:
        for n, place in enumerate(("first", PATTERN)):
            for category in (*PARKED, REFUSED):
                producer.send(
                    category,
                    TEXT,
                    id=f"{category}-{place}",
                    labels=labels.get(category, {}),
                    channel=f"#{PATTERN}" if category == "alerts" else None,
                )
            worker.until(lambda n=n: settled(client) == len(PARKED) + 1 + n, "the events that are posted")  # type: ignore[misc] # a default hides the type
        worker.until(lambda: client.zcard(KEYS.parked) == len(PARKED), "the events that are parked")


class _Copier:
    """Writes the copies, each with the number of a first sight of its own."""

    def __init__(self, client: Database) -> None:
        self._client = client
        self._seq = _FIRST_COPY
        self._deadline_us = int(client.zscore(KEYS.parked, f"alerts-{PATTERN}"))
        self._minute = KEYS.minute(client.time()[0] // 60)

    def copy(self, size: Size) -> None:
        """All of them."""
        pipe = _Pipe(self._client)
        self._lines("reports", size.lines_of_labels, size.in_label, pipe)
        self._lines("audits", size.lines_of_category, size.in_category, pipe)
        self._lines("alerts", size.lines_of_channels, size.in_channel, pipe)
        self._timers(size.timers, pipe)
        self._letters(size.letters, pipe)
        self._names(size.names, pipe)
        pipe.add("SET", KEYS.seq, self._seq)
        pipe.flush()

    def _lines(self, category: str, lines: int, each: int, pipe: _Pipe) -> None:
        """Copy a category's line and all that is kept beside it, so many times, with so many events in each."""
        client, line, id_ = self._client, LINES[category], f"{category}-{PATTERN}"
        record, rank = client.hget(KEYS.events, id_), client.zscore(KEYS.line(line), id_)
        header = json.loads(record.partition(b"\n")[0])
        base = int(rank) - header["seq"]
        scope = client.hget(KEYS.awaited, line)
        entry = line if scope is None else f"scope:{scope.decode()}"
        instant = client.zscore(KEYS.lines, entry)
        names = (line, line.replace("channel:", "pace:"))
        beside = {KEYS.scope(name): content for name in names if (content := client.dump(KEYS.scope(name)))}
        holds = [KEYS.scope(name) for name in header.get("holds", ())]
        for n in range(lines):
            own = label_of(n)
            name = line.replace(PATTERN, own)
            members: dict[str, int] = {}
            for k in range(each):
                event = name_of(category, n * each + k)
                seq = self._park(event, record, own, holds, pipe)
                members[event] = base + seq
            pipe.add("ZADD", KEYS.line(name), *_scored(members))
            if scope is not None:
                waits_for = scope.decode().replace(PATTERN, own)
                pipe.add("HSET", KEYS.awaited, name, waits_for)
                pipe.add("ZADD", KEYS.waits(waits_for), min(members.values()), name)
            pipe.add("ZADD", KEYS.lines, instant, entry.replace(PATTERN, own))
            for key, content in beside.items():
                pipe.add("RESTORE", key.replace(PATTERN, own), 2 * 3_600_000, content)
        self._count(_waits(record), category, lines * each, pipe)
        if scope is not None:
            pipe.add("HINCRBY", KEYS.deferred, category, lines * each)

    def _park(self, event: str, record: bytes, own: str, holds: Iterable[str], pipe: _Pipe) -> int:
        """One more event that waits; where is the caller's matter. Returns the number of its first sight."""
        self._seq += 1
        deadline = self._deadline_us + self._seq * _SPREAD_US
        header, _, payload = record.partition(b"\n")
        category = event.partition("-")[0]
        header = _SEQ.sub(b'"seq":%d' % self._seq, header)
        header = _DEADLINE.sub(b'"deadline":"%d"' % deadline, header).replace(PATTERN.encode(), own.encode())
        payload = payload.replace(f"{category}-{PATTERN}".encode(), event.encode())
        pipe.put(KEYS.events, event, header + b"\n" + payload.replace(PATTERN.encode(), own.encode()))
        pipe.rank(KEYS.parked, event, deadline)
        for key in holds:
            pipe.rank(key, str(self._seq), HELD + deadline)
        return self._seq

    def _timers(self, count: int, pipe: _Pipe) -> None:
        """One in a hundred was refused by a limit, the others wait for another attempt."""
        id_ = f"{TIMED}-{PATTERN}"
        record, instant = self._client.hget(KEYS.events, id_), int(self._client.zscore(KEYS.timers, id_))
        record = re.sub(rb'"buffered":"\d+",|,"buffered":"\d+"', b"", record)
        again = record.replace(b'"limit:category"', b'"retry"').replace(b'"seq"', b'"attempt":1,"seq"')
        again = re.sub(rb'"(waits|waited)":"\w+"', rb'"\1":"retry"', again)
        for n in range(count):
            event = name_of(TIMED, n)
            seq = self._park(event, again if n % 100 else record, label_of(n), (), pipe)
            pipe.rank(KEYS.timers, event, instant + seq * _SPREAD_US)
        refused = -(-count // 100)
        self._count(_waits(record), TIMED, refused, pipe)
        self._count(_waits(again), TIMED, count - refused, pipe)

    def _letters(self, count: int, pipe: _Pipe) -> None:
        ((entry, fields),) = self._client.xrange(KEYS.dead)
        at_ms, id_ = int(entry.partition(b"-")[0]), f"{REFUSED}-{PATTERN}"
        total = int(fields[b"bytes"])
        for n in range(count):
            event = name_of(REFUSED, n)
            own = {name: value.replace(id_.encode(), event.encode()) for name, value in fields.items()}
            longer = sum(map(len, own.values())) - sum(map(len, fields.values()))
            own[b"bytes"] = str(int(fields[b"bytes"]) + longer).encode()
            total += int(own[b"bytes"])
            stamp = f"{at_ms + 1 + n // 10}-{n % 10}"
            pipe.add("XADD", KEYS.dead, stamp, *(part for pair in own.items() for part in pair))
            pipe.put(KEYS.dead_ids, event, stamp.encode())
        pipe.add("SET", KEYS.dead_bytes, total)
        pipe.add("HINCRBY", KEYS.metrics, f"letters {fields[b'reason'].decode()}", count)
        self._count("dead", REFUSED, count, pipe)

    def _names(self, count: int, pipe: _Pipe) -> None:
        """Categories that were posted once each."""
        for n in range(count):
            pipe.add("ZADD", KEYS.names, n, f"unknown-{n}")
            self._count("sent", f"unknown-{n}", 1, pipe)

    def _count(self, outcome: str, category: str, by: int, pipe: _Pipe) -> None:
        """As include/accounting.lua does; each was received once."""
        fields = ["received"]
        if outcome.startswith("parked "):
            pipe.add("HINCRBY", KEYS.totals, f"parked {category} {outcome.removeprefix('parked ')}", by)
            fields += [f"held {category}"]
        else:
            fields += [outcome, f"{outcome} {category}" + (" limit:category" if outcome == "dead" else "")]
        for field in fields:
            pipe.add("HINCRBY", KEYS.totals, field, by)
            pipe.add("HINCRBY", self._minute, field, by)


def _waits(record: bytes) -> str:
    """What the books say of an event that waits so: that it is parked, and for what."""
    header: dict[str, str] = json.loads(record.partition(b"\n")[0])
    return f"parked {header['waits']}"


class _Pipe:
    """Commands by the thousand, and members of the few large keys by the thousand in one command."""

    def __init__(self, client: Database) -> None:
        self._pipe = client.pipeline(transaction=False)
        self._rows: dict[str, dict[str, bytes]] = {}
        self._ranks: dict[str, dict[str, int]] = {}

    def add(self, *command: Any) -> None:  # noqa: ANN401 - whatever redis-py sends
        self._pipe.execute_command(*command)
        if len(self._pipe) >= _PIPED:
            self._pipe.execute()

    def put(self, key: str, field: str, value: bytes) -> None:
        self._rows.setdefault(key, {})[field] = value
        if len(self._rows[key]) >= _PIPED:
            self.add("HSET", key, *(part for pair in self._rows.pop(key).items() for part in pair))

    def rank(self, key: str, member: str, score: int) -> None:
        self._ranks.setdefault(key, {})[member] = score
        if len(self._ranks[key]) >= _PIPED:
            self.add("ZADD", key, *_scored(self._ranks.pop(key)))

    def flush(self) -> None:
        for key, rows in self._rows.items():
            self.add("HSET", key, *(part for pair in rows.items() for part in pair))
        for key, ranks in self._ranks.items():
            self.add("ZADD", key, *_scored(ranks))
        self._pipe.execute()


def _scored(members: Mapping[str, int]) -> Iterator[str | int]:
    for member, score in members.items():
        yield score
        yield member
