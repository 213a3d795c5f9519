"""Events that name the same thread go under the first one's message in their channel."""

from __future__ import annotations

from typing import Final

import pytest

from dispatcher.core.posts import Ambiguous, Message, PostResult, Receipt, Rejected
from dispatcher.core.states import Started
from dispatcher.core.transitions import NO_REPLIES
from tests.support.doubles import START_US
from tests.support.servers import Database
from tests.support.stage import REMEMBER_US, UNPACED, Stage, Worker, policy_of

DAY_S: Final = 86_400
ROOT: Final = "1732100000.000100"


class Slack:
    """Gives each message the next ts, and keeps under which it was posted.

    ``closed`` are the messages that take no replies, each with the code of the answer.
    """

    def __init__(self) -> None:
        self.posted: dict[str, str | None] = {}
        self.closed: dict[str, str] = {}

    def __call__(self, message: Message) -> PostResult:
        if message.thread_ts in self.closed:
            return Rejected(self.closed[message.thread_ts], "no replies")
        self.posted[message.event_id] = message.thread_ts
        return Receipt(message.channel, f"1732100000.000{len(self.posted)}00")


@pytest.fixture
def stage(redis: Database) -> Stage:
    stage = Stage(redis, policy_of("1000/30m", "", pace="1000/1s"))
    stage.prolongs = True
    return stage


@pytest.fixture
def slack() -> Slack:
    return Slack()


@pytest.fixture
def ann(stage: Stage, slack: Slack) -> Worker:
    return worker_of(stage, "ann", slack)


def worker_of(stage: Stage, name: str, slack: Slack) -> Worker:
    worker = stage.worker(name)
    worker.desk.reply = slack
    return worker


def run(stage: Stage, worker: Worker) -> None:
    """Post all that waits, one after another in each channel."""
    while stage.snapshot().parked or stage.snapshot().waiting:
        worker.run()
        stage.clock.forward(1)
    worker.decided()


def test_events_of_one_thread_go_under_the_first_ones_message(stage: Stage, ann: Worker, slack: Slack) -> None:
    stage.send("a", "b", "c", channel="#ops", thread="disk-db1")
    run(stage, ann)
    stage.send("d", channel="#ops", thread="disk-db1")
    run(stage, ann)
    assert slack.posted == {"a": None, "b": ROOT, "c": ROOT, "d": ROOT}


def test_events_with_another_key_another_channel_or_no_key_are_not_in_the_thread(
    stage: Stage, ann: Worker, slack: Slack
) -> None:
    stage.send("a", channel="#ops", thread="k")
    run(stage, ann)
    stage.send("b", channel="#ops", thread="k2")
    stage.send("c", channel="#dev", thread="k")
    stage.send("d", channel="#ops")
    run(stage, ann)
    stage.send("e", channel="#dev", thread="k")
    run(stage, ann)
    assert {id_: slack.posted[id_] is None for id_ in "abcde"} == {**dict.fromkeys("abcd", True), "e": False}


def test_other_workers_know_the_thread(stage: Stage, ann: Worker, slack: Slack) -> None:
    stage.send("a", channel="#ops", thread="k", category="errors")
    run(stage, ann)
    stage.send("b", channel="#ops", thread="k", category="deploys")
    run(stage, worker_of(stage, "bob", slack))
    assert slack.posted == {"a": None, "b": ROOT}


def test_a_message_that_names_its_thread_itself_goes_there_and_begins_none(
    stage: Stage, ann: Worker, slack: Slack
) -> None:
    stage.send("a", channel="#ops", thread="k", thread_ts="1700000000.000001")
    run(stage, ann)
    stage.send("b", "c", channel="#ops", thread="k")
    run(stage, ann)
    assert slack.posted == {"a": "1700000000.000001", "b": None, "c": "1732100000.000200"}


def test_only_what_was_posted_begins_a_thread(stage: Stage, ann: Worker, slack: Slack) -> None:
    results: list[PostResult] = [Rejected("is_archived", "archived"), Ambiguous("http_500", "?")]
    ann.desk.reply = lambda _: results.pop(0)
    stage.send("a", "b", channel="#ops", thread="k")
    ann.run()
    stage.clock.forward(1)
    ann.run()
    assert not stage.redis.exists(*stage.keys.threads)
    ann.desk.reply = slack
    run(stage, ann)
    assert slack.posted == {"b": None}
    stage.send("c", channel="#ops", thread="k")
    run(stage, ann)
    assert slack.posted["c"] == ROOT


