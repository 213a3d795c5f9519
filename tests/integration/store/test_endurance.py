"""What has to hold over stops, deaths, reconnections and changed limits: nobody waits for what is not so any more.

In made-up time. The calls of several workers are interleaved by hand, as they may come by chance.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from dispatcher.core.event import Event
from dispatcher.core.limits import Limit, Opening, Reason
from dispatcher.core.pipeline import Capacity
from dispatcher.core.policy import CategoryRule, OnLimit
from dispatcher.core.posts import Ambiguous, RateLimitedBySlack, Receipt, Rejected, Retryable
from dispatcher.core.reconciliation import scans
from dispatcher.core.states import DeadLettered, Leased, Unconfirmed, Undecodable
from dispatcher.core.units import US, Lane
from dispatcher.errors import GateUnavailable, InvalidEvent
from tests.support.deferral import category_line, keep_beating, marks, opens_at, posted, send
from tests.support.doubles import NOTHING_TO_READ, START_US
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, LEASE_US, UNPACED, Stage, Worker, policy_of

LEASE_S = LEASE_US // US
UNDELIVERABLE = Rejected("channel_not_found", "no such channel")


def rule(on_limit: OnLimit, limits: str = "", guarantee: int = 0) -> CategoryRule:
    parsed = tuple(Limit.parse(limit) for limit in limits.split(",") if limit)
    return CategoryRule(parsed, UNPACED, on_limit, 86_400 * US, guarantee)


def charge(stage: Stage, slot: str, scope: str) -> None:
    """Somebody else takes a slot of one of the scopes that errors are counted against."""
    of_errors = [each for each in stage.policy.scopes("errors") if getattr(each, "name", None) == scope]
    assert len(of_errors) == 1
    stage.gate.try_acquire_many([(slot, tuple(of_errors))])


def dispatch_while(worker: Worker, batch: Sequence[Leased | Undecodable], happens: Callable[[], object]) -> None:
    """Decide about the batch; what happens does so between the gate's answer and what follows from it."""
    worker.stage.once_after_admit(happens)
    worker.dispatcher.dispatch(batch, worker.stage.clock.now_us, Capacity(100))


def admitted_by_one_who_dies(stage: Stage, id_: str, category: str = "errors") -> None:
    """An event that has its slots, and whose worker ended between the gate's answer and the start of the post."""
    send(stage, id_, category=category)
    victim = stage.worker("victim")
    (leased,) = victim.take().batch
    assert isinstance(leased, Leased)
    stage.gate.try_acquire_many([(leased.slot, stage.policy.terms(leased).scopes)])


def kill_twice(stage: Stage, id_: str, witness: str) -> None:
    """Two workers take the event and die with it."""
    for n in range(2):
        assert stage.worker(f"victim{n}").taken() == [id_]
        keep_beating(stage, LEASE_S, witness)


@pytest.fixture
def stage(redis: Database) -> Stage:
    return Stage(redis, policy_of("", "1/1m", on_limit=OnLimit.DEFER))


@pytest.fixture
def ann(stage: Stage) -> Worker:
    """A worker that has posted ``a`` in vain: it holds its slot, for which ``b`` was refused and waits."""
    ann = stage.worker("ann")
    send(stage, "a")
    (first,) = ann.go()
    ann.answer(first, Retryable("refused", "connection refused"))
    send(stage, "b")
    ann.run()
    assert stage.snapshot().deferred == {"errors": 1}
    stage.clock.now_us += BACKOFF_US
    return ann


# Who waits for a slot that an event holds


def test_a_held_slot_blocks_for_a_window_after_its_post_by_a_worker_that_stops(stage: Stage, ann: Worker) -> None:
    (again,) = ann.go()
    ann.keep_only("a")
    ann.answer(again, Receipt(UNPACED, "1.0"))
    ann.give_back()
    bob = stage.worker("bob")
    bob.run()
    assert posted(stage) == ["a", "a"]
    keep_beating(stage, 60, "bob")
    bob.run()
    assert posted(stage) == ["a", "a", "b"]


