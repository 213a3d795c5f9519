"""Notices: one line when suppression begins and one when it has ended, in made-up time.

With ``3/30m`` two events of ``errors`` are posted in half an hour, and the third slot is the notice's.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dispatcher.core.policy import OnLimit
from dispatcher.core.posts import Message, PostResult, Receipt, Rejected
from dispatcher.core.units import US
from tests.support.deferral import keep_beating
from tests.support.digests import (
    DELAY_S,
    NOTICE,
    WINDOW_S,
    digest_posts,
    storm,
    tally,
    telling_policy,
    texts,
    wait_until,
)
from tests.support.doubles import START_US
from tests.support.servers import Database
from tests.support.stage import LEASE_US, Stage, Worker

CLOCK = "<!date^{}^{{time}}|{} UTC>"
BEGUN = CLOCK.format(START_US // US, "10:53")


@pytest.fixture
def stage(redis: Database) -> Stage:
    return Stage(redis, telling_policy(on_limit=OnLimit.DROP, notice=True))


def noticing(redis: Database, on_limit: OnLimit, limits: str = "3/30m") -> Stage:
    return Stage(redis, telling_policy(limits, on_limit=on_limit, notice=True))


def test_a_line_says_at_once_that_suppression_has_begun(stage: Stage, ann: Worker) -> None:
    storm(stage, 10)
    ann.run()
    assert texts(ann) == [f"*errors*: over 3/30m, events are being dropped from {BEGUN} on"]
    assert stage.total("dropped") == 8
    assert stage.total("notices") == 1
    assert stage.total("sent") == 2


def test_a_single_suppressed_event_is_dropped_with_a_notice(stage: Stage, ann: Worker) -> None:
    storm(stage, 3)
    ann.run()
    assert stage.total("dropped") == 1
    assert len(digest_posts(ann)) == 1


def test_a_second_notice_says_that_suppression_has_ended_and_how_many_were_dropped(stage: Stage, ann: Worker) -> None:
    storm(stage, 10)
    wait_until(stage, 50, ann)
    storm(stage, 5)
    wait_until(stage, WINDOW_S - 1, ann)
    assert len(digest_posts(ann)) == 1
    wait_until(stage, WINDOW_S, ann)
    ended = CLOCK.format(START_US // US + 50, "10:54")
    assert texts(ann)[1:] == [f"*errors*: over 3/30m from {BEGUN}, ended {ended}: 13 dropped"]
    assert stage.snapshot().tallies == {}
    assert stage.snapshot().events == 0
    assert stage.total("notices") == 2


def test_the_end_is_told_after_a_delay_without_suppression_where_there_is_room(redis: Database) -> None:
    stage = noticing(redis, OnLimit.DROP, "3/30s")
    ann = stage.worker()
    storm(stage, 10)
    wait_until(stage, DELAY_S - 1, ann)
    assert len(digest_posts(ann)) == 1
    wait_until(stage, DELAY_S, ann)
    assert len(digest_posts(ann)) == 2


def test_suppression_that_goes_on_is_no_end(redis: Database) -> None:
    stage = noticing(redis, OnLimit.DROP, "3/30s")
    ann = stage.worker()
    for n in range(40):
        storm(stage, 5)
        wait_until(stage, 10.0 * n, ann)
    assert len(digest_posts(ann)) == 1
    wait_until(stage, 390 + DELAY_S, ann)
    assert len(digest_posts(ann)) == 2
    assert texts(ann)[1].endswith(f": {stage.total('dropped')} dropped")


def test_events_suppressed_while_the_second_notice_is_posted_begin_a_new_tally(stage: Stage, ann: Worker) -> None:
    storm(stage, 10)
    wait_until(stage, WINDOW_S - 1, ann)
    stage.clock.forward(1)
    (started,) = ann.go()
    bob = stage.worker("bob")
    storm(stage, 6)
    bob.run()
    dropped = stage.total("dropped")
    ann.deliver([started])
    assert tally(stage, NOTICE)["count"] == str(dropped - 8)
    wait_until(stage, 2 * WINDOW_S, ann, bob)
    assert texts(ann)[-1].endswith(f": {dropped - 8} dropped")


def test_suppression_that_ended_before_its_begin_could_be_told_is_told_in_one_line(redis: Database) -> None:
    stage = noticing(redis, OnLimit.DROP, "3/10s,50/30m")
    ann = stage.worker()
    storm(stage, 10)
    wait_until(stage, 200, ann)
    assert len(digest_posts(ann)) == 2
    storm(stage, 10)
    wait_until(stage, WINDOW_S - 1, ann)
    assert len(digest_posts(ann)) == 2
    wait_until(stage, WINDOW_S + 20, ann)
    assert len(digest_posts(ann)) == 3
    assert ": over 3/10s from" in texts(ann)[2]


def test_no_window_holds_more_than_the_limit_with_its_notices(stage: Stage, ann: Worker) -> None:
    for n in range(60):
        storm(stage, 3)
        wait_until(stage, 131.0 * (n + 1), ann)
    instants = [at_us for at_us, _ in stage.attempts]
    for at_us in instants:
        assert sum(at_us <= other < at_us + WINDOW_S * US for other in instants) <= 3
    assert stage.total("notices") >= 3


def test_dead_letters_of_a_limit_are_noticed(redis: Database) -> None:
    stage = noticing(redis, OnLimit.DEAD_LETTER)
    ann = stage.worker()
    storm(stage, 7)
    wait_until(stage, WINDOW_S, ann)
    assert texts(ann)[0] == f"*errors*: over 3/30m, events are being kept as dead letters from {BEGUN} on"
    assert texts(ann)[1].endswith(": 5 kept as dead letters")
    assert {letter["limit"] for letter in stage.letters()} == {"3/30m"}


def test_the_only_dead_letter_of_a_limit_is_one(redis: Database) -> None:
    stage = noticing(redis, OnLimit.DEAD_LETTER)
    ann = stage.worker()
    storm(stage, 3)
    wait_until(stage, WINDOW_S, ann)
    assert texts(ann)[-1].endswith(": 1 kept as a dead letter")


def test_a_line_about_what_began_half_a_day_ago_names_the_dates(redis: Database) -> None:
    stage = noticing(redis, OnLimit.DROP, "3/1d")
    ann = stage.worker()
    storm(stage, 3)
    ann.run()
    stage.clock.forward(13 * 3_600)
    storm(stage, 1)
    wait_until(stage, 86_400 * 2, ann)
    last = START_US // US + 13 * 3_600
    first = f"<!date^{START_US // US}^{{date_short_pretty}} {{time}}|2024-11-20 10:53 UTC>"
    assert texts(ann)[-1] == (
        f"*errors*: over 3/1d from {first}, "
        f"ended <!date^{last}^{{date_short_pretty}} {{time}}|2024-11-20 23:53 UTC>: 2 dropped"
    )


def test_deferred_events_are_noticed_each_once(redis: Database) -> None:
    stage = noticing(redis, OnLimit.DEFER, "3/10m")
    ann = stage.worker()
    storm(stage, 6)
    wait_until(stage, 5, ann)
    assert texts(ann) == [f"*errors*: over 3/10m, events are being delayed from {BEGUN} on"]
    storm(stage, 1)
    wait_until(stage, 7_200, ann)
    assert stage.total("sent") == 7
    assert texts(ann)[1].endswith(": 5 delayed")
    assert stage.snapshot().tallies == {}


def test_events_of_which_some_were_dropped_and_some_kept_are_told_as_suppressed(redis: Database) -> None:
    stage = Stage(redis)
    ann = stage.worker()
    text = "channels: {default: {pace: none}}\ncategories: {errors: {limits: [3/30m], notice: true, on_limit: %s}}"
    ann.follow(stage.put_in_force(text % "drop"))
    storm(stage, 5)
    ann.run()
    ann.follow(stage.put_in_force(text % "dead-letter"))
    storm(stage, 1)
    ann.run()
    wait_until(stage, 2 * WINDOW_S, ann)
    assert texts(ann)[-1].endswith(": 4 suppressed")


def test_suppression_goes_on_while_events_find_no_place_to_wait(redis: Database) -> None:
    stage = Stage(redis, telling_policy("3/10m", on_limit=OnLimit.DEFER, notice=True, max_parked=2))
    ann = stage.worker()
    for n in range(8):
        storm(stage, 5)
        wait_until(stage, 30.0 * n, ann)
    assert texts(ann) == [f"*errors*: over 3/10m, events are being suppressed from {BEGUN} on"]
    wait_until(stage, 7_200, ann)
    ended = CLOCK.format(START_US // US + 180, "10:56")
    assert texts(ann)[1:] == [f"*errors*: over 3/10m from {BEGUN}, ended {ended}: 38 suppressed"]
    assert stage.total("dead errors overflow") == 36


def test_a_notice_of_several_limits_names_none(redis: Database) -> None:
    stage = Stage(redis, telling_policy("3/30m", "4/30m", OnLimit.DROP, notice=True))
    ann = stage.worker()
    storm(stage, 5)
    ann.run()
    storm(stage, 1, category="other")
    storm(stage, 1)
    wait_until(stage, 2 * WINDOW_S, ann)
    assert texts(ann)[0].startswith("*errors*: over 3/30m, events")
    assert texts(ann)[-1].startswith(f"*errors*: over several limits from {BEGUN}, ended")


def test_an_event_that_waits_behind_others_names_no_limit_of_its_own(redis: Database) -> None:
    stage = Stage(redis, telling_policy("9/30m", "4/30m", OnLimit.DEFER, notice=True))
    ann = stage.worker()
    storm(stage, 4, category="other")
    ann.run()
    storm(stage, 1)
    ann.run()
    storm(stage, 1)
    ann.run()
    refused = json.loads(tally(stage, NOTICE)["why"])[3]
    assert refused[:2] == ["global", "4/30m"]


def test_events_held_by_a_dead_worker_are_counted_once(stage: Stage, ann: Worker) -> None:
    storm(stage, 10)
    ann.take()
    bob = stage.worker("bob")
    keep_beating(stage, LEASE_US // US, "bob")
    bob.run()
    assert stage.total("dropped") == 8
    assert tally(stage, NOTICE)["count"] == "8"


def test_a_notice_with_a_guarantee_takes_the_slot_that_is_kept(redis: Database) -> None:
    policy = telling_policy("10/30m", "6/30m", OnLimit.DROP, notice=True, guarantee=3)
    stage = Stage(redis, policy)
    ann = stage.worker()
    storm(stage, 20, category="other")
    storm(stage, 20)
    ann.run()
    assert stage.snapshot().by_category("sent") == {"other": 3, "errors": 2}
    assert len(digest_posts(ann)) == 1


def test_a_notice_that_cannot_be_posted_is_tried_a_window_later(stage: Stage, ann: Worker) -> None:
    def reply(message: Message) -> PostResult:
        if ":" in message.event_id:
            return Rejected("channel_not_found", "no such channel")
        return Receipt(message.channel, "1.1")

    ann.desk.reply = reply
    storm(stage, 10)
    wait_until(stage, WINDOW_S - 1, ann)
    assert len(digest_posts(ann)) == 1
    wait_until(stage, WINDOW_S + 1, ann)
    assert len(digest_posts(ann)) == 2
    assert stage.letters() == []


def test_a_notice_is_for_its_category_alone(redis: Database) -> None:
    policy = telling_policy(on_limit=OnLimit.DROP, notice=True)
    quiet = replace(policy.categories["errors"], notice=False)
    stage = Stage(redis, replace(policy, categories=dict(policy.categories) | {"news": quiet}))
    ann = stage.worker()
    storm(stage, 10, category="news")
    ann.run()
    assert digest_posts(ann) == []
    assert stage.snapshot().by_category("sent") == {"news": 3}


def test_an_end_that_has_its_turn_when_suppression_goes_on_gives_its_slots_back(redis: Database) -> None:
    policy = telling_policy("3/30s,50/30m", on_limit=OnLimit.DROP, notice=True)
    rule = replace(policy.categories["errors"], channel="#ops")
    stage = Stage(redis, replace(policy, categories={"errors": rule}))
    ann, bob = stage.worker("ann"), stage.worker("bob")
    storm(stage, 9)
    wait_until(stage, DELAY_S - 1, ann)
    told = len(digest_posts(ann))
    stage.clock.forward(6)
    stage.send("x", category="other", channel="#ops")
    (started,) = bob.dispatch(bob.take(due=0).batch)
    assert ann.go() == []
    assert NOTICE in stage.line("#ops")
    assert any(slot.startswith(NOTICE) for slot in stage.held("global"))
    bob.deliver([started])
    storm(stage, 60)
    cat = stage.worker("cat")
    cat.dispatch(cat.take(due=0).batch, free=0)
    ann.run()
    assert not any(slot.startswith(NOTICE) for slot in stage.held("global"))
    assert stage.redis.zscore(stage.keys.timers, NOTICE) is not None
    assert len(digest_posts(ann)) == told


def test_events_refused_while_a_notice_is_posted_name_their_own_limit(redis: Database) -> None:
    stage = Stage(redis, telling_policy("3/30m", "4/30m", OnLimit.DROP, notice=True))
    ann, bob = stage.worker("ann"), stage.worker("bob")
    storm(stage, 5)
    ann.run()
    storm(stage, 1, category="other")
    storm(stage, 1)
    ann.run()
    while not (started := ann.go()):
        stage.clock.forward(10)
    storm(stage, 5)
    bob.run()
    ann.deliver(started)
    wait_until(stage, 4 * WINDOW_S, ann)
    assert [" over several limits from " in text for text in texts(ann)] == [False, True, False, False]


def test_a_single_of_a_digest_that_is_over_does_not_hold_up_the_line(stage: Stage, ann: Worker) -> None:
    stage.policy = telling_policy("10/30m", "2/1m", digest_delay_us=10 * US)
    stage.send("a", "b", category="other")
    stage.send("c")
    ann.run()
    stage.policy = telling_policy("10/30m", "2/1m", on_limit=OnLimit.DEFER, notice=True, digest_delay_us=10 * US)
    wait_until(stage, 10, ann)
    stage.send("d", "e")
    wait_until(stage, 180, ann)
    assert [id_ for id_ in ann.desk.posts if not id_.startswith("notice:")] == ["a", "b", "c", "d", "e"]
