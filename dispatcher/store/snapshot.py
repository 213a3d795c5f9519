"""One consistent look at a namespace: what status shows and what ``--check`` verifies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from redis.exceptions import OutOfMemoryError

from dispatcher.core.limits import EVERYTHING
from dispatcher.core.units import Lane
from dispatcher.jsonio import decode, decode_answer, encode
from dispatcher.server.connection import Client, translate_outages
from dispatcher.server.keys import Keys
from dispatcher.server.scripts import read_script
from dispatcher.store.counts import OUTCOMES, Counts, read_minutes, read_totals
from dispatcher.store.rq_keys import QueueKeys

if TYPE_CHECKING:
    from dispatcher.core.silences import Silence

_HELD_FROM: Final = 2**52
"""The score of a held slot is this plus its deadline (lua/include/slots.lua)."""

_SCANS: Final = "conversations.history"
"""Beside the channels that cool down it stands for all history scans (lua/include/lines.lua)."""

_OTHER_TOTALS: Final = ("received", "replayed", "notices")


class Line(NamedTuple):
    """A line: how many wait in it, and when its head may pass (None: after the post or the decision in flight).

    ``scope`` is what a category's line waits for; None of a channel's.
    """

    waiting: int
    next_us: int | None
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class TallyStatus:
    """How many were suppressed and since when.

    ``place`` is where the digest message is: ``timer``, ``line``, ``hands``. ``buffered``: there is no message yet,
    only the buffered single.
    """

    count: int
    first_us: int
    place: Literal["timer", "line", "hands", "buffered"]


PauseKind: TypeAlias = Literal["operator", "outage", "cooldown"]
_KINDS: Final[tuple[PauseKind, ...]] = ("operator", "outage", "cooldown")
_LAST_US: Final = 10**16
"""In the year 2286: no instant is later."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Why nobody posts, since when, and when the next event tries; ``kind`` is operator, outage or cooldown.

    ``fingerprint`` is that of the credential that was refused.
    """

    code: str
    detail: str
    since_us: int
    probe_us: int
    kind: PauseKind
    fingerprint: str = ""


class PausedByHand(NamedTuple):
    """Who stopped posting, when, and why; of everything or of one category."""

    by: str
    since_us: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one instant, ``now_us`` of the server's clock.

    ``next_timer_us`` is the earliest timer of an event, or behind very many digest messages that of the first of these.

    ``events``, ``leased``, ``requeued``, ``timers`` and ``lines`` hold digest messages too, ``parked`` and
    ``in_flight``, which stand in the books, do not.

    Of many ``lines``, ``cooldowns`` and ``tallies`` only some are told of: of lines and cool-downs those that may go
    soonest. ``has_all_lines`` and ``has_all_tallies`` say whether these are all. Where not all tallies are told,
    ``parked`` is what the books say, and ``taken_digests`` how many digest messages workers hold or have left.
    ``next_line_us`` is the earliest instant of all lines; ``deciding`` of them wait for a post or a decision that is
    under way. ``failures`` says of each channel in ``cooldowns`` how many posts in a row had no clear answer; 0 means
    that Slack asked for the pause.
    ``next_scan_us`` is the instant of the next history scan while Slack limits them; None where it does not.
    """

    now_us: int
    waiting: int
    events: int
    leased: int
    requeued: int
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
    failures: Mapping[str, int] = field(default_factory=dict)
    paused: Mapping[str, PausedByHand] = field(default_factory=dict)
    silences: Mapping[str, str] = field(default_factory=dict)
    endings: Mapping[str, int] = field(default_factory=dict)
    suppressed: dict[str, int] = field(default_factory=dict)
    tallies: dict[str, TallyStatus] = field(default_factory=dict)
    has_all_lines: bool = True
    next_line_us: int | None = None
    deciding: int = 0
    more_cooldowns: int = 0
    has_all_tallies: bool = True
    all_tallies: int = 0
    taken_digests: int = 0
    parked_with_digests: int = 0
    scheduled: int = 0
    next_scheduled_us: int | None = None
    next_scan_us: int | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether nothing is posted: paused by hand, or since Slack or the network does not let it."""
        return self.pause is not None or EVERYTHING in self.paused

    @property
    def silences_in_force(self) -> Sequence[Silence]:
        """Those of the rows ``silences`` that have begun and not ended, the one that ends last first."""
        if not self.silences:
            return ()
        from dispatcher.core.silences import read_silences  # most namespaces have none

        return read_silences(self.silences, endings=self.endings).in_force(self.now_us)

    @property
    def in_flight(self) -> int:
        """Events under a lease, or waiting to be taken up again; digest messages are none."""
        return self.leased + self.requeued - (self.tallies_at("hands") if self.has_all_tallies else self.taken_digests)

    @property
    def pending(self) -> int:
        """How many events have not ended: they wait on a lane, are in flight, or are parked."""
        return self.waiting + self.in_flight + self.parked

    def tallies_at(self, *places: str) -> int:
        """How many of the tallies that are told of have their digest message, or their only one, in these places."""
        return sum(each.place in places for each in self.tallies.values())

    @property
    def more_deferred(self) -> int:
        """How many deferred events stand in lines that are not told of."""
        if self.has_all_lines:
            return 0
        return sum(self.deferred.values()) - self._waiting_in(deferred=True)

    @property
    def more_for_channels(self) -> int:
        """How many events wait for a channel in lines that are not told of."""
        if self.has_all_lines:
            return 0
        return self.all_for_channels - self._waiting_in(deferred=False)

    @property
    def all_for_channels(self) -> int:
        """How many events and digest messages wait for a channel."""
        return self.parked_with_digests - self.timers - self.scheduled - sum(self.deferred.values())

    @property
    def set_aside(self) -> int:
        """How many buffered singles there are: each tally has one, or a digest message."""
        if self.has_all_tallies:
            return self.tallies_at("buffered")
        return max(0, self.all_tallies - self._digests)

    def _waiting_in(self, *, deferred: bool) -> int:
        return sum(line.waiting for line in self.lines.values() if (line.scope is not None) is deferred)

    @property
    def _settled(self) -> int:
        return sum(self.totals.get(outcome, 0) for outcome in OUTCOMES)

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
        found = [f"{left} is {a}, but {right} is {b}" for left, a, right, b in self._equations() if a != b]
        if self._not_held:
            found.append(f"held by category is {self._held}, but parked is {self.parked}")
        if self._digests_beyond:
            found.append(f"digest messages are {self._digests}, but tallies are {self.all_tallies}")
        return found

    def difference(self) -> int:
        """By how many events the books do not hold, all together; 0 when they balance, as of ``imbalances``."""
        return sum(abs(a - b) for _, a, _, b in self._equations()) + self._not_held + self._digests_beyond

    @property
    def _held(self) -> int:
        return sum(self.by_category("held").values())

    @property
    def _not_held(self) -> int:
        """How many are parked beyond those held; of what a record that cannot be read was, more may count as held."""
        return max(0, self.parked - self._held)

    @property
    def _digests(self) -> int:
        return self.events + self._settled - self.received

    @property
    def _digests_beyond(self) -> int:
        """How many digest messages there are beyond the tallies, or too few; known where tallies are not all told."""
        if self.has_all_tallies:
            return 0
        return max(0, -self._digests, self._digests - self.all_tallies)

    def _equations(self) -> list[tuple[str, int, str, int]]:
        """What must be equal: two names, each with its number."""
        by_category = {outcome: sum(self.by_category(outcome).values()) for outcome in ("parked", *OUTCOMES[:-1])}
        equations = [
            ("received", self.received, "outcomes + parked + in flight", self._settled + self.parked + self.in_flight),
            (
                "all held",
                self.events,
                "parked + leased + requeued",
                self.parked_with_digests + self.leased + self.requeued,
            ),
            ("parked", self.parked, "parked by category", by_category["parked"]),
            *(
                (outcome, self.totals.get(outcome, 0), f"{outcome} by category", by_category[outcome])
                for outcome in OUTCOMES[:-1]
            ),
        ]
        if self.has_all_lines:
            deferred, for_channels = self._waiting_in(deferred=True), self._waiting_in(deferred=False)
            in_lines = deferred + for_channels
            equations += [
                (
                    "all parked",
                    self.parked_with_digests,
                    "in lines + on timers + scheduled",
                    in_lines + self.timers + self.scheduled,
                ),
                ("deferred", sum(self.deferred.values()), "in lines of categories", deferred),
            ]
        return equations

    @property
    def counts(self) -> Counts:
        """What the books count since the namespace began."""
        return Counts(self.totals)

    def by_category(self, outcome: str) -> dict[str, int]:
        """The count of one outcome (or of ``parked``) in each category."""
        return self.counts.by_category(outcome)

    def overall(self) -> dict[str, int]:
        """The totals over all categories, every outcome named."""
        names = ("received", *OUTCOMES, *_OTHER_TOTALS[1:])
        return {"enqueued": self.enqueued, **{name: self.totals.get(name, 0) for name in names}}


class Measured(NamedTuple):
    """A snapshot with what is counted beside the books.

    ``lanes`` says how many wait on each lane, ``heads`` when the next of each was enqueued, in RQ's form. ``named`` are
    the first names of categories that no limits file knew. ``counts`` is the hash ``metrics``
    (lua/include/accounting.lua), ``shadowed`` as of ``Books.shadowed``.
    """

    snapshot: Snapshot
    lanes: Mapping[Lane, int]
    heads: Mapping[Lane, str]
    named: Sequence[str]
    counts: Mapping[str, int]
    shadowed: Mapping[str, int]


class Books:
    """Reads snapshots; writes nothing. Raises ``GateUnavailable`` when the server is away."""

    def __init__(self, client: Client, keys: Keys, queue: QueueKeys, *, clock: Callable[[], int] | None = None) -> None:
        self._names = [
            keys.events, keys.leases, keys.requeued, keys.parked, keys.lines, keys.timers, keys.cooldowns, keys.pause,
            keys.dead, *queue.lanes, *queue.intermediates, keys.awaited, keys.deferred, keys.paused,
            keys.silences, keys.tallies, keys.scheduled, keys.endings, keys.failures, keys.totals,
        ]  # fmt: skip
        self._script = client.register_script(read_script("snapshot"))
        self._clock = clock
        self._client = client
        self._keys = keys

    def snapshot(self) -> Snapshot:
        """The snapshot."""
        (answer,), books = self._look(self._names, {})
        return _snapshot(decode_answer(answer), books)

    def measure(self, named: int) -> Measured:
        """A snapshot, and what metrics need beside it, at one instant. Names of categories are the first ``named``."""
        keys = self._keys
        names = [*self._names, keys.metrics, keys.shadowed, keys.names]
        (answer, metrics, shadowed), books = self._look(names, {"named": named})
        facts = decode_answer(answer)
        return Measured(
            _snapshot(facts, books),
            dict(zip(Lane, facts["lanes"], strict=True)),
            {lane: head for lane, head in zip(Lane, facts["heads"], strict=True) if head},
            facts["named"] or [],
            _counts(metrics),
            _counts(shadowed),
        )

    def _look(self, names: Sequence[str], call: Mapping[str, Any]) -> tuple[list[Any], dict[str, int]]:
        """What the script returns, and the books at the same instant."""
        call = call if self._clock is None else {"now": self._clock(), **call}
        with translate_outages():
            try:
                with self._client.pipeline() as pipe:
                    self._script(names, [encode(call)], client=pipe)
                    pipe.hgetall(self._keys.totals)
                    answer, books = pipe.execute()
            except OutOfMemoryError:  # a full Redis takes no command into a transaction, also none that only reads
                *answer, rows = self._script(names, [encode({"books": True, **call})])
                return answer, _counts(rows)
        return answer, {name.decode(): int(count) for name, count in books.items()}

    def shadowed(self) -> dict[str, int]:
        """How many each shadow limit would have refused since the namespace began, by its scope and limit."""
        with translate_outages():
            rows = self._client.hgetall(self._keys.shadowed)
        return {name.decode(): int(count) for name, count in rows.items() if isinstance(name, bytes)}

    def held(self, scopes: Sequence[str]) -> list[int]:
        """How many slots of each scope are held by events that wait; those whose deadline has passed among them."""
        pipe = self._client.pipeline(transaction=False)
        for name in scopes:
            pipe.zcount(self._keys.scope(name), _HELD_FROM, "+inf")
        with translate_outages():
            found: list[int] = pipe.execute()
        return found

    def minutes(self, now_us: int, most: int) -> list[Counts]:
        """See ``read_minutes``."""
        return read_minutes(self._client, self._keys, now_us, most)

    def totals_of(self, minutes: Sequence[int]) -> list[list[int]]:
        """See ``read_totals``."""
        return list(read_totals(self._client, self._keys, minutes))

    def categories(self) -> set[str]:
        """The names under which events were counted."""
        with translate_outages():
            fields = self._client.hkeys(self._keys.totals)
        names = (field.decode().split(" ")[1:] for field in fields if isinstance(field, bytes))
        return {name[0] for name in names if name}

    def is_drained(self) -> bool:
        """Whether nothing waits on a lane, nothing is in flight and nothing admitted is still to be posted.

        What a limit defers or sets aside may wait, but not what has its turn now or is being decided about; so may what
        is scheduled for later, a digest that collects, and one that is posted and may be edited.
        """
        snapshot = self.snapshot()
        if snapshot.deciding or (snapshot.next_line_us is not None and snapshot.next_line_us <= snapshot.now_us):
            return False
        if snapshot.tallies_at("line", "hands") or snapshot.taken_digests:
            return False
        if not snapshot.has_all_tallies and snapshot.all_for_channels > 0:  # a digest message may be among them
            return False
        later = snapshot.scheduled if (snapshot.next_scheduled_us or 0) > snapshot.now_us else 0
        may_wait = snapshot.set_aside + sum(snapshot.deferred.values()) + later
        return snapshot.pending <= may_wait


def _snapshot(facts: dict[str, Any], totals: dict[str, int]) -> Snapshot:
    tallies = {id_: TallyStatus(row[0], int(row[1]), row[2]) for id_, row in facts["tallies"].items()}
    endings = {id_: int(at) for id_, at in facts["endings"].items()}
    ends = {f"silence:{id_}": at for id_, at in endings.items()}  # as SILENCE_PREFIX, which need not be loaded
    return Snapshot(
        now_us=int(facts["now"]),
        waiting=facts["waiting"],
        events=facts["events"],
        leased=facts["leased"],
        requeued=facts["requeued"],
        parked=_parked(facts, totals, tallies),
        timers=facts["timers"],
        lines={
            name: Line(count, _next_of_line(at, scope, ends), scope)
            for name, (count, at, scope) in facts["lines"].items()
        },
        deferred={category: int(count) for category, count in facts["deferred"].items()},
        dead_letters=facts["dead"],
        totals=totals,
        leases={owner: int(end) for owner, end in facts["leases"].items()},
        cooldowns={channel: int(until) for channel, until in facts["cooldowns"].items() if channel != _SCANS},
        next_scan_us=None if (scan := facts["cooldowns"].get(_SCANS)) is None else int(scan),
        failures=facts["failures"],
        pause=read_pause(facts["pause"]),
        paused={name: read_by_hand(row) for name, row in facts["paused"].items()},
        silences=facts["silences"],
        endings=endings,
        suppressed=facts["suppressed"],
        scheduled=facts["scheduled"],
        next_scheduled_us=int(facts["next_scheduled"]) if facts["next_scheduled"] else None,
        next_timer_us=int(facts["next_timer"]) if facts["next_timer"] else None,
        tallies=tallies,
        has_all_lines=facts["has_all_lines"],
        next_line_us=int(facts["next_line"]) if facts["next_line"] else None,
        deciding=facts["deciding"],
        more_cooldowns=facts["all_cooldowns"] - len(facts["cooldowns"]),
        has_all_tallies=facts["has_all_tallies"],
        all_tallies=facts["all_tallies"],
        taken_digests=int(facts["taken_digests"] or 0),
        parked_with_digests=facts["parked"],
    )


def _next_of_line(at: str | None, scope: str | None, ends: Mapping[str, int]) -> int | None:
    """A line that waits for the end of a silence has its latest; by ``ends`` it is earlier if nothing more matches."""
    if at is None:
        return None
    return int(at) if scope is None else min(int(at), ends.get(scope, int(at)))


def _counts(rows: Sequence[bytes]) -> dict[str, int]:
    """A hash of counts, as a script returns it."""
    return {name.decode(): int(count) for name, count in zip(rows[::2], rows[1::2], strict=True)}


def read_by_hand(text: str) -> PausedByHand:
    """A row of the hash ``paused``; of one that cannot be read only that it is there is known."""
    try:
        row = decode(text)
        return PausedByHand(str(row["by"]), _instant(row["since"]), str(row["why"]))
    except (ValueError, TypeError, KeyError):  # written by somebody else
        return PausedByHand("somebody", 0)


def read_pause(facts: Mapping[str, str] | None) -> Pause | None:
    """The hash ``pause``; None where there is none, or it is none of ours."""
    kind = next((each for each in _KINDS if facts and each == facts.get("kind")), None)
    if not facts or kind is None:
        return None
    try:
        since_us, probe_us = _instant(facts["since"]), _instant(facts["probe"])
    except (ValueError, KeyError):  # written by somebody else
        return None
    return Pause(facts.get("code", ""), facts.get("detail", ""), since_us, probe_us, kind, facts.get("fingerprint", ""))


def _instant(text: str) -> int:
    instant = int(text)
    if not 0 <= instant < _LAST_US:
        raise ValueError(f"{text} is no instant, expected microseconds since 1970")
    return instant


def _parked(facts: Mapping[str, Any], totals: Mapping[str, int], tallies: Mapping[str, TallyStatus]) -> int:
    """Parked events without the dispatcher's own, by the tallies; where these are too many, by the books."""
    if facts["has_all_tallies"]:
        return int(facts["parked"]) - sum(each.place in {"timer", "line"} for each in tallies.values())
    return sum(count for name, count in totals.items() if name.startswith("parked "))
