"""Digests: what is over the limit is counted into one message, in made-up time.

With ``3/30m`` two events of ``errors`` are posted in half an hour, and the third slot is the digest's.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from dispatcher.core.explain import clock_of, ended
from dispatcher.core.limits import Limit, Reason
from dispatcher.core.policy import OnAmbiguous, OnLimit
from dispatcher.core.posts import (
    Ambiguous,
    Message,
    Paused,
    PostResult,
    RateLimitedBySlack,
    Receipt,
    Rejected,
    Retryable,
)
from dispatcher.core.states import Absent, Leased, Parked, ScanResult, Step, Told, Unreadable
from dispatcher.core.transitions import MAX_ATTEMPTS
from dispatcher.core.units import US
from dispatcher.logs.event_log import build_event_log
from dispatcher.store.intake import Enqueued
from dispatcher.store.parked_events import ParkedFilter
from tests.support.deferral import keep_beating
from tests.support.digests import (
    DELAY_S,
    DIGEST,
    WINDOW_S,
    digest_posts,
    edits,
    seconds,
    storm,
    tally,
    telling_policy,
    texts,
    wait_until,
)
from tests.support.doubles import START_US
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, LEASE_US, Stage, Worker


@pytest.fixture
def stage(redis: Database) -> Stage:
    return Stage(redis, telling_policy())


def refuse_digests(result: PostResult) -> Callable[[Message], PostResult]:
    """A reply that refuses what digest messages post, and nothing else."""

    def reply(message: Message) -> PostResult:
        return result if ":" in message.event_id else Receipt(message.channel, "1.000001")

    return reply


# One alone


def test_the_only_suppressed_event_is_parked(stage: Stage, ann: Worker) -> None:
    storm(stage, 2)
    (alone,) = storm(stage, 1)
    ann.run()
    assert stage.snapshot().parked == 1
    assert stage.header(alone)["timer"] is True
    assert stage.total("digested") == 0
    (waiting,) = ann.told.waits
    assert (waiting.reason, waiting.scope, waiting.wait_us) == ("limit:category", "category:errors", DELAY_S * US)


def test_the_only_suppressed_event_is_posted_as_itself_in_the_slot_that_is_kept(stage: Stage, ann: Worker) -> None:
    (*_, alone) = storm(stage, 3)
    wait_until(stage, DELAY_S - 0.001, ann)
    assert len(ann.desk.posts) == 2
    wait_until(stage, DELAY_S, ann)
    assert ann.desk.posts[2:] == [alone]
    assert stage.total("sent") == 3
    assert stage.snapshot().tallies == {}
    assert tally(stage) == {}


def test_a_second_one_ends_both_in_one_step(stage: Stage, ann: Worker) -> None:
    (*_, first) = storm(stage, 3)
    ann.run()
    stage.clock.forward(10)
    (second,) = storm(stage, 1)
    ann.run()
    assert stage.snapshot().parked == 0
    assert stage.total("digested") == 2
    assert stage.snapshot().counts.by_reason("digested") == {("errors", "limit:category"): 2}
    assert [each.name for each in ann.told.digests] == [first, second]
    assert tally(stage)["count"] == "2"
    assert tally(stage)["first"] == str(START_US)


def test_the_digest_goes_out_a_delay_after_the_first_suppressed_one(stage: Stage, ann: Worker) -> None:
    storm(stage, 3)
    wait_until(stage, 10, ann)
    storm(stage, 1)
    wait_until(stage, DELAY_S - 0.001, ann)
    assert digest_posts(ann) == []
    wait_until(stage, DELAY_S, ann)
    assert len(digest_posts(ann)) == 1
    assert stage.total("notices") == 1


def test_the_next_timer_is_that_of_an_event_and_never_of_a_digest(stage: Stage, ann: Worker) -> None:
    storm(stage, 4)
    ann.run()
    assert (stage.snapshot().timers, stage.snapshot().next_timer_us) == (1, None)
    stage.clock.forward(DELAY_S - 1)
    stage.send("tried", category="others", channel="#others")
    (started,) = ann.go()
    ann.answer(started, Retryable("refused", "connection refused"))
    snapshot = stage.snapshot()
    assert (snapshot.timers, snapshot.tallies_at("timer")) == (2, 1)
    assert snapshot.next_timer_us == stage.clock.now_us + BACKOFF_US


def test_behind_very_many_digests_the_next_timer_is_found_or_the_first_of_all(stage: Stage) -> None:
    stage.redis.zadd(stage.keys.timers, {f"digest:category-{n}": n + 1 for n in range(199)} | {"tried": 9_000})
    assert stage.snapshot().next_timer_us == 9_000
    stage.redis.zadd(stage.keys.timers, {f"digest:category-{n}": n + 1 for n in range(300)})
    assert stage.snapshot().next_timer_us == 1


def test_a_buffered_single_waits_while_the_kept_slot_is_used_and_can_be_joined(stage: Stage, ann: Worker) -> None:
    storm(stage, 3)
    wait_until(stage, 100, ann)
    assert stage.total("sent") == 3
    (alone,) = storm(stage, 1)
    wait_until(stage, WINDOW_S, ann)
    assert stage.header(alone)["buffered"] == str(START_US + 100 * US)
    assert stage.total("sent") == 3
    stage.clock.now_us = START_US + 200 * US
    storm(stage, 1)
    ann.run()
    assert stage.total("digested") == 2


def test_a_buffered_single_that_was_refused_again_is_posted_when_there_is_room(stage: Stage, ann: Worker) -> None:
    storm(stage, 3)
    wait_until(stage, 100, ann)
    (alone,) = storm(stage, 1)
    wait_until(stage, DELAY_S + WINDOW_S - 1, ann)
    assert alone not in ann.desk.posts
    wait_until(stage, DELAY_S + WINDOW_S, ann)
    assert ann.desk.posts[-1] == alone


def test_two_buffered_singles_of_which_the_first_was_on_its_way_end_together(stage: Stage, ann: Worker) -> None:
    """The first has left its timer and is refused: meanwhile a second one was set aside."""
    storm(stage, 3)
    wait_until(stage, 100, ann)
    (first,) = storm(stage, 1)
    ann.run()
    stage.clock.forward(DELAY_S)
    bob = stage.worker("bob")
    batch = ann.take().batch
    assert [each.id for each in batch] == [first]
    (second,) = storm(stage, 1)
    bob.dispatch(bob.take().batch)
    assert stage.header(second)["buffered"]
    ann.dispatch(batch)
    assert stage.total("digested") == 2
    assert {each.name for each in ann.told.digests} == {first, second}


def test_a_buffered_single_that_waits_too_long_expires(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b")
    stage.send("old", max_age=30.0)
    wait_until(stage, 40, ann)
    assert [letter["reason"] for letter in stage.letters()] == ["expired"]
    assert stage.snapshot().tallies == {}


def test_a_buffered_single_whose_worker_dies_is_posted_once_more_as_itself(stage: Stage, ann: Worker) -> None:
    storm(stage, 3)
    ann.run()
    stage.clock.forward(DELAY_S)
    ann.take()
    bob = stage.worker("bob")
    keep_beating(stage, LEASE_US // US, "bob")
    bob.run()
    assert stage.total("sent") == 3


def test_the_id_of_a_joined_event_is_remembered_like_any_other(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "c")
    ann.run()
    stage.send("d")
    ann.run()
    assert [each.name for each in ann.told.digests] == ["c", "d"]
    assert stage.send("c", "d") == [Enqueued.DUPLICATE] * 2


def test_a_joined_event_is_told_of_by_the_name_that_its_producer_knows(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "disk 1")
    ann.run()
    stage.send("disk 2")
    ann.run()
    assert [each.name for each in ann.told.digests] == ["disk 1", "disk 2"]


# Many


def test_a_storm_posts_one_less_than_the_limit_and_one_digest(stage: Stage, ann: Worker) -> None:
    storm(stage, 50)
    wait_until(stage, WINDOW_S - 1, ann)
    assert len(ann.desk.posts) == 3
    assert len(digest_posts(ann)) == 1
    assert stage.total("sent") == 2
    assert stage.total("digested") == 48
    assert stage.total("notices") == 1


def test_the_digest_says_how_many_since_when_and_shows_some(stage: Stage, ann: Worker) -> None:
    storm(stage, 2, "posted")
    for text in ("a < b", "db1 down", "a < b", "x" * 200, "four", "five", "six"):
        storm(stage, 1, text)
    wait_until(stage, DELAY_S, ann)
    clock = f"<!date^{START_US // US}^{{time}}|10:53 UTC>"
    assert texts(ann) == [
        "\n".join(
            [
                f"7 more *errors* suppressed since {clock}, the last at {clock} (limit 3/30m)",
                "• a &lt; b",
                "• " + "x" * 99 + "…",
                "• four",
                "• five",
                "• six",
            ]
        )
    ]


def test_samples_are_few_and_each_stands_there_once(stage: Stage, ann: Worker) -> None:
    storm(stage, 2, "posted")
    for text in ("a", "b", "c", "d", "a", "e", "f"):
        storm(stage, 1, text)
        ann.run()
    wait_until(stage, DELAY_S, ann)
    assert texts(ann)[0].splitlines()[1:] == ["• a", "• b", "• c", "• d", "• e"]


def test_texts_with_one_beginning_are_one_sample(stage: Stage, ann: Worker) -> None:
    storm(stage, 2, "posted")
    storm(stage, 1, "another")
    for n in range(6):
        storm(stage, 1, 100 * "x" + str(n))
    wait_until(stage, DELAY_S, ann)
    assert texts(ann)[0].splitlines()[1:] == ["• another", f"• {99 * 'x'}…"]


def test_a_text_that_begins_with_very_many_blanks_is_no_sample(stage: Stage, ann: Worker) -> None:
    storm(stage, 2, "posted")
    storm(stage, 2, f"{400 * ' '}disk full")
    storm(stage, 1, "another")
    wait_until(stage, DELAY_S, ann)
    assert texts(ann)[0].splitlines()[1:] == ["• another"]


def test_samples_are_of_what_was_suppressed_only(stage: Stage, ann: Worker) -> None:
    for n in range(4):
        storm(stage, 1, f"text {n}")
    wait_until(stage, DELAY_S, ann)
    assert texts(ann)[0].splitlines()[1:] == ["• text 2", "• text 3"]


def test_every_digested_event_is_on_record_with_its_reason(stage: Stage, ann: Worker) -> None:
    ids = storm(stage, 4)
    ann.run()
    found = [stage.decision(id_) for id_ in ids[2:]]
    assert [(each.outcome, each.reason, each.scope, each.limit, each.category) for each in found if each] == [
        ("digested", "limit:category", "category:errors", "3/30m", "errors")
    ] * 2
    assert all(each and each.fits_at_us == START_US + WINDOW_S * US for each in found)


def test_a_joined_event_is_on_record_as_it_was_refused(stage: Stage, ann: Worker) -> None:
    (*_, first) = storm(stage, 3)
    ann.run()
    stage.clock.forward(7)
    storm(stage, 1)
    ann.run()
    found = stage.decision(first)
    assert found is not None
    assert (found.outcome, found.at_us, found.fits_at_us) == ("digested", START_US, START_US + WINDOW_S * US)


def test_the_log_line_of_a_joined_event_says_what_explain_says(stage: Stage, ann: Worker) -> None:
    (*_, first) = storm(stage, 3)
    ann.run()
    stage.clock.forward(40)
    storm(stage, 1)
    ann.run()
    stream = io.StringIO()
    build_event_log(style="json", stream=stream, clock=stage.clock).digested(ann.told.digests)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    decision = stage.decision(first)
    assert decision is not None
    assert lines[0]["sentence"] == ended(decision, clock_of(stage.clock.now_us))
    assert [line["retry_after_s"] for line in lines] == [WINDOW_S - 40] * 2


def test_an_open_digest_is_edited_in_place_at_most_every_30_seconds(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    wait_until(stage, DELAY_S, ann)
    for n in range(60):
        storm(stage, 1)
        wait_until(stage, DELAY_S + 1 + n, ann)
    assert len(digest_posts(ann)) == 1
    assert [text.partition(" ")[0] for text in edits(ann)] == ["33", "63"]
    assert {(channel, ts) for channel, ts, _ in ann.desk.edits} == {("#free", "1.000001")}
    assert stage.total("notices") == 1
    told = [each.outcome.step for each in ann.told.settlements if isinstance(each.outcome, Told)]
    assert [step for step in told if step is not Step.WAITED] == [Step.POSTED, Step.EDITED, Step.EDITED]


def test_an_edit_comes_at_once_where_the_last_one_is_long_ago(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    wait_until(stage, 600, ann)
    assert edits(ann) == []
    storm(stage, 1)
    wait_until(stage, 600, ann)
    assert [text.partition(" ")[0] for text in edits(ann)] == ["4"]


def test_an_edit_waits_for_posts_to_the_channel_of_the_digest(redis: Database) -> None:
    stage = Stage(redis, telling_policy(channel="#slow"))
    ann = stage.worker(lease_us=86_400 * US)
    storm(stage, 5)
    wait_until(stage, 600, ann)
    assert len(digest_posts(ann)) == 1
    stage.send(*(f"p{number}" for number in range(22)), category="others", channel="#slow")
    storm(stage, 1)
    wait_until(stage, 620, ann)
    assert edits(ann) == []
    wait_until(stage, 630, ann)
    assert [text.partition(" ")[0] for text in edits(ann)] == ["4"]


def test_an_edit_takes_no_slot(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    wait_until(stage, DELAY_S, ann)
    before = stage.slots("global"), stage.slots("category:errors")
    storm(stage, 1)
    wait_until(stage, 200, ann)
    assert len(edits(ann)) == 1
    assert (stage.slots("global"), stage.slots("category:errors")) == before


def test_no_worker_wakes_for_a_digest_that_does_not_grow(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    wait_until(stage, DELAY_S, ann)
    assert stage.redis.zscore(stage.keys.timers, DIGEST) == START_US + (DELAY_S + WINDOW_S) * US


def test_a_digest_is_closed_with_a_last_edit_when_the_next_could_be_posted(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    wait_until(stage, DELAY_S + WINDOW_S - 1, ann)
    assert edits(ann) == []
    wait_until(stage, DELAY_S + WINDOW_S, ann)
    (last,) = edits(ann)
    assert last.startswith("3 more *errors* suppressed from <!date^")
    assert last.splitlines()[0].endswith("(limit 3/30m), closed")
    assert stage.snapshot().tallies == {}
    assert stage.snapshot().events == 0
    assert tally(stage) == {}


def test_the_last_edit_is_half_a_minute_after_the_one_before(stage: Stage, ann: Worker) -> None:
    ends_s = DELAY_S + WINDOW_S
    storm(stage, 5)
    wait_until(stage, ends_s - 5, ann)
    storm(stage, 3)
    wait_until(stage, ends_s + 24, ann)
    assert [text.partition(" ")[0] for text in edits(ann)] == ["4"]
    wait_until(stage, ends_s + 25, ann)
    assert edits(ann)[1].splitlines()[0].endswith("(limit 3/30m), closed")
    assert stage.snapshot().tallies == {}


def test_events_suppressed_after_a_digest_has_closed_open_a_new_one(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    wait_until(stage, DELAY_S + WINDOW_S, ann)
    storm(stage, 6)
    wait_until(stage, 2 * DELAY_S + WINDOW_S, ann)
    assert [text.partition(" ")[0] for text in texts(ann)] == ["3", "4"]
    assert len({message.event_id for message in digest_posts(ann)}) == 2


def test_events_suppressed_during_the_last_edit_go_into_the_next_digest(stage: Stage, ann: Worker) -> None:
    storm(stage, 5, "old")
    wait_until(stage, DELAY_S + WINDOW_S - 1, ann)
    stage.clock.forward(1)
    (started,) = ann.go()
    bob = stage.worker("bob")
    storm(stage, 4, "new")
    bob.run()
    stage.clock.forward(5)
    storm(stage, 2, "new")
    bob.run()
    ann.deliver([started])
    assert [text.partition(" ")[0] for text in edits(ann)] == ["3"]
    assert (tally(stage)["count"], tally(stage)["first"]) == ("4", str(START_US + (DELAY_S + WINDOW_S) * US))
    wait_until(stage, 2 * DELAY_S + WINDOW_S, ann)
    assert texts(ann)[1].startswith("4 more *errors*")
    assert texts(ann)[1].splitlines()[1:] == ["• new"]
    assert len(stage.slots("global")) == len(ann.desk.posts) + len(bob.desk.posts)
    assert stage.total("digested") == 7


def test_the_digest_leaves_the_slot_of_a_digest_that_may_still_be_counted(stage: Stage, ann: Worker) -> None:
    """In no window of half an hour are there more than three messages, however the storms come."""
    for n in range(40):
        storm(stage, 3)
        wait_until(stage, 131.0 * (n + 1), ann)
    instants = [at_us for at_us, started in stage.attempts if started.candidate.terms.scopes]
    for at_us in instants:
        assert sum(at_us <= other < at_us + WINDOW_S * US for other in instants) <= 3
    assert len(instants) == 9
    assert stage.total("notices") >= 1


def test_a_digest_waits_for_a_slot_of_the_global_limit(redis: Database) -> None:
    stage = Stage(redis, telling_policy(global_limits="5/10m"))
    ann = stage.worker()
    storm(stage, 3, category="other")
    storm(stage, 6)
    wait_until(stage, 599, ann)
    assert digest_posts(ann) == []
    wait_until(stage, 601, ann)
    assert len(digest_posts(ann)) == 1


def test_with_a_guarantee_the_last_slot_of_it_is_the_digests(redis: Database) -> None:
    stage = Stage(redis, telling_policy("10/30m", "6/30m", guarantee=3))
    ann = stage.worker()
    storm(stage, 20, category="other")
    storm(stage, 20)
    wait_until(stage, DELAY_S, ann)
    assert stage.snapshot().by_category("sent") == {"other": 3, "errors": 2}
    assert len(digest_posts(ann)) == 1
    assert len(stage.slots("global")) == 6
    assert "(limit 3/30m for the guarantee of errors)" in texts(ann)[0]


def test_a_digest_names_what_the_guarantees_leave_if_that_is_used_up(redis: Database) -> None:
    policy = telling_policy("", "6/30m")
    vital = replace(policy.rule("vital"), guarantee=2)
    stage = Stage(redis, replace(policy, categories={**policy.categories, "vital": vital}))
    ann = stage.worker()
    storm(stage, 20)
    wait_until(stage, WINDOW_S, ann)
    assert "(limit 4/30m for what the guarantees leave for all)" in texts(ann)[0]


def test_a_guarantee_of_one_is_the_digests_alone(redis: Database) -> None:
    stage = Stage(redis, telling_policy("10/30m", "4/30m", guarantee=1))
    ann = stage.worker()
    storm(stage, 20, category="other")
    storm(stage, 20)
    wait_until(stage, DELAY_S, ann)
    assert stage.snapshot().by_category("sent") == {"other": 3}
    assert len(digest_posts(ann)) == 1


def test_a_category_without_limits_digests_what_the_global_limit_refuses(redis: Database) -> None:
    stage = Stage(redis, telling_policy("", "4/10m"))
    ann = stage.worker()
    storm(stage, 10)
    wait_until(stage, 599, ann)
    assert stage.total("sent") == 4
    wait_until(stage, 601, ann)
    assert texts(ann)[0].splitlines()[0].endswith("(limit 4/10m for all events together)")


def test_events_held_by_a_dead_worker_are_digested_and_their_slots_go_back(stage: Stage, ann: Worker) -> None:
    storm(stage, 6)
    batch = ann.take().batch
    requests = [(each.slot, stage.policy.terms(each).scopes) for each in batch if isinstance(each, Leased)]
    stage.gate.try_acquire_many(requests[3:5])  # it was admitted with the 4th and the 5th, and died
    bob = stage.worker("bob")
    keep_beating(stage, LEASE_US // US, "bob")
    stage.policy = telling_policy("2/30m")
    started = bob.dispatch(bob.take().batch)
    assert len(started) == 0
    assert stage.total("digested") == 6
    assert len(stage.slots("global")) == 0


@pytest.mark.parametrize("moment", ["collecting", "asked", "sending"])
@pytest.mark.parametrize("editing", [False, True], ids=["first message", "edit"])
def test_a_digest_whose_worker_dies_is_posted_by_another_one(
    stage: Stage, ann: Worker, moment: str, *, editing: bool
) -> None:
    storm(stage, 5)
    wait_until(stage, DELAY_S - 1, ann)
    stage.clock.forward(1)
    if editing:
        ann.run()
        stage.clock.forward(30)
        storm(stage, 1)
        ann.run()
        storm(stage, 1)
        ann.run()
        stage.clock.forward(30)
    shown = len(ann.desk.messages) + len(ann.desk.edits)
    batch = ann.take().batch
    assert [each.id for each in batch] == [DIGEST]
    if moment == "sending":
        ann.dispatch(batch)
    elif moment == "asked":
        leased = batch[0]
        assert isinstance(leased, Leased)
        stage.gate.try_acquire_many([(leased.slot, stage.policy.scopes("errors", tells=True))])
    bob = stage.worker("bob")
    keep_beating(stage, LEASE_US // US, "bob")
    bob.run()
    assert len(ann.desk.messages) + len(ann.desk.edits) == shown
    said = [*texts(bob), *edits(bob)]
    assert [text.partition(" ")[0] for text in said] == ["5" if editing else "3"]
    assert len(stage.slots("digest:errors")) == 1
    assert len(bob.desk.searches) == (moment == "sending" and not editing)


def test_a_digest_that_was_given_back_is_posted_by_another_one(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    wait_until(stage, DELAY_S - 1, ann)
    stage.clock.forward(1)
    ann.take()
    ann.give_back()
    bob = stage.worker("bob")
    bob.run()
    assert len(digest_posts(bob)) == 1


def test_a_digest_waits_for_the_pace_of_its_channel_with_its_slots_held(redis: Database) -> None:
    policy = telling_policy()
    rule = replace(policy.categories["errors"], channel="#ops")
    stage = Stage(redis, replace(policy, categories={"errors": rule}))
    ann = stage.worker()
    storm(stage, 5, "one")
    wait_until(stage, DELAY_S - 1, ann)
    stage.clock.forward(1)
    stage.send("x", category="other", channel="#ops")
    bob = stage.worker("bob")
    (started,) = [each for each in bob.dispatch(bob.take(due=0).batch) if each.candidate.leased.id == "x"]
    assert ann.go() == []
    assert stage.line("#ops") == [DIGEST]
    assert stage.snapshot().parked == 0
    assert stage.held("digest:errors") != {}
    bob.deliver([started])
    wait_until(stage, DELAY_S + 5, ann)
    assert len(digest_posts(ann)) == 1


def test_a_digest_waits_for_a_cool_down_and_for_the_end_of_a_pause(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    ann.desk.reply = refuse_digests(RateLimitedBySlack(20 * US, "ratelimited"))
    wait_until(stage, DELAY_S, ann)
    ann.desk.reply = refuse_digests(Paused("token_revoked", "set another"))
    wait_until(stage, DELAY_S + 20, ann)
    assert len(digest_posts(ann)) == 2
    assert stage.total("notices") == 0
    ann.desk.reply = refuse_digests(Receipt("C1", "7.7"))
    wait_until(stage, DELAY_S + 90, ann)
    assert len(digest_posts(ann)) == 3
    assert (tally(stage)["channel"], tally(stage)["ts"]) == ("C1", "7.7")


def test_a_digest_is_tried_again_after_a_failure_that_may_pass(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    ann.desk.reply = refuse_digests(Retryable("dns_failed", "no name"))
    wait_until(stage, DELAY_S, ann)
    assert stage.redis.zscore(stage.keys.timers, DIGEST) == stage.clock.now_us + BACKOFF_US
    ann.desk.reply = refuse_digests(Receipt("C1", "7.7"))
    wait_until(stage, DELAY_S + 5, ann)
    assert stage.total("notices") == 1
    assert len(stage.slots("digest:errors")) == 1


@pytest.mark.parametrize("ends", [False, True], ids=["edited later", "posted once"])
def test_a_digest_that_perhaps_arrived_is_reconciled_and_found(stage: Stage, ann: Worker, *, ends: bool) -> None:
    ann.desk.can_update = not ends
    storm(stage, 5)
    ann.desk.reply = refuse_digests(Ambiguous("reply_timeout", "late"))
    ann.desk.shows = lambda search: ScanResult({name: Receipt("C1", "7.7") for name in search.event_ids}, Absent())
    wait_until(stage, DELAY_S, ann)
    storm(stage, 2)
    ann.run()
    assert stage.total("notices") == 0
    wait_until(stage, DELAY_S + 11, ann)
    (search,) = ann.desk.searches
    assert search.event_ids == (digest_posts(ann)[0].event_id,)
    assert len(digest_posts(ann)) == 1
    assert stage.total("notices") == 1
    if ends:
        assert (tally(stage)["count"], tally(stage)["first"]) == ("2", str(START_US + DELAY_S * US))
        return
    assert (tally(stage)["count"], tally(stage)["shown"], tally(stage)["ts"]) == ("5", "3", "7.7")
    ann.desk.reply = refuse_digests(Receipt("C1", "7.7"))
    wait_until(stage, DELAY_S + 41, ann)
    assert [text.partition(" ")[0] for text in edits(ann)] == ["5"]


def test_a_digest_that_never_arrived_is_posted_again_on_its_slot(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    ann.desk.reply = refuse_digests(Ambiguous("reply_timeout", "late"))
    wait_until(stage, DELAY_S, ann)
    ann.desk.reply = refuse_digests(Receipt("C1", "7.7"))
    wait_until(stage, DELAY_S + 120, ann)
    assert len(digest_posts(ann)) == 2
    assert len(stage.slots("digest:errors")) == 1


@pytest.mark.parametrize("told", ["[]", '["count"]', '["count", 3]', "nonsense"])
def test_a_digest_of_which_nobody_can_read_what_its_post_told_is_posted_again(
    stage: Stage, ann: Worker, told: str
) -> None:
    storm(stage, 5)
    ann.desk.reply = refuse_digests(Ambiguous("reply_timeout", "late"))
    wait_until(stage, DELAY_S, ann)
    stage.redis.hset(stage.keys.tally(DIGEST), "snap", told)
    ann.desk.reply = refuse_digests(Receipt("C1", "7.7"))
    wait_until(stage, DELAY_S + 120, ann)
    assert [text.partition(" ")[0] for text in texts(ann)] == ["3", "3"]


def test_a_digest_that_cannot_be_reconciled_takes_another_slot(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    ann.desk.reply = refuse_digests(Ambiguous("reply_timeout", "late"))
    ann.desk.shows = lambda _: ScanResult({}, Unreadable("webhook", "nothing can be read"))
    wait_until(stage, DELAY_S, ann)
    ann.desk.reply = refuse_digests(Receipt("C1", "7.7"))
    wait_until(stage, DELAY_S + WINDOW_S - 1, ann)
    assert len(digest_posts(ann)) == 1
    wait_until(stage, DELAY_S + WINDOW_S + 1, ann)
    assert len(digest_posts(ann)) == 2


def test_a_digest_that_may_not_be_posted_twice_is_tried_a_window_later(redis: Database) -> None:
    stage = Stage(redis, telling_policy(on_ambiguous=OnAmbiguous.DEAD_LETTER))
    ann = stage.worker()
    storm(stage, 5)
    ann.desk.reply = refuse_digests(Ambiguous("reply_timeout", "late"))
    ann.desk.shows = lambda _: ScanResult({}, Unreadable("webhook", "nothing can be read"))
    wait_until(stage, DELAY_S + WINDOW_S, ann)
    assert stage.letters() == []
    assert "failed" in tally(stage)
    ann.desk.reply = refuse_digests(Receipt("C1", "7.7"))
    wait_until(stage, DELAY_S + WINDOW_S + 20, ann)
    assert len(digest_posts(ann)) == 2


def test_an_edit_that_perhaps_arrived_is_made_again(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    wait_until(stage, DELAY_S, ann)
    ann.desk.reply = refuse_digests(Ambiguous("reply_timeout", "late"))
    storm(stage, 1)
    wait_until(stage, 2 * DELAY_S - 30, ann)
    assert len(edits(ann)) == 1
    assert [each.outcome.reason for each in ann.told.settlements if isinstance(each.outcome, Parked)] == [Reason.RETRY]
    ann.desk.reply = refuse_digests(Receipt("C1", "7.7"))
    wait_until(stage, 2 * DELAY_S, ann)
    assert [text.partition(" ")[0] for text in edits(ann)] == ["4", "4"]
    assert tally(stage)["shown"] == "4"


def test_a_digest_that_cannot_be_posted_is_no_dead_letter_and_tried_a_window_later(stage: Stage, ann: Worker) -> None:
    storm(stage, 9)
    ann.desk.reply = refuse_digests(Rejected("channel_not_found", "no such channel"))
    wait_until(stage, 7_200, ann)
    assert stage.letters() == []
    assert stage.total("notices") == 0
    assert len(digest_posts(ann)) == 4
    assert tally(stage)["count"] == "7"
    assert "failed" in tally(stage)
    ann.desk.reply = refuse_digests(Receipt("C1", "7.7"))
    wait_until(stage, 7_200 + WINDOW_S, ann)
    assert stage.total("notices") == 1
    assert "failed" not in tally(stage)


def test_a_digest_is_tried_so_often_and_then_a_window_later(stage: Stage, ann: Worker) -> None:
    storm(stage, 9)
    ann.desk.reply = refuse_digests(Retryable("dns_failed", "no name"))
    for n in range(90):  # others are posted, so it is no outage
        storm(stage, 1, category="other")
        wait_until(stage, 12.0 * (n + 1), ann)
    assert len(digest_posts(ann)) == MAX_ATTEMPTS
    own = [each for each in ann.told.settlements if isinstance(each.subject, Leased) and each.subject.tally is not None]
    assert [each.reached for each in own if isinstance(each.outcome, Told)] == [False], "the last try was no answer"
    assert stage.slots("digest:errors") == {}
    assert "failed" in tally(stage)


def test_after_a_refusal_the_digest_goes_where_the_limits_file_says_now(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    ann.desk.reply = refuse_digests(Rejected("channel_not_found", "no such channel"))
    wait_until(stage, DELAY_S, ann)
    assert stage.slots("digest:errors") == {}
    rule = replace(stage.policy.categories["errors"], channel="#right")
    stage.policy = replace(stage.policy, categories={"errors": rule})
    ann.desk.reply = refuse_digests(Receipt("C1", "7.7"))
    wait_until(stage, DELAY_S + WINDOW_S, ann)
    assert [message.channel for message in digest_posts(ann)] == ["#free", "#right"]


@pytest.mark.parametrize("code", ["message_not_found", "unknown_method"])
def test_after_a_refused_edit_a_new_digest_tells_of_later_events(stage: Stage, ann: Worker, code: str) -> None:
    storm(stage, 5)
    wait_until(stage, DELAY_S, ann)
    result = Paused(code, "") if code == "unknown_method" else Rejected(code, "")
    ann.desk.reply = refuse_digests(result)
    storm(stage, 2)
    wait_until(stage, DELAY_S + 30, ann)
    assert stage.snapshot().pause is None
    ann.desk.reply = refuse_digests(Receipt("C1", "7.7"))
    wait_until(stage, 2 * DELAY_S + WINDOW_S, ann)
    assert [text.partition(" ")[0] for text in texts(ann)] == ["3", "2"]


# A sink that cannot edit


def test_a_digest_that_cannot_be_edited_is_posted_once_after_a_quiet_time(stage: Stage, ann: Worker) -> None:
    ann.desk.can_update = False
    storm(stage, 5)
    wait_until(stage, 50, ann)
    storm(stage, 1)
    wait_until(stage, 50 + DELAY_S - 1, ann)
    assert digest_posts(ann) == []
    wait_until(stage, 50 + DELAY_S, ann)
    assert texts(ann)[0].startswith("4 more *errors* suppressed from")
    assert stage.snapshot().tallies == {}
    assert ann.desk.edits == []


def test_a_digest_that_cannot_be_edited_waits_for_no_step_back_of_the_clock(stage: Stage, ann: Worker) -> None:
    ann.desk.can_update = False
    storm(stage, 5)
    ann.run()
    ann.notice_step(-86_400 * US)
    for _ in range(2):
        stage.clock.forward(DELAY_S)
        ann.run()
    (text,) = texts(ann)
    said = f"<!date^{START_US // US - 86_400 + DELAY_S}^{{time}}|10:54 UTC>"
    assert text.startswith(f"3 more *errors* suppressed from {said} to {said} ")


def test_a_digest_of_a_buffered_single_from_before_a_step_back_of_the_clock_collects_as_long_as_it_was_to(
    stage: Stage, ann: Worker
) -> None:
    storm(stage, 3)
    ann.run()
    ann.notice_step(-86_400 * US)
    storm(stage, 1)
    ann.run()
    assert stage.redis.zscore(stage.keys.timers, DIGEST) == stage.clock.now_us + DELAY_S * US


@pytest.mark.parametrize("every_s", [30.0, pytest.param(10.0, marks=pytest.mark.slow)])
def test_a_digest_that_cannot_be_edited_is_posted_at_the_end_of_its_window(
    stage: Stage, ann: Worker, every_s: float
) -> None:
    ann.desk.can_update = False
    storm(stage, 2)
    for n in range(round(1_900 / every_s)):
        storm(stage, 2)
        wait_until(stage, every_s * (n + 1), ann)
    (at_us,) = [at_us for at_us, started in stage.attempts if started.candidate.leased.tally]
    assert at_us == START_US + WINDOW_S * US


# Around it


def test_a_change_of_the_limits_file_leaves_nothing_untold(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    ann.run()
    stage.policy = telling_policy(on_limit=OnLimit.DROP)
    storm(stage, 4)
    wait_until(stage, WINDOW_S, ann)
    assert [text.partition(" ")[0] for text in texts(ann)] == ["3"]
    wait_until(stage, 2 * WINDOW_S, ann)
    assert stage.snapshot().events == 0


def test_an_id_that_somebody_pushes_by_hand_is_no_digest_message(stage: Stage, ann: Worker) -> None:
    stage.redis.lpush("rq:queue:q", DIGEST)
    storm(stage, 5)
    wait_until(stage, DELAY_S, ann)
    assert [letter["id"] for letter in stage.letters()] == ["digest?errors~6834ad6b"]
    assert len(digest_posts(ann)) == 1


def test_a_burst_waits_neither_for_a_buffered_single_nor_for_a_digest_that_collects(stage: Stage, ann: Worker) -> None:
    storm(stage, 3)
    ann.run()
    ann.decided()
    assert stage.books.is_drained()
    storm(stage, 1)
    ann.run()
    ann.decided()
    assert stage.books.is_drained()
    stage.clock.forward(DELAY_S)
    ann.take()
    assert not stage.books.is_drained()


def test_a_digest_of_two_categories_is_one_for_each(redis: Database) -> None:
    policy = telling_policy()
    stage = Stage(redis, replace(policy, categories=dict.fromkeys(("errors", "news"), policy.categories["errors"])))
    ann = stage.worker()
    storm(stage, 4)
    storm(stage, 5, category="news")
    wait_until(stage, DELAY_S, ann)
    assert sorted(text.split(" suppressed")[0] for text in texts(ann)) == ["2 more *errors*", "3 more *news*"]
    assert set(stage.snapshot().tallies) == {"digest:errors", "digest:news"}


def test_in_fixed_windows_each_has_its_digest(redis: Database) -> None:
    stage = Stage(redis, telling_policy("3/30m fixed"))
    ann = stage.worker()
    mark_s = WINDOW_S - START_US / US % WINDOW_S
    storm(stage, 5)
    wait_until(stage, mark_s, ann)
    assert stage.snapshot().tallies == {}
    assert len(edits(ann)) == 1
    storm(stage, 5)
    wait_until(stage, mark_s + DELAY_S, ann)
    assert len(digest_posts(ann)) == 2


def test_a_digest_of_several_limits_names_none(redis: Database) -> None:
    stage = Stage(redis, telling_policy("3/5m", "6/10m"))
    ann = stage.worker()
    storm(stage, 22)
    ann.run()
    storm(stage, 4, category="other")
    storm(stage, 1)
    wait_until(stage, WINDOW_S, ann)
    assert "21 more *errors* suppressed since" in texts(ann)[0]
    assert "(several limits)" in texts(ann)[0]
    assert "(several limits), closed" in edits(ann)[-1]


def test_a_limit_of_a_label_is_told_by_its_value(redis: Database) -> None:
    stage = Stage(redis, telling_policy("30/30m", per_label={"host": (Limit.parse("1/30m"),)}))
    ann = stage.worker()
    stage.send("a", "b", "c", labels={"host": "db1"})
    wait_until(stage, DELAY_S, ann)
    assert "(limit 1/30m for host=db1)" in texts(ann)[0]
    assert seconds(stage) == DELAY_S


def test_a_digest_message_whose_tally_was_deleted_by_hand_ends(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    ann.run()
    stage.redis.delete(stage.keys.tally(DIGEST))
    stage.clock.forward(DELAY_S)
    batch = ann.take().batch
    assert [each.id for each in batch] == [DIGEST]
    ann.dispatch(batch)
    assert digest_posts(ann) == []
    assert stage.snapshot().events == 0


@pytest.mark.parametrize(
    "why",
    [
        "nonsense",
        "{}",
        '[1, "errors", "limit", ["category:errors", "3/30m", 1], {}]',
        '["digested", "errors", "limit", null, {}]',
        '["digested", "errors", "limit", [1, "3/30m", 1], {}]',
        '["digested", "errors", "limit", ["category:errors", 3, 1], {}]',
        '["digested", "errors", "limit", ["category:errors", "3/30m"], {}]',
        '["digested", "errors", "limit", ["category:errors", "3/30m", 1]]',
        '["digested", "errors", "limit", ["category:errors", "3/30m", 1], 7]',
    ],
)
def test_a_digest_message_whose_tally_does_not_say_why_ends(stage: Stage, ann: Worker, why: str) -> None:
    storm(stage, 5)
    ann.run()
    stage.redis.hset(stage.keys.tally(DIGEST), "why", why)
    wait_until(stage, DELAY_S, ann)
    assert digest_posts(ann) == []
    assert stage.snapshot().events == 0


def test_a_digest_of_a_category_that_is_muted_waits_until_that_is_over(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    ann.run()
    stage.silencing.mute("errors", 600 * US, who="me", why="known")
    storm(stage, 3)
    wait_until(stage, 599, ann)
    assert digest_posts(ann) == []
    assert stage.total("dropped") == 3
    wait_until(stage, 601, ann)
    assert [text.partition(" ")[0] for text in texts(ann)] == ["3", "Silence"]


def test_a_muted_digest_gives_back_the_slots_that_a_dead_worker_may_have_taken_for_it(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    storm(stage, 5)
    ann.run()
    stage.clock.forward(DELAY_S)
    (digest,) = ann.take().batch
    assert isinstance(digest, Leased)
    before = stage.slots("global")
    stage.gate.try_acquire_many([(digest.slot, stage.policy.scopes("errors", tells=True))])
    keep_beating(stage, 40, "bob")
    stage.silencing.mute("errors", 600 * US, who="me", why="known")
    bob.run()
    assert stage.slots("global") == before


def test_a_digest_of_a_category_that_is_paused_by_hand_waits_until_it_is_resumed(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    ann.run()
    stage.pausing.pause("errors", by="me", why="")
    wait_until(stage, 300, ann)
    assert digest_posts(ann) == []
    stage.pausing.resume("errors")
    wait_until(stage, 301, ann)
    assert len(digest_posts(ann)) == 1


def test_a_digest_that_waits_asks_anew_every_day(stage: Stage, ann: Worker) -> None:
    storm(stage, 5)
    ann.run()
    stage.pausing.pause("*", by="me", why="")
    stage.clock.now_us += 86_400 * US - 1
    assert ann.taken() == []
    stage.clock.now_us += 1
    assert ann.taken() == [DIGEST]


def test_digest_messages_are_not_in_an_operators_hands(stage: Stage, ann: Worker) -> None:
    (*_, alone) = storm(stage, 3)
    ann.run()
    (event,) = stage.parked_events.find(ParkedFilter())
    assert event.id == alone
    assert event.explanation.sentence.startswith("Suppressed (limit:category), so far as the only one; ")
    storm(stage, 1)
    ann.run()
    assert list(stage.parked_events.find(ParkedFilter())) == []


def test_after_a_buffered_single_was_cancelled_another_event_can_be_buffered(stage: Stage, ann: Worker) -> None:
    storm(stage, 3)
    ann.run()
    stage.parked_events.cancel(list(stage.parked_events.find(ParkedFilter())), "me")
    ann.decided()
    assert stage.books.is_drained()
    assert stage.snapshot().all_tallies == 0
    (alone,) = storm(stage, 1)
    ann.run()
    assert "buffered" in stage.header(alone)
    stage.check()


def test_a_worker_that_lost_its_lease_adds_nothing_to_the_tally(stage: Stage, ann: Worker) -> None:
    storm(stage, 6)
    batch = ann.take().batch
    bob = stage.worker("bob")
    keep_beating(stage, LEASE_US // US, "bob")
    bob.run()
    assert tally(stage)["count"] == "4"
    ann.dispatch(batch)
    assert len(ann.told.losses) == 6
    assert tally(stage)["count"] == "4"
    assert stage.total("digested") == 4


def test_a_sleeper_is_woken_for_a_digest_that_begins(stage: Stage, ann: Worker) -> None:
    storm(stage, 2)
    ann.run()
    storm(stage, 3)
    batch = ann.take().batch
    stage.collect_tokens()
    assert ann.dispatch(batch) == []
    assert stage.collect_tokens() == 1


def test_a_buffered_single_that_waits_for_its_channel_leaves_the_next_one_alone(redis: Database) -> None:
    policy = telling_policy()
    rule = replace(policy.categories["errors"], channel="#ops")
    stage = Stage(redis, replace(policy, categories={"errors": rule}))
    ann = stage.worker()
    storm(stage, 3)
    wait_until(stage, DELAY_S - 1, ann)
    stage.clock.forward(1)
    stage.send("x", category="other", channel="#ops")
    bob = stage.worker("bob")
    (started,) = bob.dispatch(bob.take(due=0).batch)
    assert ann.go() == []
    (first,) = stage.line("#ops")
    (second,) = storm(stage, 1)
    ann.run()
    assert tally(stage)["buffered"] == second
    bob.deliver([started])
    wait_until(stage, DELAY_S + 10, ann)
    assert first in ann.desk.posts
    assert tally(stage)["buffered"] == second
