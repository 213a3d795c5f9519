"""One round of kills: workers die as told while events come in, then everything is accounted for, id by id."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dispatcher.core.event import Event
from dispatcher.core.explain import Decision
from dispatcher.core.limits import Scope, all_scopes
from dispatcher.core.units import Lane
from dispatcher.producer.blocking import Producer
from dispatcher.server.connection import Client
from dispatcher.server.keys import Keys
from dispatcher.settings.limits_file import read_limits
from dispatcher.stand_in import StandIn
from dispatcher.store.decisions import Decisions
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books, Snapshot
from tests.support.journal import Life
from tests.support.kill_points import KillPoint
from tests.support.killable_workers import KillableWorker, KillableWorkers
from tests.support.servers import Database
from tests.support.slack import mark_of
from tests.support.snapshots import is_settled

KEYS: Final = Keys("dispatcher")
QUEUE: Final = QueueKeys("notifications")
PLACES: Final = 3
"""Workers at a time."""

PACED: Final = ("#calm", "#quiet")
"""Channels in which order is looked at; what is deferred is handed out one by one, to any worker."""

KINDS: Final = ("calm", "loud1", "quiet", "later", "calm", "loud1", "buried", "quiet", "loud2", "buried")
"""The categories of events, in the order in which they are sent."""

_LOOK_S: Final = 0.02
_BAIT_S: Final = 2.0
"""Twice a lease: by then somebody has taken over from the last one who died."""
_DEATHS: Final = 3
"""An event that so many workers died with is a dead letter."""


def limits(events: int) -> str:
    """A limits file of which every limit binds when ``events`` are sent; what is deferred has room of its own."""
    return f"""\