def test_a_post_without_ts_begins_no_thread(stage: Stage, ann: Worker) -> None:
    ann.desk.reply = lambda message: Receipt(message.channel, None)
    stage.send("a", channel="#ops", thread="k")
    run(stage, ann)
    assert not stage.redis.exists(*stage.keys.threads)


def test_of_several_posted_at_once_the_first_settled_is_the_root(stage: Stage, ann: Worker, slack: Slack) -> None:
    stage.send("a", "b", channel=UNPACED, thread="k")
    a, b = ann.go()
    assert (a.thread_ts, b.thread_ts) == (None, None)
    ann.deliver([b])
    ann.deliver([a])
    stage.send("c", channel=UNPACED, thread="k")
    run(stage, ann)
    assert slack.posted == {"b": None, "a": None, "c": ROOT}


def test_the_same_start_after_a_lost_reply_names_the_same_message(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel="#ops", thread="k")
    run(stage, ann)
    stage.send("b", channel="#ops", thread="k")
    (started,) = ann.go()
    again = ann.start(started.candidate.leased)
    assert isinstance(again, Started)
    assert (again.attempt, again.thread_ts) == (started.attempt, ROOT)
    assert started.thread_ts == ROOT


def test_a_post_of_unknown_delivery_status_is_looked_for_in_the_thread_that_it_went_to(
    stage: Stage, ann: Worker, slack: Slack
) -> None:
    ann.desk.reply = lambda message: Ambiguous("http_500", "?") if message.event_id == "b" else slack(message)
    stage.send("a", "b", channel="#ops", thread="k")
    for _ in range(3):
        ann.run()
        stage.clock.forward(11)
    assert [(search.event_ids, search.thread_ts) for search in ann.desk.searches][:1] == [(("b",), ROOT)]


def test_an_unconfirmed_first_post_is_searched_for_in_the_channel_after_its_thread_began(
    stage: Stage, ann: Worker, slack: Slack
) -> None:
    ann.desk.reply = lambda message: Ambiguous("http_500", "?") if message.event_id == "a" else slack(message)
    stage.send("a", "b", channel="#ops", thread="k")
    for _ in range(3):
        ann.run()
        stage.clock.forward(11)
    assert [(search.event_ids, search.thread_ts) for search in ann.desk.searches][:1] == [(("a",), None)]


@pytest.mark.parametrize("code", sorted(NO_REPLIES))
def test_where_the_first_message_takes_no_replies_the_next_event_begins_the_thread_anew(
    stage: Stage, ann: Worker, slack: Slack, code: str
) -> None:
    stage.send("a", channel="#ops", thread="k")
    run(stage, ann)
    slack.closed = {ROOT: code}
    stage.send("b", "c", channel="#ops", thread="k")
    run(stage, ann)
    assert slack.posted == {"a": None, "b": None, "c": "1732100000.000200"}
    assert (stage.total("sent"), stage.total("dead")) == (3, 0)
    assert set(stage.slots("global")) == {"a", "b", "c"}


def test_a_thread_that_others_have_begun_anew_is_kept(stage: Stage, ann: Worker, slack: Slack) -> None:
    """Also a reply that arrived begins none: Slack takes no replies to a reply."""
    bob = worker_of(stage, "bob", slack)
    stage.send("a", channel=UNPACED, thread="k")
    run(stage, ann)
    slack.closed = {ROOT: "cannot_reply_to_message"}
    stage.send("b", "c", "d", channel=UNPACED, thread="k")
    b, c, d = ann.go()
    ann.deliver([b])
    bob.run()
    ann.deliver([c])
    slack.closed = {}
    ann.deliver([d])
    run(stage, bob)
    assert slack.posted == {"a": None, "b": None, "d": ROOT, "c": "1732100000.000200"}
    stage.send("e", channel=UNPACED, thread="k")
    run(stage, bob)
    assert slack.posted["e"] == "1732100000.000200"


