"""Deferred events: lines of categories, who goes next and when, and what a crash does to them. In made-up time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatcher.core.limits import Limit, Reason
from dispatcher.core.policy import CategoryRule, OnLimit
from dispatcher.core.ports import Asking
from dispatcher.core.posts import RateLimitedBySlack, Receipt, Rejected
from dispatcher.core.states import Leased
from dispatcher.core.units import US
from tests.support.deferral import category_line, keep_beating, opens_at, posted, send
from tests.support.doubles import START_US
from tests.support.servers import Database
from tests.support.stage import LEASE_US, UNPACED, Stage, Worker, policy_of

WINDOW_US = 1_800 * US


@pytest.fixture
def stage(redis: Database) -> Stage:
    return Stage(redis, policy_of("100/30m", "2/30m", on_limit=OnLimit.DEFER))


# Standing in line


def test_events_over_the_limit_wait_in_order_until_there_is_room(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", "c", "d", "e")
    ann.run()
    assert (posted(stage), category_line(stage)) == (["a", "b"], ["c", "d", "e"])
    assert stage.snapshot().deferred == {"errors": 3}
    assert opens_at(stage, "category:errors") == START_US + WINDOW_US
    stage.clock.now_us = START_US + WINDOW_US - 1
    ann.run()
    assert posted(stage) == ["a", "b"]
    stage.clock.now_us += 1
    ann.run()
    assert (posted(stage), category_line(stage)) == (["a", "b", "c", "d"], ["e"])
    assert opens_at(stage, "category:errors") == START_US + 2 * WINDOW_US


@pytest.mark.parametrize(("limit", "taken"), [(2, ["c", "d", ""]), (5, ["f", "ghij", ""])])
def test_as_many_heads_of_a_line_are_taken_as_have_room(redis: Database, limit: int, taken: list[str]) -> None:
    stage = Stage(redis, policy_of("100/30m", f"{limit}/30m", on_limit=OnLimit.DEFER))
    ann = stage.worker()
    send(stage, *"abcdefghijklm")
    ann.run()
    stage.clock.now_us += WINDOW_US
    batches = []
    for _ in range(3):
        batch = ann.take().batch
        batches.append("".join(each.id for each in batch))
        ann.deliver(ann.dispatch(batch))
    assert batches == taken
    assert opens_at(stage, "category:errors") == START_US + 2 * WINDOW_US


def test_a_deferred_event_is_reported_with_its_reason_scope_and_wait(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", "c")
    ann.run()
    (waiting,) = ann.told.waits
    assert (waiting.candidate.leased.id, waiting.reason, waiting.scope, waiting.wait_us) == (
        "c", Reason.LIMIT_CATEGORY, "category:errors", WINDOW_US,
    )  # fmt: skip


def test_a_new_event_does_not_overtake_a_line(stage: Stage, ann: Worker, bob: Worker) -> None:
    send(stage, "a", "b", "c")
    ann.run()
    stage.clock.now_us += WINDOW_US
    send(stage, "d")
    bob.dispatch(bob.take(new=10, due=0).batch)  # takes what is new, and nothing that waits
    assert (posted(stage), category_line(stage)) == (["a", "b"], ["c", "d"])
    bob.run()
    assert posted(stage) == ["a", "b", "c", "d"]


def test_a_line_is_ordered_by_priority_and_then_by_age(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", "c")
    ann.run()
    send(stage, "low", priority="low")
    send(stage, "d")
    send(stage, "high", priority="high")
    ann.run()
    assert category_line(stage) == ["high", "c", "d", "low"]
    stage.clock.now_us += WINDOW_US
    ann.run()
    assert posted(stage) == ["a", "b", "high", "c"]


def test_a_full_label_does_not_hold_up_another(redis: Database) -> None:
    policy = policy_of("100/30m", "100/30m", on_limit=OnLimit.DEFER)
    rule = replace(policy.defaults, per_label={"host": (Limit.parse("1/30m"),)})
    stage = Stage(redis, replace(policy, categories={"errors": rule}))
    ann = stage.worker()
    for n in range(3):
        send(stage, f"a{n}", labels={"host": "db1"})
    send(stage, "b0", labels={"host": "db2"})
    send(stage, "c0")
    ann.run()
    assert posted(stage) == ["a0", "b0", "c0"]
    assert category_line(stage, "label:errors:host=db1") == ["a1", "a2"]


def test_an_event_over_many_limits_of_long_labels_waits_for_all_of_them(redis: Database) -> None:
    policy = policy_of("100/30m", "", on_limit=OnLimit.DEFER)
    labels = {f"label-{number}": "\N{SNOWMAN} " * 31 for number in range(32)}
    rule = replace(policy.defaults, per_label=dict.fromkeys(labels, (Limit.parse("1/30m"),)))
    stage = Stage(redis, replace(policy, categories={"errors": rule}))
    ann = stage.worker()
    stage.send("a", "b", labels=labels)
    stage.send("c", labels=labels | {"label-31": "other"})
    ann.run()
    assert (posted(stage), len(stage.snapshot().lines)) == (["a"], 2)
    stage.clock.now_us += WINDOW_US
    ann.run()
    assert posted(stage) == ["a", "b"]
    assert stage.letters() == []


def test_as_many_wait_as_may_and_the_next_is_a_dead_letter(redis: Database) -> None:
    policy = policy_of("100/30m", "1/30m", on_limit=OnLimit.DEFER)
    stage = Stage(redis, replace(policy, categories={"errors": replace(policy.defaults, max_parked=2)}))
    ann = stage.worker()
    send(stage, "a", "b", "c", "d")
    ann.run()
    send(stage, "e")
    ann.run()
    assert (posted(stage), category_line(stage)) == (["a"], ["b", "c"])
    assert [(letter["id"], letter["reason"]) for letter in stage.letters()] == [("d", "overflow"), ("e", "overflow")]
    assert stage.letters()[0]["scope"] == "category:errors"
    stage.clock.now_us += WINDOW_US
    ann.run()
    send(stage, "f")
    ann.run()
    assert category_line(stage) == ["c", "f"]


def test_a_deferred_event_that_waits_too_long_is_a_dead_letter(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b")
    send(stage, "c", max_age=60)
    send(stage, "d")
    ann.run()
    stage.clock.forward(60)
    ann.run()
    assert [(letter["id"], letter["reason"]) for letter in stage.letters()] == [("c", "expired")]
    assert category_line(stage) == ["d"]


def test_a_line_that_is_empty_leaves_nothing(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", "c")
    ann.run()
    stage.clock.now_us += WINDOW_US
    ann.run()
    ann.give_back()
    keys = stage.keys
    left = [
        key for key in (keys.lines, keys.awaited, keys.deferred, keys.deciding, keys.parked) if stage.redis.exists(key)
    ]
    assert left == []
    assert stage.redis.keys(f"{keys.waits_prefix}*") == []


# Who goes first among several lines


def test_a_slot_of_all_goes_to_the_oldest_and_wakes_one(redis: Database) -> None:
    stage = Stage(redis, policy_of("1/30m", "", on_limit=OnLimit.DEFER))
    asked = asked_of(stage)
    ann = stage.worker()
    for n in range(4):
        send(stage, f"x{n}", category=f"kind{n % 2}")
    for _ in range(4):
        ann.run()
        stage.clock.now_us += WINDOW_US
    assert posted(stage) == ["x0", "x1", "x2", "x3"]
    assert len(asked) == 4 + 3, "each of them once when it came, and those that waited once when it was their turn"


def test_a_slot_of_all_goes_to_the_highest_priority(redis: Database) -> None:
    stage = Stage(redis, policy_of("1/30m", "", on_limit=OnLimit.DEFER))
    ann = stage.worker()
    for n, priority in enumerate(("normal", "low", "normal", "high")):
        send(stage, priority + str(n), category=f"kind{n}", priority=priority)
        ann.run()
    for _ in range(3):
        stage.clock.now_us += WINDOW_US
        ann.run()
    assert posted(stage) == ["normal0", "high3", "normal2", "low1"]


def test_a_line_that_another_limit_refuses_waits_for_that_one(redis: Database) -> None:
    policy = policy_of("2/1m", "", on_limit=OnLimit.DEFER)
    slow = CategoryRule((Limit.parse("1/30m"),), UNPACED, OnLimit.DEFER, 86_400 * US)
    stage = Stage(redis, replace(policy, categories={"slow": slow}))
    ann = stage.worker()
    send(stage, "a", category="slow")
    send(stage, "b", "c", category="fast")
    send(stage, "d", category="slow")
    ann.run()
    assert (posted(stage), opens_at(stage, "category:slow")) == (["a", "b"], START_US + WINDOW_US)
    stage.clock.forward(60)
    ann.run()
    assert posted(stage) == ["a", "b", "c"]
    stage.clock.now_us = START_US + WINDOW_US
    ann.run()
    assert posted(stage) == ["a", "b", "c", "d"]


def test_a_slot_that_comes_back_lets_the_next_pass_at_once(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", "c")
    first, second = ann.go()
    assert category_line(stage) == ["c"]
    ann.answer(first, Rejected("channel_not_found", "no such channel"))
    assert stage.rung == 1
    ann.answer(second, Receipt("C1", "1.0"))
    ann.run()
    assert posted(stage) == ["a", "b", "c"]


def test_a_channel_that_cools_down_does_not_hold_up_another(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "2/1s", pace="10/1s", on_limit=OnLimit.DEFER))
    ann = stage.worker()
    ann.desk.reply = lambda message: (
        RateLimitedBySlack(60 * US, "ratelimited") if message.channel == "#cold" else Receipt("C1", "1.0")
    )
    for n in range(6):
        stage.send(f"cold{n}", channel="#cold")
        stage.send(f"warm{n}", channel="#warm")
    for _ in range(12):
        ann.run()
        stage.clock.forward(1)
    assert [id_ for id_ in posted(stage) if id_.startswith("warm")] == [f"warm{n}" for n in range(6)]
    assert stage.snapshot().totals["sent"] == 6


# Order among workers


def test_later_events_wait_for_those_that_another_worker_is_deciding(stage: Stage, ann: Worker, bob: Worker) -> None:
    send(stage, "a", "b", "c")
    before = ann.take(new=2).batch
    bob.dispatch(bob.take().batch)
    assert (posted(stage), category_line(stage)) == ([], ["c"])
    assert bob.taken() == []
    assert bob.take().next_us == stage.clock.now_us + US
    ann.deliver(ann.dispatch(before))
    assert posted(stage) == ["a", "b"]
    ann.run()
    assert opens_at(stage, "category:errors") == START_US + WINDOW_US


def test_a_worker_that_decides_slowly_is_passed_by_after_a_second(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "9/30m", on_limit=OnLimit.DEFER))
    ann, bob = stage.worker("ann"), stage.worker("bob")
    send(stage, "a", "b")
    ann.take(new=1)
    bob.run()
    stage.clock.now_us += US - 1
    bob.run()
    assert posted(stage) == []
    stage.clock.now_us += 1
    bob.run()
    assert posted(stage) == ["b"]


def test_heads_that_are_being_decided_keep_those_behind_them_waiting(stage: Stage, ann: Worker, bob: Worker) -> None:
    send(stage, "a", "b", "c", "d")
    ann.run()
    stage.clock.now_us += WINDOW_US
    head = ann.take().batch
    assert [each.id for each in head] == ["c"]
    assert bob.taken() == []
    ann.deliver(ann.dispatch(head))
    ann.run()
    assert posted(stage) == ["a", "b", "c", "d"]


# Crashes


def test_a_head_that_was_admitted_when_its_worker_died_costs_no_second_slot(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    send(stage, "a", "b", "c", "d")
    ann.run()
    stage.clock.now_us += WINDOW_US
    bob.renew()
    stage.clock.forward(2)
    (head,) = ann.take().batch
    assert isinstance(head, Leased)
    stage.gate.try_acquire_many([(head.slot, stage.policy.scopes("errors"))])
    keep_beating(stage, LEASE_US // US, "bob")
    bob.run()
    assert posted(stage) == ["a", "b", "c", "d"]
    assert set(stage.slots("category:errors")) >= {"c", "d"}


def test_a_head_that_is_given_back_is_the_head_again(stage: Stage, ann: Worker, bob: Worker) -> None:
    send(stage, "a", "b", "c", "d")
    ann.run()
    stage.clock.now_us += WINDOW_US
    ann.take()
    ann.give_back()
    assert category_line(stage) == ["c", "d"]
    bob.run()
    assert posted(stage) == ["a", "b", "c", "d"]


def test_a_head_that_kills_two_workers_is_taken_alone(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", "c", "d")
    ann.run()
    stage.clock.now_us += WINDOW_US
    for n in range(2):
        stage.worker("eve").renew()
        stage.clock.forward(2)
        assert [each.id for each in stage.worker(f"dead{n}").take().batch] == ["c"]
        keep_beating(stage, LEASE_US // US, "eve")
    send(stage, "x", category="deploys")
    assert stage.worker("eve").taken(due=0) == ["c"], (
        "also by one who could not post it: it waits for no limit any more"
    )
    assert category_line(stage) == ["d"]


def test_a_late_call_of_a_worker_that_came_back_does_nothing_in_its_name(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", "c")
    before = stage.worker("ann")
    batch = ann.take().batch
    assert ann.keep_only(*(each.id for each in batch)) == 0
    assert before.dispatch(batch) == []
    assert len(before.told.losses) == len(batch)
    ann.deliver(ann.dispatch(batch))
    assert posted(stage) == ["a", "b"]


def test_a_burst_ends_with_deferred_events_waiting(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", "c")
    ann.run()
    assert stage.books.is_drained()
    stage.clock.now_us += WINDOW_US
    assert not stage.books.is_drained()


# What it costs


def asked_of(stage: Stage) -> list[Asking]:
    """From now on, all events about which the gate has decided."""
    asked: list[Asking] = []
    stage.after_admit = lambda asking, _: asked.extend(asking)
    return asked


@pytest.mark.parametrize("fleet", [1, 4])
def test_each_deferred_event_costs_one_decision(redis: Database, fleet: int) -> None:
    stage = Stage(redis, policy_of("20/10s", "", on_limit=OnLimit.DEFER, max_age_us=86_400 * US))
    asked = asked_of(stage)
    stage.prolongs = True
    workers = [stage.worker(f"w{n}") for n in range(fleet)]
    ids = [f"e{n:03}" for n in range(200)]
    send(stage, *ids)
    for _ in range(10):
        while sum(_ran(worker) for worker in workers):
            pass
        stage.clock.forward(10)
    assert posted(stage) == ids
    assert len(asked) <= 1.5 * len(ids)


def _ran(worker: Worker) -> bool:
    batch = worker.take(new=32, due=8).batch
    worker.deliver(worker.dispatch(batch))
    return bool(batch)


# Taking ahead


def test_prefetched_events_come_with_the_next_take(stage: Stage, ann: Worker, bob: Worker) -> None:
    send(stage, "a", "b", "c", "d")
    first = ann.outbox.take(2, 8)
    ann.outbox.prefetch(first, 2, 8)
    ann.deliver(ann.dispatch(first.batch))
    assert bob.taken() == []
    assert ann.taken() == ["c", "d"]


def test_others_wait_for_the_first_batch_while_the_second_is_on_its_way(stage: Stage, ann: Worker, bob: Worker) -> None:
    send(stage, "a", "b", "c")
    first = ann.outbox.take(1, 8)
    ann.outbox.prefetch(first, 1, 8)
    second = ann.outbox.take(1, 8)  # has arrived, and the first is not decided yet
    bob.dispatch(bob.take().batch)
    assert (posted(stage), category_line(stage)) == ([], ["c"])
    ann.deliver(ann.dispatch(first.batch))
    ann.deliver(ann.dispatch(second.batch))
    ann.run()
    assert (posted(stage), category_line(stage)) == (["a", "b"], ["c"])


def test_heads_of_lines_are_not_prefetched(redis: Database) -> None:
    stage = Stage(redis, policy_of("100/30m", "1/30m", on_limit=OnLimit.DEFER))
    ann = stage.worker("ann")
    send(stage, "a", "b")
    ann.run()
    stage.clock.now_us += WINDOW_US - 1
    send(stage, "c", "d", category="other")
    first = ann.outbox.take(1, 8)
    stage.clock.now_us += 1
    ann.outbox.prefetch(first, 1, 8)
    send(stage, "e")
    ann.dispatch(first.batch)
    second = ann.outbox.take(1, 8)
    assert [each.id for each in second.batch] == ["d"]
    ann.outbox.prefetch(second, 1, 8)
    ann.dispatch(second.batch)
    assert ann.taken() == ["b", "e"]


def test_prefetched_events_are_given_back_with_the_rest(stage: Stage, ann: Worker, bob: Worker) -> None:
    send(stage, "a", "b", "c")
    ann.outbox.prefetch(ann.outbox.take(1, 8), 1, 8)
    assert ann.give_back() == 2
    assert bob.taken() == ["a", "b", "c"]


def test_an_event_whose_rank_is_that_of_no_priority_does_not_go_back_to_its_line(stage: Stage, ann: Worker) -> None:
    send(stage, "a", "b", "c")
    ann.run()
    stage.clock.now_us += WINDOW_US
    assert [each.id for each in ann.take().batch] == ["c"]
    header, _, payload = stage.redis.hget(stage.keys.events, "c").partition(b"\n")
    assert b'"rank":1' in header
    stage.redis.hset(stage.keys.events, "c", header.replace(b'"rank":1', b'"rank":3') + b"\n" + payload)
    keep_beating(stage, LEASE_US // US + 1, "bob")
    stage.worker("bob").run()
    assert [(letter["id"], letter["reason"]) for letter in stage.letters()] == [("c", Reason.INVALID)]
