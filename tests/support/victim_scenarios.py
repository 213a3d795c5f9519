"""Fleets at an instant at which one event can stand in any place, and what they do from then on.

One of the events, the victim, is to be spoilt by a test; all others are to end as if it had not been.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from dispatcher.core.posts import Ambiguous, PostResult, RateLimitedBySlack, Retryable
from dispatcher.core.states import Started
from dispatcher.core.units import US
from dispatcher.store.explanations import ids_of
from dispatcher.store.parked_events import ParkedFilter
from tests.support.doubles import START_US
from tests.support.quiet_stage import FREE, QuietStage
from tests.support.servers import Database
from tests.support.stage import Worker

LIMITS: Final = f"""{FREE}
global: {{limits: [60/1m]}}
defaults: {{limits: [50/1m], channel: '#ops', max_age: 1h}}
categories:
  waits: {{limits: [2/1m], on_limit: defer, channel: '#free', max_age: 1h}}
  hosts: {{limits: [], per_label: {{host: [2/1m]}}, on_limit: defer, channel: '#free', max_age: 1h}}
  storms: {{limits: [3/3m], on_limit: digest, digest_delay: 60s, channel: '#free', max_age: 1h}}
  rests: {{limits: [2/1m], channel: '#free', max_age: 1h}}
  notes: {{limits: [2/3m], notice: true, digest_delay: 60s, channel: '#free', max_age: 1h}}