def test_a_reply_that_arrives_after_its_thread_was_forgotten_begins_none(
    stage: Stage, ann: Worker, slack: Slack
) -> None:
    stage.send("a", channel=UNPACED, thread="k")
    run(stage, ann)
    stage.send("b", "c", channel=UNPACED, thread="k")
    b, c = ann.go()
    slack.closed = {ROOT: "cannot_reply_to_message"}
    ann.deliver([b])
    slack.closed = {}
    ann.deliver([c])
    assert slack.posted == {"a": None, "c": ROOT}
    assert not stage.redis.exists(*stage.keys.threads)


def test_an_event_that_names_the_message_itself_is_rejected_with_it(stage: Stage, ann: Worker, slack: Slack) -> None:
    slack.closed = {ROOT: "cannot_reply_to_message"}
    stage.send("a", channel="#ops", thread="k", thread_ts=ROOT)
    run(stage, ann)
    assert (slack.posted, stage.total("dead")) == ({}, 1)


def test_a_thread_is_kept_for_a_day_after_its_last_message(stage: Stage, ann: Worker, slack: Slack) -> None:
    for id_, pause_s in (("a", 0), ("b", DAY_S - 10), ("c", DAY_S - 10), ("d", DAY_S + 10)):
        stage.clock.forward(pause_s)
        stage.send(id_, channel="#ops", thread="k")
        run(stage, ann)
    assert slack.posted == {"a": None, "b": ROOT, "c": ROOT, "d": None}
    stage.send("e", channel="#ops", thread="k")
    run(stage, ann)
    assert slack.posted["e"] == "1732100000.000400"


def test_a_thread_is_kept_for_as_long_as_ids_are_remembered(redis: Database, slack: Slack) -> None:
    stage = Stage(redis, policy_of("", "", pace="1000/1s"), remember_us=3 * REMEMBER_US)
    stage.prolongs = True
    ann = worker_of(stage, "ann", slack)
    stage.send("a", channel="#ops", thread="k")
    run(stage, ann)
    stage.clock.forward(3 * DAY_S - 10)
    stage.send("b", channel="#ops", thread="k")
    run(stage, ann)
    assert slack.posted == {"a": None, "b": ROOT}


def test_threads_whose_time_has_come_are_forgotten_two_for_each_that_begins(stage: Stage, ann: Worker) -> None:
    stage.send(*[f"a{n}" for n in range(5)], channel="#ops")
    for n in range(5):
        stage.send(f"b{n}", channel="#ops", thread=f"k{n}")
    run(stage, ann)
    stage.clock.forward(DAY_S + 10)
    stage.send("c", channel="#ops", thread="new")
    run(stage, ann)
    names = [name.decode() for name in stage.redis.zrange(stage.keys.threads[0], 0, -1)]
    assert names == ["#ops\nk2", "#ops\nk3", "#ops\nk4", "#ops\nnew"]
    assert sorted(name.decode() for name in stage.redis.hkeys(stage.keys.threads[1])) == names


def test_of_more_than_may_be_kept_the_one_goes_that_was_used_least_lately(stage: Stage, ann: Worker) -> None:
    redis, (threads, roots) = stage.redis, stage.keys.threads
    later = START_US + 10 * DAY_S * 1_000_000
    names = {f"#old\n{n}": later + n for n in range(100_000)}
    redis.zadd(threads, names)
    redis.hset(roots, mapping=dict.fromkeys(names, "1.1"))
    redis.expire(threads, DAY_S)
    stage.send("a", channel="#ops", thread="k")
    run(stage, ann)
    assert redis.zcard(threads) == redis.hlen(roots) == 100_000
    assert redis.zscore(threads, "#old\n0") is None
    assert not redis.hexists(roots, "#old\n0")
    assert redis.hget(roots, "#ops\nk") == ROOT.encode()


def test_both_keys_of_threads_end_by_themselves(stage: Stage, ann: Worker) -> None:
    stage.prolongs = False
    stage.send("a", channel="#ops", thread="k")
    run(stage, ann)
    lifetimes = [stage.redis.pttl(key) for key in stage.keys.threads]
    assert all(DAY_S * 1_000 - 60_000 < lifetime <= DAY_S * 1_000 + 10 for lifetime in lifetimes)


def test_events_without_a_thread_leave_no_trace_of_any(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel="#ops")
    run(stage, ann)
    assert not stage.redis.exists(*stage.keys.threads)
