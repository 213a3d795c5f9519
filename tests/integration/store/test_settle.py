"""An outcome becomes durable in one step: with its books, its dead letter, its remembered id and its channel."""

from __future__ import annotations

from typing import Final

import pytest

from dispatcher.core.event import Event
from dispatcher.core.limits import Bounds, Denied, Limit, Reason
from dispatcher.core.policy import OnLimit
from dispatcher.core.posts import Paused, Receipt, Rejected, Retryable
from dispatcher.core.states import GRACE_US, Dropped, Leased, Settlement, Slots
from dispatcher.core.transitions import after_post
from dispatcher.core.units import US, Lane
from dispatcher.store.intake import seal
from tests.support.doubles import START_US
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, REMEMBER_US, UNPACED, Stage, Worker, policy_of

DAY_US: Final = 86_400 * US


# The books


def test_every_outcome_is_counted_in_all_and_by_category(redis: Database) -> None:
    stage = Stage(redis, policy_of("100/30m", "2/30m"))
    ann = stage.worker("ann")
    stage.send("a", "b", "c", channel=UNPACED)
    stage.send("d", category="deploys", channel=UNPACED)
    a, b, d = ann.go()
    ann.deliver([a])
    ann.answer(b, Rejected("is_archived", "archived"))
    ann.answer(d, Retryable("refused", "connection refused"))
    snapshot = stage.snapshot()
    assert snapshot.overall() == {
        "enqueued": 4,
        "received": 4,
        "sent": 1,
        "dropped": 1,
        "digested": 0,
        "dead": 1,
        "duplicate": 0,
        "replayed": 0,
        "notices": 0,
    }
    by_category = {outcome: snapshot.by_category(outcome) for outcome in ("sent", "dropped", "dead", "parked")}
    errors = {"errors": 1}
    assert by_category == {"sent": errors, "dropped": errors, "dead": errors, "parked": {"deploys": 1}}
    assert snapshot.parked == 1
    assert "parked" not in snapshot.totals  # what waits is no outcome


def test_beyond_a_thousand_unknown_categories_others_are_counted_together(redis: Database) -> None:
    stage = Stage(redis, policy_of("1/30m", ""))
    ann = stage.worker("ann")
    for first in range(0, 1_010, 505):
        events = [(f"e{n}", Event(f"c{n}", "t", id=f"e{n}")) for n in range(first, first + 505)]
        stage.intake.enqueue(events)
        ann.go(new=505)
    stage.send("named", category="errors")
    stage.send("old", category="c7")
    ann.go()
    dropped = stage.snapshot().by_category("dropped")
    assert (dropped["other"], dropped["errors"], dropped["c7"]) == (10, 1, 2)
    assert len(dropped) == 1_001  # 999 unknown ones, since c0 was admitted, `errors`, and the others
    assert redis.zcard(stage.keys.names) == 1_000


def test_an_outcome_that_is_said_twice_is_counted_once(stage: Stage, ann: Worker) -> None:
    stage.send("x")
    (started,) = ann.go()
    settlement = after_post(started, Receipt("#general", "1.1"), lambda _: BACKOFF_US, GRACE_US)
    assert [ann.settle([settlement]), ann.settle([settlement])] == [[True], [False]]
    assert stage.total("sent") == 1
    assert len(stage.slots("pace:#general")) == 1


