"""Silences against a model that knows neither lines nor scripts: random matchers, clocks, deaths, ends of all kinds."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from re import escape, fullmatch
from typing import Any, Final

import pytest

from dispatcher.core.limits import US, Lane
from dispatcher.core.matchers import parse_matchers
from dispatcher.core.policy import CategoryRule, OnLimit, OnResolved
from dispatcher.errors import GateUnavailable
from dispatcher.store.explanations import Explanations
from dispatcher.store.leases import Outbox, Taken
from dispatcher.store.silences import Silencing, Wanted
from tests.support.doubles import START_US
from tests.support.servers import Database
from tests.support.stage import UNPACED, Stage, Worker, policy_of

STEPS: Final = 120
CATEGORIES: Final = {"drops": OnLimit.DROP, "waits": OnLimit.DEFER, "dies": OnLimit.DEAD_LETTER}
HOSTS: Final = ("", "db1", "db2", "web")
KEYS: Final = (None, "x", "y")
MATCHERS: Final = (
    "host=db*", "host=db1", "host!=db1", "host=db1|web", "host=", "priority=high", "priority!=low", "category=waits",
    "category=d*", "category!=dies", "category=drops|waits",
)  # fmt: skip
CHANNELS: Final = (UNPACED, "#a", "#b")
SETTLE_US: Final = US


@dataclass(frozen=True, slots=True)
class Sent:
    """An event of the walk."""

    id: str
    category: str
    host: str
    priority: Lane
    key: str | None
    channel: str
    nth: int

    @property
    def subject(self) -> tuple[str, str | None]:
        return self.category, self.key

    def has(self, matcher: str) -> bool:
        """Whether it matches, by the definition."""
        name, _, value = matcher.replace("!=", "=!").partition("=")
        of = {"host": self.host, "priority": self.priority.value, "category": self.category}
        patterns = [".*".join(map(escape, each.split("*"))) for each in value.removeprefix("!").split("|")]
        return any(fullmatch(pattern, of[name]) for pattern in patterns) is not value.startswith("!")


@dataclass(slots=True)
class Silence:
    """A silence, and what is to be counted of it."""

    id: str
    matchers: tuple[str, ...]
    from_us: int
    until_us: int
    ends_us: int
    idle_us: int | None
    until_resolved: bool
    reports: bool
    count: int = 0
    firing: set[tuple[str, str | None]] = field(default_factory=set)
    has_keys: bool = False
    ended_us: int | None = None

    def matches(self, event: Sent, now_us: int) -> bool:
        return self.from_us <= now_us < self.until_us and all(map(event.has, self.matchers))


class _Dying:
    """The outbox of a worker that dies before it makes an end durable, or starts a post."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the outbox has
        if name in {"settle", "start"}:
            raise GateUnavailable("killed")
        return getattr(self._outbox, name)