global: {{limits: [{events // 3 + 10 * events}/30m]}}
channels:
  default: {{pace: none}}
  "#calm": {{pace: 100/1s}}
  "#quiet": {{pace: 10/100ms}}
  "#later": {{pace: 100/1s}}
defaults: {{limits: [{events // 20}/30m], channel: "#loud"}}
categories:
  calm: {{limits: [{events}/30m], channel: "#calm"}}
  quiet: {{limits: [{events}/30m], channel: "#quiet"}}
  buried: {{limits: [{events // 20}/30m], channel: "#loud", on_limit: dead-letter}}
  later: {{limits: [20/500ms], channel: "#later", on_limit: defer, guarantee: {10 * events}}}
"""


def mixed(first: int, count: int) -> list[Event]:
    """Events of all kinds: dropped, buried, deferred, waiting in lines, on all lanes."""
    return [
        Event(KINDS[n % len(KINDS)], f"message {n}", id=f"event-{n}", priority=_priority(n))
        for n in range(first, first + count)
    ]


def _priority(n: int) -> Lane:
    return (Lane.NORMAL, Lane.NORMAL, Lane.LOW, Lane.HIGH)[n % 7 % 4]


@dataclass(slots=True)
class Round:
    """Kills workers in the middle of work; ``ids`` is what was sent, ``killed`` who died."""

    killable: KillableWorkers
    client: Client
    slack: StandIn
    env: Mapping[str, str]
    ids: list[str] = field(default_factory=list)
    killed: list[KillableWorker] = field(default_factory=list)
    baits: int = 0
    """How many were killed only so that others take over from them."""

    def run(
        self, kill_points: Sequence[KillPoint], count: int, *, shots: Iterable[float] = (), timeout_s: float
    ) -> Snapshot:
        """Kill one worker for each kill point, and one at random at each instant of ``shots``; then let the others end.

        ``count`` events at least are sent, and more as long as somebody has yet to die. Returns the last look. The
        books balance at every look.
        """
        books, producer = Books(self.client, KEYS, QUEUE), Producer(self.client)
        pending, instants = deque(kill_points), deque(shots)
        chance = random.Random(count)
        portion = max(20, count // max(1, len(pending) + len(instants)))
        began = time.monotonic()
        bait_at = began + _BAIT_S
        while True:
            self._ended_well()
            self._fill_places(pending)
            snapshot = books.snapshot()
            assert snapshot.imbalances() == []
            if instants and time.monotonic() - began > instants[0]:
                instants.popleft()
                self._shoot(chance)
            is_killing = bool(pending or instants) or any(each.kill_point for each in self.killable.living())
            if snapshot.leased and not (pending or instants) and time.monotonic() > bait_at:
                bait_at = time.monotonic() + _BAIT_S
                self._bait(chance)
            if snapshot.waiting < PLACES and (len(self.ids) < count or (is_killing and snapshot.events < portion)):
                self.ids += producer.send_many(mixed(len(self.ids), portion))
            elif not is_killing and is_settled(snapshot):
                break
            assert time.monotonic() - began < timeout_s, (
                f"not done after {timeout_s} s: {snapshot}; {pending}; {self._retries()}"
            )
            self.killable.poll(_LOOK_S)
        self.killable.stop()
        self._ended_well()
        self.killed = [each for each in self.killable.started if each.code == -signal.SIGKILL]
        return books.snapshot()

    def _ended_well(self) -> None:
        ended = (each for each in self.killable.started if each.code not in {None, 0, -signal.SIGKILL})
        assert [(each.code, each.said()[-2000:]) for each in ended] == []

    def _fill_places(self, pending: deque[KillPoint]) -> None:
        for _ in range(PLACES - len(self.killable.living())):
            self.killable.start(self.env, pending.popleft() if pending else None)

    def _shoot(self, chance: random.Random) -> None:
        victim = chance.choice(self.killable.living())
        victim.signal(signal.SIGKILL)
        while victim.code is None:
            self.killable.poll(1.0)

    def _bait(self, chance: random.Random) -> None:
        """Kill one who is not to die, where all who are wait for somebody to take over from."""
        living = self.killable.living()
        kill_points = [each.kill_point for each in living if each.kill_point]
        others = [each for each in living if not each.kill_point]
        if kill_points and others and all(kill_point.step == "take over" for kill_point in kill_points):
            chance.choice(others).signal(signal.SIGKILL)
            self.baits += 1

    def _retries(self) -> list[str]:
        """What the workers say of posts that did not succeed at once."""
        parked = [line for each in self.killable.started for line in each.lines("event.parked")]
        return [str(line) for line in parked if line["reason"] == "retry"]


def check(ended: Round, snapshot: Snapshot) -> None:
    """Fails unless every id has exactly one outcome, no limit was passed, and what nobody died with kept its order."""
    by_number = {process.number: process.life() for process in ended.killable.started}
    lives = list(by_number.values())
    dead_lives = [by_number[process.number] for process in ended.killed]
    decided = {each.id: each for each in Decisions(ended.client, KEYS).newest()}
    _check_outcomes(ended, snapshot, decided, lives, dead_lives)
    _check_limits(ended, decided, lives)
    _check_posts(ended, decided, lives, dead_lives)
    _check_order(ended, lives, dead_lives)


def _check_outcomes(
    ended: Round, snapshot: Snapshot, decided: Mapping[str, Decision], lives: Iterable[Life], dead_lives: Iterable[Life]
) -> None:
    assert snapshot.imbalances() == []
    database: Database = ended.client
    stuck = {id_.decode() for id_ in database.hkeys(KEYS.events)}
    assert (snapshot.waiting, snapshot.in_flight, snapshot.parked) == (0, 0, len(stuck))
    assert stuck <= set().union(*(life.unknown for life in lives))
    assert decided.keys() | stuck == set(ended.ids)
    assert decided.keys().isdisjoint(stuck)
    outcomes = Counter(each.outcome for each in decided.values())
    assert snapshot.received == len(ended.ids)
    assert {name: snapshot.overall()[name] for name in outcomes} == dict(outcomes)

    lines = [line for process in ended.killable.started for line in process.lines("event.settled")]
    told = {line["event_id"]: line["outcome"] for line in lines}
    assert len(told) == len(lines), "an outcome was told twice"
    assert {id_ for id_, outcome in told.items() if decided[id_].outcome != outcome} == set()
    untold = set().union(*(life.untold for life in dead_lives), *(life.lost for life in lives))
    unheard = sum(life.asked + life.unheard for life in lives)
    silent = [decided[id_] for id_ in decided.keys() - told.keys() - untold]
    assert {each.outcome for each in silent} <= {"dropped"}, "not told, though nobody died before it could be"
    assert len({each.at_us for each in silent}) <= unheard, "dropped by more takes than had no answer"

    deaths = Counter(id_ for life in dead_lives for id_ in life.held)
    deaths.update(id_ for life in lives for id_ in life.lost)  # taken over from one that was too slow
    exhausted = {id_ for id_, each in decided.items() if each.reason == "exhausted"}
    too_few = {id_: deaths[id_] for id_ in exhausted if deaths[id_] + unheard < _DEATHS}
    assert too_few == {}, "dead letters that too few died with"


def _check_limits(ended: Round, decided: Mapping[str, Decision], lives: Iterable[Life]) -> None:
    """Every event that was sent owns a slot of every scope, and no more were sent than its limits allow.

    A scope may hold one slot more than its limit: the one by which it knows when it has room. A round is shorter than
    the windows that are looked at.
    """
    database: Database = ended.client
    scopes_of = _scopes(ended)
    owners = {id_: owner for life in lives for id_, owner in life.owners.items()}
    sent: dict[str, set[str]] = defaultdict(set)
    for id_, each in decided.items():
        if each.outcome == "sent":
            scopes = {"global", "shared", f"category:{each.category}"}
            if each.category == "later":  # what has left its short window is forgotten
                scopes = {"global", "guarantee:later"}
            for scope in scopes:
                sent[scope].add(owners[id_])
    for scope, expected in sent.items():
        slots = {member.decode().partition("#")[0] for member in database.zrange(KEYS.scope(scope), 0, -1)}
        assert expected <= slots, f"sent without a slot of {scope}"
        for limit in scopes_of[scope].limits:
            assert len(expected) <= limit.max, f"sent more than {scope} allows"


def _scopes(ended: Round) -> dict[str, Scope]:
    """The scopes of the round's limits file, by their names."""
    text = Path(ended.env["DISPATCHER_LIMITS_FILE"]).read_text(encoding="utf-8")
    policy = read_limits(text, "limits.yaml").policy
    return {scope.name: scope for category in KINDS for scope in all_scopes(policy.scopes(category))}


def _check_posts(
    ended: Round, decided: Mapping[str, Decision], lives: Iterable[Life], dead_lives: Iterable[Life]
) -> None:
    """What was sent arrived; only a post that was under way when its worker died may have arrived and not count."""
    posts = Counter(posted.mark for posted in ended.slack.ledger.posted())
    marks = {mark_of(id_): id_ for id_ in ended.ids}
    unconfirmed = set().union(*(life.posting for life in dead_lives), *(life.lost | life.unknown for life in lives))
    twice = {marks[mark] for mark, count in posts.items() if count > 1 and mark is not None}
    assert twice <= unconfirmed, "posted twice, though no post had an unknown delivery status"
    arrived = {marks[mark] for mark in posts if mark is not None}
    sent = {id_ for id_, each in decided.items() if each.outcome == "sent"}
    assert sent <= arrived
    assert arrived - sent <= unconfirmed, "posted, and settled as something else"


def _check_order(ended: Round, lives: Iterable[Life], dead_lives: Iterable[Life]) -> None:
    """What one worker took at once for one channel arrives in that order, that of each priority by itself.

    But for what others had to take up, for what was reconciled since Slack did not answer in time, and for what was to
    be posted again, since its time had passed or Slack was not reached.
    """
    moved = set().union(
        *(life.held for life in dead_lives),
        *(life.lost | life.unknown | life.unconfirmed | life.again | life.returned for life in lives),
    )
    places: dict[str, dict[str | None, int]] = {channel: {} for channel in PACED}
    for n, posted in enumerate(ended.slack.ledger.posted()):
        if posted.channel in places:
            places[posted.channel].setdefault(posted.mark, n)
    for life in lives:
        for batch in life.batches:
            for channel, place in places.items():
                stayed = [id_ for id_ in batch if id_ not in moved and mark_of(id_) in place]
                for priority in Lane:
                    alike = [id_ for id_ in stayed if _priority(int(id_.rpartition("-")[2])) is priority]
                    arrived = sorted(alike, key=lambda id_: place[mark_of(id_)])
                    assert arrived == alike, f"out of order in {channel}"
