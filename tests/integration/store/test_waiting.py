"""What was admitted waits for its channel: in order, after cool-downs and pauses, and its slots are held."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

import pytest

from dispatcher.core.limits import Admitted, Limit, Reason
from dispatcher.core.policy import OnLimit, again_after_us
from dispatcher.core.posts import Ambiguous, Paused, PostResult, RateLimitedBySlack, Receipt, Rejected, Retryable
from dispatcher.core.states import GRACE_US, Leased, Started
from dispatcher.core.transitions import MAX_ATTEMPTS
from dispatcher.core.units import US
from tests.support.doubles import NOTHING_TO_READ, START_US
from tests.support.invariants import INF
from tests.support.quiet_stage import FREE, QuietStage
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, UNPACED, Stage, Worker, names, policy_of

DAY_US: Final = 86_400 * US
MINUTE_US: Final = 60 * US


def reasons(worker: Worker) -> list[tuple[str, Reason, int | None]]:
    return [(each.candidate.leased.id, each.reason, each.wait_us) for each in worker.told.waits]


# One post in flight for each channel, in order


def test_one_post_at_a_time_goes_to_a_channel_and_the_others_wait_in_order(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "c")
    started = ann.go()
    assert names(started) == ["a"]
    assert reasons(ann) == [("b", Reason.PACE, None), ("c", Reason.PACE, None)]
    assert (stage.line("#general"), stage.line_at("#general")) == (["b", "c"], INF)
    ann.deliver(started)
    assert stage.line_at("#general") == stage.clock.now_us
    started = ann.go()
    assert (names(started), stage.line("#general")) == (["b"], ["c"])


def test_other_workers_respect_the_post_in_flight(stage: Stage, ann: Worker) -> None:
    bob = stage.worker("bob")
    stage.send("a")
    started = ann.go()
    stage.send("b")
    assert bob.go() == []
    ann.deliver(started)
    ann.decided()
    assert names(bob.go()) == ["b"]


def test_channels_do_not_wait_for_each_other(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel="#a")
    stage.send("b", channel="#b")
    assert names(ann.go()) == ["a", "b"]


def test_posts_leave_in_the_order_of_first_sight(stage: Stage, ann: Worker) -> None:
    ids = [f"e{n}" for n in range(8)]
    stage.send(*ids[:5])
    ann.deliver(ann.go())
    stage.send(*ids[5:])
    ann.run()
    assert ann.desk.posts == ids


def test_a_newcomer_does_not_overtake_the_line(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b")
    ann.deliver(ann.go())
    stage.send("new")
    assert names(ann.go(due=0)) == []
    assert stage.line("#general") == ["b", "new"]


def test_a_channel_without_pace_takes_many_posts_at_once(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "c", channel=UNPACED)
    assert names(ann.go()) == ["a", "b", "c"]
    assert stage.posting(UNPACED) is None


def test_the_line_of_a_channel_without_pace_is_handed_out_as_far_as_asked_for(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "c", channel=UNPACED)
    assert ann.go(free=0) == []
    assert stage.line(UNPACED) == ["a", "b", "c"]
    assert [ann.taken(due=2), ann.taken(due=2)] == [["a", "b"], ["c"]]


@pytest.mark.parametrize("due", [15, 16, 17])
def test_every_head_of_a_line_without_pace_starts_that_was_handed_out(stage: Stage, ann: Worker, due: int) -> None:
    stage.send(*(f"e{n:02}" for n in range(2 * due)), channel=UNPACED)
    ann.go(free=0)
    assert [len(ann.go(due=1, free=1)), len(ann.go(due=due, free=due)), len(ann.go(due=due, free=due))] == [
        1,
        due,
        due - 1,
    ]


def test_the_oldest_event_of_a_line_without_pace_starts_at_its_turn(stage: Stage, ann: Worker) -> None:
    stage.send("old", channel=UNPACED, priority="low")
    ann.go(free=0)
    stage.send(*(f"e{n:02}" for n in range(30)), channel=UNPACED, priority="high")
    ann.go(new=100, due=0, free=0)
    assert "old" in names(ann.go(due=16, free=16))


def test_with_one_sender_the_oldest_event_of_a_line_without_pace_gets_its_turn(stage: Stage, ann: Worker) -> None:
    stage.send("old", channel=UNPACED, priority="low")
    ann.go(free=0)
    stage.send(*(f"e{n:02}" for n in range(30)), channel=UNPACED, priority="high")
    ann.go(new=100, due=0, free=0)
    assert "old" in [name for _ in range(16) for name in names(ann.go(due=1, free=1))]


def test_a_worker_without_free_senders_leaves_the_line_to_others(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel="#a")
    stage.send("b", channel="#b")
    assert names(ann.go(free=1)) == ["a"]
    assert reasons(ann) == [("b", Reason.PACE, 0)]
    assert stage.line_at("#b") == stage.clock.now_us
    assert stage.rung == 1
    assert names(stage.worker("bob").go()) == ["b"]


def test_only_what_a_worker_asked_for_is_handed_out_of_timers_and_lines(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "c", channel=UNPACED)
    for started in ann.go():
        ann.answer(started, Retryable("refused", "connection refused"))
    stage.send("d", "e", channel=UNPACED)
    ann.go(free=0, due=0)
    stage.clock.now_us += BACKOFF_US
    assert [sorted(ann.taken(due=2)) for _ in range(3)] == [["a", "d"], ["b", "e"], ["c"]]


@pytest.mark.parametrize("due", [1, 2, 3, 8])
def test_lines_get_half_of_what_is_taken_while_very_many_timers_are_due(stage: Stage, ann: Worker, due: int) -> None:
    retried = [f"t{n}" for n in range(20)]
    stage.send(*retried, channel=UNPACED)
    for started in ann.go():
        ann.answer(started, Retryable("refused", "connection refused"))
        ann.post_beside()
    lined_up = [f"l{n}" for n in range(6)]
    stage.send(*lined_up, channel=UNPACED)
    ann.go(free=0, due=0)
    stage.clock.now_us += BACKOFF_US
    takes = [ann.taken(due=due) for _ in range(-(-12 // due))]
    taken = [id_ for each in takes for id_ in each]
    assert {id_ for id_ in taken if id_.startswith("l")} == set(lined_up)
    assert all(len(each) == due for each in takes)
    assert len(ann.taken(due=40)) == 26 - len(taken)


@pytest.mark.parametrize("is_first_of_the_lines", [True, False])
def test_a_poison_candidate_in_a_line_is_taken_alone_while_very_many_timers_are_due(
    redis: Database, *, is_first_of_the_lines: bool
) -> None:
    stage = QuietStage(redis, FREE)
    ann = stage.worker()
    stage.send("t", channel="#free")
    ann.answer(ann.go()[0], Retryable("refused", "connection refused"))
    stage.send("x", channel="#free")
    ann.go(free=0, due=0)
    header, _, payload = (redis.hget(stage.keys.events, "x") or b"").partition(b"\n")
    dead = json.dumps({**json.loads(header), "deaths": 2}).encode()  # as if two workers had died with it
    redis.hset(stage.keys.events, "x", dead + b"\n" + payload)
    stage.send("posting", "slow", channel="#slow")
    ann.go(due=0)
    stage.clock.now_us += BACKOFF_US
    now_us = stage.clock.now_us
    redis.zadd(stage.keys.timers, {"t": now_us - (2 if is_first_of_the_lines else 0)})
    for n in range(40):  # edits that wait for the line of the channel
        id_ = f"repeat:errors:{n}"
        kept = {"state": "waiting", "digest": True, "timer": True, "category": "", "counted": "", "seq": 1}
        instants = {"seen": str(now_us), "deadline": str(now_us + DAY_US)}
        redis.hset(stage.keys.events, id_, json.dumps(kept | instants) + "\n")
        redis.hset(stage.keys.tally(id_), "line", "#slow")
        redis.zadd(stage.keys.timers, {id_: now_us - 1})
    if not is_first_of_the_lines:
        redis.zadd(stage.keys.lines, {"channel:#empty": 1})
    assert [ann.taken(due=4), ann.taken(due=4)] == [["x"], ["t"]]


def test_a_take_that_found_only_empty_lines_says_that_there_is_more(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel="#z")
    ann.answer(ann.go()[0], Receipt("#z", "1.1"))
    stage.redis.zadd(stage.keys.lines, {f"channel:#{n:02}": 1 for n in range(33)})
    taken = ann.outbox.take(0, 1)
    assert (taken.batch, taken.more) == ([], True)
    assert ann.taken(due=1) == ["b"]


def test_only_what_a_worker_asked_for_is_handed_out(stage: Stage, ann: Worker) -> None:
    for n in range(4):
        stage.send(f"e{n}", channel=f"#{n}")
    ann.go(free=0)
    assert ann.taken(due=0) == []
    assert len(ann.taken(due=3)) == 3


# Pace


def test_the_pace_counts_from_the_reply(redis: Database) -> None:
    stage = Stage(redis, policy_of(pace="2/10s"))
    ann = stage.worker("ann")
    stage.send("a", "b", "c", "d")
    for _ in range(2):
        started = ann.go()
        stage.clock.forward(3)  # the post takes so long
        ann.deliver(started)
    assert stage.line_at("#general") == START_US + 13 * US
    takes = [ann.take(due=due) for due in (1, 100)]
    assert {each.next_us for each in takes} == {START_US + 13 * US}
    assert {each.next_busy_us for each in takes} == {START_US + DAY_US}
    stage.clock.now_us = START_US + 13 * US - 1
    assert ann.go() == []
    stage.clock.now_us += 1
    assert names(ann.go()) == ["c"]


def test_a_newcomer_waits_for_the_pace(redis: Database) -> None:
    stage = Stage(redis, policy_of(pace="1/10s"))
    ann = stage.worker("ann")
    stage.send("a")
    ann.run()
    stage.clock.forward(4)
    stage.send("b")
    assert ann.go() == []
    assert reasons(ann) == [("b", Reason.PACE, 6 * US)]
    assert stage.line_at("#general") == START_US + 10 * US


@pytest.mark.parametrize(
    ("result", "charged"),
    [
        (Receipt("#general", "1.1"), 1),
        (Rejected("is_archived", "archived"), 1),
        (Retryable("refused", "connection refused"), 0),
        (Ambiguous("timeout", "no answer"), 1),
        (RateLimitedBySlack(US, "ratelimited"), 0),
        (Paused("invalid_auth", "token"), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_post_that_the_channel_answered_or_may_have_got_is_charged_to_its_pace(
    stage: Stage, ann: Worker, result: PostResult, charged: int
) -> None:
    stage.send("a")
    ann.answer(ann.go()[0], result)
    assert len(stage.slots("pace:#general")) == charged
    assert stage.posting("#general") is None


# Held slots


def test_a_waiting_event_holds_its_slots_until_its_deadline(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b")
    started = ann.go()
    expected = {"b": START_US + DAY_US}
    assert stage.held("global") == stage.held("category:errors") == expected
    assert stage.slots("global")["a"] == START_US
    assert stage.header("b")["held"] is True
    stage.clock.forward(7_200)
    ann.deliver(started)
    assert stage.held("global") == expected


def test_an_attempt_takes_the_slot_that_was_held_for_it_and_charges_it_anew(redis: Database) -> None:
    stage = Stage(redis, policy_of("2/30m", "2/30m"))
    ann = stage.worker("ann")
    stage.send("a", "b")
    first = ann.go()
    stage.clock.forward(3_600)
    stage.send("c", "d", channel="#other")
    assert names(ann.go()) == ["c"]  # the slot of a is free again, that of b is held
    assert stage.total("dropped") == 1
    ann.deliver(first)
    assert names(ann.go()) == ["b"]
    assert stage.slots("global") == {"a": START_US, "b": stage.clock.now_us, "c": stage.clock.now_us}


def test_an_outage_does_not_end_in_a_burst_over_the_limit(redis: Database) -> None:
    stage = Stage(redis, policy_of("3/30m", "", "100/1s"))
    ann = stage.worker("ann")
    ann.desk.reply = lambda _: Retryable("refused", "connection refused", uses_attempt=False)
    for n in range(40):
        stage.send(f"e{n}", channel=f"#{n}")
        ann.run()
        stage.clock.forward(300)
    assert (stage.snapshot().parked, stage.total("dropped")) == (3, 37)
    ann.desk.reply = lambda message: Receipt(message.channel, "1.1")
    ann.desk.posts.clear()
    stage.clock.forward(5)
    ann.run()
    assert sorted(ann.desk.posts) == ["e0", "e1", "e2"]
    stage.send("late", channel="#late")
    ann.run()
    assert stage.total("sent") == 3


@pytest.mark.parametrize("end", ["rejected", "expired", "exhausted"])
def test_an_event_that_ends_unposted_gives_its_slots_back(stage: Stage, ann: Worker, end: str) -> None:
    stage.send("x", channel="#a")
    (started,) = ann.go()
    if end == "rejected":
        ann.answer(started, Rejected("is_archived", "archived"))
    elif end == "expired":
        ann.answer(started, Retryable("refused", "connection refused"))
        stage.clock.forward(86_400)
        ann.run()
    else:
        for _ in range(MAX_ATTEMPTS):
            ann.answer(started, Retryable("refused", "connection refused"))
            stage.clock.now_us += BACKOFF_US
            started = next(iter(ann.go()), started)
            ann.post_beside("#others")
        stage.clock.now_us += 1_800 * US
        ann.run()
    assert [letter["reason"] for letter in stage.letters()] == [end]
    assert "x" not in {**stage.slots("global"), **stage.slots("category:errors")}
    assert stage.snapshot().events == 0


def test_a_post_of_unknown_delivery_status_keeps_its_slot_and_the_next_takes_another(stage: Stage, ann: Worker) -> None:
    stage.send("x")
    (started,) = ann.go()
    ann.answer(started, Ambiguous("timeout", "no answer"))
    assert stage.slots("global") == {"x": START_US}
    ann.desk.shows = lambda _: NOTHING_TO_READ
    stage.clock.now_us += GRACE_US
    assert ann.go_on() == []
    stage.clock.now_us += again_after_us("x", 1)
    (again,) = ann.go()
    assert (again.attempt, again.candidate.leased.unknown, again.candidate.leased.slot) == (2, 1, "1#1")
    assert stage.slots("global") == {"x": START_US, "x#1": stage.clock.now_us}
    ann.answer(again, Rejected("is_archived", "archived"))
    assert stage.slots("global") == {"x": START_US}


def test_an_ambiguous_last_attempt_becomes_a_dead_letter_that_keeps_its_slots(stage: Stage, ann: Worker) -> None:
    ann.desk.shows = lambda _: NOTHING_TO_READ
    stage.send("x", channel=UNPACED)
    for n in range(MAX_ATTEMPTS):
        (started,) = ann.go()
        ann.answer(started, Ambiguous("timeout", "no answer"))
        ann.post_beside()
        stage.clock.now_us += GRACE_US
        ann.go()
        stage.clock.now_us += again_after_us("x", n + 1)
    assert [(letter["reason"], letter["attempts"]) for letter in stage.letters()] == [("ambiguous", "8")]
    assert len([slot for slot in stage.slots("category:errors") if slot.startswith("x")]) == MAX_ATTEMPTS


@pytest.mark.parametrize("on_limit", list(OnLimit))
def test_an_admitted_event_is_only_delayed_by_a_limit(redis: Database, on_limit: OnLimit) -> None:
    stage = Stage(redis, policy_of("100/30m", "1/30s", on_limit=on_limit))
    ann = stage.worker("ann")
    stage.send("x", channel="#x")
    (started,) = ann.go()
    ann.answer(started, Retryable("refused", "connection refused"))
    stage.clock.forward(31)
    stage.send("y", channel="#y")
    (y,) = ann.go(due=0)
    ann.deliver([y])
    assert ann.go() == []
    assert (stage.snapshot().timers, set(stage.held("global"))) == (1, {"x"})
    assert ann.take().next_us == stage.clock.now_us + 30 * US
    stage.clock.forward(30)
    assert names(ann.go()) == ["x"]


@pytest.mark.parametrize(
    "result",
    [RateLimitedBySlack(31 * US, "ratelimited"), Paused("invalid_auth", "the token is not valid")],
    ids=["cool-down", "pause"],
)
def test_an_event_that_has_used_no_attempt_is_only_delayed_by_a_limit(redis: Database, result: Paused) -> None:
    stage = Stage(redis, policy_of("", "1/30s"))
    ann = stage.worker("ann")
    stage.send("x", channel="#x")
    ann.answer(ann.go()[0], result)
    stage.clock.forward(61)
    (x,) = ann.take(new=0).batch
    assert stage.gate.try_acquire_many([("y", stage.policy.scopes("errors"))]) == [Admitted()]
    assert ann.dispatch([x]) == []
    assert (stage.snapshot().timers, stage.total("dropped")) == (1, 0)


def test_the_channel_is_free_for_others_while_an_event_waits_for_room(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/30s"))
    ann = stage.worker("ann")
    stage.send("a", channel="#shared")
    stage.send("b", category="deploys", channel="#shared")
    stage.send("c", category="chatter", channel="#shared")
    first = ann.go()
    stage.clock.forward(31)
    stage.send("d", category="deploys", channel="#other")
    (other,) = ann.go(due=0)
    ann.deliver([*first, other])
    assert ann.go() == []  # the turn of b, which waits for deploys to have room
    assert stage.snapshot().timers == 1
    assert names(ann.go()) == ["c"]


# Cool-downs


def test_a_cool_down_holds_up_its_channel_and_no_other(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel="#a")
    (started,) = ann.go()
    ann.answer(started, RateLimitedBySlack(30 * US, "ratelimited"))
    assert (stage.line("#a"), stage.line_at("#a")) == (["a", "b"], START_US + 30 * US)
    assert stage.snapshot().cooldowns == {"#a": START_US + 30 * US}
    stage.send("c", channel="#a")
    stage.send("other", channel="#b")
    assert names(ann.go()) == ["other"]
    assert reasons(ann)[-1] == ("c", Reason.COOLDOWN, 30 * US)
    stage.clock.now_us += 30 * US - 1
    assert ann.go() == []
    stage.clock.now_us += 1
    ann.run()
    assert ann.desk.posts == ["a", "b", "c"]


def test_a_cool_down_uses_no_attempt_and_holds_the_slots(stage: Stage, ann: Worker) -> None:
    stage.send("a")
    (started,) = ann.go()
    ann.answer(started, RateLimitedBySlack(30 * US, "ratelimited"))
    assert stage.held("global").keys() == {"a"}
    stage.clock.forward(30)
    (again,) = ann.go()
    assert again.attempt == 1


@pytest.mark.parametrize(("second_s", "until_s"), [(5, 30), (60, 61)])
def test_of_two_cool_downs_the_later_end_holds(redis: Database, second_s: int, until_s: int) -> None:
    stage = Stage(redis)
    ann = stage.worker("ann")
    stage.send("a", "b", channel=UNPACED)
    a, b = ann.go()
    ann.answer(a, RateLimitedBySlack(30 * US, "ratelimited"))
    stage.clock.forward(1)
    ann.answer(b, RateLimitedBySlack(second_s * US, "ratelimited"))
    assert stage.snapshot().cooldowns == {UNPACED: START_US + until_s * US}
    assert stage.line_at(UNPACED) == START_US + until_s * US


def test_cool_downs_that_ended_leave_nothing_behind(stage: Stage, ann: Worker) -> None:
    for n in range(5):
        stage.send(f"e{n}", channel=f"#{n}")
        (started,) = ann.go(due=0)
        ann.answer(started, RateLimitedBySlack(30 * US, "ratelimited"))
        stage.clock.forward(31)
    assert stage.snapshot().cooldowns == {}
    assert len(stage.redis.zrange(stage.keys.cooldowns, 0, -1)) == 5  # until a post arrives, or ten minutes
    stage.clock.forward(600)
    stage.send("last", channel="#last")
    (last,) = ann.go(due=0)
    ann.answer(last, RateLimitedBySlack(30 * US, "ratelimited"))
    assert stage.redis.zrange(stage.keys.cooldowns, 0, -1) == [b"#last"]
    assert 625_000 < stage.redis.pttl(stage.keys.cooldowns) <= 630_001


def test_a_longer_pace_outlasts_a_cool_down(redis: Database) -> None:
    stage = Stage(redis, policy_of(pace="1/40s"))
    ann = stage.worker("ann")
    stage.send("a", "b", "c")
    ann.deliver(ann.go())
    stage.clock.forward(40)
    (b,) = ann.go()
    ann.answer(b, RateLimitedBySlack(10 * US, "ratelimited"))
    assert stage.line_at("#general") == stage.clock.now_us + 10 * US
    stage.clock.forward(10)
    ann.deliver(ann.go())
    assert stage.line_at("#general") == stage.clock.now_us + 40 * US


# Pauses


def test_while_posting_is_paused_everything_waits_but_a_probe(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel="#a")
    stage.send("b", channel="#b")
    a, b = ann.go()
    ann.answer(a, Paused("invalid_auth", "the token is not valid"))
    pause = stage.snapshot().pause
    assert pause is not None
    assert (pause.code, pause.detail) == ("invalid_auth", "the token is not valid")
    assert (pause.since_us, pause.probe_us) == (START_US, START_US + US)
    ann.answer(b, Retryable("refused", "connection refused"))
    stage.send("new", channel="#new")
    assert ann.go() == []
    assert reasons(ann) == [("new", Reason.PAUSED, US)]
    assert ann.take().next_us == START_US + US
    stage.clock.now_us = START_US + US - 1
    assert ann.taken() == []
    stage.clock.now_us += 1
    (probe,) = ann.go()
    assert names([probe]) == ["new"], "another event than the one that was denied"
    assert stage.snapshot().parked == 2
    assert stage.snapshot().pause == replace(pause, probe_us=stage.clock.now_us + MINUTE_US)
    assert ann.go() == []
    ann.answer(probe, Paused("account_inactive", "the account is gone"))
    later = stage.snapshot().pause
    assert later is not None
    assert (later.code, later.since_us) == ("account_inactive", START_US)


def test_the_gap_between_two_probes_doubles_up_to_a_minute(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel="#a")
    gaps: list[object] = []
    for _ in range(9):
        (started,) = ann.go()
        ann.answer(started, Paused("invalid_auth", "the token is not valid"))
        pause = stage.snapshot().pause
        assert pause is not None
        gaps.append((pause.probe_us - stage.clock.now_us) / US)
        stage.clock.now_us = pause.probe_us
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize("result", [Paused("invalid_auth", "token"), Ambiguous("http_503", "no answer")])
def test_the_gap_stays_short_while_a_dozen_other_channels_are_tried(
    stage: Stage, ann: Worker, result: PostResult
) -> None:
    channels = 20
    for n in range(channels):
        stage.send(f"e{n}", channel=f"#{n}")
    gaps: list[float] = []
    tried = ann.go(free=5)
    while len(tried) < channels - 1:
        for each in tried[len(gaps) and -1 :]:
            ann.answer(each, result)
        pause = stage.snapshot().pause
        assert pause is not None
        gaps.append((pause.probe_us - stage.clock.now_us) / US)
        stage.clock.now_us = pause.probe_us
        tried += ann.go(new=0)
    assert len({each.candidate.terms.channel for each in tried}) == len(tried), "another one each time"
    longest = 60 if isinstance(result, Paused) else 30
    assert gaps == [*[1] * 8, 2, 4, 8, 16, min(32, longest), longest]


def test_an_event_for_a_channel_that_was_not_tried_brings_the_next_try_forward(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel="#a")
    for _ in range(5):
        (started,) = ann.go()
        ann.answer(started, Paused("invalid_auth", "the token is not valid"))
        pause = stage.snapshot().pause
        assert pause is not None
        stage.clock.now_us = pause.probe_us
    (started,) = ann.go()
    ann.answer(started, Paused("invalid_auth", "the token is not valid"))
    stage.send("b", channel="#b")
    assert ann.go() == []
    assert reasons(ann)[-1] == ("b", Reason.PAUSED, US)
    stage.clock.forward(1)
    ann.deliver(ann.go())
    assert (ann.desk.posts, stage.snapshot().pause) == (["b"], None)


def test_a_probe_that_is_posted_ends_the_pause(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel="#a")
    stage.send("b", channel="#b")
    for started in ann.go():
        ann.answer(started, Paused("invalid_auth", "the token is not valid"))
    stage.clock.forward(1)
    ann.deliver(ann.go())
    assert stage.snapshot().pause is None
    assert stage.rung == 1
    ann.run()
    assert ann.desk.posts == ["a", "b"]


def test_a_pause_uses_no_attempt_and_another_event_of_the_line_is_the_next_to_try(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b")
    (started,) = ann.go()
    ann.answer(started, Paused("invalid_auth", "the token is not valid"))
    assert (stage.line("#general"), stage.header("a")["attempt"]) == (["b"], 0)
    assert stage.held("category:errors").keys() == {"a", "b"}
    stage.clock.forward(1)
    assert names(ann.go()) == ["b"]
    assert stage.redis.zscore(stage.keys.timers, "a") == stage.clock.now_us


def test_a_paused_worker_sleeps_until_the_probe_only_if_somebody_waits(stage: Stage, ann: Worker) -> None:
    stage.send("a")
    (started,) = ann.go()
    ann.answer(started, Paused("invalid_auth", "the token is not valid"))
    bob = stage.worker("bob")
    for due in (0, 1):
        taken = bob.take(due=due)
        assert (taken.next_us, taken.next_busy_us) == (START_US + US, START_US + DAY_US)


# Timers and deadlines


def test_a_retry_waits_for_its_own_instant(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b")
    (a,) = ann.go()
    ann.answer(a, Retryable("refused", "connection refused"))
    assert (stage.snapshot().timers, set(stage.held("global"))) == (1, {"a", "b"})
    (b,) = ann.go()
    assert b.candidate.leased.id == "b"
    ann.deliver([b])
    stage.clock.now_us += BACKOFF_US - 1
    assert ann.take().next_us == stage.clock.now_us + 1
    assert ann.go() == []
    stage.clock.now_us += 1
    (again,) = ann.go()
    assert (again.candidate.leased.id, again.attempt) == ("a", 2)


def test_an_event_that_comes_off_its_timer_queues_where_it_stood(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "c")
    (a,) = ann.go()
    ann.answer(a, Retryable("refused", "connection refused"))
    (b,) = ann.go()
    stage.clock.now_us += BACKOFF_US
    assert ann.go() == []  # b is under way
    assert stage.line("#general") == ["a", "c"]
    ann.deliver([b])
    ann.run()
    assert ann.desk.posts == ["b", "a", "c"]


@pytest.mark.parametrize("place", ["line", "timer"])
def test_an_event_that_has_waited_for_its_max_age_is_a_dead_letter(stage: Stage, ann: Worker, place: str) -> None:
    stage.send("first", channel="#a")
    stage.send("x", channel="#a", max_age=60)
    (first,) = ann.go()
    if place == "timer":
        ann.deliver([first])
        (x,) = ann.go()
        stage.clock.forward(58)
        ann.answer(x, Retryable("refused", "connection refused"))
        stage.clock.now_us = START_US + MINUTE_US - 1
    else:
        stage.clock.now_us = START_US + MINUTE_US - 1
    taken = ann.take(due=0)
    assert taken.batch == []
    assert taken.next_us == stage.clock.now_us + 1
    stage.clock.now_us += 1
    (expired,) = ann.take(due=0).batch
    assert ann.dispatch([expired]) == []
    (letter,) = stage.letters()
    assert (letter["id"], letter["reason"], letter["category"]) == ("x", "expired", "errors")
    assert stage.snapshot().lines == {}
    assert stage.snapshot().by_category("parked") == {"errors": 0}


def test_a_line_goes_on_after_its_head_has_expired(stage: Stage, ann: Worker) -> None:
    stage.send("a")
    stage.send("b", max_age=60)
    stage.send("c")
    (a,) = ann.go()
    stage.clock.forward(61)
    ann.run()
    assert (stage.line("#general"), stage.line_at("#general")) == (["c"], INF)
    ann.deliver([a])
    ann.run()
    assert ann.desk.posts == ["a", "c"]


def test_an_event_that_expires_before_it_was_ever_admitted_is_not_posted(stage: Stage, ann: Worker) -> None:
    stage.send("x", max_age=10)
    batch = ann.take().batch
    stage.clock.forward(10)
    assert ann.dispatch(batch) == []
    assert [letter["reason"] for letter in stage.letters()] == ["expired"]


# The same call again, and limits that change


def test_a_start_that_is_said_twice_answers_the_same(stage: Stage, ann: Worker) -> None:
    stage.send("x")
    (x,) = ann.take().batch
    assert isinstance(x, Leased)
    first = ann.start(x)
    assert isinstance(first, Started)
    assert ann.start(x) == first
    assert ann.start(x, free=0) == first


def test_parked_events_are_counted_by_category(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "c")
    stage.send("d", category="unheard-of")
    started = ann.go()
    assert stage.snapshot().by_category("parked") == {"errors": 2, "unheard-of": 1}
    ann.deliver(started)
    ann.run()
    assert stage.snapshot().by_category("parked") == {"errors": 0, "unheard-of": 0}


def test_a_waiting_event_keeps_its_channel_when_the_policy_changes(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b")
    started = ann.go()
    rule = replace(stage.policy.defaults, channel="#elsewhere")
    stage.policy = replace(stage.policy, defaults=rule, categories={"errors": rule})
    ann.deliver(started)
    (b,) = ann.go()
    assert b.candidate.terms.channel == "#general"


def test_a_channel_whose_pace_is_lifted_goes_on(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "c", "d")
    started = ann.go()
    stage.same_pace = False
    stage.policy = replace(stage.policy, channels={"#general": None})
    ann.deliver(started)
    ann.run()
    assert ann.desk.posts == ["a", "b", "c", "d"]
    stage.policy = replace(stage.policy, channels={"#general": Limit.parse("1/10s")})
    stage.clock.forward(10)
    stage.send("e", "f")
    ann.run()
    assert stage.line("#general") == ["f"]


def test_waiting_events_find_room_under_limits_that_were_lowered(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "c")
    ann.deliver(ann.go())
    stage.policy = replace(stage.policy, global_limits=(Limit.parse("1/30m"),))
    assert ann.go() == []
    assert stage.snapshot().timers == 1
    for _ in range(6):
        stage.clock.forward(1_800)
        ann.run()
    assert ann.desk.posts == ["a", "b", "c"]
    assert stage.total("sent") == 3