quiet: {{morning: {{times: ["10:30-11:00"], zone: UTC, categories: [rests], then: defer}}}}
"""

DOWN: Final = Retryable("connection_refused", "refused")
UNCLEAR: Final = Ambiguous("reply_timeout", "no answer")
BUSY: Final = RateLimitedBySlack(7 * US, "ratelimited")

ROUNDS: Final = 120
"""Wake-ups of a fleet within which everything ends."""

TAKES: Final = 30
"""Takes of a worker within which it finds nothing more to do at one instant."""

IN_NO_HANDS: Final = ("seen", "dead:ids", "decisions:limited", "decisions:others", ":older", "names", "enqueued")
"""Keys that know an id though its event has ended."""


@dataclass(slots=True)
class Scenario:
    """A fleet, the event that is to be spoilt, and what those who live hold in hands and go on with."""

    stage: QuietStage
    victim: str
    workers: list[Worker]
    goes_on: list[Callable[[], object]] = field(default_factory=list)
    ends: frozenset[str] = frozenset({"sent"})
    """What may become of all others."""
    others: list[str] = field(default_factory=list)

    # What the fleet does

    def live(self) -> None:
        """The fleet goes on until there is nothing more to do; then all stop, and another worker looks after the rest.

        Limits are published meanwhile, as what touches everything that waits.
        """
        for each in self.goes_on:
            each()
        self.stage.put_in_force(LIMITS)
        self._work_on(self.workers)
        for worker in self.workers:
            worker.give_back()
        self._work_on([self.stage.worker("zoe")])

    def operate(self) -> None:
        """An operator looks at everything."""
        stage = self.stage
        stage.snapshot()
        stage.explanations.find(ids_of(self.victim), payloads=True)
        list(stage.parked_events.find(ParkedFilter()))

    def cancel(self) -> None:
        """An operator cancels whatever is parked."""
        parked = self.stage.parked_events
        parked.cancel(list(parked.find(ParkedFilter())), "ed")

    def _work_on(self, workers: Sequence[Worker]) -> None:
        for _ in range(ROUNDS):
            wakes = [_work(worker) for worker in workers]
            if self._left() == 0:
                return
            self.stage.clock.now_us = max(self.stage.clock.now_us + 1_000, min(wakes))
            for worker in workers:
                worker.renew()
        raise AssertionError(f"the fleet was not done after {ROUNDS} wake-ups: {self.stage.snapshot()}")

    def _left(self) -> int:
        """How many events have not ended."""
        pipe = self.stage.redis.pipeline(transaction=False)
        pipe.hlen(self.stage.keys.events)
        pipe.zcard(self.stage.keys.parked)  # also of one whose record is missing
        for key in self.stage.redis.scan_iter(self.stage.keys.leased_prefix + "*"):
            pipe.scard(key)
        for lane in self.stage.queue.lanes:
            pipe.llen(lane)
        return sum(pipe.execute())

    # What became of everything

    def check_others(self) -> None:
        """Each of the others has ended as it should, and the books balance."""
        stage = self.stage
        found = {id_: stage.decision(id_) for id_ in self.others}
        wrong = {
            id_: each and each.outcome for id_, each in found.items() if each is None or each.outcome not in self.ends
        }
        assert wrong == {}, f"others ended otherwise: {wrong}"
        snapshot = stage.snapshot()
        assert snapshot.imbalances() == []
        assert (snapshot.events, snapshot.waiting) == (0, 0), f"something is left: {snapshot}"

    def check_victim_is_gone(self) -> None:
        """It stands in no structure any more."""
        assert self.places() == []

    def places(self) -> list[str]:
        """Every key in which the victim stands, but for those that say what became of it."""
        keys = self.stage.redis.keys(f"{self.stage.keys.layout.rpartition(':')[0]}:*")
        return sorted(
            name
            for name in (key.decode() for key in keys)
            if not name.endswith(IN_NO_HANDS) and self.victim.encode() in self._members(name)
        )

    def _members(self, key: str) -> Sequence[bytes]:
        client: Any = self.stage.redis
        match client.type(key):
            case b"hash":
                rows = client.hgetall(key)
                return [*rows, *rows.values()]
            case b"zset":
                return list(client.zrange(key, 0, -1))
            case b"set":
                return list(client.smembers(key))
            case b"list":
                return list(client.lrange(key, 0, -1))
            case _:
                return []

    def letters(self) -> list[dict[bytes, bytes]]:
        """The dead letters of the victim."""
        rows = self.stage.redis.xrange(self.stage.keys.dead)
        return [fields for _, fields in rows if fields.get(b"id") == self.victim.encode()]

    def outcome(self) -> str | None:
        """What the record says that became of the victim."""
        found = self.stage.decision(self.victim)
        return None if found is None else found.outcome

    def posts(self) -> int:
        """How often a post of the victim was started."""
        return sum(started.candidate.leased.id == self.victim for _, started in self.stage.attempts)

    def is_in_hands(self) -> bool:
        """Whether a worker that lives holds it, and so knows of it what the store does not."""
        client, keys = self.stage.redis, self.stage.keys
        return any(client.sismember(keys.leased(worker.owner), self.victim) for worker in self.workers)

    # The record of the victim

    def stored(self) -> bytes | None:
        """What is stored of the victim."""
        record: bytes | None = self.stage.redis.hget(self.stage.keys.events, self.victim)
        return record

    @property
    def record(self) -> bytes:
        """``stored``, where something is."""
        record = self.stored()
        assert record is not None, f"{self.victim} is not held"
        return record

    def header(self) -> dict[str, Any]:
        """Its header."""
        header: dict[str, Any] = json.loads(self.record.partition(b"\n")[0])
        return header

    def spoil(self, record: bytes | None) -> None:
        """Something else stands in its place, or nothing."""
        events = self.stage.keys.events
        if record is None:
            self.stage.redis.hdel(events, self.victim)
        else:
            self.stage.redis.hset(events, self.victim, record)


def _work(worker: Worker) -> int:
    """All that a worker finds to do now; when it wakes up."""
    for _ in range(TAKES):
        taken = worker.take()
        if not taken.batch:
            return taken.again_us()
        worker.finish(taken)
    raise AssertionError(f"{worker.owner} found something to do in each of {TAKES} takes")


class _Making:
    """Makes a scenario: ann and bob live, whoever else is asked for dies."""

    def __init__(self, redis: Database) -> None:
        self.stage = QuietStage(redis, LIMITS)
        self.ann, self.bob = self.stage.worker("ann"), self.stage.worker("bob")
        self.dead = self.stage.worker("dead")
        self.sent: list[str] = []

    def send(self, *ids: str, category: str = "plain", **fields: Any) -> None:  # noqa: ANN401 - an Event's
        self.stage.send(*ids, category=category, **fields)
        self.sent += ids

    def done(self, victim: str, *goes_on: Callable[[], object], ends: frozenset[str] = frozenset({"sent"})) -> Scenario:
        """The scenario; ``goes_on`` is what those who live do next with what they hold."""
        others = [id_ for id_ in self.sent if id_ != victim]
        return Scenario(self.stage, victim, [self.ann, self.bob], list(goes_on), ends, others)

    def answer(self, worker: Worker, started: Sequence[Started], result: PostResult) -> None:
        worker.settle([worker.dispatcher.conclude(each, result) for each in started])


def leased(redis: Database) -> Scenario:
    """A worker holds it, and is about to ask for room."""
    made = _Making(redis)
    made.send("a", "v", "b")
    made.send("c", category="waits")
    batch = made.ann.take().batch
    return made.done("v", lambda: made.ann.deliver(made.ann.dispatch(batch)))


def leased_to_wait(redis: Database) -> Scenario:
    """A worker holds it, and is about to put it in a category's line."""
    made = _Making(redis)
    made.send("a", "b", "v", "c", category="waits")
    batch = made.ann.take().batch
    return made.done("v", lambda: made.ann.deliver(made.ann.dispatch(batch)))