def test_a_held_slot_blocks_for_a_window_after_its_post_by_a_worker_that_dies(stage: Stage, ann: Worker) -> None:
    ann.go()
    bob = stage.worker("bob")
    keep_beating(stage, 30, "bob")
    bob.run()
    assert posted(stage) == ["a", "a", "a"]
    keep_beating(stage, 60, "bob")
    bob.run()
    assert posted(stage)[-1] == "b"


def test_a_held_slot_blocks_for_a_window_after_its_post_by_a_worker_that_lost_the_server(
    stage: Stage, ann: Worker
) -> None:
    def lose() -> None:
        raise GateUnavailable("no answer")

    batch = ann.take().batch
    with pytest.raises(GateUnavailable):
        dispatch_while(ann, batch, lose)
    assert ann.keep_only() == 1
    ann.run()
    assert posted(stage) == ["a", "a"]
    keep_beating(stage, 60, "keeper")
    ann.run()
    assert posted(stage) == ["a", "a", "b"]


@pytest.mark.usefixtures("ann")
def test_a_line_that_finds_only_held_slots_asks_again_within_a_window(stage: Stage) -> None:
    assert stage.held("category:errors") == {"a": START_US + 86_400 * US}
    assert category_line(stage) == ["b"]
    assert opens_at(stage, "category:errors") == START_US + 60 * US


def test_a_retry_that_finds_only_held_slots_waits_no_longer_than_a_window(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/1m"))
    ann = stage.worker()
    send(stage, "b")
    (post,) = ann.go()
    ann.answer(post, Ambiguous("http_500", "no answer"))
    ann.desk.shows = lambda _: NOTHING_TO_READ
    keep_beating(stage, 60, "ann")
    send(stage, "a")
    (other,) = ann.go(due=0)
    ann.answer(other, RateLimitedBySlack(2 * US, "ratelimited"))
    ann.run()
    stage.clock.now_us += BACKOFF_US
    ann.run()
    assert stage.redis.zscore(stage.keys.timers, "b") == stage.clock.now_us + 60 * US


# Slots that become free while somebody is refused for them


def test_a_refusal_for_a_held_slot_charged_meanwhile_blocks_for_a_window(
    stage: Stage,
) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    send(stage, "a")
    (first,) = ann.go()
    ann.answer(first, Retryable("refused", "connection refused"))
    stage.clock.now_us += BACKOFF_US
    retry = ann.take(new=0).batch
    send(stage, "b")
    batch = bob.take().batch
    dispatch_while(bob, batch, lambda: ann.deliver(ann.dispatch(retry)))
    assert (posted(stage), category_line(stage)) == (["a", "a"], ["b"])
    assert opens_at(stage, "category:errors") == stage.clock.now_us + 60 * US


def test_a_head_that_was_refused_while_a_slot_was_given_back_asks_again_at_once(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "2/1m", on_limit=OnLimit.DEFER))
    ann = stage.worker("ann")
    send(stage, "x", "a")
    posts = ann.go()
    ann.answer(posts[0], Receipt(UNPACED, "1.0"))
    send(stage, "b", "c")
    ann.run()
    assert category_line(stage) == ["b", "c"]
    eve = stage.worker("eve")
    head = eve.take().batch
    assert [each.id for each in head] == ["b"]
    dispatch_while(eve, head, lambda: ann.answer(posts[1], UNDELIVERABLE))
    assert category_line(stage) == ["b", "c"]
    eve.run()
    assert (posted(stage), category_line(stage)) == (["x", "a", "b"], ["c"])


def test_an_opening_instant_is_stale_if_a_slot_was_given_back_since(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "2/1m", on_limit=OnLimit.DEFER))
    ann, eve = stage.worker("ann"), stage.worker("eve")
    send(stage, "x")
    ann.run()
    keep_beating(stage, 10, "ann", "eve")
    send(stage, "a")
    (post,) = ann.go()
    send(stage, "b", "c")
    ann.run()
    keep_beating(stage, 50, "ann", "eve")
    head = eve.take(new=0, due=1).batch
    assert [each.id for each in head] == ["b"]
    started = eve.dispatch(head)
    ann.answer(post, UNDELIVERABLE)
    eve.deliver(started)
    eve.run()
    assert posted(stage) == ["x", "a", "b", "c"]


