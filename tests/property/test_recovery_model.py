"""Repeats and recoveries beside a model: every event ends as the model says, whatever came before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Final

import pytest

from dispatcher.core.event import Event, Status, new_event_id
from dispatcher.core.limits import US
from dispatcher.core.once import Then
from dispatcher.core.policy import OnResolved
from dispatcher.core.posts import PostResult, Receipt, Rejected, Retryable
from tests.support.quiet_stage import QuietStage
from tests.support.servers import Database
from tests.support.stage import UNPACED, Stage, Worker, policy_from

pytestmark = pytest.mark.server

HOUR_US: Final = 3_600 * US
TEXT: Final = """
global: {limits: []}
channels: {"#free": {pace: none}}
defaults: {limits: [], channel: "#free", max_age: 30d}
categories:
  free: {}
  once: {once: {per: 1h}}
  short: {once: {per: 7s}}
  edit: {once: {per: 1h, then: edit}}
  label: {once: {by: [host], per: 1h}}
  silent: {resolved: ignore}
"""
POLICY: Final = policy_from(TEXT)
RULES: Final = POLICY.categories
KEYS: Final = ("db1", "db2", "db3")
MOST_WATCHED: Final = 1_000
"""Walks of more steps are not looked at after each."""

Moment = tuple[int, int]
"""When an event was created, and its number: of two the earlier one is the older."""


@dataclass
class Key:
    """What the model knows of one key of one category."""

    taken_us: int | None = None
    posted: Moment | None = None
    over: Moment | None = None


@dataclass
class Model:
    """One event after another, each ended before the next one comes."""

    can_edit: bool
    keys: dict[tuple[str, str], Key] = field(default_factory=dict)

    def fires(self, category: str, key: str, moment: Moment, now_us: int, *, is_posted: bool) -> str:
        known, once = self.keys.setdefault((category, key), Key()), RULES[category].once
        if known.over is not None and moment < known.over:
            return "dropped resolved"
        if once is not None and known.taken_us is not None and now_us < known.taken_us + once.per_us:
            return "digested repeat" if once.then is Then.EDIT and self.can_edit else "dropped repeat"
        if not is_posted:
            return "dead rejected"
        known.taken_us = now_us
        if known.posted is None or known.posted < moment:
            known.posted = moment
        return "sent"

    def resolves(self, category: str, key: str, moment: Moment, *, is_posted: bool) -> str:
        known = self.keys.setdefault((category, key), Key())
        known.over = max(known.over or moment, moment)
        if known.posted is not None and known.posted > moment:
            return "dropped unposted"
        known.taken_us = None
        if known.posted is None:
            return "dropped unposted"
        if self.can_edit:
            known.posted = None
            return "digested resolved"
        if RULES[category].resolved is OnResolved.IGNORE:
            return "dropped unposted"
        if not is_posted:
            return "dead rejected"
        known.posted = None
        return "sent"


@dataclass
class Walk:
    """The dispatcher and the model, step by step."""

    stage: Stage
    ann: Worker
    random: Random
    model: Model
    numbers: count[int] = field(default_factory=count)
    expected: Counter[str] = field(default_factory=Counter)

    def step(self) -> None:
        draw = self.random
        clock = self.stage.clock
        clock.now_us += draw.choice((0, 0, 1, US, 8 * US, 31 * US, HOUR_US - 1, HOUR_US))
        is_posted = draw.random() < 0.9
        ts = f"{next(self.numbers)}.0" if self.model.can_edit else None
        answer: PostResult = Receipt(UNPACED, ts) if is_posted else Rejected("channel_not_found", "")
        self.ann.desk.reply = lambda _: answer
        category, key = draw.choice(tuple(RULES)), draw.choice(KEYS)
        created_us = clock.now_us - draw.choice((0, 0, 0, 5 * US, 2 * HOUR_US))
        given = {} if created_us == clock.now_us and draw.random() < 0.5 else {"created_at": created_us / US}
        is_over = draw.random() < 0.4
        about = {"dedup_key": key, "labels": {"host": key}, "status": "resolved" if is_over else "firing"}
        event = Event.from_payload({"category": category, "text": "x", **about, **given})
        self.stage.intake.enqueue([(new_event_id(), event)])
        moment = (round(created_us / US * US), int(self.stage.redis.get(self.stage.keys.seq) or 0) + 1)
        if is_over:
            self.ann.desk.reply = lambda _: Receipt(UNPACED, ts) if is_posted or self.model.can_edit else answer
            end = self.model.resolves(category, key, moment, is_posted=is_posted)
        else:
            end = self.model.fires(category, key, moment, clock.now_us, is_posted=is_posted)
        self.expected[f"{end.split()[0]} {category}{''.join(f' {word}' for word in end.split()[1:])}"] += 1
        self.ann.desk.posts.clear()
        self.run(until_us=clock.now_us + 31 * US)

    def run(self, until_us: int) -> None:
        """Until the event has ended: an edit may have to wait for another one of its message."""
        self.ann.run()
        while self.stage.redis.zcard(self.stage.keys.parked) > len(self.tallies()):
            assert self.stage.clock.now_us < until_us
            self.stage.clock.now_us += US
            self.ann.run()

    def tallies(self) -> set[bytes]:
        found: set[bytes] = self.stage.redis.smembers(self.stage.keys.tallies)
        return found

    def compare(self) -> None:
        totals = self.stage.snapshot().counts
        found: Counter[str] = Counter()
        for outcome in ("sent", "dropped", "digested", "dead"):
            if outcome == "sent":
                found.update({f"sent {name}": number for name, number in totals.by_category("sent").items()})
            else:
                found.update({f"{outcome} {name} {why}": n for (name, why), n in totals.by_reason(outcome).items()})
        assert found == self.expected


@pytest.mark.parametrize("can_edit", [True, False], ids=["edits", "webhook"])
@pytest.mark.parametrize(
    ("seed", "steps"), [(1, 120), *(pytest.param(n, 10_000, marks=pytest.mark.slow) for n in range(2, 12))]
)
def test_every_event_ends_as_the_model_says(redis: Database, seed: int, steps: int, *, can_edit: bool) -> None:
    stage = Stage(redis, POLICY) if steps < MOST_WATCHED else QuietStage(redis, TEXT)
    stage.prolongs = True
    walk = Walk(stage, stage.worker(), Random(seed), Model(can_edit))
    walk.ann.desk.can_update = can_edit
    for number in range(steps):
        walk.step()
        if number % 10 == 0:
            walk.compare()
        if number % 1_000 == 0:
            Stage.check(stage)
    walk.compare()


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 40))])
def test_between_two_messages_about_one_thing_lies_a_window_a_recovery_or_a_failed_post(
    redis: Database, seed: int
) -> None:
    """Two workers, whose posts are under way while others come, and which lose their leases."""
    draw = Random(seed)
    stage = Stage(redis, replace(POLICY, categories={"errors": RULES["once"]}))
    stage.prolongs = True
    workers = [stage.worker("ann"), stage.worker("bob")]
    last: dict[str, int] = {}
    given_back: set[str] = set()
    for _ in range(60):
        worker = draw.choice(workers)
        stage.clock.now_us += draw.choice((0, US, 20 * US, HOUR_US // 2))
        key = draw.choice(KEYS)
        status = draw.choice((Status.FIRING, Status.FIRING, Status.RESOLVED))
        stage.intake.enqueue([(new_event_id(), Event("errors", "x", dedup_key=key, status=status))])
        if status is Status.RESOLVED:
            given_back.add(key)
        for started in worker.go():
            event = started.candidate.leased.event
            if started.candidate.leased.edits is not None:
                worker.deliver([started])
                continue
            if not started.candidate.leased.unknown and started.attempt == 1:
                before = last.get(event.dedup_key or "")
                assert before is None or event.dedup_key in given_back or stage.clock.now_us >= before + HOUR_US
                last[event.dedup_key or ""] = stage.clock.now_us
                given_back.discard(event.dedup_key or "")
            match draw.randrange(4):
                case 0:
                    worker.answer(started, Rejected("channel_not_found", ""))
                    given_back.add(event.dedup_key or "")
                case 1:
                    worker.answer(started, Retryable("http_500", "", uses_attempt=True, reached=True))
                case 2:
                    worker.answer(started, Receipt(UNPACED, "1.0"))
                case _:
                    pass  # its answer is lost