def leased_by_the_dead(redis: Database) -> Scenario:
    """A worker held it when it died."""
    made = _Making(redis)
    made.send("a", "v", "b")
    made.dead.take()
    return made.done("v")


def requeued(redis: Database) -> Scenario:
    """It was given back."""
    made = _Making(redis)
    made.send("a", "v", "b")
    made.dead.take()
    made.dead.give_back()
    return made.done("v")


def candidate(redis: Database) -> Scenario:
    """Two workers have died with it."""
    made = _Making(redis)
    made.send("a", "v", "b")
    for name in ("dead", "deader"):
        made.stage.worker(name).take()
        for _ in range(4):
            made.stage.clock.forward(10)
            made.bob.take(0, 0)
    return made.done("v")


def given_back(redis: Database) -> Scenario:
    """A worker that stops gives it back."""
    made = _Making(redis)
    made.send("a", "v", "b")
    made.dead.take()
    return made.done("v", made.dead.give_back)


def in_a_channels_line(redis: Database) -> Scenario:
    """It was admitted, and waits behind a post in flight."""
    made = _Making(redis)
    made.send("a", "v", "b")
    started = made.ann.go()
    return made.done("v", lambda: made.ann.deliver(started))


def at_its_turn(redis: Database) -> Scenario:
    """It was admitted, and a worker holds it, whose turn in the channel it is."""
    made = _Making(redis)
    made.send("a", "v", "b")
    made.ann.deliver(made.ann.go())
    made.stage.clock.forward(1)
    batch = made.ann.take().batch
    return made.done("v", lambda: made.ann.deliver(made.ann.dispatch(batch)))


def posted(redis: Database) -> Scenario:
    """Its post is in flight, and comes to a receipt."""
    made = _Making(redis)
    made.send("v", "a", "b")
    started = made.ann.go()
    return made.done("v", lambda: made.ann.deliver(started))


def failed(redis: Database) -> Scenario:
    """Its post is in flight, and does not reach Slack."""
    made = _Making(redis)
    made.send("v", "a", "b")
    return made.done("v", partial(made.answer, made.ann, made.ann.go(), DOWN))