def test_a_refused_event_gives_back_the_slots_of_its_dead_worker_to_waiting_events(
    redis: Database,
) -> None:
    deferring = rule(OnLimit.DEFER)
    policy = replace(policy_of("2/1h", ""), categories={"errors": rule(OnLimit.DEFER, "1/1m")}, defaults=deferring)
    stage = Stage(redis, policy)
    bob = stage.worker("bob")
    admitted_by_one_who_dies(stage, "a")
    keep_beating(stage, 70, "bob")
    charge(stage, "somebody", "category:errors")
    charge(stage, "somebody", "global")
    send(stage, "g", category="deploys")
    bob.run()
    assert (posted(stage), category_line(stage)) == (["g"], ["a"])
    assert set(stage.slots("global")) == {"somebody", "g"}


@pytest.mark.parametrize(
    ("first", "second", "awaited"),
    [("deploys", "errors", "shared"), ("errors", "deploys", "guarantee:errors")],
    ids=["the guarantee", "what the guarantees leave"],
)
def test_a_waiting_event_takes_a_slot_of_its_guarantee_or_of_shared_whichever_comes_back(
    redis: Database, first: str, second: str, awaited: str
) -> None:
    categories = {"errors": rule(OnLimit.DEFER, guarantee=1), "vip": rule(OnLimit.DROP, guarantee=1)}
    stage = Stage(redis, replace(policy_of("3/1h", ""), categories=categories, defaults=rule(OnLimit.DROP)))
    ann = stage.worker()
    send(stage, "a", category=first)
    ann.run()
    stage.clock.forward(10)
    send(stage, "b", category=second)
    (post,) = ann.go()
    send(stage, "c")
    ann.run()
    assert opens_at(stage, awaited) == START_US + 3_600 * US
    ann.answer(post, UNDELIVERABLE)
    ann.run()
    assert posted(stage) == ["a", "b", "c"]


@pytest.fixture
def guaranteed(redis: Database) -> Stage:
    """Of 4 in 10 minutes 2 are kept for ``errors`` and 1 for ``vip``; ``deploys`` share the last one, and all wait."""
    deferring = rule(OnLimit.DEFER)
    categories = {"errors": replace(deferring, guarantee=2), "vip": replace(deferring, guarantee=1)}
    return Stage(redis, replace(policy_of("4/10m", ""), categories=categories, defaults=deferring))


def test_a_guarantee_is_used_though_older_events_wait_for_what_the_guarantees_leave(guaranteed: Stage) -> None:
    ann = guaranteed.worker()
    send(guaranteed, "d1", category="deploys")
    ann.run()
    guaranteed.clock.forward(10)
    send(guaranteed, "e1", "e2")
    ann.run()
    send(guaranteed, "d2", "d3", category="deploys")
    send(guaranteed, "e3", "e4")
    ann.run()
    guaranteed.clock.forward(590)
    ann.run()
    assert posted(guaranteed) == ["d1", "e1", "e2", "d2"]
    guaranteed.clock.forward(10)
    ann.run()
    assert posted(guaranteed) == ["d1", "e1", "e2", "d2", "e3", "e4"]


def test_a_guaranteed_category_goes_on_with_what_all_share_when_its_guarantee_is_used_up(guaranteed: Stage) -> None:
    ann = guaranteed.worker()
    send(guaranteed, "e1", "e2", "e3", "e4", "e5")
    ann.run()
    assert posted(guaranteed) == ["e1", "e2", "e3"]
    guaranteed.clock.forward(600)
    ann.run()
    assert posted(guaranteed) == ["e1", "e2", "e3", "e4", "e5"]


