"""A walk over one namespace in which everything may happen at once, beside a plain model of what was promised.

The model is a list of posts: when each was marked, to which slots it was charged, and when Slack takes the message, if
ever. Three clocks run. ``true_us`` is everybody's but the server's. The server's (``stage.clock``) may be stepped, and
is all that the dispatcher sees. ``felt_us`` is the server's without its steps back: of those no limit may profit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final, TypeAlias

from dispatcher.core.event import Event
from dispatcher.core.limits import Scope, all_scopes
from dispatcher.core.ports import Overtaken
from dispatcher.core.posts import Ambiguous, Paused, PostResult, RateLimitedBySlack, Receipt, Rejected, Retryable
from dispatcher.core.states import (
    GRACE_US,
    LAST_SCAN,
    MARGIN_US,
    Absent,
    Candidate,
    Dropped,
    Leased,
    Parked,
    Place,
    ScanLater,
    ScanResult,
    Search,
    Settlement,
    Started,
    Undecodable,
)
from dispatcher.core.transitions import admitted_before
from dispatcher.core.units import US, Lane
from dispatcher.errors import StaleLimits
from dispatcher.store.dead_letters import Filter, Replayed
from dispatcher.store.parked_events import Cancelled, ParkedEvent, ParkedEvents, ParkedFilter
from dispatcher.worker.post_pool import Standby
from tests.support.doubles import NOTHING_TO_READ
from tests.support.invariants import INF, slot_of
from tests.support.models import HELD
from tests.support.servers import Database
from tests.support.stage import LEASE_US, UNPACED, Stage, Worker

OWNERS: Final = 3
SENDERS: Final = 3
DARK: Final = "#dark"
"""A channel of which nothing can be read."""

CHANNELS: Final = ("#a", "#b", UNPACED, DARK)
CATEGORIES: Final = ("errors", "deploys", "audit")
LABELS: Final[tuple[dict[str, str], ...]] = ({}, {"host": "db1"}, {"host": "db2"})
POST_US: Final = 10 * US
"""A post arrives within so much of its mark, or never: workers give it up then."""

BEAT_US: Final = 10 * US
LATENCY_US: Final = 400_000
LONGEST_WINDOW_US: Final = 60 * US
LONGEST_PACE_US: Final = 10 * US
LONGEST_HOLD_US: Final = 30 * US
"""A channel that gives no clear answers takes no post for so long at most."""

LONGEST_PROBE_US: Final = 60 * US
UNNOTICED_US: Final = BEAT_US + 2 * US
"""A step back is noticed by the last call before it: what is brought back may end so much later."""

STEPS_S: Final = (-600, -600, -90, -20, 20, 45, 600)
"""By how much the server's clock is stepped."""

FURTHEST_US: Final = 1_300 * US
"""The server's clock is never further off."""

WIDE: Final = f"""
global: {{limits: [18/1m, 12/30s]}}
channels: {{default: {{pace: 2/5s}}, "{UNPACED}": {{pace: none}}}}
categories:
  errors: {{limits: [8/1m], per_label: {{host: [3/1m]}}}}
  deploys: {{limits: [6/1m], on_limit: defer}}
  audit: {{limits: [], on_limit: dead-letter}}
"""
NARROW: Final = f"""
global: {{limits: [17/1m, 12/30s]}}
channels: {{default: {{pace: 1/10s}}, "{UNPACED}": {{pace: none}}}}
categories:
  errors: {{limits: [7/1m], on_limit: defer}}
  deploys: {{limits: [5/1m]}}
  audit: {{limits: [], on_limit: dead-letter}}
"""
"""A limit is lowered by one: the gate keeps one slot more than its limit, so none is forgotten."""