def cooled_down(redis: Database) -> Scenario:
    """Its post is in flight, and comes too early for Slack."""
    made = _Making(redis)
    made.send("v", "a", "b")
    return made.done("v", partial(made.answer, made.ann, made.ann.go(), BUSY))


def posted_by_the_dead(redis: Database) -> Scenario:
    """Its post was in flight when its worker died."""
    made = _Making(redis)
    made.send("v", "a", "b")
    made.dead.go()
    return made.done("v")


def on_a_timer(redis: Database) -> Scenario:
    """It waits for another attempt."""
    made = _Making(redis)
    made.send("v", "a", "b")
    made.answer(made.ann, made.ann.go(), DOWN)
    return made.done("v")


def scheduled(redis: Database) -> Scenario:
    """It waits for its instant, with another one, and has not asked for room."""
    made = _Making(redis)
    made.send("v", "a", not_before=START_US / US + 30)
    made.send("b")
    made.ann.run()
    return made.done("v")


def unconfirmed(redis: Database) -> Scenario:
    """It was perhaps posted, and waits to be reconciled, with another one."""
    made = _Making(redis)
    made.send("v", "a", channel="#free")
    made.send("b")
    made.answer(made.ann, made.ann.go(), UNCLEAR)
    return made.done("v")


def scanned(redis: Database) -> Scenario:
    """A worker looks it up, with another one."""
    made = _Making(redis)
    made.send("v", "a", channel="#free")
    made.answer(made.ann, made.ann.go(), UNCLEAR)
    made.send("b")
    made.stage.clock.forward(11)
    batch = made.ann.take().batch
    return made.done("v", lambda: made.ann.deliver(made.ann.dispatch(batch)))


def scanned_by_the_dead(redis: Database) -> Scenario:
    """A worker was looking it up when it died."""
    made = _Making(redis)
    made.send("v", "a", channel="#free")
    made.answer(made.ann, made.ann.go(), UNCLEAR)
    made.stage.clock.forward(11)
    made.dead.take()
    return made.done("v")


def next_in_a_category(redis: Database) -> Scenario:
    """It is the head of its category's line."""
    made = _Making(redis)
    made.send("a", "b", "v", "c", "d", "e", category="waits")
    made.ann.run()
    return made.done("v")


def behind_in_a_category(redis: Database) -> Scenario:
    """It stands behind others in the line of a label's value."""
    made = _Making(redis)
    made.send("a", "b", "c", "v", "d", "e", category="hosts", labels={"host": "db1"})
    made.ann.run()
    return made.done("v")


def waits_for_the_end_of_quiet_hours(redis: Database) -> Scenario:
    """It waits between two others until quiet hours end."""
    made = _Making(redis)
    made.send("a", "v", "b", category="rests")
    made.ann.run()
    return made.done("v")


def head_in_hands(redis: Database) -> Scenario:
    """It was the head of its category's line, and a worker holds it."""
    made = _Making(redis)
    made.send("a", "b", "v", "c", "d", "e", category="waits")
    made.ann.run()
    made.stage.clock.forward(61)
    batch = made.ann.take().batch
    return made.done("v", lambda: made.ann.deliver(made.ann.dispatch(batch)))


def head_of_the_dead(redis: Database) -> Scenario:
    """It was the head of its category's line, and a worker held it when it died."""
    made = _Making(redis)
    made.send("a", "b", "v", "c", "d", "e", category="waits")
    made.ann.run()
    made.stage.clock.forward(61)
    made.dead.take()
    return made.done("v")


def of_a_paused_category(redis: Database) -> Scenario:
    """It was admitted, and its category was paused by hand."""
    made = _Making(redis)
    made.stage.pausing.pause("plain", "ed")
    made.send("a", "v", "b")
    made.ann.run()
    return made.done("v", partial(made.stage.pausing.resume, "plain"))


ALONE_ENDS: Final = frozenset({"sent", "digested", "dropped"})


