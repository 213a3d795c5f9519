"""Workers that take, defer, post, die and come back, step by step, with a log of what was decided and posted.

The log knows nothing of lines: it is what the promises are held against at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final
from zlib import crc32

from dispatcher.core.event import Event
from dispatcher.core.limits import Admitted, Limit, Scope
from dispatcher.core.policy import CategoryRule, OnLimit, Policy
from dispatcher.core.ports import Admitting, Asking
from dispatcher.core.posts import Ambiguous, PostResult, Receipt
from dispatcher.core.states import (
    Absent,
    DeadLettered,
    Dropped,
    Leased,
    Outcome,
    Parked,
    ScanResult,
    Search,
    Sent,
    Started,
    Undecodable,
    Unreadable,
)
from dispatcher.core.units import US, Lane
from dispatcher.store.leases import Taken
from tests.support.models import most_in_any_window
from tests.support.servers import Database
from tests.support.stage import UNPACED, Stage, Worker, policy_of

CATEGORIES: Final = ("errors", "deploys", "chatter")
CHANNELS: Final = ("#a", "#b", UNPACED)
LABELS: Final[tuple[dict[str, str], ...]] = ({}, {"host": "db1"}, {"host": "db2"})
GLOBAL: Final = "9/1m,6/30s"
LIMITS: Final = {"errors": "4/1m", "deploys": "5/2m", "chatter": "3/1m"}
PER_HOST: Final = Limit.parse("2/1m")
MOST_PARKED: Final = 8
PROMPT_US: Final = US
"""A worker that takes longer than this from its take to its decision is passed by."""

SENDERS: Final = 3
LATENCY_US: Final = 400_000


def deferring_policy(global_limits: str = GLOBAL, *, max_parked: int = MOST_PARKED, guarantee: int = 0) -> Policy:
    """Two categories that defer, one of them with a limit for each host, and one that drops."""

    def rule(category: str, on_limit: OnLimit) -> CategoryRule:
        limits = tuple(map(Limit.parse, LIMITS[category].split(",")))
        return CategoryRule(limits, UNPACED, on_limit, 86_400 * US, max_parked=max_parked)

    errors = replace(rule("errors", OnLimit.DEFER), per_label={"host": (PER_HOST,)}, guarantee=guarantee)
    categories = {
        "errors": errors,
        "deploys": rule("deploys", OnLimit.DEFER),
        "chatter": rule("chatter", OnLimit.DROP),
    }
    return replace(policy_of(global_limits, "", "2/5s"), categories=categories)


@dataclass(slots=True)
class Owner:
    """A worker, the batches it has taken and not dispatched, its posts in flight, and when it takes again."""

    worker: Worker
    hands: list[Sequence[Leased | Undecodable]] = field(default_factory=list)
    flights: list[tuple[int, Started]] = field(default_factory=list)
    wakes_us: int = 0


class Fate(IntEnum):
    """What became of a post that had no answer, as a later history scan of the channel shows it."""

    LANDED = 0
    LOST = 1
    UNREADABLE = 2


class DeferralWalk:
    """The stage, its owners, and the log."""

    def __init__(self, redis: Database, policy: Policy, owners: int) -> None:
        redis.flushall()
        self.stage = Stage(redis, policy)
        self.stage.prolongs = True
        self.stage.after_admit = self._note_admissions
        self.admissions: list[str] = []
        """The slots of those that were admitted for the first time: each is the number of a first sight."""
        self.owners = [Owner(self.stage.worker(f"owner{n}")) for n in range(owners)]
        for each in self.owners:
            each.worker.desk.shows = self.scan
        self.workers = [each.worker for each in self.owners]
        self.sent: dict[str, Event] = {}
        self.taken: dict[str, Leased] = {}
        self.taken_us: dict[str, int] = {}
        self.disturbed: set[str] = set()
        """Whose worker died, came back without them or was slow: others may have gone first."""
        self.posted: list[tuple[int, Started]] = []

    # What may happen

    def send(self, *events: Event) -> None:
        """Enqueue them; their ids are given here."""
        named = [replace(event, id=f"e{len(self.sent) + n}") for n, event in enumerate(events)]
        rows = [(event.id or "", event) for event in named]
        self.sent |= dict(rows)
        self.stage.intake.enqueue(rows)

    def take(self, owner: Owner, new: int, due: int, *, ahead: bool) -> Taken:
        """Take, and perhaps one batch ahead. A take says that all before is decided: nothing may be in hand."""
        assert not owner.hands
        first = owner.worker.take(new, due)
        self._hold(owner, first.batch)
        if ahead and first.more and not first.suspended and first.undecided is not None:
            owner.worker.outbox.prefetch(first, new, due)
            second = owner.worker.outbox.take(new, due)
            self.stage.check()
            self._hold(owner, second.batch)
        return first

    def dispatch(self, owner: Owner, free: int) -> None:
        if not owner.hands:
            return
        now_us, batch = self.stage.clock.now_us, owner.hands.pop(0)
        self.disturbed |= {each.id for each in batch if now_us - self.taken_us[each.id] >= PROMPT_US}
        started = owner.worker.dispatch(batch, free)
        assert len(started) <= free
        owner.flights += [(now_us, each) for each in started]

    def answer(self, owner: Owner, nth: int, result: PostResult) -> None:
        if nth >= len(owner.flights):
            return
        at_us, started = owner.flights.pop(nth)
        fate = self.fate(started) if isinstance(result, Ambiguous) else Fate.LANDED
        if owner.worker.answer(started, result) and isinstance(result, Receipt | Ambiguous) and fate is not Fate.LOST:
            self.posted.append((at_us, started))

    def die(self, at: int) -> None:
        """The process is gone; another one comes in its place."""
        self._disturb(self.owners[at])
        self._replace(at)

    def stop(self, at: int) -> None:
        """A worker gives back everything, its posts having been answered."""
        owner = self.owners[at]
        while owner.flights:
            self.answer(owner, 0, Receipt("#a", "1.1"))
        self._disturb(owner)
        owner.worker.give_back()
        self._replace(at)

    def lose_answer(self, owner: Owner) -> None:
        """A worker gives back what it does not know of: all but its posts in flight, and the last of those too."""
        self._disturb(owner)
        owner.hands, owner.flights = [], owner.flights[:-1]
        owner.worker.keep_only(*(each.candidate.leased.id for _, each in owner.flights))

    def pass_time(self, seconds: float) -> None:
        """Those who live renew their leases meanwhile."""
        while seconds > 0:
            self.stage.clock.forward(min(seconds, 10))
            seconds -= 10
            for owner in self.owners:
                owner.worker.outbox.renew()

    # Until nothing is left

    def drain(self, rounds: int = 5_000) -> None:
        """Workers sleep until the instant that ``take`` named, or until the bell wakes one."""
        for _ in range(rounds):
            if not self.work_at_this_instant():
                return
            wakes_us = min(owner.wakes_us for owner in self.owners)
            self.pass_time(max(0, wakes_us - self.stage.clock.now_us) / US)
        raise AssertionError(f"not drained: {self.stage.snapshot()}")

    def work_at_this_instant(self, rounds: int = 1_000) -> bool:
        """Who is awake works until all sleep; whether anything is left that waits or is held."""
        stage = self.stage
        for _ in range(rounds):
            stage.collect_tokens()
            now_us = stage.clock.now_us
            awake = [owner for owner in self.owners if owner.hands or owner.wakes_us <= now_us]
            listening = [owner for owner in self.owners if len(owner.flights) < SENDERS]
            if awake:
                self._work(awake[0])
            elif stage.tokens and listening:
                stage.tokens -= 1
                self._work(min(listening, key=lambda owner: owner.wakes_us))
            else:
                snapshot = stage.snapshot()
                return bool(snapshot.waiting or snapshot.parked or snapshot.in_flight)
        raise AssertionError(f"no end at one instant: {stage.snapshot()}")

    def _work(self, owner: Owner) -> None:
        now_us = self.stage.clock.now_us
        while owner.flights and owner.flights[0][0] + LATENCY_US <= now_us:
            self.answer(owner, 0, self.result(owner.flights[0][1]))
        free = max(0, SENDERS - len(owner.flights))
        if owner.hands:
            self.dispatch(owner, free)
            return
        taken = self.take(owner, 5, free, ahead=True)
        instants = [taken.again_us(can_post=len(owner.flights) < SENDERS)]
        instants += [at_us + LATENCY_US for at_us, _ in owner.flights[:1]]
        owner.wakes_us = now_us if owner.hands or taken.more else min(instants)

    def fate(self, started: Started) -> Fate:
        """Of a post without an answer; the same in every run."""
        return Fate(crc32(started.candidate.leased.id.encode()) % len(Fate))

    def scan(self, search: Search) -> ScanResult:
        """What the channel shows of posts without an answer."""
        fates = {id_: Fate(crc32(id_.encode()) % len(Fate)) for id_ in search.event_ids}
        landed = {started.candidate.leased.id for _, started in self.posted}
        found = {
            id_: Receipt(search.channel, "1.1") for id_, fate in fates.items() if fate is Fate.LANDED and id_ in landed
        }
        return ScanResult(found, Unreadable("webhook", "x") if Fate.UNREADABLE in fates.values() else Absent())

    def result(self, started: Started) -> PostResult:
        """What becomes of a post while the walk drains."""
        return Receipt(started.candidate.terms.channel, "1.1")

    # What has to hold at the end

    def verify(self) -> None:
        """Every event ended once and is on record, no limit was exceeded, nobody was overtaken, nothing is left."""
        self._every_event_ended_once()
        self._no_limit_was_exceeded()
        self._nobody_was_overtaken()
        self._no_key_is_left()

    def outcomes(self) -> dict[str, Outcome]:
        return {
            each.subject.id: each.outcome
            for worker in self.workers
            for each in worker.told.settlements
            if not isinstance(each.outcome, Parked)
        }

    def _every_event_ended_once(self) -> None:
        ended = Counter(
            each.subject.id
            for worker in self.workers
            for each in worker.told.settlements
            if not isinstance(each.outcome, Parked)
        )
        assert ended == Counter(self.sent.keys())
        recorded = {decision.id: decision.outcome for decision in self.stage.decisions.newest()}
        assert recorded == {id_: _word(outcome) for id_, outcome in self.outcomes().items()}
        assert len(self.stage.letters()) == sum(word == "dead" for word in recorded.values())
        expired = {letter["id"] for letter in self.stage.letters() if letter["reason"] == "expired"}
        assert all(self.sent[id_].max_age for id_ in expired), "somebody waited for a day"

    def _no_limit_was_exceeded(self) -> None:
        scopes: dict[str, tuple[Limit, ...]] = {}
        instants: dict[str, list[int]] = {}
        for at_us, started in self.posted:
            for demand in started.candidate.terms.scopes:
                if isinstance(demand, Scope):
                    scopes[demand.name] = demand.limits
                    instants.setdefault(demand.name, []).append(at_us)
        for name, limits in scopes.items():
            for limit in limits:
                assert most_in_any_window(instants[name], limit.window_us) <= limit.max, f"{name} exceeded {limit}"

    def _nobody_was_overtaken(self) -> None:
        """Of a line and a priority, those first seen earlier were admitted earlier, unless they were disturbed."""
        latest: dict[tuple[str, Lane], int] = {}
        by_seq = {str(leased.seq): leased for leased in self.taken.values()}
        for slot in self.admissions:
            leased = by_seq[slot]
            if self.stage.policy.rule(leased.event.category).on_limit is not OnLimit.DEFER:
                continue
            place = (self.stage.policy.line(leased.event), leased.event.priority)
            assert leased.id in self.disturbed or leased.seq >= latest.get(place, 0), f"{leased} was overtaken"
            latest[place] = max(latest.get(place, 0), leased.seq)

    def _note_admissions(self, asking: Sequence[Asking], answer: Admitting) -> None:
        for each, verdict in zip(asking, answer.verdicts, strict=True):
            slot = each.candidate.leased.slot
            if isinstance(verdict, Admitted) and "#" not in slot and slot not in self.admissions:
                self.admissions.append(slot)

    def _no_key_is_left(self) -> None:
        for owner in self.owners:
            owner.worker.decided()
        keys = self.stage.keys
        names = (keys.events, keys.lines, keys.timers, keys.parked, keys.awaited, keys.deferred, keys.deciding)
        left = [name for name in (*names, keys.requeued, keys.posting) if self.stage.redis.exists(name)]
        left += [
            str(key)
            for prefix in (keys.line_prefix, keys.waits_prefix, keys.leased_prefix)
            for key in self.stage.redis.keys(f"{prefix}*")
        ]
        assert left == []

    def _hold(self, owner: Owner, batch: Sequence[Leased | Undecodable]) -> None:
        for each in batch:
            assert isinstance(each, Leased)
            self.taken[each.id] = each
            self.taken_us[each.id] = self.stage.clock.now_us
        if batch:
            owner.hands.append(batch)

    def _disturb(self, owner: Owner) -> None:
        self.disturbed |= {each.id for batch in owner.hands for each in batch}
        self.disturbed |= {started.candidate.leased.id for _, started in owner.flights}

    def _replace(self, at: int) -> None:
        worker = self.stage.worker(f"owner{len(self.workers)}")
        worker.desk.shows = self.scan
        self.workers.append(worker)
        self.owners[at] = Owner(worker)


def _word(outcome: Outcome) -> str:
    match outcome:
        case Sent():
            return "sent"
        case Dropped():
            return "dropped"
        case DeadLettered():
            return "dead"
        case _:
            raise TypeError(f"{outcome} is no end")
