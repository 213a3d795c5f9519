"""An incoming webhook has one channel: line, pace, cool-down and record go by it, whatever an event names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest

from dispatcher.core.matchers import parse_matchers
from dispatcher.core.policy import EDITS, WEBHOOK
from dispatcher.core.posts import Ambiguous
from dispatcher.core.states import GRACE_US, Sent
from dispatcher.core.units import US
from dispatcher.logs.event_log import facts_of
from dispatcher.slack.sink import SlackSink
from dispatcher.stand_in import STRICT, Setup, SlackError, StandIn, TooManyRequests, not_landed
from dispatcher.store.parked_events import ParkedEvents, ParkedFilter
from dispatcher.store.silences import Wanted
from tests.support.servers import Database
from tests.support.slack import token_sink, webhook_sink
from tests.support.stage import LEASE_US, Stage, Worker, policy_from, sentence

pytestmark = pytest.mark.usefixtures("in_utc")

LIMITS: Final = """\
global: {limits: []}
channels: {default: {pace: 1/1s}, "#slow": {pace: 1/10s}, "#free": {pace: none}}
defaults: {limits: [], channel: "#all", fallback: "#ops"}
categories:
  disks: {channel: "#disks"}
  routed: {channel: "#else", routes: [{match: host=db1, channel: "#db"}]}
  strict: {on_ambiguous: dead-letter}
  few: {limits: [2/30m], on_limit: digest, digest_delay: 10s}
  later: {limits: [1/30m], on_limit: defer}
  chatter: {limits: [1/30m], on_limit: drop}