def test_a_slot_of_a_guarantee_that_comes_back_is_used_at_once(guaranteed: Stage) -> None:
    ann = guaranteed.worker()
    send(guaranteed, "d1", category="deploys")
    ann.run()
    guaranteed.clock.forward(10)
    send(guaranteed, "e1", "e2")
    posts = ann.go()
    send(guaranteed, "d2", category="deploys")
    send(guaranteed, "e3")
    ann.run()
    for post in posts:
        ann.answer(post, UNDELIVERABLE if post.candidate.leased.id == "e1" else Receipt(UNPACED, "1.0"))
    ann.run()
    assert "e3" in posted(guaranteed)


def test_what_all_share_is_used_at_once_when_an_event_moves_from_it_to_its_guarantee(guaranteed: Stage) -> None:
    ann = guaranteed.worker()
    send(guaranteed, "e1", "e2")
    ann.run()
    send(guaranteed, "e3")
    (post,) = ann.go()
    send(guaranteed, "d1", category="deploys")
    ann.answer(post, RateLimitedBySlack(700 * US, "ratelimited"))
    ann.run()
    assert "e3" in guaranteed.held("shared")
    for seconds in (600, 100):
        guaranteed.clock.forward(seconds)
        ann.run()
    assert posted(guaranteed)[3:] == ["e3", "d1"]


# Changed limits


@pytest.fixture
def following(redis: Database) -> tuple[Stage, Worker]:
    """A worker that follows limits under which events of ``errors`` and ``deploys`` wait for one limit."""
    stage = Stage(redis)
    ann = stage.worker("ann")
    ann.follow(stage.put_in_force(deferring("{errors: {}, vip: {guarantee: 1}}")))
    return stage, ann


def deferring(categories: str, max_age: str = "24h") -> str:
    return (
        f'channels: {{"{UNPACED}": {{pace: none}}}}\nglobal: {{limits: [3/1h]}}\n'
        f"defaults: {{limits: [], on_limit: defer, max_age: {max_age}}}\ncategories: {categories}\n"
    )


def test_a_guarantee_that_was_given_later_is_used_though_older_events_wait(following: tuple[Stage, Worker]) -> None:
    stage, ann = following
    send(stage, "d1", "d2", category="deploys")
    ann.run()
    send(stage, *(f"d{n}" for n in range(3, 6)), category="deploys")
    send(stage, "e1")
    ann.run()
    assert posted(stage) == ["d1", "d2"]
    ann.follow(stage.put_in_force(deferring("{errors: {guarantee: 1}, vip: {}}")))
    ann.run()
    assert posted(stage) == ["d1", "d2", "e1"]


def test_a_max_age_that_was_shortened_ends_what_waits_behind_the_first_too(following: tuple[Stage, Worker]) -> None:
    stage, ann = following
    send(stage, *(f"d{n}" for n in range(6)), category="deploys")
    ann.run()
    ann.follow(stage.put_in_force(deferring("{errors: {}, vip: {guarantee: 1}}", max_age="8s")))
    ann.run()
    stage.clock.forward(9)
    ann.run()
    assert (stage.total("sent"), stage.total("dead")) == (2, 4)


