"""With the pre-check and without: the same traffic at the same instants ends in the same way, event by event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from dispatcher.core.event import Event
from dispatcher.core.explain import Decision
from dispatcher.core.limits import Verdict
from dispatcher.core.posts import PostResult, Receipt, Rejected
from dispatcher.core.states import Started
from dispatcher.core.units import Lane
from dispatcher.store.decisions import Decisions
from dispatcher.store.intake import seal, shown_of
from tests.support.servers import Database
from tests.support.stage import Stage, Worker

CATEGORIES: Final = ("errors", "deploys", "kept", "mystery")

LIMITS: Final = (
    """\
global: {limits: [4/10s, 12/1m]}
channels: {default: {pace: none}}
defaults: {limits: [2/10s, 5/1m]}
categories:
  errors: {limits: [3/20s]}
  deploys: {limits: [2/1m fixed]}
  kept: {guarantee: 2}
""",
    """\
global: {limits: [9/1m]}
channels: {default: {pace: none}}
defaults: {limits: [1/30s]}
categories:
  deploys: {limits: [4/30s], on_limit: dead-letter}
  kept: {guarantee: 3, limits: []}
""",
    """\
global: {limits: []}
channels: {default: {pace: none}}
defaults: {limits: [2/10s]}
categories:
  errors: {per_label: {host: [1/1m]}}
