"""Random traffic through quiet hours, with workers that die and limits that change: what is held, told and posted."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Final
from zoneinfo import ZoneInfo

import pytest

from dispatcher.core.policy import Policy
from dispatcher.core.posts import Receipt
from dispatcher.core.states import Leased, Started, Undecodable
from dispatcher.core.units import US, Lane
from tests.support.servers import Database
from tests.support.stage import LEASE_US, Stage, Worker, policy_from

ZONES: Final = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata")
SET_ON: Final = {
    "Europe/Berlin": ("2026-03-28", "2026-10-24"),
    "America/New_York": ("2026-03-07", "2026-10-31"),
    "Australia/Lord_Howe": ("2026-04-04", "2026-10-03"),
    "Asia/Kolkata": ("2026-04-04", "2026-10-03"),
}
"""Days before the clocks are set, where they are."""

CATEGORIES: Final = ("drops", "waits", "told", "mixed", "loud")
LIMITS: Final = """\
global: {{limits: [{limit}/30m]}}
channels: {{default: {{pace: none}}}}
defaults: {{limits: [4/30m], channel: "#free", max_age: 3d}}
categories:
  waits: {{on_limit: {on_limit}}}
  told: {{on_limit: digest, digest_delay: 60s}}
quiet:
  dropping: {{times: ["01:30-04:30"], zone: {zone}, categories: [drops], unless: {{priority: high}}, then: drop}}
  holding: {{times: ["00:15-03:00", "03:20-03:40"], zone: {zone}, categories: [waits, mixed], then: defer}}
  telling: {{times: ["22:00-02:30"], zone: {zone}, categories: [told, mixed], unless: {{host: db*}}, then: digest}}
