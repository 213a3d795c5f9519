"""Where a channel is gone or archived, an event is posted to its category's fallback, once, on the slot it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from dispatcher.core.posts import Ambiguous, Message, PostResult, RateLimitedBySlack, Receipt, Rejected, Retryable
from dispatcher.core.states import GRACE_US, Absent, ScanResult, Search
from dispatcher.core.units import US
from dispatcher.logs.event_log import facts_of
from dispatcher.store.dead_letters import Filter
from tests.support.doubles import START_US
from tests.support.servers import Database
from tests.support.stage import BACKOFF_US, LEASE_US, Stage, Worker, policy_from, sentence

pytestmark = pytest.mark.usefixtures("in_utc")

LIMITS: Final = """\
global: {limits: [100/30m]}
channels: {default: {pace: 1/10s}, "#free": {pace: none}}
defaults: {limits: [50/30m], channel: "#old", fallback: "#ops"}
categories:
  errors: {}
  letters: {fallback: none}
  itself: {channel: "#ops"}
  chatter: {limits: [2/30m], on_limit: digest, digest_delay: 10s, fallback: "#free"}
"""
GONE: Final = {"#old": "is_archived", "#lost": "channel_not_found", "#out": "not_in_channel"}


@pytest.fixture
def stage(redis: Database) -> Stage:
    return Stage(redis, policy_from(LIMITS))


@pytest.fixture
def ann(stage: Stage) -> Worker:
    return worker(stage, "ann")


def worker(stage: Stage, owner: str, *also_gone: str) -> Worker:
    made = stage.worker(owner)
    codes = GONE | dict.fromkeys(also_gone, "is_archived")

    def reply(message: Message) -> PostResult:
        code = codes.get(message.channel)
        return Receipt(message.channel, "1.000001") if code is None else Rejected(code, "gone")

    made.desk.reply = reply
    return made


def posted(worker: Worker) -> list[tuple[str, str]]:
    return [(message.event_id, message.channel) for message in worker.desk.messages]


@pytest.mark.parametrize(
    ("channel", "words"),
    [("#old", "Meant for #old, which is archived:"), ("#lost", "Meant for #lost, which was not found:")],
)
def test_an_event_whose_channel_is_gone_is_posted_to_the_fallback_and_says_so(
    stage: Stage, ann: Worker, channel: str, words: str
) -> None:
    stage.send("a", channel=channel)
    ann.run()
    assert posted(ann) == [("a", channel), ("a", "#ops")]
    assert ann.desk.messages[1].text == f"{words}\ntext of a"
    assert (stage.total("sent"), stage.total("dead"), stage.snapshot().events) == (1, 0, 0)
    assert stage.slots("global") == {"a": START_US}
    decision = stage.decision("a")
    assert decision is not None
    assert (decision.outcome, decision.channel, decision.instead_of) == ("sent", "#ops", channel)
    assert sentence(stage, "a") == f"Sent to #ops at 10:53:20, since {channel} is gone."


def test_each_step_of_it_is_logged(stage: Stage, ann: Worker) -> None:
    stage.send("a")
    ann.run()
    parked, settled = map(facts_of, ann.told.settlements)
    assert {name: parked[name] for name in ("outcome", "reason", "code", "channel", "fallback")} == {
        "outcome": "parked", "reason": "retry", "code": "is_archived", "channel": "#old", "fallback": "#ops",
    }  # fmt: skip
    assert {name: settled[name] for name in ("outcome", "channel", "instead_of")} == {
        "outcome": "sent", "channel": "#ops", "instead_of": "#old",
    }  # fmt: skip


def test_it_waits_for_the_pace_of_that_channel_with_its_slot(stage: Stage, ann: Worker) -> None:
    stage.send("first", channel="#ops")
    ann.run()
    stage.send("a")
    ann.run()
    assert (stage.line("#ops"), stage.line_at("#ops")) == (["a"], START_US + 10 * US)
    assert set(stage.held("global")) == {"a"}
    assert sentence(stage, "a") == (
        "Admitted, and waits for channel #ops: its pace lets the next go at 10:53:30; it is the next."
    )
    stage.clock.forward(10)
    ann.run()
    assert posted(ann)[-1] == ("a", "#ops")
    assert set(stage.slots("global")) == {"first", "a"}


def test_where_the_fallback_is_gone_too_the_event_is_a_dead_letter(stage: Stage) -> None:
    ann = worker(stage, "ann", "#ops")
    stage.send("a")
    ann.run()
    (letter,) = stage.dead_letters.find(Filter())
    assert (letter.reason, letter.code, letter.attempts) == ("rejected", "is_archived", 1)
    assert letter.detail == "gone; this was the fallback of #old (is_archived)"
    assert stage.slots("global") == {}


@pytest.mark.parametrize(
    ("category", "channel"),
    [("letters", "#old"), ("itself", "#old"), ("errors", "#out")],
    ids=["no fallback", "posted to the fallback itself", "another refusal"],
)
def test_otherwise_a_refused_event_is_a_dead_letter_at_once(stage: Stage, category: str, channel: str) -> None:
    ann = worker(stage, "ann", "#ops")
    channel = "#ops" if category == "itself" else channel
    stage.send("a", category=category, channel=channel)
    ann.run()
    assert posted(ann) == [("a", channel)]
    (letter,) = stage.letters()
    assert (letter["reason"], letter["code"]) == ("rejected", GONE.get(channel, "is_archived"))


def test_after_so_many_failures_it_has_all_attempts_at_the_fallback(stage: Stage, ann: Worker) -> None:
    stage.send("a")
    for _ in range(7):
        (started,) = ann.go_on()
        ann.answer(started, Retryable("internal", "later"))
        stage.clock.forward(60)
    ann.run()
    assert posted(ann) == [("a", "#old"), ("a", "#ops")]


def test_under_a_message_of_the_other_channel_it_cannot_go(stage: Stage, ann: Worker) -> None:
    blocks = [{"type": "section", "text": {"type": "plain_text", "text": "disk full"}}]
    stage.send("a", thread_ts="1732100000.000100", blocks=tuple(blocks))
    stage.send("b", thread_ts="1732100000.000100", blocks=tuple([{"type": "divider"}] * 50), channel="#lost")
    ann.run()
    stage.clock.forward(20)
    ann.run()
    old, lost, a, b = ann.desk.messages
    assert (old.thread_ts, lost.thread_ts, a.thread_ts, b.thread_ts) == (
        "1732100000.000100", "1732100000.000100", None, None,
    )  # fmt: skip
    line = {"type": "mrkdwn", "text": "Meant for #old, which is archived:"}
    assert a.blocks == ({"type": "context", "elements": [line]}, *old.blocks)
    assert (len(b.blocks), b.text.splitlines()[0]) == (50, "Meant for #lost, which was not found:")


def test_a_channel_that_is_gone_is_free_for_the_next_post(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b")
    (a,) = ann.go()
    ann.deliver([a])
    assert stage.posting("#old") is None
    assert stage.line_at("#old") == START_US + 10 * US


def test_a_channel_that_says_after_a_cool_down_that_it_is_gone_has_answered(stage: Stage, ann: Worker) -> None:
    stage.send("a")
    (a,) = ann.go()
    ann.answer(a, RateLimitedBySlack(30 * US, "ratelimited"))
    stage.clock.forward(30)
    ann.run()
    assert posted(ann) == [("a", "#old"), ("a", "#ops")]
    assert stage.redis.zscore(stage.keys.cooldowns, "#old") is None


# Deaths between the steps


def outlive(stage: Stage, worker: Worker) -> None:
    """The worker goes on until the lease of a dead one has ended, and what it left was looked for."""
    for _ in range(12):
        worker.run()
        stage.clock.forward(LEASE_US / US / 4)


def test_a_worker_that_dies_before_it_settles_leaves_it_to_be_posted_to_the_fallback(stage: Stage, ann: Worker) -> None:
    bob = worker(stage, "bob")
    bob.desk.shows = lambda _: ScanResult({}, Absent())
    stage.send("a")
    (started,) = ann.go()
    ann.dispatcher.deliver(started)
    outlive(stage, bob)
    assert posted(bob) == [("a", "#old"), ("a", "#ops")]
    assert (stage.total("sent"), len(stage.slots("global"))) == (1, 1)


@pytest.mark.parametrize("step", ["in its line", "taken", "decided"])
def test_a_worker_that_dies_on_the_way_to_the_fallback_leaves_it_to_be_posted_there(
    stage: Stage, ann: Worker, step: str
) -> None:
    bob = worker(stage, "bob")
    stage.send("a")
    (started,) = ann.go()
    ann.deliver([started])
    if step != "in its line":
        batch = ann.take().batch
        assert [each.id for each in batch] == ["a"]
        if step == "decided":
            ann.dispatch(batch, free=0)
    outlive(stage, bob)
    assert posted(bob) == [("a", "#ops")]
    assert bob.desk.messages[0].text.startswith("Meant for #old")
    assert (stage.total("sent"), len(stage.slots("global"))) == (1, 1)


def test_a_post_to_the_fallback_of_unknown_delivery_status_is_looked_for_there(stage: Stage, ann: Worker) -> None:
    bob = worker(stage, "bob")

    def shows(search: Search) -> ScanResult:
        assert (search.channel, search.thread_ts) == ("#ops", None)
        return ScanResult({"a": Receipt("#ops", "2.2")}, Absent())

    bob.desk.shows = shows
    stage.send("a", thread_ts="1732100000.000100")
    (started,) = ann.go()
    ann.deliver([started])
    (started,) = ann.go()
    ann.dispatcher.deliver(started)
    outlive(stage, bob)
    assert (posted(bob), stage.total("sent")) == ([], 1)
    assert sentence(stage, "a").startswith("Sent to #ops at ")


def test_a_failed_post_to_the_fallback_is_made_again_there(stage: Stage, ann: Worker) -> None:
    stage.send("a")
    ann.deliver(ann.go())
    (started,) = ann.go()
    ann.answer(started, Ambiguous("reply_timeout", "no answer"))
    stage.clock.forward(4 * GRACE_US / US)
    ann.run()
    stage.clock.forward(4 * GRACE_US / US + BACKOFF_US / US)
    ann.run()
    assert posted(ann) == [("a", "#old"), ("a", "#ops")]
    assert stage.total("sent") == 1


def test_a_replayed_dead_letter_goes_to_its_own_channel_again(stage: Stage) -> None:
    ann = worker(stage, "ann", "#ops")
    stage.send("a")
    ann.run()
    stage.dead_letters.replay(stage.dead_letters.find(Filter()))
    ann.desk.reply = lambda message: Receipt(message.channel, "1.1")
    stage.clock.forward(20)
    ann.run()
    assert posted(ann)[-1] == ("a", "#old")
    assert "Meant for" not in ann.desk.messages[-1].text


def test_after_a_change_of_the_limits_it_still_goes_where_it_waits(stage: Stage, ann: Worker) -> None:
    stage.send("first", channel="#ops")
    ann.run()
    stage.send("a")
    ann.run()
    stage.policy = replace(policy_from(LIMITS.replace('"#ops"}', '"#other"}')))
    stage.same_pace = False
    stage.clock.forward(10)
    ann.run()
    assert posted(ann)[-1] == ("a", "#ops")


def test_there_is_no_second_fallback_also_after_a_change_of_the_limits(stage: Stage) -> None:
    ann = worker(stage, "ann", "#ops")
    stage.send("a")
    ann.deliver(ann.go())
    stage.policy = policy_from(LIMITS.replace('"#ops"}', '"#other"}'))
    ann.run()
    assert posted(ann) == [("a", "#old"), ("a", "#ops")]
    assert stage.total("dead") == 1


# What the dispatcher itself says


def test_a_digest_goes_to_the_fallback_is_edited_there_and_the_next_one_tries_its_channel(
    stage: Stage, ann: Worker
) -> None:
    stage.send("a", "b", "c", category="chatter", channel="#free")
    ann.run()
    stage.clock.forward(10)
    ann.run()
    digest = [(message.channel, message.text.splitlines()[0]) for message in ann.desk.messages[1:]]
    assert digest[0][0] == "#old"
    assert digest[1] == ("#free", "Meant for #old, which is archived:")
    assert stage.total("notices") == 1
    stage.send("d", category="chatter", channel="#free")
    ann.run()
    stage.clock.forward(30)
    ann.run()
    ((channel, _, edited),) = ann.desk.edits
    assert (channel, edited.text.splitlines()[0]) == ("#free", "Meant for #old, which is archived:")
    stage.clock.forward(1_800)
    ann.run()
    stage.send("e", "f", "g", category="chatter", channel="#free")
    ann.desk.reply = lambda message: Receipt(message.channel, "1.1")
    ann.run()
    stage.clock.forward(10)
    ann.run()
    assert (ann.desk.messages[-1].channel, ann.desk.messages[-1].text.startswith("*")) == ("#old", False)