""",
)
RESULTS: Final[tuple[PostResult, ...]] = (
    Receipt("#general", "1.1"),
    Receipt("#general", "1.2"),
    Rejected("is_archived", "archived"),
)


@dataclass(slots=True)
class World:
    """A namespace with two workers that take by turns; ``has_prefilter`` says whether these name anything."""

    stage: Stage
    has_prefilter: bool
    workers: list[Worker] = field(default_factory=list)
    births: int = 0
    sent: list[str] = field(default_factory=list)
    followed: dict[str, str] = field(default_factory=dict)
    prefiltered: int = 0

    def __post_init__(self) -> None:
        self.publish(0)
        self.workers = [self._bear(), self._bear()]

    def _bear(self) -> Worker:
        self.births += 1
        worker = self.stage.worker(f"w{self.births}")
        self._follow(worker)
        return worker

    def _follow(self, worker: Worker) -> None:
        version = self.stage.versions.in_force()
        assert version is not None
        worker.follow(version)
        self.followed[worker.owner] = version.name

    def publish(self, at: int) -> None:
        """Other limits; workers hear of it as they take."""
        self.stage.put_in_force(LIMITS[at])

    def send(self, count: int, category: str, lane: Lane, *, named: bool, marked: bool) -> None:
        """Events with ids of their own or without; without a mark, as a stock producer sends them."""
        for _ in range(count):
            id_ = f"e{len(self.sent)}"
            self.sent.append(id_)
            event = Event(category, "t", id=id_ if named else None, priority=lane, labels={"host": "a"})
            self.stage.intake.enqueue([(id_, event)])
            if not marked:
                self.stage.redis.hdel(self.stage.queue.job(id_), "category", "shown")

    def send_again(self, nth: int, lane: Lane) -> None:
        """One of the ids once more, by a producer that does not look."""
        if self.sent:
            id_ = self.sent[nth % len(self.sent)]
            event = Event("errors", "t", labels={"host": "a"})
            fields = {"data": seal(event), "category": "errors 1", "shown": shown_of(event)}
            self.stage.redis.hset(f"rq:job:{id_}", mapping=fields)
            self.stage.redis.rpush(self.stage.queue.lane(lane), id_)

    def run(self, new: int, results: Sequence[PostResult], dies: int) -> None:
        """Take by turns until nothing is left. One who dies leaves a post unanswered, and another takes its place."""
        answered = idle = turn = 0
        while idle < 2:
            assert turn < 400, "they find something to do for ever"
            worker = self.workers[turn % 2]
            started = self._take(worker, new)
            idle = idle + 1 if started is None else 0
            for each in started or ():
                answered += 1
                if answered == dies:
                    self.workers[turn % 2] = self._bear()
                    break
                worker.answer(each, results[answered % len(results)])
            turn += 1

    def _take(self, worker: Worker, new: int) -> list[Started] | None:
        """Who was started of a batch, or None where there was none."""
        if not self.has_prefilter:
            worker.prefilter.clear()
        expected = {category: self._ask(worker, category) for category in CATEGORIES}
        taken = worker.take(new)
        for category, denied, names, seen_us in taken.prefiltered:
            assert seen_us == taken.now_us
            assert denied == expected[category]
            self.prefiltered += len(names)
        if taken.version != self.followed[worker.owner]:
            assert taken.prefiltered == []
            self._follow(worker)
        if not (taken.batch or taken.prefiltered or taken.duplicates):
            return None
        return worker.dispatch(taken.batch, silences=taken.silences)

    def _ask(self, worker: Worker, category: str) -> Verdict:
        """What a new event of the category would be answered now."""
        (verdict,) = self.stage.gate.peek([("new", worker.policy.scopes(category))])
        return verdict

    def ends(self) -> dict[str, object]:
        """All that is stored of what became of events, and the order in which they were posted.

        Several limits may refuse one event. The pre-check asks them before the events ahead in the same batch are
        decided, so it may name another one of them than the gate does.
        """
        redis, keys = self.stage.redis, self.stage.keys
        return {
            "ended": {each.id: _without_scope(each) for each in reversed([*Decisions(redis, keys).newest()])},
            "remembered": redis.zrange(keys.seen, 0, -1, withscores=True),
            "totals": _without_limits(redis.hgetall(keys.totals)),
            "waiting": set(redis.hkeys(keys.events)),
            "posted": [(at_us, started.candidate.leased.id) for at_us, started in self.stage.attempts],
            "slots": {key: redis.zrange(key, 0, -1, withscores=True) for key in redis.scan_iter(keys.scope("*"))},
        }


def _without_limits(totals: dict[bytes, bytes]) -> Counter[str]:
    """The books without the limits that dropped events."""
    found: Counter[str] = Counter()
    for counted, number in totals.items():
        name, limit, _ = counted.decode().partition(" limit:")
        found[name + limit] += int(number)
    return found


def _without_scope(decision: Decision) -> Decision:
    """A decision without the limit that it names, where a limit has dropped the event."""
    if decision.outcome != "dropped" or not decision.reason.startswith("limit:"):
        return decision
    return replace(decision, reason="limit", scope=None, limit=None, fits_at_us=None)


@dataclass(slots=True)
class Worlds:
    """The two of them. Where ``new`` is small batches are cut elsewhere, so nothing may depend on where."""

    both: tuple[World, World]
    new: int

    def step(self, happens: Callable[[World], None]) -> None:
        for world in self.both:
            happens(world)
            assert world.stage.snapshot().imbalances() == []

    def work(self, results: Sequence[PostResult], dies: int) -> None:
        self.step(lambda world: world.run(self.new, results, dies))
        with_prefilter, without = (world.ends() for world in self.both)
        assert with_prefilter == without


Step: TypeAlias = Callable[[Worlds], None]
ALL_AT_ONCE: Final = 500


def _send(count: int, category: str, lane: Lane, named: bool, marked: bool) -> Step:  # noqa: FBT001 - as it is drawn
    return lambda worlds: worlds.step(lambda world: world.send(count, category, lane, named=named, marked=marked))


def _send_again(nth: int, lane: Lane) -> Step:
    return lambda worlds: worlds.step(lambda world: world.send_again(nth, lane))


def _pass(seconds: float) -> Step:
    def step(worlds: Worlds) -> None:
        for world in worlds.both:
            world.stage.clock.forward(seconds)

    return step


def _publish(at: int) -> Step:
    return lambda worlds: worlds.step(lambda world: world.publish(at))


def _work(results: Sequence[PostResult], dies: int) -> Step:
    return lambda worlds: worlds.work(results, dies)


def steps_of(lanes: Sequence[Lane], works: st.SearchStrategy[Step]) -> st.SearchStrategy[Step]:
    lane = st.sampled_from(lanes)
    sends = st.builds(
        _send, st.sampled_from([1, 3, 9, 20]), st.sampled_from(CATEGORIES), lane, st.booleans(), st.booleans()
    )
    passes = st.builds(_pass, st.sampled_from([0.000001, 0.5, 1.2, 3, 9.999999, 10, 31, 61]))
    agains = st.builds(_send_again, st.integers(0, 99), lane)
    publishes = st.builds(_publish, st.integers(0, 2))
    often = [*[sends] * 9, *[works] * 9, *[passes] * 4, agains, publishes]
    return st.sampled_from(often).flatmap(lambda step: step)


whole = st.tuples(
    st.just(ALL_AT_ONCE),
    st.lists(
        steps_of(
            list(Lane),
            st.builds(
                _work, st.lists(st.sampled_from(RESULTS), min_size=1, max_size=4), st.sampled_from([0, 0, 0, 1, 2])
            ),
        ),
        min_size=20,
        max_size=40,
    ),
)
in_pieces = st.tuples(
    st.integers(1, 7),
    st.lists(steps_of([Lane.NORMAL], st.just(_work(RESULTS[:2], 0))), min_size=20, max_size=40),
)


@pytest.fixture
def other(redis_url: str) -> Iterator[Database]:
    """Another database of the same server, empty as well."""
    with Redis.from_url(redis_url.replace("db=0", "db=1")) as client:
        yield client


def explore(redis: Database, other: Database, examples: int) -> tuple[int, int]:
    """How many events were dropped by the pre-check and how many were sent."""
    prefiltered = sent = 0

    @settings(settings.get_profile("walks"), max_examples=examples)
    @given(st.one_of(whole, in_pieces))
    def hold(walk: tuple[int, list[Step]]) -> None:
        nonlocal prefiltered, sent
        redis.flushall()
        new, steps = walk
        worlds = Worlds((World(Stage(redis), has_prefilter=True), World(Stage(other), has_prefilter=False)), new)
        for step in steps:
            step(worlds)
        worlds.work(RESULTS[:1], 0)
        assert worlds.both[1].prefiltered == 0
        prefiltered += worlds.both[0].prefiltered
        sent += worlds.both[0].stage.total("sent")

    search: Callable[[], None] = hold
    search()
    return prefiltered, sent


def test_with_the_pre_check_every_event_ends_as_it_does_without(redis: Database, other: Database) -> None:
    prefiltered, sent = explore(redis, other, 6)
    assert prefiltered >= 50
    assert sent >= 20


@pytest.mark.slow
def test_with_the_pre_check_every_event_ends_as_it_does_without_for_long(redis: Database, other: Database) -> None:
    prefiltered, sent = explore(redis, other, 300)
    assert prefiltered >= 2_000
    assert sent >= 500