"""
IN_CHANNELS: Final = ("#a", "#a", "#b", "#slow", "#slow", "#free", None)


@pytest.fixture
def stage(redis: Database) -> Stage:
    stage = Stage(redis, policy_from(LIMITS))
    stage.prolongs = True
    return stage


@pytest.fixture
def slack(stage: Stage) -> Iterator[StandIn]:
    with StandIn(setup=Setup(rate=STRICT, clock=lambda: stage.clock.now_us / US)) as stand_in:
        yield stand_in


def by_webhook(stage: Stage, slack: StandIn, name: str = "ann") -> Worker:
    return worker_of(stage, webhook_sink(slack), name)


def by_token(stage: Stage, slack: StandIn, name: str = "bob") -> Worker:
    return worker_of(stage, token_sink(slack), name)


def worker_of(stage: Stage, sink: SlackSink, name: str) -> Worker:
    worker = stage.worker(name)
    change_credential(worker, sink)
    return worker


def change_credential(worker: Worker, sink: SlackSink) -> None:
    """As a worker does that reads another credential at SIGHUP."""
    worker.desk = sink  # type: ignore[assignment]  # the real one takes the double's place
    worker.limits_in_force = replace(worker.stage.policy, by_webhook=sink.is_webhook)


def send(stage: Stage, *channels: str | None, category: str = "news") -> list[str]:
    """An event for each channel, by their numbers."""
    for n, channel in enumerate(channels):
        stage.send(f"{category}{n}", category=category, channel=channel)
    return [f"{category}{n}" for n in range(len(channels))]


def run(stage: Stage, *workers: Worker, seconds: int = 20) -> None:
    """All workers, once each second."""
    for _ in range(seconds):
        for worker in workers:
            worker.run()
        stage.clock.forward(1)


def posted(slack: StandIn) -> list[tuple[str, str]]:
    return [(each.channel, each.text.removeprefix("text of ")) for each in slack.ledger.posted()]


def outlive_all_but(stage: Stage, worker: Worker) -> None:
    """The leases of the others end."""
    for half in range(2):
        stage.clock.now_us += LEASE_US // 2 + half
        worker.renew()


def test_all_channels_share_one_line_and_the_pace_of_default(stage: Stage, slack: StandIn) -> None:
    ann, bob = by_webhook(stage, slack), by_webhook(stage, slack, "bob")
    ids = send(stage, *IN_CHANNELS)
    (first,) = ann.go()
    assert bob.go() == []
    assert (stage.line(WEBHOOK), stage.posting(WEBHOOK)) == (ids[1:], ids[0])
    ann.deliver([first])
    run(stage, ann, bob, seconds=len(ids))
    assert posted(slack) == [("#webhook", id_) for id_ in ids]
    assert (slack.workspace.posts, slack.workspace.rate_limited) == (len(ids), 0)


def test_what_a_category_and_its_routes_name_is_ignored_too(stage: Stage, slack: StandIn) -> None:
    ann = by_webhook(stage, slack)
    stage.send("a", category="disks")
    stage.send("b", category="routed", labels={"host": "db1"})
    stage.send("c", category="routed")
    assert [each.candidate.terms.channel for each in ann.go()] == [WEBHOOK]
    assert stage.line(WEBHOOK) == ["b", "c"]


def test_a_retry_after_holds_for_every_event(stage: Stage, slack: StandIn) -> None:
    ann, bob = by_webhook(stage, slack), by_webhook(stage, slack, "bob")
    slack.faults.add(not_landed(TooManyRequests("5")))
    send(stage, *IN_CHANNELS)
    run(stage, ann, bob, seconds=5)
    assert (slack.workspace.posts, posted(slack)) == (1, [])
    assert stage.snapshot().pause is None
    run(stage, ann, bob)
    assert len(posted(slack)) == len(IN_CHANNELS)
    assert (slack.workspace.rate_limited, slack.workspace.inside_retry_after) == (1, 0)


def test_no_history_is_promised_to_be_searched(stage: Stage, slack: StandIn) -> None:
    ann = by_webhook(stage, slack)
    stage.send("a", category="news")
    (started,) = ann.go()
    ann.answer(started, Ambiguous("timeout", "no answer"))
    assert sentence(stage, "a") == (
        "Posted with no clear answer (reconcile: timeout); what follows from that is decided at 10:53:30."
    )
    stage.clock.forward(GRACE_US / US)
    ann.take()
    assert sentence(stage, "a") == "In flight: worker ann is deciding about it."


def test_the_log_the_record_and_the_lists_name_it(stage: Stage, slack: StandIn) -> None:
    ann = by_webhook(stage, slack)
    send(stage, "#a", "#b")
    send(stage, "#a", "#b", category="later")
    ann.run()
    assert sentence(stage, "news0") == "Sent to (webhook) at 10:53:20."
    assert sentence(stage, "news1").startswith("Admitted, and waits for channel (webhook): its pace lets the next go")
    assert [facts_of(each)["channel"] for each in ann.told.settlements] == [WEBHOOK]
    assert set(stage.snapshot().lines) == {f"channel:{WEBHOOK}", "category:later"}
    hands = ParkedEvents(stage.redis, stage.keys, stage.queue, ann.policy, remember_us=0, clock=stage.clock)
    assert {each.id for each in hands.find(ParkedFilter(channel=WEBHOOK))} == {"news1", "later0", "later1"}


def test_no_event_can_name_it(stage: Stage, slack: StandIn) -> None:
    stage.send("a", channel=WEBHOOK)
    (started,) = by_token(stage, slack).go()
    assert started.candidate.terms.channel == f"#{WEBHOOK}"


def test_there_is_no_fallback(stage: Stage, slack: StandIn) -> None:
    ann = by_webhook(stage, slack)
    slack.faults.add(not_landed(SlackError("channel_not_found")))
    send(stage, "#a")
    run(stage, ann, seconds=2)
    assert [(each["reason"], each["code"]) for each in stage.letters()] == [("rejected", "channel_not_found")]
    assert slack.workspace.posts == 1


def test_a_thread_that_a_token_began_is_not_gone_on_with(stage: Stage, slack: StandIn) -> None:
    bob, ann = by_token(stage, slack), by_webhook(stage, slack)
    stage.send("a", channel="#a", thread="t")
    bob.run()
    stage.send("b", channel="#a", thread="t")
    run(stage, ann, seconds=2)
    assert [(each.channel, each.thread_ts) for each in slack.ledger.posted()] == [("#a", None), ("#webhook", None)]


class TestTheCredentialChanges:
    """Nothing is lost or stuck, whatever waits where."""

    def test_from_a_token_to_a_webhook(self, stage: Stage, slack: StandIn) -> None:
        bob, ann = by_token(stage, slack), by_webhook(stage, slack)
        ids = send(stage, *IN_CHANNELS, *IN_CHANNELS)
        bob.run()
        begun = len(posted(slack))
        assert stage.line("#a") == ["news1", "news7", "news8"]
        run(stage, ann, seconds=30)
        assert sorted(text for _, text in posted(slack)) == sorted(ids)
        assert [channel for channel, _ in posted(slack)][begun:] == ["#webhook"] * (len(ids) - begun)
        assert stage.snapshot().events == 0
        assert not stage.redis.exists(stage.keys.posting, stage.keys.lines)

    def test_from_a_webhook_to_a_token(self, stage: Stage, slack: StandIn) -> None:
        ann, bob = by_webhook(stage, slack), by_token(stage, slack)
        ids = send(stage, *IN_CHANNELS)
        ann.run()
        assert stage.line(WEBHOOK) == ids[1:]
        run(stage, bob)
        named = ["#all" if channel is None else channel for channel in IN_CHANNELS]
        assert sorted(posted(slack)) == sorted([("#webhook", ids[0]), *zip(named[1:], ids[1:], strict=True)])
        assert (slack.workspace.rate_limited, stage.snapshot().events) == (0, 0)
        assert not stage.redis.exists(stage.keys.posting, stage.keys.lines)

    def test_workers_with_either_work_side_by_side(self, stage: Stage, slack: StandIn) -> None:
        ann, bob = by_webhook(stage, slack), by_token(stage, slack)
        ids = send(stage, *["#a", "#b"] * 5)
        run(stage, ann, bob)
        assert sorted(text for _, text in posted(slack)) == sorted(ids)
        assert (slack.workspace.rate_limited, stage.snapshot().events) == (0, 0)

    @pytest.mark.parametrize("at_pace", [True, False], ids=["parked by the next worker", "taken only"])
    def test_the_worker_dies_that_moves_an_event(self, stage: Stage, slack: StandIn, *, at_pace: bool) -> None:
        bob, ann, eve = by_token(stage, slack), by_webhook(stage, slack), by_webhook(stage, slack, "eve")
        ids = send(stage, *["#a", "#b"] * 3)
        bob.run()
        stage.clock.forward(1)
        taken = ann.take(due=2)
        assert len(taken.batch) == 2
        if at_pace:
            ann.dispatch(taken.batch, free=0)
        outlive_all_but(stage, eve)
        run(stage, eve)
        assert sorted(text for _, text in posted(slack)) == sorted(ids)
        assert not stage.redis.exists(stage.keys.posting, stage.keys.lines)

    def test_one_that_ends_on_the_way_holds_up_no_other(self, stage: Stage, slack: StandIn) -> None:
        bob, ann = by_token(stage, slack), by_webhook(stage, slack)
        stage.send("posted", channel="#a")
        stage.send("old", channel="#a", max_age=5)
        stage.send("next", channel="#a")
        bob.run()
        stage.clock.forward(5)
        run(stage, ann, seconds=3)
        assert [each["reason"] for each in stage.letters()] == ["expired"]
        assert [text for _, text in posted(slack)] == ["posted", "next"]

    @pytest.mark.parametrize("to_token", [True, False], ids=["to a token", "to a webhook"])
    def test_a_post_that_has_not_begun_is_made_with_the_new_one(
        self, stage: Stage, slack: StandIn, *, to_token: bool
    ) -> None:
        sinks = [webhook_sink(slack), token_sink(slack)]
        before, after = sinks if to_token else reversed(sinks)
        ann = worker_of(stage, before, "ann")
        send(stage, "#a")
        (started,) = ann.go()
        change_credential(ann, after)
        ann.deliver([started])
        assert slack.workspace.posts == 0
        run(stage, ann)
        assert posted(slack) == [("#a" if to_token else "#webhook", "news0")]
        (sent,) = (each for each in ann.told.settlements if isinstance(each.outcome, Sent))
        assert sent.attempt == 1

    def test_no_history_is_searched_for_what_a_webhook_posted(self, stage: Stage, slack: StandIn) -> None:
        ann, bob = by_webhook(stage, slack), by_token(stage, slack)
        for category in ("news", "strict"):
            send(stage, "#a", category=category)
            (started,) = ann.go()
            ann.answer(started, Ambiguous("reply_timeout", "late"))
            stage.clock.forward(1)
        run(stage, bob)
        (sent,) = (each for each in bob.told.settlements if isinstance(each.outcome, Sent))
        assert (sent.subject.id, sent.perhaps_posted, posted(slack)) == ("news0", 1, [("#a", "news0")])
        assert [(each["id"], each["reason"]) for each in stage.letters()] == [("strict0", "ambiguous")]
        assert slack.workspace.traffic.calls["conversations.history"] == 0

    def test_a_webhook_searches_no_history_for_what_a_token_posted(self, stage: Stage, slack: StandIn) -> None:
        bob, ann = by_token(stage, slack), by_webhook(stage, slack)
        send(stage, "#a", category="strict")
        (started,) = bob.go()
        bob.answer(started, Ambiguous("reply_timeout", "late"))
        stage.clock.now_us += GRACE_US
        run(stage, ann)
        assert [(each["id"], each["reason"]) for each in stage.letters()] == [("strict0", "ambiguous")]

    def test_a_digest_that_waited_goes_to_the_channel_of_its_category(self, stage: Stage, slack: StandIn) -> None:
        ann, bob = by_webhook(stage, slack), by_token(stage, slack)
        send(stage, *["#a"] * 5, category="few")
        run(stage, ann, seconds=5)
        slack.faults.add(not_landed(TooManyRequests("60")))
        run(stage, ann, seconds=10)
        assert stage.line(WEBHOOK) == ["digest:few"]
        run(stage, bob, seconds=60)
        assert [channel for channel, text in posted(slack) if "suppressed" in text] == ["#all"]

    def test_the_edit_of_a_digest_that_waited_is_none_with_a_webhook(self, stage: Stage, slack: StandIn) -> None:
        bob, ann = by_token(stage, slack), by_webhook(stage, slack)
        send(stage, *["#a"] * 5, category="few")
        run(stage, bob, seconds=15)
        for n in range(3):
            stage.send(f"more{n}", category="few")
        bob.run()
        stage.redis.zadd(stage.keys.cooldowns, {EDITS: stage.clock.now_us + 60 * US})
        stage.redis.expire(stage.keys.cooldowns, 600)
        run(stage, bob, seconds=40)
        assert stage.line(EDITS) == ["digest:few"]
        for _ in range(40):
            run(stage, ann, seconds=1)
            stage.clock.forward(60)
        told = [
            (each.channel, each.text.partition(" ")[0]) for each in slack.ledger.posted() if "suppressed" in each.text
        ]
        assert told == [("#all", "4"), ("#webhook", "3")]

    def test_the_report_of_a_silence_goes_to_the_channel_of_defaults(self, stage: Stage, slack: StandIn) -> None:
        ann, bob = by_webhook(stage, slack), by_token(stage, slack)
        wanted = Wanted(parse_matchers(["category=news"]), 60 * US, "anna", "db1 moves")
        stage.silencing.begin(wanted)
        send(stage, "#a", "#b")
        ann.run()
        run(stage, bob, seconds=62)
        (report,) = slack.ledger.posted()
        assert (report.channel, report.text.partition(":")[0]) == ("#all", "Silence by anna ended")
