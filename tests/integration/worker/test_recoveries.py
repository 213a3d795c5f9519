"""Recoveries: what an event does that tells that a failure is over, by what is still known of the failure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any, Final

import pytest
from redis.exceptions import ResponseError

from dispatcher.core.event import Event, Status, new_event_id
from dispatcher.core.explain import clock_of, ended
from dispatcher.core.limits import Limit
from dispatcher.core.once import Once, Then
from dispatcher.core.pipeline import POST_S, Capacity, Dispatcher
from dispatcher.core.policy import CategoryRule, OnLimit, OnResolved, WhileWaiting
from dispatcher.core.posts import Ambiguous, Paused, PostResult, RateLimitedBySlack, Receipt, Rejected, Retryable
from dispatcher.core.quiet import Quiet, QuietThen, Times
from dispatcher.core.recovery import recovery_of
from dispatcher.core.rendering import MAX_TEXT
from dispatcher.core.states import GRACE_US, Candidate, Leased, Posted, Recovered, Undecodable, Unposted
from dispatcher.core.transitions import MAX_ATTEMPTS
from dispatcher.core.units import US
from dispatcher.store.dead_letters import Filter
from dispatcher.store.parked_events import ParkedFilter
from tests.support.doubles import START_US
from tests.support.quiet_stage import FREE, QuietStage
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, UNPACED, Stage, Worker, policy_of

pytestmark = pytest.mark.server

HOUR_US: Final = 3_600 * US


@pytest.fixture
def stage(redis: Database) -> Stage:
    """``errors`` drop over 2 in a minute, ``later`` wait; of ``once`` and ``labels`` one is posted an hour."""
    policy = policy_of("", "2/1m")
    rule = CategoryRule((Limit.parse("2/1m"),), UNPACED, OnLimit.DROP, 24 * HOUR_US)
    rules = {
        "errors": rule,
        "later": replace(rule, on_limit=OnLimit.DEFER),
        "told": replace(rule, on_limit=OnLimit.DIGEST),
        "paced": replace(rule, channel="#paced", limits=()),
        "slow": replace(rule, channel="#slow", limits=()),
        "once": replace(rule, limits=(), once=Once("dedup_key", HOUR_US)),
        "labels": replace(rule, limits=(), once=Once(("host",), HOUR_US)),
        "counted": replace(rule, limits=(), once=Once("dedup_key", HOUR_US, Then.EDIT)),
        "slowly": replace(rule, channel="#slow", limits=(), once=Once("dedup_key", HOUR_US, Then.EDIT)),
        "places": replace(rule, limits=(), once=Once(("host",), HOUR_US, Then.EDIT)),
        "silent": replace(rule, resolved=OnResolved.IGNORE),
        "stubborn": replace(rule, on_limit=OnLimit.DEFER, resolved_while_waiting=WhileWaiting.POST),
    }
    channels = {UNPACED: None, "#slow": Limit.parse("1/10m")}
    return Stage(redis, replace(policy, categories=rules, channels=channels))


@pytest.fixture(autouse=True)
def slack(ann: Worker) -> Iterator[None]:
    """Slack names each message by a number of its own."""
    numbers = iter(range(1, 10_000))
    ann.desk.reply = lambda message: Receipt(message.channel, f"{next(numbers)}.0")
    return iter(())


def fire(
    stage: Stage,
    *ids: str,
    category: str = "errors",
    key: str = "db1",
    **fields: Any,  # noqa: ANN401 - those of an event
) -> None:
    stage.send(*ids, category=category, dedup_key=key, **fields)


def resolve(
    stage: Stage,
    id_: str,
    category: str = "errors",
    key: str = "db1",
    **fields: Any,  # noqa: ANN401 - those of an event
) -> None:
    stage.send(id_, category=category, dedup_key=key, status="resolved", **fields)


def deliver_with(ann: Worker, answer: PostResult) -> None:
    """Deliver what is due, with the same answer of Slack to each call; the answer before holds afterwards."""
    reply = ann.desk.reply
    ann.desk.reply = lambda _: answer
    ann.deliver(ann.go())
    ann.desk.reply = reply


def cancel(stage: Stage, id_: str) -> None:
    """An operator cancels an event that waits."""
    stage.parked_events.cancel([each for each in stage.parked_events.find(ParkedFilter()) if each.id == id_], "ed")


def ends(stage: Stage) -> dict[str, str]:
    """How each event ended, or where it is: its outcome and its reason."""
    told = {id_: stage.explanations.explain(id_) for id_ in ("f", "g", "h", "r", "s")}
    return {id_: f"{each.outcome} {each.reason}" for id_, each in told.items() if each.outcome is not None}


DAY_US: Final = 24 * HOUR_US


def test_a_failure_after_a_step_back_of_the_clock_is_posted_that_comes_after_a_recovery_from_before(
    stage: Stage, ann: Worker
) -> None:
    fire(stage, "f")
    ann.run()
    resolve(stage, "r")
    ann.run()
    ann.notice_step(-DAY_US)
    stage.clock.forward(60)
    fire(stage, "g", category="errors")
    ann.run()
    assert ends(stage) == {"f": "sent ok", "r": "digested resolved", "g": "sent ok"}


def test_a_failure_from_before_a_step_back_of_the_clock_is_over_with_the_recovery_after_it(
    stage: Stage, ann: Worker
) -> None:
    fire(stage, "f", "g", "h", category="later")
    ann.run()
    ann.notice_step(-DAY_US)
    stage.clock.forward(60)
    resolve(stage, "r", category="later")
    ann.run()
    assert ends(stage) == {"f": "sent ok", "g": "sent ok", "h": "dropped resolved", "r": "digested resolved"}
    assert [ts for _, ts, _ in ann.desk.edits] == ["2.0"]


def test_a_recovery_waits_for_no_edit_from_before_a_step_back_of_the_clock(stage: Stage, ann: Worker) -> None:
    fire(stage, "f", category="counted")
    ann.run()
    stage.clock.forward(31)
    fire(stage, "g", category="counted")
    ann.run()
    ann.notice_step(-DAY_US)
    resolve(stage, "r", category="counted")
    ann.run()
    assert [message.text.partition("\n")[0] for _, _, message in ann.desk.edits] == [
        "text of f",
        ":white_check_mark: ~text of f~",
    ]


def test_a_posted_message_is_edited(stage: Stage, ann: Worker) -> None:
    fire(stage, "f")
    ann.run()
    stage.clock.now_us += 14 * 60 * US
    resolve(stage, "r")
    ann.run()
    ((channel, ts, message),) = ann.desk.edits
    assert (channel, ts) == (UNPACED, "1.0")
    assert message.text == ":white_check_mark: ~text of f~\nafter 14 min"
    assert ends(stage) == {"f": "sent ok", "r": "digested resolved"}


@pytest.mark.parametrize(
    ("span_s", "said"),
    [
        (59, "59 s"),
        (119, "1 min 59 s"),
        (600 + 59, "10 min"),
        (3_600, "1 h"),
        (2 * 3_600 - 1, "1 h 59 min"),
        (36_000 + 3_599, "10 h"),
    ],
)
def test_a_struck_through_message_says_how_long_the_failure_lasted(
    stage: Stage, ann: Worker, span_s: int, said: str
) -> None:
    fire(stage, "f")
    ann.run()
    stage.clock.now_us += span_s * US
    resolve(stage, "r")
    ann.run()
    assert ann.desk.edits[0][2].text.endswith(f"\nafter {said}")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(4_000 * "x", id="one line"),
        pytest.param(1_000 * "two\n", id="lines"),
        pytest.param(1_950 * "1\n", id="lines of one character"),
        pytest.param(1_000 * "&amp;", id="entities"),
        pytest.param(40 * f"{97 * 'x'}\n\n", id="empty lines"),
    ],
)
def test_a_long_message_is_cut_and_then_struck_through(stage: Stage, ann: Worker, text: str) -> None:
    stage.intake.enqueue([("f", Event("errors", text, id="f", dedup_key="db1", mrkdwn=True))])
    ann.run()
    resolve(stage, "r")
    ann.run()
    ((_, _, message),) = ann.desk.edits
    assert len(message.text) <= MAX_TEXT
    (*struck, ending) = message.text.removeprefix(":white_check_mark: ").splitlines()
    assert ending == "after 1 s"
    assert [line for line in struck if line and not (line[0] == line[-1] == "~" and len(line) > 2)] == []
    assert struck[-1].endswith("… [cut]~")


@pytest.mark.parametrize(
    ("lasted_us", "said"), [(0, "1 s"), (504_000, "1 s"), (US, "1 s"), (59_900_000, "59 s"), (3 * HOUR_US, "3 h")]
)
def test_how_long_a_failure_lasted_is_said_in_whole_units(stage: Stage, ann: Worker, lasted_us: int, said: str) -> None:
    fire(stage, "f")
    ann.run()
    stage.clock.now_us += lasted_us
    resolve(stage, "r")
    ann.run()
    assert ann.desk.edits[0][2].text.endswith(f"\nafter {said}")


def test_the_newest_message_is_edited(stage: Stage, ann: Worker) -> None:
    fire(stage, "f", "g")
    ann.run()
    resolve(stage, "r")
    ann.run()
    assert [ts for _, ts, _ in ann.desk.edits] == ["2.0"]


def test_a_recovery_that_waits_edits_the_message_from_before_it_though_a_newer_one_is_posted(
    stage: Stage, ann: Worker
) -> None:
    fire(stage, "f", "g", category="counted")
    ann.run()
    resolve(stage, "r", "counted")
    ann.run()
    assert len(ann.desk.edits) == 1  # g is counted in the message; so soon after it there is no other edit
    stage.clock.now_us += US
    fire(stage, "h", category="counted")
    ann.run()
    stage.clock.now_us += 30 * US
    ann.run()
    assert [ts for _, ts, _ in ann.desk.edits] == ["1.0", "1.0"]
    assert ann.desk.edits[1][2].text.startswith(":white_check_mark: ~text of f")
    assert ends(stage) == {"f": "sent ok", "g": "digested repeat", "h": "sent ok", "r": "digested resolved"}


def test_an_edited_message_is_not_edited_again(stage: Stage, ann: Worker) -> None:
    fire(stage, "f")
    ann.run()
    resolve(stage, "r")
    ann.run()
    resolve(stage, "s")
    ann.run()
    assert len(ann.desk.edits) == 1
    assert ends(stage)["s"] == "dropped unposted"


def test_what_waits_for_room_is_never_posted(stage: Stage, ann: Worker) -> None:
    stage.send("x", "y", category="later")
    fire(stage, "f", category="later")
    ann.run()
    resolve(stage, "r", category="later")
    ann.run()
    stage.clock.now_us += 60 * US
    ann.run()
    assert ann.desk.posts == ["x", "y"]
    assert ends(stage) == {"f": "dropped resolved", "r": "dropped unposted"}
    assert ann.told.ends == [Recovered("f", "later", START_US)]


@pytest.mark.parametrize("name", ["disk db1", "id-db1"])
def test_what_a_recovery_ends_has_the_name_that_its_producer_gave_it(stage: Stage, ann: Worker, name: str) -> None:
    stage.send("x", "y", category="later")
    fire(stage, name, category="later")
    ann.run()
    stage.clock.now_us += US
    resolve(stage, "r", category="later")
    ann.run()
    assert ann.told.ends == [Recovered(name, "later", START_US)]


def test_what_waits_for_its_channel_is_never_posted_and_gives_its_slots_back(stage: Stage, ann: Worker) -> None:
    stage.send("x", category="paced")
    fire(stage, "f", category="paced")
    started = ann.go()
    resolve(stage, "r", category="paced")
    ann.go()
    ann.deliver(started)
    ann.run()
    assert ann.desk.posts == ["x"]
    assert ends(stage) == {"f": "dropped resolved", "r": "dropped unposted"}
    assert stage.line("#paced") == []


def test_the_only_suppressed_one_is_never_posted_and_leaves_no_digest(stage: Stage, ann: Worker) -> None:
    stage.send("x", category="told")
    fire(stage, "f", category="told")
    ann.run()
    assert stage.snapshot().all_tallies == 1
    resolve(stage, "r", category="told")
    ann.run()
    assert stage.snapshot().all_tallies == 0
    stage.clock.now_us += HOUR_US
    ann.run()
    assert "f" not in ann.desk.posts
    assert ends(stage) == {"f": "dropped resolved", "r": "dropped unposted"}


def test_what_is_scheduled_is_never_posted(stage: Stage, ann: Worker) -> None:
    fire(stage, "f", delay=60)
    ann.run()
    resolve(stage, "r")
    ann.run()
    stage.clock.now_us += HOUR_US
    ann.run()
    assert ann.desk.posts == []
    assert ends(stage) == {"f": "dropped resolved", "r": "dropped unposted"}


def test_where_it_says_so_what_waits_is_posted_and_then_edited(stage: Stage, ann: Worker) -> None:
    stage.send("x", "y", category="stubborn")
    fire(stage, "f", category="stubborn")
    ann.run()
    resolve(stage, "r", category="stubborn")
    ann.run()
    stage.clock.now_us += 60 * US
    ann.run()
    assert ann.desk.posts == ["x", "y", "f"]
    assert ends(stage) == {"f": "sent ok", "r": "digested resolved"}


def test_a_recovery_waits_for_the_end_of_a_post_in_flight(stage: Stage, ann: Worker) -> None:
    fire(stage, "f")
    started = ann.go()
    resolve(stage, "r")
    ann.go()
    assert ann.desk.edits == []
    ann.deliver(started)
    ann.run()
    assert len(ann.desk.edits) == 1


def test_a_recovery_after_a_failure_of_the_same_batch_edits_its_message(stage: Stage, ann: Worker) -> None:
    fire(stage, "f")
    resolve(stage, "r")
    fire(stage, "g")
    ann.run()
    assert ann.desk.posts == ["f", "g"]
    assert ends(stage) == {"f": "sent ok", "r": "digested resolved", "g": "sent ok"}


def test_a_recovery_that_nothing_is_known_of_is_dropped(stage: Stage, ann: Worker) -> None:
    resolve(stage, "r")
    ann.run()
    assert ends(stage) == {"r": "dropped unposted"}
    assert ann.desk.posts == []


def test_a_second_recovery_says_that_no_message_is_known_that_says_that_the_failure_goes_on(
    stage: Stage, ann: Worker
) -> None:
    fire(stage, "f")
    ann.run()
    resolve(stage, "r")
    ann.run()
    resolve(stage, "s")
    ann.run()
    assert ends(stage) == {"f": "sent ok", "r": "digested resolved", "s": "dropped unposted"}
    assert stage.explanations.explain("s").sentence.endswith(
        ": a recovery that has nothing to tell; no message is known that says that the failure goes on."
    )


def test_of_a_recovery_that_expires_it_is_told_what_it_waited_for(stage: Stage, ann: Worker) -> None:
    fire(stage, "f", category="once")
    ann.go()
    resolve(stage, "r", "once", max_age=60)
    ann.run()
    stage.clock.now_us += 60 * US
    ann.run()
    assert ends(stage)["r"] == "dead expired"
    assert stage.explanations.explain("r").detail == (
        "waited longer than its max_age, for a post about the failure, or to edit its message"
    )


def test_of_a_recovery_that_expires_in_the_line_of_edits_no_channel_is_named(stage: Stage, ann: Worker) -> None:
    fire(stage, "f")
    ann.run()
    resolve(stage, "r", max_age=60)
    (edit,) = ann.go()
    assert ann.answer(edit, RateLimitedBySlack(3_600 * US, "ratelimited", ""))
    stage.clock.now_us += 60 * US
    ann.run()
    assert ends(stage)["r"] == "dead expired"
    assert stage.explanations.explain("r").detail == "waited longer than its max_age, to edit the message"


def test_after_a_failure_that_was_not_posted_there_is_nothing_to_tell(stage: Stage, ann: Worker) -> None:
    ann.desk.reply = lambda _: Rejected("channel_not_found", "")
    fire(stage, "f")
    ann.run()
    resolve(stage, "r")
    ann.run()
    assert ends(stage) == {"f": "dead rejected", "r": "dropped unposted"}


@pytest.mark.parametrize("category", ["errors", "later", "once"])
def test_an_older_failure_that_arrives_after_the_recovery_is_dropped(stage: Stage, ann: Worker, category: str) -> None:
    now_s = stage.clock.now_us / US
    if category == "later":
        stage.send("x", "y", category=category)
    resolve(stage, "r", category, created_at=now_s)
    ann.run()
    posts = list(ann.desk.posts)
    fire(stage, "f", category=category, created_at=now_s - 5)
    ann.run()
    assert (ann.desk.posts, ann.told.losses) == (posts, [])
    assert ends(stage)["f"] == "dropped resolved"
    stage.clock.now_us += 60 * US
    fire(stage, "g", category=category, created_at=now_s + 1)
    ann.run()
    assert ends(stage)["g"] == "sent ok"


def test_a_late_recovery_of_an_older_failure_leaves_a_newer_one_alone(stage: Stage, ann: Worker) -> None:
    now_s = stage.clock.now_us / US
    fire(stage, "f", category="once", created_at=now_s)
    ann.run()
    resolve(stage, "r", "once", created_at=now_s - 5)
    fire(stage, "g", category="once")
    ann.run()
    assert ann.desk.edits == []
    assert ends(stage) == {"f": "sent ok", "r": "dropped unposted", "g": "dropped repeat"}


@pytest.mark.parametrize("category", ["once", "labels"])
def test_after_a_recovery_a_new_failure_is_posted_at_once(stage: Stage, ann: Worker, category: str) -> None:
    fire(stage, "f", "h", category=category, labels={"host": "db1"})
    ann.run()
    resolve(stage, "r", category)
    ann.run()
    fire(stage, "g", category=category, labels={"host": "db1"})
    ann.run()
    assert ann.desk.posts == ["f", "g"]
    assert ends(stage)["h"] == "dropped repeat"


def test_where_messages_cannot_be_edited_a_message_says_it(stage: Stage, ann: Worker) -> None:
    ann.desk.can_update = False
    ann.desk.reply = lambda message: Receipt(message.channel, None)
    fire(stage, "f")
    ann.run()
    resolve(stage, "r")
    resolve(stage, "s")
    ann.run()
    assert ann.desk.posts == ["f", "r"]
    assert ends(stage) == {"f": "sent ok", "r": "sent ok", "s": "dropped unposted"}


def test_where_messages_cannot_be_edited_and_none_is_wanted_nothing_says_it(stage: Stage, ann: Worker) -> None:
    ann.desk.can_update = False
    ann.desk.reply = lambda message: Receipt(message.channel, None)
    fire(stage, "f", category="silent")
    ann.run()
    resolve(stage, "r", "silent")
    ann.run()
    assert ends(stage) == {"f": "sent ok", "r": "dropped unposted"}


@pytest.mark.parametrize("refusal", [Rejected("edit_window_closed", ""), Paused("unknown_method", "")], ids=str)
def test_where_slack_refuses_the_edit_a_message_says_it(stage: Stage, ann: Worker, refusal: PostResult) -> None:
    fire(stage, "f")
    ann.run()
    resolve(stage, "r")
    deliver_with(ann, refusal)
    ann.run()
    assert ann.desk.posts == ["f", "r"]
    assert ends(stage)["r"] == "sent ok"


@pytest.mark.parametrize("held_by", ["limit", "silence", "quiet hours"])
def test_where_slack_refuses_the_edit_the_message_that_waits_in_a_line_goes_to_its_own_channel(
    stage: Stage, ann: Worker, held_by: str
) -> None:
    fire(stage, "f", category="later")
    if held_by == "limit":
        stage.send("x", category="later")
    ann.run()
    resolve(stage, "r", "later")
    deliver_with(ann, Rejected("edit_window_closed", ""))
    if held_by == "silence":
        stage.silencing.mute("later", 60 * US, "ops@here", "maintenance")
    elif held_by == "quiet hours":
        hours = Quiet("night", (Times(10 * 60, 10 * 60 + 54),), "UTC", UTC, QuietThen.DEFER)
        stage.policy = replace(stage.policy, quiet=(hours,))
    ann.run()
    assert "r" not in ann.desk.posts
    stage.clock.now_us += 60 * US
    ann.run()
    assert [message.channel for message in ann.desk.messages if message.event_id == "r"] == [UNPACED]
    assert ends(stage)["r"] == "sent ok"


def test_a_recovery_in_a_line_that_waited_for_its_edit_before_can_be_silenced(stage: Stage, ann: Worker) -> None:
    fire(stage, "f", category="later")
    stage.send("x", category="later")
    ann.run()
    resolve(stage, "r", "later")
    (edit,) = ann.go()
    assert ann.answer(edit, RateLimitedBySlack(5 * US, "ratelimited", ""))
    ann.desk.can_update = False
    stage.clock.forward(5)
    ann.run()
    assert ends(stage)["r"] == "parked limit:category"
    stage.silencing.mute("later", HOUR_US, "ops@here", "maintenance")
    stage.clock.forward(60)
    ann.run()
    assert ends(stage)["r"] == "parked silenced"


def test_a_refused_edit_of_an_older_message_leaves_the_newest_one_alone(stage: Stage, ann: Worker) -> None:
    fire(stage, "f", "g", category="counted")
    ann.run()
    resolve(stage, "r", "counted")
    ann.run()
    stage.clock.now_us += US
    fire(stage, "h", category="counted")
    ann.run()
    stage.clock.now_us += 30 * US
    deliver_with(ann, Rejected("message_not_found", ""))
    ann.run()
    assert ann.desk.posts == ["f", "h", "r"]
    resolve(stage, "s", "counted")
    ann.run()
    assert (ends(stage)["r"], ends(stage)["s"]) == ("sent ok", "digested resolved")


def test_a_second_recovery_does_not_end_one_that_waits_for_room(stage: Stage, ann: Worker) -> None:
    ann.desk.can_update = False
    ann.desk.reply = lambda message: Receipt(message.channel, None)
    fire(stage, "f", category="later")
    ann.run()
    stage.send("x", "y", category="later")
    resolve(stage, "r", "later")
    ann.run()
    resolve(stage, "s", "later")
    ann.run()
    assert ends(stage)["r"].startswith("parked")


@pytest.mark.parametrize("is_edit_first", [True, False])
def test_where_edits_and_one_channel_cool_down_other_channels_are_posted_to(
    stage: Stage, ann: Worker, *, is_edit_first: bool
) -> None:
    fire(stage, "f")
    ann.run()
    post = ann.desk.reply
    ann.desk.reply = lambda _: RateLimitedBySlack(600 * US, "ratelimited", "")
    for is_edit in (is_edit_first, not is_edit_first):
        if is_edit:
            resolve(stage, "r")
        else:
            fire(stage, "g", category="slow")
        ann.deliver(ann.go())
    assert set(stage.snapshot().cooldowns) == {"edits", "#slow"}
    ann.desk.reply = post
    fire(stage, "h")
    ann.run()
    assert ends(stage) == {"f": "sent ok", "g": "parked cooldown", "h": "sent ok", "r": "parked cooldown"}


def test_a_429_to_an_edit_prolongs_no_cool_down_of_the_workspace(stage: Stage, ann: Worker) -> None:
    fire(stage, "f")
    ann.run()
    resolve(stage, "r")
    fire(stage, "g", category="slow")
    stage.send("h", category="paced")
    started = {each.candidate.leased.id: each for each in ann.go()}
    for id_, span_s in (("g", 60), ("h", 60), ("r", 3_600)):
        assert ann.answer(started[id_], RateLimitedBySlack(span_s * US, "ratelimited", ""))
    stage.clock.forward(61)
    fire(stage, "s")
    ann.run()
    assert ends(stage) == {"f": "sent ok", "g": "sent ok", "h": "sent ok", "r": "parked cooldown", "s": "sent ok"}


def test_an_edit_that_tries_for_the_workspace_and_gets_a_429_lets_the_next_event_try(stage: Stage, ann: Worker) -> None:
    fire(stage, "f")
    ann.run()
    fire(stage, "g", category="slow")
    stage.send("h", category="paced")
    for each in ann.go():
        assert ann.answer(each, RateLimitedBySlack(60 * US, "ratelimited", ""))
    stage.clock.forward(61)
    resolve(stage, "r")
    (edit,) = ann.go(due=0)
    assert ann.answer(edit, RateLimitedBySlack(3_600 * US, "ratelimited", ""))
    ann.run()
    assert ends(stage) == {"f": "sent ok", "g": "sent ok", "h": "sent ok", "r": "parked cooldown"}


def test_an_edit_that_was_lost_is_made_again_also_while_history_scans_cool_down(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    fire(stage, "f")
    ann.run()
    resolve(stage, "r")
    assert ann.go()
    stage.clock.now_us += 60 * US
    bob.renew()
    stage.clock.now_us += 5 * US
    stage.redis.zadd(stage.keys.cooldowns, {"conversations.history": stage.clock.now_us + HOUR_US})
    stage.redis.expire(stage.keys.cooldowns, 7_200)
    bob.desk.reply = ann.desk.reply
    bob.run()
    assert len(bob.desk.edits) == 1
    assert ends(stage)["r"] == "digested resolved"


def test_an_edit_that_was_lost_is_made_again_though_there_is_a_newer_message(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    fire(stage, "f")
    ann.run()
    resolve(stage, "r")
    ann.go()
    fire(stage, "g")
    bob.run()
    ann.give_back()
    bob.run()
    assert [ts for _, ts, _ in bob.desk.edits] == ["1.0"]
    assert ends(stage)["r"] == "digested resolved"


def test_an_edit_without_a_clear_answer_is_tried_again(stage: Stage, ann: Worker) -> None:
    fire(stage, "f")
    ann.run()
    resolve(stage, "r")
    deliver_with(ann, Retryable("http_500", "", uses_attempt=True, reached=True))
    stage.clock.now_us += 60 * US
    ann.run()
    assert ends(stage)["r"] == "digested resolved"


def test_edits_without_a_clear_answer_hold_up_other_edits_alone(stage: Stage, ann: Worker) -> None:
    keys = [f"k{number}" for number in range(6)]
    for key in keys:
        fire(stage, f"f-{key}", category="once", key=key)
    ann.run()
    post = ann.desk.reply
    ann.desk.reply = lambda _: Ambiguous("http_502", "no answer of Slack's own")
    for key in keys:
        resolve(stage, f"r-{key}", "once", key)
    for _ in range(len(keys)):
        ann.run()
        assert (stage.snapshot().pause, set(stage.snapshot().cooldowns) - {"edits"}) == (None, set())
        stage.clock.now_us += 31 * US
    assert len(ann.desk.edits) > len(keys)
    ann.desk.reply = post
    fire(stage, "f")
    ann.run()
    assert ends(stage) == {"f": "sent ok"}
    assert stage.snapshot().counts.by_reason("digested") == {("once", "resolved"): len(keys)}


def test_the_dead_letter_of_an_edit_that_fails_for_good_names_the_channel_of_the_message(
    stage: Stage, ann: Worker
) -> None:
    fire(stage, "f")
    ann.run()
    ann.desk.reply = lambda _: Retryable("http_500", "", uses_attempt=True, reached=True)
    resolve(stage, "r")
    for _ in range(MAX_ATTEMPTS):
        ann.deliver(ann.go())
        stage.clock.now_us += 600 * US
    assert [(letter["reason"], letter["channel"]) for letter in stage.letters()] == [("exhausted", UNPACED)]


def test_edits_keep_slacks_pace_and_delay_no_post(stage: Stage, ann: Worker) -> None:
    keys = [f"k{number}" for number in range(60)]
    for key in keys:
        fire(stage, f"f-{key}", category="once", key=key)
    ann.run()
    for key in keys:
        resolve(stage, f"r-{key}", "once", key)
    ann.run()
    assert len(ann.desk.edits) == 40
    stage.send("x")
    ann.run()
    assert ann.desk.posts[-1] == "x"
    stage.clock.now_us += 60 * US
    ann.run()
    assert len(ann.desk.edits) == 60


def use_up_the_edits_of_a_minute(stage: Stage, ann: Worker) -> None:
    keys = [f"k{number}" for number in range(40)]
    for key in keys:
        fire(stage, f"f-{key}", category="once", key=key)
    ann.run()
    for key in keys:
        resolve(stage, f"r-{key}", "once", key)
    ann.run()
    assert len(ann.desk.edits) == 40


def let_two_wait_for_an_edit(stage: Stage, ann: Worker, category: str) -> None:
    """``r`` tells that ``f`` of this category is over, and ``s`` that ``g`` is; the edits of a minute are used up."""
    fire(stage, "f", category=category)
    fire(stage, "g", key="db2")
    ann.run()
    use_up_the_edits_of_a_minute(stage, ann)
    resolve(stage, "r", category)
    resolve(stage, "s", key="db2")
    ann.run()
    assert stage.line("edits") == ["r", "s"]


def test_an_edit_that_waits_for_its_channel_holds_up_no_other_edit(stage: Stage, ann: Worker) -> None:
    let_two_wait_for_an_edit(stage, ann, "slow")
    stage.send("x", category="slow")
    ann.run()
    stage.clock.now_us += 60 * US
    ann.run()
    assert [message.text.splitlines()[0] for _, _, message in ann.desk.edits[40:]] == [":white_check_mark: ~text of g~"]


def test_recoveries_that_waited_for_an_edit_are_all_posted_when_nothing_can_be_edited_any_more(
    stage: Stage, ann: Worker, bob: Worker
) -> None:
    let_two_wait_for_an_edit(stage, ann, "errors")
    ann.give_back()
    bob.desk.can_update = False
    stage.clock.now_us += 60 * US
    bob.run()
    assert bob.desk.posts == ["r", "s"]


def test_the_next_failure_is_posted_though_a_post_of_the_last_one_is_in_flight(stage: Stage, ann: Worker) -> None:
    fire(stage, "f", category="once")
    started = ann.go()
    resolve(stage, "r", "once")
    ann.run()
    fire(stage, "g", category="once")
    ann.run()
    assert ann.desk.posts == ["g"]
    ann.deliver(started)
    ann.run()
    assert ends(stage) == {"f": "sent ok", "g": "sent ok", "r": "digested resolved"}


def test_of_recoveries_with_no_failure_in_between_the_first_two_wait(stage: Stage, ann: Worker) -> None:
    fire(stage, "f", category="once")
    started = ann.go()
    for id_ in ("r", "r2", "r3"):
        resolve(stage, id_, "once")
    ann.run()
    assert stage.snapshot().parked == 2
    told = stage.explanations.explain("r3")
    assert told.sentence.endswith("nothing to tell; an earlier recovery tells it.")
    fire(stage, "g", category="once")
    resolve(stage, "s", "once")
    ann.run()
    assert stage.snapshot().parked == 3
    cancel(stage, "r")
    ann.deliver(started)
    ann.run()
    assert ends(stage) == {"f": "sent ok", "g": "sent ok", "r": "dropped cancelled", "s": "digested resolved"}
    assert [ts for _, ts, _ in ann.desk.edits] == ["2.0", "1.0"]


def test_a_recovery_that_waits_frees_the_key_of_its_own_failure_alone(stage: Stage, ann: Worker) -> None:
    host = {"host": "h1"}
    fire(stage, "f", category="labels", labels=host)
    ann.go()
    resolve(stage, "r", "labels", labels=host)
    ann.run()
    for id_ in ("g", "h"):
        fire(stage, id_, category="labels", key="db2", labels=host)
        stage.clock.now_us += 31 * US
        ann.run()
    assert ends(stage) == {"g": "sent ok", "h": "dropped repeat", "r": "parked resolved"}


def test_a_recovery_leaves_the_key_of_another_failure_that_waits(stage: Stage, ann: Worker) -> None:
    host = {"host": "h1"}
    fire(stage, "g", category="labels", key="other", labels=host)
    ann.go(free=0)
    fire(stage, "f", category="labels", labels=host)
    resolve(stage, "r", "labels", labels=host)
    fire(stage, "h", category="labels", labels=host)
    for _ in range(3):
        ann.run()
    assert ann.desk.posts == ["g"]
    assert ends(stage) == {
        "f": "dropped repeat", "g": "sent ok", "h": "dropped repeat", "r": "dropped unposted",
    }  # fmt: skip


@pytest.mark.parametrize("category", ["once", "counted"])
def test_a_recovery_that_waits_for_an_older_one_frees_the_key(stage: Stage, ann: Worker, category: str) -> None:
    fire(stage, "f", "f2", category=category)
    ann.run()
    stage.clock.now_us += US
    for number in range(40):  # as many edits as Slack takes in a minute, so that the next one waits
        fire(stage, f"x{number}", category=category, key=f"x{number}")
    ann.run()
    for number in range(40):
        resolve(stage, f"y{number}", category, key=f"x{number}")
    ann.run()
    for first, recovery in (("g", "r"), ("h", "s")):
        resolve(stage, recovery, category)
        ann.run()
        stage.clock.now_us += US
        fire(stage, first, category=category)
        ann.run()
        stage.clock.now_us += US
    assert {id_: ended for id_, ended in ends(stage).items() if id_ in "fgh"} == dict.fromkeys("fgh", "sent ok")
    stage.clock.now_us += 3 * 60 * US
    ann.run()
    assert {ends(stage)[id_] for id_ in "rs"} == {"digested resolved"}
    struck = [message.text.split("~")[1] for _, _, message in ann.desk.edits if "~" in message.text]
    assert [text for text in struck if "of x" not in text] == ["text of f", "text of g"]


def test_a_recovery_leaves_the_counts_of_a_failure_that_is_being_posted(stage: Stage, ann: Worker) -> None:
    host = {"host": "h1"}
    fire(stage, "f", category="places", key="db2", labels=host)
    started = ann.go()
    fire(stage, "g", "h", category="places", key="db2", labels=host)
    ann.run()
    resolve(stage, "r", "places", labels=host)
    ann.run()
    ann.deliver(started)
    for _ in range(2):
        ann.run()
        stage.clock.now_us += 31 * US
    assert [message.text.split(",")[0] for _, _, message in ann.desk.edits] == ["text of f\n_x3"]


def test_two_recoveries_of_others_leave_the_counts_of_a_message(stage: Stage, ann: Worker) -> None:
    host = {"host": "h1"}
    for id_ in ("f", "g", "h"):
        fire(stage, id_, category="places", key="db2", labels=host)
        ann.run()
    resolve(stage, "r", "places", labels=host)
    resolve(stage, "s", "places", key="db3", labels=host)
    for _ in range(2):
        ann.run()
        stage.clock.now_us += 31 * US
    told = [message.text.split(",")[0] for _, _, message in ann.desk.edits]
    assert told == ["text of f\n_x2", "text of f\n_x3"]


def test_a_tally_that_begins_anew_while_it_counts_is_not_taken_for_ever(stage: Stage, ann: Worker) -> None:
    host = {"host": "h1"}
    for id_ in ("f", "g", "h"):
        fire(stage, id_, category="places", key="db2", labels=host)
        ann.run()
        stage.clock.now_us += US
    resolve(stage, "r", "places", labels=host)
    fire(stage, "s", category="places", key="db2", labels=host)
    for _ in range(20):
        ann.deliver(ann.go())
        stage.clock.now_us += 7 * US
    assert ann.take().batch == []
    assert ann.desk.posts == ["f", "s"]


def test_repeats_of_a_failure_that_is_never_posted_are_forgotten_with_it(stage: Stage, ann: Worker) -> None:
    stage.send("x", category="slow")
    ann.run()
    fire(stage, "f", "g", category="slowly")
    ann.run()
    assert stage.snapshot().all_tallies == 1
    resolve(stage, "r", "slowly")
    ann.run()
    assert stage.snapshot().all_tallies == 0
    assert ends(stage) == {"f": "dropped resolved", "g": "digested repeat", "r": "dropped unposted"}
    told = stage.explanations.explain("f").sentence
    assert told.endswith(" before it was posted, as r says. No message tells of its 1 repeat.")


def test_cancelling_an_event_keeps_the_repeats_of_the_event_that_took_its_key(stage: Stage, ann: Worker) -> None:
    ann.desk.reply = lambda _: Ambiguous("timeout", "no answer")
    fire(stage, "f", category="slowly")
    ann.run()
    ann.desk.reply = lambda message: Receipt(message.channel, "2.0")
    stage.clock.now_us += HOUR_US + US
    stage.send("x", category="slow")
    ann.deliver(ann.go(due=0))  # the pace of the channel is used up
    fire(stage, "g", "h", "i", category="slowly")
    ann.deliver(ann.go(due=0))
    cancel(stage, "f")
    assert stage.snapshot().all_tallies == 1
    told = stage.explanations.explain("f").sentence
    assert "repeat" not in told


def test_repeats_of_a_failure_that_an_operator_cancels_are_told_with_its_end_and_not_in_the_next_message(
    stage: Stage, ann: Worker
) -> None:
    stage.send("x", category="slow")
    ann.run()
    fire(stage, "f", "g", "h", category="slowly")
    ann.run()
    cancel(stage, "f")
    assert stage.snapshot().all_tallies == 0
    told = stage.explanations.explain("f").sentence
    assert told.endswith(" by ed. No message tells of its 2 repeats.")
    fire(stage, "s", category="slowly")
    stage.clock.now_us += 600 * US
    ann.run()
    stage.clock.now_us += 60 * US
    ann.run()
    assert ann.desk.posts == ["x", "s"]
    assert ann.desk.edits == []


def test_repeats_of_a_failure_whose_header_is_spoilt_are_forgotten_at_the_end_of_its_age(redis: Database) -> None:
    slowly = "channels: {default: {pace: 1/10m}}\ncategories: {slowly: {limits: [], once: {per: 1h, then: edit}}}"
    stage = QuietStage(redis, slowly)
    ann = stage.worker()
    stage.send("x", category="slowly")
    ann.run()
    fire(stage, "f", "g", category="slowly")
    ann.run()
    assert stage.snapshot().all_tallies == 1
    redis.hset(stage.keys.events, "f", "{spoilt\nand its payload")
    for _ in range(3):
        stage.clock.now_us += 24 * HOUR_US
        ann.run()
    assert stage.snapshot().all_tallies == 0
    assert stage.redis.hlen(stage.keys.events) == 0


def test_a_dead_letter_that_is_replayed_after_the_recovery_becomes_one_again(stage: Stage, ann: Worker) -> None:
    ann.desk.reply = lambda _: Rejected("channel_not_found", "")
    fire(stage, "f", created_at=stage.clock.now_us / US)
    ann.run()
    stage.clock.now_us += 60 * US
    resolve(stage, "r")
    ann.run()
    stage.dead_letters.replay(stage.dead_letters.find(Filter()))
    ann.run()
    assert [letter["reason"] for letter in stage.letters()] == ["resolved"]
    (letter,) = stage.dead_letters.find(Filter())
    said = "what it is about was over before it was posted"
    assert ended(letter.decision(), clock_of(stage.clock.now_us, UTC)) == f"Dead letter at 10:54:20: {said}."


@pytest.mark.parametrize("resolved", [False, True])
def test_the_clock_of_a_producer_that_is_ahead_changes_no_order(stage: Stage, ann: Worker, *, resolved: bool) -> None:
    ahead: dict[str, Any] = {"created_at": stage.clock.now_us / US + 20 * 3_600}
    fire(stage, "f", **({} if resolved else ahead))
    ann.run()
    stage.clock.now_us += 2 * US
    resolve(stage, "r", **(ahead if resolved else {}))
    ann.run()
    assert ann.desk.edits[0][2].text.endswith("after 2 s")
    stage.clock.now_us += 60 * US
    fire(stage, "g")
    ann.run()
    assert ends(stage) == {"f": "sent ok", "r": "digested resolved", "g": "sent ok"}


def test_a_recovery_whose_header_is_spoilt_while_a_worker_has_it_becomes_a_dead_letter(redis: Database) -> None:
    stage = QuietStage(redis, FREE)
    ann = stage.worker()
    resolve(stage, "r")
    stage.send("x")
    taken = ann.take()
    redis.hset(stage.keys.events, "r", "{spoilt\nand its payload")
    ann.deliver(ann.dispatch(taken.batch))
    ann.run()
    assert ends(stage) == {"r": "dead invalid"}
    assert ann.desk.posts == ["x"]


def test_an_edit_waits_for_the_line_of_its_channel_but_not_for_ever(stage: Stage, ann: Worker) -> None:
    fire(stage, "f", category="slow")
    ann.run()
    stage.send("x", category="slow")
    ann.run()
    resolve(stage, "r", "slow")
    ann.run()
    ends_us = stage.clock.now_us + 300 * US
    while not ann.desk.edits:
        assert stage.clock.now_us <= ends_us
        stage.clock.now_us += 20 * US
        ann.run()
    assert stage.clock.now_us >= ends_us
    assert stage.line("#slow") == ["x"]


@pytest.mark.slow
def test_of_a_thousand_recoveries_at_once_forty_are_edited_a_minute_and_no_post_waits(redis: Database) -> None:
    text = "global: {limits: []}\nchannels: {default: {pace: none}}\ndefaults: {limits: [], channel: '#free'}\n"
    stage = QuietStage(redis, text)
    ann = stage.worker()
    for status in Status:
        events = [Event("errors", "x", dedup_key=f"k{number}", status=status) for number in range(1_000)]
        for begin in range(0, len(events), 500):
            stage.intake.enqueue([(new_event_id(), event) for event in events[begin : begin + 500]])
        ann.run()
    edits = [len(ann.desk.edits)]
    while edits[-1] < 1_000:
        stage.send_unnamed()
        posts = len(ann.desk.posts)
        ann.run()
        assert len(ann.desk.posts) == posts + 1
        stage.clock.now_us += 60 * US
        ann.run()
        edits.append(len(ann.desk.edits))
    assert edits == list(range(40, 1_001, 40))
    assert stage.snapshot().imbalances() == []


def test_a_call_that_has_cancelled_many_events_leaves_the_other_recoveries_to_the_next_one(
    stage: Stage, ann: Worker
) -> None:
    fire(stage, "v1", "v2", category="later", key="v")
    ann.run()
    resolve(stage, "over", category="later", key="u")
    ann.run()
    for key in "vwxyz":
        fire(stage, *(f"{key}-{n}" for n in range(70)), category="later", key=key)
    ann.run()
    assert stage.redis.zcard(stage.keys.parked) == 5 * 70
    for key in "vwxyz":
        resolve(stage, f"over-{key}", category="later", key=key)
    ends = [recovery_of(candidate_of(ann, each), ann.policy, can_edit=True) for each in ann.take().batch]
    stage.redis.config_resetstat()
    recovered: list[Recovered] = []
    findings = ann.outbox.recover(ends, recovered.extend)
    assert [type(each) for each in findings] == [Posted, Unposted, Unposted, Unposted, Unposted]
    assert len(recovered) == 5 * 70
    assert stage.redis.zcard(stage.keys.parked) == 0
    assert stage.redis.info("commandstats")["cmdstat_evalsha"]["calls"] == 2


def test_what_a_call_about_recoveries_has_cancelled_is_told_though_the_next_call_fails(
    stage: Stage, ann: Worker
) -> None:
    fire(stage, "first", "second", category="later")
    ann.run()
    for key in "vwx":
        fire(stage, *(f"{key}-{n}" for n in range(70)), category="later", key=key)
    ann.run()
    for key in "vwxy":
        resolve(stage, f"over-{key}", category="later", key=key)
    ends = [recovery_of(candidate_of(ann, each), ann.policy, can_edit=True) for each in ann.take().batch]
    recovered, leased = list[Recovered](), stage.keys.leased("ann")

    def tell(cancelled: Sequence[Recovered]) -> None:
        recovered.extend(cancelled)
        stage.redis.rename(leased, f"{leased}:aside")
        stage.redis.set(leased, "no set")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        ann.outbox.recover(ends, tell)
    stage.redis.rename(f"{leased}:aside", leased)
    assert len(recovered) == 3 * 70


def candidate_of(ann: Worker, leased: Leased | Undecodable) -> Candidate:
    assert isinstance(leased, Leased)
    return Candidate(leased, ann.policy.terms(leased))


def test_of_one_thing_a_hundred_events_are_known_and_more_cost_a_call_no_look_each(stage: Stage, ann: Worker) -> None:
    for name, count in (("f", 80), ("g", 60)):
        fire(stage, *(f"{name}-{n}" for n in range(count)), category="later")
        ann.run()
    (subject,) = stage.redis.keys("*:subject:*")
    assert 90 < stage.redis.hlen(subject) <= 100
    fire(stage, *(f"h-{n}" for n in range(60)), category="later")
    unwatched = Dispatcher(
        ann.policy, ann.admission, ann.outbox, ann.desk, ann.told, lambda _: BACKOFF_US, GRACE_US, POST_S
    )
    batch = ann.take().batch
    stage.redis.config_resetstat()
    unwatched.dispatch(batch, stage.clock.now_us, Capacity(100))
    stats = stage.redis.info("commandstats")
    assert stats["cmdstat_hgetall"]["calls"] <= 2
    assert stats["cmdstat_hlen"]["calls"] <= 10
    assert stage.redis.zcard(stage.keys.parked) == 80 + 60 + 60 - 2