class Walk:
    """A stage and the model beside it."""

    def __init__(self, redis: Database, seed: int) -> None:
        self.random = Random(seed)
        rules = {
            name: CategoryRule((), UNPACED, on_limit, 86_400 * 365 * US, resolved=OnResolved.IGNORE)
            for name, on_limit in CATEGORIES.items()
        }
        policy = policy_of("", "")
        self.stage = Stage(redis, replace(policy, categories=rules, default_pace=None))
        self.stage.prolongs = True
        self.silencing = Silencing(redis, self.stage.keys, clock=self.stage.clock)
        self.workers = [self.worker(name) for name in ("ann", "bob")]
        self.silences: dict[str, Silence] = {}
        self.ended: dict[str, Silence] = {}
        self.waiting: dict[str, tuple[Sent, str]] = {}
        """What waits, and for the end of which silence."""
        self.fates: dict[str, str] = {}
        self.reported: Counter[str] = Counter()
        self.sent = 0

    def worker(self, name: str) -> Worker:
        worker = self.stage.worker(name, lease_us=86_400 * 365 * US)
        worker.desk.can_update = False
        return worker

    @property
    def now_us(self) -> int:
        return self.stage.clock.now_us

    # The model

    def in_force(self) -> list[Silence]:
        """As a take hands them out: the one that ends last comes first."""
        return sorted(self.silences.values(), key=lambda each: (-each.until_us, each.id))

    def decide(self, event: Sent, known: list[Silence], now_us: int) -> None:
        """What becomes of an event that asks, of which a worker took what it knows of silences."""
        self.waiting.pop(event.id, None)
        found = [each for each in known if each.matches(event, now_us)]
        if not found:
            self.fates[event.id] = "sent"
            return
        for each in found:
            if each.id in self.silences and each.idle_us is not None:
                each.ends_us = max(each.ends_us, min(each.until_us, self.now_us + each.idle_us))
            if event.key is not None:
                each.has_keys = True
                each.firing.add(event.subject)
        found[0].count += 1
        if CATEGORIES[event.category] is OnLimit.DEFER:
            self.waiting[event.id] = (event, found[0].id)
        else:
            self.fates[event.id] = "dead" if CATEGORIES[event.category] is OnLimit.DEAD_LETTER else "dropped"

    def end(self, silence: Silence) -> None:
        del self.silences[silence.id]
        silence.ended_us = self.now_us
        self.ended[silence.id] = silence

    def settle(self) -> None:
        """All there is to do at this instant."""
        for silence in [each for each in self.silences.values() if each.ends_us <= self.now_us]:
            self.end(silence)
        for event, awaited in sorted(self.waiting.values(), key=lambda pair: pair[0].nth):
            if awaited not in self.silences:
                self.decide(event, self.in_force(), self.now_us)
        for silence in [*self.ended.values()]:
            if silence.ended_us is not None and silence.ended_us + SETTLE_US <= self.now_us:
                del self.ended[silence.id]
                if silence.count and silence.reports:
                    firing = f", {len(silence.firing)} still firing" if silence.has_keys else ""
                    words = " ".join(sorted(set(silence.matchers)))
                    self.reported[f"Silence by anna ended: {silence.count} suppressed{firing} ({words})"] += 1

    def resolve(self, subject: tuple[str, str | None]) -> None:
        """What a recovery takes back."""
        for id_, (event, _) in [*self.waiting.items()]:
            if event.subject == subject:
                del self.waiting[id_]
                self.fates[id_] = "dropped"
        for silence in [*self.silences.values()]:
            if subject in silence.firing:
                silence.firing.discard(subject)
                if silence.until_resolved and not silence.firing:
                    self.end(silence)

    # The stage

    def step(self) -> None:
        act = self.random.choices(
            (self.send, self.add, self.expire, self.pass_time, self.race, self.recover, self.die),
            (8, 3, 1, 4, 2, 2, 1),
        )[0]
        act()
        self.run()
        self.check()

    def run(self) -> None:
        """Until nothing is left to do."""
        worker = self.random.choice(self.workers)
        while (taken := worker.take()).batch:
            self.finish(worker, taken)
        self.settle()

    def finish(self, worker: Worker, taken: Taken) -> None:
        worker.deliver(worker.dispatch(taken.batch, silences=taken.silences))

    def event(self) -> Sent:
        self.sent += 1
        choose = self.random.choice
        return Sent(
            f"e{self.sent}",
            choose([*CATEGORIES]),
            choose(HOSTS),
            choose([*Lane]),
            choose(KEYS),
            choose(CHANNELS),
            self.sent,
        )

    def enqueue(self, event: Sent) -> None:
        labels = {"host": event.host} if event.host else {}
        more = {} if event.key is None else {"dedup_key": event.key}
        self.stage.send(
            event.id, category=event.category, labels=labels, priority=event.priority, channel=event.channel, **more
        )

    def send(self) -> None:
        event = self.event()
        self.enqueue(event)
        self.settle()
        self.decide(event, self.in_force(), self.now_us)

    def recover(self) -> None:
        category, key = self.random.choice([*CATEGORIES]), self.random.choice(("x", "y"))
        self.sent += 1
        self.settle()
        self.stage.send(f"r{self.sent}", category=category, dedup_key=key, status="resolved", channel=UNPACED)
        self.resolve((category, key))
        self.fates[f"r{self.sent}"] = "dropped"

    def add(self) -> None:
        choose = self.random.choice
        matchers = tuple(self.random.sample(MATCHERS, choose((1, 1, 2))))
        parsed = parse_matchers(matchers)
        if parsed.matches_everything:
            return
        start_us, for_us = choose((0, 0, 30)) * US, choose((20, 60, 300)) * US
        idle_us, until_resolved, reports = (
            choose((None, None, 40 * US)),
            choose((True, False)),
            choose((True, True, False)),
        )
        wanted = Wanted(
            parsed, for_us, "anna", "x", self.now_us + start_us, idle_us,
            until_resolved=until_resolved, reports=reports,
        )  # fmt: skip
        self.settle()
        begun = self.silencing.begin(wanted)
        assert (begun.from_us, begun.until_us) == (self.now_us + start_us, self.now_us + start_us + for_us)
        ends_us = begun.until_us if idle_us is None else min(begun.until_us, begun.from_us + idle_us)
        self.silences[begun.id] = Silence(
            begun.id, parsed.texts, begun.from_us, begun.until_us, ends_us, idle_us, until_resolved, reports
        )

    def expire(self) -> None:
        self.settle()
        if self.silences:
            id_ = self.random.choice([*self.silences])
            assert self.silencing.expire(id_)
            self.end(self.silences[id_])

    def pass_time(self) -> None:
        self.stage.clock.forward(self.random.choice((0.5, 1, 5, 20, 60)))

    def race(self) -> None:
        """A worker takes an event, then all changes, then it decides by what it was told."""
        event = self.event()
        self.enqueue(event)
        worker = self.random.choice(self.workers)
        taken = worker.take()
        self.settle()
        known = self.in_force()
        self.random.choice((self.expire, self.add))()
        self.finish(worker, taken)
        self.decide(event, known, taken.now_us)
        worker.decided()

    def die(self) -> None:
        """A worker dies that holds an event: before it decides, or before what it decided is durable."""
        event = self.event()
        self.enqueue(event)
        worker = self.random.choice(self.workers)
        taken = worker.take()
        self.settle()
        if self.random.random() < 0.5:
            dispatcher = replace(worker.dispatcher, outbox=_Dying(worker.outbox))
            with suppress(GateUnavailable):
                dispatcher.dispatch(taken.batch, taken.now_us, 1, taken.silences)
        worker.give_back()
        self.decide(event, self.in_force(), self.now_us)

    def check(self) -> None:
        kept = {each.silence.id: each for each in self.silencing.all()}
        assert {id_: (each.suppressed, each.ends_us) for id_, each in kept.items()} == {
            id_: (each.count, each.ends_us) for id_, each in self.silences.items()
        }
        assert {id_: each.firing for id_, each in kept.items()} == {
            id_: len(each.firing) if each.has_keys else None for id_, each in self.silences.items()
        }
        texts = Counter(
            message.text
            for worker in self.workers
            for message in worker.desk.messages
            if message.event_id.startswith("silence:")
        )
        assert texts == self.reported
        totals = self.stage.snapshot().totals
        fates = Counter(self.fates.values())
        assert {name: totals.get(name, 0) for name in ("sent", "dropped", "dead")} == {
            name: fates[name] for name in ("sent", "dropped", "dead")
        }
        assert totals.get("notices", 0) == sum(self.reported.values())

    def check_each(self) -> None:
        """What is said of each event is what the model knows."""
        explained = Explanations(self.stage.redis, self.stage.keys, self.stage.queue, clock=self.stage.clock)
        for id_, fate in self.fates.items():
            assert (id_, explained.explain(id_).outcome) == (id_, fate)
        for id_ in self.waiting:
            told = explained.explain(id_)
            assert (told.outcome, told.reason) == ("parked", "silenced")


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 60))])
def test_silences_do_what_the_model_says(redis: Database, seed: int) -> None:
    walk = Walk(redis, seed)
    assert walk.now_us == START_US
    for _ in range(STEPS):
        walk.step()
    walk.check_each()
    assert len(walk.fates) > STEPS / 3