def _before_alone(redis: Database) -> _Making:
    """The next event of its category is the only one that is suppressed."""
    made = _Making(redis)
    made.send(*(f"p{n}" for n in range(49)), category="plain", channel="#free")
    made.send(*(f"q{n}" for n in range(10)), category="other", channel="#free")
    made.send("a", category="storms")
    return made


def leased_to_be_alone(redis: Database) -> Scenario:
    """A worker holds it, and is about to suppress it as the only one."""
    made = _before_alone(redis)
    made.ann.run()
    made.send("v", category="storms")
    batch = made.ann.take().batch
    return made.done("v", lambda: made.ann.deliver(made.ann.dispatch(batch)), ends=ALONE_ENDS)


def alone_suppressed(redis: Database) -> Scenario:
    """It is the only one that was suppressed, and waits for a second one."""
    made = _before_alone(redis)
    made.send("v", category="storms")
    made.ann.run()
    return made.done("v", ends=ALONE_ENDS)


def joined_by_a_second(redis: Database) -> Scenario:
    """It is the only one that was suppressed, and a second one comes."""
    scenario = alone_suppressed(redis)
    scenario.stage.send("b", category="storms")
    scenario.others.append("b")
    return scenario


DIGEST_ENDS: Final = frozenset({"sent", "digested", "dropped"})


def digest_collects(redis: Database) -> Scenario:
    """A digest that collects."""
    made = _Making(redis)
    made.send(*(f"s{n}" for n in range(6)), category="storms")
    made.ann.run()
    return made.done("digest:storms", ends=DIGEST_ENDS)


def digest_grows(redis: Database) -> Scenario:
    """A digest whose message stands, and is to be edited."""
    made = _Making(redis)
    made.send(*(f"s{n}" for n in range(6)), category="storms")
    made.ann.run()
    made.stage.clock.forward(61)
    made.ann.run()
    made.send("t0", "t1", category="storms")
    made.ann.run()
    return made.done("digest:storms", ends=DIGEST_ENDS)


def digest_in_hands(redis: Database) -> Scenario:
    """A digest that a worker posts."""
    made = _Making(redis)
    made.send(*(f"s{n}" for n in range(6)), category="storms")
    made.ann.run()
    made.stage.clock.forward(61)
    started = made.ann.go()
    return made.done("digest:storms", lambda: made.ann.deliver(started), ends=DIGEST_ENDS)


def digest_of_the_dead(redis: Database) -> Scenario:
    """A digest that a worker was posting when it died."""
    made = _Making(redis)
    made.send(*(f"s{n}" for n in range(6)), category="storms")
    made.ann.run()
    made.stage.clock.forward(61)
    made.dead.go()
    return made.done("digest:storms", ends=DIGEST_ENDS)


def notice_waits(redis: Database) -> Scenario:
    """A notice that waits for the end of suppression."""
    made = _Making(redis)
    made.send(*(f"n{n}" for n in range(5)), category="notes")
    made.ann.run()
    return made.done("notice:notes", ends=DIGEST_ENDS)


Make = Callable[[Database], Scenario]

EVENTS: Final[tuple[Make, ...]] = (
    leased, leased_to_wait, leased_by_the_dead, requeued, candidate, given_back, in_a_channels_line, at_its_turn,
    posted, failed, cooled_down, posted_by_the_dead, on_a_timer, scheduled, unconfirmed, scanned, scanned_by_the_dead,
    next_in_a_category, behind_in_a_category, waits_for_the_end_of_quiet_hours,
    head_in_hands, head_of_the_dead, of_a_paused_category, leased_to_be_alone,
    alone_suppressed, joined_by_a_second,
)  # fmt: skip
"""Where an event can be."""

OWN: Final[tuple[Make, ...]] = (digest_collects, digest_grows, digest_in_hands, digest_of_the_dead, notice_waits)
"""Where an event of the dispatcher's own can be."""
