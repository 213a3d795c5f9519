"""Repeats and recoveries beside a model: every event ends as the model says, whatever came before.

Meanwhile the limits change, the clocks of the zone are set, and workers die between two steps.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from random import Random
from re import search
from typing import Final
from zoneinfo import ZoneInfo

import pytest

from dispatcher.core.event import Event, Status, new_event_id
from dispatcher.core.posts import Ambiguous, Message, PostResult, Receipt, Rejected, Retryable
from dispatcher.core.units import US
from tests.support.quiet_stage import QuietStage
from tests.support.servers import Database
from tests.support.stage import UNPACED, Stage, policy_from
from tests.support.troubled_worker import Killed, Slack, TroubledWorker, before_the_clocks_are_set, nothing

pytestmark = pytest.mark.server

HOUR_US: Final = 3_600 * US
DAY_US: Final = 24 * HOUR_US
CATEGORIES: Final = ("a", "b", "c", "d", "e")
KEYS: Final = ("db1", "db2", "db3", None)
HOSTS: Final = ("", "h1", "h2")
TEXTS: Final = ("disk full", "no route")
ZONES: Final = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
LIMIT: Final = 3
"""Events of a category in an hour, where it has a limit."""

ONCE_AN_HOUR: Final = """
global: {limits: []}
channels: {"#free": {pace: none}}
defaults: {limits: [], channel: "#free", once: {per: 1h}}
"""
MOST_STEPS: Final = 7
"""Steps of a worker that handles one event, and a message about repeats beside it."""

Moment = tuple[int, int]
"""When an event was created, and its number: of two the earlier one is the older."""

Scope = tuple[str, str, str]
"""A category, what its events are told apart by, and what an event says of that."""


@dataclass(frozen=True)
class Rule:
    """What a limits file says of a category."""

    by: str | None = None
    per_us: int = HOUR_US
    edits: bool = False
    is_limited: bool = False
    buries: bool = False
    ignores: bool = False
    quiet: str | None = None

    def text(self) -> str:
        once = f"once: {{by: {self.by}, per: {self.per_us // US}s, then: {'edit' if self.edits else 'drop'}}}, "
        return (
            f"{{{once if self.by else ''}limits: [{f'{LIMIT}/1h' if self.is_limited else ''}], "
            f"on_limit: {'dead-letter' if self.buries else 'drop'}, resolved: {'ignore' if self.ignores else 'post'}}}"
        )


@dataclass(frozen=True)
class Rules:
    """A limits file."""

    of: dict[str, Rule]
    zone: str
    begins: int
    """The hour at whose half quiet hours begin; they end two hours later."""

    @classmethod
    def drawn(cls, draw: Random) -> Rules:
        def rule() -> Rule:
            return Rule(
                draw.choice((None, "dedup_key", "dedup_key", "[host]", "text")),
                draw.choice((7 * US, HOUR_US, HOUR_US)),
                draw.random() < 0.5,
                draw.random() < 0.5,
                draw.random() < 0.5,
                draw.random() < 0.5,
                draw.choice((None, None, "drop", "digest")),
            )

        return cls({name: rule() for name in CATEGORIES}, draw.choice(ZONES), draw.choice((1, 1, draw.randrange(24))))

    def text(self) -> str:
        categories = "".join(f"  {name}: {rule.text()}\n" for name, rule in self.of.items())
        times = f'times: ["{self.begins:02}:30-{(self.begins + 2) % 24:02}:30"], zone: {self.zone}'
        quiet = ""
        for then in ("drop", "digest"):
            if named := [name for name, rule in self.of.items() if rule.quiet == then]:
                quiet += f"  {then}ping: {{{times}, categories: {named}, then: {then}}}\n".replace("'", "")
        return (
            'global: {limits: []}\nchannels: {"#free": {pace: none}}\n'
            f'defaults: {{limits: [], channel: "#free", max_age: 30d}}\ncategories:\n{categories}'
            + (f"quiet:\n{quiet}" if quiet else "")
        )

    def hushed(self, category: str, now_us: int) -> str | None:
        """How an event ends in quiet hours, by the clock on the wall; None where none hold."""
        then = self.of[category].quiet
        wall = datetime.fromtimestamp(now_us // US, ZoneInfo(self.zone))
        passed = (wall.hour * 60 + wall.minute - self.begins * 60 - 30) % (24 * 60)
        return None if then is None or passed >= 120 else "dropped quiet" if then == "drop" else "digested quiet"


@dataclass(frozen=True)
class Sent:
    """An event of the walk."""

    id: str
    category: str
    key: str | None
    host: str
    text: str
    is_over: bool
    moment: Moment
    is_posted: bool

    @property
    def subject(self) -> tuple[str, str | None]:
        return self.category, self.key

    def scope(self, by: str | None) -> Scope | None:
        """What it is about where events are told apart so; None where it does not say it."""
        about = {"dedup_key": self.key, "[host]": self.host or None, "text": self.text, None: None}[by]
        return None if by is None or about is None else (self.category, by, about)


@dataclass
class Subject:
    """What the model knows of one key of one category."""

    posted: Moment | None = None
    message: str = ""
    over: Moment | None = None
    scopes: set[Scope] = field(default_factory=set)
    """What its events have taken, also those that Slack refused then."""


@dataclass
class Model:
    """One event after another, in the order in which they are decided."""

    can_edit: bool
    subjects: dict[tuple[str, str | None], Subject] = field(default_factory=dict)
    taken: dict[Scope, tuple[str, int]] = field(default_factory=dict)
    """Whose message is about this, and when it was posted."""
    slots: dict[str, dict[tuple[str, int], int]] = field(default_factory=lambda: {name: {} for name in CATEGORIES})
    repeats: Counter[str] = field(default_factory=Counter)
    """How many are to be counted in the message of an event."""
    counting: dict[str, int] = field(default_factory=dict)
    """Events in whose messages repeats are counted, and when their windows end, by the limits of the last of these."""
    prechecked: str = ""
    """The last event that was dropped before it was read: as a repeat, though it may be older than a recovery."""
    struck: set[str] = field(default_factory=set)
    """Events whose messages say that it is over."""

    def ends(self, event: Sent, rules: Rules, now_us: int) -> str:
        return self.resolves(event, rules, now_us) if event.is_over else self.fires(event, rules, now_us)

    def fires(self, event: Sent, rules: Rules, now_us: int) -> str:
        rule, scope = rules.of[event.category], event.scope(rules.of[event.category].by)
        if (refused := self.refused(event, rules, now_us)) is not None:
            if refused == "digested repeat" and scope is not None:
                holder, since_us = self.taken[scope]
                self.repeats[holder] += 1
                self.counting[holder] = since_us + rule.per_us
            return refused
        subject = None if event.key is None else self.subjects.setdefault(event.subject, Subject())
        if subject is not None and scope is not None:
            subject.scopes.add(scope)
        if not event.is_posted:
            return "dead rejected"
        if rule.is_limited:
            self.slots[event.category][event.id, 0] = now_us
        if scope is not None:
            self.taken[scope] = event.id, now_us
            if rule.edits:
                self.counting[event.id] = now_us + rule.per_us
        if subject is not None and (subject.posted is None or subject.posted < event.moment):
            subject.posted, subject.message = event.moment, event.id
        return "sent"

    def resolves(self, event: Sent, rules: Rules, now_us: int, *, is_last: bool = True) -> str:
        """What a recovery does; one that is not the last word on its subject frees no key."""
        assert event.key is not None
        rule = rules.of[event.category]
        known = self.subjects.setdefault(event.subject, Subject())
        known.over = max(known.over or event.moment, event.moment)
        if known.posted is not None and known.posted > event.moment:
            return "dropped unposted"
        if is_last:
            for scope in (*known.scopes, event.scope("dedup_key"), event.scope(rule.by)):
                if scope is not None:
                    self.taken.pop(scope, None)
            known.scopes.clear()
        if known.posted is None:
            return "dropped unposted"
        if self.can_edit:
            known.posted = None
            self.struck.add(known.message)
            return "digested resolved"
        end = "dropped unposted" if rule.ignores else self.tells(event, rules, now_us)
        known.posted = None if end == "sent" else known.posted
        return end

    def tells(self, event: Sent, rules: Rules, now_us: int) -> str:
        """What becomes of a recovery that is a message of its own."""
        rule = rules.of[event.category]
        if refused := self.refused(event, rules, now_us):
            return refused
        if not event.is_posted:
            return "dead rejected"
        if rule.is_limited:
            self.slots[event.category][event.id, 0] = now_us
        return "sent"

    def refused(self, event: Sent, rules: Rules, now_us: int) -> str | None:
        """How an event ends that is not posted; None where it is to be."""
        rule, scope = rules.of[event.category], event.scope(rules.of[event.category].by)
        if hushed := rules.hushed(event.category, now_us):
            return hushed
        if not event.is_over:
            subject = self.subjects.get(event.subject, Subject())
            if event.id != self.prechecked and subject.over is not None and event.moment < subject.over:
                return "dropped resolved"
            holder, since_us = self.taken.get(scope, ("", -rule.per_us)) if scope is not None else ("", -rule.per_us)
            if now_us < since_us + rule.per_us:
                is_closed = self.repeats[holder] > 0 and self.counting.get(holder, 0) <= now_us
                is_counted = rule.edits and self.can_edit and holder in self.counting and not is_closed
                return "digested repeat" if is_counted else "dropped repeat"
        counted = sum(now_us < at_us + HOUR_US for at_us in self.slots[event.category].values())
        if not rule.is_limited or counted < LIMIT:
            return None
        return f"{'dead' if rule.buries else 'dropped'} limit:category"

    def charged(self, event: Sent, marks: dict[int, int]) -> None:
        """The posts of an event were marked at these instants, by how many of its posts before may have arrived."""
        if (event.id, 0) in self.slots[event.category]:
            self.slots[event.category] |= {(event.id, unknown): at_us for unknown, at_us in marks.items()}
        for scope, (holder, _) in self.taken.items():
            if holder == event.id:
                self.taken[scope] = holder, max(marks.values())


class Walk:
    """The dispatcher and the model, step by step."""

    def __init__(self, stage: Stage, seed: int, *, can_edit: bool) -> None:
        self.stage = stage
        self.random = Random(seed)
        self.model = Model(can_edit)
        self.slack = Slack(can_update=can_edit)
        self.expected: Counter[str] = Counter()
        self.hired = count()
        self.stamps = count(1)
        self.moments = count()
        self.rules_of: dict[str, Rules] = {}
        """By the name of a version."""
        self.reload()
        self.worker = self.hire()
        self.decided: dict[str, tuple[int, int, Rules]] = {}
        """When the end of an event was decided: the how many-th it was, the instant, and by which rules."""
        self.over: set[str] = set()
        """Those that tell of a recovery."""
        self.started: set[str] = set()
        """Those of which a post was started: what was decided before is final."""
        self.settled: dict[str, int] = {}
        """When something was settled about an event first."""
        self.messages: dict[str, str] = {}
        """The ts of the message of an event."""

    def hire(self) -> TroubledWorker:
        worker = TroubledWorker(self.stage, f"w{next(self.hired)}", self.slack, self.version)
        worker.is_done = self.note
        return worker

    def note(self, step: str, ids: list[str]) -> None:
        for id_ in ids:
            place, now_us, rules = next(self.moments), self.stage.clock.now_us, self.rules_of[self.worker.follows]
            if step == "settle":
                self.settled.setdefault(id_, place)
            if step == "start":
                self.started.add(id_)
            elif step == "take":
                self.model.prechecked = id_
                self.decided[id_] = place, now_us, rules
            elif id_ not in self.started and (step == "recover" or id_ not in self.over):
                place, *_ = self.decided.get(id_, (place,))
                self.decided[id_] = place, now_us, rules

    def reload(self) -> None:
        self.rules = Rules.drawn(self.random)
        self.version = self.stage.put_in_force(self.rules.text())
        self.rules_of[self.version.name] = self.rules

    def step(self) -> None:
        draw, clock = self.random, self.stage.clock
        clock.now_us += draw.choice((0, 0, 1, US, 8 * US, 31 * US, HOUR_US // 4, HOUR_US - 1, HOUR_US))
        if draw.random() < 0.01:
            clock.now_us = before_the_clocks_are_set(self.rules.zone, clock.now_us)
        if draw.random() < 0.05:
            self.reload()
            self.worker.follow(self.version)
        self.worker.run()  # what was to be told before
        self.charge()
        self.decided.clear()
        self.over.clear()
        self.started.clear()
        self.settled.clear()
        self.stage.attempts.clear()
        self.slack.posts.clear()
        events = [self.event()]
        trouble = draw.random()
        if trouble < 0.1:
            self.die(events)
        elif trouble < 0.15 and not events[0].is_over:
            events = [replace(events[0], is_posted=True)]
            self.overtake()
        else:
            self.worker.run()
        self.run()
        for event, overtaken in self.in_order(events):
            _, at_us, rules = self.decided[event.id]
            is_gone = overtaken is not None and not event.is_over and event.id not in self.slack.stands
            if is_gone and self.model.refused(event, rules, at_us) is None:
                end = "dropped resolved"  # it was waiting again when the recovery came
            elif overtaken is not None and event.is_over:
                end = self.model.resolves(event, rules, at_us, is_last=False)
            else:
                end = self.model.ends(event, rules, at_us)
            self.check(event, end)
            self.expected[f"{end.split()[0]} {event.category}{''.join(f' {word}' for word in end.split()[1:])}"] += 1
            if end == "sent":
                self.model.charged(event, self.marks(event.id))
                self.messages[event.id] = self.slack.stands[event.id].ts or ""
        self.charge()

    def charge(self) -> None:
        """What was told of quiet hours took slots."""
        for at_us, started in self.stage.attempts:
            leased = started.candidate.leased
            if leased.id.startswith("quiet:") and self.rules.of[leased.event.category].is_limited:
                self.model.slots[leased.event.category][f"quiet {at_us}", 0] = at_us

    def check(self, event: Sent, end: str) -> None:
        found = self.stage.decision(event.id)
        assert found is not None, f"{event} has no end, expected {end}"
        assert (found.outcome if found.outcome == "sent" else f"{found.outcome} {found.reason}") == end, (event, found)

    def in_order(self, events: list[Sent]) -> list[tuple[Sent, Sent | None]]:
        """The events in the order in which they were decided, with the other one if that was about the same then."""
        first, *others = sorted(events, key=lambda each: self.decided[each.id][0])
        if not others or first.is_over or not others[0].is_over or first.subject != others[0].subject:
            return [(event, None) for event in (first, *others)]
        (recovery,) = others
        if self.settled.get(first.id, math.inf) < self.decided[recovery.id][0]:
            return [(first, None), (recovery, None)]
        if first.moment < recovery.moment:
            return [(first, recovery), (recovery, None)]
        return [(recovery, first), (first, None)]

    def event(self, *, is_posted: bool | None = None) -> Sent:
        draw, now_us = self.random, self.stage.clock.now_us
        category, key = draw.choice(CATEGORIES), draw.choice(KEYS)
        host, text = draw.choice(HOSTS), draw.choice(TEXTS)
        is_over = key is not None and draw.random() < 0.4
        created_us = now_us - draw.choice((0, 0, 0, 5 * US, 2 * HOUR_US))
        given = {} if created_us == now_us and draw.random() < 0.5 else {"created_at": created_us / US}
        about = {"dedup_key": key, "status": "resolved" if is_over else "firing"} if key else {}
        labels = {"labels": {"host": host}} if host else {}
        said = f"{text} {draw.randrange(100)}%"
        event = Event.from_payload({"category": category, "text": said, **about, **labels, **given})
        id_, seq = new_event_id(), int(self.stage.redis.get(self.stage.keys.seq) or 0) + 1
        self.stage.intake.enqueue([(id_, event)])
        is_posted = draw.random() < 0.9 if is_posted is None else is_posted
        if is_over:
            is_posted = is_posted or self.model.can_edit
            self.over.add(id_)
        self.slack.reply = lambda message: self.answer(id_, message, is_posted=is_posted)
        return Sent(id_, category, key, host, text, is_over, (round(created_us / US * US), seq), is_posted)

    def answer(self, id_: str, message: Message, *, is_posted: bool) -> PostResult:
        if message.event_id == id_ and not is_posted:
            return Rejected("invalid_blocks", "")
        if message.event_id == id_ and self.slack.posts.count(id_) == 1 and self.random.random() < 0.05:
            return self.random.choice(
                (Retryable("http_500", "", uses_attempt=True, reached=True), Ambiguous("reply_timeout", ""))
            )
        return self.receipt()

    def receipt(self) -> Receipt:
        return Receipt(UNPACED, f"{next(self.stamps)}.0" if self.model.can_edit else None)

    def die(self, events: list[Sent]) -> None:
        """The worker dies between two steps, and perhaps another event comes before the next one takes over."""
        self.slack.reply = lambda message: self.answer("", message, is_posted=True)
        events[0] = replace(events[0], is_posted=True)
        self.worker.die_at(self.random.randint(1, MOST_STEPS))
        with suppress(Killed):
            self.worker.run()
        self.worker = self.hire()
        is_asked_anew = events[0].is_over and not self.model.can_edit
        if self.random.random() < 0.5 and not is_asked_anew:
            events.append(self.event(is_posted=True))
            self.worker.run()

    def overtake(self) -> None:
        """The limits change between two steps, but for one that was admitted: it keeps its old slots and asks anew."""
        last = self.random.randint(1, 3)
        self.slack.reply = lambda _: self.receipt()

        def change(number: int, name: str) -> None:
            if number == first + last and name != "start":
                self.reload()

        first = self.worker.steps
        self.worker.trouble = change
        self.worker.run()
        self.worker.trouble = nothing
        self.worker.follow(self.version)

    def run(self) -> None:
        """Until all events have ended: one may wait for another edit of its message, or for a lease to end."""
        self.worker.run()
        keys, waited_s = self.stage.keys, 0
        while self.stage.redis.hlen(keys.events) > self.stage.redis.scard(keys.tallies):
            assert waited_s < 3 * 3_600, self.stage.redis.hgetall(keys.events)
            passes_s = 1 if waited_s < 120 else 60
            self.stage.clock.now_us += passes_s * US
            waited_s += passes_s
            self.worker.run()

    def marks(self, id_: str) -> dict[int, int]:
        return {
            started.candidate.leased.unknown: at_us
            for at_us, started in self.stage.attempts
            if started.candidate.leased.id == id_
        }

    def compare(self) -> None:
        totals = self.stage.snapshot().counts
        found: Counter[str] = Counter()
        for outcome in ("sent", "dropped", "digested", "dead"):
            if outcome == "sent":
                found.update({f"sent {name}": number for name, number in totals.by_category("sent").items()})
            else:
                found.update({f"{outcome} {name} {why}": n for (name, why), n in totals.by_reason(outcome).items()})
        assert found == self.expected, (found - self.expected, self.expected - found)

    def compare_messages(self) -> None:
        """What stands at Slack once all is told."""
        for _ in range(200):
            self.stage.clock.now_us += HOUR_US // 60
            self.worker.run()
        quiet = (search(r"^(\d+) \*\w+\* in quiet hours", message.text) for message in self.slack.messages)
        digested = sum(n for name, n in self.expected.items() if name.startswith("digested") and name.endswith("quiet"))
        assert sum(int(each[1]) for each in quiet if each) == digested
        if self.model.can_edit:
            for id_, ts in self.messages.items():
                told = search(r"\n_?x(\d+)", self.slack.texts[ts])
                is_struck = self.slack.texts[ts].startswith(":white_check_mark:")
                expected = (self.model.repeats[id_] + 1, id_ in self.model.struck)
                assert (int(told[1]) if told else 1, is_struck) == expected, self.slack.texts[ts]


@pytest.mark.parametrize("can_edit", [True, False], ids=["edits", "webhook"])
@pytest.mark.parametrize(
    ("seed", "steps"), [(1, 60), *(pytest.param(n, 10_000, marks=pytest.mark.slow) for n in range(2, 7))]
)
def test_every_event_ends_as_the_model_says(redis: Database, seed: int, steps: int, *, can_edit: bool) -> None:
    stage = QuietStage(redis, ONCE_AN_HOUR)
    stage.prolongs = True
    walk = Walk(stage, seed, can_edit=can_edit)
    for number in range(steps):
        walk.step()
        if number % (steps // 10) == 0:
            walk.compare()
            Stage.check(stage)
    walk.compare()
    walk.compare_messages()


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 40))])
def test_between_two_messages_about_one_thing_lies_a_window_a_recovery_or_a_failed_post(
    redis: Database, seed: int
) -> None:
    """Two workers, whose posts are under way while others come, and which lose their leases."""
    draw = Random(seed)
    stage = Stage(redis, policy_from(ONCE_AN_HOUR))
    stage.prolongs = True
    workers = [stage.worker("ann"), stage.worker("bob")]
    last: dict[str, int] = {}
    given_back: set[str] = set()
    for _ in range(60):
        worker = draw.choice(workers)
        stage.clock.now_us += draw.choice((0, US, 20 * US, HOUR_US // 2))
        key = draw.choice(KEYS[:3])
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
