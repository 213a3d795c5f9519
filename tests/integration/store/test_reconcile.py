"""Unconfirmed posts: reconciled before anything else becomes of them, and made again only when they are absent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from dispatcher.core.limits import Reason
from dispatcher.core.pipeline import Capacity
from dispatcher.core.policy import OnAmbiguous, Policy, again_after_us
from dispatcher.core.posts import Ambiguous, Paused, Receipt, Retryable
from dispatcher.core.reconciliation import MAX_RESENT
from dispatcher.core.states import (
    GRACE_US,
    MARGIN_US,
    Absent,
    HistoryScan,
    Leased,
    Parked,
    Place,
    ScanLater,
    ScanResult,
    Search,
    Sent,
    Started,
    Unreadable,
)
from dispatcher.core.transitions import MAX_ATTEMPTS
from dispatcher.core.units import US
from tests.support.doubles import NOTHING_TO_READ, START_US
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, HOUR_MS, LEASE_US, UNPACED, Stage, Worker, names, policy_of

DAY_US: Final = 86_400 * US
LAST_US: Final = 3 * GRACE_US
GAP_US: Final = 1_200_000
"""Between two history scans, for ten minutes after a 429 on history scans."""

LOST: Final = Ambiguous("connection_lost", "the connection ended before the answer")
BROKEN: Final = ScanLater("http_503", "no answer of Slack's own came back")
LIMITED: Final = ScanLater("ratelimited", "Slack limits conversations.history", 40 * US, reached=True)


def lose(worker: Worker, *ids: str, **fields: Any) -> None:  # noqa: ANN401 - an Event's
    """Post these; no answer comes. The channel takes others, so it is not held up, and this is no outage."""
    worker.stage.send(*ids, **fields)
    for started in worker.go():
        lose_one(worker, started)
    worker.desk.posts.clear()


def lose_one(worker: Worker, started: Started) -> None:
    """No answer comes to this post; the channel takes the next one."""
    worker.answer(started, LOST)
    worker.post_beside(started.candidate.terms.channel)


def show(worker: Worker, rest: Any, **found: str) -> None:  # noqa: ANN401 - a Rest
    """From now on a history scan finds these, by event id, and says so much of the rest."""
    receipts = {id_: Receipt("C0GENERAL", ts) for id_, ts in found.items()}
    worker.desk.shows = lambda search: ScanResult(
        {id_: receipts[id_] for id_ in search.event_ids if id_ in receipts},
        rest,
    )


def wait(stage: Stage, span_us: int) -> None:
    """Time passes in which a worker beside beats: without it this would be an interruption of the server."""
    beside = stage.worker("beside")
    while span_us > 0:
        stage.clock.now_us += min(span_us, 10 * US)
        span_us -= 10 * US
        beside.outbox.renew()


def at(stage: Stage, after_us: int) -> None:
    wait(stage, START_US + after_us - stage.clock.now_us)


def timer(stage: Stage, id_: str) -> float | None:
    instant: float | None = stage.redis.zscore(stage.keys.timers, id_)
    return instant


def let_scans_cool_down(stage: Stage, until_us: int) -> None:
    stage.redis.zadd(stage.keys.cooldowns, {"conversations.history": until_us})
    stage.redis.pexpire(stage.keys.cooldowns, HOUR_MS)


def let_lease_end(watcher: Worker) -> None:
    """All others are silent for as long as their lease is; this one is there, and takes over."""
    for _ in range(3):
        watcher.stage.clock.now_us += LEASE_US // 3
        watcher.take(0, 0)


def letters(stage: Stage) -> list[tuple[str, str, str]]:
    return [(each["id"], each["reason"], each.get("code", "")) for each in stage.letters()]


def with_rule(policy: Policy, on_ambiguous: OnAmbiguous) -> Policy:
    rule = replace(policy.defaults, on_ambiguous=on_ambiguous)
    return replace(policy, defaults=rule, categories={"errors": rule})


def last_outcome(worker: Worker) -> Any:  # noqa: ANN401 - an Outcome
    return worker.told.settlements[-1].outcome


# When it is reconciled, and what a complete history scan means


def test_the_grace_counts_from_the_post_and_not_from_its_failure(stage: Stage, ann: Worker) -> None:
    stage.send("x")
    (started,) = ann.go()
    stage.clock.forward(4)
    ann.answer(started, LOST)
    assert timer(stage, "x") == START_US + GRACE_US
    at(stage, GRACE_US - 1)
    taken = ann.take()
    assert (taken.batch, taken.next_us) == ([], START_US + GRACE_US)
    at(stage, GRACE_US)
    assert ann.go() == []
    assert len(ann.desk.searches) == 1


def test_a_post_that_failed_after_its_grace_is_reconciled_at_once(stage: Stage, ann: Worker) -> None:
    stage.send("x")
    (started,) = ann.go()
    stage.clock.forward(12)
    ann.answer(started, LOST)
    assert timer(stage, "x") == stage.clock.now_us


def test_a_post_that_is_found_was_sent(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    show(ann, Absent(), x="7.000001")
    at(stage, GRACE_US)
    assert ann.go() == []
    assert ann.desk.posts == []
    assert last_outcome(ann) == Sent(Receipt("C0GENERAL", "7.000001"), found=True)
    assert stage.slots("category:errors") == {"x": START_US}
    assert (stage.total("sent"), stage.snapshot().events, stage.letters()) == (2, 0, [])


def test_an_event_not_found_is_reconciled_again_at_three_graces_and_posted_only_then(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    at(stage, GRACE_US)
    assert ann.go_on() == []
    assert timer(stage, "x") == START_US + LAST_US
    at(stage, LAST_US - 1)
    assert ann.taken() == []
    at(stage, LAST_US)
    (again,) = ann.go_on()
    assert (again.attempt, again.candidate.leased.resent, len(ann.desk.searches)) == (2, 1, 2)


def test_an_event_found_by_the_second_scan_is_not_posted_again(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    at(stage, GRACE_US)
    ann.go_on()
    show(ann, Absent(), x="7.000001")
    at(stage, LAST_US)
    assert ann.go_on() == []
    assert last_outcome(ann) == Sent(Receipt("C0GENERAL", "7.000001"), found=True)


def test_an_event_that_is_posted_again_takes_the_slot_held_for_it(redis: Database) -> None:
    """The limit is full: without a slot of its own it could not pass."""
    stage = Stage(redis, policy_of("", "1/30m"))
    ann = stage.worker("ann")
    stage.send("x")
    ann.answer(ann.go()[0], LOST)
    assert stage.held("category:errors") == {}
    at(stage, LAST_US)
    (lookup,) = ann.dispatcher.scans(ann.take().batch, stage.clock.now_us)
    ann.settle(ann.dispatcher.scan(lookup))
    assert stage.held("category:errors") == {"x": START_US + DAY_US}
    (again,) = ann.go()
    assert stage.slots("category:errors") == {"x": stage.clock.now_us}
    ann.deliver([again])
    assert (stage.total("sent"), ann.told.settlements[-1].perhaps_posted) == (1, 0)


def test_an_absent_post_is_made_again_twice_then_becomes_a_dead_letter_with_its_slot(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    posted_us = 0
    for n in range(MAX_RESENT):
        wait(stage, LAST_US)
        (again,) = ann.go_on()
        assert again.attempt == n + 2
        posted_us = stage.clock.now_us
        lose_one(ann, again)
    wait(stage, LAST_US)
    assert ann.go_on() == []
    assert letters(stage) == [("x", "ambiguous", LOST.code)]
    assert stage.letters()[0]["attempts"] == "3"
    assert stage.letters()[0]["detail"] == "posted 3 times, and the channel never showed it"
    assert stage.slots("category:errors") == {"x": posted_us}


def test_an_absent_post_to_a_failing_channel_is_made_eight_times_over_an_hour(stage: Stage, ann: Worker) -> None:
    stage.send("x")
    stage.prolongs = True
    posted = []
    while not stage.letters():
        for started in ann.go_on():
            posted.append(stage.clock.now_us)
            ann.answer(started, LOST)
        ann.sleep()
    assert len(posted) == MAX_ATTEMPTS
    assert posted[-1] - posted[0] > 3_600 * US
    assert letters(stage) == [("x", "ambiguous", LOST.code)]
    assert stage.letters()[0]["detail"] == "posted 8 times, and the channel never showed it"


def test_in_an_outage_a_post_that_never_arrived_is_made_again_and_not_counted(stage: Stage, ann: Worker) -> None:
    ids = [f"e{n}" for n in range(6)]
    for id_ in ids:
        stage.send(id_, channel=f"#{id_}")
    posts = 0
    stage.prolongs = True
    while stage.clock.now_us < START_US + 3_600 * US:
        for started in ann.go_on():
            posts += 1
            ann.answer(started, LOST)
        ann.sleep()
    assert stage.letters() == []
    assert posts < 3_600 / 30 + 40, "about one in half a minute"
    assert all(stage.header(id_)["attempt"] <= 1 and stage.header(id_).get("resent", 0) <= 1 for id_ in ids)
    for _ in range(90):
        ann.deliver(ann.go_on())
        stage.clock.forward(1)
    assert stage.total("sent") == len(ids)


def test_the_count_of_posts_made_again_survives_a_refusal_in_between(redis: Database) -> None:
    """A window so short that it holds no slots: the second attempt waits for room first."""
    stage = Stage(redis, policy_of("", "1/40s"))
    ann = stage.worker("ann")
    lose(ann, "x")
    for _ in range(MAX_RESENT):
        wait(stage, 50 * US)
        stage.send(f"y{stage.clock.now_us}", channel=UNPACED)
        ann.deliver(ann.dispatch(ann.take(due=0).batch))
        assert ann.go_on() == []
        assert stage.header("x")["resent"] > 0, "it was refused, and waits for room"
        wait(stage, 40 * US)
        (again,) = ann.go_on()
        lose_one(ann, again)
    wait(stage, LAST_US)
    assert ann.go_on() == []
    assert letters(stage) == [("x", "ambiguous", LOST.code)]


def test_a_history_scan_begins_before_the_first_of_all_posts(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    at(stage, LAST_US)
    (again,) = ann.go_on()
    ann.answer(again, LOST)
    stage.clock.now_us += GRACE_US
    ann.go_on()
    assert {each.since_us for each in ann.desk.searches} == {START_US - MARGIN_US}


def test_posts_to_a_channel_go_on_while_one_delivery_is_unknown(stage: Stage, ann: Worker) -> None:
    stage.send("x", "y", "z")
    ann.answer(ann.go()[0], LOST)
    ann.run()
    assert ann.desk.posts == ["y", "z"]


# What cannot be read now


def test_a_history_scan_that_fails_is_made_again_with_back_off(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    show(ann, BROKEN)
    at(stage, GRACE_US)
    for failed_scans in (1, 2, 3):
        ann.go()
        waits = last_outcome(ann)
        assert waits == Parked(Place.TIMER, Reason.RECONCILE, BACKOFF_US, BROKEN.code, detail=BROKEN.detail)
        assert (stage.header("x")["unconfirmed"], timer(stage, "x")) == (failed_scans, stage.clock.now_us + BACKOFF_US)
        stage.clock.now_us += BACKOFF_US
    show(ann, Absent(), x="7.000001")
    ann.go()
    assert stage.total("sent") == 2


def test_a_failed_scan_does_not_bring_the_last_scan_forward(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    show(ann, BROKEN)
    at(stage, GRACE_US)
    ann.go()
    show(ann, Absent())
    stage.clock.now_us += BACKOFF_US
    assert ann.go_on() == []
    assert timer(stage, "x") == START_US + LAST_US


def test_no_history_scan_begins_before_the_end_of_a_429_on_history_scans(stage: Stage, ann: Worker) -> None:
    bob = stage.worker("bob", lease_us=DAY_US)
    ann.outbox._lease_us = DAY_US  # noqa: SLF001 - neither is to be taken over
    lose(ann, "x")
    lose(ann, "y", channel="#b")
    show(ann, LIMITED)
    show(bob, Absent())
    at(stage, GRACE_US)
    ann.go(new=0, due=1)
    assert len(ann.desk.searches) == 1
    end_us = stage.clock.now_us + 40 * US
    for worker in (ann, bob):
        assert worker.taken() == []
    assert {timer(stage, "x"), timer(stage, "y")} == {end_us}
    stage.clock.now_us = end_us - 1
    taken = bob.take()
    assert (taken.batch, taken.next_us) == ([], end_us)
    stage.clock.now_us = end_us
    assert [bob.taken(), bob.taken(), ann.taken()] == [["x"], [], []], "one by one"
    stage.clock.now_us += GAP_US - 1
    assert ann.taken() == []
    stage.clock.now_us += 1
    assert ann.taken() == ["y"]


def test_after_a_429_on_history_scans_all_events_of_a_channel_still_share_a_history_scan(
    stage: Stage, ann: Worker
) -> None:
    lose(ann, "x")
    lose(ann, "y")
    let_scans_cool_down(stage, START_US + US)
    at(stage, GRACE_US)
    assert ann.taken() == ["x", "y"]


def test_after_a_429_on_history_scans_the_next_scan_waits_for_the_gap(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    stage.clock.now_us += GAP_US // 2
    lose(ann, "y", channel="#b")
    let_scans_cool_down(stage, START_US + US)
    at(stage, GRACE_US)
    assert ann.taken() == ["x"]
    stage.clock.now_us += GAP_US - 1
    assert ann.taken() == []
    stage.clock.now_us += 1
    assert ann.taken() == ["y"]


def test_ten_minutes_after_a_429_history_scans_are_made_side_by_side_again(stage: Stage, ann: Worker) -> None:
    let_scans_cool_down(stage, START_US)
    at(stage, 600 * US)
    lose(ann, "x")
    lose(ann, "y", channel="#b")
    stage.clock.now_us += GRACE_US
    assert ann.taken() == ["x", "y"]


def test_posts_go_on_while_history_scans_cool_down(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    show(ann, LIMITED)
    at(stage, GRACE_US)
    ann.go()
    stage.send("y")
    ann.run()
    assert ann.desk.posts == ["y"]
    assert (len(ann.desk.searches), stage.snapshot().pause) == (1, None)


def test_a_dead_workers_scan_waits_for_the_end_of_a_429_on_history_scans(stage: Stage, ann: Worker) -> None:
    bob = stage.worker("bob")
    lose(ann, "x")
    lose(ann, "y", channel="#b")
    at(stage, GRACE_US)
    assert ann.taken(new=0, due=1) == ["x"]
    show(bob, LIMITED)
    bob.go(due=1)
    end_us = stage.clock.now_us + 40 * US
    let_lease_end(bob)
    assert bob.taken() == []
    assert timer(stage, "x") == end_us


def test_a_poison_candidate_with_unknown_delivery_waits_for_the_end_of_a_429_on_history_scans(stage: Stage) -> None:
    """Two workers died with it: it is handed out alone, yet not before anybody may read."""
    ann, bob = stage.worker("ann"), stage.worker("bob")
    lose(ann, "x")
    at(stage, GRACE_US)
    for n in range(2):
        assert stage.worker(f"worker{n}").taken() == ["x"]
        let_lease_end(bob)
    assert stage.header("x")["deaths"] == 2
    let_scans_cool_down(stage, stage.clock.now_us + US)
    assert bob.taken() == []
    stage.clock.now_us += US
    assert bob.taken() == ["x"]


# Deadlines


def test_an_event_with_unknown_delivery_outlives_its_deadline_until_it_is_reconciled(stage: Stage, ann: Worker) -> None:
    lose(ann, "x", max_age=5)
    show(ann, Absent(), x="7.000001")
    at(stage, 5 * US)
    taken = ann.take()
    assert (taken.batch, taken.next_us) == ([], START_US + GRACE_US)
    at(stage, GRACE_US)
    ann.go()
    assert (stage.total("sent"), stage.letters()) == (2, [])


def test_an_event_of_a_dead_worker_with_unknown_delivery_outlives_its_deadline_too(stage: Stage, ann: Worker) -> None:
    bob = stage.worker("bob")
    stage.send("x", max_age=5)
    ann.go()
    show(bob, Absent(), x="7.000001")
    for _ in range(3):
        stage.clock.now_us += LEASE_US // 3
        bob.run()
    assert (stage.total("sent"), stage.letters()) == (1, [])


def test_past_its_deadline_it_is_reconciled_at_the_last_look_and_no_sooner(stage: Stage, ann: Worker) -> None:
    """Absent at the first look: until the second it is neither read again and again nor given up."""
    lose(ann, "x", max_age=15)
    at(stage, GRACE_US)
    ann.go_on()
    at(stage, 15 * US)
    taken = ann.take()
    assert (taken.batch, taken.next_us) == ([], START_US + LAST_US)
    at(stage, LAST_US)
    assert ann.go_on() == []
    assert len(ann.desk.searches) == 2
    assert letters(stage) == [("x", "expired", "")]
    assert stage.slots("category:errors") == {}


def test_past_its_deadline_a_history_scan_that_fails_is_the_last(stage: Stage, ann: Worker) -> None:
    lose(ann, "x", max_age=12)
    show(ann, BROKEN)
    at(stage, GRACE_US)
    ann.go()
    assert stage.letters() == []
    stage.clock.now_us += BACKOFF_US
    ann.go()
    assert letters(stage) == [("x", "ambiguous", LOST.code)]
    assert stage.slots("category:errors") == {"x": START_US}
    assert len(ann.desk.searches) == 2


def test_past_its_deadline_nobody_reads_before_the_end_of_a_429_on_history_scans(stage: Stage, ann: Worker) -> None:
    lose(ann, "x", max_age=12)
    lose(ann, "y", channel="#b")
    let_scans_cool_down(stage, START_US + 40 * US)
    at(stage, 12 * US)
    assert ann.taken() == []
    assert {timer(stage, "x"), timer(stage, "y")} == {START_US + 40 * US}
    at(stage, 20 * US)
    assert ann.taken() == []
    at(stage, 40 * US)
    assert ann.taken() == ["x"]
    stage.clock.now_us += GAP_US
    assert ann.taken() == ["y"]


# What can never be read


def test_an_event_that_cannot_be_reconciled_is_posted_again_on_a_second_slot(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    ann.desk.shows = lambda _: NOTHING_TO_READ
    at(stage, GRACE_US)
    assert ann.go_on() == []
    assert timer(stage, "x") == stage.clock.now_us + again_after_us("x", 1)
    stage.clock.now_us += again_after_us("x", 1)
    (again,) = ann.go_on()
    assert (again.attempt, again.candidate.leased.unknown) == (2, 1)
    assert stage.slots("category:errors") == {"x": START_US, "x#1": stage.clock.now_us}
    ann.deliver([again])
    assert last_outcome(ann) == Sent(Receipt("#general", "1.000001"))
    assert ann.told.settlements[-1].perhaps_posted == 1


def test_of_what_was_posted_twice_and_is_found_one_copy_may_stand_beside(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    ann.desk.shows = lambda _: NOTHING_TO_READ
    at(stage, GRACE_US)
    ann.go()
    stage.clock.now_us += BACKOFF_US
    (again,) = ann.go()
    ann.answer(again, LOST)
    show(ann, Absent(), x="7.000001")
    stage.clock.now_us += GRACE_US
    ann.go()
    assert last_outcome(ann) == Sent(Receipt("C0GENERAL", "7.000001"), found=True)
    assert ann.told.settlements[-1].perhaps_posted == 1


def test_an_event_that_expires_with_unknown_delivery_status_is_an_ambiguous_dead_letter(
    stage: Stage, ann: Worker
) -> None:
    lose(ann, "x", max_age=12)
    ann.desk.shows = lambda _: NOTHING_TO_READ
    at(stage, GRACE_US)
    assert ann.go_on() == []
    at(stage, 12 * US)
    assert ann.go_on() == []
    assert letters(stage) == [("x", "ambiguous", LOST.code)]
    assert stage.letters()[0]["attempts"] == "1"
    assert stage.slots("category:errors") == {"x": START_US}


def test_an_event_that_cannot_be_reconciled_is_a_dead_letter_if_its_category_says_so(redis: Database) -> None:
    stage = Stage(redis, with_rule(policy_of(), OnAmbiguous.DEAD_LETTER))
    ann = stage.worker("ann")
    lose(ann, "x")
    ann.desk.shows = lambda _: NOTHING_TO_READ
    at(stage, GRACE_US)
    assert ann.go_on() == []
    assert letters(stage) == [("x", "ambiguous", LOST.code)]
    assert stage.slots("category:errors") == {"x": START_US}


@pytest.mark.parametrize("others", ["answer", pytest.param("fail too", marks=pytest.mark.slow), "are not there"])
def test_a_post_that_cannot_be_reconciled_is_made_at_most_eight_times_over_an_hour(
    stage: Stage, ann: Worker, others: str
) -> None:
    """Whether its channel takes others, the whole fleet has an outage, or it is the only event."""
    ann.desk.shows = lambda _: NOTHING_TO_READ
    stage.prolongs = True
    count = 7 if others == "fail too" else 1
    for n in range(count):
        stage.send(f"x{n}", channel=f"#{n}")
    posted: dict[str, list[int]] = {}
    while len(stage.letters()) < count:
        for started in ann.go_on():
            posted.setdefault(started.candidate.leased.id, []).append(stage.clock.now_us)
            ann.answer(started, LOST)
            if others == "answer":
                ann.post_beside("#0")
        ann.sleep()
    for instants in posted.values():
        assert len(instants) == MAX_ATTEMPTS
        assert instants[-1] - instants[0] > 3_600 * US
    assert {(reason, code) for _, reason, code in letters(stage)} == {("ambiguous", LOST.code)}
    assert {each["detail"] for each in stage.letters()} == {
        "perhaps posted 8 times, and the channel's history cannot be read: nothing can be read"
    }


# Never gated, dropped or refused before the look


def test_an_event_with_unknown_delivery_asks_for_no_slot_before_the_scan(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/2s"))
    ann = stage.worker("ann")
    stage.send("x")
    ann.answer(ann.go()[0], LOST)
    at(stage, GRACE_US)
    stage.send("y", channel="#y")
    ann.go(due=0)  # the window is full
    show(ann, Absent(), x="7.000001")
    ann.go()
    assert (stage.total("sent"), stage.total("dropped")) == (1, 0)


def test_an_event_with_unknown_delivery_whose_category_is_rejected_since_is_reconciled(
    stage: Stage, ann: Worker
) -> None:
    lose(ann, "x", category="unheard-of")
    stage.policy = replace(stage.policy, reject_unknown=True)
    show(ann, Absent(), x="7.000001")
    at(stage, GRACE_US)
    ann.go()
    assert (stage.total("sent"), stage.letters()) == (2, [])


def test_an_event_whose_category_is_rejected_since_is_posted_again_where_no_history_can_be_read(
    stage: Stage, ann: Worker
) -> None:
    lose(ann, "x", category="unheard-of")
    ann.desk.shows = lambda _: NOTHING_TO_READ
    at(stage, GRACE_US)
    ann.go()
    stage.policy = replace(stage.policy, reject_unknown=True)
    stage.clock.forward(1)
    ann.run()
    assert ann.desk.posts == ["x"]
    assert (stage.total("sent"), stage.letters()) == (2, [])


def test_a_repeat_of_an_event_with_unknown_delivery_is_a_duplicate(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    stage.redis.hset(stage.queue.job("x"), "data", "[]")
    stage.redis.rpush(stage.queue.lanes[1], "x")
    assert ann.take().duplicates == ["x"]


# Death, stops, lost answers


def test_a_post_whose_worker_died_is_reconciled_a_grace_after_it_was_marked(stage: Stage, ann: Worker) -> None:
    bob = stage.worker("bob")
    stage.send("x")
    ann.go()
    let_lease_end(bob)
    assert (bob.desk.searches, timer(stage, "x")) == ([], stage.clock.now_us)
    assert names(bob.go_on()) == ["x"]  # three graces have passed as well, and the channel does not show it
    assert [each.event_ids for each in bob.desk.searches] == [("x",)]


def test_a_short_lease_does_not_shorten_the_grace(stage: Stage) -> None:
    ann, bob = stage.worker("ann", lease_us=2 * US), stage.worker("bob")
    stage.send("x")
    ann.go()
    at(stage, US)
    bob.take()
    at(stage, 2 * US)
    bob.take()
    assert timer(stage, "x") == START_US + GRACE_US
    assert (stage.header("x")["unconfirmed"], stage.header("x").get("held")) == (0, None)


def test_an_expired_event_of_a_dead_worker_is_reconciled_after_its_grace(stage: Stage) -> None:
    ann, bob = stage.worker("ann", lease_us=2 * US), stage.worker("bob")
    stage.send("x", max_age=5)
    ann.go()
    for second in (1, 2, 5):
        at(stage, second * US)
        assert bob.taken() == []
    assert bob.take().next_us == START_US + GRACE_US
    at(stage, GRACE_US)
    assert bob.taken() == ["x"]


def test_a_post_of_a_dead_worker_that_arrived_is_not_made_again(stage: Stage, ann: Worker) -> None:
    bob = stage.worker("bob")
    stage.send("x", "y")
    ann.go()
    show(bob, Absent(), x="7.000001")
    let_lease_end(bob)
    bob.run()
    assert bob.desk.posts == ["y"]
    assert stage.total("sent") == 2


@pytest.mark.parametrize("way", ["dies", "gives back", "keeps nothing"])
def test_a_history_scan_that_was_under_way_is_made_by_another(stage: Stage, ann: Worker, way: str) -> None:
    bob = stage.worker("bob")
    lose(ann, "x")
    at(stage, GRACE_US)
    assert ann.taken() == ["x"]
    if way == "dies":
        let_lease_end(bob)
    elif way == "gives back":
        assert ann.give_back() == 1
    else:
        assert ann.keep_only() == 1
    show(bob, Absent(), x="7.000001")
    bob.take(0, 0)
    assert (stage.snapshot().timers, timer(stage, "x")) == (1, stage.clock.now_us)
    assert (stage.header("x")["unconfirmed"], stage.header("x")["attempt"]) == (0, 1)
    bob.go()
    assert (stage.total("sent"), bob.desk.posts) == (2, [])


def test_a_history_scan_that_is_kept_over_a_lost_answer_is_concluded(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    at(stage, GRACE_US)
    (lookup,) = ann.dispatcher.scans(ann.take().batch, stage.clock.now_us)
    assert ann.keep_only("x") == 0
    show(ann, Absent(), x="7.000001")
    assert ann.settle(ann.dispatcher.scan(lookup)) == [True]
    assert stage.total("sent") == 2


@pytest.mark.parametrize(
    "rest", [Absent(), BROKEN, LIMITED, NOTHING_TO_READ.rest], ids=lambda rest: type(rest).__name__
)
def test_a_history_scan_that_comes_after_the_lease_changes_nothing(stage: Stage, ann: Worker, rest: Any) -> None:  # noqa: ANN401 - a Rest
    bob = stage.worker("bob")
    lose(ann, "x")
    at(stage, GRACE_US)
    (lookup,) = ann.dispatcher.scans(ann.take().batch, stage.clock.now_us)
    let_lease_end(bob)
    assert bob.taken() == ["x"]
    before = stage.header("x")
    show(ann, rest)
    assert ann.settle(ann.dispatcher.scan(lookup)) == [False]
    assert stage.header("x") == before
    assert stage.snapshot().cooldowns == {}


def test_a_history_scan_that_two_workers_died_with_is_made_alone(stage: Stage, ann: Worker) -> None:
    bob = stage.worker("bob")
    lose(ann, "x")
    lose(ann, "y")
    at(stage, GRACE_US)
    for n in range(2):
        assert stage.worker(f"worker{n}").taken(due=1) == ["x", "y"], "one history scan for both"
        let_lease_end(bob)
    assert [bob.taken(), bob.taken()] == [["x"], ["y"]]


# One history scan for all


def test_one_history_scan_answers_for_all_events_of_a_channel(stage: Stage, ann: Worker) -> None:
    lose(ann, "a")
    stage.clock.forward(1)
    lose(ann, "b")
    lose(ann, "c", channel="#other")
    show(ann, Absent(), a="1.1", b="1.2", c="1.3")
    at(stage, GRACE_US + US)
    ann.go_on()
    assert sorted(ann.desk.searches, key=lambda search: search.event_ids) == [
        Search("#general", ("a", "b"), START_US - MARGIN_US, now_us=stage.clock.now_us),
        Search("#other", ("c",), START_US + US - MARGIN_US, now_us=stage.clock.now_us),
    ]
    assert stage.total("sent") == 6


def test_events_of_one_channel_share_one_history_scan(stage: Stage, ann: Worker) -> None:
    ids = [f"e{n}" for n in range(30)]
    for id_ in ids:
        lose(ann, id_, category="many", channel=UNPACED)
    stage.send("other", channel="#other")
    ann.answer(ann.go(due=0)[0], LOST)
    at(stage, GRACE_US)
    stage.send("line", channel="#line")
    ann.go(due=0, free=0)
    assert sorted(ann.taken(due=3)) == sorted([*ids, "other", "line"])


def test_a_history_scan_leaves_the_other_senders_to_posts(stage: Stage, ann: Worker) -> None:
    for id_ in ("x", "y", "z"):
        lose(ann, id_, category="many", channel=UNPACED)
    stage.send("line", channel="#line")
    ann.go(due=0, free=0)
    at(stage, GRACE_US)
    assert sorted(ann.taken(due=2)) == ["line", "x", "y", "z"]


def test_an_event_of_a_thread_is_looked_for_in_its_thread(stage: Stage, ann: Worker) -> None:
    lose(ann, "a", channel=UNPACED)
    lose(ann, "b", channel=UNPACED, thread_ts="1732100000.000100")
    lose(ann, "c", channel=UNPACED, thread_ts="1732100000.000200")
    at(stage, GRACE_US)
    ann.go_on()
    assert {each.event_ids: each.thread_ts for each in ann.desk.searches} == {
        ("a",): None,
        ("b",): "1732100000.000100",
        ("c",): "1732100000.000200",
    }


def test_a_channel_is_read_by_the_id_that_an_earlier_post_has_told(stage: Stage, ann: Worker) -> None:
    bob = stage.worker("bob")
    ann.desk.reply = lambda _: Receipt("C0123456789", "1.1")
    stage.send("first")
    ann.run()
    lose(ann, "x")
    at(stage, GRACE_US)
    bob.go()
    assert [each.channel for each in bob.desk.searches] == ["C0123456789"]
    assert stage.header("x")["channel"] == "#general"


def test_a_channel_name_in_a_receipt_is_not_remembered_as_an_id(stage: Stage, ann: Worker) -> None:
    ann.desk.reply = lambda _: Receipt("general", "1.1")
    stage.send("first")
    ann.run()
    assert stage.redis.hgetall(stage.keys.places) == {}


def test_events_are_looked_for_by_the_id_the_producer_knows(stage: Stage, ann: Worker) -> None:
    stage.send("an id with blanks, longer than RQ takes it: äöü")
    ann.answer(ann.go()[0], LOST)
    at(stage, GRACE_US)
    ann.go()
    assert ann.desk.searches[0].event_ids == ("an id with blanks, longer than RQ takes it: äöü",)


def test_a_scan_settles_found_events_and_ends_the_unreadable_ones(redis: Database) -> None:
    stage = Stage(redis, with_rule(policy_of(), OnAmbiguous.DEAD_LETTER))
    ann = stage.worker("ann")
    lose(ann, "a")
    lose(ann, "b")
    show(ann, Unreadable("history_cut_short", "Slack shows this app 15 messages at a time"), a="1.1")
    at(stage, GRACE_US)
    ann.go()
    assert letters(stage) == [("b", "ambiguous", LOST.code)]
    assert stage.total("sent") == 3


def test_an_event_that_cannot_be_handled_becomes_a_dead_letter_without_a_scan(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    at(stage, GRACE_US)
    (leased,) = ann.take().batch
    assert isinstance(leased, Leased)
    broken = leased._replace(seen_us=None)  # type: ignore[arg-type]  # a defect of ours
    assert ann.dispatcher.scans([broken], stage.clock.now_us) == []
    assert letters(stage) == [("x", "invalid", "")]


# What the core leaves alone


def test_the_core_decides_nothing_about_what_is_to_be_reconciled(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    at(stage, GRACE_US)
    batch = ann.take().batch
    before = stage.header("x")
    assert ann.dispatcher.dispatch(batch, stage.clock.now_us, Capacity(10)) == []
    assert stage.header("x") == before


def test_a_history_scan_that_an_operator_has_to_mend_pauses_everybody(stage: Stage, ann: Worker) -> None:
    pause = Paused("token_revoked", "Slack does not accept the token")
    lose(ann, "x")
    show(ann, ScanLater(pause.code, pause.detail, reached=True, pause=pause))
    at(stage, GRACE_US)
    ann.go()
    found = stage.snapshot().pause
    assert found is not None
    assert (found.code, found.detail) == (pause.code, pause.detail)
    stage.send("y", channel="#y")
    assert ann.go() == []


def test_a_lookup_names_its_events_and_begins_when_they_were_taken(stage: Stage, ann: Worker) -> None:
    lose(ann, "x")
    at(stage, GRACE_US)
    batch = ann.take().batch
    (lookup,) = ann.dispatcher.scans(batch, stage.clock.now_us)
    assert isinstance(lookup, HistoryScan)
    assert lookup.search == Search("#general", ("x",), START_US - MARGIN_US, now_us=stage.clock.now_us)


def test_a_failure_to_connect_leaves_no_unknown_delivery(stage: Stage, ann: Worker) -> None:
    stage.send("x")
    ann.answer(ann.go()[0], Retryable("connection_refused", "nobody listens there"))
    assert "unconfirmed" not in stage.header("x")
    stage.clock.now_us += BACKOFF_US
    assert names(ann.go()) == ["x"]
    assert ann.desk.searches == []
