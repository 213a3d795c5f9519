"""Who goes first: what workers say they are deciding, batches prefetched, and what is left of a head that was taken.

In made-up time. ``test_deferred.py`` says what a deferred event's way is; here it is disturbed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatcher.core.limits import Limit
from dispatcher.core.policy import CategoryRule, OnLimit
from dispatcher.core.posts import Receipt, Rejected, Retryable
from dispatcher.core.states import Leased
from dispatcher.core.units import US
from tests.support.deferral import category_line, keep_beating, marks, opens_at, posted, send
from tests.support.doubles import START_US
from tests.support.invariants import INF
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, LEASE_US, UNPACED, Stage, Worker, policy_of

WINDOW_US = 1_800 * US


@pytest.fixture
def stage(redis: Database) -> Stage:
    return Stage(redis, policy_of("100/30m", "2/30m", on_limit=OnLimit.DEFER))


def charge(stage: Stage, slot: str, category: str = "errors") -> None:
    """Somebody else takes a slot of everything that an event of the category is counted against."""
    stage.gate.try_acquire_many([(slot, stage.policy.scopes(category))])


# What a worker is deciding


def test_a_worker_is_deciding_until_it_has_started_its_batch(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b")
    batch = ann.take(new=1).batch
    assert marks(stage) == {"ann"}
    ann.dispatch(batch)
    assert marks(stage) == set()


def test_a_worker_that_starts_nothing_is_deciding_until_its_next_take(stage: Stage, ann: Worker) -> None:
    stage.policy = policy_of("100/30m", "1/30m", on_limit=OnLimit.DROP)
    send(stage, "a")
    ann.go()
    send(stage, "b")
    ann.go()
    assert marks(stage) == {"ann"}
    ann.decided()
    assert marks(stage) == set()


def test_a_worker_that_has_prefetched_is_deciding_when_it_has_started_the_first_batch(
    stage: Stage, ann: Worker
) -> None:
    send(stage, "a", "b", "c")
    first = ann.outbox.take(1, 9)
    ann.outbox.prefetch(first, 1, 9)
    ann.dispatch(first.batch)
    assert marks(stage) == {"ann"}


def test_a_worker_that_gives_back_is_deciding_nothing(stage: Stage, ann: Worker) -> None:
    send(stage, "a")
    ann.take()
    ann.give_back()
    assert marks(stage) == set()


def test_a_mark_counts_from_the_first_event_of_a_batch(stage: Stage, ann: Worker, bob: Worker) -> None:
    send(stage, "a", "b", "c")
    cid = stage.worker("cid")
    cid.take(new=1)
    between = bob.take(new=1).batch
    cid.give_back()
    assert ann.taken(new=2) == ["a", "c"]
    bob.dispatch(between)
    assert (posted(stage), category_line(stage)) == ([], ["b"])


def test_a_mark_still_counts_from_the_batch_before_while_one_is_prefetched(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    send(stage, "a", "b", "c", "d")
    first = ann.outbox.take(1, 9)
    between = bob.take(new=1).batch
    ann.outbox.prefetch(first, 1, 9)
    assert [each.id for each in ann.outbox.take(1, 9).batch] == ["c"]
    bob.dispatch(between)
    assert (posted(stage), category_line(stage)) == ([], ["b"])


def test_events_that_other_workers_left_are_not_prefetched(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", "c", "d")
    cid = stage.worker("cid")
    cid.take(new=1)
    first = ann.outbox.take(1, 9)
    cid.give_back()
    ann.outbox.prefetch(first, 1, 9)
    assert [each.id for each in ann.outbox.take(1, 9).batch] == ["c"]
    assert ann.taken(new=1) == ["a"]


def test_a_batch_is_prefetched_only_where_all_before_it_is_new(stage: Stage, ann: Worker) -> None:
    send(stage, *(f"e{n}" for n in range(6)))
    ann.take(new=1)
    ann.give_back()
    old = ann.take(new=2)
    assert [each.id for each in old.batch] == ["e0", "e1"]
    ann.outbox.prefetch(old, 2, 9)
    ann.decided()
    assert stage.redis.scard(stage.keys.leased("ann")) == 2
    assert old.more


def test_prefetched_events_go_back_with_the_rest(stage: Stage, ann: Worker, bob: Worker) -> None:
    send(stage, *(f"e{n}" for n in range(6)))
    first = ann.outbox.take(2, 9)
    ann.outbox.prefetch(first, 2, 9)
    assert ann.keep_only() == 4
    assert ann.taken() == ["e0", "e1", "e2", "e3", "e4", "e5"]
    assert bob.taken() == []


def test_an_event_that_waits_for_several_workers_waits_for_the_last_of_them(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    send(stage, "a", "b", "c")
    ann.take(new=1)
    stage.clock.now_us += 300_000
    stage.worker("cid").take(new=1)
    stage.clock.now_us += 300_000
    bob.dispatch(bob.take().batch)
    assert category_line(stage) == ["c"]
    bob.decided()
    assert bob.take().next_us == START_US + 300_000 + US


def test_a_worker_that_has_decided_wakes_one_who_waited_for_it(stage: Stage, ann: Worker, bob: Worker) -> None:
    send(stage, "a", "b", "c")
    before = ann.take(new=1).batch
    bob.dispatch(bob.take().batch)
    assert category_line(stage) == ["b", "c"]
    ann.dispatch(before)
    assert stage.rung == 1


def test_a_worker_that_could_take_more_wakes_nobody_for_what_others_are_deciding(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    send(stage, "a", "b", "c")
    stage.worker("cid").take(new=1)
    bob.dispatch(bob.take(new=1).batch)
    bob.decided()
    ann.dispatch(ann.take().batch)
    assert category_line(stage) == ["b", "c"]
    stage.collect_tokens()
    assert ann.taken(new=0, due=9) == []
    assert stage.collect_tokens() == 0


def test_an_earlier_event_of_a_paced_channel_that_is_being_decided_goes_first(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    stage.policy = policy_of("100/30m", "50/30m")
    stage.send("a", "b")
    before = ann.take(new=1).batch
    assert bob.go() == []
    assert stage.line("#general") == ["b"]
    ann.deliver(ann.dispatch(before))
    ann.decided()
    bob.run()
    assert posted(stage) == ["a", "b"]


def test_a_channel_without_pace_waits_for_no_decision(stage: Stage, ann: Worker, bob: Worker) -> None:
    stage.policy = policy_of("100/30m", "50/30m")
    send(stage, "a", "b")
    ann.take(new=1)
    assert [each.candidate.leased.id for each in bob.go()] == ["b"]


# Heads that were taken


def test_of_a_scope_whose_head_is_being_decided_nobody_gets_another_one(stage: Stage, ann: Worker, bob: Worker) -> None:
    send(stage, "a", "b", "low", priority="low")
    ann.run()
    send(stage, "high", priority="high")
    ann.run()
    stage.clock.now_us += WINDOW_US
    assert ann.taken() == ["high"]
    assert opens_at(stage, "category:errors") == INF
    stage.clock.now_us += 2 * US
    assert bob.taken() == []


def test_a_line_waits_for_the_scope_that_refused_its_head_last(redis: Database) -> None:
    policy = policy_of("2/1m", "", on_limit=OnLimit.DEFER)
    slow = CategoryRule((Limit.parse("1/30m"),), UNPACED, OnLimit.DEFER, 86_400 * US)
    stage = Stage(redis, replace(policy, categories={"slow": slow}))
    ann = stage.worker()
    send(stage, "a", "b", category="fast")
    send(stage, "s1", "s2", "s3", category="slow")
    send(stage, "c", category="fast")
    ann.run()
    assert stage.redis.hgetall(stage.keys.awaited) == {b"category:slow": b"global", b"category:fast": b"global"}
    stage.clock.forward(60)
    ann.run()
    assert posted(stage) == ["a", "b", "s1", "c"]
    assert stage.redis.hgetall(stage.keys.awaited) == {b"category:slow": b"category:slow"}
    assert opens_at(stage, "category:slow") == START_US + 60 * US + WINDOW_US
    assert opens_at(stage, "global") is None


def test_a_head_that_is_refused_again_finds_its_place_in_a_full_line(redis: Database) -> None:
    policy = policy_of("100/30m", "1/30m", on_limit=OnLimit.DEFER)
    stage = Stage(redis, replace(policy, categories={"errors": replace(policy.defaults, max_parked=2)}))
    ann, bob = stage.worker("ann"), stage.worker("bob")
    send(stage, "a", "b", "c")
    ann.run()
    stage.clock.now_us += WINDOW_US
    head = ann.take().batch
    send(stage, "d")
    bob.dispatch(bob.take(new=9, due=0).batch)
    assert category_line(stage) == ["c", "d"]
    charge(stage, "somebody")
    ann.dispatch(head)
    assert category_line(stage) == ["b", "c", "d"]
    assert stage.letters() == []
    assert stage.snapshot().deferred == {"errors": 3}


def test_an_admitted_event_asks_again_without_standing_in_line(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b")
    first, second = ann.go()
    ann.answer(first, Retryable("refused", "connection refused"))
    ann.answer(second, Receipt("C1", "1.0"))
    send(stage, "c", priority="high")
    ann.run()
    assert category_line(stage) == ["c"]
    stage.clock.now_us += BACKOFF_US
    assert [each.candidate.leased.id for each in ann.go(new=0)] == ["a"]
    assert category_line(stage) == ["c"]


def test_a_line_refused_for_a_held_slot_goes_on_a_window_after_the_post(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/1m", on_limit=OnLimit.DEFER))
    ann = stage.worker()
    send(stage, "a")
    (first,) = ann.go()
    ann.answer(first, Retryable("refused", "connection refused"))
    send(stage, "b")
    ann.run()
    assert category_line(stage) == ["b"]
    stage.clock.now_us += BACKOFF_US
    ann.run()
    assert posted(stage) == ["a", "a"]
    keep_beating(stage, 60, ann.owner)
    ann.run()
    assert posted(stage) == ["a", "a", "b"]


def test_a_held_slot_that_is_charged_lets_nobody_pass_while_a_head_is_being_decided(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    stage.policy = policy_of("", "2/1m", on_limit=OnLimit.DEFER)
    bob.decided()
    send(stage, "a", "h", "b", "c")
    first, second = ann.go(new=2)
    ann.answer(first, Receipt(UNPACED, "1.0"))
    ann.answer(second, Retryable("refused", "connection refused"))
    ann.run()
    assert category_line(stage) == ["b", "c"]
    stage.clock.now_us += BACKOFF_US
    held = bob.take().batch
    assert [each.id for each in held] == ["h"]
    stage.clock.now_us = START_US + 60 * US
    stage.worker("eve").renew()
    assert ann.taken() == ["b"]
    assert [each.candidate.leased.id for each in bob.dispatch(held)] == ["h"]
    assert opens_at(stage, "category:errors") == INF


def test_an_event_that_was_deferred_and_then_admitted_waits_for_its_channel_alone(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/1m", pace="1/10s", on_limit=OnLimit.DEFER))
    ann = stage.worker()
    stage.send("a", "b", channel="#ops")
    ann.run()
    stage.clock.forward(55)
    stage.send("x", category="deploys", channel="#ops")
    ann.run()
    stage.clock.forward(5)
    (head,) = ann.take().batch
    assert ann.dispatch([head]) == []
    assert (stage.line("#ops"), category_line(stage), stage.snapshot().deferred) == (["b"], [], {})
    stage.clock.now_us = START_US + 86_400 * US
    stage.prolongs = True
    (again,) = ann.take().batch
    assert again.id == "b"
    ann.dispatch([again])
    assert [letter["reason"] for letter in stage.letters()] == ["expired"]


# Workers that die, and workers that come back


def test_a_head_whose_worker_dies_stands_in_its_line_again(stage: Stage, ann: Worker, bob: Worker) -> None:
    send(stage, "a", "b", "c", "d")
    ann.run()
    stage.clock.now_us += WINDOW_US
    bob.renew()
    stage.clock.forward(2)
    ann.take()
    keep_beating(stage, LEASE_US // US, "bob")
    bob.decided()
    assert category_line(stage) == ["c", "d"]
    assert (stage.snapshot().requeued, stage.snapshot().deferred, marks(stage)) == (0, {"errors": 2}, set())
    assert stage.header("c")["takes"] == 2
    bob.run()
    assert posted(stage) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("end", ["dies", "gives back"])
def test_a_slot_charged_before_its_worker_ended_is_freed_when_the_event_is_refused(redis: Database, end: str) -> None:
    policy = policy_of("1/1m", "", on_limit=OnLimit.DEFER)
    rule = CategoryRule((Limit.parse("2/30m"),), UNPACED, OnLimit.DEFER, 86_400 * US)
    stage = Stage(redis, replace(policy, categories={"errors": rule}))
    ann, bob = stage.worker("ann"), stage.worker("bob")
    send(stage, "a", "b")
    bob.run()
    keep_beating(stage, 60, "bob")
    (head,) = ann.take().batch
    assert isinstance(head, Leased)
    charge(stage, head.slot)
    if end == "gives back":
        ann.give_back()
    keep_beating(stage, 60, "bob")
    charge(stage, "somebody", "other")
    (again,) = bob.take().batch
    assert again.id == "b"
    assert set(stage.slots("category:errors")) == {"a", "b"}
    bob.dispatch([again])
    assert category_line(stage) == ["b"]
    assert set(stage.slots("category:errors")) == {"a"}


def the_only_head(stage: Stage) -> Worker:
    """A worker that holds the only deferred event there is, which waited for a slot of all."""
    stage.policy = policy_of("1/1m", "", on_limit=OnLimit.DEFER)
    ann = stage.worker("ann")
    send(stage, "a", "b")
    ann.run()
    keep_beating(stage, 60, "bob")
    assert ann.taken() == ["b"]
    return ann


def test_the_only_head_is_taken_again_when_its_worker_dies(stage: Stage, bob: Worker) -> None:
    the_only_head(stage)
    keep_beating(stage, LEASE_US // US, "bob")
    assert bob.taken() == ["b"]


def test_the_only_head_is_taken_again_when_it_is_given_back(stage: Stage, bob: Worker) -> None:
    assert the_only_head(stage).give_back() == 1
    assert bob.taken() == ["b"]


def test_the_only_head_is_taken_again_when_its_worker_comes_back_without_it(stage: Stage, bob: Worker) -> None:
    assert the_only_head(stage).keep_only() == 1
    assert bob.taken() == ["b"]


def test_a_worker_that_comes_back_has_one_lease_and_one_mark_under_its_new_name(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    send(stage, "a", "b", "c", "d")
    a, _ = ann.take(new=2).batch
    assert ann.keep_only(a.id) == 1
    assert ann.outbox.owner != "ann"
    assert stage.redis.zrange(stage.keys.leases, 0, -1) == [ann.outbox.owner.encode()]
    assert stage.redis.smembers(stage.keys.leased(ann.outbox.owner)) == {b"a"}
    assert marks(stage) == set()
    assert bob.taken() == ["b", "c", "d"]


def test_a_slot_that_comes_back_lets_the_head_of_another_category_pass(redis: Database) -> None:
    stage = Stage(redis, policy_of("1/30m", "", on_limit=OnLimit.DEFER))
    ann = stage.worker()
    send(stage, "a", category="one")
    send(stage, "b", category="two")
    (first,) = ann.go()
    ann.decided()
    assert opens_at(stage, "global") == START_US + WINDOW_US
    ann.answer(first, Rejected("channel_not_found", "no such channel"))
    assert opens_at(stage, "global") == START_US
    ann.run()
    assert posted(stage) == ["a", "b"]


def test_an_event_passes_at_once_if_a_slot_comes_back_before_it_is_lined_up(
    redis: Database,
) -> None:
    stage = Stage(redis, policy_of("", "1/30m", on_limit=OnLimit.DEFER))
    ann, bob = stage.worker("ann"), stage.worker("bob")
    send(stage, "a")
    (started,) = ann.go()
    ann.decided()
    send(stage, "b")
    batch = bob.take().batch
    stage.once_after_admit(lambda: ann.answer(started, Rejected("channel_not_found", "no such channel")))
    bob.dispatch(batch)
    assert category_line(stage) == ["b"]
    assert opens_at(stage, "category:errors") == START_US
    bob.run()
    assert posted(stage) == ["a", "b"]


def test_a_prefetch_during_a_decision_does_not_hide_a_slot_that_was_given_back(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/30m", on_limit=OnLimit.DEFER))
    ann, bob = stage.worker("ann"), stage.worker("bob")
    send(stage, "a")
    (started,) = ann.go()
    ann.decided()
    send(stage, "b", "c")
    taken = bob.outbox.take(1, 8)

    def between() -> None:
        ann.answer(started, Rejected("channel_not_found", "no such channel"))
        stage.clock.now_us += 1
        bob.outbox.prefetch(taken, 1, 8)
        assert [each.id for each in bob.outbox.take(1, 8).batch] == ["c"]

    stage.once_after_admit(between)
    bob.dispatch(taken.batch)
    assert category_line(stage) == ["b"]
    assert opens_at(stage, "category:errors") == START_US + 1


def test_a_prefetch_that_takes_over_a_dead_worker_does_not_hide_a_slot_that_was_given_back(
    redis: Database,
) -> None:
    stage = Stage(redis, policy_of("", "1/30m", on_limit=OnLimit.DEFER))
    ann, bob, eve = (stage.worker(name) for name in ("ann", "bob", "eve"))
    send(stage, "a")
    send(stage, "other", category="others")
    first, other = ann.go()
    ann.decided()
    send(stage, "x", category="third")
    assert eve.taken(1, 0) == ["x"]
    ann.answer(other, Rejected("channel_not_found", "no such channel"))
    keep_beating(stage, 20, "ann", "bob")
    send(stage, "b", "c")
    taken = bob.outbox.take(1, 8)

    def between() -> None:
        keep_beating(stage, 10, "ann", "bob")
        bob.outbox.prefetch(taken, 1, 8)
        assert [each.id for each in bob.outbox.take(1, 8).batch] == ["c"]
        ann.answer(first, Rejected("channel_not_found", "no such channel"))

    stage.once_after_admit(between)
    bob.dispatch(taken.batch)
    assert category_line(stage) == ["b"]
    assert opens_at(stage, "category:errors") == stage.clock.now_us


def test_a_slot_that_comes_back_while_a_head_is_being_decided_lets_nobody_else_pass(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "2/30m", on_limit=OnLimit.DEFER))
    ann, bob, cid = (stage.worker(name) for name in ("ann", "bob", "cid"))
    send(stage, "a1", "a2")
    first, second = ann.go()
    ann.decided()
    send(stage, "b", "c")
    bob.run()
    assert category_line(stage) == ["b", "c"]
    ann.answer(first, Rejected("channel_not_found", "no such channel"))
    batch = bob.take().batch
    assert [each.id for each in batch] == ["b"]
    ann.answer(second, Rejected("channel_not_found", "no such channel"))
    assert cid.taken() == []
    bob.deliver(bob.dispatch(batch))
    bob.decided()
    cid.run()
    assert posted(stage)[-2:] == ["b", "c"]
