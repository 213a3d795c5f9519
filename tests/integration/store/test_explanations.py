"""``explain``: every place an event can be in and every end it can come to, found by any id it is known by."""

from __future__ import annotations

import asyncio
import io
import json
import time
from dataclasses import replace
from typing import Any, Final

import pytest
import redis.asyncio
from rq import Queue
from rq.serializers import JSONSerializer

from dispatcher import AsyncProducer, ConfigError, Explanation, Producer, QueueUnavailable
from dispatcher.core.event import job_id_for
from dispatcher.core.explain import State
from dispatcher.core.limits import Bounds, Limit
from dispatcher.core.policy import CategoryRule, OnLimit
from dispatcher.core.posts import Ambiguous, Paused, RateLimitedBySlack, Rejected, Retryable
from dispatcher.core.states import GRACE_US, Sent
from dispatcher.core.units import US, Lane
from dispatcher.logs.event_log import build_event_log, facts_of
from dispatcher.server.keys import Keys
from dispatcher.server.scripts import read_script
from dispatcher.store.dead_letters import Filter
from dispatcher.store.explanations import ExplainCalls, ids_of
from dispatcher.store.parked_events import ParkedFilter
from tests.support.digests import DELAY_S, storm, telling_policy, wait_until
from tests.support.doubles import START_US
from tests.support.servers import Database, RedisServer
from tests.support.stage import BACKOFF_US, LEASE_US, UNPACED, Stage, Worker, policy_of

pytestmark = pytest.mark.usefixtures("in_utc")

MOMENT: Final = "10:53:20"
"""When a stage begins, in UTC."""


@pytest.fixture
def stage(redis: Database) -> Stage:
    """One event of each category in half an hour; those of ``kept`` become dead letters then, of ``later`` wait."""
    policy = policy_of("", "1/30m")
    rules = {
        name: CategoryRule((Limit.parse("1/30m"),), UNPACED, on_limit, 86_400 * US)
        for name, on_limit in (("kept", OnLimit.DEAD_LETTER), ("later", OnLimit.DEFER))
    }
    return Stage(redis, replace(policy, categories=rules))


def explain(stage: Stage, id_: str) -> Explanation:
    """What is said at this instant; to say it, nothing is written."""
    names, call = ExplainCalls(stage.keys, stage.queue).call(ids_of(id_), payloads=True)
    stage.redis.eval_ro(read_script("explain"), len(names), *names, json.dumps(call))
    return stage.explanations.explain(id_)


# At its end


def test_of_a_dropped_event_the_limit_and_when_it_would_have_fitted_are_told(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel=UNPACED)
    ann.run()
    stage.clock.forward(60)
    told = explain(stage, "b")
    assert told.sentence == (
        f"Dropped at {MOMENT}: category errors had used 1 of 1 in 30 min; it would have fitted at 11:23:20."
    )
    assert (told.state, told.outcome, told.reason) == (State.SETTLED, "dropped", "limit:category")
    assert (told.at, told.fits_at) == (START_US / US, START_US / US + 1_800)
    assert (told.category, told.scope, told.limit) == ("errors", "category:errors", "1/30m")


def test_of_a_sent_event_where_and_when_is_told(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel=UNPACED)
    ann.run()
    told = explain(stage, "a")
    assert told.sentence == f"Sent to {UNPACED} at {MOMENT}."
    assert (told.state, told.outcome, told.reason, told.ts) == (State.SETTLED, "sent", "ok", "1.000001")