NEVER_ARRIVED: Final[tuple[PostResult, ...]] = (
    RateLimitedBySlack(7 * US, "ratelimited"),
    Retryable("refused", "connection refused"),
    Retryable("request_timeout", "busy", reached=True),
    Rejected("is_archived", "archived"),
    Paused("invalid_auth", "the token is not valid"),
)
NO_ANSWER: Final = Ambiguous("timeout", "no answer")


@dataclass(slots=True)
class Post:
    """One request that may have left. ``lands_us`` is when Slack takes the message (true time), None for never.

    ``counts`` until it is known that it has not arrived.
    """

    started: Started
    marked_us: int
    true_us: int
    felt_us: int
    lands_us: int | None
    counts: bool = True

    @property
    def id(self) -> str:
        return self.started.candidate.leased.id

    @property
    def channel(self) -> str:
        return self.started.candidate.terms.channel

    @property
    def slot(self) -> str:
        return self.started.candidate.leased.slot

    @property
    def scopes(self) -> tuple[Scope, ...]:
        return all_scopes(self.started.candidate.terms.scopes)


@dataclass(slots=True)
class Owner:
    """A worker, what it has taken and not dispatched, and its posts in flight."""

    worker: Worker
    hands: list[Leased | Undecodable] = field(default_factory=list)
    flights: list[Post] = field(default_factory=list)
    standby: Standby = field(default_factory=partial(Standby, 0, SENDERS))
    wakes_us: int = 0
    is_frozen: bool = False


Step: TypeAlias = Callable[["StoreWalk"], None]


