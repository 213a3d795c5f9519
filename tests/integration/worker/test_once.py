"""Repeats: of events about the same thing one is posted in each window, and the others end as repeats of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Final

import pytest

from dispatcher.app.documents.events import letter_document
from dispatcher.core.event import Event, new_event_id
from dispatcher.core.limits import Limit
from dispatcher.core.matchers import parse_matchers
from dispatcher.core.once import Once, Then
from dispatcher.core.policy import CategoryRule, OnLimit
from dispatcher.core.posts import Receipt, Rejected, Retryable
from dispatcher.core.units import US
from dispatcher.store.dead_letters import Filter
from dispatcher.store.silences import Wanted
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, UNPACED, Stage, Worker, policy_from, policy_of, sentence

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("in_utc")]

HOUR_US: Final = 3_600 * US
ONCE: Final = Once("dedup_key", HOUR_US)


@pytest.fixture
def stage(redis: Database) -> Stage:
    """``errors`` drop over 2 in a minute, ``kept`` become dead letters, ``later`` wait; each is posted once an hour."""
    policy = policy_of("", "2/1m")
    rules = {
        name: CategoryRule((Limit.parse("2/1m"),), UNPACED, on_limit, 24 * HOUR_US, once=ONCE)
        for name, on_limit in (
            ("errors", OnLimit.DROP),
            ("kept", OnLimit.DEAD_LETTER),
            ("later", OnLimit.DEFER),
            ("told", OnLimit.DIGEST),
        )
    }
    rules["paced"] = replace(rules["errors"], channel="#paced")
    return Stage(redis, replace(policy, categories=rules))


def repeats(stage: Stage) -> int:
    ends = stage.snapshot().counts.by_reason("dropped")
    return sum(number for (_, reason), number in ends.items() if reason == "repeat")


@pytest.mark.parametrize("category", ["errors", "kept", "later", "told"])
def test_a_repeat_is_dropped_whatever_on_limit_says(stage: Stage, ann: Worker, category: str) -> None:
    stage.send("a", "b", category=category, dedup_key="db1")
    ann.run()
    stage.send("c", category=category, dedup_key="db1")
    ann.run()
    assert ann.desk.posts == ["a"]
    assert repeats(stage) == 2
    assert stage.snapshot().dead_letters == 0


def test_a_slot_that_somebody_else_has_written_is_named_on_record_as_it_is(stage: Stage, ann: Worker) -> None:
    stage.send("a", dedup_key="db1")
    ann.run()
    (key,) = stage.redis.scan_iter("*:scope:once:*")
    (mine,) = stage.redis.zrange(key, 0, -1)
    stage.redis.zadd(key, {"theirs": stage.clock.now_us})
    stage.redis.zrem(key, mine)
    stage.send("b", dedup_key="db1")
    ann.run()
    found = stage.decision("b")
    assert found is not None
    assert (found.reason, found.detail, found.since_us) == ("repeat", "theirs", stage.clock.now_us)


def test_the_next_one_is_posted_when_the_window_has_passed(stage: Stage, ann: Worker) -> None:
    stage.send("a", dedup_key="db1")
    ann.run()
    stage.clock.now_us += HOUR_US - 1
    stage.send("b", dedup_key="db1")
    ann.run()
    stage.clock.now_us += 1
    stage.send("c", dedup_key="db1")
    ann.run()
    assert ann.desk.posts == ["a", "c"]


def test_what_another_limit_refuses_takes_no_key(stage: Stage, ann: Worker) -> None:
    stage.send("a", dedup_key="db1")
    stage.send("b", dedup_key="db2")
    stage.send("c", dedup_key="db3")
    ann.run()
    stage.clock.now_us += 60 * US
    stage.send("d", dedup_key="db3")
    ann.run()
    assert ann.desk.posts == ["a", "b", "d"]
    assert repeats(stage) == 0


def test_a_repeat_is_one_though_another_limit_would_refuse_it_too(stage: Stage, ann: Worker) -> None:
    stage.send("a", dedup_key="db1")
    stage.send("b", dedup_key="db2")
    stage.send("c", dedup_key="db1")
    ann.run()
    assert repeats(stage) == 1


def test_a_message_that_is_not_posted_gives_its_key_back(stage: Stage, ann: Worker) -> None:
    ann.desk.reply = lambda _: Rejected("channel_not_found", "")
    stage.send("a", dedup_key="db1")
    ann.run()
    ann.desk.reply = lambda message: Receipt(message.channel, "1.000001")
    stage.send("b", dedup_key="db1")
    ann.run()
    assert ann.desk.posts == ["a", "b"]
    assert repeats(stage) == 0


def test_a_message_that_is_tried_again_is_no_repeat_of_itself(stage: Stage, ann: Worker) -> None:
    ann.desk.reply = lambda _: Retryable("http_500", "", uses_attempt=True, reached=True)
    stage.send("a", dedup_key="db1")
    ann.run()
    ann.desk.reply = lambda message: Receipt(message.channel, "1.000001")
    stage.clock.now_us += BACKOFF_US
    ann.run()
    assert ann.desk.posts == ["a", "a"]


def test_one_that_stands_in_line_keeps_its_key_until_it_is_posted(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", "c", category="later")
    stage.send("d", "e", category="later", dedup_key="db1")
    ann.run()
    assert repeats(stage) == 1
    assert sentence(stage, "e") == "Dropped at 10:53:20: a repeat of d, which waited to be posted then."
    stage.clock.now_us += 60 * US
    ann.run()
    assert ann.desk.posts == ["a", "b", "c", "d"]
    stage.send("f", category="later", dedup_key="db1")
    ann.run()
    assert repeats(stage) == 2


def test_the_key_of_one_that_stands_in_line_lives_as_long_as_the_event_may_wait(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", category="later")
    stage.send("c", category="later", dedup_key="db1")
    ann.run()
    (key,) = stage.redis.scan_iter(stage.keys.scope("once:*"))
    assert 0 <= 24 * HOUR_US // 1_000 - stage.redis.pttl(key) < 60_000


def test_one_that_leaves_its_line_unposted_gives_its_key_back(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", category="later")
    stage.send("c", category="later", dedup_key="db1", max_age=30)
    ann.run()
    stage.clock.now_us += 30 * US
    ann.run()
    assert [letter["reason"] for letter in stage.letters()] == ["expired"]
    stage.clock.now_us += 30 * US
    stage.send("d", category="later", dedup_key="db1")
    ann.run()
    assert ann.desk.posts == ["a", "b", "d"]


def test_one_that_waits_for_its_channel_keeps_its_key(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", category="paced")
    (first,) = ann.go()
    stage.clock.now_us += 30 * 60 * US
    stage.send("c", category="paced", dedup_key="db1")
    ann.go()
    stage.clock.now_us += 2 * HOUR_US
    stage.send("d", category="paced", dedup_key="db1")
    ann.renew()
    ann.go()
    assert repeats(stage) == 1
    assert stage.line("#paced")[-1:] == ["c"]
    assert first.candidate.leased.id == "a"


def test_one_that_waited_for_its_channel_alone_is_no_repeat_of_itself(stage: Stage, ann: Worker) -> None:
    stage.send("a", category="paced", dedup_key="db1")
    stage.send("b", category="paced", dedup_key="db2")
    (first,) = ann.go()
    assert stage.line("#paced") == ["b"]
    ann.deliver([first])
    ann.run()
    assert ann.desk.posts == ["a", "b"]


def test_an_explanation_names_the_first_event_and_its_window(stage: Stage, ann: Worker) -> None:
    stage.send("a", dedup_key="db1")
    ann.run()
    stage.clock.now_us += 60 * US
    stage.send("b", dedup_key="db1")
    ann.run()
    assert sentence(stage, "b") == (
        "Dropped at 10:54:20: a repeat of a, whose window was then from 10:53:20 until 11:53:20; "
        "it ends earlier if a ends unposted or is resolved."
    )


def test_a_dead_letter_that_is_a_repeat_becomes_one_again(stage: Stage, ann: Worker) -> None:
    id_ = new_event_id()
    ann.desk.reply = lambda _: Rejected("channel_not_found", "")
    stage.send(id_, dedup_key="db1")
    ann.run()
    ann.desk.reply = lambda message: Receipt(message.channel, "1.000001")
    stage.send("b", dedup_key="db1")
    ann.run()
    stage.dead_letters.replay(stage.dead_letters.find(Filter()))
    ann.run()
    assert [letter["reason"] for letter in stage.letters()] == ["repeat"]
    assert sentence(stage, id_) == (
        "Dead letter at 10:53:20: a repeat of another event about the same thing; one is posted in any 1h."
    )


class TestEdit:
    """``then: edit``: repeats are counted in the message of the first."""

    @pytest.fixture
    def stage(self, redis: Database) -> Stage:
        rule = CategoryRule((), UNPACED, OnLimit.DROP, 24 * HOUR_US, once=replace(ONCE, then=Then.EDIT))
        return Stage(redis, replace(policy_of("", ""), categories={"errors": rule}))

    def test_repeats_are_counted_in_the_message_of_the_first(self, stage: Stage, ann: Worker) -> None:
        stage.send("a", dedup_key="db1")
        ann.run()
        stage.send("b", dedup_key="db1")
        ann.run()
        ((channel, ts, message),) = ann.desk.edits
        assert (channel, ts) == (UNPACED, "1.000001")
        assert message.text.startswith("text of a\n_x2, last <!date^")
        assert stage.snapshot().counts.by_reason("digested") == {("errors", "repeat"): 1}
        assert sentence(stage, "b").startswith(
            "Counted in the message that it repeats at 10:53:20: a repeat of a, whose window was then from "
        )

    def test_edits_of_one_message_are_half_a_minute_apart(self, stage: Stage, ann: Worker) -> None:
        stage.send("a", dedup_key="db1")
        ann.run()
        for number in range(12):
            stage.send(f"b{number}", dedup_key="db1")
            ann.run()
            stage.clock.now_us += 5 * US
        ann.run()
        assert [message.text.split(",")[0] for _, _, message in ann.desk.edits] == [
            "text of a\n_x2",
            "text of a\n_x7",
            "text of a\n_x13",
        ]

    def test_the_last_edit_of_a_short_window_is_half_a_minute_after_the_one_before(self, redis: Database) -> None:
        rule = CategoryRule((), UNPACED, OnLimit.DROP, 24 * HOUR_US, once=Once("dedup_key", 45 * US, Then.EDIT))
        stage = Stage(redis, replace(policy_of("", ""), categories={"errors": rule}))
        ann = stage.worker()
        instants: list[float] = []
        for second in range(70):
            stage.send(*{0: "a", 1: "b", 20: "c", 33: "d"}.get(second, ""), dedup_key="db1")
            ann.run()
            instants += [second] * (len(ann.desk.edits) - len(instants))
            stage.clock.forward(1)
        assert instants == [1, 31, 61]
        assert ann.desk.edits[-1][2].text.startswith("text of a\n_x4")
        assert stage.snapshot().all_tallies == 0

    @pytest.mark.parametrize("paused_s", [0, 10], ids=["edited before the end", "edited after the end"])
    def test_a_recovery_just_after_the_window_waits_for_half_a_minute_after_the_last_edit(
        self, stage: Stage, ann: Worker, paused_s: int
    ) -> None:
        stage.send("a", dedup_key="db1")
        ann.run()
        stage.clock.now_us += HOUR_US - US
        if paused_s:
            stage.pausing.pause("*", "ed", "Slack is being moved")
        stage.send("b", dedup_key="db1")
        ann.run()
        stage.clock.forward(paused_s)
        stage.pausing.resume("*")
        ann.run()
        assert len(ann.desk.edits) == 1
        stage.clock.forward(2)
        ann.run()
        stage.send("r", dedup_key="db1", status="resolved")
        ann.run()
        stage.clock.forward(27)
        ann.run()
        assert len(ann.desk.edits) == 1
        stage.clock.forward(1)
        ann.run()
        assert ann.desk.edits[-1][2].text == ":white_check_mark: ~text of a~\nx2, after 1 h"
        assert stage.snapshot().all_tallies == 0

    def test_a_recovery_about_one_message_tells_the_repeats_of_another_when_that_may_be_edited_again(
        self, stage: Stage, ann: Worker
    ) -> None:
        rule = replace(stage.policy.categories["errors"], once=replace(ONCE, by=("host",), then=Then.EDIT))
        stage.policy = replace(stage.policy, categories={"errors": rule})
        stage.send("a", "b", dedup_key="db", labels={"host": "db1"})
        ann.run()
        stage.clock.forward(2)
        stage.send("c", dedup_key="db", labels={"host": "db2"})
        stage.send("d", dedup_key="db", labels={"host": "db1"})
        stage.send("r", dedup_key="db", status="resolved", labels={"host": "db2"})
        ann.run()
        stage.clock.forward(27)
        ann.run()
        of_a = [message.text.split(",")[0] for _, _, message in ann.desk.edits if "text of a" in message.text]
        assert of_a == ["text of a\n_x2"]
        stage.clock.forward(1)
        ann.run()
        assert ann.desk.edits[-1][2].text.startswith("text of a\n_x3")
        assert stage.snapshot().all_tallies == 0

    def test_the_count_closes_with_the_window(self, stage: Stage, ann: Worker) -> None:
        stage.send("a", dedup_key="db1")
        ann.run()
        stage.send("b", dedup_key="db1")
        ann.run()
        stage.clock.now_us += HOUR_US
        ann.run()
        assert stage.snapshot().all_tallies == 0
        assert not stage.redis.exists(stage.keys.counting), "it makes way for no other message"
        stage.send("c", dedup_key="db1")
        ann.run()
        stage.send("d", dedup_key="db1")
        ann.run()
        assert ann.desk.posts == ["a", "c"]
        assert [message.text.split(",")[0] for _, _, message in ann.desk.edits] == ["text of a\n_x2", "text of c\n_x2"]

    def test_a_count_whose_window_reads_as_longer_than_any_stops_no_other_event(
        self, stage: Stage, ann: Worker
    ) -> None:
        stage.send("a", "b", dedup_key="db1")
        ann.run()
        stage.clock.now_us += HOUR_US
        (tally,) = stage.redis.keys(stage.keys.tally("repeat:*"))
        stage.redis.hset(tally, "next", stage.clock.now_us + 399 * 24 * HOUR_US)
        stage.send("c", dedup_key="db2")
        ann.run()
        assert ann.desk.posts == ["a", "c"]
        assert stage.letters() == []
        assert stage.snapshot().all_tallies == 1
        stage.redis.hset(tally, "next", stage.clock.now_us)
        stage.clock.now_us += HOUR_US
        ann.run()
        assert stage.snapshot().all_tallies == 0

    def test_a_message_counts_its_repeats_for_seven_days(self, redis: Database) -> None:
        days_us = 24 * HOUR_US
        rule = CategoryRule((), UNPACED, OnLimit.DROP, days_us, once=Once("dedup_key", 30 * days_us, Then.EDIT))
        stage = Stage(redis, replace(policy_of("", ""), categories={"errors": rule}))
        ann = stage.worker(lease_us=90 * days_us)
        stage.send("a", dedup_key="db1")
        stage.send("b", dedup_key="db2")
        ann.run()
        lives_s = [stage.redis.ttl(tally) for tally in stage.redis.keys(stage.keys.tally("repeat:*"))]
        assert lives_s == [7 * 86_400 + 3_600] * 2, "no repeat has come"
        stage.clock.now_us += 7 * days_us - 1
        stage.send("a2", dedup_key="db1")
        ann.run()
        stage.clock.now_us += 1
        for id_, key in (("a3", "db1"), ("b3", "db2")):
            stage.send(id_, dedup_key=key)
        stage.clock.forward(30)
        ann.run()
        assert [message.text.split(",")[0] for _, _, message in ann.desk.edits] == ["text of a\n_x2"]
        counts = stage.snapshot().counts
        assert counts.by_reason("digested") == {("errors", "repeat"): 1}
        assert counts.by_reason("dropped") == {("errors", "repeat"): 2}
        assert stage.snapshot().all_tallies == 0

    @pytest.mark.parametrize("has_repeats", [False, True])
    def test_the_newest_10000_messages_count_their_repeats_and_an_older_one_tells_those_that_it_knows(
        self, stage: Stage, ann: Worker, *, has_repeats: bool
    ) -> None:
        stage.send("a", dedup_key="db1")
        ann.run()
        told = []
        if has_repeats:
            for id_ in ("a2", "a3"):
                stage.send(id_, dedup_key="db1")
                ann.run()
            told = ["text of a\n_x2"]
        others = {f"repeat:errors:{n}": stage.clock.now_us + 1 for n in range(9_998)}
        stage.redis.zadd(stage.keys.counting, others)
        stage.clock.forward(2)
        for id_ in ("b", "c"):
            stage.send(id_, dedup_key=id_)
            ann.run()
            assert stage.redis.zcard(stage.keys.counting) == 10_000
        stage.send("a4", dedup_key="db1")
        ann.run()
        assert [message.text.split(",")[0] for _, _, message in ann.desk.edits] == told
        stage.clock.forward(28)
        ann.run()
        if has_repeats:
            told.append("text of a\n_x3")
        assert [message.text.split(",")[0] for _, _, message in ann.desk.edits] == told
        counts = stage.snapshot().counts
        assert counts.by_reason("digested") == ({("errors", "repeat"): 2} if has_repeats else {})
        assert counts.by_reason("dropped") == {("errors", "repeat"): 1}
        assert len(stage.redis.keys(stage.keys.tally("*"))) == 2

    def test_repeats_are_kept_until_they_are_told_however_long_posting_is_paused(
        self, stage: Stage, ann: Worker
    ) -> None:
        stage.send("a", dedup_key="db1")
        ann.run()
        (tally,) = stage.redis.keys(stage.keys.tally("repeat:*"))
        assert 0 < stage.redis.ttl(tally) <= 2 * 3_600, "no repeat has come"
        stage.pausing.pause("*", "ed", "Slack is being moved")
        stage.send("b", dedup_key="db1")
        ann.run()
        assert stage.redis.ttl(tally) == -1
        stage.clock.now_us += 3 * HOUR_US
        stage.pausing.resume("*")
        ann.run()
        assert [message.text.split(",")[0] for _, _, message in ann.desk.edits] == ["text of a\n_x2"]
        assert not stage.redis.exists(tally)

    def test_a_recovery_after_the_window_tells_the_count_too(self, stage: Stage, ann: Worker) -> None:
        stage.send("a", "b", dedup_key="db1")
        ann.run()
        stage.clock.now_us += HOUR_US
        ann.run()
        stage.send("r", dedup_key="db1", status="resolved")
        ann.run()
        assert ann.desk.edits[-1][2].text == ":white_check_mark: ~text of a~\nx2, after 1 h"

    def test_while_the_next_message_is_being_posted_its_repeats_are_not_counted_in_the_one_before(
        self, stage: Stage, ann: Worker
    ) -> None:
        stage.send("a", dedup_key="db1")
        ann.run()
        stage.clock.now_us += HOUR_US
        stage.send("b", dedup_key="db1")
        started = ann.go()
        stage.send("c", dedup_key="db1")
        ann.run()
        assert ann.desk.edits == []
        ann.deliver(started)
        ann.run()
        assert [message.text.split(",")[0] for _, _, message in ann.desk.edits] == ["text of b\n_x2"]

    def test_a_recovery_about_one_message_leaves_the_counts_of_others(self, stage: Stage, ann: Worker) -> None:
        rule = replace(stage.policy.categories["errors"], once=replace(ONCE, by=("host",), then=Then.EDIT))
        stage.policy = replace(stage.policy, categories={"errors": rule})
        stage.send("a", "b", dedup_key="db", labels={"host": "db1"})
        stage.send("c", "d", "e", dedup_key="db", labels={"host": "db2"})
        stage.send("r", dedup_key="db", status="resolved", labels={"host": "db2"})
        for _ in range(2):
            ann.run()
            stage.clock.now_us += 30 * US
        assert sorted(message.text.splitlines()[-1].split(",")[0] for _, _, message in ann.desk.edits) == ["_x2", "x3"]

    def test_where_repeats_were_dropped_before_none_is_counted(self, stage: Stage, ann: Worker) -> None:
        counting = stage.policy
        stage.policy = replace(counting, categories={"errors": replace(counting.categories["errors"], once=ONCE)})
        stage.send("a", dedup_key="db1")
        ann.run()
        stage.policy = counting
        stage.send("b", dedup_key="db1")
        ann.run()
        assert stage.snapshot().counts.by_reason("dropped") == {("errors", "repeat"): 1}
        assert stage.snapshot().all_tallies == 0

    def test_repeats_of_one_that_is_not_posted_yet_are_told_when_it_is(self, stage: Stage, ann: Worker) -> None:
        stage.send("a", dedup_key="db1")
        started = ann.go()
        stage.send("b", "c", dedup_key="db1")
        ann.go()
        assert ann.desk.edits == []
        ann.deliver(started)
        ann.run()
        assert [message.text.split(",")[0] for _, _, message in ann.desk.edits] == ["text of a\n_x3"]

    def test_the_dead_letter_of_the_first_counts_its_repeats(self, stage: Stage, ann: Worker) -> None:
        stage.send("a", dedup_key="db1")
        (started,) = ann.go()
        stage.send("b", "c", dedup_key="db1")
        ann.go()
        ann.answer(started, Rejected("channel_not_found", ""))
        ann.run()
        (letter,) = stage.dead_letters.find(Filter())
        assert letter_document(letter)["repeats"] == letter.repeats == 2
        assert stage.snapshot().all_tallies == 0

    def test_a_recovery_closes_the_count_and_tells_it(self, stage: Stage, ann: Worker) -> None:
        stage.send("a", dedup_key="db1")
        ann.run()
        stage.send("b", "c", dedup_key="db1")
        ann.run()
        stage.clock.now_us += 10 * US
        stage.send("d", dedup_key="db1")
        stage.send("r", dedup_key="db1", status="resolved")
        ann.run()
        stage.clock.now_us += 20 * US
        ann.run()
        assert ann.desk.edits[-1][2].text == ":white_check_mark: ~text of a~\nx4, after 10 s"
        stage.clock.now_us += HOUR_US
        ann.run()
        assert len(ann.desk.edits) == 2
        stage.send("e", dedup_key="db1")
        ann.run()
        assert ann.desk.posts == ["a", "e"]

    def test_where_messages_cannot_be_edited_repeats_are_dropped(self, stage: Stage, ann: Worker) -> None:
        ann.desk.can_update = False
        stage.send("a", dedup_key="db1")
        ann.run()
        stage.send("b", dedup_key="db1")
        ann.run()
        assert repeats(stage) == 1

    def test_repeats_that_cannot_be_told_any_more_end_with_the_window(self, stage: Stage, ann: Worker) -> None:
        stage.send("a", dedup_key="db1")
        ann.run()
        ends_us = stage.clock.now_us + HOUR_US
        stage.pausing.pause("*", "ed", "Slack is being moved")
        stage.send("b", dedup_key="db1")
        ann.run()
        stage.pausing.resume("*")
        ann.desk.can_update = False
        ann.run()
        (timer,) = stage.redis.zrange(stage.keys.timers, 0, -1, withscores=True)
        assert timer[1] == ends_us
        stage.clock.now_us = ends_us
        ann.run()
        assert ann.desk.edits == []
        assert stage.snapshot().all_tallies == 0

    def test_after_its_window_a_message_whose_edit_is_refused_is_left_alone(self, stage: Stage, ann: Worker) -> None:
        stage.send("a", dedup_key="db1")
        ann.run()
        ann.desk.reply = lambda _: Rejected("message_not_found", "")
        stage.send("b", dedup_key="db1")
        for _ in range(5):
            ann.run()
            stage.clock.now_us += HOUR_US
        assert len(ann.desk.edits) == 2  # and a last time when its window has passed
        assert stage.snapshot().all_tallies == 0

    def test_edits_delay_no_post(self, stage: Stage, ann: Worker) -> None:
        for number in range(45):
            stage.intake.enqueue(
                [(id_, Event("errors", "x", dedup_key=f"k{number}")) for id_ in (f"a{number}", f"b{number}")]
            )
        ann.run()
        assert len(ann.desk.posts) == 45
        assert len(ann.desk.edits) == 40
        stage.clock.now_us += 60 * US
        ann.run()
        assert len(ann.desk.edits) == 45

    @pytest.mark.parametrize("posts", [3, 20])
    def test_an_edit_waits_for_posts_to_the_channel_of_its_message_five_minutes_at_most(
        self, redis: Database, posts: int
    ) -> None:
        rule = CategoryRule((), "#paced", OnLimit.DROP, 24 * HOUR_US, once=replace(ONCE, then=Then.EDIT))
        policy = replace(policy_of("", "", pace="1/20s"), categories={"errors": rule})
        stage = Stage(redis, policy)
        ann = stage.worker(lease_us=24 * HOUR_US)
        stage.send("a", dedup_key="db1")
        stage.send(*(f"p{number}" for number in range(posts)), category="others", channel="#paced")
        ann.run()
        stage.send("b", dedup_key="db1")
        instants: list[int] = []
        for second in range(330):
            ann.run()
            instants += [second] * (len(ann.desk.edits) - len(instants))
            stage.clock.forward(1)
        assert instants == ([70] if posts == 3 else [300])

    def test_an_edit_that_failed_waits_for_posts_no_more(self, redis: Database) -> None:
        rule = CategoryRule((), "#paced", OnLimit.DROP, 24 * HOUR_US, once=replace(ONCE, then=Then.EDIT))
        stage = Stage(redis, replace(policy_of("", "", pace="1/20s"), categories={"errors": rule}))
        ann = stage.worker(lease_us=24 * HOUR_US)
        stage.send("a", dedup_key="db1")
        stage.send(*(f"p{number}" for number in range(20)), category="others", channel="#paced")
        ann.run()
        stage.send("b", dedup_key="db1")
        ann.run()
        stage.clock.forward(300)
        fails = Retryable("dns_failed", "no name")
        ann.desk.reply = lambda message: fails if message.text.startswith("text of a") else Receipt("C1", "2.000001")
        ann.run()
        assert len(ann.desk.edits) == 1
        stage.clock.now_us += BACKOFF_US
        ann.run()
        assert len(ann.desk.edits) == 2

    def test_an_older_failure_that_comes_after_the_recovery_is_no_repeat(self, stage: Stage, ann: Worker) -> None:
        stage.send("a", dedup_key="db1")
        stage.send("r", dedup_key="db1", status="resolved")
        stage.send("b", dedup_key="db1")
        ann.run()
        stage.send("c", dedup_key="db1", created_at=1.0)
        ann.run()
        assert stage.snapshot().counts.by_reason("dropped") == {("errors", "resolved"): 1}


H1: Final = {"host": "h1"}
H2: Final = {"host": "h2"}


class TestWhoseCount:
    """Repeats are counted for the event that has the key, whatever becomes of others about the same thing."""

    @staticmethod
    def stage_of(redis: Database, rule: str, more: str = "channels: {default: {pace: none}}") -> Stage:
        text = "global: {limits: []}\n"
        return Stage(
            redis, policy_from(f"{text}categories: {{errors: {{{rule}, once: {{per: 1h, then: edit}}}}}}\n{more}")
        )

    @staticmethod
    def silence(stage: Stage, matcher: str = "host=h1") -> None:
        wanted = Wanted(parse_matchers([matcher]), 30 * US, "anna", "x", reports=False)
        stage.silencing.begin(wanted)

    @staticmethod
    def counted(worker: Worker) -> list[str]:
        return [message.text.split(",")[0] for _, _, message in worker.desk.edits]

    @pytest.mark.parametrize(
        ("on_limit", "quiet", "end"),
        [
            ("drop", "", "dropped silenced"),
            ("dead-letter", "", "dead silenced"),
            (
                "drop",
                "quiet: {q: {times: ['10:50-11:50'], zone: UTC, unless: {host: h2}, then: drop}}",
                "dropped quiet",
            ),
        ],
    )
    def test_one_of_the_key_that_ends_unposted_leaves_the_count_of_the_first(
        self, redis: Database, on_limit: str, quiet: str, end: str
    ) -> None:
        stage = self.stage_of(redis, f"limits: [], channel: '#free', on_limit: {on_limit}", quiet)
        ann = stage.worker("ann")
        stage.send("a", dedup_key="db1", labels=H2)
        started = ann.go()
        stage.send("b", "c", dedup_key="db1", labels=H2)
        ann.go()
        if not quiet:
            self.silence(stage)
        stage.send("d", dedup_key="db1", labels=H1)
        ann.run()
        outcome, reason = end.split()
        assert stage.snapshot().counts.by_reason(outcome) == {("errors", reason): 1}
        assert [letter.get("repeats") for letter in stage.letters()] == ([None] if outcome == "dead" else [])
        ann.deliver(started)
        ann.run()
        assert self.counted(ann) == ["text of a\n_x3"]

    def test_after_one_of_the_key_was_silenced_the_message_goes_on_counting(self, redis: Database) -> None:
        stage = self.stage_of(redis, "limits: [], channel: '#free'")
        ann = stage.worker("ann")
        stage.send("a", "b", dedup_key="db1")
        ann.run()
        self.silence(stage)
        stage.send("c", dedup_key="db1", labels=H1)
        ann.run()
        stage.clock.now_us += 40 * US
        stage.send("d", dedup_key="db1")
        ann.run()
        assert self.counted(ann) == ["text of a\n_x2", "text of a\n_x3"]

    def test_one_that_is_dropped_beside_the_first_in_a_line_leaves_its_count(self, redis: Database) -> None:
        stage = self.stage_of(redis, "limits: [], per_label: {host: [1/60s]}, channel: '#free', on_limit: defer")
        ann = stage.worker("ann")
        stage.send("other", labels=H1)
        stage.send("a", dedup_key="db1", labels=H1)
        ann.run()
        stage.send("b", dedup_key="db1", labels=H2)
        stage.send("c", dedup_key="db1", labels=H1)
        ann.run()
        stage.clock.now_us += 60 * US
        ann.run()
        assert ann.desk.posts == ["other", "a"]
        assert self.counted(ann) == ["text of a\n_x2"]

    def test_one_that_is_dropped_beside_a_first_of_lower_priority_leaves_its_count(self, redis: Database) -> None:
        stage = self.stage_of(redis, "limits: [1/60s], channel: '#free', on_limit: defer")
        ann = stage.worker("ann")
        stage.send("other")
        stage.send("a", dedup_key="db1")
        ann.run()
        stage.send("b", dedup_key="db1", priority="high")
        stage.send("c", dedup_key="db1")
        ann.run()
        stage.clock.now_us += 60 * US
        ann.run()
        assert self.counted(ann) == ["text of a\n_x2"]

    def test_the_record_of_a_first_that_a_silence_drops_counts_its_repeats(self, redis: Database) -> None:
        stage = self.stage_of(redis, "limits: [1/60s], channel: '#free', on_limit: defer")
        ann = stage.worker("ann")
        stage.send("other")
        stage.send("a", dedup_key="db1", labels=H1)
        ann.run()
        stage.send("b", "c", dedup_key="db1", priority="high")
        ann.run()
        stage.policy = self.stage_of(redis, "limits: [1/60s], channel: '#free', on_limit: drop").policy
        stage.clock.now_us += 50 * US
        self.silence(stage)
        stage.clock.now_us += 10 * US
        ann.run()
        assert sentence(stage, "a").endswith("No message tells of its 2 repeats.")
        assert stage.snapshot().all_tallies == 0

    def test_the_dead_letter_of_a_first_that_expires_counts_its_repeats(self, redis: Database) -> None:
        stage = self.stage_of(redis, "limits: [1/60s], channel: '#free', on_limit: defer")
        ann = stage.worker("ann")
        stage.send("other")
        stage.send("a", dedup_key="db1", max_age=30)
        ann.run()
        stage.send("b", dedup_key="db1", priority="high")
        ann.run()
        stage.clock.now_us += 30 * US
        ann.run()
        assert [(letter["reason"], letter["repeats"]) for letter in stage.letters()] == [("expired", "1")]
        assert sentence(stage, "a").endswith("No message tells of its 1 repeat.")

    @pytest.mark.parametrize("on_limit", ["drop", "digest"])
    def test_the_record_of_a_first_that_a_limit_ends_after_all_counts_its_repeats(
        self, redis: Database, on_limit: str
    ) -> None:
        stage, bob = self._refused_after_all(redis, on_limit)
        stage.send("z", labels=H1)
        bob.run()
        assert bob.desk.posts == []
        assert sentence(stage, "a").endswith("No message tells of its 2 repeats.")
        assert not stage.redis.keys(stage.keys.tally("repeat:*"))

    def test_a_refusal_in_another_form_than_ours_keeps_no_repeats_from_being_counted(self, redis: Database) -> None:
        stage, bob = self._refused_after_all(redis, "digest")
        (digest,) = stage.redis.keys(stage.keys.tally("digest:*"))
        stage.redis.hset(digest, "why", '["digested","c","limit:label",["label:c:host=h1","1/1h",1],[]]')
        stage.send("z", labels=H1)
        bob.run()
        assert sentence(stage, "a").endswith("No message tells of its 2 repeats.")

    def _refused_after_all(self, redis: Database, on_limit: str) -> tuple[Stage, Worker]:
        """``a`` had its key and two repeats while it stood in line, and then a limit refused it."""
        rule = "limits: [9/2m], per_label: {host: [1/1h]}, channel: '#free', on_limit: "
        stage = self.stage_of(redis, f"{rule}defer")
        ann, bob = stage.worker("ann"), stage.worker("bob")
        stage.send("y", labels=H1)
        stage.send("a", dedup_key="db1", labels=H1)
        ann.run()
        stage.send("b", "c", dedup_key="db1", labels=H1, priority="high")
        ann.run()
        stage.policy = self.stage_of(redis, f"{rule}{on_limit}").policy
        bob.run()
        return stage, bob

    def test_the_dead_letter_of_a_first_that_a_silence_defers_counts_its_repeats(self, redis: Database) -> None:
        stage = self.stage_of(redis, "limits: [1/60s], channel: '#free', on_limit: defer")
        ann = stage.worker("ann")
        stage.send("other")
        stage.send("a", dedup_key="db1", labels=H1, max_age=65)
        ann.run()
        stage.send("b", "c", dedup_key="db1", priority="high")
        ann.run()
        stage.clock.now_us += 50 * US
        self.silence(stage)
        stage.clock.now_us += 10 * US
        ann.run()
        stage.clock.now_us += 10 * US
        ann.run()
        assert [(letter["reason"], letter["repeats"]) for letter in stage.letters()] == [("expired", "2")]
        assert stage.snapshot().all_tallies == 0

    def test_an_edit_that_ends_after_the_next_message_leaves_no_tally_for_ever(self, redis: Database) -> None:
        stage = self.stage_of(redis, "limits: [], channel: '#free'")
        ann, bob = stage.worker("ann"), stage.worker("bob")
        posts = count(1)
        ann.desk.reply = lambda message: Receipt(message.channel, f"{next(posts)}.000001")
        stage.send("a", dedup_key="db1")
        ann.run()
        stage.clock.now_us += HOUR_US - 30 * US
        stage.send("b", dedup_key="db1")
        ann.run()
        stage.clock.now_us += 20 * US
        stage.send("c", dedup_key="db1")
        ann.run()
        stage.clock.now_us += 10 * US
        (edit,) = bob.go()
        stage.send("d", dedup_key="db1")
        ann.run()
        bob.deliver([edit])
        stage.clock.forward(30)
        ann.run()
        assert ann.desk.posts == ["a", "d"]
        assert [stage.redis.ttl(tally) for tally in stage.redis.keys(stage.keys.tally("*"))] == [7200]

    def test_a_message_that_another_one_replaces_during_an_edit_is_edited_again_half_a_minute_later(
        self, redis: Database
    ) -> None:
        stage = self.stage_of(redis, "limits: [], channel: '#free'")
        ann, bob = stage.worker("ann"), stage.worker("bob")
        posts = count(1)
        ann.desk.reply = lambda message: Receipt(message.channel, f"{next(posts)}.000001")
        stage.send("a", dedup_key="db1")
        ann.run()
        stage.clock.now_us += HOUR_US - 10 * US
        stage.send("b", dedup_key="db1")
        bob.go()
        (edit,) = bob.go()
        stage.clock.now_us += 10 * US
        stage.send("c", dedup_key="db1")
        ann.run()
        bob.deliver([edit])
        stage.clock.now_us += 30 * US - 1
        ann.run()
        assert (ann.desk.posts, self.counted(ann), self.counted(bob)) == (["a", "c"], [], ["text of a\n_x2"])
        stage.clock.now_us += 1
        ann.run()
        assert self.counted(ann) == ["text of a\n_x2"]
        assert stage.snapshot().all_tallies == 0

    @pytest.mark.parametrize("once", ["{per: 1h}", "none", "{by: [host], per: 1h, then: edit}"])
    def test_limits_that_change_while_the_first_waits_leave_no_count_untold(self, redis: Database, once: str) -> None:
        stage = self.stage_of(redis, "limits: [], channel: '#paced'", "channels: {'#paced': {pace: 1/10s}}")
        ann = stage.worker("ann")
        stage.send("before", dedup_key="db1", labels=H1)
        ann.run()
        stage.clock.now_us += HOUR_US
        stage.send("other")
        ann.run()
        stage.send("a", dedup_key="db1", labels=H1)
        ann.run()
        stage.send("b", "c", dedup_key="db1", labels=H1)
        ann.run()
        text = f"global: {{limits: []}}\ncategories: {{errors: {{limits: [], channel: '#paced', once: {once}}}}}\n"
        stage.policy = policy_from(text + "channels: {'#paced': {pace: 1/10s}}")
        stage.clock.now_us += 10 * US
        ann.run()
        assert self.counted(ann) == ["text of a\n_x3"]
        assert stage.snapshot().all_tallies == 0

    def test_limits_that_change_while_a_silence_holds_up_the_first_leave_no_count_untold(self, redis: Database) -> None:
        rule = "limits: [1/60s], channel: '#free', on_limit: defer"
        stage = self.stage_of(redis, rule)
        ann = stage.worker("ann")
        stage.send("other")
        stage.send("a", dedup_key="db1", labels=H1)
        ann.run()
        stage.send("b", dedup_key="db1", priority="high")
        ann.run()
        stage.clock.now_us += 50 * US
        self.silence(stage)
        stage.clock.now_us += 10 * US
        ann.run()
        stage.policy = policy_from(f"categories: {{errors: {{{rule}}}}}")
        stage.clock.now_us += 60 * US
        ann.run()
        assert self.counted(ann) == ["text of a\n_x2"]

    def test_where_such_a_message_cannot_be_edited_the_record_of_the_first_counts_its_repeats(
        self, redis: Database
    ) -> None:
        stage = self.stage_of(redis, "limits: [], channel: '#free'")
        ann = stage.worker("ann")
        stage.send("a", once_key="db1")
        started = ann.go()
        stage.send("b", once_key="db1")
        ann.go()
        stage.policy = policy_from("categories: {errors: {limits: [], channel: '#free'}}")
        ann.deliver(started)
        ann.run()
        assert sentence(stage, "a") == "Sent to #free at 10:53:20. No message tells of its 1 repeat."
        assert stage.snapshot().all_tallies == 0


class TestPrecheck:
    """``take`` drops repeats whose jobs say what they are about."""

    TEXT: Final = "global: {limits: []}\ndefaults: {limits: [], channel: '#free', once: {per: 1h}}\n"

    @pytest.fixture
    def ann(self, stage: Stage) -> Worker:
        ann = stage.worker("ann")
        ann.take()
        ann.follow(stage.put_in_force("channels: {'#free': {pace: none}}\n" + self.TEXT))
        stage.send("a", dedup_key="db1")
        ann.run()
        stage.send("b", dedup_key="db1")
        ann.run()
        return ann

    def test_a_repeat_is_dropped_as_it_is_taken(self, stage: Stage, ann: Worker) -> None:
        stage.send("c", dedup_key="db1")
        stage.send("d", once_key="db1", dedup_key="other")
        assert ann.taken() == []
        assert [each.names for each in ann.prefiltered] == [["c", "d"]]
        assert repeats(stage) == 3
        assert sentence(stage, "c") == sentence(stage, "b").replace("of b", "of a")

    def test_what_is_no_repeat_is_handed_out(self, stage: Stage, ann: Worker) -> None:
        stage.send("c", dedup_key="db2")
        stage.send("d")
        stage.send("e", dedup_key="db1", status="resolved")
        assert ann.taken() == ["c", "d", "e"]

    def test_after_the_window_it_is_handed_out(self, stage: Stage, ann: Worker) -> None:
        stage.clock.now_us += HOUR_US - 1
        ann.run()
        stage.send("c", dedup_key="db1")
        ann.run()
        stage.clock.now_us += 1
        stage.send("d", dedup_key="db1")
        ann.run()
        assert ann.desk.posts == ["a", "d"]

    def test_a_recovery_over_a_limit_is_not_dropped_as_it_is_taken(self, stage: Stage, ann: Worker) -> None:
        text = "channels: {'#free': {pace: none}}\nglobal: {limits: [1/1h]}\ndefaults: {limits: [], channel: '#free'}\n"
        ann.follow(stage.put_in_force(text))
        stage.send("c", "d", dedup_key="db3")
        ann.run()
        stage.send("e", dedup_key="db3")
        stage.send("r", dedup_key="db1", status="resolved")
        assert ann.taken() == ["r"]