"""


@dataclass(slots=True)
class Walk:
    """A namespace, its workers, and what was sent."""

    stage: Stage
    chance: random.Random
    zone: str
    workers: list[Worker] = field(default_factory=list)
    sent: dict[str, tuple[str, Lane, dict[str, str]]] = field(default_factory=dict)
    quieted: Counter[str] = field(default_factory=Counter)
    """How many events were sent while these quiet hours held for them."""
    dead: int = 0

    def policy(self) -> Policy:
        text = LIMITS.format(
            zone=self.zone, limit=self.chance.choice((6, 12)), on_limit=self.chance.choice(("drop", "defer"))
        )
        return policy_from(text)

    def worker(self) -> Worker:
        worker = self.stage.worker(f"w{len(self.workers) + self.dead}")
        worker.desk.reply = lambda message: Receipt(message.channel, "1.1")
        self.workers.append(worker)
        return worker

    def send(self) -> None:
        for _ in range(self.chance.randint(1, 5)):
            id_, category = f"e{len(self.sent)}", self.chance.choice(CATEGORIES)
            lane, labels = self.chance.choice(tuple(Lane)), self.chance.choice(({}, {"host": "db1"}, {"host": "web"}))
            self.sent[id_] = (category, lane, labels)
            self.stage.send(id_, category=category, priority=lane, labels=labels)
            self.quieted[self.held_by(id_) or ""] += 1

    def is_exempt(self, id_: str, then: str) -> bool:
        _, lane, labels = self.sent[id_]
        return lane is Lane.HIGH if then == "dropping" else then == "telling" and labels.get("host", "") == "db1"

    def held_by(self, id_: str) -> str | None:
        """Which quiet hours hold for an event now, by the clock on the wall; of several those that end last."""
        category = self.sent[id_][0]
        wall = datetime.fromtimestamp(self.stage.clock.now_us // US, ZoneInfo(self.zone))
        minute = wall.hour * 60 + wall.minute
        holds = {
            "dropping": category == "drops" and 90 <= minute < 270,
            "holding": category in {"waits", "mixed"} and (15 <= minute < 180 or 200 <= minute < 220),
            "telling": category in {"told", "mixed"} and (minute >= 1_320 or minute < 150),
        }
        found = [name for name, holds_now in holds.items() if holds_now and not self.is_exempt(id_, name)]
        return None if not found else "holding" if "holding" in found else found[0]

    def step(self) -> None:
        stage, worker = self.stage, self.chance.choice(self.workers)
        match self.chance.randrange(10):
            case 0 | 1 | 2:
                self.send()
            case 3:
                stage.clock.now_us += self.chance.randrange(3 * 60 * US)
            case 4:
                stage.clock.now_us += self.chance.randrange(40 * 60 * US)
            case 5:
                stage.policy = self.policy()
            case 6:
                self.die(worker)
            case _:
                self.work(worker)

    def work(self, worker: Worker) -> None:
        taken = worker.take(new=self.chance.randint(1, 20))
        self.deliver(worker, self.dispatch(worker, taken.batch))

    def work_all(self, worker: Worker) -> None:
        for _ in range(30):
            taken = worker.take()
            if not taken.batch:
                return
            self.deliver(worker, self.dispatch(worker, taken.batch))

    def dispatch(self, worker: Worker, batch: list[Leased | Undecodable]) -> list[Started]:
        """Decide; what is posted now was exempt, or was admitted before."""
        admitted = {each.id for each in batch if isinstance(each, Leased) and each.was_admitted}
        started = worker.dispatch(batch)
        for each in started:
            id_ = each.candidate.leased.id
            if id_ in self.sent and id_ not in admitted:
                assert self.held_by(id_) is None, f"{id_} is posted in quiet hours"
        return started

    def deliver(self, worker: Worker, started: list[Started]) -> None:
        worker.deliver(started)

    def die(self, worker: Worker) -> None:
        """It takes something, decides perhaps, and is never seen again."""
        batch = worker.take(new=5).batch
        if self.chance.random() < 0.5:
            self.dispatch(worker, batch)
        self.workers.remove(worker)
        self.dead += 1
        self.worker()
        for _ in range(4):
            self.stage.clock.now_us += LEASE_US // 3
            self.work(self.workers[0])

    def end(self) -> None:
        """Days pass, until nothing is left to be done."""
        self.stage.policy = self.policy()
        for _ in range(24 * 8 * 4):
            for _ in range(2):  # after a long time without a call nobody is taken over for a moment
                self.stage.clock.now_us += 3 * US
                for worker in self.workers:
                    self.work_all(worker)
            snapshot = self.stage.snapshot()
            if snapshot.events + snapshot.waiting == 0:
                return
            self.stage.clock.now_us += 15 * 60 * US
        raise AssertionError(f"not done: {self.stage.snapshot()}")


def counted(worker: Worker) -> int:
    """How many events its messages at the end of quiet hours have told of."""
    found = (re.match(r"(\d+) \*\w+\* in quiet hours", message.text) for message in worker.desk.messages)
    return sum(int(each[1]) for each in found if each)


BEGINS_FROM: Final = timedelta(hours=23)
BEGINS_OVER: Final = timedelta(minutes=90)
"""When a walk begins, by the clock on the wall."""

STEPS: Final = 120
ENOUGH: Final = 3
"""So many steps a walk has at least, and so many events it sends in quiet hours of each kind that hold them."""

QUIET: Final = ("dropping", "holding", "telling")


@pytest.mark.parametrize("seed", [7, *(pytest.param(n, marks=pytest.mark.slow) for n in range(60) if n != 7)])
def test_in_quiet_hours_nothing_is_lost_and_nothing_is_posted_that_they_hold(redis: Database, seed: int) -> None:
    chance = random.Random(seed)
    zone = chance.choice(ZONES)
    stage = Stage(redis)
    stage.prolongs = True
    day = datetime.fromisoformat(chance.choice(SET_ON[zone])).replace(tzinfo=ZoneInfo(zone))
    begins = day + BEGINS_FROM + chance.random() * BEGINS_OVER
    stage.clock.now_us = round(begins.timestamp()) * US
    walk = Walk(stage, chance, zone)
    stage.policy = walk.policy()
    everyone = [walk.worker(), walk.worker()]
    steps = count()
    while next(steps) < STEPS or min(walk.quieted[each] for each in QUIET) < ENOUGH:
        walk.step()
        everyone += [each for each in walk.workers if each not in everyone]
    walk.end()
    everyone += [each for each in walk.workers if each not in everyone]

    decisions = {each.id: each for each in stage.decisions.newest()}
    assert walk.sent.keys() <= decisions.keys()
    reasons = Counter((decisions[id_].outcome, decisions[id_].reason) for id_ in walk.sent)
    assert {("dropped", "quiet"), ("digested", "quiet")} <= reasons.keys()
    assert any(waiting.scope == "quiet:holding" for worker in everyone for waiting in worker.told.waits)
    posts = Counter(id_ for worker in everyone for id_ in worker.desk.posts if id_ in walk.sent)
    assert {id_ for id_ in walk.sent if decisions[id_].outcome == "sent"} <= posts.keys()
    for id_, decision in decisions.items():
        if decision.reason == "quiet":
            category = walk.sent[id_][0]
            assert decision.detail in {"dropped": {"dropping"}, "digested": {"telling"}}[decision.outcome]
            assert category in ({"drops"} if decision.outcome == "dropped" else {"told", "mixed"})
            assert decision.since_us is not None
            assert decision.fits_at_us is not None
            assert decision.since_us <= decision.at_us < decision.fits_at_us
    assert sum(map(counted, everyone)) == reasons["digested", "quiet"], "each is told of once"
    assert {reason for outcome, reason in reasons if outcome == "dead"} <= {"exhausted"}