class StoreWalk:
    """One walk, by its seed."""

    def __init__(self, redis: Database, seed: int) -> None:
        redis.flushall()
        self.random = Random(seed)
        self.stage = Stage(redis)
        self.stage.prolongs = True
        self.true_us = self.felt_us = self.stage.clock.now_us
        self.files = [_unpaced(text) if seed % 3 == 1 else text for text in (WIDE, NARROW)]
        self.version = self.stage.put_in_force(self.files[0])
        self.workers: list[Worker] = []
        self.owners = [self._owner(f"owner{n}") for n in range(OWNERS)]
        self.ghosts: list[Owner] = []
        """Calls under a name that its worker gave up, still on their way."""
        self.found: list[ParkedEvent] = []
        """What an operator found parked, and may cancel later."""
        self.ids: list[str] = []
        self.pushed = 0
        self.replays: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()
        self.posts: list[Post] = []
        self.admitted: set[str] = set()
        self.cooling: dict[str, int] = {}
        self.timers: dict[str, int] = {}
        """Until when (felt) an event was told to wait on its timer."""
        self.is_out = False
        """Slack is not reached."""
        self.jumped_us = 0
        """When the server's clock was last stepped forward (true time)."""
        self.ended: Counter[str] = Counter()

    # What may happen

    def step(self) -> None:
        """Something happens; then everything has to hold."""
        (chosen,) = self.random.choices(list(STEPS), list(STEPS.values()))
        chosen(self)
        self.hold()

    def send(self) -> None:
        choice = self.random.choice
        ids = [f"e{len(self.ids) + n}" for n in range(choice([1, 1, 2, 4]))]
        event = partial(
            Event,
            choice(CATEGORIES),
            "t",
            channel=choice(["#a", *CHANNELS]),
            priority=choice(list(Lane)),
            labels=choice(LABELS),
            max_age=choice([None] * 5 + [25.0]),
            not_before=choice([None] * 5 + [self.stage.clock.now_us / US + self.random.uniform(0, 90)]),
        )
        self.stage.intake.enqueue([(id_, event(id=id_)) for id_ in ids])
        self.ids += ids

    def send_again(self) -> None:
        """An id is pushed once more, by a producer that does not ask whether it is known."""
        if self.ids:
            lane = self.stage.queue.lane(self.random.choice(list(Lane)))
            self.stage.redis.rpush(lane, self.random.choice(self.ids[-10:]))
            self.pushed += 1

    def take(self) -> None:
        owner = self._one_awake(lambda each: not each.hands)
        batch = owner.worker.take(self.random.randrange(6), self.random.randrange(4)).batch
        again = {each.id for each in batch}
        owner.hands = [each for each in owner.hands if each.id not in again] + batch
        self._nothing_waits_too_long()

    def dispatch(self) -> None:
        self._dispatch(self._one_awake(lambda owner: owner.hands), self.random.choice([0, 1, 2, 9, 9]))

    def start_standby(self) -> None:
        self._start_standby(self._one_awake(lambda owner: owner.standby), self.random.choice([1, 2, 9]))

    def answer(self) -> None:
        owner = self._one_awake(lambda each: each.flights)
        if owner.flights:
            post = owner.flights.pop(self.random.randrange(len(owner.flights)))
            self._answer(owner.worker, post, self._result(post))

    def cancel(self) -> None:
        """An operator cancels what is parked, or what was when he looked some time ago."""
        parked = ParkedEvents(
            self.stage.redis,
            self.stage.keys,
            self.stage.queue,
            self.owners[0].worker.policy,
            remember_us=self.stage.remember_us,
            clock=self.stage.clock,
        )
        if not self.found or self.random.random() < 0.5:
            self.found = list(parked.find(ParkedFilter()))
        chosen = self.random.sample(self.found, min(len(self.found), self.random.choice([1, 1, 2, 9])))
        for result, settlement in parked.cancel(chosen, who="ed"):
            if result is Cancelled.DONE:
                self.cancelled[settlement.subject.id] += 1
                self.admitted.discard(settlement.subject.id)

    def reload(self) -> None:
        """Other limits are put in force; each worker hears of it when it asks by the older ones, or later."""
        self.version = self.stage.put_in_force(self.random.choice(self.files))
        for owner in self.owners:
            if self.random.random() < 0.3:
                owner.worker.follow(self.version)

    def turn_outage(self) -> None:
        self.is_out ^= self._turns(on=not self.is_out)

    def step_clock(self) -> None:
        """The server's clock is stepped; not forward twice while a post is on its way: no more is promised."""
        seconds = self.random.choice(STEPS_S)
        if seconds > 0 and self.true_us - self.jumped_us < LAST_SCAN * GRACE_US + LEASE_US:
            return
        if abs(self.stage.clock.now_us + seconds * US - self.true_us) <= FURTHEST_US:
            self._one_awake().worker.renew()  # between two steps somebody calls
            self._step_clock(seconds * US)

    def freeze(self) -> None:
        """A worker stands still: its lease may end; what it calls when it goes on comes late."""
        owner = self.random.choice(self.owners)
        owner.is_frozen ^= self._turns(on=not owner.is_frozen)

    def die(self) -> None:
        """The process is gone; another one comes in its place."""
        self._replace(self.random.randrange(OWNERS))

    def stop(self) -> None:
        """A worker gives back everything, its posts having been answered."""
        at = self.random.randrange(OWNERS)
        owner = self.owners[at]
        while owner.flights:
            post = owner.flights.pop(0)
            self._answer(owner.worker, post, self._receipt(post))
        owner.worker.give_back()
        self._replace(at)

    def lose_answer(self) -> None:
        """A worker goes on under a new name with the posts it knows of; its last calls may be on their way yet."""
        owner = self._one_awake()
        ghost = Owner(self._hire(owner.worker.outbox.owner), owner.hands)
        if owner.flights and not self._has_landed(owner.flights[-1]):
            lost = owner.flights.pop()  # the answer to its mark: it was never begun
            is_ours = self.stage.redis.sismember(owner.worker.outbox.leased_key(), lost.id)
            lost.lands_us, lost.counts = None, not is_ours
            ghost.flights = [lost]
        owner.hands = []
        owner.standby.all()
        owner.worker.keep_only(*(post.id for post in owner.flights))
        self.ghosts = [*self.ghosts[-3:], ghost]

    def call_late(self) -> None:
        """A call under a name that was given up reaches the server: it changes nothing of what others hold."""
        if not self.ghosts:
            return
        ghost = self.random.choice(self.ghosts)
        match self.random.randrange(5):
            case 0:
                try:
                    assert ghost.worker.dispatch(ghost.hands) == [], "started under a name that was given up"
                except Overtaken as error:
                    ghost.worker.follow(self.version)
                    ghost.hands = list(error.undecided)
            case 1 if ghost.flights:
                post = ghost.flights[0]
                assert not ghost.worker.answer(post.started, self.random.choice([NO_ANSWER, *NEVER_ARRIVED]))
            case 2:
                ghost.worker.renew()
            case 3 if ghost.hands:
                self._start_late(ghost)
            case _:
                with suppress(IndexError):  # take.lua answers [] to a former name, and no worker ever reads that
                    ghost.worker.take(1, 1)
                ghost.hands, ghost.flights = [], []  # who waits for a take has no other call on its way

    def _start_late(self, ghost: Owner) -> None:
        """Of a decision that was made in time the second step alone comes late."""
        leased = self.random.choice(ghost.hands)
        if isinstance(leased, Leased):
            try:
                assert ghost.worker.start(leased) is None, "started under a name that was given up"
            except StaleLimits:
                ghost.worker.follow(self.version)

    def replay(self) -> None:
        """A dead letter goes back to its lane."""
        for letter in list(self.stage.dead_letters.find(Filter()))[:3][-1:]:
            assert self.stage.dead_letters.replay([letter, letter]) == [Replayed.DONE, Replayed.GONE]
            self.replays[letter.id] += 1
            self.admitted.discard(letter.id)

    def suspend(self) -> None:
        """``rq suspend``, or ``rq resume`` where it was."""
        if not self.stage.redis.delete(self.stage.queue.suspended) and self._turns(on=True):
            self.stage.redis.set(self.stage.queue.suspended, "1")

    def pass_time(self) -> None:
        """Those who live renew their leases, unless the server is away."""
        span_us = self.random.choice([1, US // 2, 5 * US // 2, 5 * US, 11 * US, 31 * US])
        self._pass(span_us, away=self.random.random() < 0.1)

    # What has to hold

    def hold(self) -> None:
        """At every instant: each slot is somebody's, and no post that may have arrived lacks its own."""
        self.stage.check()
        self._learn()
        now_us = self.stage.clock.now_us
        headers = self.stage.places.events.values()
        holds = {slot_of(header): header.get("holds", ()) for header in headers}
        numbers = {str(header["seq"]) for header in headers}
        counting = [post for post in self.posts if post.counts]
        posted = {post.slot for post in counting}
        slots = {scope: rows for scope, rows in self.stage.places.slots.items() if not scope.startswith("pace:")}
        for scope, rows in slots.items():
            for slot, score in rows.items():
                if score > HELD + now_us:
                    assert scope in holds.get(slot, ()), f"{slot} is held in {scope} by nobody"
                elif score < HELD and score + LONGEST_WINDOW_US > now_us:
                    is_owned = slot.partition("#")[0] in numbers or slot in posted
                    assert is_owned, f"{slot} is charged to {scope} by nobody"
        for post in counting:
            if min(post.marked_us - now_us, post.felt_us - self.felt_us) + LONGEST_WINDOW_US > 0:
                forgot = [scope.name for scope in post.scopes if post.slot not in slots.get(scope.name, ())]
                assert not forgot, f"{post.id} {post.slot} may have arrived, and {forgot} forgot it"

    def verify(self) -> None:
        """At the end: each event has ended once, in a way that the books know, and was posted once at most."""
        snapshot = self.stage.snapshot()
        assert self.ended + self.cancelled == Counter(self.ids) + self.replays
        assert snapshot.received == len(self.ids) + self.pushed + self.replays.total()
        assert snapshot.totals.get("replayed", 0) == self.replays.total()
        assert snapshot.totals.get("duplicate", 0) == self.pushed
        landed = Counter(post.id for post in self.posts if post.channel != DARK and self._has_landed(post))
        twice = {id_: number for id_, number in landed.items() if number > 1 + self.replays[id_]}
        assert not twice, f"posted more than once: {twice}"

    def probe(self) -> None:
        """When nothing is left, a new event is admitted exactly when the posts that count leave room for it."""
        owner = self.owners[0]
        self._put_in_force(self.files[0])
        newest_us = max((post.marked_us for post in self.posts), default=0)
        if newest_us > self.stage.clock.now_us:  # slots of a clock that was ahead do not move back
            self._pass(newest_us + LONGEST_WINDOW_US - self.stage.clock.now_us, away=True)
        for _ in range(3):
            self._try_until_refused(owner)
            room_us = self._room_us()
            self._pass(room_us - 1 - self.stage.clock.now_us, away=True)
            assert not self._try(owner), "admitted too early"
            self._pass(1, away=True)
            assert self._try(owner), "admitted too late"

    def _try_until_refused(self, owner: Owner) -> None:
        while self._room_us() <= self.stage.clock.now_us:
            assert self._try(owner), "refused with room left"
        assert not self._try(owner), "admitted without room"

    def _try(self, owner: Owner) -> bool:
        """Whether a new event is posted."""
        id_ = f"probe{self.stage.clock.now_us}-{len(self.posts)}"
        self.stage.send(id_, category="errors", channel=UNPACED, labels=LABELS[1])
        owner.worker.take(0, 0)
        owner.hands += owner.worker.take(100, 0).batch
        self._dispatch(owner, 100)
        flights, owner.flights = owner.flights, []
        for post in flights:
            self._answer(owner.worker, post, self._receipt(post))
        return len(flights) == 1

    def _room_us(self) -> int:
        """From when on all limits have room for the event of ``_try``."""
        room_us = 0
        for scope in all_scopes(self.owners[0].worker.policy.scopes("errors", LABELS[1])):
            marks = sorted(post.marked_us for post in self.posts if post.counts and scope.name in _names(post.scopes))
            for limit in scope.limits:
                if len(marks) >= limit.max:
                    room_us = max(room_us, marks[-limit.max] + limit.window_us)
        return room_us

    def _nothing_waits_too_long(self) -> None:
        """After a take: no instant that is stored lies further ahead than what it was set for."""
        stage, now_us = self.stage, self.stage.clock.now_us

        def ahead(key: str) -> dict[str, float]:
            rows = stage.redis.zrange(key, 0, -1, withscores=True)
            return {name.decode(): score - now_us for name, score in rows if score < INF}

        assert max(ahead(stage.keys.leases).values(), default=0) <= LEASE_US, "a lease ends too late"
        cooling = ahead(stage.keys.cooldowns)
        assert max(cooling.values(), default=0) <= LONGEST_HOLD_US + UNNOTICED_US, "a cool-down ends too late"
        probe_us = int(stage.redis.hget(stage.keys.pause, "probe") or 0)
        assert probe_us - now_us <= LONGEST_PROBE_US + UNNOTICED_US, "a pause is probed too late"
        for id_, wait_us in ahead(stage.keys.timers).items():
            told_us = max(self.timers.get(id_, 0) - self.felt_us, LONGEST_PROBE_US)
            assert wait_us <= told_us + UNNOTICED_US, f"{id_} waits too long on its timer"
        for line, wait_us in ahead(stage.keys.lines).items():
            channel = line.removeprefix("channel:")
            if channel != line and channel not in cooling:
                assert wait_us <= LONGEST_PACE_US, f"{channel} waits longer than its pace"

    def _learn(self) -> None:
        """What the workers were told since the last step."""
        for worker in self.workers:
            for settlement in worker.told.settlements:
                self._learn_of(settlement)
            worker.told.settlements.clear()
            for group in worker.prefiltered:
                assert self.admitted.isdisjoint(group.names), "an admitted event was prefiltered"
                self.ended.update(group.names)
            worker.prefiltered.clear()

    def _learn_of(self, settlement: Settlement) -> None:
        id_ = settlement.subject.id
        match settlement.outcome:
            case Parked(place=Place.TIMER | Place.SCAN) as parked:
                self.timers[id_] = self.felt_us + parked.wait_us
                if parked.code == "never_seen":
                    last = [post for post in self.posts if post.id == id_][-1]
                    assert last.lands_us is None, f"{last} is to be posted again, and it arrives"
                    last.counts = False
            case Parked():
                pass
            case Dropped(reason=reason):
                assert id_ not in self.admitted, f"{id_} was admitted, and dropped for {reason}"
                self.ended[id_] += 1
            case _:
                self.ended[id_] += 1
                self.admitted.discard(id_)

    # How it is done

    def drain(self) -> None:
        """What is left is posted: workers sleep until the instant that ``take`` named, or until the bell wakes one."""
        stage = self.stage
        stage.redis.delete(stage.queue.suspended)
        self.is_out, self.ghosts = False, []
        if (ahead_us := stage.clock.now_us - self.true_us) > MARGIN_US // 2:
            self._step_clock(-ahead_us)
        for owner in self.owners:
            owner.is_frozen, owner.wakes_us = False, 0
        for _ in range(5_000):
            stage.collect_tokens()
            owner = min(self.owners, key=lambda each: each.wakes_us)
            if owner.wakes_us > self.true_us:
                snapshot = stage.snapshot()
                if not (snapshot.waiting or snapshot.parked or snapshot.in_flight):
                    return
                listening = [each for each in self.owners if len(each.flights) < SENDERS]
                if stage.tokens and listening:
                    stage.tokens -= 1
                    owner = min(listening, key=lambda each: each.wakes_us)
                else:
                    self._pass(owner.wakes_us - self.true_us, away=False)
            self._work(owner)
            self.hold()
        raise AssertionError(f"not drained: {stage.snapshot()}")

    def _work(self, owner: Owner) -> None:
        while owner.flights and owner.flights[0].true_us + LATENCY_US <= self.true_us:
            post = owner.flights.pop(0)
            self._answer(owner.worker, post, self._receipt(post))
        free = max(0, SENDERS - len(owner.flights))
        self._start_standby(owner, free)
        free = max(0, SENDERS - len(owner.flights))
        taken = owner.worker.take(5, free)
        self._nothing_waits_too_long()
        owner.hands += taken.batch
        self._dispatch(owner, free)
        can_post = len(owner.flights) < SENDERS
        waits_us = [taken.again_us(can_post=can_post) - self.stage.clock.now_us]
        waits_us += [post.true_us + LATENCY_US - self.true_us for post in owner.flights[:1]]
        waits_us += [round(owner.standby.until * US) + 1 - self.true_us for _ in range(bool(owner.standby))]
        owner.wakes_us = self.true_us + (0 if taken.batch or taken.more else max(0, min(waits_us)))

    def _dispatch(self, owner: Owner, free: int) -> None:
        batch, owner.hands = owner.hands, []
        owner.standby.open(self.version.name, 0.0)
        self._start(owner, batch, 0 if owner.standby else free)

    def _start_standby(self, owner: Owner, free: int) -> None:
        if owner.standby.must_ask_again(self.version.name):
            owner.standby.close()
            self._start(owner, [admitted_before(each) for each in owner.standby.all()], free)
        elif batch := owner.standby.next(free):
            self._start(owner, batch, free)

    def _start(self, owner: Owner, batch: Sequence[Leased | Undecodable | Candidate], free: int) -> None:
        started: list[Started] | None = None
        waited = len(owner.worker.told.waits)
        pause = self.stage.redis.hgetall(self.stage.keys.pause)
        turns = {channel: self.stage.posting(channel) for channel in CHANNELS}
        lines = {channel: self.stage.line(channel) for channel in CHANNELS}
        while started is None:
            standing_by = [each for each in batch if isinstance(each, Candidate)]
            others = [each for each in batch if not isinstance(each, Candidate)]
            try:
                if standing_by:
                    started = owner.worker.start_standby(standing_by, free)
                else:
                    started = owner.worker.dispatch(others, free, standby=owner.standby)
            except Overtaken as error:
                batch = error.undecided
                owner.worker.follow(self.version)
        self._learn()
        self.admitted |= {each.candidate.leased.id for each in owner.worker.told.waits[waited:] if each.scope is None}
        assert len(started) <= free
        paused = self.stage.redis.hgetall(self.stage.keys.pause)
        if pause and paused.get(b"since") == pause[b"since"]:
            going = [each.candidate.leased.id.encode() for each in started]
            assert going in ([], [paused[b"prober"]]), "posted into a pause"
        for each in started:
            post = Post(each, self.stage.clock.now_us, self.true_us, self.felt_us, self._fate())
            self._may_start(post, [] if turns[post.channel] == post.id else lines[post.channel])
            self.admitted.add(post.id)
            self.posts.append(post)
            owner.flights.append(post)

    def _may_start(self, post: Post, line: Sequence[str]) -> None:
        """No limit, no pace, no cool-down forbids it, by all posts that have arrived or may have."""
        assert self.cooling.get(post.channel, 0) <= post.felt_us, "posted into a cool-down"
        counting = [each for each in self.posts if each.counts]
        for scope in post.scopes:
            for limit in scope.limits:
                used = sum(
                    post.felt_us - limit.window_us < each.felt_us
                    for each in counting
                    if scope.name in _names(each.scopes)
                )
                assert used < limit.max, f"{post} is over {limit} of {scope.name}"
        pace = post.started.candidate.terms.pace
        if pace is not None:
            assert self.stage.posting(post.channel) == post.id
            paced = [each for each in counting if each.channel == post.channel]
            recent = sum(post.felt_us - pace.window_us < each.felt_us for each in paced)
            assert recent < pace.max, f"{post} is faster than {pace}"
            own = self.stage.header(post.id)
            alike = [header for header in map(self.stage.header, line) if header["order"] == own["order"]]
            assert all(header["seq"] > own["seq"] for header in alike), "overtook those of its class in the line"

    def _fate(self) -> int | None:
        """When Slack takes a message that is posted now, if nothing else is decided until then."""
        if self.random.random() < (0.7 if self.is_out else 0.3):
            return None
        return self.true_us + self.random.choice([0, US // 5, 4 * US, POST_US - 1])

    def _has_landed(self, post: Post) -> bool:
        return post.lands_us is not None and post.lands_us <= self.true_us

    def _result(self, post: Post) -> PostResult:
        """What a worker hears of a post; what it hears may decide its fate."""
        if self._has_landed(post):
            return NO_ANSWER if self.is_out or self.random.random() < 0.3 else self._receipt(post)
        if self.is_out:
            result: PostResult = self.random.choice([NO_ANSWER, NEVER_ARRIVED[1]])
        else:
            result = self.random.choice([self._receipt(post), NO_ANSWER, *NEVER_ARRIVED])
        if result in NEVER_ARRIVED:
            post.lands_us = None
        return result

    def _receipt(self, post: Post) -> PostResult:
        """The answer of Slack, if the post arrives in time."""
        if not self._has_landed(post):
            if self.is_out or self.true_us - post.true_us >= POST_US:
                return NO_ANSWER
            post.lands_us = self.true_us
        return Receipt(post.channel, "1.1")

    def _answer(self, worker: Worker, post: Post, result: PostResult) -> None:
        if worker.answer(post.started, result):
            post.counts = result not in NEVER_ARRIVED
            if isinstance(result, RateLimitedBySlack):
                until_us = self.felt_us + result.retry_after_us
                self.cooling[post.channel] = max(self.cooling.get(post.channel, 0), until_us)

    def _show(self, search: Search) -> ScanResult:
        """What Slack's history shows now; where the server's clock is ahead, a history scan begins earlier by that."""
        if search.channel == DARK:
            return NOTHING_TO_READ
        if self.is_out:
            return ScanResult({}, ScanLater("request_timeout", "no answer"))
        ahead_us = max(0, (search.now_us or 0) - self.true_us)
        since_us = search.since_us - ahead_us
        landed = [post for post in self.posts if post.channel == search.channel and self._has_landed(post)]
        found = {
            post.id: Receipt(post.channel, "1.1")
            for post in landed
            if post.id in search.event_ids and (post.lands_us or 0) >= since_us
        }
        is_clear = ahead_us <= MARGIN_US - 5 * US
        return ScanResult(found, Absent() if is_clear else ScanLater("clock_skew", "ahead", reached=True))

    def _one_awake(self, has_work: Callable[[Owner], object] = lambda _: True) -> Owner:
        awake = [owner for owner in self.owners if not owner.is_frozen] or self.owners
        return self.random.choice([owner for owner in awake if has_work(owner)] or awake)

    def _turns(self, *, on: bool) -> bool:
        """What disturbs all work is taken back at once, and begins one time in three."""
        return not on or self.random.random() < 1 / 3

    def _hire(self, name: str) -> Worker:
        worker = self.stage.worker(name)
        worker.desk.shows = self._show
        worker.follow(self.version)
        self.workers.append(worker)
        return worker

    def _replace(self, at: int) -> None:
        self.owners[at] = self._owner(f"owner{len(self.workers)}")

    def _owner(self, name: str) -> Owner:
        clock = lambda: self.true_us / US  # noqa: E731 - of one line
        return Owner(self._hire(name), standby=Standby(5, SENDERS, clock))

    def _put_in_force(self, text: str) -> None:
        self.version = self.stage.put_in_force(text)
        for owner in self.owners:
            owner.worker.follow(self.version)

    def _step_clock(self, by_us: int) -> None:
        self.stage.clock.now_us += by_us
        self.felt_us += max(0, by_us)
        if by_us > 0:
            self.jumped_us = self.true_us

    def _pass(self, span_us: int, *, away: bool) -> None:
        while span_us > 0:
            passed_us = span_us if away else min(span_us, BEAT_US)
            self.stage.clock.now_us += passed_us
            self.true_us += passed_us
            self.felt_us += passed_us
            span_us -= passed_us
            for owner in self.owners:
                if not owner.is_frozen:
                    owner.worker.outbox.renew()


STEPS: Final[dict[Step, int]] = {
    StoreWalk.send: 20,
    StoreWalk.take: 24,
    StoreWalk.dispatch: 24,
    StoreWalk.start_standby: 12,
    StoreWalk.answer: 24,
    StoreWalk.pass_time: 12,
    StoreWalk.send_again: 1,
    StoreWalk.cancel: 3,
    StoreWalk.reload: 3,
    StoreWalk.turn_outage: 2,
    StoreWalk.step_clock: 3,
    StoreWalk.freeze: 3,
    StoreWalk.die: 2,
    StoreWalk.stop: 1,
    StoreWalk.lose_answer: 2,
    StoreWalk.call_late: 4,
    StoreWalk.replay: 1,
    StoreWalk.suspend: 1,
}
"""What may happen, and how often."""


def _unpaced(limits: str) -> str:
    """The limits with no pace, and no window of less than a minute: events may stand by."""
    return re.sub(r"pace: [^}]+", "pace: none", limits.replace(", 12/30s", ""))


def _names(scopes: Sequence[Scope]) -> set[str]:
    return {scope.name for scope in scopes}
