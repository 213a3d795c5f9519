"""A namespace on a real server with a clock of its own: workers, producers and a sink, steered step by step.

After a step the whole namespace is looked at: the books balance, each event is in exactly one place, and whatever the
scripts keep beside the events fits to where these are. Of a test with many steps only some are looked at, and the last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, Final

from redis.commands.core import Script

from dispatcher.core.event import Event, job_id_for, new_event_id
from dispatcher.core.explain import Decision
from dispatcher.core.limits import DEFAULT_BOUNDS, Limit, Opening, Scope
from dispatcher.core.pipeline import POST_S, Capacity, Dispatcher
from dispatcher.core.policy import CategoryRule, OnLimit, Policy
from dispatcher.core.ports import Admitting, Asking, Standby
from dispatcher.core.ports import Gate as DecidingGate
from dispatcher.core.posts import PostResult
from dispatcher.core.silences import NOTHING_SILENCED, Silences
from dispatcher.core.states import (
    GRACE_US,
    Candidate,
    Deferral,
    FailureKnown,
    Leased,
    NotParked,
    Over,
    PauseChange,
    Prefiltered,
    Recovered,
    Recovery,
    Repeat,
    Settled,
    Settlement,
    Started,
    Undecodable,
    Waiting,
)
from dispatcher.core.transitions import after_post
from dispatcher.core.units import US
from dispatcher.server.keys import Keys
from dispatcher.settings.content import Content
from dispatcher.settings.limits_file import read_limits
from dispatcher.store.admission import Admission, Prefilter
from dispatcher.store.counts import Counts
from dispatcher.store.dead_letters import DeadLetters
from dispatcher.store.decisions import Decisions, latest, read_row
from dispatcher.store.explanations import Explanations
from dispatcher.store.intake import Enqueued, Intake
from dispatcher.store.leases import Outbox, Taken
from dispatcher.store.operator_controls import Pausing
from dispatcher.store.parked_events import ParkedEvents
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.silences import Silencing
from dispatcher.store.snapshot import Books, Snapshot
from dispatcher.store.versions import Unless, Version, Versions
from tests.support.doubles import START_US, Clock, Desk, Told
from tests.support.gate import Gate
from tests.support.invariants import INF, NamespaceState, state_of
from tests.support.models import HELD
from tests.support.servers import Database

LEASE_US: Final = 30 * US
REMEMBER_US: Final = 86_400 * US
HOUR_MS: Final = 3_600_000
BACKOFF_US: Final = 5 * US

UNPACED: Final = "#free"
"""A channel without pace; all others take one post at a time."""

IDLE_TAKES: Final = 4
"""Of the takes that bring nothing, one in so many is checked."""

CLOSELY: Final = 20
"""So many steps of a stage are checked, each of them."""

LATER: Final = 7
"""Of its later steps one in so many is checked: no number of steps in which a test repeats itself."""

SNAPSHOTS: Final = 4
"""Of the checks one in so many compares what a snapshot says."""

# How many tokens for sleepers there are, which are taken, and the first instant of each key.
_LISTEN: Final = """
local tokens, firsts = redis.call('LLEN', KEYS[1]), {}
redis.call('DEL', KEYS[1])
for at = 2, #KEYS do
  firsts[#firsts + 1] = redis.call('ZRANGE', KEYS[at], 0, 0, 'WITHSCORES')[2]
end
return {tokens, firsts}
"""

_unchecked: list[Stage] = []
"""The stage whose last step was not checked."""


def check_the_last_step() -> None:
    """Check the last step of a test, if nobody did."""
    while _unchecked:
        _unchecked.pop().check()


def policy_of(
    global_limits: str = "100/30m",
    limits: str = "50/30m",
    pace: str = "10/10s",
    *,
    on_limit: OnLimit = OnLimit.DROP,
    max_age_us: int = 86_400 * US,
) -> Policy:
    """A policy with one rule for every category; limits are separated by commas."""
    rule = CategoryRule(_limits(limits), "#general", on_limit, max_age_us)
    return Policy(
        global_limits=_limits(global_limits),
        defaults=rule,
        categories={"errors": rule},
        default_pace=Limit.parse(pace),
        channels={UNPACED: None},
    )


def _limits(text: str) -> tuple[Limit, ...]:
    return tuple(Limit.parse(part) for part in text.split(",") if part)


@cache
def policy_from(text: str) -> Policy:
    """The policy of a limits file; most tests have few of them, and reading one takes longer than a step."""
    return read_limits(text, "limits.yaml").policy


@cache
def _content(text: str) -> Content:
    """What of a limits file is published."""
    return read_limits(text, "limits.yaml").content


def handed_out(taken: Taken) -> list[str]:
    """The ids of a batch."""
    return [each.id for each in taken.batch]


def gone(taken: Taken) -> list[str]:
    """The ids of what was dropped as it was taken, and is still to be told of."""
    return [name for group in taken.prefiltered for name in group.names]


def names(started: Sequence[Started]) -> list[str]:
    return [each.candidate.leased.id for each in started]


def sentence(stage: Stage, id_: str) -> str:
    """What became of an event."""
    return stage.explanations.explain(id_).sentence


class WatchedOutbox:
    """The outbox as the core sees it; each call is followed by a look at everything."""

    def __init__(self, stage: Stage, outbox: Outbox) -> None:
        self._stage = stage
        self._outbox = outbox

    def line_up(self, deferrals: Sequence[Deferral]) -> list[Waiting | NotParked | Repeat | Over]:
        with self._stage.watching_the_bell():
            return self._outbox.line_up(deferrals)

    def recover(
        self, recoveries: Sequence[Recovery], tell: Callable[[Sequence[Recovered]], None]
    ) -> list[FailureKnown]:
        with self._stage.watching_the_bell():
            return self._outbox.recover(recoveries, tell)

    def expect(self, openings: Sequence[Opening]) -> None:
        self._outbox.expect(openings)

    def start(
        self, candidates: Sequence[Candidate], free: int, *, is_last: bool = False, stood_by: bool = False
    ) -> list[Started | Waiting | None]:
        others_wait = self._stage.waits_for_decision(self._outbox.owner)
        with self._stage.watching_the_bell(also=lambda: others_wait and self._outbox.is_decided):
            return self._outbox.start(candidates, free, is_last=is_last, stood_by=stood_by)

    def settle(self, settlements: Sequence[Settlement]) -> Settled:
        pause_changes: list[PauseChange] = []
        with self._stage.watching_the_bell(also=lambda: any(not each.began for each in pause_changes)):
            done = self._outbox.settle(settlements)
            pause_changes += done.pause_changes
            return done


class WatchedGate:
    """The gate as the core sees it; each call is followed by a look at everything."""

    def __init__(self, stage: Stage, gate: DecidingGate) -> None:
        self._stage = stage
        self._gate = gate

    def admit(self, asking: Sequence[Asking], *, ahead: Sequence[Scope]) -> Admitting:
        answer = self._gate.admit(asking, ahead=ahead)
        self._stage.look()
        self._stage.after_admit(asking, answer)
        return answer


class Worker:
    """One owner of a stage, driven by hand."""

    def __init__(self, stage: Stage, owner: str, lease_us: int) -> None:
        self.stage = stage
        self.owner = owner
        self.told = Told()
        self.desk = Desk()
        self.prefiltered: list[Prefiltered] = []
        """New events that its takes have dropped."""
        self.late: list[Taken] = []
        """What was asked for ahead, and arrived when it gave back what it held."""
        self.next_us: int | None = None
        self.limits_in_force: Policy | None = None
        """By which it decides once it follows a version; until then by the stage's."""
        self.prefilter = Prefilter(lambda: (stage.clock.now_us - START_US) / US)
        """It closes for no category before a version is followed. Its clock counts from another instant."""
        self.outbox = Outbox(
            stage.redis,
            stage.keys,
            stage.queue,
            owner=owner,
            lease_us=lease_us,
            remember_us=stage.remember_us,
            bounds=stage.bounds,
            prefilter=self.prefilter,
            clock=stage.clock,
        )
        self._watched = WatchedOutbox(stage, self.outbox)
        self.admission = Admission(
            stage.redis,
            stage.keys,
            self.outbox.leased_key,
            remember_us=stage.remember_us,
            bounds=stage.bounds,
            prefilter=self.prefilter,
            clock=stage.clock,
        )

    @property
    def policy(self) -> Policy:
        return self.limits_in_force or self.stage.policy

    def follow(self, version: Version) -> None:
        """Decide by a version of the limits from now on."""
        self.limits_in_force = policy_from(version.content)
        self.outbox.follow(version.name, self.policy.dead_letters)
        self.admission.follow(version.name, self.policy)

    @property
    def dispatcher(self) -> Dispatcher:
        """The core with the policy of the moment."""
        gate = WatchedGate(self.stage, self.admission)
        return Dispatcher(
            self.policy, gate, self._watched, self.desk, self.told, lambda _: BACKOFF_US, GRACE_US, POST_S
        )

    def take(self, new: int = 100, due: int = 100) -> Taken:
        taken = self.outbox.take(new, due)
        self.prefiltered += taken.prefiltered
        if taken.batch or next(self.stage.idle_takes) % IDLE_TAKES == 0:
            self.stage.look()
        return taken

    def decided(self) -> None:
        """What it took is decided, as the next take of its loop says."""
        self.take(0, 0)

    def taken(self, new: int = 100, due: int = 100) -> list[str]:
        """The ids of a take, in order."""
        return [each.id for each in self.take(new, due).batch]

    def dispatch(
        self,
        batch: Sequence[Leased | Undecodable],
        free: int = 100,
        silences: Silences = NOTHING_SILENCED,
        standby: Standby | None = None,
    ) -> list[Started]:
        """Decide, and start what may go."""
        for scan in self.dispatcher.scans(batch, self.stage.clock.now_us):
            self.settle(self.dispatcher.scan(scan))
        started = self.dispatcher.dispatch(batch, self.stage.clock.now_us, Capacity(free, standby=standby), silences)
        self.stage.attempts += [(self.stage.clock.now_us, each) for each in started]
        return started

    def start_standby(self, standing_by: Sequence[Candidate], free: int) -> list[Started]:
        """Start events that stood by."""
        started = self.dispatcher.start(standing_by, Capacity(free)).posts
        self.stage.attempts += [(self.stage.clock.now_us, each) for each in started]
        return started

    def go(self, new: int = 100, due: int = 100, free: int = 100) -> list[Started]:
        """Take, decide and start."""
        taken = self.take(new, due)
        return self.dispatch(taken.batch, free, taken.silences)

    def answer(self, started: Started, result: PostResult) -> bool:
        """The post came to ``result``; whether that was made durable."""
        (done,) = self.settle([after_post(started, result, lambda _: BACKOFF_US, GRACE_US)])
        return done

    def deliver(self, started: Iterable[Started]) -> None:
        """Post each and settle all."""
        self.settle([self.dispatcher.deliver(each) for each in started])

    def post_beside(self, channel: str = UNPACED) -> None:
        """Slack takes a post of another event to the channel: what fails before and after it fails not in a row."""
        self.stage.send(f"beside-{next(self.stage.beside)}", category="beside", channel=channel)
        self.deliver(self.dispatch(self.take(due=0).batch))

    def go_on(self) -> list[Started]:
        """Go until nothing more is to be taken now: a history scan may have found that a post is to be made again."""
        started = []
        while (taken := self.take()).batch:
            started += self.dispatch(taken.batch, silences=taken.silences)
        self.next_us = taken.again_us()
        return started

    def sleep(self) -> None:
        """Let time pass until there may be something to take, as the last ``go_on`` was told."""
        clock = self.stage.clock
        clock.now_us = max(clock.now_us + 1, self.next_us or 0)

    def run(self, takes: int = 1_000) -> None:
        """Take, post and settle all there is to do at this instant; ``AssertionError`` where that does not end."""
        for _ in range(takes):
            taken = self.take()
            if not taken.batch:
                return
            self.finish(taken)
        raise AssertionError(f"{self.owner} found something to do in each of {takes} takes")

    def finish(self, taken: Taken) -> None:
        """Decide a batch, post and settle."""
        self.deliver(self.dispatch(taken.batch, silences=taken.silences))

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Make outcomes durable; which of them were."""
        before = len(self.told.losses)
        self.dispatcher.settle(settlements)
        lost = self.told.losses[before:]
        return [each.subject not in lost for each in settlements]

    def start(self, leased: Leased, free: int = 100) -> Started | Waiting | None:
        """The second step alone, for an event whose slots are charged already."""
        (answer,) = self._watched.start([Candidate(leased, self.policy.terms(leased))], free)
        return answer

    def renew(self) -> None:
        self.outbox.renew()
        self.stage.look()

    def notice_step(self, by_us: int) -> None:
        """The server's clock is stepped, and this worker's heartbeat is the first call after it; then it takes."""
        self.renew()
        self.stage.clock.now_us += by_us
        self.renew()
        self.take(0, 0)

    def keep_only(self, *ids: str) -> int:
        self.late += self.outbox.arrivals()
        returned = self.outbox.keep_only(ids)
        self.stage.look()
        return returned

    def give_back(self) -> int:
        self.late += self.outbox.arrivals()
        returned = self.outbox.give_back()
        self.stage.look()
        return returned


class Stage:
    """The namespace and all who use it."""

    def __init__(self, redis: Database, policy: Policy | None = None, *, remember_us: int = REMEMBER_US) -> None:
        self.redis = redis
        self.policy = policy or policy_of()
        self.remember_us = remember_us
        self.bounds = DEFAULT_BOUNDS
        """How many dead letters the workers created from now on keep."""
        self.clock = Clock()
        self.keys = Keys("stage")
        self.queue = QueueKeys("q")
        self.gate = Gate(redis, namespace="stage", clock=self.clock)
        self.after_admit: Callable[[Sequence[Asking], Admitting], object] = _nothing
        """Is called with each answer of the gate, before anything follows from it."""
        self.intake = Intake(redis, self.keys, self.queue, max_waiting=1_000, clock=self.clock)
        self.books = Books(redis, self.keys, self.queue, clock=self.clock)
        self.versions = Versions(redis, self.keys, self.clock)
        self.tokens = 0
        """How many sleepers the bell may still wake."""
        self.rung = 0
        """How often the last ``start`` or ``settle`` rang it."""
        self.prolongs = False
        """Whether ``check`` prolongs lifetimes, which run in real time: for tests that take long."""
        self.idle_takes = count()
        self.beside = count()
        """Numbers the events of ``post_beside``."""
        self._listening = Script(redis, _LISTEN)
        self._steps = 0
        self._checks = 0
        self.same_pace = True
        """Whether every channel has kept its pace; a line may wait otherwise."""
        self.names: dict[str, str] = {}
        """Every event that was seen, by the number of its first sight."""
        self.received: dict[str, int] = {}
        """What had been received of each category by the last ``check``."""
        self.places: NamespaceState
        """Where everything was at the last ``check``."""
        self.attempts: list[tuple[int, Started]] = []
        """Every post that was started, with its instant."""

    def worker(self, owner: str = "ann", lease_us: int = LEASE_US) -> Worker:
        return Worker(self, owner, lease_us)

    @property
    def dead_letters(self) -> DeadLetters:
        return DeadLetters(self.redis, self.keys, self.queue, clock=self.clock)

    @property
    def decisions(self) -> Decisions:
        return Decisions(self.redis, self.keys)

    @property
    def explanations(self) -> Explanations:
        """By the policy of the moment."""
        return Explanations(self.redis, self.keys, self.queue, policy=self.policy, clock=self.clock)

    @property
    def parked_events(self) -> ParkedEvents:
        """By the policy of the moment."""
        return ParkedEvents(
            self.redis, self.keys, self.queue, self.policy, remember_us=self.remember_us, clock=self.clock
        )

    @property
    def pausing(self) -> Pausing:
        return Pausing(self.redis, self.keys, clock=self.clock)

    @property
    def silencing(self) -> Silencing:
        return Silencing(self.redis, self.keys, clock=self.clock)

    def put_in_force(self, text: str) -> Version:
        """Publish what a limits file says."""
        content = _content(text)
        self.versions.publish(content.text, content.digest, by="ed", file="limits.yaml", unless=Unless.SAME)
        self.look()
        version = self.versions.in_force()
        assert version is not None
        return version

    def send(self, *ids: str, category: str = "errors", **fields: Any) -> list[Enqueued]:  # noqa: ANN401 - an Event's
        """Enqueue an event for each id."""
        events = [(job_id_for(id_), Event(category, f"text of {id_}", id=id_, **fields)) for id_ in ids]
        results = self.intake.enqueue(events)
        self.look()
        return results

    def send_unnamed(self, category: str = "errors", text: str = "unnamed") -> str:
        """Enqueue an event whose id is generated; returns it."""
        id_ = new_event_id()
        self.intake.enqueue([(id_, Event(category, text))])
        return id_

    def snapshot(self) -> Snapshot:
        return self.books.snapshot()

    def total(self, outcome: str) -> int:
        return self.snapshot().totals.get(outcome, 0)

    def decision(self, id_: str) -> Decision | None:
        """The last decision about an event; None where none is kept."""
        (found,) = self.explanations.find([id_]).found
        return latest([read_row(id_, row) for row in found.facts.get("decisions", ())])

    def header(self, id_: str) -> dict[str, Any]:
        """What the store keeps of an event beside its payload."""
        record = self.redis.hget(self.keys.events, id_)
        assert record is not None, f"{id_} is not held"
        header: dict[str, Any] = json.loads(record.partition(b"\n")[0])
        return header

    def line(self, channel: str) -> list[str]:
        """Who waits for a channel, in order."""
        return [id_.decode() for id_ in self.redis.zrange(self.keys.line(f"channel:{channel}"), 0, -1)]

    def line_at(self, channel: str) -> float | None:
        """When the head of a channel's line may pass; ``INF`` while a post is in flight."""
        instant: float | None = self.redis.zscore(self.keys.lines, f"channel:{channel}")
        return instant

    def posting(self, channel: str) -> str | None:
        """Whose post is in flight on a channel, or whose turn it is."""
        id_ = self.redis.hget(self.keys.posting, channel)
        return None if id_ is None else id_.decode()

    def slots(self, scope: str) -> dict[str, float]:
        """The scores of a scope's slots, by their events; a held one is its deadline + ``HELD``."""
        rows = self.redis.zrange(self.keys.scope(scope), 0, -1, withscores=True)
        return {self._owner(slot.decode()): score for slot, score in rows}

    def _owner(self, slot: str) -> str:
        """A slot's name with its event in place of the event's number."""
        seq, mark, unknown = slot.partition("#")
        return f"{self.names.get(seq, seq)}{mark}{unknown}"

    def held(self, scope: str) -> dict[str, float]:
        """The deadlines of a scope's held slots."""
        return {id_: score - HELD for id_, score in self.slots(scope).items() if score >= HELD}

    def letters(self) -> list[dict[str, str]]:
        """The dead letters, oldest first."""
        return [
            {name.decode(): value.decode() for name, value in fields.items()}
            for _, fields in self.redis.xrange(self.keys.dead)
        ]

    def letters_bytes(self) -> int:
        """How many bytes all dead letters are, as the store counts them."""
        counted, summed = state_of(self.redis, self.keys).letters_bytes
        assert counted == summed
        return counted

    def collect_tokens(self) -> int:
        """Take what the bell has left for sleepers and add it to ``tokens``; returns how many."""
        tokens, _ = self.redis.pipeline(transaction=False).llen(self.keys.wake).delete(self.keys.wake).execute()
        self.tokens += tokens
        return int(tokens)

    def watching_the_bell(self, also: Callable[[], bool] = lambda: False) -> _Bell:
        """The enclosed call rings once if it set an instant earlier than all others, ``also`` more times otherwise."""
        return _Bell(self, also)

    def look(self) -> None:
        """What follows a step: a check, if it is due."""
        if self.is_due():
            self.check()

    def is_due(self) -> bool:
        """Count a step; whether it is to be checked."""
        self._steps += 1
        due = self._steps <= CLOSELY or self._steps % LATER == 0
        _unchecked[:] = [] if due else [self]
        return due

    def once_after_admit(self, happens: Callable[[], object]) -> None:
        """Let something happen between the next answer of the gate and what follows from it."""

        def after_admit(*_: object) -> None:
            self.after_admit = _nothing
            happens()

        self.after_admit = after_admit

    def waits_for_decision(self, owner: str) -> bool:
        """Whether a line may go that may have waited until this owner has decided."""
        first = self.redis.zrange(self.keys.lines, 0, 0, withscores=True)
        is_deciding = self.redis.hexists(self.keys.deciding, owner)
        return bool(is_deciding and first and first[0][1] <= self.clock.now_us)

    def listen(self) -> tuple[int, float]:
        """Take what the bell has left for sleepers: how many tokens; and the first instant of all that waits."""
        keys = self.keys
        tokens, firsts = self._listening([keys.wake, keys.lines, keys.timers, keys.scheduled, keys.endings])
        self.tokens += tokens
        return tokens, min(map(float, firsts), default=INF)

    def check(self, *, takes_tokens: bool = False) -> None:
        """The books balance, each event is in one place, and all that is kept beside the events fits."""
        self.places = places = state_of(self.redis, self.keys, takes_tokens=takes_tokens)
        self.tokens += places.tokens
        for id_, header in places.events.items():
            seq = str(header["seq"])
            if seq not in self.names:
                self.names[seq] = id_ if id_ not in self.names.values() else f"{id_} again"
        assert places.faults(same_pace=self.same_pace) == []
        if self._checks % SNAPSHOTS == 0:
            assert self.snapshot().imbalances() == []
        self._checks += 1
        received = Counts(places.totals).received_by_category()
        fallen = [name for name, count in self.received.items() if received.get(name, 0) < count]
        assert not fallen, f"fewer were received of {fallen} than before"
        self.received = received
        if self.prolongs:
            pipe = self.redis.pipeline(transaction=False)
            for key in places.lifetimes_ms:
                pipe.pexpire(key, HOUR_MS)
            pipe.execute()


@dataclass(slots=True)
class _Bell:
    stage: Stage
    also: Callable[[], bool]
    before: float = INF

    def __enter__(self) -> None:
        _, self.before = self.stage.listen()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            if self.stage.is_due():
                self.stage.check(takes_tokens=True)
                self.stage.rung, first_us = self.stage.places.tokens, self.stage.places.first_us
            else:
                self.stage.rung, first_us = self.stage.listen()
            expected = (first_us < self.before) + self.also()
            assert self.stage.rung == expected, f"the bell was rung {self.stage.rung} times"


def _nothing(*_: object) -> None:
    pass