def test_a_settled_event_leaves_nothing_but_its_slots_and_its_records(
    stage: Stage, ann: Worker, redis: Database
) -> None:
    stage.send("a")
    ann.run()
    ann.give_back()
    keys = stage.keys
    kept = {
        keys.totals,
        keys.metrics,
        keys.minute(START_US // (60 * US)),
        keys.seq,
        keys.beat,
        keys.enqueued,
        keys.seen,
        keys.decisions[2],
        keys.decision_logs[1],
        keys.posted,
        keys.wake,  # what a worker leaves that stops
        *map(keys.scope, ("global", "category:errors", "pace:#general")),
    }
    assert {key.decode() for key in redis.scan_iter()} == {*kept, stage.queue.queues}


def test_a_snapshot_writes_nothing(stage: Stage, ann: Worker, redis: Database) -> None:
    stage.send("a", "b")
    ann.go()
    before = redis.info("persistence")["rdb_changes_since_last_save"]
    stage.snapshot()
    assert redis.info("persistence")["rdb_changes_since_last_save"] == before


def test_a_snapshot_shows_everything_at_one_instant(stage: Stage, ann: Worker) -> None:
    bob = stage.worker("bob", lease_us=60 * US)
    stage.send("a", "b", "c")
    stage.send("t", channel="#t")
    ann.go()
    (t,) = (each for _, each in stage.attempts if each.candidate.leased.id == "t")
    ann.answer(t, Retryable("refused", "connection refused"))
    stage.send("d", "e")
    assert bob.taken(new=1) == ["d"]
    snapshot = stage.snapshot()
    assert (snapshot.now_us, snapshot.waiting, snapshot.events, snapshot.leased, snapshot.parked, snapshot.timers) == (
        START_US,
        1,
        5,
        2,
        3,
        1,
    )
    assert snapshot.lines["channel:#general"].waiting == 2
    assert snapshot.lines["channel:#general"].next_us is None
    assert snapshot.leases == {"ann": START_US + 30 * US, "bob": START_US + 60 * US}
    assert snapshot.in_flight == 2
    assert not stage.books.is_drained()


@pytest.mark.parametrize(
    ("field", "said"),
    [("received", "received is"), ("sent", "received is"), ("parked errors", "parked is"), ("dead", "received is")],
)
def test_books_that_do_not_balance_are_told(stage: Stage, ann: Worker, field: str, said: str) -> None:
    stage.send("a", "b")
    ann.go()
    stage.redis.hincrby(stage.keys.totals, field, 1)
    assert stage.snapshot().imbalances()[0].startswith(said)


# Dead letters


def test_a_dead_letter_tells_everything_about_its_event(stage: Stage, ann: Worker) -> None:
    stage.send("x")
    (started,) = ann.go()
    ann.answer(started, Rejected("is_archived", "the channel is archived"))
    (letter,) = stage.letters()
    payload, counted = letter.pop("payload"), int(letter.pop("bytes"))
    assert counted == len(payload) + sum(len(name) + len(value) for name, value in letter.items()) - len("idat") - 16
    assert letter == {
        "id": "x",
        "at": str(START_US),
        "reason": "rejected",
        "code": "is_archived",
        "detail": "the channel is archived",
        "channel": "#general",
        "attempts": "1",
        "posts": "1",
        "category": "errors",
        "seen": str(START_US),
    }
    assert '"text of x"' in payload


def test_a_dead_letter_of_a_limit_tells_when_there_would_have_been_room(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/30m", on_limit=OnLimit.DEAD_LETTER))
    ann = stage.worker("ann")
    stage.send("a", "b")
    ann.deliver(ann.go())
    (letter,) = stage.letters()
    assert {name: letter[name] for name in ("id", "reason", "scope", "limit", "retry_after_us")} == {
        "id": "b",
        "reason": "limit:category",
        "scope": "category:errors",
        "limit": "1/30m",
        "retry_after_us": "1800000000",
    }


def test_the_oldest_dead_letters_go_first(stage: Stage) -> None:
    stage.bounds = Bounds(5, DAY_US)
    ann = stage.worker()
    stage.redis.rpush(stage.queue.lanes[1], *(f"e{n}" for n in range(12)))
    ann.run()
    assert [letter["id"] for letter in stage.letters()] == [f"e{n}" for n in range(7, 12)]
    assert set(stage.redis.hkeys(stage.keys.dead_ids)) == {f"e{n}".encode() for n in range(7, 12)}
    assert (stage.snapshot().dead_letters, stage.total("dead"), ann.told.trims) == (5, 12, 7)


def test_the_oldest_dead_letters_go_when_all_of_them_have_too_many_bytes(stage: Stage) -> None:
    ann = stage.worker()
    for id_, size in (("small", 10), ("a", 900_000), ("b", 900_000)):
        stage.redis.hset(stage.queue.job(id_), "data", "x" * size)
        stage.redis.rpush(stage.queue.lanes[1], id_)
        ann.run()
    stage.bounds = Bounds(max_bytes=2_000_000)
    ann = stage.worker()
    stage.redis.hset(stage.queue.job("c"), "data", "x" * 500_000)
    stage.redis.rpush(stage.queue.lanes[1], "c")
    ann.run()
    assert [letter["id"] for letter in stage.letters()] == ["b", "c"]
    assert (ann.told.trims, stage.total("dead")) == (2, 4)
    assert 1_400_000 < stage.letters_bytes() < 1_401_000


def test_of_letters_that_come_together_and_have_too_many_bytes_the_last_ones_stay(stage: Stage) -> None:
    stage.bounds = Bounds(max_bytes=2_000_000)
    ann = stage.worker()
    for n in range(5):
        stage.redis.hset(stage.queue.job(f"e{n}"), "data", "x" * 900_000)
        stage.redis.rpush(stage.queue.lanes[1], f"e{n}")
    ann.run()
    assert [letter["id"] for letter in stage.letters()] == ["e3", "e4"]
    assert ann.told.trims == 3


def test_lowered_bounds_are_reached_with_the_next_letter(stage: Stage) -> None:
    stage.redis.rpush(stage.queue.lanes[1], *(f"e{n}" for n in range(6)))
    stage.worker().run()
    stage.bounds = Bounds(3, DAY_US)
    ann, sizes = stage.worker(), []
    for n in range(6, 10):
        stage.redis.rpush(stage.queue.lanes[1], f"e{n}")
        ann.run()
        sizes.append(len(stage.letters()))
    assert sizes == [3, 3, 3, 3]


def test_dead_letters_go_when_they_are_old(stage: Stage) -> None:
    stage.bounds = Bounds(100, DAY_US)
    ann = stage.worker()
    for n in range(3):
        stage.redis.rpush(stage.queue.lanes[1], f"e{n}")
        ann.run()
        stage.clock.now_us += DAY_US // 2
    stage.redis.rpush(stage.queue.lanes[1], "e3")
    ann.run()
    assert [letter["id"] for letter in stage.letters()] == ["e2", "e3"]


def test_an_id_whose_dead_letter_was_trimmed_may_come_again(stage: Stage) -> None:
    stage.bounds = Bounds(1, DAY_US)
    ann = stage.worker()
    stage.redis.rpush(stage.queue.lanes[1], "x", "y")
    ann.run()
    for id_ in ("x", "y"):
        stage.redis.hset(stage.queue.job(id_), "data", "no event")
        stage.redis.rpush(stage.queue.lanes[1], id_)
    assert ann.take().duplicates == ["y"]


# Memory of settled ids


def test_ids_are_remembered_from_their_end_and_no_longer_than_the_window(stage: Stage, ann: Worker) -> None:
    stage.send("a")
    started = ann.go()
    stage.clock.forward(100)
    ann.deliver(started)
    assert stage.redis.zrange(stage.keys.seen, 0, -1, withscores=True) == [(b"a", stage.clock.now_us + REMEMBER_US)]
    assert 86_395_000 < stage.redis.pttl(stage.keys.seen) <= 86_400_001


def test_forgotten_ids_leave_the_memory_as_new_ones_come(stage: Stage, ann: Worker) -> None:
    stage.send(*(f"a{n}" for n in range(20)), channel=UNPACED)
    ann.run()
    stage.clock.now_us += REMEMBER_US
    for n in range(10):
        stage.send(f"b{n}", channel=UNPACED)
        ann.run()
        assert stage.redis.zcard(stage.keys.seen) == 20 - (n + 1)
    stage.send("c", channel=UNPACED)
    ann.run()
    assert stage.redis.zcard(stage.keys.seen) == 11


def test_a_dropped_id_is_remembered_too(redis: Database) -> None:
    stage = Stage(redis, policy_of("1/30m", ""))
    ann = stage.worker("ann")
    stage.send("a", "b", channel=UNPACED)
    ann.go()
    assert stage.total("dropped") == 1
    assert stage.redis.zrange(stage.keys.seen, 0, -1) == [b"b"]


def test_an_event_that_only_waits_is_not_remembered_yet(stage: Stage, ann: Worker) -> None:
    stage.send("a")
    (started,) = ann.go()
    ann.answer(started, Retryable("refused", "connection refused"))
    assert not stage.redis.exists(stage.keys.seen)


# Fencing, and the bell


def test_of_a_batch_only_what_is_still_leased_is_settled(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel=UNPACED)
    a, b = ann.go()
    assert ann.keep_only("a") == 1
    settlements = [after_post(each, Receipt(UNPACED, "1.1"), lambda _: BACKOFF_US, GRACE_US) for each in (a, b)]
    assert ann.settle(settlements) == [True, False]
    assert (stage.total("sent"), stage.snapshot().requeued) == (1, 1)


def test_an_unknown_event_settles_nothing(stage: Stage, ann: Worker) -> None:
    stage.send("a")
    (a,) = ann.take().batch
    ghost = Leased("ghost", Event("errors", "t"), 1, START_US)
    terms = stage.policy.terms(ghost)
    dropped = Dropped(Denied("global", Limit.parse("1/1m"), 1), Reason.LIMIT_GLOBAL)
    assert ann.settle([Settlement(ghost, terms, dropped, Slots.RELEASE)]) == [False]
    assert stage.total("dropped") == 0
    assert a.id == "a"


def test_the_bell_rings_once_for_an_earlier_instant_and_not_for_a_later_one(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "c", channel=UNPACED)
    a, b, c = ann.go()
    ann.answer(a, Retryable("refused", "connection refused"))
    assert stage.rung == 1
    stage.clock.forward(1)
    ann.answer(b, Retryable("refused", "connection refused"))
    assert stage.rung == 0  # later than the first
    ann.answer(c, Paused("invalid_auth", "the token is not valid"))
    assert stage.rung == 1  # its line is due at once


@pytest.mark.parametrize("on_limit", ["drop", "digest", "defer", "dead-letter"])
def test_an_event_whose_blocks_hold_half_of_a_surrogate_pair_comes_to_its_end(redis: Database, on_limit: str) -> None:
    stage = Stage(redis)
    ann = stage.worker()
    ann.follow(stage.put_in_force(f"global: {{limits: []}}\ndefaults: {{limits: [2/30m], on_limit: {on_limit}}}\n"))
    data = seal(Event("errors", "", blocks=({"type": "section", "text": {"type": "mrkdwn", "text": "x\udc00y"}},)))
    for n in range(4):
        redis.hset(stage.queue.job(f"e{n}"), "data", data)
        redis.rpush(stage.queue.lane(Lane.NORMAL), f"e{n}")
    ann.run()
    assert stage.snapshot().imbalances() == []
    assert stage.snapshot().received == 4
    assert stage.total("sent") > 0
    assert next(stage.decisions.newest()).text == "x\N{REPLACEMENT CHARACTER}y"