def test_limits_that_were_raised_reach_what_waits_with_the_next_worker(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/12h", on_limit=OnLimit.DEFER))
    ann = stage.worker("ann")
    send(stage, "a", "b")
    ann.run()
    ann.give_back()
    stage.policy = policy_of("", "100/1m", on_limit=OnLimit.DEFER)
    send(stage, "c")
    stage.worker("bob").run()
    assert posted(stage) == ["a", "b", "c"]


# Events that end without a post


def test_an_event_that_killed_three_workers_gives_back_what_it_held(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/1m", pace="1/10s"))
    ann = stage.worker("ann")
    stage.send("a")
    (post,) = ann.go()
    ann.answer(post, RateLimitedBySlack(2 * US, "ratelimited"))
    ann.give_back()
    keep_beating(stage, 10, "keeper")
    for n in range(3):
        assert stage.worker(f"victim{n}").taken() == ["a"]
        assert set(stage.held("category:errors")) == {"a"}
        keep_beating(stage, LEASE_S, "keeper")
    stage.worker("bob").run()
    assert [letter["reason"] for letter in stage.letters()] == [Reason.EXHAUSTED]
    assert stage.slots("category:errors") == {}


def test_an_event_of_a_removed_category_gives_back_the_slots_of_its_dead_worker(
    redis: Database,
) -> None:
    stage = Stage(redis, policy_of("5/1h", ""))
    admitted_by_one_who_dies(stage, "a", category="deploys")
    assert set(stage.slots("global")) == {"a"}
    stage.policy = replace(stage.policy, reject_unknown=True)
    keep_beating(stage, LEASE_S, "bob")
    stage.worker("bob").run()
    assert [letter["code"] for letter in stage.letters()] == ["unknown_category"]
    assert stage.slots("global") == {}


def test_an_event_that_cannot_be_read_at_its_turn_frees_its_channel_for_the_next(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "", pace="1/10s"))
    ann = stage.worker()
    stage.send("a", "b", "c", channel="#x")
    (post,) = ann.go()
    ann.answer(post, Receipt("#x", "1.0"))
    assert stage.line("#x") == ["b", "c"]
    header, _, payload = redis.hget(stage.keys.events, "b").partition(b"\n")
    redis.hset(
        stage.keys.events, "b", header + b"\n" + payload.replace(b"text of b", b"")
    )  # as a stricter version sees it
    stage.clock.forward(10)
    ann.run()
    assert [(letter["id"], letter["reason"]) for letter in stage.letters()] == [("b", Reason.INVALID)]
    assert posted(stage) == ["a", "c"]
    assert stage.posting("#x") is None


def test_an_unconfirmed_event_whose_terms_cannot_be_found_is_a_dead_letter_by_itself() -> None:
    with pytest.raises(InvalidEvent, match="well-formed"):
        Event("errors", "x", labels={"host": "\ud800"})
    event = Event("errors", "x")
    event.__dict__["max_age"] = "tomorrow"  # as a defect of ours might leave it
    leased = Leased("e", event, 1, START_US, unconfirmed=Unconfirmed(START_US, START_US))
    found, (end,) = scans([leased], policy_of(), START_US)
    assert found == []
    assert isinstance(end.outcome, DeadLettered)
    assert (end.outcome.reason, end.outcome.detail.split(":")[0]) == (Reason.INVALID, "cannot be handled")


# Takes


def test_an_event_that_two_workers_died_with_is_taken_alone_at_its_channels_turn(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "", pace="1/1m"))
    ann = stage.worker("ann")
    stage.send("a", channel="#x")
    assert stage.worker("victim0").taken() == ["a"]
    keep_beating(stage, LEASE_S, "ann")
    assert stage.worker("victim1").taken() == ["a"]
    stage.clock.forward(10)
    stage.send("x", channel="#x")
    ann.run()
    keep_beating(stage, LEASE_S - 10, "ann")
    ann.dispatch(ann.take().batch)
    assert (posted(stage), stage.line("#x")) == (["x"], ["a"])
    keep_beating(stage, 60, "ann")
    send(stage, "b", "c")
    assert ann.taken() == ["a"]
    assert ann.taken() == ["b", "c"]


def test_a_poison_candidate_is_taken_alone_out_of_its_categorys_line(stage: Stage) -> None:
    ann = stage.worker("ann")
    send(stage, "a")
    kill_twice(stage, "a", "ann")
    charge(stage, "somebody", "category:errors")
    ann.dispatch(ann.take().batch)
    assert category_line(stage) == ["a"]
    keep_beating(stage, 60, "ann")
    send(stage, "b", "c", category="deploys")
    assert ann.taken() == ["a"]
    assert ann.taken() == ["b", "c"]


def test_a_poison_candidate_stays_in_its_line_while_earlier_events_are_due(
    stage: Stage,
) -> None:
    ann = stage.worker("ann")
    send(stage, "a")
    kill_twice(stage, "a", "ann")
    charge(stage, "somebody", "category:errors")
    ann.dispatch(ann.take().batch)
    send(stage, "retry", category="deploys")
    (post,) = ann.go()
    ann.answer(post, Retryable("refused", "connection refused"))
    keep_beating(stage, 60, "ann")
    assert ann.taken() == ["retry"]
    assert ann.taken() == ["a"]


