"""Storms of categories that digest or give notice, with workers that die, and a log to hold the promises against."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from dispatcher.core.event import Event
from dispatcher.core.limits import Limit
from dispatcher.core.policy import CategoryRule, OnLimit, Policy
from dispatcher.core.posts import Ambiguous, Message, PostResult, RateLimitedBySlack, Receipt, Retryable
from dispatcher.core.states import Absent, Leased, ScanLater, ScanResult, Search, Started, Undecodable, Unreadable
from dispatcher.core.units import US
from dispatcher.store.counts import OUTCOMES
from tests.support.doubles import Desk
from tests.support.models import most_in_any_window
from tests.support.servers import Database
from tests.support.stage import UNPACED, Stage, Worker, policy_of

SENDERS: Final = 4
COUNT: Final = re.compile(r"(?:^|: )(\d+) (?:more|dropped)")
LIMITS: Final = {"errors": "3/30s", "news": "4/1m,2/5s", "chatter": "3/40s", "calm": "5/1m"}


def walking_policy() -> Policy:
    """Two categories that digest, one of them with a guarantee, one that gives notice, and one that just drops."""

    def rule(name: str, on_limit: OnLimit, channel: str = UNPACED) -> CategoryRule:
        limits = tuple(map(Limit.parse, LIMITS[name].split(",")))
        return CategoryRule(limits, channel, on_limit, 86_400 * US, digest_delay_us=10 * US)

    categories = {
        "errors": replace(rule("errors", OnLimit.DIGEST), guarantee=2),
        "news": rule("news", OnLimit.DIGEST, "#paced"),
        "chatter": replace(rule("chatter", OnLimit.DROP), notice=True),
        "calm": rule("calm", OnLimit.DROP),
    }
    return replace(policy_of("12/1m", "", "2/5s"), categories=categories)


@dataclass(slots=True)
class Owner:
    """A worker, what it has taken and not decided, and its posts in flight with their instants."""

    worker: Worker
    hand: list[Leased | Undecodable] = field(default_factory=list)
    flights: list[tuple[int, Started]] = field(default_factory=list)


class Workspace(Desk):
    """The sink of all workers: what landed, and what each message of a digest message has come to say."""

    def __init__(self, seed: random.Random) -> None:
        super().__init__()
        self.random = seed
        self.failing = 0.2
        self.started_us = 0
        """The instant of the attempt that is under way."""
        self.landed: list[tuple[int, str]] = []
        """Every new message: when its attempt was started, and of which event."""
        self.counts: dict[str, int] = {}
        """Of each digest message the count that it shows now; one that arrived twice is one."""
        self._by_ts: dict[str, str] = {}

    def scan(self, search: Search) -> ScanResult:
        """All that landed is seen, or nothing for now, or nothing ever.

        A digest message that landed can be read at some time. If it could not, it would be posted again, with another
        count; and a later scan might find the older one in its place.
        """
        if self.random.random() < self.failing:
            landed = {id_ for id_ in self._by_ts.values() if ":" in id_}
            is_passing = self.random.random() < 0.5 or not landed.isdisjoint(search.event_ids)
            return ScanResult({}, ScanLater("http_500", "", reached=True) if is_passing else Unreadable("webhook", ""))
        found = {id_: Receipt(search.channel, ts) for ts, id_ in self._by_ts.items() if id_ in search.event_ids}
        return ScanResult(found, Absent())

    def post(self, message: Message, *, by_s: float | None = None) -> PostResult:
        del by_s
        return self._fail(lambda: self._land(message)) or self._land(message)

    def update(self, channel: str, ts: str, message: Message, *, by_s: float | None = None) -> PostResult:
        del by_s

        def edit() -> Receipt:
            self._read(self._by_ts[ts], message)
            return Receipt(channel, ts)

        return self._fail(edit) or edit()

    def _fail(self, arrive: Callable[[], Receipt]) -> PostResult | None:
        if self.random.random() >= self.failing:
            return None
        kind = self.random.randrange(4)
        if kind == 3:
            arrive()
        results: tuple[PostResult, ...] = (
            RateLimitedBySlack(3 * US, "ratelimited"),
            Retryable("dns_failed", ""),
            *[Ambiguous("http_500", "")] * 2,
        )
        return results[kind]

    def _land(self, message: Message) -> Receipt:
        self.landed.append((self.started_us, message.event_id))
        ts = f"{len(self.landed)}.1"
        self._by_ts[ts] = message.event_id
        self._read(message.event_id, message)
        return Receipt(message.channel, ts)

    def _read(self, event_id: str, message: Message) -> None:
        if ":" in message.event_id and (found := COUNT.search(message.text)):
            self.counts[event_id] = int(found[1])

    def told(self, category: str) -> int:
        """How many events of a category all digest messages tell of."""
        return sum(count for id_, count in self.counts.items() if id_.partition(":")[2].startswith(f"{category}#"))


class DigestWalk:
    """A stage, its workers, and what they posted. ``stage.check`` holds the books after every step."""

    def __init__(self, redis: Database, seed: int) -> None:
        redis.flushall()
        self.random = random.Random(seed)
        self.slack = Workspace(self.random)
        self.stage = Stage(redis, walking_policy())
        self.stage.prolongs = True
        self.born = 0
        self.owners = [self._owner() for _ in range(3)]
        self.sent: Counter[str] = Counter()

    def _owner(self) -> Owner:
        self.born += 1
        worker = self.stage.worker(f"owner{self.born}")
        worker.desk = self.slack
        return Owner(worker)

    def send(self, category: str, count: int) -> None:
        first = self.sent.total()
        self.sent[category] += count
        rows = [(f"e{first + n}", Event(category, f"text {n % 7}", id=f"e{first + n}")) for n in range(count)]
        self.stage.intake.enqueue(rows)

    def step(self) -> None:
        """Something happens to somebody."""
        owner = self.random.choice(self.owners)
        match self.random.choices(
            ["send", "take", "decide", "answer", "time", "die", "stop"], [6, 12, 12, 14, 5, 1, 1]
        ):
            case ["send"]:
                self.send(self.random.choice(list(LIMITS)), self.random.choice([1, 1, 2, 5, 9]))
            case ["take"] if not owner.hand:
                owner.hand = owner.worker.take(9, SENDERS - len(owner.flights)).batch
            case ["decide"]:
                self.decide(owner)
            case ["answer"] if owner.flights:
                self.answer(owner, owner.flights.pop(0))
            case ["time"]:
                self.pass_time(self.random.choice([0.5, 3, 11, 31, 47]))
            case ["die"]:
                self.replace(owner)
            case ["stop"]:
                owner.worker.keep_only(*(each.candidate.leased.id for _, each in owner.flights))
                for flight in owner.flights:
                    self.answer(owner, flight)
                owner.worker.give_back()
                self.replace(owner)
            case _:
                pass

    def decide(self, owner: Owner) -> None:
        started = owner.worker.dispatch(owner.hand, SENDERS - len(owner.flights))
        owner.flights += [(self.stage.clock.now_us, each) for each in started]
        owner.hand = []

    def answer(self, owner: Owner, flight: tuple[int, Started]) -> None:
        self.slack.started_us, started = flight
        owner.worker.settle([owner.worker.dispatcher.deliver(started)])

    def replace(self, owner: Owner) -> None:
        """The worker is gone with all it held in memory; another one comes."""
        self.owners[self.owners.index(owner)] = self._owner()

    def pass_time(self, seconds: float) -> None:
        """Those who live renew their leases meanwhile."""
        while seconds > 0:
            self.stage.clock.forward(min(seconds, 10))
            seconds -= 10
            for owner in self.owners:
                owner.worker.outbox.renew()

    def drain(self) -> None:
        """All work until nothing waits and all is told."""
        self.slack.failing = 0.0
        for _ in range(5_000):
            busy = False
            for owner in self.owners:
                for flight in owner.flights:
                    self.answer(owner, flight)
                owner.flights = []
                if not owner.hand:
                    owner.hand = owner.worker.take(50, SENDERS).batch
                busy = busy or bool(owner.hand)
                self.decide(owner)
                busy = busy or bool(owner.flights)
            if not busy:
                snapshot = self.stage.snapshot()
                if not (snapshot.events or snapshot.waiting):
                    return
                taken = self.owners[0].worker.take(0, 9)
                self.owners[0].hand = taken.batch
                self.pass_time(max(0.0, (taken.again_us() - self.stage.clock.now_us) / US))
        raise AssertionError(f"not drained: {self.stage.snapshot()}")

    def verify(self) -> None:
        """No limit was exceeded, every event ended once, and what was told adds up to what was suppressed."""
        snapshot = self.stage.snapshot()
        assert snapshot.tallies == {}
        assert self.stage.redis.keys(f"{self.stage.keys.tally_prefix}*") == []
        decisions = list(self.stage.decisions.newest())
        outcomes = Counter(each.outcome for each in decisions)
        assert outcomes == {name: snapshot.totals[name] for name in OUTCOMES if snapshot.totals.get(name)}
        assert outcomes.total() == self.sent.total()
        suppressed = Counter(each.category for each in decisions if each.outcome in {"dropped", "digested"})
        for category in ("errors", "news", "chatter"):
            assert self.slack.told(category) == suppressed[category]
        self._no_limit_was_exceeded({each.id: each.category or "" for each in decisions})

    def _no_limit_was_exceeded(self, categories: dict[str, str]) -> None:
        instants: dict[str, list[int]] = {}
        for at_us, id_ in self.slack.landed:
            category = id_.partition(":")[2].partition("#")[0] or categories[id_]
            instants.setdefault(category, []).append(at_us)
        for category, rule in self.stage.policy.categories.items():
            for limit in rule.limits:
                assert most_in_any_window(instants.get(category, []), limit.window_us) <= limit.max, category
        together = [at_us for each in instants.values() for at_us in each]
        for limit in self.stage.policy.global_limits:
            assert most_in_any_window(together, limit.window_us) <= limit.max