def test_a_dead_letter_says_why_and_whether_it_is_kept(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", category="kept")
    ann.run()
    said = f"Dead letter at {MOMENT}: category kept had used 1 of 1 in 30 min; it would have fitted at 11:23:20."
    kept = explain(stage, "b")
    assert (kept.sentence, kept.outcome, kept.dead_letter) == (said, "dead", True)
    stage.dead_letters.purge(stage.dead_letters.find(Filter()))
    purged = explain(stage, "b")
    gone = f"{said} It is no longer kept as a dead letter."
    assert (purged.sentence, purged.outcome, purged.dead_letter) == (gone, "dead", False)


def test_of_a_dead_letter_the_channel_that_refused_it_is_told_and_when_it_was_first_taken(
    stage: Stage, ann: Worker
) -> None:
    stage.send("a")
    (started,) = ann.go()
    stage.clock.forward(1)
    ann.answer(started, Rejected("channel_not_found", "no such channel"))
    told, (letter,) = explain(stage, "a"), stage.dead_letters.find(Filter())
    assert (told.channel, told.first_seen) == (letter.channel, START_US / US) == ("#general", START_US / US)


@pytest.mark.parametrize(
    ("limits", "guarantee", "on_limit", "said"),
    [
        ("3/30m", 0, OnLimit.DIGEST, "Counted into a digest at 10:53:20: category errors had used 2 of 3 in 30 min"),
        ("3/30m", 0, OnLimit.DROP, "Dropped at 10:53:20: category errors had used 2 of 3 in 30 min"),
        ("3/30m", 0, OnLimit.DEAD_LETTER, "Dead letter at 10:53:20: category errors had used 2 of 3 in 30 min"),
        ("", 3, OnLimit.DROP, "Dropped at 10:53:20: the guarantee of errors had used 2 of 3 in 30 min"),
    ],
)
def test_of_a_limit_that_keeps_a_slot_for_a_message_it_is_told_how_much_events_had_used(
    redis: Database, limits: str, guarantee: int, on_limit: OnLimit, said: str
) -> None:
    policy = telling_policy(limits, "3/30m", on_limit, notice=on_limit is not OnLimit.DIGEST, guarantee=guarantee)
    stage = Stage(redis, policy)
    ann = stage.worker("ann")
    stage.send("a", "b", "c", "d", channel=UNPACED)
    ann.run()
    kept = f"{said}, and 1 is kept for its notice or digest; it would have fitted at 11:23:20."
    assert [explain(stage, id_).sentence for id_ in ("c", "d")] == [kept, kept]
    assert explain(stage, "d").limit == "3/30m"
    lines = io.StringIO()
    log = build_event_log(style="json", stream=lines, clock=stage.clock)
    log.settled([each for each in ann.told.settlements if not isinstance(each.outcome, Sent)])
    log.digested(ann.told.digests)
    assert {each["sentence"] for each in map(json.loads, lines.getvalue().splitlines()) if "event_id" in each} == {kept}


def test_a_digested_event_that_was_refused_the_slot_of_the_digest_says_so(redis: Database) -> None:
    stage = Stage(redis, telling_policy())
    ann = stage.worker("ann")
    storm(stage, 3)
    wait_until(stage, DELAY_S, ann)  # the third was alone, and posted in the slot of the digest
    stage.send("alone", channel=UNPACED)
    wait_until(stage, 2 * DELAY_S, ann)
    stage.send("second", channel=UNPACED)
    ann.run()
    used = "category errors had used the 1 of 3 in 30 min that is kept for its notice or digest"
    assert explain(stage, "alone").sentence == (
        f"Counted into a digest at 10:55:20: {used}; it would have fitted at 11:24:20."
    )


def test_the_detail_of_a_dead_letter_does_not_say_that_the_slot_of_a_notice_was_used(redis: Database) -> None:
    stage = Stage(redis, telling_policy("2/30m", on_limit=OnLimit.DEAD_LETTER, notice=True))
    stage.send("a", "b", channel=UNPACED)
    stage.worker("ann").run()
    said = "category:errors had used its 2/30m, less what is kept for its notice or digest"
    assert explain(stage, "b").detail == said


def test_a_dead_letter_is_told_though_its_decision_is_no_longer_kept(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", category="kept")
    ann.run()
    stage.redis.delete(*stage.keys.decisions)
    assert explain(stage, "b").reason == "limit:category"
    assert explain(stage, "a").state is State.UNKNOWN


def test_of_a_duplicate_what_became_of_the_first_is_told(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel=UNPACED)
    ann.run()
    Queue("q", connection=stage.redis, serializer=JSONSerializer).enqueue(
        "dispatcher.jobs.dispatch", {"category": "errors", "text": "again"}, job_id="b"
    )
    stage.clock.forward(1)
    assert explain(stage, "b").outcome == "dropped"
    ann.run()
    assert stage.total("duplicate") == 1
    assert explain(stage, "b").sentence.startswith(f"Dropped at {MOMENT}: ")


def test_a_replayed_event_waits_again(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", category="kept")
    ann.run()
    stage.dead_letters.replay(stage.dead_letters.find(Filter()))
    waits = explain(stage, "b")
    assert waits.state is State.WAITING
    assert waits.sentence == "Replayed, and waits on the queue, on lane normal, as the next."
    ann.take()
    told = explain(stage, "b")
    assert (told.state, told.replays) == (State.IN_FLIGHT, 1)


def test_an_id_that_is_not_known_is_told_to_be_unknown_for_either_reason(stage: Stage) -> None:
    told = explain(stage, "nobody")
    assert told == Explanation("nobody", "nobody", State.UNKNOWN, told.sentence)
    assert told.sentence == (
        "There is nothing about 'nobody': it was never handed over, or it was removed from the queue, "
        "or what became of it is no longer kept."
    )


def test_an_event_without_a_decision_has_ended_for_certain_while_it_is_remembered(
    redis: Database,
) -> None:
    stage = Stage(redis, policy_of("", "1/30m"))
    stage.bounds = Bounds(decisions=2)
    ann = stage.worker("ann")
    for n in range(5):
        stage.send(f"e{n}", channel=UNPACED)
        ann.run()
    told = explain(stage, "e1")
    assert (told.state, told.outcome) == (State.UNKNOWN, None)
    assert told.sentence == (
        "The event 'e1' has ended, but what became of it is no longer kept; "
        "its id is remembered until 2024-11-21 10:53:20."
    )
    stage.clock.forward(86_400)
    assert explain(stage, "e1").sentence.startswith("There is nothing about 'e1'")


# Before


def test_an_event_on_the_queue_is_told_with_its_lane_and_place(stage: Stage) -> None:
    stage.send("a", "b", "c", priority=Lane.HIGH)
    stage.send("d", priority=Lane.LOW)
    told = explain(stage, "c")
    assert told.sentence == "Waits on the queue, on lane high, behind 2 others; no worker has taken it yet."
    assert (told.state, told.before, told.category) == (State.WAITING, 2, None)
    assert explain(stage, "d").sentence.startswith("Waits on the queue, on lane low, as the next;")


def test_a_job_of_another_queue_is_none_of_ours(stage: Stage) -> None:
    Queue("elsewhere", connection=stage.redis, serializer=JSONSerializer).enqueue("x.y", job_id="a")
    assert explain(stage, "a").state is State.UNKNOWN


def test_a_job_that_is_no_hash_is_no_obstacle(stage: Stage) -> None:
    stage.redis.set(stage.queue.job("a"), "x")
    assert explain(stage, "a").state is State.UNKNOWN


def test_a_job_that_waits_for_another_is_told_in_rqs_word(stage: Stage) -> None:
    queue = Queue("q", connection=stage.redis, serializer=JSONSerializer)
    first = queue.enqueue("dispatcher.jobs.dispatch", {"category": "errors", "text": "1"}, job_id="one")
    queue.enqueue("dispatcher.jobs.dispatch", {"category": "errors", "text": "2"}, job_id="two", depends_on=first)
    assert "RQ says of its job that it is deferred" in explain(stage, "two").sentence


@pytest.mark.parametrize("left", [{"status": "finished"}, {"status": "started", "adopted": "1"}], ids=str)
def test_a_job_that_a_stock_worker_leaves_behind_hides_no_end(stage: Stage, ann: Worker, left: dict[str, str]) -> None:
    id_ = stage.send_unnamed()
    ann.run()
    stage.redis.hset(stage.queue.job(id_), mapping={"origin": "q", **left})
    assert explain(stage, id_).outcome == "sent"


def test_a_decision_in_the_older_part_of_the_record_is_told(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/30m"))
    stage.bounds = Bounds(decisions=2)
    ann = stage.worker("ann")
    for n in range(3):
        stage.send(f"e{n}", channel=UNPACED)
        ann.run()
    assert redis.hkeys(stage.keys.decisions[1]) == [b"", b"e1"]
    assert explain(stage, "e1").outcome == "dropped"


def test_an_event_in_flight_is_told_with_its_worker(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel=UNPACED)
    batch = ann.take().batch
    told = explain(stage, "a")
    assert told.sentence == "In flight: worker ann is deciding about it."
    assert (told.state, told.worker, told.category, told.first_seen) == (
        State.IN_FLIGHT, "ann", "errors", START_US / US,
    )  # fmt: skip
    ann.dispatch(batch)
    assert explain(stage, "a").sentence == "In flight: worker ann is posting it, attempt 1 of 8."


def test_an_event_that_a_worker_gave_back_is_in_flight_without_a_worker(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel=UNPACED)
    ann.take()
    ann.give_back()
    told = explain(stage, "a")
    assert (told.state, told.worker) == (State.IN_FLIGHT, None)
    assert told.sentence == "In flight: its worker gave it back or died, it is among the next to be taken."


def test_explain_tells_the_instant_of_a_head_and_the_position_of_the_others(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "c", category="later")
    ann.run()
    first, second = explain(stage, "b"), explain(stage, "c")
    room = "Waits for room: category later has used {} of 1 in 30 min; "
    full = room.format(1)
    assert first.sentence == f"{full}first in line, expected at 11:23:20 at the earliest."
    assert second.sentence == f"{full}number 2 in line, expected at about 11:53:20 (an estimate)."
    assert (first.state, first.outcome, first.reason, first.scope, first.before, first.next_at) == (
        State.PARKED, "parked", "limit:category", "category:later", 0, START_US / US + 1_800,
    )  # fmt: skip
    assert (first.limit, first.used, first.max, first.window_s, first.place, first.expected_at) == (
        "1/30m", 1, 1, 1_800, 1, START_US / US + 1_800,
    )  # fmt: skip
    assert (second.before, second.next_at, second.place, second.expected_at) == (1, None, 2, START_US / US + 3_600)
    stage.clock.forward(1_800)
    ann.take()
    assert explain(stage, "b").state is State.IN_FLIGHT
    assert explain(stage, "c").sentence == f"{room.format(0)}first in line, expected now."


def test_of_what_expires_before_there_is_room_both_instants_are_told(stage: Stage, ann: Worker) -> None:
    stage.send("a", category="later")
    stage.send("b", "c", category="later", max_age=60)
    ann.run()
    first, second = explain(stage, "b"), explain(stage, "c")
    assert first.sentence == (
        "Waits for room: category later has used 1 of 1 in 30 min; first in line; "
        "it will expire at 10:54:20, since room is expected only at 11:23:20."
    )
    assert second.sentence == (
        "Waits for room: category later has used 1 of 1 in 30 min; number 2 in line; "
        "it will probably expire at 10:54:20, since room is expected only at about 11:53:20."
    )
    assert (first.expected_at, second.expected_at) == (START_US / US + 1_800, START_US / US + 3_600)
    stage.clock.forward(60)
    assert explain(stage, "b").sentence.endswith("; its max_age ended at 10:54:20, so it expires now.")


def test_what_expires_at_the_instant_at_which_there_is_room_is_not_posted(stage: Stage, ann: Worker) -> None:
    stage.send("a", category="later")
    stage.send("b", category="later", max_age=1_800)
    ann.run()
    said = "; it will expire at 11:23:20, since room is expected only at 11:23:20."
    assert explain(stage, "b").sentence.endswith(said)
    stage.clock.forward(1_800)
    ann.run()
    assert (explain(stage, "b").reason, ann.desk.posts) == ("expired", ["a"])


def test_a_recovery_that_waits_to_edit_a_message_waits_for_no_channel(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel=UNPACED, dedup_key="db1")
    ann.run()
    stage.pausing.pause("*", "ops@here", "maintenance")
    stage.send("r", channel=UNPACED, dedup_key="db1", status="resolved")
    ann.run()
    told = explain(stage, "r")
    assert told.channel == UNPACED, "not the name of the line of edits"
    assert told.sentence == (
        "Admitted, and waits to edit the message: posting is paused since 10:53:20 (by ops@here: maintenance); "
        "it is the next."
    )


@pytest.mark.parametrize("limit", ["3/30m", "3/30m fixed"])
def test_with_one_limit_each_event_goes_when_its_place_in_line_says(redis: Database, limit: str) -> None:
    stage = Stage(redis, policy_of("", limit, on_limit=OnLimit.DEFER))
    ann = stage.worker("ann")
    for n in range(8):
        stage.send(f"e{n}", channel=UNPACED)
        ann.run()
        stage.clock.forward(7)
    expected = {f"e{n}": explain(stage, f"e{n}").expected_at for n in range(3, 8)}
    while missing := expected.keys() - set(ann.desk.posts):
        ann.go_on()
        ann.sleep()
        before = set(ann.desk.posts)
        ann.run()
        gone = set(ann.desk.posts) - before
        assert {expected[id_] for id_ in gone & missing} <= {stage.clock.now_us / US}


@pytest.mark.parametrize("own", ["1/40s", "2/40s", "1/40s fixed"])
def test_the_rounds_of_a_limit_are_counted_from_when_the_first_in_line_can_go(redis: Database, own: str) -> None:
    rule = CategoryRule((Limit.parse(own),), UNPACED, OnLimit.DEFER, 86_400 * US)
    stage = Stage(redis, replace(policy_of("5/20s", "", on_limit=OnLimit.DEFER), categories={"r": rule}))
    ann = stage.worker("ann")
    stage.send(*(f"o{n}" for n in range(5)), category="other", channel=UNPACED)
    ann.run()
    stage.clock.forward(3)
    stage.send(*(f"r{n}" for n in range(4)), category="r", channel=UNPACED)
    ann.run()
    expected = {f"r{n}": explain(stage, f"r{n}").expected_at for n in range(4)}
    went: dict[str, float] = {}
    while expected.keys() - went.keys():
        ann.go_on()
        ann.sleep()
        ann.run()
        went |= {id_: stage.clock.now_us / US for id_ in ann.desk.posts if id_ in expected and id_ not in went}
    assert went == expected


def test_where_held_slots_fill_the_limit_it_is_told_that_nobody_knows_when_it_goes(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/30m", pace="1/1d", on_limit=OnLimit.DEFER))
    ann = stage.worker("ann")
    stage.send("other", category="other", channel="#ops")
    ann.run()
    stage.send("a", "b", "c", channel="#ops")
    ann.run()
    for id_, place in (("b", "first in line"), ("c", "number 2 in line")):
        told = explain(stage, id_)
        assert told.expected_at is None
        assert told.sentence == (
            f"Waits for room: category errors has used 1 of 1 in 30 min; {place}. "
            "When it goes is not known: its room is held by admitted events that are not posted yet."
        )


@pytest.mark.parametrize(("name", "what"), [("*", "posting"), ("later", "category later")])
def test_while_it_is_paused_no_instant_is_told_for_what_waits_for_room(
    stage: Stage, ann: Worker, name: str, what: str
) -> None:
    stage.send("a", "b", category="later")
    ann.run()
    stage.pausing.pause(name, "ops@here", "maintenance")
    told = explain(stage, "b")
    assert (told.place, told.expected_at, told.next_at) == (1, None, None)
    assert told.sentence == (
        f"Waits for room: category later has used 1 of 1 in 30 min; first in line; {what} is paused "
        "since 10:53:20 (by ops@here: maintenance)."
    )


def test_the_first_in_line_is_told_with_the_limit_that_has_room_last(redis: Database) -> None:
    rule = CategoryRule((Limit.parse("1/20s"),), UNPACED, OnLimit.DEFER, 86_400 * US)
    stage = Stage(redis, replace(policy_of("2/60s", "", on_limit=OnLimit.DEFER), categories={"a": rule}))
    ann = stage.worker("ann")
    stage.send("other", category="other", channel=UNPACED)
    ann.run()
    stage.clock.forward(10)
    stage.send("first", "second", category="a")
    ann.run()
    told = explain(stage, "second")
    assert told.sentence == (
        "Waits for room: all events together have used 2 of 2 in 1 min; first in line, expected at 10:54:20 "
        "at the earliest."
    )
    assert (told.scope, told.limit) == ("global", "2/1m")


def test_events_of_other_lines_that_go_first_count_as_before(redis: Database) -> None:
    stage = Stage(redis, policy_of("1/30m", "", on_limit=OnLimit.DEFER))
    ann = stage.worker("ann")
    for id_, category in (("a", "x"), ("b", "x"), ("c", "x"), ("d", "y"), ("e", "x"), ("f", "y")):
        stage.send(id_, category=category, channel=UNPACED)
    ann.run()
    assert [explain(stage, id_).place for id_ in "bcdef"] == [1, 2, 3, 4, 5]
    told = explain(stage, "d")
    assert (told.scope, told.before, told.next_at) == ("global", 2, None)


def test_the_explanation_of_an_event_that_waits_for_its_channel_says_why(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "", pace="1/10s"))
    ann = stage.worker("ann")
    stage.send("a", "b", "c", channel="#ops")
    (started,) = ann.go()
    waits = "Admitted, and waits for channel #ops:"
    assert explain(stage, "b").sentence == f"{waits} another post to it is in flight; it is the next."
    assert explain(stage, "c").sentence == f"{waits} another post to it is in flight; it is behind 1 other."
    ann.deliver([started])
    paced = explain(stage, "b")
    assert paced.sentence == f"{waits} its pace lets the next go at 10:53:30; it is the next."
    assert (paced.state, paced.reason, paced.channel, paced.next_at) == (
        State.PARKED, "pace", "#ops", START_US / US + 10,
    )  # fmt: skip
    stage.clock.forward(10)
    (started,) = ann.go()
    ann.answer(started, RateLimitedBySlack(60 * US, "ratelimited"))
    cooling = explain(stage, "b")
    cooled = f"{waits} after Slack's 429, or posts without a clear answer,"
    assert cooling.sentence == f"{cooled} nobody posts there until 10:54:30; it is the next."
    assert (cooling.reason, cooling.attempts) == ("cooldown", 0)
    stage.clock.forward(60)
    (started,) = ann.go()
    ann.answer(started, Paused("token_revoked", "make a new token"))
    denied, paused = explain(stage, "b"), explain(stage, "c")
    assert denied.sentence == (
        "Admitted, and waits: posting is paused since 10:54:30 (token_revoked: make a new token); "
        "it goes on at 10:54:31 at the earliest."
    )
    assert paused.sentence == (
        f"{waits} posting is paused since 10:54:30 (token_revoked: make a new token); it is the next."
    )
    assert (paused.reason, paused.next_at) == ("paused", START_US / US + 71)


def test_while_slack_takes_no_post_no_instant_that_has_passed_is_told(redis: Database) -> None:
    stage = Stage(redis, policy_of("", ""))
    ann = stage.worker("ann")
    stage.send("a", "b", channel="#ops")
    (started,) = ann.go()
    ann.answer(started, Paused("token_revoked", "make a new token"))
    stage.clock.forward(60)
    denied, waits = explain(stage, "a"), explain(stage, "b")
    paused = "posting is paused since 10:53:20 (token_revoked: make a new token)"
    assert (denied.sentence, denied.next_at) == (f"Admitted, and waits: {paused}.", None)
    assert (waits.sentence, waits.next_at) == (
        f"Admitted, and waits for channel #ops: {paused}; it is the next.", None,
    )  # fmt: skip


def test_a_retry_is_told_with_the_pause_by_hand_that_keeps_it_before_its_instant_and_after(
    stage: Stage, ann: Worker
) -> None:
    stage.send("a", channel=UNPACED)
    (started,) = ann.go()
    ann.answer(started, Retryable("http_502", "bad gateway"))
    stage.pausing.pause("*", "ops@here", "maintenance")
    before = explain(stage, "a")
    assert before.next_at is None
    assert before.sentence == (
        "Admitted, 1 of 8 attempts used (retry: http_502); posting is paused since 10:53:20 (by ops@here: maintenance)."
    )
    stage.clock.forward(10)
    assert explain(stage, "a") == before


def test_a_retry_is_told_with_the_pause_of_its_category(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel=UNPACED)
    (started,) = ann.go()
    ann.answer(started, Retryable("http_502", "bad gateway"))
    stage.pausing.pause("errors", "ops@here", "maintenance")
    told = explain(stage, "a")
    assert told.next_at is None
    assert told.sentence == (
        "Admitted, 1 of 8 attempts used (retry: http_502); "
        "category errors is paused since 10:53:20 (by ops@here: maintenance)."
    )
    stage.clock.forward(10)
    ann.run()
    assert "category errors is paused" in explain(stage, "a").sentence


def test_the_history_is_searched_for_an_event_whose_category_is_paused(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel=UNPACED)
    (started,) = ann.go()
    ann.answer(started, Ambiguous("timeout", "no answer"))
    stage.pausing.pause("errors", "ops@here", "maintenance")
    assert explain(stage, "a").sentence.endswith("; the channel's history is searched for it at 10:53:30.")
    stage.clock.forward(GRACE_US / US)
    assert [each.id for each in ann.take().batch] == ["a"]
    assert explain(stage, "a").sentence == "In flight: worker ann looks in the channel's history for its post."


def test_explain_tells_the_attempts_and_the_next_instant_of_a_retry(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel=UNPACED)
    (started,) = ann.go()
    ann.answer(started, Retryable("http_502", "bad gateway"))
    told = explain(stage, "a")
    assert told.sentence == "Admitted, 1 of 8 attempts used (retry: http_502); it goes on at 10:53:25."
    assert (told.reason, told.code, told.attempts, told.next_at) == (
        "retry", "http_502", 1, (START_US + BACKOFF_US) / US,
    )  # fmt: skip


def test_an_event_that_a_dead_worker_was_posting_is_reconciled_without_its_old_code(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel=UNPACED)
    (started,) = ann.go()
    ann.answer(started, Retryable("http_502", "bad gateway"))
    stage.clock.forward(BACKOFF_US / US)
    ann.go()
    stage.clock.forward(LEASE_US / US)
    bob = stage.worker("bob")
    bob.take(0, 0)
    stage.clock.forward(3)
    bob.take(0, 0)
    told = explain(stage, "a")
    assert (told.state, told.reason, told.code, told.attempts) == (State.PARKED, "reconcile", None, 2)


def test_of_a_post_without_a_clear_answer_is_told_when_it_is_reconciled(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel=UNPACED)
    (started,) = ann.go()
    ann.answer(started, Ambiguous("timeout", "no answer"))
    told = explain(stage, "a")
    assert told.sentence == (
        "Posted with no clear answer (reconcile: timeout); the channel's history is searched for it at 10:53:30."
    )
    assert (told.reason, told.next_at) == ("reconcile", (START_US + GRACE_US) / US)


@pytest.mark.parametrize(("name", "what"), [("*", "posting"), ("errors", "category errors")])
def test_the_explanation_of_a_paused_event_names_who_paused(redis: Database, name: str, what: str) -> None:
    stage = Stage(redis, policy_of("", ""))
    stage.pausing.pause(name, "ops@here", "maintenance")
    stage.send("a", "b", channel="#ops")
    stage.worker("ann").go()
    told = explain(stage, "b")
    assert told.sentence == (
        f"Admitted, and waits for channel #ops: {what} is paused since 10:53:20 (by ops@here: maintenance); "
        "it is behind 1 other."
    )
    assert (told.reason, told.next_at, told.before) == ("paused", None, 1)


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_digest_is_told_to_be_no_event(redis: Database, *, is_taken: bool) -> None:
    stage = Stage(redis, policy_of("", "2/30m", on_limit=OnLimit.DIGEST))
    ann = stage.worker("ann")
    stage.send("a", "b", "c", channel=UNPACED)
    ann.run()
    if is_taken:
        stage.clock.forward(60)
        assert [each.id for each in ann.take().batch] == ["digest:errors"]
    told = explain(stage, "digest:errors")
    assert told.sentence == (
        "This is no event but a message of the dispatcher itself: 'dispatcher status' shows what it counts."
    )
    assert told.state is (State.IN_FLIGHT if is_taken else State.PARKED)
    assert (told.category, told.outcome, told.attempts) == (None, None, None)


# Ids


@pytest.mark.parametrize("asked", ["disk full: db1", job_id_for("disk full: db1")], ids=["chosen", "on the queue"])
def test_an_event_is_found_by_the_id_that_was_chosen_and_by_that_of_its_job(
    stage: Stage, ann: Worker, asked: str
) -> None:
    stage.send("disk full: db1", category="kept")
    told = [explain(stage, asked)]
    (started,) = ann.go()
    told.append(explain(stage, asked))
    ann.deliver([started])
    told.append(explain(stage, asked))
    assert [each.state for each in told] == [State.WAITING, State.IN_FLIGHT, State.SETTLED]
    assert {(each.id, each.job_id) for each in told} == {(asked, job_id_for("disk full: db1"))}


def test_an_event_is_found_by_the_beginning_of_its_id_wherever_it_is(stage: Stage, ann: Worker) -> None:
    ids = {"lane": "waiting", "hand": "in_flight", "back": "in_flight", "park": "parked", "bury": "settled"}
    ids |= {"sent": "settled", "drop": "settled"}
    stage.send("sent-1", "drop-1", channel=UNPACED)
    stage.send("free-1", "bury-1", category="kept")
    stage.send("room-1", "park-1", category="later")
    ann.run()
    stage.redis.delete(*stage.keys.decisions[2:])
    stage.send("sent-2", category="new", channel=UNPACED)
    ann.run()
    stage.send("hand-1", channel=UNPACED)
    stage.worker("bob").take(due=0)
    cid = stage.worker("cid")
    stage.send("back-1", channel=UNPACED)
    cid.take(due=0)
    cid.give_back()
    stage.send("lane-1", channel=UNPACED)
    told = {beginning: stage.explanations.explain_beginning(beginning) for beginning in ids}
    assert {beginning: each.state.value for beginning, each in told.items()} == ids


# For producers


def test_a_producer_can_ask(redis: Database, redis_url: str) -> None:
    producer = Producer(redis)
    id_ = producer.send("errors", "x")
    told = producer.explain(id_)
    assert (told.id, told.state) == (id_, State.WAITING)
    assert producer.explain("nobody").state is State.UNKNOWN
    assert asyncio.run(ask_async(redis_url, id_)) == told


def test_a_producer_refuses_to_explain_where_the_namespace_has_another_layout(redis: Database, redis_url: str) -> None:
    producer = Producer(redis)
    id_ = producer.send("errors", "x")
    redis.set(Keys("dispatcher").layout, "99")
    for asked in (id_, "nobody"):
        with pytest.raises(ConfigError, match="'dispatcher' holds key layout '99'"):
            producer.explain(asked)
        with pytest.raises(ConfigError, match="'dispatcher' holds key layout '99'"):
            asyncio.run(ask_async(redis_url, asked))


def test_a_producer_learns_from_the_limits_in_force_when_an_event_finds_room(redis: Database, redis_url: str) -> None:
    stage = Stage(redis)
    version = stage.put_in_force('defaults: {limits: [1/1d], on_limit: defer, channel: "#all"}')
    ann = stage.worker("ann")
    ann.follow(version)
    stage.clock.now_us = time.time_ns() // 1_000
    stage.send("a", "b", channel=UNPACED)
    ann.run()
    told = Producer(redis, namespace="stage", queue="q").explain("b")
    assert (told.used, told.max, told.place) == (1, 1, 1)
    assert told.expected_at == stage.clock.now_us / US + 86_400
    assert asyncio.run(ask_async(redis_url, "b", namespace="stage", queue="q")) == told
    redis.delete(stage.keys.limits_version)
    unknown = Producer(redis, namespace="stage", queue="q").explain("b")
    assert (unknown.place, unknown.used, unknown.expected_at) == (1, None, None)
    assert "category errors had used up a limit; as the next of its line it is expected at" in unknown.sentence


async def ask_async(url: str, id_: str, namespace: str = "dispatcher", queue: str = "notifications") -> Explanation:
    async with redis_client(url) as client:
        return await AsyncProducer(client, namespace=namespace, queue=queue).explain(id_)


def redis_client(url: str) -> Any:  # noqa: ANN401 - redis-py leaves it untyped
    return redis.asyncio.Redis.from_url(url)


def test_explain_raises_queue_unavailable_while_the_server_is_away(own_server: RedisServer) -> None:
    with own_server.client() as client:
        own_server.kill()
        with pytest.raises(QueueUnavailable):
            Producer(client).explain("a")

    async def ask() -> Explanation:
        async with redis_client(own_server.url) as client:
            return await AsyncProducer(client).explain("a")

    with pytest.raises(QueueUnavailable):
        asyncio.run(ask())


def test_the_explanation_for_a_channel_without_clear_answers_counts_the_failed_posts(redis: Database) -> None:
    stage = Stage(redis)
    ann = stage.worker("ann")
    stage.send("a", "b", "c", channel="#ops")
    for _ in range(2):
        (started,) = ann.go()
        ann.answer(started, Ambiguous("reply_timeout", "no complete answer"))
    ann.go()
    told = explain(stage, "c")
    assert told.sentence == (
        "Admitted, and waits for channel #ops: the last 2 posts to it had no clear answer, "
        "so the next one tries at 10:53:21; it is the next."
    )


def test_a_cancelled_event_with_unknown_delivery_status_may_stand_in_slack(stage: Stage, ann: Worker) -> None:
    stage.send("a")
    ann.answer(ann.go()[0], Ambiguous("reply_timeout", "no complete answer"))
    ((_, settlement),) = stage.parked_events.cancel(list(stage.parked_events.find(ParkedFilter())), who="ops@here")
    assert explain(stage, "a").sentence == (
        "Cancelled at 10:53:20 by ops@here. It may stand in Slack: 1 post of it had no clear answer."
    )
    assert facts_of(settlement)["perhaps_copies"] == 1


def test_the_explanation_of_an_expired_event_says_why_and_since_when_it_waited(redis: Database) -> None:
    stage = Stage(redis, policy_of(pace="1/1h", max_age_us=60 * US))
    ann = stage.worker("ann")
    stage.send("a", "b", channel="#ops")
    ann.run()
    stage.clock.forward(60)
    ann.run()
    assert explain(stage, "b").sentence == (
        "Dead letter at 10:54:20, expired: waited longer than its max_age, for its channel #ops (pace), since 10:53:20."
    )