def test_a_poison_candidate_in_a_line_goes_before_timers_that_are_due_later(stage: Stage) -> None:
    ann = stage.worker("ann")
    send(stage, "a")
    kill_twice(stage, "a", "ann")
    charge(stage, "somebody", "category:errors")
    ann.dispatch(ann.take().batch)
    keep_beating(stage, 60, "ann")
    send(stage, "retry", category="deploys")
    (post,) = ann.go(due=0)
    ann.answer(post, Retryable("refused", "connection refused"))
    keep_beating(stage, 60, "ann")
    assert [ann.taken(), ann.taken()] == [["a"], ["retry"]]


def test_due_events_behind_a_poison_candidate_wait_until_it_was_taken_alone(stage: Stage) -> None:
    ann = stage.worker("ann")
    send(stage, "a")
    kill_twice(stage, "a", "ann")
    posts = {each.candidate.leased.id: each for each in ann.go()}
    send(stage, "before", category="deploys")
    send(stage, "after", category="others")
    posts |= {each.candidate.leased.id: each for each in ann.go()}
    for id_ in ("before", "a", "after"):
        ann.answer(posts[id_], Retryable("refused", "connection refused"))
        stage.clock.forward(1)
    keep_beating(stage, 60, "ann")
    assert [ann.taken(), ann.taken(), ann.taken()] == [["before"], ["a"], ["after"]]


def test_two_poison_candidates_are_taken_one_by_one_even_if_both_have_room(stage: Stage) -> None:
    ann = stage.worker("ann")
    charge(stage, "somebody", "category:errors")
    send(stage, "a", "b")
    ann.dispatch(ann.take().batch)
    for id_ in ("a", "b"):  # as they would stand there after it
        header, _, payload = (stage.redis.hget(stage.keys.events, id_) or b"").partition(b"\n")
        stage.redis.hset(
            stage.keys.events, id_, json.dumps({**json.loads(header), "deaths": 2}) + "\n" + payload.decode()
        )
    keep_beating(stage, 60, "ann")
    send(stage, "c", category="deploys")
    ann.outbox.expect([Opening("category:errors", stage.clock.now_us, 2)])
    assert [ann.taken(), ann.taken(), ann.taken()] == [["a"], ["b"], ["c"]]


def test_a_batch_that_was_asked_for_ahead_and_is_empty_leaves_nothing_to_wait_for(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "", pace="1/1s"))
    ann, bob = stage.worker("ann"), stage.worker("bob")
    send(stage, "a", "b")
    first = ann.take(new=1)
    bob.run()
    ann.outbox.prefetch(first, 100, 100)
    assert ann.outbox.ahead == 1
    ann.dispatch(first.batch)
    assert ann.taken() == []
    assert marks(stage) == set()
    stage.send("c", channel="#x")
    bob.run()
    assert posted(stage) == ["b", "a", "c"]


def test_no_event_waits_for_undecided_events_of_a_dead_worker_after_a_step_back_of_the_clock(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "", pace="1/1s"))
    stage.send("a", channel="#x")
    assert stage.worker("ann").taken() == ["a"]
    stage.clock.forward(-3_600)
    stage.send("b", channel="#x")
    stage.worker("bob").run()
    assert posted(stage) == ["b"]


def test_events_of_stopped_workers_are_handed_out_eight_mebibytes_at_a_time(stage: Stage) -> None:
    for n in range(10):
        stage.redis.hset(f"rq:job:j{n}", "data", b"[" * 2**20)
        stage.redis.rpush(stage.queue.lane(Lane.NORMAL), f"j{n}")
    ann = stage.worker("ann")
    assert len(ann.taken()) == 10
    ann.give_back()
    bob = stage.worker("bob")
    takes = [bob.take(), bob.take()]
    assert [[each.id for each in taken.batch] for taken in takes] == [[f"j{n}" for n in range(8)], ["j8", "j9"]]
    assert [taken.more for taken in takes] == [True, False]
