"""Silences and quiet hours against a model that knows neither lines nor scripts.

Random matchers, ends of all kinds, limits that change, clocks that are set, workers that die between two steps.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from random import Random
from re import escape, fullmatch, search
from typing import Final
from zoneinfo import ZoneInfo

import pytest

from dispatcher.core.matchers import parse_matchers
from dispatcher.core.policy import OnLimit
from dispatcher.core.units import US, Lane
from dispatcher.store.silences import Wanted
from tests.support.quiet_stage import QuietStage
from tests.support.servers import Database
from tests.support.stage import LEASE_US, UNPACED, Stage
from tests.support.troubled_worker import Killed, Slack, TroubledWorker, before_the_clocks_are_set

CATEGORIES: Final = ("drops", "waits", "dies")
ZONES: Final = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
MOST_STEPS: Final = 6
"""Steps of a worker that handles one event."""
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

    @property
    def rank(self) -> tuple[int, int]:
        return [Lane.HIGH, Lane.NORMAL, Lane.LOW].index(self.priority), self.nth

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
    deferred: int = 0
    firing: set[tuple[str, str | None]] = field(default_factory=set)
    has_keys: bool = False
    ended_us: int | None = None

    def matches(self, event: Sent, now_us: int) -> bool:
        return self.from_us <= now_us < self.until_us and all(map(event.has, self.matchers))


@dataclass(frozen=True)
class Rules:
    """A limits file: what a category does over a limit, and in its quiet hours."""

    on_limit: dict[str, OnLimit]
    quiet: dict[str, str | None]
    zone: str
    begins: int
    """The hour at whose half quiet hours begin; they end two hours later."""

    @classmethod
    def drawn(cls, draw: Random) -> Rules:
        return cls(
            {name: draw.choice((OnLimit.DROP, OnLimit.DEFER, OnLimit.DEAD_LETTER)) for name in CATEGORIES},
            {name: draw.choice((None, "drop", "defer", "digest")) for name in CATEGORIES},
            draw.choice(ZONES),
            draw.choice((1, 1, draw.randrange(24))),
        )

    def text(self) -> str:
        times = f'times: ["{self.begins:02}:30-{(self.begins + 2) % 24:02}:30"], zone: {self.zone}'
        categories = "".join(
            f"  {name}: {{limits: [], on_limit: {each}, resolved: ignore}}\n" for name, each in self.on_limit.items()
        )
        quiet = "".join(
            f"  {name}: {{{times}, categories: [{name}], then: {then}}}\n" for name, then in self.quiet.items() if then
        )
        return (
            "global: {limits: []}\nchannels: {default: {pace: none}}\n"
            f"defaults: {{limits: [], channel: '#free', max_age: 366d}}\ncategories:\n{categories}"
            + (f"quiet:\n{quiet}" if quiet else "")
        )

    def hush(self, category: str, now_us: int) -> str | None:
        """What becomes of an event in quiet hours, by the clock on the wall; None where none hold."""
        wall = datetime.fromtimestamp(now_us // US, ZoneInfo(self.zone))
        passed = (wall.hour * 60 + wall.minute - self.begins * 60 - 30) % (24 * 60)
        return self.quiet[category] if passed < 120 else None


class Walk:
    """A stage and the model beside it."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.random = Random(seed)
        self.stage.prolongs = True
        self.silencing = stage.silencing
        self.slack = Slack(can_update=False)
        self.hired = count()
        self.rules_of: dict[str, Rules] = {}
        """By the name of a version."""
        self.publish()
        self.workers = [self.hire(), self.hire()]
        self.silences: dict[str, Silence] = {}
        self.ended: dict[str, Silence] = {}
        self.waiting: dict[str, tuple[Sent, str]] = {}
        """What waits, and for the end of which silence, or of ``quiet`` hours."""
        self.fates: dict[str, str] = {}
        self.totals: Counter[str] = Counter()
        self.digested = 0
        self.reported: Counter[str] = Counter()
        self.told = 0
        self.sent = 0

    def hire(self) -> TroubledWorker:
        return TroubledWorker(self.stage, f"w{next(self.hired)}", self.slack, self.version)

    def publish(self) -> None:
        self.rules = Rules.drawn(self.random)
        self.version = self.stage.put_in_force(self.rules.text())
        self.rules_of[self.version.name] = self.rules

    @property
    def now_us(self) -> int:
        return self.stage.clock.now_us

    # The model

    def in_force(self) -> list[Silence]:
        """As a take hands them out: the one that ends last comes first."""
        return sorted(self.silences.values(), key=lambda each: (-each.until_us, each.id))

    def decide(self, event: Sent, known: list[Silence], now_us: int, rules: Rules | None = None) -> None:
        """What becomes of an event that asks, of which a worker took what it knows of silences."""
        _, awaited = self.waiting.pop(event.id, (event, None))
        rules = rules or self.rules
        found = [each for each in known if each.matches(event, now_us)]
        if not found:
            hush = rules.hush(event.category, now_us)
            match "defer" if hush and awaited == "quiet" else hush:  # no hours drop what others have held
                case "defer":
                    self.waiting[event.id] = (event, "quiet")
                case "digest":
                    self.fate(event.id, "digested")
                case "drop":
                    self.fate(event.id, "dropped")
                case _:
                    self.fate(event.id, "sent")
            return
        for each in found if awaited != found[0].id else ():
            if each.id in self.silences and each.idle_us is not None:
                each.ends_us = max(each.ends_us, min(each.until_us, self.now_us + each.idle_us))
            if event.key is not None:
                each.has_keys = True
                each.firing.add(event.subject)
        found[0].count += awaited != found[0].id
        if rules.on_limit[event.category] is OnLimit.DEFER:
            found[0].deferred += awaited != found[0].id
            self.waiting[event.id] = (event, found[0].id)
        else:
            self.fate(event.id, "dead" if rules.on_limit[event.category] is OnLimit.DEAD_LETTER else "dropped")

    def ends_at_once(self, event: Sent, known: list[Silence], now_us: int, rules: Rules) -> bool:
        """Whether a worker ends the event by the limits that it knows, and asks the server nothing."""
        if any(each.matches(event, now_us) for each in known):
            return rules.on_limit[event.category] is not OnLimit.DEFER
        return rules.hush(event.category, now_us) in {"drop", "digest"}

    def fate(self, id_: str, fate: str) -> None:
        self.fates[id_] = fate
        self.totals[fate] += 1

    def end(self, silence: Silence) -> None:
        del self.silences[silence.id]
        silence.ended_us = self.now_us
        self.ended[silence.id] = silence

    def settle(self, *, asks_all: bool = False) -> None:
        """All there is to do at this instant; ``asks_all``: the first ask that wait for each silence."""
        for silence in [each for each in self.silences.values() if each.ends_us <= self.now_us]:
            self.end(silence)
        asked: set[str] = set()
        """Lines of which the first has asked, and the others wait on."""
        for event, awaited in sorted(self.waiting.values(), key=lambda pair: pair[0].rank):
            line = f"quiet:{event.category}" if awaited == "quiet" else awaited
            if awaited == "quiet":
                holds = self.rules.hush(event.category, self.now_us) is not None
            else:
                holds = awaited in self.silences
            if not holds or (asks_all and line not in asked):
                self.decide(event, self.in_force(), self.now_us)
                if awaited != "quiet" or self.waiting.get(event.id, (event, ""))[1] == "quiet":
                    asked.add(line)
        for silence in [*self.ended.values()]:
            if silence.ended_us is not None and silence.ended_us + SETTLE_US <= self.now_us:
                del self.ended[silence.id]
                if silence.count and silence.reports:
                    firing = f", {len(silence.firing)} still firing" if silence.has_keys else ""
                    deferred = f", {silence.deferred} of them deferred" if silence.deferred else ""
                    words = " ".join(sorted(set(silence.matchers)))
                    self.reported[f"Silence by anna ended: {silence.count} suppressed{deferred}{firing} ({words})"] += 1

    def resolve(self, subject: tuple[str, str | None]) -> None:
        """What a recovery takes back."""
        for id_, (event, _) in [*self.waiting.items()]:
            if event.subject == subject:
                del self.waiting[id_]
                self.fate(id_, "dropped")
        for silence in [*self.silences.values()]:
            if subject in silence.firing:
                silence.firing.discard(subject)
                if silence.until_resolved and not silence.firing:
                    self.end(silence)

    # The stage

    def step(self) -> None:
        acts = {
            self.send: 80, self.pass_time: 40, self.add: 30, self.race: 20, self.recover: 20, self.expire: 10,
            self.die: 10, self.reload: 5, self.jump: 1,
        }  # fmt: skip
        (act,) = self.random.choices(list(acts), list(acts.values()))
        act()
        self.run()

    def run(self) -> None:
        """Until nothing is left to do."""
        worker = self.random.choice(self.workers)
        worker.run()
        self.settle()

    def event(self) -> Sent:
        self.sent += 1
        choose = self.random.choice
        return Sent(
            f"e{self.sent}",
            choose(CATEGORIES),
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
        category, key = self.random.choice(CATEGORIES), self.random.choice(("x", "y"))
        self.sent += 1
        self.settle()
        self.stage.send(f"r{self.sent}", category=category, dedup_key=key, status="resolved", channel=UNPACED)
        self.resolve((category, key))
        self.fate(f"r{self.sent}", "dropped")

    def add(self) -> None:
        choose = self.random.choice
        matchers = tuple(self.random.sample(MATCHERS, choose((1, 1, 2))))
        parsed = parse_matchers(matchers)
        if parsed.matches_everything:
            return
        start_us, for_us = choose((0, 0, 30)) * US, choose((20, 60, 300, 7_200)) * US
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
        self.stage.clock.forward(self.random.choice((0.5, 1, 5, 20, 60, 600, 1_800)))

    def jump(self) -> None:
        self.stage.clock.now_us = before_the_clocks_are_set(self.rules.zone, self.now_us)

    def reload(self) -> None:
        self.settle()
        self.publish()
        for worker in self.workers:
            worker.follow(self.version)
        self.run_all()
        self.settle(asks_all=True)

    def run_all(self) -> None:
        for worker in self.workers:
            worker.run()

    def race(self) -> None:
        """A worker takes an event, then all changes, then it decides by what it was told."""
        event = self.event()
        self.enqueue(event)
        worker = self.random.choice(self.workers)
        taken = worker.take()
        self.settle()
        known, before = self.in_force(), self.rules
        act = self.random.choice((self.expire, self.add, self.publish))
        act()
        worker.finish(taken)
        is_final = self.ends_at_once(event, known, taken.now_us, before)
        self.decide(event, known, taken.now_us, before if is_final else self.rules)
        worker.decided()
        if act == self.publish:
            for each in self.workers:
                each.follow(self.version)
            self.run_all()
            self.settle(asks_all=True)

    def die(self) -> None:
        """A worker dies between two steps, and another one takes over what it leaves."""
        worker = self.hire()
        worker.run()
        self.settle(asks_all=True)  # as the first take of every worker has it
        event = self.event()
        self.enqueue(event)
        worker.die_at(self.random.randint(1, MOST_STEPS))
        decided: list[str] = []

        def note(step: str, ids: list[str]) -> None:
            if event.id in ids and (step in {"settle", "start"} or (step == "line_up" and self.is_held(event))):
                decided.append(step)

        worker.is_done = note
        self.settle()
        with suppress(Killed):
            worker.run()
        if decided:
            self.decide(event, self.in_force(), self.now_us)
        for _ in range(2 * LEASE_US // US):
            self.stage.clock.forward(1)
            for each in self.workers:
                each.is_done = note
            self.run()
            if event.id not in self.fates | self.waiting and decided:
                self.decide(event, self.in_force(), self.now_us)

    def is_held(self, event: Sent) -> bool:
        """Whether a silence or quiet hours keep the event waiting now."""
        silences = [each for each in self.silences.values() if self.now_us < each.ends_us]
        is_quiet = self.rules.hush(event.category, self.now_us) == "defer"
        return is_quiet or any(each.matches(event, self.now_us) for each in silences)

    def check(self) -> None:
        kept = {each.silence.id: each for each in self.silencing.all()}
        assert {id_: (each.suppressed, each.silence.ends_us) for id_, each in kept.items()} == {
            id_: (each.count, each.ends_us) for id_, each in self.silences.items()
        }
        assert {id_: each.firing for id_, each in kept.items()} == {
            id_: len(each.firing) if each.has_keys else None for id_, each in self.silences.items()
        }
        texts = [message.text for message in self.slack.messages[self.told :]]
        self.told += len(texts)
        for text in texts:
            if text.startswith("Silence by"):
                self.reported[text] -= 1
        assert not +self.reported
        assert not -self.reported
        totals = self.stage.snapshot().totals
        assert {name: totals.get(name, 0) for name in ("sent", "dropped", "dead", "digested")} == {
            name: self.totals[name] for name in ("sent", "dropped", "dead", "digested")
        }

    def check_each(self) -> None:
        """What is said of each event is what the model knows."""
        for id_, fate in self.fates.items():
            assert (id_, self.stage.explanations.explain(id_).outcome) == (id_, fate)
        for id_, (_, awaited) in self.waiting.items():
            told = self.stage.explanations.explain(id_)
            assert (told.outcome, told.reason) == ("parked", "quiet" if awaited == "quiet" else "silenced")

    def check_digests(self) -> None:
        """What quiet hours have digested was told."""
        for _ in range(60):
            self.stage.clock.forward(3_600)
            self.run()
        told = (search(r"^(\d+) \*\w+\* in quiet hours", message.text) for message in self.slack.messages)
        assert sum(int(each[1]) for each in told if each) == self.totals["digested"]


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(11, 75), *(pytest.param(n, 10_000, marks=pytest.mark.slow) for n in range(1, 13))],
)
def test_silences_and_quiet_hours_do_what_the_model_says(redis: Database, seed: int, steps: int) -> None:
    stage = QuietStage(redis, "global: {limits: []}")
    walk = Walk(stage, seed)
    for number in range(steps):
        walk.step()
        if number % 10 == 0:
            walk.check()
        if number % (steps // 10) == 0:
            Stage.check(stage)
    walk.check()
    assert walk.totals["digested"], "quiet hours were met"
    walk.check_each()
    walk.check_digests()
